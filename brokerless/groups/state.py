"""The objects of a group, as values: what they hold, their JSON, and the changes that a rebalance makes.

``<root>/_brokerless/groups/<group>/group.json`` says who is in the group and who owns which partition. It changes only
when a member joins, leaves or dies, and each change is a new generation. ``members/<member>.json`` is one member's
heartbeat, and the offsets that it has committed. Every change of either is a compare-and-swap.

Invariants:

- Only its member writes a member's object, until somebody *fences* it; then it never changes again. So a commit is
  accepted or refused by one compare-and-swap, and what a fenced object holds is final.
- A member's object carries the generation that the member has *acknowledged*: it has stopped reading whatever that
  generation took from it. A new owner begins only when each earlier owner (``handed_over_by``) has acknowledged the
  generation in which it lost the partition (``epoch``), or was fenced.
- An offset is kept with the epoch in which it was committed; of several, the one of the highest epoch counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from brokerless.errors import ConfigError, GroupDamaged
from brokerless.groups.assignment import STRATEGIES, Partition, Strategy, assign
from brokerless.offsets import Offset
from brokerless.schema import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER: Final = "_brokerless/groups"
FORMAT: Final = 1
LEFT: Final = "it left"


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed position: the next offset to read.

    Attributes:
        epoch: the generation in which its owner got the partition.
        table_id: of the partition's table; in another one the offset means nothing.
        rows: how many messages the partition had before this offset, ever; None if that is not known.
    """

    offset: Offset
    epoch: int
    table_id: str
    rows: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as a dictionary for JSON."""
        found: dict[str, Any] = {"offset": str(self.offset), "epoch": self.epoch, "table": self.table_id}
        return found if self.rows is None else found | {"rows": self.rows}

    @classmethod
    def parse(cls, found: Any) -> Committed | None:
        """Return it from such a dictionary."""
        if found is None:
            return None
        rows = found.get("rows")
        return cls(Offset.parse(found["offset"]), int(found["epoch"]), str(found["table"]), rows)


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member's object.

    Attributes:
        beat: grows with each write, so that a member that lives never writes the same bytes twice.
        generation: what it has acknowledged.
        fenced: why it was removed; None while it lives. ``LEFT`` if by itself.
    """

    member: str
    beat: int = 0
    generation: int = 0
    committed: Mapping[Partition, Committed] = field(default_factory=dict)
    fenced: str | None = None

    def to_bytes(self) -> bytes:
        """Return the object's bytes."""
        committed = {key_of(partition): one.to_json() for partition, one in sorted(self.committed.items())}
        found = {"format": FORMAT, "member": self.member, "beat": self.beat, "generation": self.generation}
        return json.dumps(found | {"fenced": self.fenced, "committed": committed}).encode()

    @classmethod
    def parse(cls, data: bytes, *, path: str) -> Self:
        """Return the state from the object's bytes.

        Raises:
            GroupDamaged: these are not such an object's bytes.
        """
        try:
            found = _load(data)
            committed = {partition_of(key): Committed.parse(one) for key, one in found["committed"].items()}
            return cls(
                str(found["member"]),
                int(found["beat"]),
                int(found["generation"]),
                {key: one for key, one in committed.items() if one is not None},
                None if found["fenced"] is None else str(found["fenced"]),
            )
        except _BAD as error:
            raise _damaged(path, error) from None


@dataclass(frozen=True, slots=True)
class Member:
    """What the group knows of a member.

    Attributes:
        topics: what it reads, with the number of partitions of each.
        instance: its name, if it is a static member: one that comes back under the same name gets the same partitions.
        session_ms: without a heartbeat for this long it is dead.
    """

    topics: Mapping[str, int]
    session_ms: int
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """A partition in a group.

    Attributes:
        owner: the member that reads it, or is to; None if there is none.
        epoch: the generation in which it became the owner.
        handed_over_by: members that may still read it, or have the newest offset of it.
        committed: the newest offset of members that are not in the group any more.
    """

    owner: str | None = None
    epoch: int = 0
    handed_over_by: tuple[str, ...] = ()
    committed: Committed | None = None


