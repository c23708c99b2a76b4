"""``brokerless verify`` on the embedded server: each fault is planted for real, in topics and in others' tables."""

from __future__ import annotations

import io
import json
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from brokerless import Consumer, DeltaLog, Offset, Producer, Schema, create_topic, delete_topic
from brokerless.cli.verify import _Watch
from brokerless.clock import SYSTEM
from brokerless.columns.footer import row_count
from brokerless.ingest.positions import SourcePosition, write_once
from brokerless.log.entries import ENGINE_KEY, PARTITIONS_KEY, Add, Metadata, Protocol, build_entry
from brokerless.maintenance.maintainer import Maintainer, storage_options
from brokerless.testing.history import History, RecordingConsumer, RecordingProducer
from brokerless.testing.history.verdict import KINDS
from brokerless.verify import table
from brokerless.verify.report import Kind
from brokerless.verify.table import SAMPLE_FILES, TableReport, verify_table, verify_topic
from tests.support.checkpoints import clean_up, write_checkpoint
from tests.support.cli import Cli, assert_refused
from tests.support.fakes import FakeClock

if TYPE_CHECKING:
    from brokerless.store import ObstoreStore

REPO = Path(__file__).parents[2]
SCHEMA = Schema.parse("id string, n long")


@pytest.fixture
def store(cli) -> ObstoreStore:
    return cli.store


def fill(store: ObstoreStore, topic: str = "t", *, commits: int = 3, partitions: int = 1) -> DeltaLog:
    """A topic of which each commit (from version 1 on) has two messages."""
    create_topic(store, topic, SCHEMA, partitions=partitions)
    for partition in range(partitions):
        with Producer(topic, store=store, partition=partition) as producer:
            for n in range(commits):
                producer.send([{"id": f"{partition}-{n}-{row}", "n": row} for row in range(2)])
    return DeltaLog(store, topic)


def find(store: ObstoreStore, table: str = "t", **more: Any) -> list[tuple[str, str]]:
    return [(finding.kind, finding.text) for finding in verify_table(store, table, **more).findings]


def paths(log: DeltaLog, version: int) -> list[str]:
    entry = log.read(version)
    assert entry is not None
    return [add.path for add in entry.adds]


def put_entry(log: DeltaLog, version: int, **more: Any) -> None:
    """An entry by an unconditional PUT, as bad writers write them."""
    fields = {"commit_id": "c", "timestamp_ms": 1_900_000_000_000, "operation": "WRITE", "engine": "some/1"} | more
    log.store.put(log.entry_path(version), build_entry(**fields))


# Clean tables


def test_a_clean_topic(store) -> None:
    fill(store, partitions=2)
    reports = verify_topic(store, "t", full=True)
    assert [report.table for report in reports] == ["t", "t.1"]
    for report in reports:
        assert report.ok, report.findings
        assert (report.head, report.entries, report.files, report.rows, report.files_read) == (3, 4, 3, 6, 3)
        assert report.notes == ()


def test_nothing_is_written(cli, store) -> None:
    fill(store)
    before = {path: store.get(path) for path in cli.objects()}
    store.requests.clear()
    verify_topic(store, "t", full=True)
    assert set(store.requests) <= {"GET", "LIST"}
    assert {path: store.get(path) for path in cli.objects()} == before


