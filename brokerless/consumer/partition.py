"""Read one partition: entries become batches, and an error holds back only what is behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from arro3.core import Table

from brokerless.clock import Clock
from brokerless.columns import frames, records
from brokerless.errors import BrokerlessError, LogDamaged, StoreError, UnsupportedTable, UsageError
from brokerless.log.entries import Entry
from brokerless.log.log import DeltaLog, read_pool
from brokerless.log.tail import Tail
from brokerless.offsets import Offset
from brokerless.schema import PRODUCED_AT, Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pandas
    import polars
    import pyarrow

    from brokerless.log.entries import Add
    from brokerless.schema import Schema
    from brokerless.store import Store

    Commit = Callable[[Mapping[tuple[str, int], Offset]], None]

_READ_AHEAD: Final = 16


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        value: the columns' values in Python's types, with ``_produced_at``; times are aware, in UTC.
    """

    topic: str
    partition: int
    offset: Offset
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages of one commit (or of its end, after a seek into it).

    ``len(batch)`` is their number, and ``for message in batch`` gives them one by one (``Message``).

    Attributes:
        data: an arro3 table with the topic's columns and ``_produced_at``; ``pyarrow.table(batch.data)`` costs nothing.
        first_index: the first row's index in the commit; row i of ``data`` has the offset
            ``(version, first_index + i)``.
        whole: whether these are all messages of the commit from ``first_index`` on; False if an object that cannot be
            read comes next.
    """

    topic: str
    partition: int
    version: int
    first_index: int
    data: Table
    whole: bool = True
    _commit: Commit | None = field(default=None, repr=False, compare=False)

    @property
    def first(self) -> Offset:
        """The first message's offset."""
        return Offset(self.version, self.first_index)

    @property
    def next(self) -> Offset:
        """The offset to seek to in order to go on after this batch."""
        return Offset(self.version + 1) if self.whole else Offset(self.version, self.first_index + self.data.num_rows)

    def commit(self) -> None:
        """Commit for the consumer's group that all messages of the partition up to the end of this batch are done.

        Raises:
            MemberFenced, StoreUnavailable, UsageError: as ``Consumer.commit``.
        """
        if self._commit is None:
            raise UsageError("This batch is of no consumer.")
        self._commit({(self.topic, self.partition): self.next})

    def __len__(self) -> int:
        return int(self.data.num_rows)

    def __iter__(self) -> Iterator[Message]:
        for index, value in enumerate(self.rows(), start=self.first_index):
            yield Message(self.topic, self.partition, Offset(self.version, index), value)

    def rows(self) -> list[dict[str, Any]]:
        """Return the messages as dictionaries of Python values; times are aware, in UTC."""
        return records.rows_of(self.data)

    def to_arrow(self) -> pyarrow.Table:
        """Return the messages as a pyarrow table, without a copy.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        return frames.to_arrow(self.data)

    def to_polars(self) -> polars.DataFrame:
        """Return the messages as a polars data frame.

        Raises:
            ConfigError: polars is not installed.
        """
        return frames.to_polars(self.data)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the messages as a pandas data frame; times are aware, in UTC.

        Raises:
            ConfigError: pandas or pyarrow is not installed.
        """
        return frames.to_pandas(self.data)


@dataclass(slots=True, eq=False)
class PartitionReader:
    """One partition in a consumer: its position, and the error with which it stopped.

    Attributes:
        error: with what the last look at it ended.
        next_raise: from when on a poll that brings messages raises the error; None if no poll has met it yet.
        next_try: from when on it is looked at again.
        end: the offset before which it ends.
    """

    topic: str
    number: int
    tail: Tail
    skip: int
    columns: tuple[Column, ...]
    end: Offset | None = None
    error: BrokerlessError | None = None
    next_raise: float | None = None
    next_try: float = float("-inf")

    @property
    def at_end(self) -> bool:
        """Whether all messages before the end were read."""
        return self.end is not None and Offset(self.tail.version, self.skip) >= self.end

    def due_in_s(self, clock: Clock) -> float:
        """Return how long it is no use to look again; 0 if it is now."""
        return max(self.tail.due_in_s(), self.next_try - clock.monotonic())

    def next_entries(self, max_bytes: int) -> list[ReadEntry]:
        """Return the next entries with their new files, about so many bytes; an error behind them is in ``error``."""
        if self.next_raise is not None:
            max_bytes = 1  # what is behind the error would be fetched in vain
        found: list[ReadEntry] = []
        size = 0
        while size < max_bytes and not self.at_end:
            most = _READ_AHEAD if found else 1
            if self.end is not None:
                most = min(most, self.end.version + (self.end.index > 0) - self.tail.version)
            try:
                entries = self.tail.next_entries(most)
            except BrokerlessError as error:
                # Otherwise the next look meets it: but not if all that came before has no messages, or a poll would say
                # that nothing came.
                if not any(one.files for one in found):
                    self.stop(Offset(self.tail.version, self.skip), error)
                break
            for entry in entries:
                mark = entry.version, self.tail.mark()[1]
                files = self.tail.new_files(entry)
                last = self.end.index if self.end is not None and entry.version == self.end.version else None
                found.append(ReadEntry(self, entry, files, self.skip, mark, last))
                self.skip = 0
                if last is not None:  # the position is in the middle of this entry
                    self.tail.rewind(mark)
                    self.skip = last
                size += sum(add.size for add in files)
            # A young entry is most likely the last: asking for the next would only delay this one's messages. Without
            # messages (a claim, a rewrite) there is nothing to delay, and "nothing came" would be wrong.
            if not entries or (size and self.tail.is_fresh(entries[-1])):
                break
        return found

    def stop(self, offset: Offset, error: BrokerlessError) -> None:
        """Store an error that holds back what is at this offset and behind it."""
        if isinstance(error, StoreError | UnsupportedTable):
            text = f"Topic {self.topic!r}, partition {self.number}, offset {offset}: {error}"
            # Of the log or an object; other errors of the store may pass.
            if type(error) in {StoreError, LogDamaged}:
                text += (
                    f" What is before it was delivered, and other partitions go on. seek(Offset({offset.version + 1})) "
                    f"or --from {offset.version + 1}:0 goes on behind commit {offset.version}; it loses the rest of "
                    "that commit's messages, and no others."
                )
            error.args = (text,)
        self.error = error


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """An entry, its files that were not delivered before, the position before it, and the row before which it ends."""

    part: PartitionReader
    entry: Entry
    files: list[Add]
    skip: int
    mark: tuple[int, int]
    last: int | None = None

    def stop(self, rows: int, error: BrokerlessError) -> None:
        """Put the partition back to where its messages cannot be read: behind so many of this entry."""
        self.part.tail.rewind(self.mark)
        self.part.skip = max(rows, self.skip)
        self.part.stop(Offset(self.entry.version, rows), error)


