"""Send one message a minute through a pipeline, and measure when a reader receives it from the output.

A pipeline's own latency says nothing when the pipeline does not run, and nothing about producers and readers. The
canary sends a message as any producer does, reads the output as any reader does, and measures both on one clock. Its
messages are ordinary rows, whose column ``message`` begins with ``canary:``, so a query can leave them out with
``message NOT LIKE 'canary:%'``.

Polls of the output cost requests. They are 10 ms apart at first, then a twentieth of the elapsed time: the latency is
at most 5 % too high, and a message that is missing after 30 s has cost about 120 polls instead of 3,000. Producer and
reader stay open between runs. Dead letters are read only if the message is missing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.consumer import Consumer
from brokerless.cost.bill import requests_usd
from brokerless.errors import ConfigError, TopicNotFound
from brokerless.examples.timezone.messages import DATE_FORMAT
from brokerless.log.tail import POLL_S
from brokerless.producer.producer import Producer
from brokerless.schema import dead_letters
from brokerless.settings import Settings
from brokerless.store import open_store
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokerless.schema import Schema
    from brokerless.store import Store

CANARY_PREFIX: Final = "canary:"
"""The beginning of each canary message; a random id follows."""

COLUMN: Final = "message"
"""The string column that topic and output must have, and that the pipeline must copy unchanged."""

DATE_COLUMN: Final = "date"
"""The column for the time of sending in ``DATE_FORMAT``, if the topic has it. Other columns are null."""

PRECISION: Final = 0.05
"""The time between two polls, as a share of the time since sending."""

_TICK_S: Final = 0.001  # a wait that a clock rounds to nothing would never end
_SKEW_S: Final = 60.0  # how far the clock of the dead letters' writer may be behind this one


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """The result of one canary message.

    Attributes:
        text: the message.
        latency_s: the time from sending until a reader received it from the output; None if it is missing.
        reason: the reason why it is a dead letter; None if it is not one, or not yet.
        requests: the number of requests to the store, by kind.
    """

    text: str
    latency_s: float | None
    reason: str | None
    requests: Mapping[str, int]

    @property
    def usd(self) -> float:
        """The list price of the run's requests."""
        return requests_usd(self.requests)

    def __str__(self) -> str:
        if self.latency_s is not None:
            return f"The canary's message was read {self.latency_s:.3f} s after it was sent."
        if self.reason is not None:
            return f"The canary's message became a dead letter: {self.reason}"
        return "The canary's message did not appear in time. Check whether the pipeline runs, and its lag."


class Canary:
    """Sends messages through a pipeline, one in each run. For one thread at a time.

    Args:
        topic: the input topic, with the column ``COLUMN``.
        output: the output topic, with the same column.
        settings: the root and the store; by default from the environment.
        store: a store, instead of that of the settings.
        clock: time, randomness and sleeping.
    """

    def __init__(
        self,
        topic: str,
        output: str,
        *,
        settings: Settings | None = None,
        store: Store | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._topic, self._output = topic, output
        self._store = store or open_store(settings or Settings.load())
        self._clock = clock
        self._open: tuple[Producer, Consumer] | None = None

    def run(self, timeout_s: float) -> CanaryResult:
        """Send one message and wait for it, at most ``timeout_s`` after sending began.

        An error closes producer and reader, so that the next run opens the topics again: one may have been deleted and
        created again.

        Raises:
            TopicNotFound: topic or output do not exist.
            ConfigError: topic or output does not have the column ``COLUMN``.
            DeliveryFailed, StoreError, TopicDeleted: the message could not be sent, or the output could not be read.
        """
        before = Counter(self._store.requests)
        try:
            producer, reader = self._ready()
            text = f"{CANARY_PREFIX}{self._clock.uuid()}"
            sent_us, sent = self._clock.time_us(), self._clock.monotonic()
            producer.send([_row(producer.schema, text, sent_us)])
            latency_s = self._wait(reader, text, sent, timeout_s)
            reason = None if latency_s is not None else self._dead_letter(text, sent_us)
        except Exception:
            self.close()
            raise
        return CanaryResult(text, latency_s, reason, dict(Counter(self._store.requests) - before))

    def close(self) -> None:
        """Close producer and reader; the next run opens them again."""
        if self._open is not None:
            for end in self._open:
                end.close()
            self._open = None

    def _ready(self) -> tuple[Producer, Consumer]:
        """Return producer and reader, with the reader at the output's head before the message is sent."""
        if self._open is not None:
            self._open[1].seek("latest")
            return self._open
        producer = Producer(self._topic, store=self._store, clock=self._clock)
        output = describe_topic(self._store, self._output, clock=self._clock)
        for topic, schema in ((self._topic, producer.schema), (self._output, output.schema)):
            if COLUMN not in {column.name for column in schema.columns if column.type == "string"}:
                raise ConfigError(
                    f"The canary needs the column '{COLUMN} string', which topic {topic!r} does not have. It has: "
                    f"{schema}. Add the column, or deploy the pipeline without a canary."
                )
        self._open = producer, Consumer(self._output, store=self._store, clock=self._clock)
        return self._open

    def _wait(self, reader: Consumer, text: str, sent: float, timeout_s: float) -> float | None:
        while True:
            # Before the poll: the last one begins when the time is over, not earlier.
            elapsed_s = self._clock.monotonic() - sent
            if any(text in batch.data.column(COLUMN).to_pylist() for batch in reader.poll(0)):
                return self._clock.monotonic() - sent
            if elapsed_s >= timeout_s:
                return None
            wait_s = min(max(POLL_S, PRECISION * elapsed_s), timeout_s - elapsed_s)
            self._clock.sleep(max(wait_s, _TICK_S))

    def _dead_letter(self, text: str, sent_us: int) -> str | None:
        start = datetime.fromtimestamp(sent_us / 1e6 - _SKEW_S, UTC)
        try:
            rejected = Consumer(dead_letters(self._output), start=start, store=self._store, clock=self._clock)
        except TopicNotFound:
            return None  # the pipeline creates it in its first run
        with rejected:
            while batches := rejected.poll(0):
                for data in (batch.data for batch in batches):
                    texts, reasons = data.column(COLUMN).to_pylist(), data.column("_reason").to_pylist()
                    for found, reason in zip(texts, reasons, strict=True):
                        if found == text:
                            return str(reason)
        return None


def _row(schema: Schema, text: str, time_us: int) -> dict[str, str]:
    row = {COLUMN: text}
    if DATE_COLUMN in schema.names:
        # Not fromtimestamp(time_us / 1e6): a float cannot hold today's microseconds.
        seconds, micros = divmod(time_us, 1_000_000)
        row[DATE_COLUMN] = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros).strftime(DATE_FORMAT)
    return row