def test_a_topic_with_its_whole_life_behind_it(cli, store) -> None:
    """Named producers, positions, checkpoints, clean-up, orphans, deletion and a new begin: none is a fault."""
    log = fill(store)
    for _ in range(2):
        with Producer("t", store=store, producer_id="p") as producer:
            producer.send([{"id": "x", "n": 1}])
    fresh = DeltaLog(store, "t")
    for position in (2**63 - 1, 2**63, 2**126):  # the lower parts go back
        at = SourcePosition("kinesis/s/0", position)
        write_once(fresh, [{"id": "k", "n": 1}], [at], schema=SCHEMA, topic="t", timeout_s=10, clock=SYSTEM)
    Maintainer(["t"], settings=cli.settings, checkpoint_every=2).run_once()
    assert log.checkpoint_version() is not None
    assert find(store, full=True) == []
    clean_up(log, 3)
    with Producer("t", store=store) as producer:
        producer.send([{"id": "y", "n": 1}])
    assert find(store, full=True) == []
    Maintainer(["t"], settings=cli.settings, checkpoint_every=2).run_once()
    assert find(store, full=True) == []
    delete_topic(store, "t")
    report = verify_table(store, "t")
    assert (report.ok, report.files) == (True, 0)
    assert "the topic is deleted" in report.notes
    create_topic(store, "t", SCHEMA)
    with Producer("t", store=store, producer_id="p") as producer:
        producer.send([{"id": "x", "n": 1}], sequence=0)
    assert find(store, full=True) == []


def test_rows_are_compared_behind_a_clean_up_too(cli, store) -> None:
    log = fill(store)
    Maintainer(["t"], settings=cli.settings, checkpoint_every=2).run_once()
    (path,) = paths(log, 1)
    clean_up(log, 3)
    report = verify_table(store, "t", full=True)
    assert (report.files, report.rows, report.ok) == (3, 6, True)
    store.put(f"t/{path}", store.get(f"t/{path}")[:-1] + b"X")
    assert [kind for kind, _ in find(store, full=True)] == ["unreadable-object"]


def test_tables_of_others(cli, store) -> None:
    url, options = f"{store.uri}/events", storage_options(cli.settings)
    data = pa.table({"day": ["2026-01-01", "a b%c"], "n": [1, 2]})
    for _ in range(3):
        write_deltalake(url, data, mode="append", partition_by=["day"], storage_options=options)
    table = DeltaTable(url, storage_options=options)
    table.optimize.compact()
    table.delete("n = 2")
    table.create_checkpoint()
    write_deltalake(url, data, mode="append", storage_options=options)
    report = verify_table(store, "events", full=True)
    assert report.ok, report.findings
    assert (report.rows, report.checkpoints, report.partitions) == (5, 1, None)
    more = pa.table({"day": ["x"], "n": [3], "more": [1]})
    write_deltalake(url, more, mode="append", schema_mode="merge", storage_options=options)
    report = verify_table(store, "events")
    assert report.ok
    assert any("changes the columns: + more long" in note for note in report.notes)


def test_no_table_is_refused(cli, store) -> None:
    assert_refused(cli("verify", "nix"), "There is no Delta table", "/nix")


# Faults of the log


def test_a_gap(store) -> None:
    log = fill(store, commits=5)
    store.delete([log.entry_path(2), log.entry_path(3)])
    assert find(store) == [("gap", "entries 2 to 3 are missing from the log")]


def test_a_checkpoint_bridges_a_gap_for_what_comes_after(store) -> None:
    log = fill(store, commits=5)
    write_checkpoint(log)
    with Producer("t", store=store) as producer:
        producer.send([{"id": "x", "n": 1}])
    store.delete([log.entry_path(2)])
    report = verify_table(store, "t")
    assert [finding.kind for finding in report.findings] == ["gap"]
    assert report.files == 6


@pytest.mark.parametrize("first", [0, 2])
def test_entries_missing_up_to_a_checkpoint(store, first) -> None:
    log = fill(store, commits=5)
    write_checkpoint(log)
    clean_up(log, first)
    store.delete([log.entry_path(version) for version in (4, 5)])
    report = verify_table(store, "t", full=True)
    assert ("gap", "entries 4 to 5 are missing from the log") in [(f.kind, f.text) for f in report.findings]
    assert (report.head, report.files, report.orphans) == (5, 5, 0)


def test_a_beginning_that_nothing_covers(store) -> None:
    log = fill(store)
    clean_up(log, 2)
    assert find(store) == [("gap", "the log begins at entry 2, and no checkpoint says what was before")]