def batches_of(store: Store, entries: Sequence[ReadEntry], commit: Commit | None = None) -> Iterator[Batch]:
    """Return the batches of entries, with their objects loaded; what cannot be read stops its partition."""
    files = [(entry.part, add.path) for entry in entries for add in entry.files]
    load = partial(_load, store)
    objects = read_pool().map(load, files) if len(files) > 1 else map(load, files)
    for read in entries:
        loaded = [next(objects) for _ in read.files]
        if not loaded or read.part.error:
            continue  # the latter is behind what cannot be read
        good: list[_Object] = []
        rows = 0
        for add, found in zip(read.files, loaded, strict=True):
            if read.last is not None and rows >= read.last:
                break
            if isinstance(found, BrokerlessError):
                read.stop(rows, found)
                break
            found.begin = rows
            good.append(found)
            rows += found.rows if add.rows is None else max(add.rows, found.rows)
        yield from _batches(read, good, commit)


def _batches(read: ReadEntry, objects: Sequence[_Object], commit: Commit | None) -> Iterator[Batch]:
    """Return the messages of an entry: one batch, but where messages were erased one for each run of indexes."""
    runs: list[tuple[int, list[Table]]] = []
    following = -1
    for first, table in (run for one in objects for run in one.runs()):
        if first != following:
            runs.append((first, []))
        runs[-1][1].append(table)
        following = first + table.num_rows
    where = read.part.topic, read.part.number, read.entry.version
    for number, (first, tables) in enumerate(runs, start=1):
        full = [table for table in tables if table.num_rows] or tables[:1]
        data = full[0] if len(full) == 1 else Table.from_batches([b for x in full for b in x.to_batches()])
        if read.last is not None:
            data = data.slice(0, min(max(read.last - first, 0), data.num_rows))
        skip = min(max(read.skip - first, 0), data.num_rows)
        whole = read.part.error is None and number == len(runs) and read.last is None
        yield Batch(*where, first + skip, data.slice(skip) if skip else data, whole, commit)


def _load(store: Store, file: tuple[PartitionReader, str]) -> _Object | BrokerlessError:
    part, name = file
    path = f"{part.tail.log.table}/{name}"
    try:
        table = records.load(store, path)
        numbers = list(table.column(records.ROW).to_pylist()) if records.ROW in table.column_names else None
        return _Object(records.with_columns(table, part.columns, path=f"{store.uri}/{path}"), numbers)
    except BrokerlessError as error:
        return error


@dataclass(slots=True)
class _Object:
    """The rows of an object.

    Attributes:
        numbers: the rows' numbers in the object as it was, where some were erased.
        begin: the index of its first row in the commit.
    """

    table: Table
    numbers: list[int] | None
    begin: int = 0

    @property
    def rows(self) -> int:
        """Return how many rows the object had, as far as its own rows tell."""
        return self.table.num_rows if self.numbers is None else max(self.numbers, default=-1) + 1

    def runs(self) -> Iterator[tuple[int, Table]]:
        """Return the rows in runs without a gap, each with the index of its first one in the commit."""
        if self.numbers is None:
            yield self.begin, self.table
            return
        begin = 0
        for row in range(1, len(self.numbers) + 1):
            if row == len(self.numbers) or self.numbers[row] != self.numbers[row - 1] + 1:
                yield self.begin + self.numbers[begin], self.table.slice(begin, row - begin)
                begin = row


def columns_of(schema: Schema, log: DeltaLog) -> tuple[Column, ...]:
    """Return the table's columns; one that another program created need not have ``_produced_at``."""
    stamped = f'"{PRODUCED_AT}"' in log.state.metadata.schema_string
    return (*schema.columns, Column(PRODUCED_AT, "timestamp")) if stamped else schema.columns
