"""Look for missing entries of a log at a bounded cost; ``table`` inspects everything.

A missing entry is late, lost or not yet restored: the entries after it were acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokerless.log.checkpoint import checkpoint_hint, listed

if TYPE_CHECKING:
    from brokerless.store import Store

NAMES: Final = 10_000
"""The number of names after the last checkpoint that are listed: ten LIST. Maintenance leaves a hundredth of it."""


def find_hole(store: Store, table: str) -> str | None:
    """Return the fault of the log after its last checkpoint; None if there is no fault or no log.

    One GET, one LIST for every thousand names up to ``NAMES``, and one GET if an entry is missing.
    """

    def path(version: int) -> str:
        return f"{table}/_delta_log/{version:020d}"

    hint = checkpoint_hint(store, table)
    found = listed(store, table, after=None if hint is None else path(hint), most=NAMES)
    if hint is not None and hint not in found.checkpoints:
        return f"the log of {table} names checkpoint {hint}, which does not exist"
    wanted = 1 + (max(found.checkpoints, default=-1) if hint is None else hint)
    for version in found.entries:
        # An entry that was written during the listing may be missing only in the list.
        while wanted < version:
            if not store.exists(f"{path(wanted)}.json"):
                return f"the log of {table} lacks entry {wanted}, although entry {version} exists"
            wanted += 1
        wanted = max(wanted, version + 1)
    return None
