"""Remove the objects of members that are in no group: those of members that left, died, or never joined."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from brokerless.errors import BrokerlessError
from brokerless.groups.objects import GroupObjects
from brokerless.groups.state import FOLDER
from brokerless.maintenance.step import Report, batches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokerless.clock import Clock
    from brokerless.groups.state import Share
    from brokerless.store import ObjectInfo, Store

MEMBER_GRACE_S: Final = 86400.0
"""How old such an object must be. A member writes its object each few seconds, and joins right after the first time;
one that slept for longer finds its object removed, and joins again."""


def remove_members(store: Store, clock: Clock, now_s: float) -> Report | None:
    """Remove old objects of members that are in no group; return None if there are none. One LIST, and a GET a group.

    Args:
        store: the store.
        clock: as everywhere.
        now_s: the store's time.
    """
    old: defaultdict[str, list[ObjectInfo]] = defaultdict(list)
    removed: list[ObjectInfo] = []
    skipped: list[str] = []
    try:
        for info in store.list(FOLDER):
            group, _, rest = info.path.removeprefix(f"{FOLDER}/").partition("/")
            # Only an old object of a member is removed.
            if rest.startswith("members/") and now_s - info.modified_s > MEMBER_GRACE_S:
                old[group].append(info)
        for group, found in old.items():
            try:
                state = GroupObjects(store, group, clock).read_group()
                # The object of a member in its group stays.
                names = set() if state is None else _named(state.members, state.shares.values())
                gone = [one for one in found if one.path.rpartition("/")[2].removesuffix(".json") not in names]
                for batch in batches(gone):
                    store.delete([one.path for one in batch])
                removed += gone
            except BrokerlessError as error:
                skipped.append(f"group {group}: {error}")
    except BrokerlessError as error:
        skipped.append(f"groups: {error}")
    if not removed and not skipped:
        return None
    size = sum(one.size for one in removed)
    return Report(FOLDER, objects_removed=len(removed), bytes_removed=size, skipped=tuple(skipped))


def _named(members: Iterable[str], shares: Iterable[Share]) -> set[str]:
    """Return the members of a group, and those whose offsets it may still need."""
    return {*members, *(name for share in shares for name in share.handed_over_by)}
