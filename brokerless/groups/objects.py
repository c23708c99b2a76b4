"""Read the objects of groups, and change them by compare-and-swap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokerless.errors import StoreUnavailable
from brokerless.groups.state import FOLDER, Committed, GroupState, MemberState, group_path, member_path, newest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokerless.clock import Clock
    from brokerless.groups.assignment import Partition
    from brokerless.store import Store, Tag

TIMEOUT_S: Final = 5.0
"""How long one request may take. Longer than that, and the member is dead for the others."""

DEADLINE_S: Final = 30.0
"""How long a change of the group is tried."""


class GroupObjects:
    """The objects of one group.

    Args:
        store: where they are.
        group: its name.
        clock: time and sleeping.

    Raises:
        ConfigError: a group cannot have this name.
    """

    def __init__(self, store: Store, group: str, clock: Clock) -> None:
        self.group = group
        self.path = group_path(group)
        self._store = store
        self._clock = clock

    def read_group(self) -> GroupState | None:
        """Return the group; None if it does not exist.

        Raises:
            GroupDamaged, StoreError: its object cannot be read.
        """
        found = self._read(self.path)
        return found and self._parse_group(found[0])

    def read_member(self, member: str) -> tuple[MemberState, Tag] | None:
        """Return a member's state and its tag; None if it does not exist.

        Raises:
            GroupDamaged, StoreError: its object cannot be read.
        """
        path = member_path(self.group, member)
        found = self._read(path)
        return found and (MemberState.parse(found[0], path=f"{self._store.uri}/{path}"), found[1])

    def read_members(self, group: GroupState) -> dict[str, MemberState | None]:
        """Return the state of each member."""
        found = {name: self.read_member(name) for name in group.members}
        return {name: one and one[0] for name, one in found.items()}

    def read_committed(
        self, group: GroupState, members: Mapping[str, MemberState | None] | None = None
    ) -> dict[Partition, Committed | None]:
        """Return what the group has committed, by partition; None for one of which it has committed nothing.

        Args:
            group: as it was read.
            members: their states, if they were read already.
        """
        states = [one for one in (members or self.read_members(group)).values() if one is not None]
        return {
            key: newest(share.committed, *(state.committed.get(key) for state in states))
            for key, share in group.shares.items()
        }

    def change(self, edit: Callable[[GroupState | None], GroupState | None]) -> GroupState | None:
        """Change the group, and return it as it is then.

        Args:
            edit: returns the group that shall be, or None if it is right as it is. It is called again with what has
                become of the group meanwhile, and must see by that whether it was done already.

        Raises:
            StoreUnavailable: the deadline passed. The change may have been made, or may still be.
            GroupDamaged, StoreError: the group cannot be read or written.
        """
        deadline = self._clock.monotonic() + DEADLINE_S
        attempt = 0
        pending: tuple[bytes, Tag | None] | None = None
        while True:
            found = self._read(self.path)
            tag = found and found[1]
            if pending is not None and pending[1] == tag:
                data = pending[0]  # the first request may still be on its way: only the same bytes can follow it
            else:
                old = found and self._parse_group(found[0])
                new = edit(old)
                if new is None:
                    return old
                data = new.to_bytes()
            outcome, _ = self._store.swap(self.path, data, tag, within_s=TIMEOUT_S)
            if outcome == "created":
                return self._parse_group(data)
            pending = (data, tag) if outcome == "unknown" else None
            if self._clock.monotonic() > deadline:
                raise StoreUnavailable(
                    f"The group {self.group!r} could not be changed within {DEADLINE_S:.0f} s: the store gave no clear "
                    "answer, or others were always faster. Try again."
                )
            attempt += 1
            self._clock.backoff(attempt, base_s=0.02, cap_s=1.0)

    def write_member(self, state: MemberState, tag: Tag | None) -> Tag | None:
        """Write a member's object on the condition that it has this tag (None: that it does not exist).

        Returns:
            The new tag; None if somebody else has changed the object.

        Raises:
            StoreUnavailable: the store gave no clear answer: the object may have been written, or may still be.
        """
        path = member_path(self.group, state.member)
        data = state.to_bytes()
        deadline = self._clock.monotonic() + 2 * TIMEOUT_S
        attempt = 0
        while True:
            outcome, written = self._store.swap(path, data, tag, within_s=TIMEOUT_S)
            if outcome == "created":
                return written
            found = self._read(path)
            if found is not None and found[0] == data:
                return found[1]
            if (found and found[1]) != tag:
                return None
            # Even if the answer was a refusal: it may have met this request's own first try, which is still on its way.
            # The same bytes are sent again: whichever comes first, it is ours.
            if self._clock.monotonic() > deadline:
                raise StoreUnavailable(
                    f"{self._store.uri}/{path} could not be written within {2 * TIMEOUT_S:.0f} s; what it was to say "
                    "may become known later."
                )
            attempt += 1
            self._clock.backoff(attempt, base_s=0.02, cap_s=1.0)

    def fence(self, member: str, tag: Tag, state: MemberState, why: str) -> MemberState | None:
        """End a member, whatever it does from now on; return its final state, or None if it was alive after all."""
        final = MemberState(member, state.beat, state.generation, state.committed, why)
        return final if self.write_member(final, tag) is not None else None

    def _read(self, path: str) -> tuple[bytes, Tag] | None:
        try:
            return self._store.get_tagged(path, within_s=TIMEOUT_S)
        except FileNotFoundError:
            return None

    def _parse_group(self, data: bytes) -> GroupState:
        return GroupState.parse(data, path=f"{self._store.uri}/{self.path}")


def committed_versions(store: Store, topic: str, partition: int, table_id: str, *, clock: Clock) -> list[int]:
    """Return, for each group that reads a partition, the first entry that it has not read completely.

    One LIST, and one GET for each group and member.

    Raises:
        GroupDamaged, StoreError: a group cannot be read, so what it has read is not known.
    """
    found: list[int] = []
    for info in store.list(FOLDER):
        name = info.path.removeprefix(f"{FOLDER}/").removesuffix("/group.json")
        if "/" in name:
            continue
        objects = GroupObjects(store, name, clock)
        group = objects.read_group()
        share = None if group is None else group.shares.get((topic, partition))
        if group is None or share is None:
            continue
        states = objects.read_members(group).values()
        known = newest(share.committed, *(one.committed.get((topic, partition)) for one in states if one is not None))
        found.append(known.offset.version if known is not None and known.table_id == table_id else 0)
    return found
