"""Histories: what programs asked of topics and what they were told, event by event, for ``brokerless.verify.checker``.

The form is that of Jepsen: a process *invokes* an operation and learns that it is ``ok`` (done), that it ``fail``-ed
(not done, and never will be) or that its outcome is ``unknown``. An invocation without an end is unknown, too: its
process was killed. A process is one incarnation of a program: whoever starts again gets another name.

========  ==========================================================================================================
op        fields
========  ==========================================================================================================
send      ``call``, ``topic``, ``ids`` in the order of the rows, ``queued`` if calls of this process are done in turn;
          the end has ``acks`` (partition, version, first index, rows; version -1: not known, as of a duplicate),
          and ``ids`` only if it is not the end of all of them
poll      ``partition``, ``ids`` and ``offset`` of the first one, the others following it; ``next`` is the position
          after it. Without ids: nothing but the position moved. Batches of one call have the same ``call``
assign    ``partition`` and ``offset``: from here on this process reads there; with ``group``, as the only one of it
release   ``partition``, ``group``: it does not any more
commit    ``group``, ``partition``, ``offset``: the next one that the group has to read
========  ==========================================================================================================

Offsets are pairs of version and index. Polls have no invocation: one that never came back has shown nothing.

Each event is one line of JSON, written at once: a process that is killed loses at most the line that it was writing,
which is cut off when the file is written to again, and reported when it is read.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, get_args

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import BrokerlessError, CommitUnknown, ConfigError, DeliveryFailed, Fenced, TopicChanged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from arro3.core import Table

    from brokerless.columns.records import Messages
    from brokerless.consumer import Batch, Consumer
    from brokerless.offsets import Ack, Offset, Start
    from brokerless.producer.producer import Producer

Op = Literal["send", "poll", "assign", "release", "commit"]
Outcome = Literal["invoke", "ok", "fail", "unknown"]
Id = str | int | float | None
"""What tells a message from all others: a column's value, or a hash of the row."""

_OPS: Final = frozenset(get_args(Op))
_OUTCOMES: Final = frozenset(get_args(Outcome))
_TURN_S: Final = 1.0
_BLOCK_BYTES: Final = 2**20
_HASH_BYTES: Final = 12  # 2**96: among a thousand million rows, one chance in 10**11 that two are taken for one


class Event(NamedTuple):
    """One event; the module says which operation has which fields.

    A tuple, not a dataclass: a history has millions, and tuples are made in a third of the time.
    """

    at_us: int
    process: str
    op: Op
    type: Outcome
    call: int = 0
    topic: str = ""
    partition: int | None = None
    ids: Sequence[Id] = ()
    acks: Sequence[Sequence[int]] = ()
    offset: Sequence[int] | None = None
    next: Sequence[int] | None = None
    group: str | None = None
    producer: str | None = None
    queued: bool = False
    error: str = ""

    def to_json(self) -> str:
        """One line of JSON, without what has its default."""
        fields = {name: value for name, value in self._asdict().items() if value != self._field_defaults.get(name, "")}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str | bytes) -> Event:
        """Inverse of ``to_json``.

        Raises:
            ValueError: it is no event.
        """
        return cls._of(json.loads(line))

    @classmethod
    def _of(cls, fields: Any) -> Event:
        try:
            event = cls(**fields)
            if event.op not in _OPS or event.type not in _OUTCOMES:
                raise ValueError(f"unknown op {event.op!r} or type {event.type!r}")
            _check_shape(event)
        except (TypeError, AttributeError) as error:
            raise ValueError(str(error)) from None
        return event


def _check_shape(event: Event) -> None:
    frozenset(event.ids)  # what cannot be hashed is no id
    numbers = [event.at_us, event.call]
    if event.partition is not None:
        numbers.append(event.partition)
    for pair in (event.offset, event.next):
        if pair is not None:
            version, index = pair
            numbers += (version, index)
    for ack in event.acks:
        partition, version, index, rows = ack
        numbers += (partition, version, index, rows)
    if {*map(type, numbers)} != {int} or type(event.topic) is not str or type(event.process) is not str:
        raise ValueError("a number, an offset, a topic or a process is of the wrong type")
    if event.op == "poll" and event.ids and event.offset is None:
        raise ValueError("messages without an offset")


