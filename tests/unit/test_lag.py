"""How far readers are behind, what finding that out costs, and the counts in the entries that make it cheap."""

from __future__ import annotations

import contextlib
import threading
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest

from brokerless.client import Client
from brokerless.consumer import Consumer
from brokerless.errors import GroupNotFound
from brokerless.groups.state import Committed
from brokerless.lag import Lag, PartitionLag, lag_of, measure, samples
from brokerless.log.entries import Add, build_entry
from brokerless.log.log import DeltaLog
from brokerless.metrics.prometheus import endpoint, exposition
from brokerless.offsets import Offset
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.spark.progress import app_id, owner_id
from brokerless.topics import create_topic, delete_topic
from tests.support.fakes import FakeClock, FakeStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMA = Schema.parse("n long")


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    """A topic with commits of 1, 2, 3 and 4 messages, ten seconds apart."""
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    for count in (1, 2, 3, 4):
        clock.advance(10)
        send(store, count)
    return store


def send(store: FakeStore, count: int) -> None:
    with Producer("t", store=store, clock=store.clock) as producer:
        producer.send({"n": list(range(count))})


def foreign(store: FakeStore, rows: int | None) -> None:
    """A commit by another engine, which knows nothing of counts, and perhaps gives no statistics."""
    log = DeltaLog(store, "t", clock=store.clock)
    version = log.head() + 1
    body = build_entry(
        commit_id=f"foreign-{version}",
        timestamp_ms=store.clock.time_us() // 1000,
        operation="WRITE",
        engine="other",
        adds=[Add(f"foreign-{version}.parquet", 100, rows, 0)],
    )
    store.put(log.entry_path(version), body)


def lag_at(store: FakeStore, at: Offset | None) -> PartitionLag:
    table_id = DeltaLog(store, "t", clock=store.clock).table_id
    committed = None if at is None else Committed(at, 0, table_id)
    (found,) = measure(store, {("t", 0): committed}, clock=store.clock)
    return found


def totals(store: FakeStore) -> list[int | None]:
    return [entry.total for entry in DeltaLog(store, "t", clock=store.clock).read_from(0)]


# Counts in entries


def test_each_entry_counts_on(store: FakeStore, clock: FakeClock) -> None:
    assert totals(store) == [0, 1, 3, 6, 10]
    DeltaLog(store, "t", clock=clock).claim("p")
    send(store, 5)
    assert totals(store) == [0, 1, 3, 6, 10, 10, 15]


def test_writers_count_on_from_each_others_entries(store: FakeStore, clock: FakeClock) -> None:
    with Producer("t", store=store, clock=clock) as one, Producer("t", store=store, clock=clock) as other:
        for producer in (one, other, one):
            producer.send({"n": [1, 2]})
    assert totals(store)[-3:] == [12, 14, 16]


def test_a_foreign_commit_with_statistics_is_counted(store: FakeStore) -> None:
    foreign(store, 7)
    send(store, 1)
    assert totals(store)[-2:] == [None, 18]


def test_after_a_foreign_commit_without_statistics_nobody_knows(store: FakeStore) -> None:
    foreign(store, None)
    send(store, 1)
    assert totals(store)[-2:] == [None, None]


