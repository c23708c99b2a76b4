"""Sort the messages of a batch by the commits that they go into: rows of a topic's partition, or dead letters."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from brokerless.columns.text import RowReader
from brokerless.errors import BrokerlessError, TopicChanged, TopicDeleted, TopicNotFound, UsageError
from brokerless.log.entries import PARTITIONS_KEY
from brokerless.log.log import DeltaLog
from brokerless.producer.partitioner import partition_of
from brokerless.producer.split import selected
from brokerless.schema import Schema, partition_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arro3.core import Table

    from brokerless.clock import Clock
    from brokerless.ingest.batches import SourceMessage
    from brokerless.store import Store

    Row = dict[str, Any]

_MAX_REASON: Final = 1000


class OrderedTopic:
    """A topic that receives messages of ordered sources, with its opened logs."""

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
        """Return the partition of a source: always the same one, because it holds the source's positions."""
        return partition_of(source, self._partitions)

    def log(self, partition: int) -> DeltaLog:
        """Return the log of a partition, and open it if necessary.

        Raises:
            TopicChanged: it was opened later than partition 0, and the topic had been created again by then.
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
        """Check in the logs that this is still the topic that was opened.

        Args:
            partitions: those that are about to be written; partition 0 is always checked.

        Raises:
            TopicChanged: it is another topic, or has more columns.
        """
        for partition in sorted({0, *partitions}, reverse=True):
            self.log(partition).confirm()
        if Schema.from_delta(self._logs[0].state.metadata.schema_string) != self.reader.schema:
            raise TopicChanged(f"Topic {self._topic!r} has more columns since it was opened.")


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages by their numbers in the batch, and the table that was made of them when they were checked."""

    numbers: Sequence[int]
    table: Table

    def only(self, wanted: set[int]) -> Rows:
        """Return some of the messages."""
        found = [row for row, number in enumerate(self.numbers) if number in wanted]
        if len(found) == len(self.numbers):
            return self
        return Rows([self.numbers[row] for row in found], selected(self.table, found))


@dataclass(slots=True)
class Plan:
    """The commits of one batch. Messages are named by their number in the batch.

    Attributes:
        rows: rows by topic, opened topic and partition. For an unordered source the opened topic is None and the
            producer chooses the partition. The opened topic is the one whose schema was used: if the topic was created
            again meanwhile, the new one must not be written with rows that were planned for the old one.
        dead_letters: the topic and the reason of each dead letter.
        failed: messages whose topic cannot be opened now.
        errors: the reasons of ``failed``.
        opened: the topics whose schemas were used, each with its opened topic and its messages.
    """

    rows: dict[tuple[str, OrderedTopic | None, int], Rows] = field(default_factory=dict)
    dead_letters: dict[int, tuple[str, str]] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    errors: list[BrokerlessError] = field(default_factory=list)
    opened: list[tuple[str, OrderedTopic | None, list[int]]] = field(default_factory=list)

    def fail(
        self, found: Mapping[int, BrokerlessError], batch: Sequence[SourceMessage], pending: Sequence[int]
    ) -> None:
        """Remove messages from the plan, and all messages after them in ordered sources."""
        self.errors += dict.fromkeys(found.values())
        self.failed.update(found)
        self.stop_behind_failed(batch, pending)

    def stop_behind_failed(self, batch: Sequence[SourceMessage], pending: Sequence[int]) -> None:
        """Remove from the plan all messages after a failed message of an ordered source.

        A dead letter after it would advance the position of the dead-letter topic. If the failed message then became a
        dead letter of the same topic at its next delivery, it would be skipped as a repetition, and be lost.
        """
        self.failed |= with_followers(batch, self.failed).intersection(pending)
        for number in self.failed:
            self.dead_letters.pop(number, None)
        left = {target: rows.only(set(pending) - self.failed) for target, rows in self.rows.items()}
        self.rows = {target: rows for target, rows in left.items() if rows.numbers}


def parse_rows(
    batch: Sequence[SourceMessage], numbers: Sequence[int], reader: RowReader
) -> tuple[Rows, dict[int, str]]:
    """Return the rows of the messages that fit the topic, and for each of the others the reason why it does not."""
    parsed: dict[int, Mapping[str, Any]] = {}
    bad: dict[int, str] = {}
    for number in numbers:
        body = batch[number].body
        try:
            if body is None:
                bad[number] = "The message has no body."
            else:
                parsed[number] = reader.parse(body, place="The message")
        except UsageError as error:
            bad[number] = str(error)
        except Exception as error:  # the content of one message must not stop the others
            bad[number] = f"The message cannot be read ({type(error).__name__})."
    order = list(parsed)
    table, misfits = reader.fitting(list(parsed.values()))
    bad |= {order[row]: reason for row, reason in misfits.items()}
    good = [number for row, number in enumerate(order) if row not in misfits]
    return Rows(good, table.select(list(reader.schema.names))), bad


def dead_letter(message: SourceMessage, reason: str, default_topic: str) -> Row:
    """Return the row of a message in the dead-letter topic."""
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


def with_followers(batch: Sequence[SourceMessage], failed: set[int]) -> set[int]:
    """Return the failed messages, and in ordered sources all messages after the first failed one."""
    stopped: set[str] = set()
    found: set[int] = set()
    for number, message in enumerate(batch):
        if number in failed or (message.position is not None and message.source in stopped):
            stopped.add(message.source)
            found.add(number)
    return found
