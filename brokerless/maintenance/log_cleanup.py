"""Write checkpoints of a log, and remove old entries below them.

Invariants: an entry is removed only if it is older than the log retention and below a checkpoint that has been readable
for the settle time. Only entries at the beginning of the log are removed, and never past a missing one.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final, cast

from brokerless.errors import LogIncomplete, StoreError
from brokerless.log.checkpoint import read_checkpoint
from brokerless.log.entries import RETENTION_KEYS, START_TXN
from brokerless.log.log import DeltaLog
from brokerless.maintenance.checkpoints import LogCopy
from brokerless.maintenance.step import ENTRY, MIN_LOG_RETENTION_S, LogEnd, TableStep, Work, batches

if TYPE_CHECKING:
    from brokerless.store import ObjectInfo, Store

_CLOCK_OFF_S: Final = 1800.0  # of this machine's clock, by which delta-rs drops tombstones: far below their retention


class LogCleanup(TableStep):
    """Two steps: write a checkpoint that is due, and remove old entries."""

    def write_checkpoint(self, log: DeltaLog, end: LogEnd, work: Work) -> None:
        """Write a checkpoint if enough commits came after the last one."""
        if end.last - (-1 if end.hint is None else end.hint) < self._limits.checkpoint_every:
            return
        if abs(work.time.ahead_s) > _CLOCK_OFF_S:
            work.report.skipped += (
                f"checkpoint: this machine's clock differs from the store's by {work.time.ahead_s:+.0f} s, which would "
                "drop the wrong tombstones; set the clock",
            )
            return
        with LogCopy(self._store, log.table) as copy:
            state = self._load(DeltaLog(cast("Store", copy), log.table, clock=self._clock), end)
            if state.metadata.deleted:
                return  # the log of a deleted topic does not grow
            self._rules(log, state.metadata)
            try:
                copy.write_checkpoint(state.version)
            except ImportError:
                work.report.skipped += (
                    "checkpoint: deltalake is not installed; install brokerless with its extra 'local'",
                )
                return
        work.report.checkpoint = state.version

    def clean_log(self, log: DeltaLog, end: LogEnd, work: Work) -> None:
        """Remove entries and checkpoints that are older than the retention and below a settled checkpoint."""
        hint = log.checkpoint_version()
        if hint is None:
            return
        now_s = work.time.now_s
        folder = f"{log.table}/_delta_log"
        settled = hint if self._is_settled(log, hint, now_s) else -1
        retention_s = self._limits.log_retention_s
        # Where a topic has limits of its own, these decide what stays.
        start = _start(log) if work.rewrites else None
        if start is not None:
            retention_s = MIN_LOG_RETENTION_S if self._limits.settle_s > 0 else 0.0
        old: list[tuple[int, ObjectInfo]] = []
        last: int | None = None
        for version, info in self._versioned(folder):
            last = _next_entry(log, last, version, info, alone=len(old) == 1)
            # Only a prefix is removed: readers and ``earliest`` rely on the first entry that exists.
            if version >= hint or (start is not None and version >= start) or now_s - info.modified_s < retention_s:
                break
            old.append((version, info))
        if old and start is None and (start := _start(log)) is not None:
            old = [(version, info) for version, info in old if version < start]
        while True:
            expired = list(takewhile(lambda found: now_s - found[1].modified_s >= retention_s, old))  # noqa: B023
            # A checkpoint that is older than the retention has settled too.
            base = max([settled, *(version for version, info in expired if ".checkpoint." in info.path)])
            expired_below = [info for version, info in expired if version < base]
            if not expired_below:
                return
            # The checkpoint that replaces them is read before they are removed: a damaged one would lose the table.
            checkpoint = read_checkpoint(self._store, log.table, base, with_files=False)
            if checkpoint is None:
                raise StoreError(f"{log.uri}: checkpoint {base} is incomplete, so the entries below it are retained.")
            rules = self._rules(log, checkpoint.metadata)
            if start is not None or rules.log_retention_s <= retention_s:
                break
            retention_s = rules.log_retention_s
        for batch in self._in_time(batches(expired_below), work):
            self._store.delete([info.path for info in batch])
            work.report.entries_removed += sum(bool(ENTRY.fullmatch(info.path)) for info in batch)
            work.report.bytes_removed += sum(info.size for info in batch)

    def _is_settled(self, log: DeltaLog, hint: int, now_s: float) -> bool:
        """Whether the checkpoint that the hint names is old enough: on a quiet topic it is the only one."""
        folder = f"{log.table}/_delta_log"
        found = takewhile(lambda one: one[0] == hint, self._versioned(folder, after=f"{folder}/{hint:020d}"))
        ages = [now_s - info.modified_s for _, info in found if ".checkpoint." in info.path]
        return any(age_s >= self._limits.settle_s for age_s in ages)


def _start(log: DeltaLog) -> int | None:
    """Return the first entry that the topic's limits have left; None if it has no limits."""
    state = log.state
    limited = any(key in state.metadata.configuration for key in RETENTION_KEYS)
    return state.txns.get(START_TXN, 0) if limited else None


def _next_entry(log: DeltaLog, last: int | None, version: int, info: ObjectInfo, *, alone: bool) -> int | None:
    """Return the last entry's version with this object, and raise an error if an entry before it is missing.

    Once the entries before it are removed, nobody can see that it is missing. A single entry at the beginning is
    accepted, because a writer that was suspended may have written it; but not entry 0.
    """
    if not ENTRY.fullmatch(info.path):
        return last
    if last is not None and version != last + 1 and (last == 0 or not alone):
        raise LogIncomplete(
            f"Entry {last + 1} of the log of {log.uri} is missing, but entry {version} exists: it is late, lost or not "
            "yet restored. No entry was removed. Restore it; 'brokerless verify' shows what else is missing.",
            version=last + 1,
        )
    return version
