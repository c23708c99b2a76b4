"""Other engines read topics as they are, write beside us, and tidy up; nobody disagrees about a row."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from brokerless import Consumer, DeltaLog, Producer, Schema, create_topic, delete_topic, open_store
from brokerless.alter import alter_topic, limits_of
from brokerless.errors import TopicDeleted, TopicRewritten
from brokerless.export.topic import export_topic
from brokerless.maintenance.erasure import erase_messages
from brokerless.maintenance.maintainer import Maintainer, storage_options
from brokerless.verify.table import verify_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokerless import Settings

pytestmark = pytest.mark.interop

SCHEMA = Schema.parse("n long, s string, d decimal(10,2), at timestamp, day date, raw binary, ok boolean, x double")
Rows = list[dict[str, Any]]


def messages(*numbers: int) -> Rows:
    return [
        {"n": n, "s": f"é {n}", "d": "1.25", "at": "2026-03-29T03:30:00.000001+02:00", "day": "2026-03-29",
         "raw": "AP8=", "ok": n % 2 == 0, "x": n / 3}
        for n in numbers
    ]  # fmt: skip


def in_order(table: pa.Table) -> Rows:
    plain = pa.table(
        {
            "n": table["n"].cast(pa.int64()),
            "s": table["s"].cast(pa.string()),
            "d": table["d"].cast(pa.decimal128(10, 2)),
            "at": table["at"].cast(pa.timestamp("us", "UTC")),
            "day": table["day"].cast(pa.date32()),
            "raw": table["raw"].cast(pa.binary()),
            "ok": table["ok"],
            "x": table["x"],
            "_produced_at": table["_produced_at"].cast(pa.timestamp("us", "UTC")),
        }
    )
    return plain.sort_by("n").to_pylist()


def uri(settings: Settings) -> str:
    return f"{settings.root}/t"


def by_delta_rs(settings: Settings) -> Rows:
    return in_order(pa.table(DeltaTable(uri(settings), storage_options=storage_options(settings)).to_pyarrow_table()))


def by_polars(settings: Settings) -> Rows:
    frame = pl.read_delta(uri(settings), storage_options=storage_options(settings))
    return in_order(frame.to_arrow())


def by_duckdb(settings: Settings) -> Rows:
    # DuckDB reads S3 with one more extension, which it would download; a copy of the bytes on disk needs none.
    store = open_store(settings)
    with (
        tempfile.TemporaryDirectory() as folder,
        duckdb.connect(
            config={
                "allow_unsigned_extensions": "true",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            }
        ) as connection,
    ):
        for info in store.list("t"):
            copy = Path(folder) / info.path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(store.get(info.path))
        connection.execute(f"LOAD '{_duckdb_extension()}'")
        connection.execute("SET TimeZone='UTC'")
        found = connection.execute("SELECT * FROM delta_scan(?)", [f"{folder}/t"]).to_arrow_table()
        return in_order(found)


def consumed(settings: Settings, topic: str) -> pa.Table:
    with Consumer(topic, start="beginning", settings=settings) as consumer:
        tables = []
        while batches := consumer.poll(0):
            tables += [pa.table(batch.data) for batch in batches]
    return pa.concat_tables(tables)


def by_consumer(settings: Settings) -> Rows:
    return in_order(consumed(settings, "t"))


def _duckdb_extension() -> str:
    import duckdb_extension_delta as package

    (found,) = Path(package.__path__[0]).rglob("*.duckdb_extension")
    return str(found)


READERS = [by_delta_rs, by_polars, by_duckdb]


@pytest.fixture
def producer(settings: Settings) -> Producer:
    create_topic(open_store(settings), "t", SCHEMA)
    return Producer("t", settings=settings, producer_id="p")


def delta(settings: Settings) -> DeltaTable:
    return DeltaTable(uri(settings), storage_options=storage_options(settings))


@pytest.mark.parametrize("reader", READERS)
def test_all_agree_after_commits_checkpoint_compaction_and_clean_up(
    settings: Settings, producer: Producer, reader: Callable[[Settings], Rows]
) -> None:
    for n in range(0, 20, 2):
        producer.send(messages(n, n + 1))
    expected = by_consumer(settings)
    assert [row["n"] for row in expected] == list(range(20))
    assert reader(settings) == expected

    delta(settings).create_checkpoint()
    producer.send(messages(20))
    expected = by_consumer(settings)
    assert reader(settings) == expected

    delta(settings).optimize.compact()
    producer.send(messages(21))
    expected = by_consumer(settings)
    assert [row["n"] for row in expected] == list(range(22))
    assert reader(settings) == expected

    Maintainer(
        ["t"], settings=settings, checkpoint_every=1, log_retention_s=0, grace_s=0, unsafe_no_minimum=True
    ).run_once()
    producer.send(messages(22))
    assert [row["n"] for row in reader(settings)] == list(range(23))
    assert DeltaLog(open_store(settings), "t").earliest() > 10


def test_a_running_consumer_is_not_disturbed_by_what_delta_rs_does(settings: Settings, producer: Producer) -> None:
    seen: list[int] = []
    with Consumer("t", settings=settings, start="beginning") as consumer:

        def read() -> None:
            while batches := consumer.poll(0):
                seen.extend(n for batch in batches for n in pa.table(batch.data)["n"].to_pylist())

        def checkpoint() -> None:
            delta(settings).create_checkpoint()

        def compact() -> None:
            delta(settings).optimize.compact()

        def clean_up() -> None:
            delta(settings).cleanup_metadata()

        steps = [  # each on a handle of its own, opened when its turn has come
            checkpoint,
            compact,
            lambda: delta(settings).vacuum(
                retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
            ),
            clean_up,
            checkpoint,
        ]
        for number, step in enumerate(steps):
            producer.send(messages(2 * number))
            producer.send(messages(2 * number + 1))
            read()
            step()
            read()
        producer.send(messages(10))
        read()
    assert seen == list(range(11))
    assert producer.last_sequence() == 10


def test_delta_rs_writes_beside_our_producer(settings: Settings, producer: Producer) -> None:
    options = storage_options(settings)
    for n in range(0, 10, 2):
        producer.send(messages(n))
        template = delta(settings).to_pyarrow_table().slice(0, 1)
        row = template.set_column(0, "n", pa.array([n + 1], pa.int64()))
        write_deltalake(uri(settings), row, mode="append", storage_options=options)
    rows = by_consumer(settings)
    assert [row["n"] for row in rows] == list(range(10))
    assert by_delta_rs(settings) == rows
    log = DeltaLog(open_store(settings), "t")
    assert [entry.version for entry in log.read_from(0)] == list(range(log.state.version + 1))


@pytest.mark.parametrize("commits", [1, 2])
def test_a_table_that_delta_rs_began_with_messages(settings: Settings, tmp_path: Path, commits: int) -> None:
    sent = list(range(3 * commits))
    for first in sent[::3]:
        rows = pa.table({"n": sent[first : first + 3]})
        write_deltalake(f"{settings.root}/others", rows, mode="append", storage_options=storage_options(settings))
    assert consumed(settings, "others")["n"].to_pylist() == sent
    path = tmp_path / "others.parquet"
    assert export_topic("others", path, store=open_store(settings), once=True).rows == len(sent)
    exported = pq.read_table(path)
    assert (exported["n"].to_pylist(), exported["_produced_at"].null_count) == (sent, len(sent))


def test_delta_rs_keeps_our_txns_in_its_checkpoints(settings: Settings, producer: Producer) -> None:
    producer.send(messages(1), sequence=41)
    delta(settings).create_checkpoint()
    Maintainer(["t"], settings=settings, log_retention_s=0, unsafe_no_minimum=True).run_once()
    log = DeltaLog(open_store(settings), "t")
    assert log.checkpoint_version() == log.state.version
    assert log.txn("p") == 41
    assert delta(settings).transaction_version("p") == 41
    again = Producer("t", settings=settings, producer_id="p")
    assert again.send(messages(1), sequence=41)[0].duplicate


def test_a_deleted_topic_is_empty_to_everybody_and_a_new_one_is_new(settings: Settings, producer: Producer) -> None:
    producer.send(messages(1))
    delete_topic(open_store(settings), "t")
    for reader in READERS:
        assert reader(settings) == []
    create_topic(open_store(settings), "t", SCHEMA)
    with pytest.raises(TopicDeleted):
        producer.send(messages(2))
    Producer("t", settings=settings).send(messages(3))
    for reader in READERS:
        assert [row["n"] for row in reader(settings)] == [3]


def maintain_at_once(settings: Settings) -> None:
    """Merge, expire and remove, without waiting for anything to become old."""
    limits = {"log_retention_s": 0, "grace_s": 0, "merge_every": 5, "unsafe_no_minimum": True}
    (report,) = Maintainer(["t"], settings=settings, **limits).run_once()  # type: ignore[arg-type]
    assert report.skipped == ()


def numbers(rows: Rows) -> list[int]:
    return [row["n"] for row in rows]


@pytest.mark.parametrize("reader", READERS)
def test_all_agree_after_merging_erasure_and_retention(
    settings: Settings, producer: Producer, reader: Callable[[Settings], Rows]
) -> None:
    store = open_store(settings)
    for n in range(0, 20, 2):
        producer.send(messages(n, n + 1))
    before, expected = delta(settings).version(), by_consumer(settings)
    maintain_at_once(settings)
    assert len(delta(settings).file_uris()) == 1
    assert reader(settings) == expected == by_consumer(settings)
    older = DeltaTable(uri(settings), version=before, storage_options=storage_options(settings))
    assert in_order(pa.table(older.to_pyarrow_table())) == expected
    erase_messages(store, "t", "n in (3, 4)")
    maintain_at_once(settings)
    expected = [row for row in expected if row["n"] not in {3, 4}]
    assert reader(settings) == expected == by_consumer(settings)
    producer.send(messages(20))
    size = DeltaLog(store, "t").load(with_files=True).files
    newest = next(add.size for path, add in size.items() if "merged" not in path)
    alter_topic(store, "t", limits_of(SCHEMA, retention_bytes=newest))
    maintain_at_once(settings)
    assert numbers(reader(settings)) == [20]


@pytest.mark.parametrize("reader", READERS)
def test_all_see_the_latest_message_of_each_key(
    settings: Settings, producer: Producer, reader: Callable[[Settings], Rows]
) -> None:
    store = open_store(settings)
    alter_topic(store, "t", limits_of(SCHEMA, compact_by="ok"))
    for n in range(10):
        producer.send(messages(n))
    maintain_at_once(settings)
    assert numbers(reader(settings)) == [8, 9]
    assert numbers(by_consumer(settings)) == list(range(10))


def test_a_foreign_delete_stops_readers_until_they_accept_it(settings: Settings, producer: Producer) -> None:
    producer.send(messages(0, 1, 2))
    delta(settings).delete("n = 1")
    producer.send(messages(3))
    consumer = Consumer("t", start="beginning", settings=settings)
    assert pa.table(consumer.poll(0)[0].data)["n"].to_pylist() == [0, 1, 2]
    with pytest.raises(TopicRewritten):
        consumer.poll(0)
    accepting = Consumer("t", start="beginning", settings=settings, accept_rewrites=True)
    found: list[int] = []
    while batches := accepting.poll(0):
        found += [n for batch in batches for n in pa.table(batch.data)["n"].to_pylist()]
    assert found == [0, 1, 2, 0, 2, 3]
    (report,) = verify_topic(open_store(settings), "t")
    assert [finding.kind for finding in report.findings] == ["rewritten"]
