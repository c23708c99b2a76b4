"""The client, and what opening anything costs: a log is read once, whoever needs it."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from brokerless.client import Client
from brokerless.consumer import Consumer
from brokerless.errors import (
    BrokerlessError,
    ConfigError,
    DeliveryFailed,
    LogIncomplete,
    TopicChanged,
    TopicDeleted,
    TopicNotFound,
)
from brokerless.export.topic import export_topic
from brokerless.log.entries import Add, Entry
from brokerless.log.log import FRESH_S, KEPT_ACTIONS, RECHECK_S, DeltaLog
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.settings import Settings
from brokerless.topics import create_topic, delete_topic, open_topic
from tests.support.fakes import FakeClock, FakeStore
from tests.unit.test_forks import in_child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Newer Pythons warn of forks beside threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SCHEMA = Schema.parse("n long")
ENTRIES = 50


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    """A topic whose log has 50 entries and no checkpoint, and that nobody has open."""
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    fill(store, ENTRIES - 1)
    return store


@pytest.fixture
def client(store: FakeStore, clock: FakeClock) -> Client:
    return Client("memory://fake", store=store, clock=clock)


def fill(store: FakeStore, commits: int) -> None:
    """Commits of one row each, by somebody with a handle of his own, some time ago."""
    clock = FakeClock()
    clock.now_us = store.clock.time_us()
    with Producer("t", store=store, clock=clock) as producer:
        for n in range(commits):
            producer.send({"n": [n]})
    assert isinstance(store.clock, FakeClock)
    store.clock.advance(1)


def sent(store: FakeStore, call: Callable[[], object]) -> Counter[str]:
    """The requests of a call."""
    before = Counter(store.requests)
    call()
    return store.requests - before


def drain(consumer: Consumer) -> list[int]:
    found: list[int] = []
    while batches := consumer.poll(0):
        found += [n for batch in batches for n in batch.data.column("n").to_pylist()]
    return found


# Requests of each opening


def test_a_producer_and_its_first_send_read_the_log_once(store: FakeStore, clock: FakeClock) -> None:
    requests = sent(store, lambda: Producer("t", store=store, clock=clock).send({"n": [1]}))
    assert requests["GET"] <= 60
    assert (requests["LIST"], requests["PUT"]) == (1, 2)


def test_a_producer_with_an_id_and_its_first_send_read_the_log_once(store: FakeStore, clock: FakeClock) -> None:
    requests = sent(store, lambda: Producer("t", store=store, clock=clock, producer_id="p").send({"n": [1]}))
    assert requests["GET"] <= 60
    assert (requests["LIST"], requests["PUT"]) == (1, 3)


def test_a_second_producer_brings_the_handle_up_to_date_that_the_first_one_opened(
    store: FakeStore, clock: FakeClock
) -> None:
    create_topic(store, "u", SCHEMA, clock=clock)
    first = Producer("t", store=store, clock=clock)
    fill(store, ENTRIES)
    requests = sent(store, lambda: Producer("t", store=store, clock=clock).send({"n": [1]}))
    assert requests["GET"] <= 2 * ENTRIES + 20, "the log once, which has 100 entries now"
    assert sent(store, lambda: first.send({"n": [2]})) == {"PUT": 2}
    assert DeltaLog(store, "t", clock=clock).head() == 2 * ENTRIES + 1


@pytest.mark.parametrize("start", ["beginning", "latest"])
def test_a_consumer_reads_the_log_once(store: FakeStore, clock: FakeClock, start: str) -> None:
    found: list[int] = []
    requests = sent(
        store,
        lambda: found.extend(drain(Consumer("t", start=start, store=store, clock=clock))),  # type: ignore[arg-type]
    )
    assert found == (list(range(ENTRIES - 1)) if start == "beginning" else [])
    assert requests["GET"] - len(found) <= 61, "each object, and the log once; one look more for what is new"
    assert requests["LIST"] <= 2


def test_an_export_of_51_commits_costs_120_requests(store: FakeStore, clock: FakeClock, tmp_path: Path) -> None:
    fill(store, 2)
    requests = sent(store, lambda: export_topic("t", tmp_path / "t.csv", store=store, once=True, clock=clock))
    assert requests["GET"] <= 120
    assert requests["LIST"] == 1
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 1 + 51


def test_what_is_opened_with_a_topic_does_not_read_its_log_again(client: Client, store: FakeStore) -> None:
    topic = client.topic("t")
    assert sent(store, lambda: client.producer(topic)) == {"GET": 2}
    assert sent(store, lambda: client.producer(topic).send({"n": [1]}))["GET"] <= 4
    assert sent(store, lambda: client.consumer(topic))["GET"] <= 5
    assert sent(store, lambda: open_topic(store, topic, clock=store.clock)) == {"GET": 3}, "and the entry that is new"


# What was read may be out of date


def test_entries_of_the_opening_are_delivered_only_while_their_table_is_there(
    store: FakeStore, clock: FakeClock
) -> None:
    consumer = Consumer("t", start="beginning", store=store, clock=clock, batch_bytes=1)
    assert len(consumer.poll(0)) == 1
    for path in [path for path in store.objects if path.startswith("t/_delta_log/")]:
        del store.objects[path]
    create_topic(store, "t", SCHEMA, clock=clock)
    clock.advance(RECHECK_S + 0.1)
    with pytest.raises(TopicDeleted):
        for _ in range(ENTRIES):
            clock.advance(10)
            consumer.poll(0)
    assert consumer.position()["t", 0].version == 2, "nothing of the old table came from memory"


def test_entries_of_the_opening_are_delivered_for_a_minute(store: FakeStore, clock: FakeClock) -> None:
    consumer = Consumer("t", start="beginning", store=store, clock=clock, batch_bytes=1)
    assert sent(store, lambda: consumer.poll(0)) == {"GET": 1}, "the object"
    clock.advance(RECHECK_S + 0.1)
    assert sent(store, lambda: consumer.poll(0)) == {"GET": 2}, "and the last entry, once a second"
    assert sent(store, lambda: consumer.poll(0)) == {"GET": 1}
    clock.advance(FRESH_S)
    lost = store.objects.pop("t/_delta_log/00000000000000000004.json")
    with pytest.raises(LogIncomplete):
        consumer.poll(0)
    store.objects["t/_delta_log/00000000000000000004.json"] = lost
    assert drain(consumer) == list(range(3, ENTRIES - 1))


def test_what_an_opening_hands_on_is_bounded(store: FakeStore, clock: FakeClock) -> None:
    log = DeltaLog(store, "t", clock=clock)
    for path in [path for path in store.objects if path.endswith(".json") and not path.endswith("00.json")]:
        del store.objects[path]
    for n in range(1, 5):
        log.append([Add(f"{n}-{m}", 1, 1, 1) for m in range(KEPT_ACTIONS // 3)])
    entries: list[Entry] = []
    DeltaLog(store, "t", clock=clock).open(entries=entries)
    assert [entry.version for entry in entries] == [0, 1, 2]


def test_a_topic_that_was_opened_before_is_refused_when_it_is_another_one(
    client: Client, store: FakeStore, clock: FakeClock
) -> None:
    topic = client.topic("t")
    client.delete_topic("t")
    for open_with in (client.producer, client.consumer):
        with pytest.raises(TopicDeleted):
            open_with(topic)
    client.create_topic("t", "n long")
    for open_with in (client.producer, client.consumer):
        with pytest.raises(TopicDeleted):
            open_with(topic)
    assert drain(client.consumer("t", start="beginning")) == []


def test_a_topic_with_a_hole_in_its_log_can_still_be_read_behind_it(client: Client, store: FakeStore) -> None:
    topic = client.topic("t")
    del store.objects["t/_delta_log/00000000000000000049.json"]
    fill_behind = store.objects["t/_delta_log/00000000000000000048.json"]
    store.create("t/_delta_log/00000000000000000050.json", fill_behind)
    with pytest.raises(DeliveryFailed, match="Entry 49 of the log"):
        client.producer(topic).send({"n": [1]})
    assert client.topic("t").heads == (50,)
    consumer = client.consumer(client.topic("t"), start="beginning")
    with pytest.raises(LogIncomplete):
        drain(consumer)


def test_another_topic_of_the_name_is_not_taken_for_a_damaged_one(
    client: Client, store: FakeStore, clock: FakeClock
) -> None:
    other = FakeStore(clock)
    create_topic(other, "t", SCHEMA, clock=clock)
    topic = client.topic("t")
    store.objects = {path: data for path, data in other.objects.items() if path.startswith("t/")}
    with pytest.raises(TopicChanged):
        client.producer(topic)


def test_handles_of_a_topic_do_not_share_what_they_know(client: Client, store: FakeStore, clock: FakeClock) -> None:
    topic = client.topic("t")
    producer = client.producer(topic, producer_id="p")
    producer.send({"n": [1]}, sequence=1)
    consumer = client.consumer(topic)
    assert topic.logs[0].state.version == ENTRIES - 1
    assert topic.logs[0].txn("p") is None
    assert consumer.topics[0].heads == (ENTRIES + 1,)
    assert not {id(log) for log in topic.logs} & {id(log) for log in consumer.topics[0].logs}


# The client


def test_a_client_creates_lists_and_deletes_topics(client: Client) -> None:
    made = client.create_topic("u", "m string", partitions=2)
    assert (made.name, made.partitions, made.schema) == ("u", 2, Schema.parse("m string"))
    assert client.create_topic("u", Schema.parse("m string"), partitions=2, exist_ok=True) == made
    assert [topic.name for topic in client.topics()] == ["t", "u"]
    client.delete_topic("u")
    with pytest.raises(TopicNotFound):
        client.topic("u")


def test_a_client_opens_what_writes_and_reads_and_closes_it(client: Client, tmp_path: Path) -> None:
    topic = client.create_topic("u", "n long")
    with client:
        producer = client.producer(topic, linger_s=60)
        consumer = client.consumer(["t", topic], start="beginning")
        waiting = producer.enqueue({"n": [7]})
        assert not waiting.done()
    assert waiting.result(0)[0].rows == 1, "closing commits what is buffered"
    with pytest.raises(BrokerlessError, match="closed"):
        producer.send({"n": [8]})
    assert consumer.poll(1) == []
    done = client.export(topic, tmp_path / "u.jsonl", once=True)
    assert (done.rows, done.position.topic) == (1, "u")
    assert drain(client.consumer("u", start="beginning")) == [7], "the client can still be used"


def test_all_are_closed_whatever_one_of_them_raises(client: Client) -> None:
    closed = threading.Event()
    producers = [client.producer("t", linger_s=0) for _ in range(3)]
    raised: list[Exception] = []

    def close_in_callback(_: object) -> None:
        try:
            client.close()
        except BrokerlessError as error:
            raised.append(error)
        closed.set()

    producers[0].enqueue({"n": [1]}).add_done_callback(close_in_callback)
    assert closed.wait(10)
    assert len(raised) == 1
    for producer in producers[1:]:
        with pytest.raises(BrokerlessError, match="closed"):
            producer.send({"n": [1]})
    producers[0].close()


def test_a_client_loads_its_settings_and_what_is_given_goes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.setenv(name, "from-the-environment")
    monkeypatch.setenv("BROKERLESS_ROOT", "s3://one/place")
    by_environment = Client(profile="aws")
    assert by_environment.settings == Settings.load(profile="aws")
    given = Client(
        "s3://two", profile="minio", endpoint="http://127.0.0.1:9", region="eu-north-1", access_key="a", secret_key="b"
    ).settings
    assert (given.root, given.endpoint, given.region) == ("s3://two", "http://127.0.0.1:9", "eu-north-1")
    assert (given.access_key, given.secret_key, given.session_token) == ("a", "b", None)
    settings = Settings(profile="aws", root=f"file://{tmp_path}")
    assert Client(settings=settings).settings is settings
    assert Client(settings=settings).store is Client(settings=settings).store


@pytest.mark.parametrize(
    "arguments",
    [
        {"settings": Settings(profile="aws", root="memory://x"), "root": "memory://y"},
        {"settings": Settings(profile="aws", root="memory://x"), "access_key": "a", "secret_key": "b"},
        {"root": "memory://x", "access_key": "a"},
        {"root": "memory://x", "secret_key": "a"},
        {"root": "memory://x", "session_token": "a"},
    ],
)
def test_a_client_refuses_what_contradicts_itself(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Client(**arguments)  # type: ignore[arg-type]


def test_a_topic_is_used_in_its_own_store_and_process(client: Client, store: FakeStore, clock: FakeClock) -> None:
    topic = client.topic("t")
    other = FakeStore(clock)
    with pytest.raises(ConfigError, match="was opened in memory://fake"):
        Producer(topic, store=other, clock=clock)
    elsewhere = create_topic(other, "u", SCHEMA, clock=clock)
    with pytest.raises(ConfigError, match="in one store"):
        Consumer([topic, elsewhere], clock=clock)
    answer = in_child(lambda: Consumer(topic, clock=clock))
    assert answer.startswith(f"UsageError: This topic was opened in process {os.getpid()}, "), answer


def test_a_forked_process_closes_what_it_has_opened_itself(client: Client) -> None:
    mine = client.producer("t")

    def open_and_close() -> bool:
        own = client.producer("t")
        client.close()
        return own._buffer.closed

    assert in_child(open_and_close) == "True"
    mine.send({"n": [1]})
    client.close()
    with pytest.raises(BrokerlessError, match="closed"):
        mine.send({"n": [1]})


def test_a_deleted_topic_is_gone_for_an_open_producer_too(client: Client, store: FakeStore, clock: FakeClock) -> None:
    producer = client.producer(client.topic("t"), producer_id="p")
    producer.send({"n": [1]}, sequence=1)
    delete_topic(store, "t", clock=clock)
    with pytest.raises(TopicDeleted):
        producer.send({"n": [1]}, sequence=1)
