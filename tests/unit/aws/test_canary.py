"""The canary on a clock that moves only by sleeping: what it sends, what it sees, and what looking costs."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from brokerless.aws.canary import CANARY_PREFIX, Canary
from brokerless.consumer import Consumer
from brokerless.errors import BrokerlessError, ConfigError, StoreUnavailable, TopicNotFound
from brokerless.examples.timezone.messages import DATE_FORMAT, input_schema, unified_schema
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.topics import create_dead_letters, create_topic, delete_topic
from tests.support.fakes import START_US, FakeClock, FakeStore

if TYPE_CHECKING:
    from collections.abc import Callable

DEAD_LETTERS = "out.dead_letters"


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "in", input_schema(), clock=clock)
    create_topic(store, "out", unified_schema(), clock=clock)
    return store


def canary(store: FakeStore) -> Canary:
    return Canary("in", "out", store=store, clock=store.clock)


def send(store: FakeStore, topic: str, *rows: dict[str, Any]) -> None:
    Producer(topic, store=store, clock=store.clock).send(list(rows))


def read(store: FakeStore, topic: str) -> list[dict[str, Any]]:
    with Consumer(topic, start="beginning", store=store, clock=store.clock) as consumer:
        batches = consumer.poll(0)
    return [
        {name: batch.data.column(name).to_pylist()[row] for name in batch.data.column_names if name[0] != "_"}
        for batch in batches
        for row in range(batch.data.num_rows)
    ]


def clock_of(store: FakeStore) -> FakeClock:
    assert isinstance(store.clock, FakeClock)
    return store.clock


def at(store: FakeStore, seconds: float, act: Callable[[], None]) -> None:
    """Does something once, when the clock has gone so far."""
    clock = clock_of(store)
    due_us = clock.now_us + int(seconds * 1e6)

    def tick() -> None:
        if clock.now_us >= due_us:
            clock.on_sleep = None
            counted, store.requests = store.requests, Counter()  # the canary's requests are counted, no one else's
            act()
            store.requests = counted

    clock.on_sleep = tick


def pipeline(store: FakeStore) -> None:
    """What the example's pipeline does, with the last message of the input."""
    message = read(store, "in")[-1]
    instant = datetime.strptime(message["date"], DATE_FORMAT).astimezone(UTC)
    send(store, "out", {"timestamp": instant.timestamp() * 1000, "message": message["message"]})


def test_the_latency_is_from_sending_to_reading(store: FakeStore, clock: FakeClock) -> None:
    at(store, 0.5, lambda: pipeline(store))
    result = canary(store).run(30)
    assert result.latency_s is not None
    assert 0.5 <= result.latency_s <= 0.5 * 1.06
    assert result.reason is None
    assert f"{result.latency_s:.3f} s" in str(result)


