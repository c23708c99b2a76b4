"""Commit batches of messages from queues, streams and event buses to topics.

A message that fits its topic is committed. One that can never fit (no JSON, a wrong column, a topic that is not
allowed) becomes a dead letter in the topic ``<topic>.dead_letters``, with the reason, and does not stop the messages
after it. One that cannot be committed *now* (the store fails, the topic does not exist) is returned as failed, and its
source delivers it again.

Invariants: messages of an ordered source (Kinesis, Kafka, SQS FIFO) are written exactly once and in order, because the
commit that holds them holds their position too (``positions``). Dead letters are committed first, so a crash between
the two commits loses none. ``docs/guarantees.md`` has the guarantee of each source, and what is not guaranteed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from brokerless import metrics
from brokerless.clock import SYSTEM, Clock
from brokerless.columns.text import RowReader, excerpt
from brokerless.errors import BrokerlessError, ConfigError, SchemaError, TopicChanged, TopicNotFound
from brokerless.ingest.plan import OrderedTopic, Plan, dead_letter, parse_rows, with_followers
from brokerless.ingest.positions import SourcePosition, Written, write_once
from brokerless.schema import Column, Schema, check_name, dead_letters
from brokerless.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerless.columns.records import Messages
    from brokerless.metrics import Meter
    from brokerless.producer.pool import ProducerPool
    from brokerless.store import Store
    from brokerless.topics import Topic

    Row = dict[str, Any]

TIMEOUT_S: Final = 10.0
"""How long one commit is tried. A function needs time left after it to return what failed."""

DEAD_LETTER_SCHEMA: Final = Schema.of(
    [
        Column("_body", "string"),
        Column("_encoding", "string"),
        Column("_reason", "string"),
        Column("_topic", "string"),
        Column("_source", "string"),
        Column("_source_position", "string"),
    ],
    reserved=True,
)
"""The columns of messages that could not be ingested.

