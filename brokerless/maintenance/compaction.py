"""Merge the small objects of a table into larger ones, and keep the latest message of each key where a topic says so.

Readers of the log never notice. An entry goes on naming the objects that it named, which stay as long as the entry; so
an offset keeps its meaning. The entry that merges has no new messages, and readers pass over it. Other engines read the
table, and with it fewer files.

A merged object has the range of its entries in its name, so that nothing else has to remember how far merging has come.
Only what is older than ``SETTLED_S`` is merged: readers that keep up never wait behind this step's requests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from arro3.core import Table

from brokerless.columns import records
from brokerless.columns.select import rows_where
from brokerless.errors import ConfigError
from brokerless.log.commit import Uploads
from brokerless.log.entries import COMPACT_BY_KEY, PARTITIONS_KEY, Add
from brokerless.log.log import read_pool
from brokerless.log.rewrite import Rewrite
from brokerless.maintenance.step import LogEnd, TableStep, Work, incomplete
from brokerless.schema import PRODUCED_AT, Column, Schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from brokerless.log.checkpoint import TableState
    from brokerless.log.entries import Entry
    from brokerless.log.log import DeltaLog

SETTLED_S: Final = 600.0
TARGET_BYTES: Final = 32 * 2**20
"""The size of a merged object: a few of them fit into the memory of a small function."""

_FAN_IN: Final = 8  # merged objects that are still small are merged again when there are so many
_DELETED_FOR_S: Final = 86400.0  # how long a deletion stays, so that every reader of the latest messages sees it
_RANGE: Final = re.compile(r"part-merged-(\d+)-(\d+)-[^/]*\Z", re.ASCII)


def compacted_range(path: str) -> tuple[int, int]:
    """Return the first and last entry that a merged object has the messages of; ``(-1, -1)`` for other objects."""
    found = _RANGE.fullmatch(path)
    return (int(found[1]), int(found[2])) if found else (-1, -1)


@dataclass(frozen=True, slots=True)
class Piece:
    """An object to merge, with the range of its entries."""

    first: int
    last: int
    add: Add

    @property
    def is_merged(self) -> bool:
        """Whether it was merged before."""
        return compacted_range(self.add.path)[0] >= 0


class Compaction(TableStep):
    """The step that merges small objects."""

    def compact(self, log: DeltaLog, end: LogEnd, work: Work) -> None:
        """Merge what is small and settled."""
        if not work.rewrites:
            return
        properties = self._properties(log)
        least = self._limits.merge_every
        if PARTITIONS_KEY not in properties or end.last - log.state.metadata.first_version < least:
            return
        state = self._load(log, end, with_files=True)
        self._rules(log, state.metadata)
        if (key := properties.get(COMPACT_BY_KEY)) is not None:
            self._keep_latest(log, state, key, work)
            return
        small = [add for add in state.files.values() if add.size <= TARGET_BYTES // 2]
        merged = sum(compacted_range(add.path)[0] >= 0 for add in small)
        if len(small) - merged < least and merged < _FAN_IN and sum(add.size for add in small) < TARGET_BYTES:
            return  # without the requests that tell the order of the objects
        last = max((compacted_range(path)[1] for path in state.files), default=-1)
        pieces = self._pieces(log, state, max(log.earliest(), last + 1), work)
        for group in self._in_time(groups(pieces, least), work):
            uploads = Uploads(log, clock=self._clock)
            tables = [table for table in self._tables(log, state, group) if table.num_rows]
            batches = [batch for table in tables for batch in table.to_batches()]
            adds = (self._upload(uploads, Table.from_batches(batches), group),) if batches else ()
            change = Rewrite("OPTIMIZE", state.version, tuple(piece.add.path for piece in group), adds, keeps_rows=True)
            uploads.commit(partial(log.rewrite, change))
            work.report.objects_merged += len(group)

    def _pieces(self, log: DeltaLog, state: TableState, begin: int, work: Work) -> list[Piece]:
        """Return the live objects that may be merged, in the order of their messages.

        Those of entries before ``begin``, which may be gone, come first: in the order of their uploads.
        """
        settled_ms = (work.time.now_s - (SETTLED_S if self._limits.settle_s > 0 else 0.0)) * 1000
        entries = entries_of(log, state, begin)
        found = [Piece(*_range(add, begin - 1), add) for add in files_without_entry(state, entries, begin)]
        merged = sorted((piece for piece in _merged(state) if piece.last >= begin), key=lambda piece: piece.last)
        for entry in entries:
            # By the time of the upload: that of the entry is never before the one of any entry before it.
            adds = [add for add in entry.adds if add.path in state.files and compacted_range(add.path)[0] < 0]
            if any(add.modified_ms > settled_ms for add in adds):
                break
            found += [Piece(entry.version, entry.version, add) for add in adds]
            while merged and merged[0].last <= entry.version:
                found.append(merged.pop(0))
        return found

    def _tables(self, log: DeltaLog, state: TableState, group: Sequence[Piece]) -> Iterator[Table]:
        schema = Schema.from_delta(state.metadata.schema_string)  # as it was when these objects were live
        columns = (*schema.columns, Column(PRODUCED_AT, "timestamp"))

        def load(piece: Piece) -> Table:
            path = f"{log.table}/{piece.add.path}"
            return records.with_columns(records.load(self._store, path), columns, path=path)

        return read_pool().map(load, group)

    def _upload(self, uploads: Uploads, data: Table, group: Sequence[Piece]) -> Add:
        encoded = records.encode(data)
        first, last = min(piece.first for piece in group), max(piece.last for piece in group)
        # An object that is merged is there before its entry.
        name = uploads.put(encoded, f"merged-{first}-{last}-{self._clock.uuid()}")
        return Add(name, len(encoded), data.num_rows, max(piece.add.modified_ms for piece in group))

    def _keep_latest(self, log: DeltaLog, state: TableState, key: str, work: Work) -> None:
        """Merge all of it, once what is new is half as large as what was merged before, and keep one message a key.

        The newest objects are read first, so one set of keys is all that must be remembered; and what stays is in
        memory, compressed, until its entry is there.
        """
        if key not in Schema.from_delta(log.state.metadata.schema_string).names:
            raise ConfigError(f"{log.uri} is compacted by {key!r}, which is no column; change it by 'topics alter'.")
        new = [add for add in state.files.values() if compacted_range(add.path)[0] < 0]
        size = sum(add.size for add in state.files.values())
        if len(new) < self._limits.merge_every or sum(add.size for add in new) < size / 3:
            return
        pieces = self._pieces(log, state, log.earliest(), work)
        seen: set[Any] = set()
        adds: list[Add] = []
        uploads = Uploads(log, clock=self._clock)
        oldest = datetime.fromtimestamp(work.time.now_s - _DELETED_FOR_S, UTC)
        for group in reversed(list(by_size(pieces))):
            tables: list[Table] = []
            for table in reversed(list(self._tables(log, state, group))):
                if table.num_rows:
                    tables.append(latest(table, key, seen, drop_deleted_before=oldest))
            batches = [batch for table in reversed(tables) for batch in table.to_batches()]
            if batches and (data := Table.from_batches(batches)).num_rows:
                adds.append(self._upload(uploads, data, group))
        removes = tuple(piece.add.path for piece in pieces)
        uploads.commit(partial(log.rewrite, Rewrite("OPTIMIZE", state.version, removes, tuple(reversed(adds)))))
        work.report.objects_merged += len(pieces)


def entries_of(log: DeltaLog, state: TableState, begin: int) -> list[Entry]:
    """Return the entries from ``begin`` up to the one of the state.

    Raises:
        LogIncomplete: an entry is missing.
    """
    found = list(takewhile(lambda entry: entry.version <= state.version, log.read_from(begin)))
    if begin + len(found) <= state.version:
        raise incomplete(log, begin + len(found))
    return found


def files_without_entry(state: TableState, entries: Sequence[Entry], begin: int) -> list[Add]:
    """Return the live files all of whose messages are of entries before ``begin``, in the order of their uploads.

    Args:
        state: of the table, with its files.
        entries: those from ``begin`` on (``entries_of``).
        begin: the first entry.
    """
    named = {add.path for entry in entries for add in entry.adds}
    found: list[Add] = []
    for add in state.files.values():
        last = compacted_range(add.path)[1]
        if last < begin if last >= 0 else add.path not in named:
            found.append(add)
    return sorted(found, key=lambda add: add.modified_ms)


def _merged(state: TableState) -> Iterator[Piece]:
    for add in state.files.values():
        first, last = compacted_range(add.path)
        if first >= 0:
            yield Piece(first, last, add)


def _range(add: Add, version: int) -> tuple[int, int]:
    first, last = compacted_range(add.path)
    return (first, last) if first >= 0 else (version, version)


def by_size(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Divide objects, in their order, into groups of about ``TARGET_BYTES``."""
    group: list[Piece] = []
    for piece in pieces:
        if group and sum(one.add.size for one in group) + piece.add.size > TARGET_BYTES:
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def groups(pieces: Sequence[Piece], least: int) -> Iterator[list[Piece]]:
    """Yield groups of neighbours that are worth merging."""
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        large = piece.add.size > TARGET_BYTES // 2
        if group and (large or size + piece.add.size > TARGET_BYTES):
            if worth_merging(group, least) or len(group) >= _FAN_IN:
                yield group
            group, size = [], 0
        if not large:
            group.append(piece)
            size += piece.add.size
    if worth_merging(group, least):
        yield group


def worth_merging(group: Sequence[Piece], least: int) -> bool:
    """Return whether a group has enough small objects, or enough that were merged and are still small."""
    merged = sum(piece.is_merged for piece in group)
    return len(group) - merged >= least or merged >= _FAN_IN


def latest(table: Table, key: str, seen: set[Any], *, drop_deleted_before: datetime | None = None) -> Table:
    """Return the last message of each key that is not in ``seen``, and add the keys to it.

    Messages without a key stay. A message with a key and nothing else deletes the key. One that was produced before
    ``drop_deleted_before`` is left out.
    """
    keys = table.column(key).to_pylist()
    stamps = records.values_of(table.column(PRODUCED_AT))
    others = [table.column(name).to_pylist() for name in table.column_names if name not in {key, PRODUCED_AT}]
    keep = [False] * len(keys)
    for row in range(len(keys) - 1, -1, -1):
        one = keys[row]
        if one is None:
            keep[row] = True  # without a key nothing replaces it
            continue
        if one in seen:
            continue
        seen.add(one)
        keep[row] = True
        if drop_deleted_before is not None and all(column[row] is None for column in others):
            keep[row] = isinstance(stamps[row], datetime) and stamps[row] >= drop_deleted_before
    return rows_where(table, keep)
