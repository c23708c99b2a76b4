"""Messages from queues, streams and buses into topics: what fits is committed, what does not becomes a dead letter.

What a source may expect:

===================================  ===============================================================================
source                               guarantee
===================================  ===============================================================================
Kinesis, Kafka, SQS FIFO             exactly once, in order: the place in the source is in the same commit as the
                                     messages (``positions``, which says what must hold for it)
SQS standard, SNS, EventBridge       at least once, as they deliver: a redelivery after a crash is written again
===================================  ===============================================================================

A message that can never be taken (no JSON, a wrong column, a topic that is not allowed) does not stop the ones behind
it: it is kept, with the reason, in the topic ``<topic>.dead_letters``. Dead letters are committed first, so that a
crash in between loses none. Each topic filters by its own positions, so none is there twice, either. A message that
cannot be taken *now* (the store fails, the topic is not there) is named as failed, and the source delivers it again.

Not guaranteed: when the allowed topics or a topic's schema change between two deliveries of one message, it can become
a dead letter *and* a message, or neither, as with a transform that decides otherwise the second time.

A source that is read in order goes to one partition of the topic, by the hash of its name; other messages go to the
partitions in turn, one commit each.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from brokerless import metrics
from brokerless.clock import SYSTEM, Clock
from brokerless.columns.text import RowReader, excerpt
from brokerless.errors import (
    BrokerlessError,
    ConfigError,
    SchemaError,
    TopicChanged,
    TopicDeleted,
    TopicNotFound,
    UsageError,
)
from brokerless.ingest.positions import PositionedRow, Written, write_once
from brokerless.log.entries import PARTITIONS_KEY
from brokerless.log.log import DeltaLog
from brokerless.producer.partitioner import partition_of
from brokerless.schema import Column, Schema, check_name, dead_letters, partition_table
from brokerless.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from brokerless.metrics import Meter
    from brokerless.producer.pool import Producers
    from brokerless.store import Store
    from brokerless.topics import Topic

    Row = dict[str, Any]

TIMEOUT_S: Final = 10.0
"""How long one commit is tried: a function must have time left to say what failed."""

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
"""Of what could not be ingested.

