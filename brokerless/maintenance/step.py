"""The common parts of all maintenance steps: limits, the rules of a table, listings of its log."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from brokerless.errors import BrokerlessError, LogIncomplete
from brokerless.log.entries import ENGINE_KEY, PARTITIONS_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from brokerless.clock import Clock
    from brokerless.log.checkpoint import TableState
    from brokerless.log.entries import Metadata
    from brokerless.log.log import DeltaLog
    from brokerless.store import ObjectInfo, Store

TOMBSTONE_RETENTION_S: Final = 7 * 86400.0
"""How long checkpoints retain tombstones, and objects that no entry names stay, unless the table has a property for it
(Delta's default)."""

MIN_LOG_RETENTION_S: Final = 3600.0
"""Sixty times the time for which writers trust their view of the head (``log.FRESH_S``)."""

DELTA_LOG_RETENTION_S: Final = 30 * 86400.0
"""How long other writers retain log entries, unless the table has a property for it (Delta's default)."""

NOT_OURS: Final = "not a table of this kit; name it to have it maintained by its own retention times"
"""The reason in the report of a table that another program created."""

ENTRY: Final = re.compile(r".*/\d{20}\.json")
DELETE_BATCH: Final = 1000
_T = TypeVar("_T")
_UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}


@dataclass(slots=True)
class Report:
    """The result of one run for one table.

    Attributes:
        table: the partition's table, relative to the root.
        checkpoint: the version of the new checkpoint; None if none was due.
        entries_removed: the number of log entries that clean-up removed, without checkpoints.
        objects_removed: the number of removed data objects: orphans, and files whose tombstones have expired.
        bytes_removed: the size of everything removed.
        entries_expired: the number of commits whose messages retention has removed.
        objects_merged: the number of small objects that were merged into larger ones.
        skipped: the reasons why steps were not done; empty in a normal run.
    """

    table: str
    checkpoint: int | None = None
    entries_removed: int = 0
    objects_removed: int = 0
    bytes_removed: int = 0
    entries_expired: int = 0
    objects_merged: int = 0
    skipped: tuple[str, ...] = ()


class NoTimeLeft(BrokerlessError):
    """The time of a run was over before the step was done."""


class ForeignTable(BrokerlessError):
    """Another program created the table, and nobody named it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a maintainer.

    Attributes:
        checkpoint_every: the number of commits between two checkpoints.
        log_retention_s: how long entries are retained.
        grace_s: how old an unreferenced object must be.
        settle_s: how long a checkpoint must have been readable before entries below it are removed.
        skew_s: the assumed difference between an upload and its commit, and between the clocks of writers.
        any_table: whether tables of other programs are maintained, because they were named.
        merge_every: so many small objects are merged into one.
    """

    checkpoint_every: int
    log_retention_s: float
    grace_s: float
    settle_s: float
    skew_s: float
    any_table: bool
    merge_every: int


@dataclass(frozen=True, slots=True)
class Rules:
    """The times that apply to one table.

    Attributes:
        kit: whether this kit writes the table; its writers commit within minutes what they upload.
        log_retention_s: how long entries are retained.
        foreign_grace_s: the grace time of objects that another writer may be about to commit.
        removed_s: how long an object is retained after a commit has removed it.
    """

    kit: bool
    log_retention_s: float
    foreign_grace_s: float
    removed_s: float


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log by its listing, which proves that no entry is missing between the checkpoint and the end."""

    hint: int | None
    last: int


@dataclass(frozen=True, slots=True)
class StoreTime:
    """The store's time at the beginning of a run, and how far this machine's clock is ahead of it."""

    now_s: float
    ahead_s: float


@dataclass(frozen=True, slots=True)
class Work:
    """The maintenance of one table while its steps run: until when, by which time, and the report so far."""

    until_s: float
    time: StoreTime
    report: Report
    collect_garbage: bool = True

    @property
    def rewrites(self) -> bool:
        """Whether it is time to look at the table itself: once a checkpoint's worth of commits has come, and daily."""
        return self.collect_garbage or self.report.checkpoint is not None


