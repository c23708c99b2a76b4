"""The generator against a store in memory: pace, instants, and what it says at the end."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from brokerless import metrics
from brokerless.columns.records import decode
from brokerless.errors import AccessDenied, ConfigError, TopicNotFound
from brokerless.examples.timezone.generator import STOP_BEFORE_S, Generated, generate
from brokerless.examples.timezone.messages import DATE_FORMAT, NEW_YORK, PARIS, input_schema, zone_messages
from brokerless.log.log import DeltaLog
from brokerless.metrics import Meter
from brokerless.topics import create_topic
from tests.support.fakes import START_US, FakeClock, FakeStore, Put


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    for topic in (NEW_YORK, PARIS):
        create_topic(store, topic, input_schema(), clock=clock)
    clock.slept.clear()
    return store


def run(store: FakeStore, rate_per_s: float, duration_s: float, *, meter: Meter | None = None) -> Generated:
    return generate(store, rate_per_s=rate_per_s, duration_s=duration_s, meter=meter or Meter(), clock=store.clock)


def read(store: FakeStore, topic: str) -> list[tuple[int, str, datetime]]:
    """Number, date and ``_produced_at`` of each message, in order."""
    found: list[tuple[int, str, datetime]] = []
    for entry in DeltaLog(store, topic, clock=store.clock).read_from(0):
        for add in entry.messages:
            data = decode(store.get(f"{topic}/{add.path}"))
            columns = [data.column(name).to_pylist() for name in ("message", "date", "_produced_at")]
            found += [(int(number), date, at) for number, date, at in zip(*columns, strict=True)]
    return found


def test_rate_times_duration_messages_are_sent_and_acknowledged(store: FakeStore, clock: FakeClock) -> None:
    assert run(store, 50, 2) == Generated(100, 100, 100, pytest.approx(0.1, abs=0.05), False, None)
    assert 1.9 < sum(clock.slept) < 2.1
    expected = list(zone_messages(100))
    for topic in (NEW_YORK, PARIS):
        assert [n for n, _, _ in read(store, topic)] == [int(m.message) for m in expected if m.topic == topic]


def test_a_message_is_dated_when_it_is_due(store: FakeStore) -> None:
    run(store, 8, 2)
    for topic in (NEW_YORK, PARIS):
        for number, date, produced_at in read(store, topic):
            due_us = START_US + number * 125_000
            assert round(produced_at.timestamp() * 1e6) == due_us
            assert round(datetime.strptime(date, DATE_FORMAT).astimezone(UTC).timestamp() * 1e6) == due_us


def test_a_delay_shows_as_lateness_and_not_as_fewer_messages(store: FakeStore, clock: FakeClock) -> None:
    def pause() -> None:
        clock.on_sleep = None
        clock.advance(1.0)

    clock.on_sleep = pause
    done = run(store, 20, 3)
    assert (done.due, done.acknowledged) == (60, 60)
    assert done.late_s >= 1.0
    instants = sorted(at for topic in (NEW_YORK, PARIS) for _, _, at in read(store, topic))
    assert (instants[-1] - instants[0]).total_seconds() == pytest.approx(59 / 20)


def test_it_sends_each_100_ms_and_sleeps_longer_if_nothing_is_due(store: FakeStore, clock: FakeClock) -> None:
    run(store, 100, 1)
    assert max(clock.slept) <= 0.1 + 1e-6
    clock.slept.clear()
    run(store, 0.5, 6)
    assert len(clock.slept) == 2


def test_it_stops_before_the_time_runs_out(store: FakeStore, clock: FakeClock) -> None:
    end = clock.monotonic() + STOP_BEFORE_S + 1
    done = generate(
        store,
        rate_per_s=10,
        duration_s=100,
        meter=Meter(),
        remaining_s=lambda: end - clock.monotonic(),
        clock=clock,
    )
    assert done.out_of_time
    assert done.due == 1000
    assert 5 <= done.sent <= 15
    assert done.acknowledged == done.sent


def test_what_is_not_acknowledged_is_not_counted_as_such(store: FakeStore) -> None:
    store.puts = [Put(AccessDenied("no"), applied=False)]
    meter = Meter()
    done = run(store, 10, 1, meter=meter)
    assert done.sent == 10
    assert 0 < done.acknowledged < 10
    assert "no" in (done.error or "")
    assert done.acknowledged == sum(len(read(store, topic)) for topic in (NEW_YORK, PARIS))
    counted = {datum.of: datum for datum in meter.take() if datum.metric == metrics.PRODUCED_MESSAGES}
    assert done.acknowledged == sum(
        value * count for d in counted.values() for value, count in zip(d.values, d.counts, strict=True)
    )


@pytest.mark.parametrize("rate_per_s", [0, -1, math.nan, math.inf, 1e9, "10", None, True])
def test_rates_that_cannot_be(store: FakeStore, rate_per_s: float) -> None:
    with pytest.raises(ConfigError, match="rate_per_s must be"):
        run(store, rate_per_s, 1)


def test_durations_that_cannot_be(store: FakeStore) -> None:
    with pytest.raises(ConfigError, match="duration_s must be"):
        run(store, 1, 901)


def test_without_its_topics_it_says_so(clock: FakeClock) -> None:
    with pytest.raises(TopicNotFound, match=NEW_YORK):
        run(FakeStore(clock), 1, 1)
