"""The example's messages at a constant rate: for demos, for load, and to check a deployed stage.

A message's number and the rate determine the time at which it is due. That time is its date and its ``_produced_at``,
even if it is sent later. So a slow store increases the messages' latency instead of reducing their number ("coordinated
omission").
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from arro3.core import Array, DataType

from brokerless import metrics
from brokerless.clock import SYSTEM, Clock
from brokerless.columns.records import TIMESTAMP
from brokerless.errors import BrokerlessError, ConfigError
from brokerless.examples.timezone.messages import ZONES, zone_messages
from brokerless.producer.producer import Producer
from brokerless.schema import PRODUCED_AT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from brokerless.examples.timezone.messages import ZoneMessage
    from brokerless.metrics import Meter
    from brokerless.offsets import Ack
    from brokerless.store import Store

COMMIT_EVERY_S: Final = 0.1

MAX_RATE_PER_S: Final = 20_000.0
"""The highest rate, about what one core generates; run several generators for more."""

MAX_DURATION_S: Final = 900.0
"""The longest run: the time limit of a Lambda function."""

STOP_BEFORE_S: Final = 15.0
"""The time before the end at which sending stops, so that running commits can end or time out."""

_TIMEOUT_S: Final = 10.0
_ANSWER_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Generated:
    """The result of a run.

    Attributes:
        due: the number of messages for this rate and duration.
        sent: how many of them were given to a producer.
        acknowledged: how many of them are known to be committed.
        late_s: the longest delay between a message's due time and its sending.
        out_of_time: whether it stopped early because the time ran out.
        error: the first reason why messages are not acknowledged, or None.
    """

    due: int
    sent: int
    acknowledged: int
    late_s: float
    out_of_time: bool
    error: str | None


def generate(
    store: Store,
    *,
    rate_per_s: float,
    duration_s: float,
    meter: Meter,
    remaining_s: Callable[[], float] = lambda: math.inf,
    clock: Clock = SYSTEM,
) -> Generated:
    """Send the example's messages to its two topics, with a commit every 100 ms, and wait for the acknowledgements.

    Args:
        store: the store with the topics.
        rate_per_s: messages per second, for both topics together.
        duration_s: the duration of the run.
        meter: receives the metrics.
        remaining_s: returns how long this process may still run.
        clock: time, randomness and sleeping.

    Raises:
        ConfigError: the rate or the duration is out of range.
        TopicNotFound: the example's topics do not exist.
    """
    _check(rate_per_s, MAX_RATE_PER_S, "rate_per_s")
    _check(duration_s, MAX_DURATION_S, "duration_s")
    # linger_s is 0: one call every 100 ms sends the messages that are due, and waits while a commit is running.
    producers = {
        topic: Producer(topic, linger_s=0, delivery_timeout_s=_TIMEOUT_S, store=store, clock=clock) for topic in ZONES
    }
    run = _Run(rate_per_s, int(rate_per_s * duration_s), producers, meter, clock)
    out_of_time = False
    try:
        while run.sent < run.due:
            if remaining_s() < STOP_BEFORE_S:
                out_of_time = True
                break
            run.send_due()
            run.sleep()
    except BrokerlessError as error:
        run.error = str(error)
    run.settle(min(max(remaining_s() - _ANSWER_S, 0), 2 * _TIMEOUT_S))
    return Generated(run.due, run.sent, run.acknowledged, round(run.late_s, 3), out_of_time, run.error)


class _Run:
    def __init__(self, rate_per_s: float, due: int, producers: dict[str, Producer], meter: Meter, clock: Clock) -> None:
        self.due = due
        self.sent = 0
        self.late_s = 0.0
        self.error: str | None = None
        self._rate_per_s = rate_per_s
        self._producers = producers
        self._meter = meter
        self._clock = clock
        self._intended = _Intended()
        self._messages = zone_messages(due, clock=self._intended)
        self._start_us, self._start = clock.time_us(), clock.monotonic()
        self._calls: list[tuple[Future[tuple[Ack, ...]], int]] = []

    @property
    def acknowledged(self) -> int:
        return sum(rows for call, rows in self._calls if call.done() and call.exception() is None)

    def send_due(self) -> None:
        """Send every message that is due."""
        elapsed = self._clock.monotonic() - self._start
        until = min(self.due, int(elapsed * self._rate_per_s) + 1)
        self.late_s = max(self.late_s, elapsed - self.sent / self._rate_per_s)
        shares: dict[str, list[tuple[ZoneMessage, int]]] = defaultdict(list)
        for number in range(self.sent, until):
            self._intended.now_us = self._start_us + round(number * 1e6 / self._rate_per_s)
            message = next(self._messages)
            shares[message.topic].append((message, self._intended.now_us))
        for topic, share in shares.items():
            call = self._producers[topic].enqueue(_columns(share))
            call.add_done_callback(partial(self._count, topic, len(share), self._clock.monotonic()))
            self._calls.append((call, len(share)))
            self.sent += len(share)

    def sleep(self) -> None:
        """Sleep until the next commit, or until the next message is due if that is later."""
        elapsed = self._clock.monotonic() - self._start
        tick = (elapsed // COMMIT_EVERY_S + 1) * COMMIT_EVERY_S
        if self.sent < self.due:
            # Because of rounding, almost no time may be left until the tick.
            self._clock.sleep(max(tick - elapsed, self.sent / self._rate_per_s - elapsed, 0.001))

    def settle(self, timeout_s: float) -> None:
        """Wait for running commits. A producer that does not finish in time is not waited for."""
        until = self._clock.monotonic() + timeout_s
        for producer in self._producers.values():
            with contextlib.suppress(TimeoutError):
                producer.flush(max(until - self._clock.monotonic(), 0))
                producer.close()
        for call, _ in self._calls:
            if call.done() and (error := call.exception()) is not None and self.error is None:
                self.error = str(error)

    def _count(self, topic: str, rows: int, taken: float, call: Future[tuple[Ack, ...]]) -> None:
        if call.exception() is None:
            self._meter.add(metrics.PRODUCED_MESSAGES, topic, rows)
            self._meter.observe(metrics.PRODUCE_LATENCY, topic, self._clock.monotonic() - taken)


class _Intended(Clock):
    """A clock that shows the time at which the next message is due, for the example's dates."""

    now_us = 0

    def time_us(self) -> int:
        return self.now_us


def _columns(share: Sequence[tuple[ZoneMessage, int]]) -> dict[str, object]:
    due = Array([due_us for _, due_us in share], type=DataType.int64()).cast(TIMESTAMP)
    return {
        "date": [message.date for message, _ in share],
        "message": [message.message for message, _ in share],
        PRODUCED_AT: due,
    }


def _check(value: float, largest: float, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= largest:
        raise ConfigError(f"{name} must be a number above 0 and at most {largest:g}, got {value!r}.")