def test_a_log_that_begins_behind_its_checkpoint(store) -> None:
    log = fill(store)
    write_checkpoint(log)
    with Producer("t", store=store) as producer:
        producer.send([{"id": "x", "n": 1}])
    clean_up(log, 4)
    report = verify_table(store, "t")
    assert (report.ok, report.entries, report.files) == (True, 1, 4), report.findings
    store.delete([log.entry_path(4)])
    report = verify_table(store, "t")
    assert (report.ok, report.head, report.files) == (True, 3, 3), report.findings


def test_a_log_that_is_cleaned_up_while_one_looks(store, monkeypatch) -> None:
    log = fill(store)
    write_checkpoint(log)
    listed = list(store.list("t"))
    clean_up(log, 2)
    monkeypatch.setattr(type(store), "list", lambda self, prefix, after=None: iter(listed))
    report = verify_table(store, "t")
    assert (report.ok, report.entries, report.files) == (True, 2, 3), report.findings


@pytest.mark.parametrize(
    "data", [b"nonsense\n", b'{"add": {"path": "x"}}\n', b"[1]\n", b'{"commitInfo": {"timest', b"", b"\n"]
)
def test_an_unreadable_entry(store, data) -> None:
    log = fill(store)
    store.put(log.entry_path(2), data)
    ((kind, text),) = find(store)
    assert kind == "unreadable-entry"
    assert text.startswith("entry 2 is not a log entry")


def test_an_entry_that_was_cut_at_the_end_of_a_line(store) -> None:
    log = fill(store)
    store.put(log.entry_path(2), b"".join(store.get(log.entry_path(2)).splitlines(keepends=True)[:-1]))
    ((kind, text),) = find(store)
    assert kind == "unreadable-entry"
    assert "have 1 actions of 2" in text


@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        (["protocol"], "entry 0 is the first, and has no protocol"),
        (["metaData"], "entry 0 is the first, and has no metadata"),
        (["metaData", "protocol"], "entry 0 is the first, and has no protocol and no metadata"),
    ],
)
def test_a_table_that_never_said_what_it_is(store, left_out, words) -> None:
    log = fill(store)
    actions = [json.loads(line) for line in store.get(log.entry_path(0)).splitlines()]
    actions[0]["commitInfo"].pop("actions")
    kept = [action for action in actions if not action.keys() & set(left_out)]
    store.put(log.entry_path(0), b"\n".join(json.dumps(action).encode() for action in kept))
    assert find(store) == [("missing-metadata", words)]


def test_metadata_without_columns(store) -> None:
    log = fill(store)
    metadata = log.state.metadata
    put_entry(log, 4, metadata=Metadata(metadata.id, '{"fields": 5}', configuration=metadata.configuration))
    assert [kind for kind, _ in find(store)] == ["missing-metadata", "schema-change"]


def test_a_topic_with_features_that_its_readers_refuse(store) -> None:
    log = fill(store)
    put_entry(log, 4, protocol=Protocol(1, 4))
    ((kind, text),) = find(store)
    assert kind == "unsupported"
    assert "changeDataFeed" in text


def test_an_entry_that_adds_and_removes_one_file(store) -> None:
    log = fill(store)
    (path,) = paths(log, 2)
    put_entry(log, 4, removes=[path], adds=[Add(path, 1, 2, 1, data_change=False)])
    assert ("added-and-removed", f"entry 4 adds and removes {path}") in find(store)


def test_rows_of_a_topic_that_another_engine_rewrites(cli, store) -> None:
    fill(store)
    table = DeltaTable(f"{store.uri}/t", storage_options=storage_options(cli.settings))
    table.optimize.compact()  # the same rows: readers know
    assert find(store) == []
    table.delete("n = 0")
    table.restore(2)
    (first, text), (second, restored) = find(store)
    assert first == second == "rewritten"
    assert text.startswith("entry 5 (DELETE by delta-rs")
    assert restored.startswith("entry 6 (RESTORE by delta-rs")


