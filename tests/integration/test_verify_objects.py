"""``brokerless verify`` finds faults of objects and of checkpoints that are planted for real."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from brokerless import DeltaLog, Producer
from brokerless.log.entries import PARTITIONS_KEY, Add
from brokerless.maintenance.maintainer import storage_options
from brokerless.verify.table import SAMPLE_FILES, verify_table
from tests.support.checkpoints import write_checkpoint
from tests.support.fakes import FakeClock
from tests.support.verify import SCHEMA, fill, find, paths

if TYPE_CHECKING:
    from brokerless.store import ObstoreStore


@pytest.fixture
def store(cli) -> ObstoreStore:
    return cli.store


# Faults of objects


def test_a_missing_object(store) -> None:
    log = fill(store)
    (path,) = paths(log, 2)
    store.delete([f"t/{path}"])
    assert find(store, full=True) == [("missing-object", f"{path} is in the log, but not in the store")]


def test_what_is_committed_while_one_looks_is_not_missing(store, monkeypatch) -> None:
    log = fill(store)
    listed = list(store.list("t"))
    with Producer("t", store=store) as producer:
        producer.send([{"id": "x", "n": 1}])
    (late,) = paths(log, 4)
    with_entry = [*listed, *(info for info in store.list("t") if info.path == log.entry_path(4))]
    for found in (listed, with_entry):  # the listing ended before the commit, or passed its object before it was put
        monkeypatch.setattr(type(store), "list", lambda self, prefix, after=None, found=found: iter(found))
        report = verify_table(store, "t")
        assert (report.ok, report.head, report.files, report.orphans) == (True, 4, 4, 0), late


def test_an_object_of_another_size(store) -> None:
    log = fill(store)
    (path,) = paths(log, 2)
    data = store.get(f"t/{path}")
    store.put(f"t/{path}", data + b"PAR1")
    kinds = find(store)
    assert ("object-size", f"{path} has {len(data) + 4} bytes; the log says {len(data)}") in kinds


def test_a_wrong_number_of_rows(store) -> None:
    log = fill(store)
    (path,) = paths(log, 2)
    size = len(store.get(f"t/{path}"))
    store.put("t/copy.parquet", store.get(f"t/{path}"))
    log.append([Add("copy.parquet", size, 7, 1)])
    assert find(store) == [("row-count", "copy.parquet has 2 rows; the log says 7")]


def parquet(**columns: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": ["a"], "n": [1]}, "it lacks _produced_at"),
        ({"id": ["a"], "n": [1], "_produced_at": [None]}, "it has _produced_at as Null, not timestamp"),
        ({"id": ["a"], "n": ["x"]}, "it has n as Utf8, not long"),
        ({"id": ["a"], "n": pa.array([1], pa.int32())}, "it has n as Int32, not long"),
        ({"id": ["a"], "n": [1], "more": [1]}, "it has more"),
        ({"other": [1]}, "it lacks id, lacks n, has other"),
        ({"id": pa.array(["a"]).dictionary_encode(), "n": [1]}, None),
        ({"id": pa.array(["a"], pa.large_string()), "n": [1]}, None),
    ],
)
def test_an_object_of_others_with_other_columns(store, columns, words) -> None:
    log = fill(store)
    if words is None or "_produced_at" not in words:
        columns = {**columns, "_produced_at": pa.array([1], pa.timestamp("ns"))}
    data = parquet(**columns)
    store.put("t/theirs.parquet", data)
    log.append([Add("theirs.parquet", len(data), 1, 1)])
    found = find(store)
    assert [kind for kind, _ in found] == ([] if words is None else ["columns"])
    assert all(words in text for _, text in found)


def test_columns_that_a_table_of_others_got_later(cli, store) -> None:
    url, options = f"{store.uri}/events", storage_options(cli.settings)
    write_deltalake(url, pa.table({"n": [1], "s": [[1]], "day": ["x"]}), partition_by=["day"], storage_options=options)
    more = pa.table({"n": [2], "s": [[1]], "day": ["x"], "more": [1]})
    write_deltalake(url, more, mode="append", schema_mode="merge", storage_options=options)
    assert find(store, "events", full=True) == []
    path = next(info.path for info in store.list("events") if info.path.endswith(".parquet"))
    size = len(store.get(path))
    # What was put in its place has its size and its rows, and so much else in its footer as fills it up.
    other = pa.table({"x": [1]})
    for pad in range(size):
        buffer = io.BytesIO()
        pq.write_table(other.replace_schema_metadata({"pad": "x" * pad}), buffer, store_schema=False)
        if len(buffer.getvalue()) >= size:
            break
    store.put(path, buffer.getvalue())
    assert "columns" in [kind for kind, _ in find(store, "events", full=True)]


def test_an_object_that_is_no_parquet(store) -> None:
    log = fill(store)
    store.put("t/x.parquet", b"x" * 100)
    log.append([Add("x.parquet", 100, 7, 1)])
    ((kind, text),) = find(store)
    assert kind == "unreadable-object"
    assert text == "x.parquet cannot be read: no Parquet object: it does not begin and end with PAR1"


def test_an_object_with_a_flipped_bit(store) -> None:
    log = fill(store)
    (path,) = paths(log, 2)
    data = bytearray(store.get(f"t/{path}"))
    data[40] ^= 1
    store.put(f"t/{path}", bytes(data))
    ((kind, text),) = find(store, full=True)
    assert kind == "damaged-object"
    assert text.startswith(f"{path} is damaged: {len(data)} bytes have the CRC-32 ")


def test_a_bit_that_flips_on_the_way_is_no_fault_of_the_object(store, monkeypatch) -> None:
    log = fill(store)
    (path,) = paths(log, 2)
    get, asked = type(store).get, []

    def flip(self: Any, name: str) -> bytes:
        data = bytearray(get(self, name))
        if name == f"t/{path}":
            asked.append(name)
            data[40] ^= len(asked) == 1
        return bytes(data)

    monkeypatch.setattr(type(store), "get", flip)
    assert find(store, full=True) == []
    assert len(asked) == 2


def test_a_sample_is_bounded_and_full_is_not(store) -> None:
    fill(store, commits=SAMPLE_FILES + 10)
    assert verify_table(store, "t").files_read == SAMPLE_FILES
    store.requests.clear()
    report = verify_table(store, "t", clock=FakeClock())
    # The log's entries and the one that is not there yet, the hint, the sample.
    assert store.requests["GET"] == report.entries + 1 + 1 + SAMPLE_FILES
    assert verify_table(store, "t", full=True).files_read == SAMPLE_FILES + 10


def test_orphans_are_noted(store) -> None:
    fill(store)
    store.put("t/part-lost.parquet", b"12345")
    store.put("t/_brokerless/other.parquet", b"hidden")
    report = verify_table(store, "t")
    assert (report.ok, report.orphans, report.orphan_bytes) == (True, 1, 5)
    assert report.notes[0].startswith("1 object (5 bytes) that nothing names")
    assert "maintenance removes the first" in report.notes[0]


def test_an_orphan_is_none_for_sure_while_an_entry_is_missing(store) -> None:
    log = fill(store)
    store.delete([log.entry_path(2)])
    (note,) = verify_table(store, "t").notes
    assert note.endswith("what is missing or damaged in the log may do so, so remove none of them")


def test_a_table_of_others_is_theirs_to_rewrite_and_to_clean(cli, store) -> None:
    data = pa.table({"n": [1, 2]})
    for _ in range(2):
        write_deltalake(f"{store.uri}/events", data, mode="append", storage_options=storage_options(cli.settings))
    store.put("events/part-lost.parquet", b"12345")
    DeltaTable(f"{store.uri}/events", storage_options=storage_options(cli.settings)).delete("n = 1")
    report = verify_table(store, "events")
    rewritten, note = report.notes
    assert report.ok  # it is theirs
    assert rewritten.startswith("rows were deleted, updated or restored in place (entries 2)")
    assert "maintenance does not remove them unless it is given the table by name" in note


def test_a_sample_ends_with_its_bytes(store, monkeypatch) -> None:
    fill(store)
    monkeypatch.setattr("brokerless.verify.objects.SAMPLE_BYTES", 1)
    assert verify_table(store, "t").files_read == 1


def test_deletion_vectors_make_other_files_of_one_path(store) -> None:
    """As Spark writes them: the path stays, with another vector each time, and goes with the last one."""
    log = fill(store)
    (path,) = paths(log, 2)
    stored = next(info for info in store.list("t") if info.path == f"t/{path}")
    vectors = [None, *({"storageType": "u", "pathOrInlineDv": f"dv{n}", "offset": 1} for n in range(2))]
    file = {"path": path, "size": stored.size, "dataChange": True, "modificationTime": 1}
    for version, (before, after) in enumerate(pairwise([*vectors, "gone"]), start=4):
        lines: list[Any] = [{"remove": {"path": path, "deletionVector": before}}]
        lines += [] if after == "gone" else [{"add": {**file, "deletionVector": after}}]
        store.put(log.entry_path(version), b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        if version == 5:
            report = verify_table(store, "t")
            assert ([f.kind for f in report.findings], report.files) == (["rewritten", "rewritten"], 3)
            assert "2 files with deletion vectors, which this kit does not read" in report.notes
    store.delete([stored.path])
    report = verify_table(store, "t")
    assert ([f.kind for f in report.findings], report.files) == (["rewritten", "rewritten"], 2)


def test_files_outside_of_the_table_are_noted(store) -> None:
    log = fill(store)
    action = {"add": {"path": "s3://other/place.parquet", "size": 1, "dataChange": True}}
    store.put(log.entry_path(4), json.dumps(action).encode())
    report = verify_table(store, "t", full=True)
    assert report.ok
    assert "1 file outside the table's folder, which were not checked" in report.notes


# Checkpoints


def damage(log: DeltaLog, kind: str) -> None:
    version = write_checkpoint(log)
    path = f"t/_delta_log/{version:020d}.checkpoint.parquet"
    table = pq.read_table(io.BytesIO(log.store.get(path)))
    rows = table.to_pylist()
    if kind == "file":
        rows.remove(next(row for row in rows if row["add"]))
    elif kind == "txn":
        next(row for row in rows if row["txn"] and row["txn"]["appId"] == "p")["txn"]["version"] += 1
    elif kind == "columns":
        next(row for row in rows if row["metaData"])["metaData"]["schemaString"] = SCHEMA.to_delta().replace("n", "m")
    elif kind == "properties":
        metadata = next(row for row in rows if row["metaData"])["metaData"]
        metadata["configuration"] = [(k, "7" if k == PARTITIONS_KEY else v) for k, v in metadata["configuration"]]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), buffer)
    data = buffer.getvalue()
    log.store.put(path, {"bytes": data[:-2] + b"xx", "pages": data[:8] + bytes(400) + data[408:]}.get(kind, data))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("file", "it lacks 1 live file"),
        ("txn", "it has other transactions (p)"),
        ("columns", "it has other columns"),
        ("properties", f"it has other properties ({PARTITIONS_KEY})"),
        ("bytes", "cannot be read (ValueError: no Parquet object"),
        ("pages", "cannot be read ("),
    ],
)
def test_a_checkpoint_that_differs(store, kind, words) -> None:
    log = fill(store)
    with Producer("t", store=store, producer_id="p") as producer:
        producer.send([{"id": "x", "n": 1}])
    damage(log, kind)
    ((found, text),) = find(store)
    assert found == "checkpoint"
    assert words in text


def test_a_hint_that_leads_nowhere(store) -> None:
    log = fill(store)
    version = write_checkpoint(log)
    store.delete([f"t/_delta_log/{version:020d}.checkpoint.parquet"])
    assert find(store) == [("checkpoint", "_last_checkpoint names checkpoint 3, which is not there")]


def test_older_checkpoints_are_compared_with_full(store) -> None:
    log = fill(store)
    damage(log, "file")
    with Producer("t", store=store) as producer:
        producer.send([{"id": "x", "n": 1}])
    write_checkpoint(DeltaLog(store, "t"))
    store.put("t/_delta_log/_last_checkpoint", b'{"version": 4}')
    # What the damaged one says is in the log's state of that handle, too: only the entries tell.
    assert [text for _, text in find(store, full=True) if "checkpoint 3" in text]
    assert not [text for _, text in find(store) if "checkpoint 3" in text]
