"""Remove messages that a topic need not keep: too old, too many, or read by every group.

The step finds the first entry that stays, and commits one entry that removes the files of those before it and moves the
start of the log (``START_TXN``). A reader that opens below it gets ``OffsetOutOfRange`` with the earliest offset. Log
clean-up then removes the entries, and garbage collection the objects, so readers under way go on meanwhile.

Where log clean-up had removed entries before the topic had a limit, their files are still in the table. These go first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerless.errors import ConfigError
from brokerless.groups.objects import committed_versions
from brokerless.log.entries import (
    PARTITIONS_KEY,
    RETENTION_BYTES_KEY,
    RETENTION_KEY,
    RETENTION_KEYS,
    RETENTION_READ_KEY,
    START_TXN,
)
from brokerless.log.rewrite import Rewrite
from brokerless.maintenance.compaction import compacted_range, entries_of, files_without_entry
from brokerless.maintenance.step import ENTRY, LogEnd, TableStep, Work, incomplete
from brokerless.schema import split_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokerless.log.checkpoint import TableState
    from brokerless.log.log import DeltaLog


class Retention(TableStep):
    """The step that removes what a topic need not keep."""

    def expire(self, log: DeltaLog, end: LogEnd, work: Work) -> None:
        """Remove the messages that are beyond one of the topic's limits."""
        if not work.rewrites:
            return
        properties = self._properties(log)
        if PARTITIONS_KEY not in properties or not any(key in properties for key in RETENTION_KEYS):
            return
        start = log.earliest()
        known = (log.txn(START_TXN) or 0) >= start
        oldest_s = 0.0
        if RETENTION_KEY in properties:
            oldest_s = work.time.now_s - _limit(log, properties, RETENTION_KEY) / 1000
        found = max(start, self._by_age(log, start, end, oldest_s), self._by_groups(log, properties))
        limit = _limit(log, properties, RETENTION_BYTES_KEY) if RETENTION_BYTES_KEY in properties else 2**63
        if found <= start and known and RETENTION_BYTES_KEY not in properties:
            return
        state = self._load(log, end, with_files=True)
        found = min(found, end.last + 1)
        removes: list[str] = []
        size = sum(add.size for add in state.files.values())
        if not known:
            for add in files_without_entry(state, entries_of(log, state, start), start):
                if found > start or add.modified_ms < oldest_s * 1000 or size > limit:
                    removes.append(add.path)
                    size -= add.size
        files, found = _files_before(log, state, start, found, size - limit)
        removes += files
        if found > start or removes:
            log.rewrite(
                Rewrite("DELETE", state.version, removes=tuple(dict.fromkeys(removes)), txns={START_TXN: found})
            )
            work.report.entries_expired += found - start

    def _by_age(self, log: DeltaLog, start: int, end: LogEnd, oldest_s: float) -> int:
        """Return the first entry that is young enough, by the store's time."""
        if not oldest_s:
            return start
        after = log.entry_path(start - 1) if start else None
        for version, info in self._versioned(f"{log.table}/_delta_log", after=after):
            if ENTRY.fullmatch(info.path) and version >= start and info.modified_s >= oldest_s:
                return version
        return end.last + 1

    def _by_groups(self, log: DeltaLog, properties: Mapping[str, str]) -> int:
        """Return the first entry that some group has not read; 0 if no group has read anything."""
        if properties.get(RETENTION_READ_KEY) != "true":
            return 0
        topic, number = split_table(log.table)
        return min(committed_versions(self._store, topic, number, log.table_id, clock=self._clock), default=0)


def remove_before(log: DeltaLog, version: int) -> None:
    """Remove the messages before an entry now, whatever the topic's limits are.

    Raises:
        RewriteConflict: other maintenance was faster.
        LogIncomplete: an entry is missing.
    """
    start = log.earliest()
    state = log.load(with_files=True)
    removes, found = _files_before(log, state, start, min(version, state.version + 1), 0)
    if found > start:
        log.rewrite(Rewrite("DELETE", state.version, removes=tuple(dict.fromkeys(removes)), txns={START_TXN: found}))


def _files_before(log: DeltaLog, state: TableState, start: int, found: int, too_much: int) -> tuple[list[str], int]:
    """Return the live files of the entries before the new start, and that start, which their size may move."""
    merged: dict[int, list[str]] = {}
    for path in state.files:
        if (last := compacted_range(path)[1]) >= 0:
            merged.setdefault(last, []).append(path)
    removes: list[str] = []
    expected = start
    for entry in log.read_from(start):
        if entry.version != expected:
            raise incomplete(log, expected)
        if entry.version > state.version or (entry.version >= found and too_much <= 0):
            break
        files = {add.path for add in entry.adds if add.path in state.files and compacted_range(add.path)[1] < 0}
        files.update(merged.get(entry.version, ()))
        too_much -= sum(state.files[path].size for path in files)
        removes += files
        expected = entry.version + 1
    return removes, expected


def _limit(log: DeltaLog, properties: Mapping[str, str], key: str) -> int:
    text = properties[key]
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"The property {key} of {log.uri} is {text[:40]!r}, not a number; set it by 'topics alter'.")
    return int(text)