def test_partitions_that_do_not_agree(store) -> None:
    fill(store, partitions=3)
    for number, schema, partitions in ((1, Schema.parse("id string, n long, more long"), "3"), (2, SCHEMA, "4")):
        log = DeltaLog(store, f"t.{number}")
        metadata = log.state.metadata
        put_entry(
            log,
            4,
            metadata=Metadata(metadata.id, schema.to_delta(), configuration={PARTITIONS_KEY: partitions}),
        )
    texts = [f.text for report in verify_topic(store, "t") for f in report.findings if f.kind == "partitions-differ"]
    assert texts == [
        "t.1 has other columns than t: + more long",
        "t says that the topic has 3 partitions; t.2 says 4",
    ]


def test_a_topic_created_anew_with_other_columns_while_one_looks(store, monkeypatch) -> None:
    fill(store, partitions=2)
    run = table._Inspection.run
    begun: list[str] = []

    def in_between(self: Any) -> TableReport:
        if self.table == "t.1" and not begun:
            begun.append(self.table)
            delete_topic(store, "t")
            create_topic(store, "t", Schema.parse("other string"), partitions=2)
        return run(self)

    monkeypatch.setattr(table._Inspection, "run", in_between)
    assert [f for report in verify_topic(store, "t") for f in report.findings] == []
    assert begun


@pytest.mark.parametrize("before", [False, True], ids=["new", "after a deleted one"])
def test_a_topic_that_is_half_created(store, before) -> None:
    if before:
        fill(store, partitions=2)
        delete_topic(store, "t")
    DeltaLog(store, "t.1").create(schema_string=SCHEMA.to_delta(), configuration={PARTITIONS_KEY: "2"})
    clock = now()
    first, _ = verify_topic(store, "t", clock=clock)
    assert first.findings == ()
    assert "t.1 is there, t is not yet: the topic is being created, or was just now" in first.notes
    clock.advance(3600)
    first, _ = verify_topic(store, "t", clock=clock)
    assert [(f.kind, f.text) for f in first.findings] == [
        ("half-created", "t.1 is there, t is not; 'brokerless topics describe t' says what to do")
    ]


def test_entries_that_go_missing_while_one_looks(store, monkeypatch) -> None:
    log = fill(store)
    listed = list(store.list("t"))
    listing = type(store).list
    for n in range(2):
        log.append([], {"a": n})
    store.delete([log.entry_path(4)])

    def before_and_after(self: Any, prefix: str, *, after: str | None = None) -> Any:
        return iter(listed) if after is None else listing(self, prefix, after=after)

    monkeypatch.setattr(type(store), "list", before_and_after)
    report = verify_table(store, "t")
    assert [(f.kind, f.text) for f in report.findings] == [("gap", "entry 4 is missing from the log")]
    assert report.head == 5


def test_a_repeated_add(store) -> None:
    log = fill(store)
    (path,) = paths(log, 2)
    size = next(info.size for info in store.list("t") if info.path == f"t/{path}")
    log.append([Add(path, size, 2, 1)])
    assert find(store) == [("repeated-add", f"entry 4 adds {path}, which is in the table already")]
    log.append([Add(path, size, 2, 1, data_change=False)])  # new statistics
    assert len(find(store)) == 1


@pytest.mark.parametrize(("now", "is_fault"), [(8, False), (7, True), (6, True)])
def test_a_transaction_that_does_not_advance(store, now, is_fault) -> None:
    log = fill(store)
    put_entry(log, 4, txns={"app": 7})
    put_entry(log, 5, txns={"app": now})
    wanted = [("txn-back", f"entry 5 has the transaction 'app' at {now}; it was at 7")]
    assert find(store) == (wanted if is_fault else [])


def test_a_position_that_goes_back(store) -> None:
    log = fill(store)
    put_entry(log, 4, txns={"k/s#2": 0, "k/s#1": 5, "k/s#0": 1})
    put_entry(log, 5, txns={"k/s#2": 0, "k/s#1": 4, "k/s#0": 9})
    assert find(store) == [("txn-back", "entry 5 has the transaction 'k/s' at 0/4/9; it was at 0/5/1")]


