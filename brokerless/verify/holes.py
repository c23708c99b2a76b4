"""Looks for entries that a log lacks although later ones are there, at a bounded cost; ``table`` looks at everything.

A hole is late, lost or not yet restored: what is behind it was acknowledged, and nothing may be concluded from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokerless.log.checkpoint import checkpoint_hint, listed

if TYPE_CHECKING:
    from brokerless.store import Store

NAMES: Final = 10_000
"""How many names behind the last checkpoint are looked at: ten LIST. Maintenance leaves a hundredth of it."""


def find_hole(store: Store, table: str) -> str | None:
    """What is wrong with the log behind its last checkpoint; None if nothing is, or if there is no log.

    One GET, one LIST for every thousand names up to ``NAMES``, and one GET if an entry is missing.
    """

    def path(version: int) -> str:
        return f"{table}/_delta_log/{version:020d}"

    hint = checkpoint_hint(store, table)
    found = listed(store, table, after=None if hint is None else path(hint), most=NAMES)
    if hint is not None and hint not in found.checkpoints:
        return f"the log of {table} names checkpoint {hint}, which is not there"
    wanted = 1 + (max(found.checkpoints, default=-1) if hint is None else hint)
    for version in found.entries:
        # What came while the names were listed may be missing from the list only.
        while wanted < version:
            if not store.exists(f"{path(wanted)}.json"):
                return f"the log of {table} lacks entry {wanted}, although entry {version} is there"
            wanted += 1
        wanted = max(wanted, version + 1)
    return None
