"""Remove messages that must not stay: a user's, after a request to be forgotten.

Each object with such messages is written again without them, and one entry puts the new object in its place. It says
that there is nothing new in it, so no reader gets the other messages again, and offsets stay. Other engines no longer
see the messages at once. What is left of each object is put beside the table, with the rows' numbers, and maintenance
removes the object itself after its grace time; from then on no reader of the log finds the messages either.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from arro3.core import Array, ChunkedArray, DataType, Field, Table

from brokerless.clock import SYSTEM, Clock
from brokerless.columns import records
from brokerless.columns.select import Condition, rows_where
from brokerless.errors import ConfigError
from brokerless.log.entries import Add
from brokerless.log.rewrite import Rewrite, RewriteConflict
from brokerless.maintenance.compaction import compacted_range
from brokerless.schema import PRODUCED_AT, Column
from brokerless.topics import open_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokerless.log.log import DeltaLog
    from brokerless.store import Store
    from brokerless.topics import Topic

_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Erased:
    """What was removed from a partition.

    Attributes:
        messages: how many messages met the condition.
        objects: how many objects held them, with those that were merged or replaced before.
        version: the entry that removed them; None if there were none, or nothing was to be changed.
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
    if about.logs and not about.logs[0].state.metadata.configuration:
        raise ConfigError(f"{about.name!r} is a table of another program; delete its rows with that program.")
    columns = (*about.schema.columns, Column(PRODUCED_AT, "timestamp"))

    def erase(number: int, log: DeltaLog) -> Erased:
        state = log.load(with_files=True)
        removes: list[str] = []
        adds: list[Add] = []
        left: dict[str, Table] = {}  # what is left of each object, by its path
        messages = 0
        # Objects that were merged or replaced are no longer live, but entries name them still.
        for done, name in enumerate([*state.files, *state.tombstones], start=1):
            path = f"{log.table}/{name}"
            live = state.files.get(name)
            if on_object is not None:
                on_object(done, len(state.files) + len(state.tombstones))
            table = _load(store, path, live=live is not None)
            if table is None:
                continue
            met = condition.holds(records.with_columns(table, columns, path=path))
            if not any(met):
                continue
            left[path] = rows_where(table, [not one for one in met])
            if live is None:
                continue
            messages += sum(met)
            removes.append(name)
            if not all(met) and not dry_run:
                data = records.encode(left[path].drop_columns([records.ROW]))
                first, last = compacted_range(name)
                unique = clock.uuid() if first < 0 else f"merged-{first}-{last}-{clock.uuid()}"
                new = records.object_name(data, unique)
                store.put(f"{log.table}/{new}", data)
                adds.append(Add(new, len(data), left[path].num_rows, live.modified_ms))
        version = None
        if left and not dry_run:
            # guard: what is left of an object is there before the object may go
            for path, table in left.items():
                store.put(records.erased_path(path), records.encode(table))
            audit = {"erased": {"messages": messages, "objects": len(removes), "by": by}}
            version = log.rewrite(Rewrite("DELETE", state.version, tuple(removes), tuple(adds), about=audit))
        return Erased(about.name, number, messages, len(left), version)

    found: list[Erased] = []
    for number, log in enumerate(about.logs):
        for attempt in range(_TRIES):
            try:
                found.append(erase(number, log))
                break
            except RewriteConflict:
                if attempt == _TRIES - 1:
                    raise
    return found


def _load(store: Store, path: str, *, live: bool) -> Table | None:
    """Return an object's rows with their numbers, without those that were erased before; None if it is gone."""
    if not live:
        with contextlib.suppress(FileNotFoundError):
            return records.decode(store.get(records.erased_path(path)))
        if not store.exists(path):
            return None
    table = records.load(store, path)
    numbers = Array(list(range(table.num_rows)), DataType.int64())
    return table.append_column(Field(records.ROW, DataType.int64(), nullable=True), ChunkedArray([numbers]))