def test_a_changed_schema_of_a_topic(store) -> None:
    log = fill(store)
    metadata = log.state.metadata
    changed = Metadata(metadata.id, Schema.parse("id string, n short").to_delta(), configuration=metadata.configuration)
    put_entry(log, 4, metadata=changed)
    first, *rest = find(store)
    assert first == ("schema-change", "entry 4 changes the columns: + n short, - n long")
    assert {(kind, text.partition(" ")[2]) for kind, text in rest} == {
        ("columns", "differs from the log's columns: it has n as Int64, not short")
    }


def test_a_topic_that_was_replaced_without_a_tombstone(store) -> None:
    log = fill(store)
    metadata = log.state.metadata
    put_entry(log, 4, metadata=Metadata("other", metadata.schema_string, configuration=metadata.configuration))
    ((kind, text),) = find(store)
    assert kind == "replaced"
    assert text.endswith("by other)")


def test_sparks_writer_beside_conditional_writers(store) -> None:
    log = fill(store)
    put_entry(log, 4, engine="Apache-Spark/4.1.1 Delta-Lake/4.2.0")
    ((kind, text),) = find(store)
    assert kind == "unsafe-writer"
    assert text.endswith("entries 4")


@pytest.mark.parametrize(("engine", "is_fault"), [("Apache-Spark/4.1.1 Delta-Lake/4.2.0", False), ("delta-rs:1", True)])
def test_a_table_that_belongs_to_spark(store, engine, is_fault) -> None:
    log = DeltaLog(store, "out")
    owned = Metadata("i", SCHEMA.to_delta(), configuration={ENGINE_KEY: "delta"})
    put_entry(log, 0, engine="Apache-Spark/4.1.1 Delta-Lake/4.2.0", metadata=owned, protocol=Protocol(1, 2))
    put_entry(log, 1, engine=engine)
    assert [kind for kind, _ in find(store, "out")] == (["unsafe-writer"] if is_fault else [])


def test_clocks_that_go_back_are_noted(store) -> None:
    log = fill(store)
    put_entry(log, 4, timestamp_ms=5)
    report = verify_table(store, "t")
    assert report.ok
    assert "1 entry older than the one before, by the writers' clocks (4)" in report.notes


def test_a_partition_without_a_table(cli, store) -> None:
    fill(store, partitions=2)
    store.delete([info.path for info in store.list("t.1")])
    reports = verify_topic(store, "t")
    assert [finding.kind for report in reports for finding in report.findings] == ["missing-partition"]
    assert cli("verify", "t").exit_code == 1


def now() -> FakeClock:
    clock = FakeClock()
    clock.now_us = SYSTEM.time_us()
    return clock


def kinds(store: ObstoreStore, clock: FakeClock) -> list[str]:
    return [finding.kind for report in verify_topic(store, "t", clock=clock) for finding in report.findings]


def test_a_topic_that_is_half_deleted(store) -> None:
    fill(store, partitions=3)
    for deleted in ("t.2", "t.1"):
        DeltaLog(store, deleted).delete()
        clock = now()
        first, *rest = verify_topic(store, "t", clock=clock)
        ((kind, text),) = [(finding.kind, finding.text) for finding in first.findings]
        assert kind == "half-deleted"
        assert text.startswith("t.2 is deleted, t is not" if deleted == "t.2" else "t.1, t.2 are deleted, t is not")
        assert text.endswith("Finish it: brokerless topics delete t")
        assert all(report.ok for report in rest)
        assert sum(clock.slept) == 30
    clock.advance(3600)
    clock.slept.clear()
    assert (kinds(store, clock), clock.slept) == (["half-deleted"], [])  # nobody is at it any more
    delete_topic(store, "t")
    assert kinds(store, clock) == []
    create_topic(store, "t", SCHEMA, partitions=2)
    assert kinds(store, clock) == []


def delete_and_create(store: ObstoreStore) -> None:
    delete_topic(store, "t")
    create_topic(store, "t", SCHEMA, partitions=3)


