"""Record what programs ask of topics and what they receive, event by event, in memory or in a file.

The form is that of Jepsen: a process *invokes* an operation, which ends as ``ok`` (done), ``fail`` (not done, and never
will be) or ``unknown``. An invocation without an end is unknown too. A process is one incarnation of a program.
``docs/verify.md`` lists the operations and their fields. Offsets are pairs of version and index.

Each event is one line of JSON, written at once: a killed process loses at most the line that it was writing. That line
is cut off when the file is written again, and reported when it is read.
"""

from __future__ import annotations

import gc
import itertools
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, get_args

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import BrokerlessError, CommitUnknown, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from brokerless.offsets import Offset

Op = Literal["send", "poll", "assign", "release", "commit"]
Outcome = Literal["invoke", "ok", "fail", "unknown"]
Id = str | int | float | None
"""The identity of a message: a column's value, or a hash of the row."""

_OPS: Final = frozenset(get_args(Op))
_OUTCOMES: Final = frozenset(get_args(Outcome))
_BLOCK_BYTES: Final = 2**20


class Event(NamedTuple):
    """One event. ``docs/verify.md`` says which operation has which fields.

    A tuple, not a dataclass: a history has millions of events, and tuples are made in a third of the time.
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
        """Return one line of JSON, without fields that have their default."""
        fields = {name: value for name, value in self._asdict().items() if value != self._field_defaults.get(name, "")}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str | bytes) -> Event:
        """Parse a line of JSON.

        Raises:
            ValueError: the line is not an event.
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
    frozenset(event.ids)  # an id must be hashable
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
def without_gc() -> Iterator[None]:
    """Switch Python's garbage collection off, which would traverse millions of live events again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Recorded:
    """The events of files.

    Attributes:
        events: the events of all files, by time.
        torn: the files whose last line was cut off; that line is not in the events.
    """

    events: Sequence[Event]
    torn: tuple[str, ...]


def read_history(*paths: Path | str) -> Recorded:
    """Read the events of files; those of several files are ordered by their clocks.

    Raises:
        ConfigError: a file cannot be read, or a line (not the last one) is not an event.
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
        with path.open("rb") as file, without_gc():
            while lines := file.readlines(_BLOCK_BYTES):
                # Even if the beginning of a line can be parsed: "12" may be the beginning of "123".
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
        pass  # line by line, to find the wrong one
    events: list[Event] = []
    for number, line in enumerate(lines, start=before + 1):
        try:
            events.append(Event.from_json(line))
        except ValueError as error:
            raise ConfigError(
                f"{path}, line {number} is not an event of a history ({error}). Use a file that "
                "brokerless.testing.history.History wrote."
            ) from None
    return events


class History:
    """Records events, from any number of threads. One process writes to a file at a time.

    Args:
        path: the file to append to; an incomplete last line is cut off first. Without a path, events stay in memory.
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
                # Unbuffered: what the kernel has received survives the process.
                self._file = Path(path).open("ab+", buffering=0)  # noqa: SIM115  # open for as long as this lives
                _cut_torn_line(self._file)
            except OSError as error:
                raise ConfigError(f"The history {path} cannot be written: {error.strerror or error}.") from None

    @property
    def events(self) -> Sequence[Event]:
        """The events so far, if they are in memory."""
        with self._lock:
            return tuple(self._events)

    def process(self, name: str) -> str:
        """Return a name that no other incarnation has."""
        return f"{name}-{self._clock.uuid()[:8]}"

    def next_call(self) -> int:
        """Return the number of a new call, which the event of its end repeats."""
        return next(self._calls)

    def record(self, process: str, op: Op, outcome: Outcome, **fields: Any) -> None:
        """Add one event, which is in the file or in memory when this returns.

        Raises:
            OSError: the file could not be written.
        """
        with self._lock:
            # Files are merged by time, so a file must be in order even if the clock is set back.
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
        """Record that the process reads this partition from now on, from the offset."""
        self.record(
            process, "assign", "ok", topic=topic, partition=partition, offset=offset and pair_of(offset), group=group
        )  # fmt: skip

    def release(self, process: str, *, topic: str, partition: int, group: str) -> None:
        """Record that the process stops reading the partition."""
        self.record(process, "release", "ok", topic=topic, partition=partition, group=group)

    @contextmanager
    def commit(self, process: str, *, group: str, topic: str, partition: int, offset: Offset) -> Iterator[None]:
        """Record a commit of a group's (or a pipeline's) position, which the body of the ``with`` makes.

        An error of the library means that nothing was committed, except ``CommitUnknown``; after any other error the
        outcome is unknown.
        """
        call = self.next_call()
        where = {"call": call, "topic": topic, "partition": partition, "group": group, "offset": pair_of(offset)}
        self.record(process, "commit", "invoke", **where)
        try:
            yield
        except BaseException as error:
            failed = isinstance(error, BrokerlessError) and not isinstance(error, CommitUnknown)
            self.record(process, "commit", "fail" if failed else "unknown", **where, error=error_text(error))
            raise
        self.record(process, "commit", "ok", **where)

    def close(self) -> None:
        """Close the file."""
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


def pair_of(offset: Offset) -> tuple[int, int]:
    """Return an offset as a pair of version and index."""
    return offset.version, offset.index


def error_text(error: BaseException) -> str:
    """Return an error as it stands in a history."""
    return f"{type(error).__name__}: {error}"[:300]
