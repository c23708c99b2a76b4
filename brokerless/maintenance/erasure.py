"""Remove messages that must not stay: a user's, after a request to be forgotten.

Each object with such messages is written again without them, and an entry puts the new object in its place. It says
that there is nothing new in it, so no reader gets the other messages again, and offsets stay. Other engines no longer
see the messages at once. What is left of each object is put beside the table, with the rows' numbers, and maintenance
removes the object itself after its grace time; from then on no reader of the log finds the messages either.

An erasure that fails may have removed some of the messages, for some of the readers. Repeat it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from arro3.core import Array, ChunkedArray, DataType, Field, Table

from brokerless.clock import SYSTEM, Clock
from brokerless.columns import records
from brokerless.columns.select import Condition, rows_where
from brokerless.errors import ConfigError
from brokerless.log.commit import Uploads
from brokerless.log.entries import PARTITIONS_KEY, Add
from brokerless.log.rewrite import Rewrite, RewriteConflict
from brokerless.maintenance.compaction import TARGET_BYTES, compacted_range
from brokerless.schema import PRODUCED_AT, Column
from brokerless.topics import open_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from brokerless.log.log import DeltaLog
    from brokerless.store import Store
    from brokerless.topics import Topic

_TRIES: Final = 10
_MOST_OBJECTS: Final = 1000  # of one entry


@dataclass(frozen=True, slots=True)
class Erased:
    """What was removed from a partition.

    Attributes:
        messages: how many messages met the condition.
        objects: how many objects held them, with those that were merged or replaced before.
        version: the last entry that removed them; None if there were none, or nothing was to be changed.
    """

    topic: str
    partition: int
    messages: int
    objects: int
    version: int | None


def erase_messages(
    store: Store,
    topic: str | Topic,
    where: str,
    *,
    dry_run: bool = False,
    by: str = "",
    on_object: Callable[[int, int], None] | None = None,
    clock: Clock = SYSTEM,
) -> list[Erased]:
    """Remove the messages that meet a condition from a topic.

    Args:
        store: where the topic is.
        topic: the topic, or its name.
        where: the condition (``Condition.parse``).
        dry_run: only count them.
        by: who asks, for the audit line in the entry. The condition itself is not stored: it may name a person.
        on_object: called after each object with the number of objects done and to do.
        clock: time.

    Raises:
        ConfigError: the text is not a condition on the topic's columns.
        TopicNotFound, StoreError: as everywhere.
        RewriteConflict: other maintenance was faster each time.
    """
    about = open_topic(store, topic, clock=clock)
    condition = Condition.parse(where, about.schema)
    if about.logs and PARTITIONS_KEY not in about.logs[0].state.metadata.configuration:
        raise ConfigError(f"{about.name!r} is a table of another program; delete its rows with that program.")
    columns = (*about.schema.columns, Column(PRODUCED_AT, "timestamp"))
    found: list[Erased] = []
    for number, log in enumerate(about.logs):
        eraser = _Eraser(store, log, condition, columns, dry_run=dry_run, by=by, clock=clock)
        for attempt in range(_TRIES):
            try:
                eraser.erase(on_object)
                break
            except RewriteConflict:
                if attempt == _TRIES - 1:
                    raise
                clock.backoff(attempt)
        found.append(Erased(about.name, number, eraser.messages, eraser.objects, eraser.version))
    return found


class _Eraser:
    """Erases in one partition, some objects at a time, and counts."""

    def __init__(
        self,
        store: Store,
        log: DeltaLog,
        condition: Condition,
        columns: Sequence[Column],
        *,
        dry_run: bool,
        by: str,
        clock: Clock,
    ) -> None:
        self.messages = self.objects = 0
        self.version: int | None = None
        self._store = store
        self._log = log
        self._condition = condition
        self._columns = columns
        self._dry_run = dry_run
        self._by = by
        self._clock = clock
        self._versions: dict[str, int] = {}  # the entry that brought each object

    def erase(self, on_object: Callable[[int, int], None] | None) -> None:
        """Erase from every object that the table or an entry names; what was done before a conflict counts."""
        state = self._log.load(with_files=True)
        names = dict.fromkeys([*state.files, *state.tombstones])
        # Checkpoints forget tombstones, but the entries that a reader may begin with name those objects still.
        for entry in self._log.read_from(self._log.earliest()):
            if entry.version <= state.version:
                names.update(dict.fromkeys(add.path for add in entry.adds))
                self._versions |= {add.path: entry.version for add in entry.messages}
        change = _Change(Uploads(self._log, clock=self._clock))
        for done, name in enumerate(names, start=1):
            if on_object is not None:
                on_object(done, len(names))
            self._erase_in(name, state.files.get(name), change)
            if change.uploads.size >= TARGET_BYTES or len(change.removes) >= _MOST_OBJECTS:
                self._commit(change, state.version)
                change = _Change(Uploads(self._log, clock=self._clock))
        self._commit(change, state.version)

    def _erase_in(self, name: str, live: Add | None, change: _Change) -> None:
        path = f"{self._log.table}/{name}"
        whole = None
        if live is not None:
            whole = records.load(self._store, path)
            met = self._met(whole, path)
            if not any(met):
                return
            change.messages += sum(met)
        # What is left of an object is there before the object may go.
        if not self._keep_rest(path, whole):
            return
        if live is None:
            self.objects += 1
            return
        change.removes.append(name)
        if whole is not None and not all(met) and not self._dry_run:
            rest = rows_where(whole, [not one for one in met])
            data = records.encode(rest)
            # The new object is named for the entries of its messages: by these it has its place among the others.
            first, last = compacted_range(name)
            if first < 0 and name in self._versions:
                first = last = self._versions[name]
            unique = self._clock.uuid() if first < 0 else f"merged-{first}-{last}-{self._clock.uuid()}"
            change.adds.append(Add(change.uploads.put(data, unique), len(data), rest.num_rows, live.modified_ms))

    def _keep_rest(self, path: str, whole: Table | None) -> bool:
        """Put what is left of an object beside the table; return whether it held, or holds, such messages.

        What was erased before stays erased: the rows come from what was left then, and nobody else may have changed
        that meanwhile.

        Raises:
            RewriteConflict: somebody has.
        """
        rest = records.erased_path(path)
        tag = None
        try:
            data, tag = self._store.get_tagged(rest)
            table = records.decode(data)
        except FileNotFoundError:
            if whole is None and not self._store.exists(path):
                return False
            whole = records.load(self._store, path) if whole is None else whole
            numbers = Array(list(range(whole.num_rows)), DataType.int64())
            table = whole.append_column(Field(records.ROW, DataType.int64(), nullable=True), ChunkedArray([numbers]))
            known = False
        else:
            known = whole is not None
        met = self._met(table, path)
        if any(met) and not self._dry_run:
            left = records.encode(rows_where(table, [not one for one in met]))
            # Two who erase at once keep the least of it.
            if self._store.swap(rest, left, tag)[0] != "created":
                raise RewriteConflict(f"{self._log.uri}: somebody else erases, too. Try again.")
        return known or any(met)

    def _met(self, table: Table, path: str) -> list[bool]:
        return self._condition.holds(records.with_columns(table, self._columns, path=path))

    def _commit(self, change: _Change, since: int) -> None:
        if change.removes and not self._dry_run:
            audit = {"erased": {"messages": change.messages, "objects": len(change.removes), "by": self._by}}
            rewrite = Rewrite("DELETE", since, tuple(change.removes), tuple(change.adds), about=audit)
            self.version = change.uploads.commit(partial(self._log.rewrite, rewrite)).version
        self.messages += change.messages
        self.objects += len(change.removes)


@dataclass(slots=True)
class _Change:
    """What one entry erases."""

    uploads: Uploads
    messages: int = 0
    removes: list[str] = field(default_factory=list)
    adds: list[Add] = field(default_factory=list)
