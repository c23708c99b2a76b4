"""The example's messages at a steady rate: for demos, for load, and to see that a stage works.

A message is due at an instant that its number and the rate decide. That instant is its date and its ``_produced_at``,
however late it is really sent. So a slow store shows as latency of the messages, and not as fewer of them ("coordinated
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
"""About what one core makes; run several generators for more."""

MAX_DURATION_S: Final = 900.0
"""A Lambda cannot run longer."""

STOP_BEFORE_S: Final = 15.0
"""So long before the time runs out nothing more is sent: a commit that is under way may take its time-out."""

_TIMEOUT_S: Final = 10.0
_ANSWER_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Generated:
    """What a run did.

    Attributes:
        due: messages that rate and duration ask for.
        sent: those that were handed to a producer.
        acknowledged: those that are known to be committed.
        late_s: how long after its instant a message was sent, at worst.
        out_of_time: whether it stopped early because the time ran out.
        error: why messages are not acknowledged; the first reason, or None.
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
    """Sends the example's messages to its two topics, a commit each 100 ms, and waits for the acknowledgements.

    Args:
        store: where the topics are.
        rate_per_s: messages a second, to both topics together.
        duration_s: for how long.
        meter: counts what happened.
        remaining_s: how long this process may go on.
        clock: time, randomness and sleeping.

    Raises:
        ConfigError: a rate or duration that cannot be.
        TopicNotFound: the example's topics are not there.
    """
    _check(rate_per_s, MAX_RATE_PER_S, "rate_per_s")
    _check(duration_s, MAX_DURATION_S, "duration_s")
    # Without lingering: what is due is sent in one call each 100 ms, and what comes while a commit is under way waits.
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
        """Hands over every message whose instant has come."""
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
        """Until the next commit, or until the next message is due if that is later."""
        elapsed = self._clock.monotonic() - self._start
        tick = (elapsed // COMMIT_EVERY_S + 1) * COMMIT_EVERY_S
        if self.sent < self.due:
            # Rounding can leave next to nothing until the tick.
            self._clock.sleep(max(tick - elapsed, self.sent / self._rate_per_s - elapsed, 0.001))

    def settle(self, timeout_s: float) -> None:
        """Waits for what is under way. A producer that is not done is left to itself."""
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
    """The instant at which the next message is due, for the example's dates."""

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
        raise ConfigError(f"{name} is {value!r}; it must be a number above 0 and at most {largest:g}.")