class TableStep:
    """A step of the maintenance of a table."""

    def __init__(self, store: Store, clock: Clock, limits: Limits) -> None:
        self._store = store
        self._clock = clock
        self._limits = limits
        self._listed_by_name = not store.uri.startswith("file:")

    def _load(self, log: DeltaLog, end: LogEnd, *, with_files: bool = False) -> TableState:
        """Return the state, after every entry after the checkpoint was read in full."""
        state = log.load(with_files=with_files)
        if state.version < end.last:
            raise incomplete(log, state.version + 1)
        return state

    def _rules(self, log: DeltaLog, metadata: Metadata) -> Rules:
        properties = metadata.configuration
        sparks = properties.get(ENGINE_KEY) == "delta"
        if not (sparks or PARTITIONS_KEY in properties or self._limits.any_table):
            raise ForeignTable(NOT_OURS)
        kit = PARTITIONS_KEY in properties and not sparks
        # A time that cannot be parsed means for ever. This kit's topics only have the properties that a user has set.
        retain_log_s = interval_s(properties, "delta.logRetentionDuration", 0.0 if kit else DELTA_LOG_RETENTION_S)
        if properties.get("delta.enableExpiredLogCleanup", "true").lower() != "true":
            retain_log_s = math.inf
        retention = "delta.deletedFileRetentionDuration"
        return Rules(
            kit,
            max(self._limits.log_retention_s, retain_log_s),
            max(self._limits.grace_s, interval_s(properties, retention, TOMBSTONE_RETENTION_S)),
            interval_s(properties, retention, 0.0 if kit else TOMBSTONE_RETENTION_S),
        )

    def _in_time(self, items: Iterable[_T], work: Work) -> Iterator[_T]:
        for done, item in enumerate(items):
            if self._clock.monotonic() >= work.until_s:
                raise NoTimeLeft(f"the time of the run ended after {done} of its parts; give a run more time")
            yield item

    def _versioned(self, folder: str, *, after: str | None = None) -> Iterator[tuple[int, ObjectInfo]]:
        """List entries and checkpoints of a log with their versions, oldest first."""
        objects = self._store.list(folder, after=after)
        # Object stores list by name, which is by version; a local folder comes in any order.
        for info in objects if self._listed_by_name else sorted(objects, key=lambda found: found.path):
            name = info.path.rpartition("/")[2]
            if re.match(r"\d{20}\.", name):
                yield int(name[:20]), info


def batches(found: list[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    """Split objects into batches of one DELETE request."""
    for start in range(0, len(found), DELETE_BATCH):
        yield found[start : start + DELETE_BATCH]


def incomplete(log: DeltaLog, version: int) -> LogIncomplete:
    """Return the error of an entry that is missing although later entries exist."""
    return LogIncomplete(
        f"Entry {version} of the log of {log.uri} is missing although later entries exist, so nothing was written or "
        "removed. Restore the entry, or wait for the replica; 'brokerless verify' shows more.",
        version=version,
    )


def tombstone_retention_s(state: TableState) -> float:
    """Return how long checkpoints retain tombstones; 0, the safe value, if the property cannot be parsed."""
    retention_s = interval_s(state.metadata.configuration, "delta.deletedFileRetentionDuration", TOMBSTONE_RETENTION_S)
    return retention_s if retention_s < math.inf else 0.0


def interval_s(properties: Mapping[str, str], name: str, default_s: float) -> float:
    """Return a time in a table's properties; infinity if it cannot be parsed."""
    text = properties.get(name)
    if text is None:
        return default_s
    match = re.fullmatch(r"(?:interval\s+)?(\d+)\s+([a-z]+?)s?", text.strip().lower())
    return int(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else math.inf
