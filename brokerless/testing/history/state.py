"""The state of a checker: calls, partitions as readers have read them, readers, and owners in groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerless.testing.history.events import Id, Outcome

BITS: Final = 32  # an offset as one number: version << 32 | index; an index is below a million in this kit's commits
INDEX: Final = 2**BITS - 1
NEVER: Final = float("inf")


@dataclass(slots=True, eq=False)
class Call:
    """One call of ``send`` and its outcome."""

    process: str
    begun: int
    ids: Sequence[Id]
    queued: bool
    ended: float = NEVER
    outcome: Outcome = "unknown"
    partial: dict[Id, Outcome] | None = None  # where it differs between its messages
    acks: Sequence[Sequence[int]] = ()

    def of(self, one: Id) -> Outcome:
        """Return the outcome of one of its messages."""
        return self.partial.get(one, self.outcome) if self.partial else self.outcome

    def acknowledged(self) -> Sequence[Id]:
        """Return the acknowledged messages."""
        if not self.partial:
            return self.ids if self.outcome == "ok" else ()
        return [one for one in self.ids if self.of(one) == "ok"]


@dataclass(slots=True, eq=False)
class TopicState:
    """The calls that sent each message to a topic, and where it was read."""

    name: str
    sent: dict[Id, tuple[Call, int]] = field(default_factory=dict)  # the first call with it, and the row there
    again: dict[Id, list[Call]] = field(default_factory=dict)  # the others
    calls: list[Call] = field(default_factory=list)
    seen: dict[Id, int] = field(default_factory=dict)  # its position
    doubled: set[Id] = field(default_factory=set)  # seen at two offsets, so their order says nothing
    has_sends: bool = False


@dataclass(slots=True, eq=False)
class PartitionState:
    """A partition's log, as far as readers have read it."""

    topic: TopicState
    number: int
    base: int  # of its positions
    log: dict[int, Id] = field(default_factory=dict)
    spans: dict[int, Sequence[Id]] = field(default_factory=dict)  # the messages from an offset on, as first seen
    shown: dict[int, int] = field(default_factory=dict)  # version -> the first event with something of it
    readers: list[Incarnation] = field(default_factory=list)

    def __str__(self) -> str:
        return name_of(self.topic.name, self.number)

    def event(self, key: int) -> int:
        """Return the first event with a message of this offset's commit; 0 if there is none."""
        return self.shown.get(key >> BITS, 0)


@dataclass(slots=True, eq=False)
class Incarnation:
    """One incarnation of a reader: from where a process began to read a partition until it seeks."""

    process: str
    partition: PartitionState
    start: int
    last: int  # the last offset that it got
    next: int  # its position
    event: int
    call: int = -1
    spans: list[tuple[int, int]] = field(default_factory=list)  # (first offset, messages)
    rows: int = 0
    delivered: set[int] | None = None  # made when it goes back for the first time
    holes: list[tuple[int, int]] = field(default_factory=list)
    tenure: Tenure | None = None

    def keys(self) -> set[int]:
        """Return the offsets that it received."""
        if self.delivered is None:
            self.delivered = {key for first, rows in self.spans for key in range(first, first + rows)}
        return self.delivered


@dataclass(slots=True, eq=False)
class Tenure:
    """The time in which a process owned a partition, until it released it or until its last event."""

    process: str
    begun: int
    last: int
    released: bool = False


@dataclass(slots=True, eq=False)
class GroupState:
    """The state of a group in one partition."""

    name: str
    partition: PartitionState
    tenures: list[Tenure] = field(default_factory=list)
    present: dict[str, Tenure] = field(default_factory=dict)  # process -> the one that it has not given up
    committed: int = -1  # the furthest that was committed, or may be
    committed_by: int = 0
    trying: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # call -> (offset, event), if open
    holder: str | None = None
    held_since: int = 0  # the event of its first commit
    succeeded: dict[str, int] = field(default_factory=dict)  # process -> its successor's first commit


def key_of(offset: Sequence[int]) -> int:
    """Return an offset, (version, index), as one number."""
    return offset[0] << BITS | offset[1]


def offset_text(key: int) -> str:
    """Return an offset as text: ``42:7``."""
    return f"{key >> BITS}:{key & INDEX}"


def name_of(topic: str, number: int) -> str:
    """Return a partition as text: ``clicks/0``."""
    return f"{topic}/{number}"


def at(partition: PartitionState, key: int) -> str:
    """Return an offset with its partition as text."""
    return f"{partition} {offset_text(key)}"


def range_text(partition: PartitionState, first: int, end: int) -> str:
    """Return the offsets from the first to before the end as text."""
    return at(partition, first) if end == first + 1 else f"{at(partition, first)} to {offset_text(end - 1)}"
