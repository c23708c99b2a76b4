"""The canary: one message a minute through the whole pipeline, timed by a reader at its end.

A pipeline's own latency says nothing when the pipeline does not run, and nothing about producers and readers. So this
sends a message as any producer would, follows the output as any reader would, and measures on one clock from the moment
of sending until the message was read.

Its messages are in the topic and in the output like all others, so that nothing treats them differently. Their text
says what they are: the column ``message`` begins with ``canary:``. Whoever does not want them leaves them out::

    SELECT * FROM timezone_unified WHERE message NOT LIKE 'canary:%'       -- Athena, DuckDB, Spark
    rows.filter(~pl.col("message").str.starts_with(CANARY_PREFIX))         # Polars

What it costs. Looking for the message is what costs requests: each look asks for the next entry of each partition of
the output. Looks are 10 ms apart at first, then a twentieth of the time that has passed: the latency is at most 5 % too
high, which is finer than the buckets of ``metrics.Histogram``, and a message that is missing after 30 s has cost about
120 looks instead of 3,000. Producer and reader are kept from run to run, so only the first one opens the logs. The
dead letters are read only if the message is missing. Each run reports its requests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.consumer import POLL_S, Consumer
from brokerless.cost.bill import requests_usd
from brokerless.errors import ConfigError, TopicNotFound
from brokerless.examples.timezone.messages import DATE_FORMAT
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
"""How the text of each canary message begins; a random id follows."""

COLUMN: Final = "message"
"""The text column that topic and output must have, and that the pipeline must carry over unchanged."""

DATE_COLUMN: Final = "date"
"""Gets the time of sending in ``DATE_FORMAT``, if the topic has it. Other columns stay null."""

PRECISION: Final = 0.05
"""How far apart looks are, as a share of the time since sending."""

_TICK_S: Final = 0.001  # a wait that a clock rounds to nothing would never end
_SKEW_S: Final = 60.0  # how far the clock of whoever commits dead letters may be behind ours


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """What became of one message.

    Attributes:
        text: the message.
        latency_s: from sending until a reader saw it in the output; None if none did in time.
        reason: why the pipeline made it a dead letter; None if it did not, or not yet.
        requests: what the run sent to S3, by kind.
    """

    text: str
    latency_s: float | None
    reason: str | None
    requests: Mapping[str, int]

    @property
    def usd(self) -> float:
        """What the run's requests cost, by list price."""
        return requests_usd(self.requests)

    def __str__(self) -> str:
        if self.latency_s is not None:
            return f"The canary's message was read {self.latency_s:.3f} s after it was sent."
        if self.reason is not None:
            return f"The canary's message became a dead letter: {self.reason}"
        return "The canary's message did not appear in time. Does the pipeline run, and how far is it behind?"


class Canary:
    """Sends messages through a pipeline, one a run. Used by one thread at a time.

    Args:
        topic: the input that gets the messages; has the column ``COLUMN``.
        output: the output in which they must appear; has it, too.
        settings: where; read from the environment by default.
        store: instead of the one that the settings name.
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
        """Sends one message and waits for it, at most ``timeout_s`` after sending began.

        An error closes producer and reader, so that the next run does not meet what this one held: a topic that was
        deleted and created again, for instance.

        Raises:
            TopicNotFound: topic or output do not exist.
            ConfigError: one of them lacks the column ``COLUMN``.
            DeliveryFailed, StoreError, TopicDeleted: the message could not be sent, or the output not be read.
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
        """Ends producer and reader; another run opens them again."""
        if self._open is not None:
            for end in self._open:
                end.close()
            self._open = None

    def _ready(self) -> tuple[Producer, Consumer]:
        """Producer and reader, the reader at the output's head of this moment: before the message is sent."""
        if self._open is not None:
            self._open[1].seek("latest")
            return self._open
        producer = Producer(self._topic, store=self._store, clock=self._clock)
        output = describe_topic(self._store, self._output, clock=self._clock)
        for topic, schema in ((self._topic, producer.schema), (self._output, output.schema)):
            if COLUMN not in {column.name for column in schema.columns if column.type == "string"}:
                raise ConfigError(
                    f"The canary marks its messages in the column '{COLUMN} string', which topic {topic!r} does not "
                    f"have; it has: {schema}. Add it, or deploy the pipeline without a canary."
                )
        self._open = producer, Consumer(self._output, store=self._store, clock=self._clock)
        return self._open

    def _wait(self, reader: Consumer, text: str, sent: float, timeout_s: float) -> float | None:
        while True:
            # Before the look: the last one begins when the time is over, not earlier.
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
            letters = Consumer(dead_letters(self._output), start=start, store=self._store, clock=self._clock)
        except TopicNotFound:
            return None  # the pipeline creates it when it first runs
        with letters:
            while batches := letters.poll(0):
                for data in (batch.data for batch in batches):
                    texts, reasons = data.column(COLUMN).to_pylist(), data.column("_reason").to_pylist()
                    for found, reason in zip(texts, reasons, strict=True):
                        if found == text:
                            return str(reason)
        return None


def _row(schema: Schema, text: str, time_us: int) -> dict[str, str]:
    row = {COLUMN: text}
    if DATE_COLUMN in schema.names:
        # Not fromtimestamp(time_us / 1e6): a float has no room for today's microseconds.
        seconds, micros = divmod(time_us, 1_000_000)
        row[DATE_COLUMN] = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros).strftime(DATE_FORMAT)
    return row