@dataclass(frozen=True, slots=True)
class GroupState:
    """The group's object."""

    group: str
    strategy: Strategy
    generation: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)
    shares: Mapping[Partition, Share] = field(default_factory=dict)

    def joined(self, name: str, member: Member, states: Mapping[str, MemberState | None]) -> GroupState:
        """Return the group with one member more, and its partitions divided anew.

        Args:
            name: of the new member.
            member: what it reads.
            states: the objects of all members, as they are now or were a moment ago.
        """
        return replace(self, members={**self.members, name: member})._divided(states)

    def without(
        self, name: str, states: Mapping[str, MemberState | None], *, successor: str | None = None
    ) -> GroupState:
        """Return the group without a member that was fenced; its offsets are the group's from now on.

        Args:
            name: of that member.
            states: the objects of all members; the fenced one's is final.
            successor: who gets its partitions (a static member that came back), else they are divided.
        """
        final = states[name]
        shares: dict[Partition, Share] = {}
        for partition, share in self.shares.items():
            committed, handed_over_by = share.committed, share.handed_over_by
            if share.owner == name or name in handed_over_by:
                committed = newest(committed, None if final is None else final.committed.get(partition))
                if share.owner == name and _began(final, partition, share):
                    handed_over_by = ()
                handed_over_by = tuple(one for one in handed_over_by if one != name)
            owner = successor if share.owner == name else share.owner
            epoch = self.generation + 1 if share.owner == name else share.epoch
            shares[partition] = Share(owner, epoch, handed_over_by, committed)
        members = {one: about for one, about in self.members.items() if one != name}
        if successor is not None:
            members[successor] = self.members[name]
        return replace(self, members=members, shares=shares)._divided(states)

    def reset(self, offsets: Mapping[Partition, Committed | None]) -> GroupState:
        """Return the group, which has no members, at other offsets (None: as if it had never read the partition)."""
        generation = self.generation + 1
        shares = dict(self.shares)
        for partition, committed in offsets.items():
            shares[partition] = Share(epoch=generation, committed=committed and replace(committed, epoch=generation))
        return replace(self, generation=generation, shares=shares)

    def _divided(self, states: Mapping[str, MemberState | None]) -> GroupState:
        generation = self.generation + 1
        # By instance: a static member that comes back has another name, and its place in the order.
        labels = {name: member.instance or name for name, member in self.members.items()}
        names = {label: name for name, label in labels.items()}
        subscriptions = {labels[name]: member.topics for name, member in self.members.items()}
        owners = {key: labels[share.owner] for key, share in self.shares.items() if share.owner in labels}
        owned = {key: names[label] for key, label in assign(self.strategy, subscriptions, owners).items()}
        shares: dict[Partition, Share] = {}
        for partition in sorted(self.shares.keys() | owned.keys()):
            share = self.shares.get(partition, Share())
            owner = owned.get(partition)
            if owner != share.owner:
                earlier = share.handed_over_by
                if share.owner is not None:
                    # Who has begun has the offset of everybody before it.
                    if _began(states.get(share.owner), partition, share):
                        earlier = ()
                    earlier = (*(one for one in earlier if one != share.owner), share.owner)
                share = replace(share, owner=owner, epoch=generation, handed_over_by=earlier)
            shares[partition] = share
        return replace(self, generation=generation, shares=shares)

    def to_bytes(self) -> bytes:
        """Return the object's bytes."""
        members = {
            name: {"topics": dict(one.topics), "session_ms": one.session_ms, "instance": one.instance}
            for name, one in self.members.items()
        }
        shares = {
            key_of(partition): {
                "owner": one.owner,
                "epoch": one.epoch,
                "handed_over_by": list(one.handed_over_by),
                "committed": one.committed and one.committed.to_json(),
            }
            for partition, one in self.shares.items()
        }
        found = {"format": FORMAT, "group": self.group, "strategy": self.strategy, "generation": self.generation}
        return json.dumps(found | {"members": members, "partitions": shares}).encode()

    @classmethod
    def parse(cls, data: bytes, *, path: str) -> Self:
        """Return the state from the object's bytes.

        Raises:
            GroupDamaged: these are not such an object's bytes.
        """
        try:
            found = _load(data)
            strategy: Strategy = found["strategy"]
            if strategy not in STRATEGIES:
                raise ValueError(f"the strategy is {strategy!r}")
            members = {
                str(name): Member(
                    {str(topic): int(count) for topic, count in one["topics"].items()},
                    int(one["session_ms"]),
                    None if one["instance"] is None else str(one["instance"]),
                )
                for name, one in found["members"].items()
            }
            shares = {
                partition_of(key): Share(
                    None if one["owner"] is None else str(one["owner"]),
                    int(one["epoch"]),
                    tuple(map(str, one["handed_over_by"])),
                    Committed.parse(one["committed"]),
                )
                for key, one in found["partitions"].items()
            }
            return cls(str(found["group"]), strategy, int(found["generation"]), members, shares)
        except _BAD as error:
            raise _damaged(path, error) from None


def newest(*found: Committed | None) -> Committed | None:
    """Return the offset of the highest epoch."""
    return max((one for one in found if one is not None), key=lambda one: one.epoch, default=None)


def key_of(partition: Partition) -> str:
    """Return a partition as it stands in the objects."""
    return f"{partition[0]}/{partition[1]}"


def partition_of(key: str) -> Partition:
    """Return the partition that such a text names."""
    topic, _, number = key.rpartition("/")
    return topic, int(number)


def group_path(group: str) -> str:
    """Return the path of the group's object.

    Raises:
        ConfigError: a group cannot have this name.
    """
    return f"{FOLDER}/{check_group(group)}/group.json"


def member_path(group: str, member: str) -> str:
    """Return the path of a member's object."""
    return f"{FOLDER}/{group}/members/{member}.json"


def check_group(group: str) -> str:
    """Return the name of a group.

    Raises:
        ConfigError: a group cannot have this name.
    """
    try:
        return check_name(group)
    except ConfigError as error:
        raise ConfigError(f"{group!r} cannot be the name of a group. Groups are named like topics: {error}") from None


def _began(state: MemberState | None, partition: Partition, share: Share) -> bool:
    """Whether a partition's owner has begun to read it in this epoch."""
    committed = None if state is None else state.committed.get(partition)
    return committed is not None and committed.epoch == share.epoch


_BAD: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError)


def _load(data: bytes) -> Any:
    found = json.loads(data)
    if found["format"] != FORMAT:
        raise ValueError(f"its format is {found['format']!r}, and this version reads {FORMAT}")
    return found


def _damaged(path: str, error: Exception) -> GroupDamaged:
    return GroupDamaged(
        f"{path} is not the object of a group ({type(error).__name__}: {error}). Restore it, or delete the group with "
        "'brokerless groups delete': its consumers then begin where they start without a committed offset."
    )
