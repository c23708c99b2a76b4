"""Looks for entries that a log lacks although later ones are there, at a bounded cost; ``table`` looks at everything.

A hole is late, lost or not yet restored: what is behind it was acknowledged, and nothing may be concluded from it.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from brokerless.replay import checkpoint_hint

if TYPE_CHECKING:
    from brokerless.store import Store

NAMES: Final = 10_000
"""How many names behind the last checkpoint are looked at: ten LIST. Maintenance leaves a hundredth of it."""

_ENTRY: Final = re.compile(r"(\d{20})\.json")


def find_hole(store: Store, table: str) -> str | None:
    """What is wrong with the log behind its last checkpoint; None if nothing is, or if there is no log.

    One GET, one LIST for every thousand names up to ``NAMES``, and one GET if an entry is missing.
    """
    folder = f"{table}/_delta_log"
    hint = checkpoint_hint(store, table)
    found = store.list(folder, after=None if hint is None else f"{folder}/{hint:020d}")
    # A local folder comes in any order, so that its first names are not its oldest.
    infos = found if store.uri.startswith("file:") else islice(found, NAMES)
    names = [info.path.rpartition("/")[2] for info in infos]
    checkpoints = {int(name[:20]) for name in names if ".checkpoint." in name and name[:20].isdecimal()}
    if hint is not None and hint not in checkpoints:
        return f"the log of {table} names checkpoint {hint}, which is not there"
    begin = max(checkpoints, default=-1) if hint is None else hint
    wanted = begin + 1
    for version in sorted(int(match[1]) for name in names if (match := _ENTRY.fullmatch(name))):
        # What came while the names were listed may be missing from the list only.
        while wanted < version:
            if not store.exists(f"{folder}/{wanted:020d}.json"):
                return f"the log of {table} lacks entry {wanted}, although entry {version} is there"
            wanted += 1
        wanted = max(wanted, version + 1)
    return None