@contextmanager
def garbage_left() -> Iterator[None]:
    """No garbage collection: it would go through millions of events again and again, none of which is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was read.

    Attributes:
        events: of all files, by time.
        torn: the files whose last line was cut off, which was left out.
    """

    events: Sequence[Event]
    torn: tuple[str, ...]


def read_history(*paths: Path | str) -> Recorded:
    """The events of one or several files; those of several are put in order by their clocks.

    Raises:
        ConfigError: a file that cannot be read, or a line (not the last one) that is no event.
    """
    files: list[list[Event]] = []
    torn: list[str] = []
    for path in map(Path, paths):
        events, whole = _read_file(path)
        files.append(events)
        if not whole:
            torn.append(str(path))
    if len(files) == 1:
        return Recorded(files[0], tuple(torn))
    return Recorded(list(merge(*files, key=lambda event: event.at_us)), tuple(torn))


def _read_file(path: Path) -> tuple[list[Event], bool]:
    events: list[Event] = []
    try:
        with path.open("rb") as file, garbage_left():
            while lines := file.readlines(_BLOCK_BYTES):
                # Even if the beginning of a line can be parsed: "12" may have been meant to be "123".
                torn = not lines[-1].endswith(b"\n")
                events += _parse(lines[:-1] if torn else lines, path, before=len(events))
                if torn:
                    return events, False
    except OSError as error:
        raise ConfigError(f"The history {path} cannot be read: {error.strerror or error}.") from None
    return events, True


def _parse(lines: Sequence[bytes], path: Path, *, before: int) -> list[Event]:
    try:
        # As one document: half the time of a document a line.
        found = json.loads(b"[" + b",".join(lines) + b"]")
        if len(found) == len(lines):
            return [Event._of(fields) for fields in found]
    except ValueError:
        pass  # one by one, to find out which
    events: list[Event] = []
    for number, line in enumerate(lines, start=before + 1):
        try:
            events.append(Event.from_json(line))
        except ValueError as error:
            raise ConfigError(
                f"{path}, line {number} is no event of a history ({error}). Give a file that "
                "brokerless.verify.History wrote."
            ) from None
    return events