``_body`` is the message as it came: text, or base64 of bytes that are no UTF-8, as ``_encoding`` says (``utf-8`` or
``base64``). ``_reason`` says why. ``_topic`` is the topic that it was meant for, if that is known. ``_source`` and
``_source_position`` say where it is from: the shard and sequence number, the queue and message id.
"""

_MAX_REASON: Final = 1000


@dataclass(frozen=True, slots=True)
class Routes:
    """Where messages may go.

    Attributes:
        topics: those that are allowed.
        default: where a message goes that names none; empty if each must name one.

    Raises:
        ConfigError: no topic, a name that cannot be one, or a default that is not allowed.
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
        """The topic whose dead letters keep what asks for a topic that is not allowed: somebody must."""
        return self.default or self.topics[0]


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message as a source delivered it.

    Attributes:
        body: the message; None if the source has none there (a Kafka tombstone).
        source: where it is from, such as ``kinesis/<stream>/<shard>``; with a '/' if it has positions.
        item: what the source calls it when it is asked to deliver it again; goes back as it is.
        position: its place in a source that is read in order; None in one that is not.
        topic: which topic it asks for; None for the default one.
    """

    body: bytes | None
    source: str
    item: object
    position: int | None = None
    topic: str | None = None


@dataclass(slots=True)
class Taken:
    """What became of a batch.

    Attributes:
        committed: messages that were written to their topics now.
        rejected: those that were written to dead-letter topics now.
        skipped: those that were there already.
        failed: those to deliver again, in the order of the batch; in a source that is read in order, all behind the
            first one.
        errors: why.
    """

    committed: int = 0
    rejected: int = 0
    skipped: int = 0
    failed: tuple[Incoming, ...] = ()
    errors: list[BrokerlessError] = field(default_factory=list)


def create_ingest_dead_letters(store: Store, topic: str, *, clock: Clock = SYSTEM) -> Topic:
    """Creates (or accepts) the topic for what cannot be ingested into a topic.

    Raises:
        TopicExists: the topic is the output of a pipeline, whose dead letters have other columns and the same name.
    """
    return create_topic(store, dead_letters(topic), DEAD_LETTER_SCHEMA, exist_ok=True, clock=clock)


class Ingest:
    """Takes batches of messages. Keep it for as long as the process lives: it holds the topics' logs.

    Args:
        store: where the topics are.
        routes: where messages may go.
        producers: of the topics.
        meter: counts what happened.
        timeout_s: how long one commit is tried.
        clock: time, randomness and sleeping.
    """

    def __init__(
        self,
        store: Store,
        *,
        routes: Routes,
        producers: Producers,
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
        self._streams: dict[str, _Stream] = {}

    def take(self, batch: Sequence[Incoming]) -> Taken:
        """Commits a batch; what cannot be committed now is named in the result, and nothing is raised for it."""
        taken = Taken()
        failed: set[int] = set()
        pending: Sequence[int] = range(len(batch))
        for last in (False, True):
            plan = self._plan(batch, pending)
            # A dead letter is for good, so the logs are asked first: the schema may be that of a topic that is gone.
            if plan.letters and self._unconfirmed(plan):
                plan = self._plan(batch, pending)
                plan.fail(self._unconfirmed(plan), batch, pending)
            taken.errors += plan.errors
            failed.update(plan.failed)
            stale = self._commit(batch, plan, taken, failed)
            if plan.letters:
                # Their positions are in the dead-letter topic now. A message of the same source that would only now
                # become one would be taken for a repetition, and be lost.
                stale = [number for number in stale if batch[number].position is None]
            if last or not stale:
                break
            failed.difference_update(stale)
            pending = stale
        taken.failed = tuple(batch[number] for number in sorted(_with_followers(batch, failed)))
        return taken

    def _plan(self, batch: Sequence[Incoming], pending: Sequence[int]) -> _Plan:
        """Sorts messages by the commits that they go into."""
        plan = _Plan()
        wanted: dict[tuple[str, bool], list[int]] = {}
        for number in pending:
            message = batch[number]
            topic = message.topic or self._routes.default
            if topic in self._routes.topics:
                wanted.setdefault((topic, message.position is not None), []).append(number)
            else:
                reason = f"The topic {excerpt(topic)} is not allowed here." if topic else "It names no topic."
                plan.letters[number] = self._routes.fallback, reason
        for (topic, ordered), numbers in wanted.items():
            try:
                stream = self._stream(topic) if ordered else None
                reader = stream.reader if stream else RowReader(topic, self._producers.get(topic).schema)
            except BrokerlessError as error:
                plan.errors.append(error)
                plan.failed.update(numbers)
                continue
            plan.opened.append((topic, stream, numbers))
            good, bad = _sorted_out(batch, numbers, reader)
            plan.letters.update({number: (topic, reason) for number, reason in bad.items()})
            for number, row in good.items():
                partition = stream.partition_of(batch[number].source) if stream else 0
                plan.rows.setdefault((topic, stream, partition), {})[number] = row
        plan.stop_behind_failed(batch, pending)
        return plan

    def _unconfirmed(self, plan: _Plan) -> dict[int, BrokerlessError]:
        """The messages whose topic is no longer the one by whose schema they were sorted, or cannot be looked at.

        The next plan opens these topics anew.
        """
        found: dict[int, BrokerlessError] = {}
        for topic, stream, numbers in plan.opened:
            try:
                if stream:
                    stream.confirm({partition for _, its, partition in plan.rows if its is stream})
                else:
                    self._producers.get(topic).confirm()
            except BrokerlessError as error:
                self._forget(topic)
                found |= dict.fromkeys(numbers, error)
        return found

    def _commit(self, batch: Sequence[Incoming], plan: _Plan, taken: Taken, failed: set[int]) -> list[int]:
        """Commits all, dead letters first. Returns the messages whose topic turned out to be another."""
        letters: dict[tuple[str, bool], dict[int, Row]] = {}
        for number, (topic, reason) in plan.letters.items():
            share = letters.setdefault((topic, batch[number].position is not None), {})
            share[number] = _dead_letter(batch[number], reason, self._routes.default)
        for (topic, ordered), rows in letters.items():
            try:
                self._write_letters(batch, topic, rows, ordered=ordered, taken=taken)
            except BrokerlessError as error:
                taken.errors.append(error)
                failed.update(rows)
        stale: list[int] = []
        for (topic, stream, partition), rows in plan.rows.items():
            try:
                self._write_rows(batch, topic, stream, partition, rows, taken=taken)
            except BrokerlessError as error:
                taken.errors.append(error)
                failed.update(rows)
                if isinstance(error, TopicChanged | TopicNotFound):
                    self._forget(topic)
                    stale += rows
        return sorted(stale)

    def _write_rows(
        self,
        batch: Sequence[Incoming],
        topic: str,
        stream: _Stream | None,
        partition: int,
        rows: Mapping[int, Row],
        *,
        taken: Taken,
    ) -> None:
        begun = self._clock.monotonic()
        written = self._write(batch, topic, stream, partition, rows)
        taken.committed += written.rows
        taken.skipped += written.skipped
        if written.rows:
            self._meter.add(metrics.PRODUCED_MESSAGES, topic, written.rows)
            self._meter.observe(metrics.PRODUCE_LATENCY, topic, self._clock.monotonic() - begun)
        if written.conflicts:
            self._meter.add(metrics.COMMIT_CONFLICTS, topic, written.conflicts)

    def _write_letters(
        self, batch: Sequence[Incoming], topic: str, rows: Mapping[int, Row], *, ordered: bool, taken: Taken
    ) -> None:
        name = dead_letters(topic)
        for last in (False, True):
            try:
                written = self._write(batch, name, self._stream(name) if ordered else None, 0, rows)
            except (TopicChanged, TopicNotFound, SchemaError):
                self._forget(name)
                if last:
                    raise
                create_ingest_dead_letters(self._store, topic, clock=self._clock)
            else:
                break
        taken.rejected += written.rows
        taken.skipped += written.skipped
        if written.rows:
            self._meter.add(metrics.REJECTED_MESSAGES, topic, written.rows)

    def _write(
        self,
        batch: Sequence[Incoming],
        topic: str,
        stream: _Stream | None,
        partition: int,
        rows: Mapping[int, Row],
    ) -> Written:
        if stream is None:
            producer = self._producers.get(topic)
            before = producer.conflicts
            producer.send(list(rows.values()))
            return Written(len(rows), 0, producer.conflicts - before)
        placed = [
            PositionedRow(message.source, message.position, row)
            for message, row in ((batch[number], row) for number, row in rows.items())
            if message.position is not None
        ]
        return write_once(
            stream.log(partition),
            placed,
            schema=stream.reader.schema,
            topic=topic,
            timeout_s=self._timeout_s,
            clock=self._clock,
        )

    def _stream(self, topic: str) -> _Stream:
        if topic not in self._streams:
            self._streams[topic] = _Stream(self._store, topic, self._clock)
        return self._streams[topic]

    def _forget(self, topic: str) -> None:
        self._streams.pop(topic, None)
        self._producers.forget(topic)


class _Stream:
    """A topic that takes messages of sources with positions: its logs, kept open."""

    def __init__(self, store: Store, topic: str, clock: Clock) -> None:
        self._store = store
        self._topic = topic
        self._clock = clock
        first = DeltaLog(store, topic, clock=clock)
        try:
            metadata = first.state.metadata
        except TopicDeleted as error:
            raise TopicNotFound(str(error)) from None
        self._partitions = int(metadata.configuration.get(PARTITIONS_KEY, "1"))
        self._logs = {0: first}
        self.reader = RowReader(topic, Schema.from_delta(metadata.schema_string))

    def partition_of(self, source: str) -> int:
        """Always the same for a source, because its positions are kept there."""
        return partition_of(source, self._partitions)

    def log(self, partition: int) -> DeltaLog:
        """The log of a partition.

        Raises:
            TopicChanged: it was opened later than partition 0, and by then the topic was another.
        """
        if partition not in self._logs:
            log = DeltaLog(self._store, partition_table(self._topic, partition), clock=self._clock)
            log.state  # noqa: B018  # reads it
            # Partition 0 is deleted last and created last: if it is the same after we have read this one, so is this
            # one. Otherwise it may be of a topic with other columns, or have its sources from another count.
            self._logs[0].confirm()
            self._logs[partition] = log
        return self._logs[partition]

    def confirm(self, partitions: set[int]) -> None:
        """Proves from the logs that this is still the topic that was opened.

        Args:
            partitions: those that are about to be written to; 0 is always looked at.

        Raises:
            TopicChanged: it is not.
        """
        for partition in sorted({0, *partitions}, reverse=True):
            self.log(partition).confirm()


@dataclass(slots=True)
class _Plan:
    """What goes where: messages by their number in the batch.

    Attributes:
        rows: by topic, stream and partition; without a stream, the partition is the producer's choice. The stream is
            the one by which they were planned: should the topic prove to be another, the next partition must not be
            written to by the new stream with what the old one said.
        letters: whose dead letter each is, and why.
        failed: those whose topic cannot be opened now.
        errors: why.
        opened: the topics whose schemas sorted the messages, each with its stream and the messages.
    """

    rows: dict[tuple[str, _Stream | None, int], dict[int, Row]] = field(default_factory=dict)
    letters: dict[int, tuple[str, str]] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    errors: list[BrokerlessError] = field(default_factory=list)
    opened: list[tuple[str, _Stream | None, list[int]]] = field(default_factory=list)

    def fail(self, found: Mapping[int, BrokerlessError], batch: Sequence[Incoming], pending: Sequence[int]) -> None:
        """Leaves out messages, and what lies behind them in ordered sources."""
        self.errors += dict.fromkeys(found.values())
        self.failed.update(found)
        self.stop_behind_failed(batch, pending)

    def stop_behind_failed(self, batch: Sequence[Incoming], pending: Sequence[int]) -> None:
        """Leaves out what lies behind a failed message of an ordered source.

        A dead letter behind it would move the position of the dead-letter topic, and should the failed message become
        a dead letter of the same topic when it is delivered again, it would be taken for a repetition.
        """
        self.failed |= _with_followers(batch, self.failed).intersection(pending)
        for number in self.failed:
            self.letters.pop(number, None)
            for rows in self.rows.values():
                rows.pop(number, None)
        self.rows = {place: rows for place, rows in self.rows.items() if rows}


def _sorted_out(
    batch: Sequence[Incoming], numbers: Sequence[int], reader: RowReader
) -> tuple[dict[int, Row], dict[int, str]]:
    """The rows of the messages that fit, and why the others do not."""
    good: dict[int, Row] = {}
    bad: dict[int, str] = {}
    for number in numbers:
        body = batch[number].body
        try:
            if body is None:
                bad[number] = "It has no body."
            else:
                good[number] = reader.parse(body, place="The message")
        except UsageError as error:
            bad[number] = str(error)
        except Exception as error:  # nothing that one message holds may stop the others
            bad[number] = f"It cannot be read ({type(error).__name__})."
    order = list(good)
    for index, reason in reader.misfits(list(good.values())).items():
        bad[order[index]] = reason
        del good[order[index]]
    return good, bad


def _dead_letter(message: Incoming, reason: str, default_topic: str) -> Row:
    body, encoding = message.body, "utf-8"
    try:
        text = None if body is None else body.decode()
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(body or b"").decode(), "base64"
    topic = message.topic or default_topic
    return {
        "_body": text,
        "_encoding": encoding,
        "_reason": reason[:_MAX_REASON],
        "_topic": topic.encode(errors="replace").decode()[:_MAX_REASON],
        "_source": message.source,
        "_source_position": str(message.item if message.position is None else message.position),
    }


def _with_followers(batch: Sequence[Incoming], failed: set[int]) -> set[int]:
    """The failed messages, and in ordered sources all behind the first: the source must not go on without it."""
    stopped: set[str] = set()
    found: set[int] = set()
    for number, message in enumerate(batch):
        if number in failed or (message.position is not None and message.source in stopped):
            stopped.add(message.source)
            found.add(number)
    return found