@pytest.mark.parametrize(
    "go_on",
    [lambda store: DeltaLog(store, "t.1").delete(), lambda store: delete_topic(store, "t"), delete_and_create],
    ids=["next partition", "to its end", "to its end and created again"],
)
def test_a_deletion_that_goes_on_while_one_looks(store, go_on) -> None:
    fill(store, partitions=3)
    DeltaLog(store, "t.2").delete()
    clock = now()
    clock.on_sleep = lambda: go_on(store) if len(clock.slept) == 25 else None
    assert kinds(store, clock) == []
    assert len(clock.slept) == 25


def test_a_topic_that_is_being_created_again(store) -> None:
    fill(store, partitions=2)
    delete_topic(store, "t")
    DeltaLog(store, "t.1").create(schema_string=SCHEMA.to_delta(), configuration={PARTITIONS_KEY: "2"})
    clock = now()
    assert (kinds(store, clock), clock.slept) == ([], [])


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


# The command


def test_the_command_on_a_clean_topic(cli, store) -> None:
    fill(store, partitions=2)
    result = cli("verify", "t")
    assert result.exit_code == 0, result.output
    first, second = result.stdout.splitlines()
    assert first == "t: ok (entries 4, live files 3, rows 6, files read 3, checkpoints compared 0)"
    assert second.startswith("t.1: ok")
    assert "requests (" in result.stderr
    assert "USD" in result.stderr


def test_the_command_on_faults(cli, store) -> None:
    log = fill(store)
    (path,) = paths(log, 1)
    store.delete([f"t/{path}", log.entry_path(2)])
    result = cli("verify", "t")
    assert result.exit_code == 1
    assert "gap: entry 2 is missing from the log" in result.stdout
    assert "missing-object: " in result.stdout
    result = cli("verify", "t", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert not document["ok"]
    assert [finding["kind"] for finding in document["tables"][0]["findings"]] == ["gap", "missing-object"]
    assert document["tables"][0]["findings"][1]["path"] == path
    assert document["requests"].keys() == {"GET", "LIST"}
    assert 0 < document["usd"] < 0.001


def test_the_command_on_a_url(cli, store) -> None:
    fill(store, partitions=2)
    document = cli.json("verify", f"{store.uri}/t/")
    assert [table["table"] for table in document["tables"]] == ["t", "t.1"]
    document = cli.json("verify", f"{store.uri}/t.1")
    assert [table["table"] for table in document["tables"]] == ["t.1"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "Name a topic"),
        (["s3://bucket"], "is not the URL of a table"),
        (["s3://bucket/"], "is not the URL of a table"),
        (["s3://a/t", "--root", "s3://b"], "omit --root"),
        (["a/b"], "is not a valid topic name"),
        (["--history", "nix.jsonl"], "nix.jsonl cannot be read"),
    ],
)
def test_lines_that_make_no_sense_are_refused(cli, args, words) -> None:
    assert_refused(cli("verify", *args), words)


