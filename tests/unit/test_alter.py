"""Columns that are added to a topic, while producers, consumers, ingestion and pipelines go on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from brokerless.alter import add_columns, alter_topic, limits_of
from brokerless.client import Client
from brokerless.columns import records
from brokerless.consumer import Consumer
from brokerless.errors import SchemaError, StoreUnavailable, TopicChanged, TopicExists
from brokerless.ingest.batches import BatchIngest, Routes, SourceMessage
from brokerless.metrics import Meter
from brokerless.producer.pool import ProducerPool
from brokerless.producer.producer import Producer
from brokerless.schema import Schema, only_adds
from brokerless.spark.inputs import Input
from brokerless.topics import create_dead_letters, create_topic, describe_topic, open_topic
from brokerless.verify.table import verify_topic
from tests.support.fakes import FakeClock, FakeStore, Put

if TYPE_CHECKING:
    from brokerless.consumer import Batch

SCHEMA = Schema.parse("n long")


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    return store


def rows(batches: list[Batch]) -> list[dict[str, Any]]:
    found = []
    for batch in batches:
        names = [name for name in batch.data.column_names if name != "_produced_at"]
        columns = [records.values_of(batch.data.column(name)) for name in names]
        found += [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return found


def drain(consumer: Consumer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while batches := consumer.poll(0):
        found += rows(batches)
    return found


def test_a_running_producer_and_a_running_consumer_go_on(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock)
    consumer = Consumer("t", store=store, start="beginning", clock=clock)
    producer.send([{"n": 1}])
    assert drain(consumer) == [{"n": 1}]
    add_columns(store, "t", "ref string, price decimal(10,2)", clock=clock)
    producer.send({"n": [2]})
    assert producer.schema == SCHEMA
    later = Producer("t", store=store, clock=clock)
    later.send([{"n": 3, "ref": "x"}])
    nothing = {"ref": None, "price": None}
    assert drain(consumer) == [{"n": 2, **nothing}, {"n": 3, "ref": "x", "price": None}]
    again = Consumer("t", store=store, start="beginning", clock=clock)
    assert drain(again) == [{"n": 1, **nothing}, {"n": 2, **nothing}, {"n": 3, "ref": "x", "price": None}]


def test_a_producer_takes_new_columns_by_itself_when_a_message_has_one(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock)
    with pytest.raises(SchemaError, match="no column 'ref'"):
        producer.send([{"n": 1, "ref": "x"}])
    add_columns(store, "t", "ref string", clock=clock)
    producer.send([{"n": 1, "ref": "x"}])
    assert producer.schema.names == ("n", "ref")
    assert drain(Consumer("t", store=store, start="beginning", clock=clock)) == [{"n": 1, "ref": "x"}]


def test_a_producer_takes_new_columns_when_asked(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock)
    add_columns(store, "t", "ref string", clock=clock)
    with pytest.raises(TopicChanged, match="more columns"):
        producer.confirm()
    assert producer.refresh_schema().names == ("n", "ref")
    producer.confirm()


def test_a_table_may_lack_what_was_added_and_nothing_else(store: FakeStore, clock: FakeClock) -> None:
    add_columns(store, "t", "ref string", clock=clock)
    producer = Producer("t", store=store, clock=clock)
    producer.send({"n": [1]})
    with pytest.raises(SchemaError, match="lack 'n'"):
        producer.send({"ref": ["x"]})


def test_a_topic_that_was_opened_before_is_opened_with_its_new_columns(store: FakeStore, clock: FakeClock) -> None:
    topic = describe_topic(store, "t", clock=clock)
    add_columns(store, "t", "ref string", clock=clock)
    assert open_topic(store, topic, clock=clock).schema.names == ("n", "ref")
    assert Producer(topic, store=store, clock=clock).schema.names == ("n", "ref")


def test_adding_costs_one_entry_a_partition_and_nothing_the_second_time(store: FakeStore, clock: FakeClock) -> None:
    create_topic(store, "many", SCHEMA, partitions=3, clock=clock)
    for _ in range(2):
        assert add_columns(store, "many", "ref string", clock=clock).heads == (1, 1, 1)
    entry = describe_topic(store, "many", clock=clock).logs[2].read(1)
    assert entry is not None
    assert (entry.operation, entry.adds, entry.removes) == ("ADD COLUMNS", (), ())


def test_after_a_crash_nobody_sees_a_column_that_a_partition_lacks(store: FakeStore, clock: FakeClock) -> None:
    create_topic(store, "many", SCHEMA, partitions=3, clock=clock)
    store.puts = [Put("created"), Put(StoreUnavailable("down"), applied=False)]
    with pytest.raises(StoreUnavailable):
        add_columns(store, "many", "ref string", clock=clock)
    assert describe_topic(store, "many", clock=clock).schema == SCHEMA
    logs = add_columns(store, "many", "ref string", clock=clock).logs
    assert {log.state.metadata.schema_string for log in logs} == {logs[0].state.metadata.schema_string}


def test_a_type_does_not_change(store: FakeStore, clock: FakeClock) -> None:
    for text in ("n integer", "N long", "n double"):
        with pytest.raises(SchemaError, match=r"'n' of type long; it cannot become .*Create a topic"):
            add_columns(store, "t", text, clock=clock)
    assert describe_topic(store, "t", clock=clock).heads == (0,)


def test_a_change_that_is_no_addition_stops_writers(store: FakeStore) -> None:
    before = Schema.parse("n long, s string").to_delta()
    added = Schema.parse("x string").added_to(before)
    assert only_adds(before, added)
    assert Schema.from_delta(added).required == ("n", "s")
    assert [one["name"] for one in json.loads(added)["fields"]] == ["n", "s", "x", "_produced_at"]
    assert not only_adds(added, before)
    assert not only_adds(before, Schema.parse("s string, n long").to_delta())
    assert not only_adds(before, Schema.parse("n integer, s string").to_delta())
    assert not only_adds(
        before, added.replace('"x","type":"string","nullable":true', '"x","type":"string","nullable":false')
    )
    assert not only_adds(before, "damaged")


def test_a_pipeline_that_starts_again_finds_its_dead_letters_with_the_columns(
    store: FakeStore, clock: FakeClock
) -> None:
    create_dead_letters(store, "out", [SCHEMA], clock=clock)
    wider = add_columns(store, "t", "ref string", clock=clock).schema
    for _ in range(2):
        assert create_dead_letters(store, "out", [wider], clock=clock).schema.names[-1] == "ref"
    assert describe_topic(store, "out.dead_letters", clock=clock).heads == (1,)
    with pytest.raises(TopicExists, match=r"'n long'.*another type"):
        create_dead_letters(store, "out", [Schema.parse("n string")], clock=clock)


def test_a_topic_that_got_columns_is_still_the_one_that_was_asked_for(store: FakeStore, clock: FakeClock) -> None:
    add_columns(store, "t", "ref string", clock=clock)
    for text in ("n long", "n long, ref string"):
        assert create_topic(store, "t", Schema.parse(text), exist_ok=True, clock=clock).schema.names == ("n", "ref")
    with pytest.raises(TopicExists):
        create_topic(store, "t", Schema.parse("n long, other string"), exist_ok=True, clock=clock)


def test_a_running_pipeline_says_that_there_is_more(
    store: FakeStore, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    log = describe_topic(store, "t", clock=clock).logs[0].copy()
    source = Input(log, accept_rewrites=False)
    source.seek(0)
    add_columns(store, "t", "ref string", clock=clock)
    Producer("t", store=store, clock=clock).send([{"n": 1}])
    source.look()
    assert source.rows == 1
    assert "more columns since entry 1: ref" in capsys.readouterr().err


@pytest.mark.parametrize("position", [None, 5])
def test_a_warm_function_takes_a_new_column(store: FakeStore, clock: FakeClock, position: int | None) -> None:
    pool = ProducerPool(store, timeout_s=2, clock=clock)
    ingest = BatchIngest(store, routes=Routes(("t",), "t"), producers=pool, meter=Meter(), clock=clock)

    def send(body: bytes, step: int) -> tuple[int, int]:
        at = None if position is None else position + step
        found = ingest.ingest([SourceMessage(body, "queue/q/1", step, position=at)])
        return found.committed, found.rejected

    assert send(b'{"n": 1}', 1) == (1, 0)
    add_columns(store, "t", "ref string", clock=clock)
    assert send(b'{"n": 2}', 2) == (1, 0)
    assert send(b'{"n": 3, "ref": "x"}', 3) == (1, 0)
    assert send(b'{"n": 4}', 4) == (1, 0)
    assert [row.get("ref") for row in drain(Consumer("t", store=store, start="beginning", clock=clock))] == [
        None,
        None,
        "x",
        None,
    ]


def test_verify_has_nothing_against_an_added_column(store: FakeStore, clock: FakeClock) -> None:
    Producer("t", store=store, clock=clock).send([{"n": 1}])
    add_columns(store, "t", "ref string", clock=clock)
    Producer("t", store=store, clock=clock).send([{"n": 1, "ref": "x"}])
    assert [report.findings for report in verify_topic(store, "t", clock=clock)] == [()]


def test_limits_and_columns_go_together(store: FakeStore, clock: FakeClock) -> None:
    client = Client("memory://fake", store=store, clock=clock)
    topic = client.alter_topic("t", add="ref string", retention=7200)
    assert topic.schema.names == ("n", "ref")
    assert topic.limits == limits_of(SCHEMA, retention_s=7200)
    assert alter_topic(store, "t", {}, clock=clock).heads == topic.heads