``_body`` is the message as it was received: text, or base64 of bytes that are not UTF-8, as ``_encoding`` says
(``utf-8`` or ``base64``). ``_reason`` is the reason. ``_topic`` is the topic that it was sent to, if that is known.
``_source`` and ``_source_position`` name its origin: the shard and sequence number, or the queue and message id.
"""


@dataclass(frozen=True, slots=True)
class Routes:
    """The topics that messages may be written to.

    Attributes:
        topics: the allowed topics.
        default: the topic of a message that names none; empty if each message must name one.

    Raises:
        ConfigError: there is no topic, a name is invalid, or the default is not one of the topics.
    """

    topics: tuple[str, ...]
    default: str

    def __post_init__(self) -> None:
        for topic in self.topics:
            check_name(topic)
        if not self.topics or (self.default and self.default not in self.topics):
            raise ConfigError(
                f"The default topic {self.default!r} is not one of the allowed topics: "
                f"{', '.join(self.topics) or '(none)'}. Allow it, or choose another."
            )

    @property
    def fallback(self) -> str:
        """The topic whose dead letters hold messages for a topic that is not allowed."""
        return self.default or self.topics[0]


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """One message as a source delivered it.

    Attributes:
        body: the message; None if the source has none (a Kafka tombstone).
        source: its origin, such as ``kinesis/<stream>/<shard>``; with a '/' if it has positions.
        item: the source's id of the message, with which it is asked to deliver the message again.
        position: its position in an ordered source; None in an unordered one.
        topic: the topic that the message names; None for the default topic.
    """

    body: bytes | None
    source: str
    item: object
    position: int | None = None
    topic: str | None = None


@dataclass(slots=True)
class IngestResult:
    """The result of ingesting one batch.

    Attributes:
        committed: number of messages that this call wrote to their topics.
        rejected: number of messages that this call wrote to dead-letter topics.
        skipped: number of messages that were written before.
        failed: messages to deliver again, in the order of the batch; of an ordered source all from the first failed
            one.
        errors: the reasons of ``failed``.
    """

    committed: int = 0
    rejected: int = 0
    skipped: int = 0
    failed: tuple[SourceMessage, ...] = ()
    errors: list[BrokerlessError] = field(default_factory=list)


def create_ingest_dead_letters(store: Store, topic: str, *, clock: Clock = SYSTEM) -> Topic:
    """Create the topic for messages that cannot be ingested into a topic, or accept the one that exists.

    Raises:
        TopicExists: the topic is the output of a pipeline, whose dead letters have the same name and other columns.
    """
    return create_topic(store, dead_letters(topic), DEAD_LETTER_SCHEMA, exist_ok=True, clock=clock)


class BatchIngest:
    """Ingests batches of messages. Create one a process: it holds the topics' opened logs.

    Args:
        store: the store of the topics.
        routes: the allowed topics.
        producers: the pool of the topics' producers.
        meter: receives the counts.
        timeout_s: how long one commit is tried.
        clock: time, randomness and sleeping.
    """

    def __init__(
        self,
        store: Store,
        *,
        routes: Routes,
        producers: ProducerPool,
        meter: Meter,
        timeout_s: float = TIMEOUT_S,
        clock: Clock = SYSTEM,
    ) -> None:
        self._routes = routes
        self._store = store
        self._producers = producers
        self._meter = meter
        self._timeout_s = timeout_s
        self._clock = clock
        self._ordered_topics: dict[str, OrderedTopic] = {}

    def ingest(self, batch: Sequence[SourceMessage]) -> IngestResult:
        """Commit a batch. Messages that cannot be committed now are returned in ``failed``; no error is raised."""
        result = IngestResult()
        failed: set[int] = set()
        pending: Sequence[int] = range(len(batch))
        for last in (False, True):
            plan = self._plan(batch, pending)
            # A dead letter is final, so the logs are checked first: the schema may be that of a deleted topic.
            if plan.dead_letters and self._unconfirmed(plan):
                plan = self._plan(batch, pending)
                plan.fail(self._unconfirmed(plan), batch, pending)
            result.errors += plan.errors
            failed.update(plan.failed)
            stale = self._commit(batch, plan, result, failed)
            if plan.dead_letters:
                # Their positions are in the dead-letter topic now. A message of the same source that became a dead
                # letter in the second attempt would be skipped as a repetition, and be lost.
                stale = [number for number in stale if batch[number].position is None]
            if last or not stale:
                break
            failed.difference_update(stale)
            pending = stale
        result.failed = tuple(batch[number] for number in sorted(with_followers(batch, failed)))
        return result

    def _plan(self, batch: Sequence[SourceMessage], pending: Sequence[int]) -> Plan:
        """Sort messages by the commits that they go into."""
        plan = Plan()
        wanted: dict[tuple[str, bool], list[int]] = {}
        for number in pending:
            message = batch[number]
            topic = message.topic or self._routes.default
            if topic in self._routes.topics:
                wanted.setdefault((topic, message.position is not None), []).append(number)
            else:
                reason = f"The topic {excerpt(topic)} is not allowed here." if topic else "The message names no topic."
                plan.dead_letters[number] = self._routes.fallback, reason
        for (topic, ordered), numbers in wanted.items():
            try:
                ordered_topic = self._ordered_topic(topic) if ordered else None
                reader = ordered_topic.reader if ordered_topic else RowReader(topic, self._producers.get(topic).schema)
            except BrokerlessError as error:
                plan.errors.append(error)
                plan.failed.update(numbers)
                continue
            plan.opened.append((topic, ordered_topic, numbers))
            rows, bad = parse_rows(batch, numbers, reader)
            plan.dead_letters.update({number: (topic, reason) for number, reason in bad.items()})
            shares: dict[int, set[int]] = {}
            for number in rows.numbers:
                partition = ordered_topic.partition_of(batch[number].source) if ordered_topic else 0
                shares.setdefault(partition, set()).add(number)
            plan.rows |= {(topic, ordered_topic, partition): rows.only(share) for partition, share in shares.items()}
        plan.stop_behind_failed(batch, pending)
        return plan

    def _unconfirmed(self, plan: Plan) -> dict[int, BrokerlessError]:
        """Return the messages whose topic has changed since its schema was read, or cannot be checked.

        The next plan opens these topics again.
        """
        found: dict[int, BrokerlessError] = {}
        for topic, ordered_topic, numbers in plan.opened:
            try:
                if ordered_topic:
                    ordered_topic.confirm({partition for _, its, partition in plan.rows if its is ordered_topic})
                else:
                    self._producers.get(topic).confirm()
            except BrokerlessError as error:
                self._forget(topic)
                found |= dict.fromkeys(numbers, error)
        return found

    def _commit(self, batch: Sequence[SourceMessage], plan: Plan, result: IngestResult, failed: set[int]) -> list[int]:
        """Commit the plan, dead letters first. Return the messages whose topic was created again meanwhile."""
        rejected: dict[tuple[str, bool], dict[int, Row]] = {}
        for number, (topic, reason) in plan.dead_letters.items():
            share = rejected.setdefault((topic, batch[number].position is not None), {})
            share[number] = dead_letter(batch[number], reason, self._routes.default)
        for (topic, ordered), found in rejected.items():
            try:
                sources = [batch[number] for number in found]
                self._write_dead_letters(topic, sources, list(found.values()), ordered=ordered, result=result)
            except BrokerlessError as error:
                result.errors.append(error)
                failed.update(found)
        stale: list[int] = []
        for (topic, ordered_topic, partition), rows in plan.rows.items():
            try:
                begun = self._clock.monotonic()
                sources = [batch[number] for number in rows.numbers]
                written = self._write(topic, ordered_topic, partition, sources, rows.table)
                self._count(topic, written, begun, result)
            except BrokerlessError as error:
                result.errors.append(error)
                failed.update(rows.numbers)
                if isinstance(error, TopicChanged | TopicNotFound):
                    self._forget(topic)
                    stale += rows.numbers
        return sorted(stale)

    def _count(self, topic: str, written: Written, begun: float, result: IngestResult) -> None:
        result.committed += written.rows
        result.skipped += written.skipped
        if written.rows:
            self._meter.add(metrics.PRODUCED_MESSAGES, topic, written.rows)
            self._meter.observe(metrics.PRODUCE_LATENCY, topic, self._clock.monotonic() - begun)
        if written.conflicts:
            self._meter.add(metrics.COMMIT_CONFLICTS, topic, written.conflicts)

    def _write_dead_letters(
        self, topic: str, sources: Sequence[SourceMessage], rows: Sequence[Row], *, ordered: bool, result: IngestResult
    ) -> None:
        name = dead_letters(topic)
        for last in (False, True):
            try:
                ordered_topic = self._ordered_topic(name) if ordered else None
                written = self._write(name, ordered_topic, 0, sources, rows)
            except (TopicChanged, TopicNotFound, SchemaError):
                self._forget(name)
                if last:
                    raise
                create_ingest_dead_letters(self._store, topic, clock=self._clock)
            else:
                break
        result.rejected += written.rows
        result.skipped += written.skipped
        if written.rows:
            self._meter.add(metrics.REJECTED_MESSAGES, topic, written.rows)

    def _write(
        self,
        topic: str,
        ordered_topic: OrderedTopic | None,
        partition: int,
        sources: Sequence[SourceMessage],
        messages: Messages,
    ) -> Written:
        if ordered_topic is None:
            producer = self._producers.get(topic)
            before = producer.conflicts
            producer.send(messages)
            return Written(len(sources), 0, producer.conflicts - before)
        return write_once(
            ordered_topic.log(partition),
            messages,
            [SourcePosition(message.source, cast("int", message.position)) for message in sources],
            schema=ordered_topic.reader.schema,
            topic=topic,
            timeout_s=self._timeout_s,
            clock=self._clock,
        )

    def _ordered_topic(self, topic: str) -> OrderedTopic:
        if topic not in self._ordered_topics:
            self._ordered_topics[topic] = OrderedTopic(self._store, topic, self._clock)
        return self._ordered_topics[topic]

    def _forget(self, topic: str) -> None:
        self._ordered_topics.pop(topic, None)
        self._producers.forget(topic)