def test_progress_says_what_is_done(capsys, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with _Watch() as watch:
        for what in ("Listing objects", "Reading entries"):
            watch(what, 1)
            now[0] += 6
            watch(what, 2000)
            watch(what, 2001)
    assert capsys.readouterr().err == "Listing objects: 2,000 done\nReading entries: 2,000 done\n"


# Histories


def record(cli: Cli, path: Path, *, harm: bool) -> None:
    store = cli.store
    create_topic(store, "t", SCHEMA, exist_ok=True)
    with History(path) as history:
        with Producer("t", store=store, producer_id="p") as inner:
            producer = RecordingProducer(inner, history, id_column="id", producer_id="p")
            for n in range(5):
                producer.send([{"id": f"{n}-{row}", "n": row} for row in range(2)], sequence=n)
            producer.enqueue([{"id": "last", "n": 0}]).result(30)
        if harm:
            store.put(DeltaLog(store, "t").entry_path(4), b'{"commitInfo": {"timestamp": 1}}\n')
        with Consumer("t", start="beginning", store=store) as inner_consumer:
            consumer = RecordingConsumer(inner_consumer, history, id_column="id")
            while consumer.poll(0):
                pass
            consumer.seek(Offset(3), partition=0)
            consumer.poll(0)


def test_a_history_of_a_clean_run(cli, tmp_path) -> None:
    record(cli, tmp_path / "h.jsonl", harm=False)
    result = cli("verify", "--history", "h.jsonl")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("OK: ")
    assert "messages acknowledged 11," in result.stdout


def test_a_history_of_a_loss(cli, tmp_path) -> None:
    record(cli, tmp_path / "h.jsonl", harm=True)
    document = cli("verify", "--history", "h.jsonl", "--json")
    assert document.exit_code == 1
    assert json.loads(document.stdout)["found"] == {"lost": 2}
    assert cli("verify", "t", "--history", "h.jsonl").exit_code == 1
    assert cli("verify", "other", "--history", "h.jsonl").exit_code == 0


def test_a_torn_history_is_judged_and_reported(cli, tmp_path) -> None:
    path = tmp_path / "h.jsonl"
    record(cli, path, harm=False)
    path.write_bytes(path.read_bytes()[:-5])
    result = cli("verify", "--history", "h.jsonl")
    assert result.exit_code == 0
    assert "The last line of h.jsonl is incomplete" in result.stderr
    assert cli.json("verify", "--history", "h.jsonl")["torn"] == ["h.jsonl"]


# Footers


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 100_000])
@pytest.mark.parametrize("version", ["1.0", "2.6"])
def test_the_rows_of_real_objects(rows: int, version: str) -> None:
    table = pa.table(
        {
            "n": pa.array(range(rows), pa.int64()),
            "nested": pa.array(
                [{"a": ["x"], "b": 1.5}] * rows, pa.struct({"a": pa.list_(pa.string()), "b": pa.float64()})
            ),
            "flag": pa.array([True] * rows),
        }
    ).replace_schema_metadata({"key": "value"})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, version=version, row_group_size=1000)
    assert row_count(buffer.getvalue()) == rows


def test_damaged_footers_are_refused_and_never_crash() -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"n": [1, 2, 3]}), buffer)
    good = buffer.getvalue()
    rng = random.Random(1)
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data) - 200, len(data))] = rng.randrange(256)
        try:
            row_count(bytes(data))
        except ValueError as error:
            assert "Parquet" in str(error)
    for data in (b"", good[:-1], good[1:], b"PAR1PAR1", b"PAR1\xff\xff\xff\x7fPAR1", b"PAR1" + bytes(8) + b"PAR1"):
        with pytest.raises(ValueError, match="Parquet"):
            row_count(data)


def test_a_report_is_json(store) -> None:
    fill(store)
    report = verify_table(store, "t")
    assert isinstance(report, TableReport)
    assert json.loads(json.dumps(report.to_json()))["head"] == 3
    assert PARTITIONS_KEY not in report.to_json()


def test_the_examples_of_the_documentation_run(cli, monkeypatch, capsys) -> None:
    for name, value in cli.settings.to_environ().items():
        monkeypatch.setenv(name, value)
    create_topic(cli.store, "clicks", Schema.parse("id string, page string"), partitions=2)
    page = (REPO / "docs" / "verify.md").read_text()
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(compile(code, "docs/verify.md", "exec"), names)  # noqa: S102  # our own document
    assert cli("verify", "--history", "clicks.jsonl").stdout in page
    assert cli("verify", "--history", "worker.jsonl").exit_code == 0
    assert capsys.readouterr().out.startswith("FAILED: rows in 1,000.\nlost: 1,000\n")  # there is no pipeline
    assert cli("verify", "clicks").exit_code == 0


def test_the_documentation_names_every_finding() -> None:
    page = (REPO / "docs" / "verify.md").read_text()
    for kind in (*KINDS, *get_args(Kind)):
        assert f"`{kind}`" in page
