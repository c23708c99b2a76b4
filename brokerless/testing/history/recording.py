"""Producers and consumers that record what they do in a history."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any, Final, Self

from brokerless.clock import SYSTEM, Clock
from brokerless.deadlines import patiently
from brokerless.errors import BrokerlessError, CommitUnknown, ConfigError, DeliveryFailed, Fenced, TopicChanged
from brokerless.testing.history.events import error_text, pair_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from arro3.core import Table

    from brokerless.columns.records import Messages
    from brokerless.consumer import Batch, Consumer
    from brokerless.offsets import Ack, Offset, Start
    from brokerless.producer.producer import Producer
    from brokerless.testing.history.events import History, Id, Outcome

_TURN_S: Final = 1.0
_HASH_BYTES: Final = 12  # 2**96: among a thousand million rows, a chance of 1 in 10**11 that two have the same hash


class RecordingProducer:
    """A producer that records its messages and their outcome, and otherwise behaves as the wrapped producer.

    Args:
        producer: the wrapped producer; use it only through this one.
        history: receives the events.
        id_column: a column with a unique value in each message. Without it a message is identified by a hash of its row
            with ``_produced_at``, so two equal rows of one call look like one message.
        name: the name of the process in the history; a suffix distinguishes incarnations.
        producer_id: the id of the wrapped producer, if it has one; shows whether a fenced producer continued to write.
        clock: time.

    Raises:
        ConfigError: the topic does not have the column.
    """

    def __init__(
        self,
        producer: Producer,
        history: History,
        *,
        id_column: str | None = None,
        name: str = "producer",
        producer_id: str | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        if id_column is not None and id_column not in producer.schema.names:
            raise ConfigError(
                f"Topic {producer.topic!r} has no column {id_column!r}. It has: {', '.join(producer.schema.names)}."
            )
        self.wrapped = producer
        self.process = history.process(name)
        self._history = history
        self._id_column = id_column
        self._producer_id = producer_id
        self._clock = clock
        self._lock = threading.Lock()

    def send(self, messages: Messages, *, sequence: int | None = None) -> tuple[Ack, ...]:
        """Send messages, as ``Producer.send``."""
        table, ids = self._identify(messages)
        call = self._history.next_call()
        self._invoke(call, ids, queued=False)
        try:
            acks = self.wrapped.send(table, sequence=sequence)
        except BaseException as error:
            self._failed(call, ids, error)
            raise
        self._acked(call, acks)
        return acks

    def enqueue(self, messages: Messages, *, max_block_s: float | None = None) -> Future[tuple[Ack, ...]]:
        """Enqueue messages, as ``Producer.enqueue``, one call at a time, so that the history has their order."""
        table, ids = self._identify(messages)
        call = self._history.next_call()
        with self._lock:
            self._invoke(call, ids, queued=True)
            try:
                future = self.wrapped.enqueue(table, max_block_s=max_block_s)
            except BaseException as error:
                self._failed(call, ids, error)
                raise
        future.add_done_callback(lambda done: self._record_outcome(call, ids, done))
        return future

    def flush(self, timeout_s: float | None = None) -> None:
        """Flush, as ``Producer.flush``; the outcomes are in the history after it."""
        self.wrapped.flush(timeout_s)

    def close(self) -> None:
        """Close, as ``Producer.close``."""
        self.wrapped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _identify(self, messages: Messages) -> tuple[Table, list[Id]]:
        from brokerless.columns import records

        producer = self.wrapped
        # Once: the ids are then those of the rows that are sent, and the messages may be an iterator.
        table = records.to_table(
            messages, producer.schema, topic=producer.topic, produced_at_us=self._clock.time_us()
        )  # fmt: skip
        ids = ids_of(table, self._id_column)
        if None in ids:
            raise ConfigError(
                f"Row {ids.index(None)} must have a value in the column {self._id_column!r}, which identifies messages."
            )
        return table, ids

    def _invoke(self, call: int, ids: Sequence[Id], *, queued: bool) -> None:
        self._record("invoke", call, ids=ids, queued=queued, producer=self._producer_id)

    def _acked(self, call: int, acks: Sequence[Ack], ids: Sequence[Id] = ()) -> None:
        # A row that is sent again has another hash, so it is unknown whether the row in the log is this one.
        unclear = self._id_column is None and any(ack.duplicate for ack in acks)
        outcome: Outcome = "unknown" if unclear else "ok"
        self._record(outcome, call, ids=ids, acks=[_span(ack) for ack in acks], producer=self._producer_id)

    def _record_outcome(self, call: int, ids: Sequence[Id], done: Future[tuple[Ack, ...]]) -> None:
        error = done.exception()
        if error is None:
            self._acked(call, done.result())
        else:
            self._failed(call, ids, error)

    def _failed(self, call: int, ids: Sequence[Id], error: BaseException) -> None:
        if isinstance(error, DeliveryFailed):
            rest = set(error.unacknowledged)
            done = [one for row, one in enumerate(ids) if row not in rest]
            if done:
                self._acked(call, error.acknowledged, done)
            outcome: Outcome = "unknown" if error.unknown else "fail"
            self._record(outcome, call, ids=[ids[row] for row in error.unacknowledged], error=error_text(error))
            return
        # A call to several partitions that was fenced in one may have an unknown outcome in another.
        elsewhere = self.wrapped.partitions > 1 and isinstance(error, Fenced | TopicChanged)
        failed = isinstance(error, BrokerlessError) and not isinstance(error, CommitUnknown) and not elsewhere
        self._record("fail" if failed else "unknown", call, error=error_text(error))

    def _record(self, outcome: Outcome, call: int, **fields: Any) -> None:
        self._history.record(self.process, "send", outcome, call=call, topic=self.wrapped.topic, **fields)


class RecordingConsumer:
    """A consumer that records its batches and positions, and otherwise behaves as the wrapped consumer.

    Args:
        consumer: the wrapped consumer; use it only through this one.
        history: receives the events.
        id_column: as for ``RecordingProducer``.
        name: the name of the process in the history; a suffix distinguishes incarnations.
        group: the group, if this consumer must be the only one of it that reads its partitions.
    """

    def __init__(
        self,
        consumer: Consumer,
        history: History,
        *,
        id_column: str | None = None,
        name: str = "consumer",
        group: str | None = None,
    ) -> None:
        self.wrapped = consumer
        self.process = history.process(name)
        self._history = history
        self._id_column = id_column
        self._group = group
        self._closed = threading.Event()
        self._next: Mapping[tuple[str, int], Offset] = {}
        self._assign()

    def poll(self, max_wait_s: float = 1.0) -> list[Batch]:
        """Poll, as ``Consumer.poll``."""
        call = self._history.next_call()
        try:
            with patiently():
                batches = self.wrapped.poll(max_wait_s)
        except Exception as error:
            self._history.record(self.process, "poll", "fail", call=call, error=error_text(error))
            raise
        reached = dict(self._next)
        for batch in batches:
            self._record(
                call,
                (batch.topic, batch.partition),
                batch.next,
                ids=ids_of(batch.data, self._id_column),
                offset=pair_of(batch.first),
            )
            reached[batch.topic, batch.partition] = batch.next
        # Commits without messages change the position too; it shows how far a reader has read.
        self._next = self.wrapped.position()
        for where, offset in self._next.items():
            if offset != reached[where]:
                self._record(call, where, offset)
        return batches

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches, as ``Consumer.__iter__``. All batches of a poll are recorded before the first is returned."""
        while not self._closed.is_set():
            yield from self.poll(_TURN_S)

    def seek(self, start: Start, *, topic: str | None = None, partition: int | None = None) -> None:
        """Seek, as ``Consumer.seek``; to read messages again after it is not a fault."""
        self.wrapped.seek(start, topic=topic, partition=partition)
        self._assign(topic, partition)

    def position(self) -> dict[tuple[str, int], Offset]:
        """Return the position, as ``Consumer.position``."""
        return self.wrapped.position()

    def close(self) -> None:
        """Close, as ``Consumer.close``, and release the partitions of a group."""
        if self._group is not None and not self._closed.is_set():
            for topic, partition in self._next:
                self._history.release(self.process, topic=topic, partition=partition, group=self._group)
        self._closed.set()
        self.wrapped.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _assign(self, topic: str | None = None, partition: int | None = None) -> None:
        self._next = self.wrapped.position()
        for (name, number), offset in self._next.items():
            if topic in (None, name) and partition in (None, number):
                self._history.assign(self.process, topic=name, partition=number, offset=offset, group=self._group)

    def _record(self, call: int, where: tuple[str, int], following: Offset, **fields: Any) -> None:
        topic, partition = where
        self._history.record(
            self.process, "poll", "ok", call=call, topic=topic, partition=partition, next=pair_of(following), **fields
        )


def ids_of(table: Table, id_column: str | None) -> list[Id]:
    """Return the identities of rows: the column's values (as text where JSON has no type for them), or hashes."""
    from brokerless.columns import records

    if id_column is None:
        # By name: a reader may receive the columns in another order than the writer's.
        texts = records.rows_as_json(table.select(sorted(table.column_names)))
        return [hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).hexdigest() for text in texts]
    values = table.column(id_column).to_pylist()
    return [v if v is None or isinstance(v, str | int | float) else records.json_value(v) for v in values]


def _span(ack: Ack) -> tuple[int, int, int, int]:
    # The commit of an earlier attempt: its rows may have been divided otherwise, so its offsets prove nothing.
    version = -1 if ack.duplicate else ack.version
    return ack.partition, version, ack.first_index, ack.rows
