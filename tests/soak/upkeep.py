"""Maintenance in a soak: ``python -m tests.soak.upkeep FOLDER``; settings by environment.

A run of half an hour would see nothing removed: entries stay for an hour at least. So time is scaled here, all of it by
the same factor: the retention, the wait for checkpoints to settle, the grace for orphans and the allowance for clocks.
What writers and readers rely on stays true in proportion, as long as no process is stopped for a retention.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from brokerless.errors import BrokerlessError
from brokerless.maintenance import maintainer as maintenance
from brokerless.maintenance.maintainer import Maintainer
from brokerless.settings import Settings
from tests.soak.load import Plan
from tests.soak.talk import Stop, say

TURN_S = 5.0


def main(folder: Path) -> int:
    """Checkpoints, clean-up and orphans, over and over, until it is told to stop."""
    stop = Stop()
    plan = Plan.load(folder)
    maintainer = scaled(Settings.load(dotenv=None), plan.retention_s)
    say("started")
    while not stop:
        try:
            for report in maintainer.run_once():
                say("report", **asdict(report))
        except BrokerlessError as error:
            say("report", skipped=[f"{type(error).__name__}: {error}"])
        stop.wait(TURN_S)
    return 0


def scaled(settings: Settings, retention_s: float) -> Maintainer:
    """A maintainer for which the shortest retention is this long, and everything else in proportion."""
    factor = retention_s / maintenance.MIN_LOG_RETENTION_S
    for name in ("MIN_LOG_RETENTION_S", "MIN_GRACE_S", "SETTLE_S", "_SKEW_S"):
        setattr(maintenance, name, getattr(maintenance, name) * factor)
    return Maintainer(settings=settings, log_retention_s=retention_s, grace_s=maintenance.MIN_GRACE_S)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
