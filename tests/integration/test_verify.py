"""``brokerless verify`` on clean tables, its command, histories, and the footers of objects."""

from __future__ import annotations

import io
import json
import random
import re
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
from brokerless.maintenance.maintainer import Maintainer, storage_options
from brokerless.testing.history import History, RecordingConsumer, RecordingProducer
from brokerless.testing.history.verdict import KINDS
from brokerless.verify.report import Kind
from brokerless.verify.table import verify_table, verify_topic
from tests.support.checkpoints import clean_up
from tests.support.cli import Cli, assert_refused
from tests.support.verify import SCHEMA, fill, find, paths

if TYPE_CHECKING:
    from brokerless.store import ObstoreStore

REPO = Path(__file__).parents[2]


@pytest.fixture
def store(cli) -> ObstoreStore:
    return cli.store


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
