"""``python -m tests.malformed.worker ADDRESS``: the process in which attacks happen; see ``runner``."""

from __future__ import annotations

import sys

from tests.malformed.runner import work

if __name__ == "__main__":
    work(sys.argv[1], bytes.fromhex(sys.stdin.read()))