def test_a_topic_that_is_created_again_begins_to_count_anew(store: FakeStore, clock: FakeClock) -> None:
    delete_topic(store, "t", clock=clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    send(store, 2)
    assert totals(store)[-2:] == [0, 2]


# Lag


@pytest.mark.parametrize(
    ("at", "messages", "seconds"),
    [
        (Offset(5), 0, 0),
        (Offset(4, 4), 0, 0),
        (Offset(4, 1), 3, 5),
        (Offset(4), 4, 5),
        (Offset(2, 2), 7, 15),
        (Offset(2, 1), 8, 25),
        (Offset(1), 10, 35),
        (Offset(0), 10, 35),
    ],
)
def test_a_lag_has_messages_and_the_age_of_the_oldest(
    store: FakeStore, clock: FakeClock, at: Offset, messages: int, seconds: float
) -> None:
    clock.advance(5)
    found = lag_at(store, at)
    assert (found.position, found.end, found.messages, found.seconds) == (at, Offset(5), messages, seconds)


def test_claims_are_no_messages(store: FakeStore, clock: FakeClock) -> None:
    DeltaLog(store, "t", clock=clock).claim("p")
    clock.advance(5)
    found = lag_at(store, Offset(5))
    assert (found.end, found.messages, found.seconds) == (Offset(6), 0, 0)


@pytest.mark.parametrize("more", [0, 3])
def test_a_foreign_commit_is_counted_by_its_statistics(store: FakeStore, more: int) -> None:
    foreign(store, 7)
    for _ in range(more):
        send(store, 1)
    assert lag_at(store, Offset(3)).messages == 3 + 4 + 7 + more


def test_what_nobody_knows_is_not_guessed(store: FakeStore, clock: FakeClock) -> None:
    foreign(store, None)
    clock.advance(5)
    found = lag_at(store, Offset(4))
    assert (found.messages, found.seconds) == (None, 5)


def test_without_a_position_there_is_no_lag(store: FakeStore) -> None:
    found = lag_at(store, None)
    assert (found.end, found.messages, found.seconds) == (Offset(5), None, None)


def test_who_keeps_up_costs_one_list_and_one_get(store: FakeStore) -> None:
    table_id = DeltaLog(store, "t", clock=store.clock).table_id
    store.requests.clear()
    measure(store, {("t", 0): Committed(Offset(5), 0, table_id)}, clock=store.clock)
    assert store.requests == {"LIST": 1, "GET": 1}


def test_a_long_way_behind_costs_few_requests(store: FakeStore) -> None:
    body = store.objects["t/_delta_log/00000000000000000004.json"]
    for version in range(5, 2505):
        entry = body.replace(b'"totalMessages":10', b'"totalMessages":%d' % (10 + 4 * (version - 4)))
        store.put(f"t/_delta_log/{version:020d}.json", entry)
    table_id = DeltaLog(store, "t", clock=store.clock).table_id
    store.requests.clear()
    (found,) = measure(store, {("t", 0): Committed(Offset(4), 0, table_id)}, clock=store.clock)
    assert (found.messages, found.end) == (4 * 2501, Offset(2505))
    assert store.requests.total() < 40


def test_a_hole_is_not_the_end(store: FakeStore) -> None:
    table_id = DeltaLog(store, "t", clock=store.clock).table_id
    del store.objects["t/_delta_log/00000000000000000003.json"]
    store.clock.advance(5)  # type: ignore[attr-defined]
    (found,) = measure(store, {("t", 0): Committed(Offset(3), 0, table_id)}, clock=store.clock)
    assert found.messages is None or found.messages > 0
    assert found.seconds == 5


# Groups and pipelines


def test_a_group_has_a_lag(store: FakeStore, clock: FakeClock) -> None:
    consumer = Consumer("t", start="beginning", group="g", store=store, clock=clock, auto_commit=False)
    consumer._end_heartbeats()
    consumer.poll(0)
    consumer.commit({("t", 0): Offset(3)})
    found = Client("memory://x", store=store, clock=clock).lag("g")
    assert (found.kind, found.messages, found.seconds) == ("group", 7, 10)
    assert found.to_dict()["partitions"][0]["position"] == "3:0"
    consumer.close()


def test_a_pipeline_has_a_lag(store: FakeStore, clock: FakeClock) -> None:
    source = DeltaLog(store, "t", clock=clock)
    create_topic(store, "out", SCHEMA, clock=clock)
    create_topic(store, "out.dead_letters", SCHEMA, clock=clock)
    for name, version in (("out", 2), ("out.dead_letters", 4)):
        log = DeltaLog(store, name, clock=clock)
        log.claim(owner_id("etl"))
        log.append([], {app_id("etl", "t", source.table_id): version})
    found = lag_of(store, "etl", clock=clock)
    assert (found.kind, found.messages) == ("pipeline", 7)
    assert [one.position for one in found.partitions] == [Offset(3)]


def test_neither_a_group_nor_a_pipeline(store: FakeStore, clock: FakeClock) -> None:
    with pytest.raises(GroupNotFound, match="no group and no pipeline 'x'"):
        lag_of(store, "x", clock=clock)


# Prometheus

LAGS = [
    Lag(
        "g", "group", (PartitionLag("t", 0, Offset(1), Offset(2), 3, 1.5), PartitionLag("t", 1, None, None, None, None))
    ),
    Lag("p", "pipeline", (PartitionLag("t", 0, Offset(1), Offset(2), 4, 0.0),)),
]


def test_the_exposition_has_the_names_of_the_catalogue() -> None:
    lines = [line for line in exposition(samples(LAGS)).splitlines() if not line.startswith("#")]
    assert lines == [
        'brokerless_group_lag_messages{group="g",topic="t",partition="0"} 3',
        'brokerless_group_lag_seconds{group="g",topic="t",partition="0"} 1.5',
        'brokerless_lag_messages{pipeline="p",topic="t",partition="0"} 4',
        'brokerless_lag_seconds{pipeline="p",topic="t",partition="0"} 0',
    ]
    assert exposition(samples(LAGS)).startswith("# HELP brokerless_group_lag_messages Messages of")


def test_the_endpoint_measures_at_each_request() -> None:
    answers: list[str | Exception] = ["one\n", GroupNotFound("gone"), "two\n"]

    def collect() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with served(collect) as port:
        assert get(port) == (200, "one\n")
        assert get(port) == (503, "GroupNotFound: gone\n")
        assert get(port) == (200, "two\n")
        assert get(port, "/other")[0] == 404


@contextlib.contextmanager
def served(collect: Callable[[], str]) -> Iterator[int]:
    server = endpoint(0, collect)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def get(port: int, path: str = "/metrics") -> tuple[int, str]:
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
