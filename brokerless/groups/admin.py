"""Look at groups from outside, and reset or delete those that nobody is in.

Neither changes a group under a member that is alive. Whether one is, nobody can ask it: a member whose object does not
change for its session is dead, as for the other members, and is fenced and removed first.
"""

from __future__ import annotations

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import BrokerlessError, ConfigError, GroupActive, GroupDamaged, GroupNotFound, OffsetOutOfRange
from brokerless.groups.membership import STATIC_SESSION_S
from brokerless.groups.objects import GroupObjects
from brokerless.groups.state import FOLDER, Committed, GroupState, MemberState, check_group, member_path
from brokerless.lag import PartitionLag, measure, messages_between
from brokerless.log.start import resolve_start
from brokerless.offsets import Offset, Shift, parse_reset
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from brokerless.groups.assignment import Partition
    from brokerless.log.log import DeltaLog
    from brokerless.offsets import Start
    from brokerless.store import Store

_LOOK_S: Final = 0.5
_PARTITION: Final = re.compile(r"(.+):([0-9]{1,9})")
_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group in a list.

    Attributes:
        problem: why it cannot be read; the rest is empty then.
    """

    name: str
    topics: tuple[str, ...] = ()
    members: int = 0
    partitions: int = 0
    strategy: str = ""
    generation: int = 0
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dictionary for JSON."""
        return {
            "group": self.name,
            "topics": list(self.topics),
            "members": self.members,
            "partitions": self.partitions,
            "strategy": self.strategy,
            "generation": self.generation,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group; it may be dead, for up to its session.

    Attributes:
        instance: the name of a static member.
        partitions: what it owns, by topic and number.
    """

    name: str
    instance: str | None
    topics: tuple[str, ...]
    partitions: tuple[tuple[str, int], ...]
    session_s: float


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A partition in a group.

    Attributes:
        owner: the member that reads it, or is about to.
        lag: how far the group is behind; its ``position`` is the committed offset.
    """

    owner: str | None
    lag: PartitionLag


@dataclass(frozen=True, slots=True)
class Group:
    """A group as it is now."""

    name: str
    strategy: str
    generation: int
    members: tuple[GroupMember, ...]
    partitions: tuple[GroupPartition, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dictionary for JSON."""
        return {
            "group": self.name,
            "strategy": self.strategy,
            "generation": self.generation,
            "members": [
                {
                    "member": one.name,
                    "instance": one.instance,
                    "topics": list(one.topics),
                    "partitions": [f"{topic}:{number}" for topic, number in one.partitions],
                    "session_s": one.session_s,
                }
                for one in self.members
            ],
            "partitions": [
                {
                    "topic": one.lag.topic,
                    "partition": one.lag.partition,
                    "owner": one.owner,
                    "committed": one.lag.position and str(one.lag.position),
                    "end": one.lag.end and str(one.lag.end),
                    "lag_messages": one.lag.messages,
                    "lag_seconds": one.lag.seconds,
                }
                for one in self.partitions
            ],
        }


@dataclass(frozen=True, slots=True)
class ResetPartition:
    """What a reset does, or would do, to a partition.

    Attributes:
        old: the committed offset; None if there was none.
        new: the one after the reset.
        messages: how many are skipped; negative: how many are repeated; None if that is not known.
    """

    topic: str
    partition: int
    old: Offset | None
    new: Offset
    messages: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dictionary for JSON."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "old": self.old and str(self.old),
            "new": str(self.new),
            "skipped": None if self.messages is None else max(self.messages, 0),
            "repeated": None if self.messages is None else max(-self.messages, 0),
        }


def list_groups(store: Store, *, clock: Clock = SYSTEM) -> list[GroupSummary]:
    """Return the groups below the root, by name. One LIST, and a GET a group."""
    names = sorted({info.path.split("/")[2] for info in store.list(FOLDER)})

    def summary(name: str) -> GroupSummary | None:
        try:
            group = GroupObjects(store, name, clock).read_group()
        except (GroupDamaged, ConfigError) as error:
            return GroupSummary(name, problem=str(error))
        if group is None:
            return None  # only objects of members are left
        topics = sorted(
            {topic for topic, _ in group.shares} | {t for one in group.members.values() for t in one.topics}
        )
        return GroupSummary(
            name, tuple(topics), len(group.members), len(group.shares), group.strategy, group.generation
        )

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="brokerless-groups") as pool:
        return [one for one in pool.map(summary, names) if one is not None]


def describe_group(store: Store, name: str, *, clock: Clock = SYSTEM) -> Group:
    """Return a group: its members, and of each partition the owner, the committed offset and the lag.

    Raises:
        GroupNotFound: there is none.
        GroupDamaged, StoreError: it cannot be read.
    """
    objects = GroupObjects(store, name, clock)
    group = _found(objects, store)
    lags = measure(store, objects.read_committed(group), clock=clock)
    members = tuple(
        GroupMember(
            member,
            one.instance,
            tuple(sorted(one.topics)),
            tuple(sorted(key for key, share in group.shares.items() if share.owner == member)),
            one.session_ms / 1000,
        )
        for member, one in sorted(group.members.items())
    )
    partitions = tuple(GroupPartition(group.shares[lag.topic, lag.partition].owner, lag) for lag in lags)
    return Group(name, group.strategy, group.generation, members, partitions)


def reset_group(
    store: Store,
    name: str,
    *,
    to: Start | Shift,
    topics: Sequence[str] | None = None,
    dry_run: bool = False,
    on_wait: Callable[[str], None] | None = None,
    clock: Clock = SYSTEM,
) -> list[ResetPartition]:
    """Move the committed offsets of a group that has no members which are alive.

    Args:
        store: where the group is.
        name: of the group.
        to: a position (``parse_start``), or ``+100`` and ``-100``: so many messages after or before the committed
            offset, but not beyond what the log holds.
        topics: only these, as ``clicks``, or ``clicks:3`` for one partition. By default all of the group.
        dry_run: only return what would be done.
        on_wait: called with a message before it waits for members that may be dead.
        clock: time and sleeping.

    Raises:
        GroupNotFound: there is no such group.
        GroupActive: a member is alive.
        TopicNotFound: one of the topics does not exist.
        ConfigError: a partition does not exist, or the position cannot be parsed.
        OffsetOutOfRange: a partition does not hold the offset; carries the earliest one. Nothing was changed.
        StoreUnavailable: the store gave no clear answer; the reset may have been done.
    """
    target = parse_reset(to, clock) if isinstance(to, str) else to
    objects = GroupObjects(store, name, clock)
    group = _found(objects, store)
    logs = _logs(store, group, topics, clock)
    if not dry_run:
        group = _without_members(objects, group, on_wait, clock)
    committed = objects.read_committed(group)
    new: dict[Partition, Committed | None] = {}
    resets: list[ResetPartition] = []
    for key, log in sorted(logs.items()):
        found = committed.get(key)
        old = None if found is None or found.table_id != log.table_id else found.offset
        offset = _shifted(log, old, target.messages) if isinstance(target, Shift) else _resolved(log, target, clock)
        new[key] = Committed(offset, 0, log.table_id)
        messages = None if old is None else messages_between(log, old, offset)
        resets.append(ResetPartition(*key, old, offset, messages))
    if not dry_run:
        before = group

        def edit(found: GroupState | None) -> GroupState | None:
            if found is None:
                raise _not_found(objects.group, store)
            if found.members:
                raise _active(objects.group, sorted(found.members))
            if found.generation > before.generation and all(
                (share := found.shares.get(key)) is not None
                and share.committed is not None
                and one is not None
                and (share.committed.offset, share.committed.table_id) == (one.offset, one.table_id)
                for key, one in new.items()
            ):
                return None  # an earlier try, whose answer was lost
            return found.reset(new)

        objects.change(edit)
    return resets


def check_exists(store: Store, name: str, *, clock: Clock = SYSTEM) -> None:
    """Return if there is such a group, even if it cannot be read.

    Raises:
        GroupNotFound: there is none.
    """
    with contextlib.suppress(GroupDamaged):
        _found(GroupObjects(store, name, clock), store)


def delete_group(
    store: Store, name: str, *, on_wait: Callable[[str], None] | None = None, clock: Clock = SYSTEM
) -> None:
    """Delete a group that has no members which are alive, and its offsets.

    A consumer that joins at the same moment joins a new group, with the same name.

    Raises:
        GroupNotFound: there is no such group.
        GroupActive: a member is alive.
        StoreError: the store failed.
    """
    objects = GroupObjects(store, name, clock)
    try:
        group = _found(objects, store)
    except GroupDamaged:
        # Who is in it is known by the members' objects only.
        _wait_for_end(objects, dict.fromkeys(_member_names(store, name), STATIC_SESSION_S), on_wait, clock)
    else:
        _without_members(objects, group, on_wait, clock)
    store.delete([objects.path])
    store.delete([member_path(name, member) for member in _member_names(store, name)])


def _member_names(store: Store, name: str) -> list[str]:
    found = store.list(f"{FOLDER}/{check_group(name)}/members")
    return [info.path.rpartition("/")[2].removesuffix(".json") for info in found]


def _found(objects: GroupObjects, store: Store) -> GroupState:
    group = objects.read_group()
    if group is None:
        raise _not_found(objects.group, store)
    return group


def _not_found(name: str, store: Store) -> GroupNotFound:
    return GroupNotFound(
        f"There is no group {name!r} in {store.uri}. The first consumer with group={name!r} creates it; "
        "'brokerless groups list' shows what is there."
    )


def _active(name: str, members: Sequence[str]) -> GroupActive:
    return GroupActive(
        f"The group {name!r} has members that are alive: {', '.join(members)}. Nothing was changed. Stop them first; "
        "'brokerless groups describe' shows who reads what."
    )


def _without_members(
    objects: GroupObjects, group: GroupState, on_wait: Callable[[str], None] | None, clock: Clock
) -> GroupState:
    """Return the group after its members, which must be dead, were fenced and removed."""
    sessions = {name: member.session_ms / 1000 for name, member in group.members.items()}
    finals = _wait_for_end(objects, sessions, on_wait, clock)

    def edit(found: GroupState | None) -> GroupState | None:
        gone = [name for name in (found.members if found else ()) if name in finals]
        if found is None or not gone:
            return None
        states = {**dict.fromkeys(found.members), **finals}
        for name in gone:
            found = found.without(name, states)
        return found

    found = objects.change(edit)
    if found is None:
        raise GroupNotFound(f"The group {objects.group!r} was deleted meanwhile.")
    if found.members:
        raise _active(objects.group, sorted(found.members))
    return found


def _wait_for_end(
    objects: GroupObjects, sessions: Mapping[str, float], on_wait: Callable[[str], None] | None, clock: Clock
) -> dict[str, MemberState | None]:
    """Wait until each of these members is dead, fence it, and return the final states.

    Raises:
        GroupActive: one of them sent a heartbeat.
    """
    finals: dict[str, MemberState | None] = {}
    seen: dict[str, tuple[MemberState, Any]] = {}
    since = clock.monotonic()
    for name in sessions:
        found = _read(objects, name)
        if found is None or found[0].fenced is not None:
            finals[name] = found and found[0]
        else:
            seen[name] = found
    if seen and on_wait is not None:
        on_wait(
            f"Waiting up to {max(sessions[name] for name in seen):g} s to see whether {', '.join(sorted(seen))} "
            f"{'is' if len(seen) == 1 else 'are'} alive."
        )
    while seen:
        clock.sleep(_LOOK_S)
        for name, (state, tag) in list(seen.items()):
            now = clock.monotonic()
            found = _read(objects, name)
            if found is not None and found[0].fenced is None:
                if found[1] != tag:
                    raise _active(objects.group, [name])
                if now - since < sessions[name]:
                    continue
                final = objects.fence(name, tag, state, "an administrator found it dead")
                if final is None:
                    continue  # the next look shows why
                found = final, tag
            finals[name] = found and found[0]
            del seen[name]
    return finals


def _read(objects: GroupObjects, member: str) -> tuple[MemberState, Any] | None:
    try:
        return objects.read_member(member)
    except GroupDamaged:
        return None  # no member can go on with such an object


def _logs(store: Store, group: GroupState, topics: Sequence[str] | None, clock: Clock) -> dict[Partition, DeltaLog]:
    """Return the opened logs of the partitions that are meant."""
    wanted = sorted({topic for topic, _ in group.shares}) if topics is None else topics
    logs: dict[Partition, DeltaLog] = {}
    for text in wanted:
        match = _PARTITION.fullmatch(text)
        about = describe_topic(store, match[1] if match else text, clock=clock)
        numbers = [int(match[2])] if match else range(about.partitions)
        for number in numbers:
            if number >= about.partitions:
                raise ConfigError(f"Topic {about.name!r} has the partitions 0 to {about.partitions - 1}, not {number}.")
            logs[about.name, number] = about.logs[number]
    return logs


def _resolved(log: DeltaLog, target: Start, clock: Clock) -> Offset:
    offset = resolve_start(log, target, clock)
    if isinstance(target, Offset) and offset.index:
        entry = log.read(offset.version)
        if entry is None or (entry.rows is not None and offset.index > entry.rows):
            raise OffsetOutOfRange(
                f"Offset {offset} of {log.uri} does not exist; that commit has "
                f"{'no' if entry is None else entry.rows} messages.",
                earliest=Offset(log.earliest()),
            )
    return offset


def _shifted(log: DeltaLog, old: Offset | None, by: int) -> Offset:
    """Return the offset so many messages after ``old``, or before it; the ends of the log are the ends."""
    if old is None:
        raise ConfigError(
            f"The group has committed nothing of {log.uri}, so nothing can be counted from there; give a position such "
            "as earliest, latest or a time, or name the other topics."
        )
    earliest, end = Offset(log.earliest()), Offset(log.head() + 1)
    offset = min(max(old, earliest), end)
    # Entry by entry: a commit holds thousands of messages where that would matter.
    if by >= 0:
        left = by + offset.index
        for entry in log.read_from(offset.version):
            rows = _rows(log, entry.version, entry.rows)
            if left < rows:
                return Offset(entry.version, left)
            left -= rows
        return end
    left = -by - offset.index
    if left <= 0:
        return Offset(offset.version, -left)
    for version in range(offset.version - 1, earliest.version - 1, -1):
        found = log.read(version)
        rows = 0 if found is None else _rows(log, version, found.rows)
        if left <= rows:
            return Offset(version, rows - left)
        left -= rows
    return earliest


def _rows(log: DeltaLog, version: int, rows: int | None) -> int:
    if rows is None:
        raise BrokerlessError(
            f"Entry {version} of {log.uri} does not say how many messages it has (another program wrote it), so they "
            "cannot be counted; give a position such as an offset or a time instead."
        )
    return rows