class History:
    """Records events, from any number of threads. One process writes to a file at a time.

    Args:
        path: the file to append to; a torn last line is cut off first. Without it, events are kept in memory.
        clock: time, and randomness for the names of processes.

    Raises:
        ConfigError: the file cannot be opened.
    """

    def __init__(self, path: Path | str | None = None, *, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._calls = itertools.count(1)
        self._last_us = 0
        self._events: list[Event] = []
        self._file = None
        if path is not None:
            try:
                # Unbuffered: what was given to the kernel survives the process.
                self._file = Path(path).open("ab+", buffering=0)  # noqa: SIM115  # open for as long as this lives
                _cut_torn_line(self._file)
            except OSError as error:
                raise ConfigError(f"The history {path} cannot be written: {error.strerror or error}.") from None

    @property
    def events(self) -> Sequence[Event]:
        """What was recorded so far, if it is kept in memory."""
        with self._lock:
            return tuple(self._events)

    def process(self, name: str) -> str:
        """A name that no other incarnation has."""
        return f"{name}-{self._clock.uuid()[:8]}"

    def next_call(self) -> int:
        """A number for a call, which its end repeats."""
        return next(self._calls)

    def record(self, process: str, op: Op, outcome: Outcome, **fields: Any) -> None:
        """Adds one event: in the file, or in memory, when this returns.

        Raises:
            OSError: the file could not be written.
        """
        with self._lock:
            # Files are merged by time, so a file must be in its order even if its clock is set back.
            self._last_us = max(self._last_us, self._clock.time_us())
            event = Event(self._last_us, process, op, outcome, **fields)
            if self._file is None:
                self._events.append(event)
                return
            line = memoryview(f"{event.to_json()}\n".encode())
            while line:
                line = line[self._file.write(line) :]

    def assign(
        self, process: str, *, topic: str, partition: int, offset: Offset | None = None, group: str | None = None
    ) -> None:
        """Records that the process reads this partition from now on, beginning at the offset."""
        self.record(
            process, "assign", "ok", topic=topic, partition=partition, offset=offset and _pair(offset), group=group
        )  # fmt: skip

    def release(self, process: str, *, topic: str, partition: int, group: str) -> None:
        """Records that the process gives the partition up."""
        self.record(process, "release", "ok", topic=topic, partition=partition, group=group)

    @contextmanager
    def commit(self, process: str, *, group: str, topic: str, partition: int, offset: Offset) -> Iterator[None]:
        """Records a commit of a group's (or a pipeline's) position, which the body of the ``with`` makes.

        An error of this kit means that nothing was committed, but for ``CommitUnknown``; any other may mean anything.
        """
        call = self.next_call()
        where = {"call": call, "topic": topic, "partition": partition, "group": group, "offset": _pair(offset)}
        self.record(process, "commit", "invoke", **where)
        try:
            yield
        except BaseException as error:
            failed = isinstance(error, BrokerlessError) and not isinstance(error, CommitUnknown)
            self.record(process, "commit", "fail" if failed else "unknown", **where, error=_text(error))
            raise
        self.record(process, "commit", "ok", **where)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cut_torn_line(file: Any) -> None:
    end = file.seek(0, 2)
    position, block = end, b""
    while position and b"\n" not in block:
        position = file.seek(max(0, position - 65536))
        block = file.read(min(65536, end - position))
    whole = position + block.rfind(b"\n") + 1
    if whole < end:
        file.truncate(whole)
    file.seek(0, 2)


class RecordingProducer:
    """A producer that records what it sends and what becomes of it. Otherwise as the one inside.

    Args:
        producer: the one inside; used through this one only.
        history: where to.
        id_column: the column whose value no two messages share. Without it a message is known by a hash of its row,
            ``_produced_at`` included, so two equal rows of one call look like one message.
        name: of the process in the history; a suffix tells incarnations apart.
        producer_id: that of the producer inside, if it has one: shows whether a fenced producer wrote on.
        clock: time.

    Raises:
        ConfigError: the topic has no such column.
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
                f"Topic {producer.topic!r} has no column {id_column!r}; it has: {', '.join(producer.schema.names)}."
            )
        self.wrapped = producer
        self.process = history.process(name)
        self._history = history
        self._id_column = id_column
        self._producer_id = producer_id
        self._clock = clock
        self._lock = threading.Lock()

    def send(self, messages: Messages, *, sequence: int | None = None) -> tuple[Ack, ...]:
        """As ``Producer.send``."""
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
        """As ``Producer.enqueue``. Calls from several threads take turns, so that the history has their order."""
        table, ids = self._identify(messages)
        call = self._history.next_call()
        with self._lock:
            self._invoke(call, ids, queued=True)
            try:
                future = self.wrapped.enqueue(table, max_block_s=max_block_s)
            except BaseException as error:
                self._failed(call, ids, error)
                raise
        future.add_done_callback(lambda done: self._settled(call, ids, done))
        return future

    def flush(self, timeout_s: float | None = None) -> None:
        """As ``Producer.flush``; what was settled is in the history then."""
        self.wrapped.flush(timeout_s)

    def close(self) -> None:
        """As ``Producer.close``."""
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
        # Once and for all: the ids are then those of the very rows that are sent, and iterating them twice is safe.
        table = records.to_table(
            messages, producer.schema, topic=producer.topic, produced_at_us=self._clock.time_us()
        )  # fmt: skip
        ids = ids_of(table, self._id_column)
        if None in ids:
            raise ConfigError(
                f"Row {ids.index(None)} has no value in the column {self._id_column!r}, by which messages are known."
            )
        return table, ids

    def _invoke(self, call: int, ids: Sequence[Id], *, queued: bool) -> None:
        self._record("invoke", call, ids=ids, queued=queued, producer=self._producer_id)

    def _acked(self, call: int, acks: Sequence[Ack], ids: Sequence[Id] = ()) -> None:
        # A row's hash is another when it is sent again, so nobody can tell whether what is in the log is this one.
        unclear = self._id_column is None and any(ack.duplicate for ack in acks)
        outcome: Outcome = "unknown" if unclear else "ok"
        self._record(outcome, call, ids=ids, acks=[_span(ack) for ack in acks], producer=self._producer_id)

    def _settled(self, call: int, ids: Sequence[Id], done: Future[tuple[Ack, ...]]) -> None:
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
            self._record(outcome, call, ids=[ids[row] for row in error.unacknowledged], error=_text(error))
            return
        # A call over several partitions that was fenced in one may have an open outcome in another.
        elsewhere = self.wrapped.partitions > 1 and isinstance(error, Fenced | TopicChanged)
        failed = isinstance(error, BrokerlessError) and not isinstance(error, CommitUnknown) and not elsewhere
        self._record("fail" if failed else "unknown", call, error=_text(error))

    def _record(self, outcome: Outcome, call: int, **fields: Any) -> None:
        self._history.record(self.process, "send", outcome, call=call, topic=self.wrapped.topic, **fields)


class RecordingConsumer:
    """A consumer that records what it reads, and how far it got. Otherwise as the one inside.

    Args:
        consumer: the one inside; used through this one only.
        history: where to.
        id_column: as for ``RecordingProducer``.
        name: of the process in the history; a suffix tells incarnations apart.
        group: if this consumer is meant to be the only one of a group that reads its partitions.
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
        """As ``Consumer.poll``."""
        call = self._history.next_call()
        try:
            batches = self.wrapped.poll(max_wait_s)
        except Exception as error:
            self._history.record(self.process, "poll", "fail", call=call, error=_text(error))
            raise
        reached = dict(self._next)
        for batch in batches:
            self._record(
                call,
                (batch.topic, batch.partition),
                batch.next,
                ids=ids_of(batch.data, self._id_column),
                offset=_pair(batch.first),
            )
            reached[batch.topic, batch.partition] = batch.next
        # Commits without messages move the position, too; it tells how far a reader has looked.
        self._next = self.wrapped.position()
        for where, offset in self._next.items():
            if offset != reached[where]:
                self._record(call, where, offset)
        return batches

    def __iter__(self) -> Iterator[Batch]:
        """As ``Consumer.__iter__``. What one poll brought is recorded before its first batch is given out."""
        while not self._closed.is_set():
            yield from self.poll(_TURN_S)

    def seek(self, start: Start, *, topic: str | None = None, partition: int | None = None) -> None:
        """As ``Consumer.seek``; reading what was read before is no fault then."""
        self.wrapped.seek(start, topic=topic, partition=partition)
        self._assign(topic, partition)

    def position(self) -> dict[tuple[str, int], Offset]:
        """As ``Consumer.position``."""
        return self.wrapped.position()

    def close(self) -> None:
        """As ``Consumer.close``; gives the partitions up, if they are a group's."""
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
            self.process, "poll", "ok", call=call, topic=topic, partition=partition, next=_pair(following), **fields
        )


def ids_of(table: Table, id_column: str | None) -> list[Id]:
    """What the rows are known by: the column's values (those that JSON has no type for as text), or hashes."""
    from brokerless.columns import records

    if id_column is None:
        # By name: a reader may get the columns in another order than the writer gave them.
        texts = records.rows_as_json(table.select(sorted(table.column_names)))
        return [hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).hexdigest() for text in texts]
    values = table.column(id_column).to_pylist()
    return [v if v is None or isinstance(v, str | int | float) else records.json_value(v) for v in values]


def _pair(offset: Offset) -> tuple[int, int]:
    return offset.version, offset.index


def _span(ack: Ack) -> tuple[int, int, int, int]:
    # An earlier attempt's commit: its rows may have been cut in another way, so its offsets prove nothing.
    version = -1 if ack.duplicate else ack.version
    return ack.partition, version, ack.first_index, ack.rows


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