def test_the_message_says_what_it_is_and_when_it_was_sent(store: FakeStore, clock: FakeClock) -> None:
    clock.advance(0.123456)
    at(store, 0.1, lambda: pipeline(store))
    text = canary(store).run(30).text
    assert text.startswith(CANARY_PREFIX)
    (sent,) = read(store, "in")
    assert sent["message"] == text
    assert sent["date"].endswith(" +0000")
    start = datetime.fromtimestamp(START_US // 10**6, UTC)
    assert datetime.strptime(sent["date"], DATE_FORMAT).astimezone(UTC) == start.replace(microsecond=123456)


def test_each_run_has_a_message_of_its_own_and_knows_no_other(store: FakeStore, clock: FakeClock) -> None:
    bird = canary(store)
    at(store, 0.1, lambda: pipeline(store))
    first = bird.run(30)
    at(store, 0.1, lambda: send(store, "out", {"message": first.text}, {"message": "canary:other"}))
    second = bird.run(5)
    assert second.text != first.text
    assert second.latency_s is None


def test_a_message_that_does_not_appear_is_missing_when_the_time_is_over(store: FakeStore, clock: FakeClock) -> None:
    result = canary(store).run(30)
    assert (result.latency_s, result.reason) == (None, None)
    assert clock.now_us - START_US == 30_000_000
    assert "did not appear" in str(result)


def test_a_message_in_the_last_moment_is_seen(store: FakeStore, clock: FakeClock) -> None:
    at(store, 29.99, lambda: pipeline(store))
    assert canary(store).run(30).latency_s == 30


def test_a_dead_letter_says_why(store: FakeStore, clock: FakeClock) -> None:
    create_dead_letters(store, "out", [input_schema()], clock=clock)
    dead = {"_topic": "in", "_partition": 0, "_offset": "1:0"}
    send(store, DEAD_LETTERS, {**dead, "message": "other", "_reason": "not this one"})
    clock.advance(60)

    def reject() -> None:
        text = read(store, "in")[-1]["message"]
        rejected = [
            {**dead, "message": "other", "_reason": "nor this"},
            {**dead, "message": text, "_reason": "too odd"},
        ]
        clock.advance(-30)  # its clock is behind ours
        Producer(DEAD_LETTERS, store=store, clock=store.clock).send(rejected)
        clock.advance(30)

    at(store, 0.2, reject)
    result = canary(store).run(5)
    assert (result.latency_s, result.reason) == (None, "too odd")
    assert "dead letter: too odd" in str(result)


def test_other_messages_of_a_busy_output_do_not_disturb(store: FakeStore, clock: FakeClock) -> None:
    def busy() -> None:
        send(store, "out", {"message": "other"}, {"message": None})
        if clock.now_us - START_US > 1e6:
            pipeline(store)

    clock.on_sleep = busy
    latency = canary(store).run(30).latency_s
    assert latency is not None
    assert latency < 1.2


def test_a_missing_message_costs_a_look_for_each_twentieth_of_the_time(store: FakeStore, clock: FakeClock) -> None:
    bird = canary(store)
    bird.run(1)
    clock.slept.clear()
    result = bird.run(30)
    assert clock.slept[0] == pytest.approx(0.01)
    assert len(clock.slept) < 130
    assert result.requests["GET"] < 160
    # One object, one entry; looking for holes behind both topics, and in vain for dead rejected, which are not there.
    assert (result.requests["PUT"], result.requests["LIST"]) == (2, 3)
    assert result.usd == pytest.approx(result.requests["GET"] * 0.4e-6 + 5 * 5e-6)


def test_an_open_canary_skips_what_came_since_its_last_run(store: FakeStore, clock: FakeClock) -> None:
    bird = canary(store)
    at(store, 0.1, lambda: pipeline(store))
    bird.run(30)
    for n in range(100):
        send(store, "out", {"message": str(n)})
    clock.advance(50)
    at(store, 0.1, lambda: pipeline(store))
    result = bird.run(30)
    assert result.latency_s is not None
    assert result.requests["GET"] < 50


def test_a_topic_without_the_column_is_refused_and_nothing_is_sent(store: FakeStore, clock: FakeClock) -> None:
    create_topic(store, "other", Schema.parse("message long, text string"), clock=clock)
    with pytest.raises(ConfigError, match="'other' does not have"):
        Canary("other", "out", store=store, clock=clock).run(30)
    with pytest.raises(ConfigError, match="'other' does not have"):
        Canary("in", "other", store=store, clock=clock).run(30)
    assert read(store, "in") == []


def test_columns_beside_the_known_ones_stay_empty(store: FakeStore, clock: FakeClock) -> None:
    create_topic(store, "wide", Schema.parse("message string, n long"), clock=clock)
    text = Canary("wide", "out", store=store, clock=clock).run(0.1).text
    assert read(store, "wide") == [{"message": text, "n": None}]


def test_no_topic_is_an_error(store: FakeStore, clock: FakeClock) -> None:
    with pytest.raises(TopicNotFound):
        Canary("nowhere", "out", store=store, clock=clock).run(30)


def test_after_an_error_the_next_run_opens_everything_again(store: FakeStore, clock: FakeClock) -> None:
    bird = canary(store)
    bird.run(0.1)
    delete_topic(store, "in", clock=clock)
    create_topic(store, "in", input_schema(), clock=clock)
    with pytest.raises(BrokerlessError, match="deleted"):
        bird.run(30)
    at(store, 0.1, lambda: pipeline(store))
    assert bird.run(30).latency_s is not None


def test_a_store_that_fails_while_reading_is_an_error(store: FakeStore, clock: FakeClock) -> None:
    bird = canary(store)

    def fail(path: str) -> None:
        if path.startswith("out/_delta_log/0000"):
            raise StoreUnavailable(path)

    at(store, 0.1, lambda: setattr(store, "on_get", fail))
    with pytest.raises(StoreUnavailable):
        bird.run(30)
