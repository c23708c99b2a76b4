"""Remove messages that must not be kept: a user's, after a request to be forgotten.

Each object with such messages is written again without them, and one entry puts the new object in its place. It says
that there is nothing new in it, so no reader gets the other messages again, and offsets stay. Other engines no longer
see the messages at once. Objects and entries that held them go when clean-up reaches them (``docs/erasure.md``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
        objects: how many objects held them.
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
        by: who asks, for the audit line in the entry. The condition itself is not kept: it may name a person.
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
        removes: list[str] = []
        adds: list[Add] = []
        messages = 0
        state = log.load(with_files=True)
        for done, add in enumerate(state.files.values(), start=1):
            path = f"{log.table}/{add.path}"
            table = records.with_columns(records.load(store, path), columns, path=path)
            met = condition.holds(table)
            if on_object is not None:
                on_object(done, len(state.files))
            if not any(met):
                continue
            messages += sum(met)
            removes.append(add.path)
            if not all(met) and not dry_run:
                data = records.encode(rows_where(table, [not one for one in met]))
                first, last = compacted_range(add.path)
                unique = clock.uuid() if first < 0 else f"merged-{first}-{last}-{clock.uuid()}"
                name = records.object_name(data, unique)
                store.put(f"{log.table}/{name}", data)
                adds.append(Add(name, len(data), len(met) - sum(met), add.modified_ms))
        version = None
        if removes and not dry_run:
            audit = {"erased": {"messages": messages, "objects": len(removes), "by": by}}
            version = log.rewrite(Rewrite("DELETE", state.version, tuple(removes), tuple(adds), about=audit))
        return Erased(about.name, number, messages, len(removes), version)

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
