"""Maintenance: checkpoints, log clean-up and removal of orphaned objects, beside everything that runs.

Nothing here commits to a log, takes a lock or touches a live file, so producers, pipelines and readers do not notice:

* A checkpoint (written by delta-rs) is one more object beside the log, with a hint that names it.
* Clean-up removes entries from the front of the log. An entry goes only if it is older than the log retention (an hour
  at least) and lies below a checkpoint that has been readable for ``SETTLE_S``. Writers rely on both: they trust their
  view of the head for a minute and look again after that (invariant 4 of ``brokerless.log``), so a name is never freed
  while a writer may still believe that it is the next one; and whoever has just read an older hint finds all that it
  leads to. Readers that are further behind get ``OffsetOutOfRange`` with the earliest offset.
* An object is removed only when no retained entry can name it, and the log is asked once more right before. What the
  log does not know may be a producer's upload on its way to a commit: it is left alone for the grace time (an hour),
  far longer than any commit is tried. Rules, in the order of ``_is_garbage``:

  1. live: never;
  2. younger than the grace time: not yet;
  3. a tombstone: when the commit that removed it is older than the oldest retained entry, because then so is the one
     that added it, and no reader can meet it again. In a deleted topic: after the grace time;
  4. not in the log, and younger than the time for which a table keeps tombstones: it was never committed, an orphan;
  5. not in the log and older: its tombstone may have been dropped, so as with rule 3.

delta-rs's own ``vacuum`` is not used: it commits two entries a run, which wake every reader, and it does not know which
entries readers may still ask for. Its ``cleanup_metadata`` takes the retention from the table only and does not wait for
a checkpoint to settle.

Not covered: two maintainers of one table of which one is suspended for longer than the log retention between writing a
checkpoint and its hint. Run one per topic.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import batched, takewhile
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from brokerless.admin import describe_topic, list_topics
from brokerless.clock import SYSTEM, Clock
from brokerless.entries import PARTITIONS_KEY
from brokerless.errors import BrokerlessError, ConfigError, TopicNotFound
from brokerless.log import DeltaLog
from brokerless.settings import Settings
from brokerless.store import open_store
from brokerless.topics import check_name, partition_table, split_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokerless.log import TableState
    from brokerless.store import ObjectInfo, Store

CHECKPOINT_EVERY: Final = 100
LOG_RETENTION_S: Final = 7 * 86400.0
MIN_LOG_RETENTION_S: Final = 3600.0
"""Sixty times what writers trust their view of the head for (``log.FRESH_S``)."""

GRACE_S: Final = 3600.0
MIN_GRACE_S: Final = 1800.0
"""Sixty times the default deadline of a commit, and three times ``producer.UPLOAD_VALID_S``."""

SETTLE_S: Final = 600.0
"""How long a checkpoint must have been readable before entries below it go."""

SWEEP_EVERY_S: Final = 900.0
"""How often ``watch`` looks for orphans: that lists every object of a table, while orphans come from crashes only."""

TOMBSTONE_RETENTION_S: Final = 7 * 86400.0
"""For how long checkpoints keep tombstones unless the table says otherwise (Delta's default)."""

_SKEW_S: Final = 3600.0  # how far the clocks of a table's writers and of its store may be apart
_DELETE_BATCH: Final = 1000
_UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}


@dataclass(frozen=True, slots=True)
class Report:
    """What one run did to one table.

    Attributes:
        table: the partition's table, relative to the root.
        checkpoint: the version of the checkpoint written now; None if none was due.
        entries_removed: log entries that clean-up removed (checkpoints among them not counted).
        objects_removed: data objects: orphans, and files whose tombstones have expired.
        bytes_removed: the size of everything removed.
        skipped: why something was not done, in words; empty in a normal run.
    """

    table: str
    checkpoint: int | None = None
    entries_removed: int = 0
    objects_removed: int = 0
    bytes_removed: int = 0
    skipped: tuple[str, ...] = ()


class Maintainer:
    """Keeps the tables of some topics in order. Holds no state that a crash could lose.

    Args:
        topics: names; all topics below the root, deleted ones too, if None.
        settings: where; read from the environment by default.
        store: instead of the one that the settings name (tables that are not on S3 or local disk get no checkpoints
            without ``settings``).
        checkpoint_every: write a checkpoint once this many commits came after the last one. Whoever opens a table reads
            up to so many entries; a checkpoint costs time in proportion to the live files.
        log_retention_s: how far back in time readers may go.
        grace_s: how old an unreferenced object must be. Longer than any producer's ``delivery_timeout_s``.
        unsafe_no_minimum: for tests only: accept any retention and grace time, and do not wait for checkpoints to
            settle. Beside a running writer this loses messages.
        clock: time, randomness and sleeping.

    Raises:
        ConfigError: a retention or grace time below its minimum.
    """

    def __init__(
        self,
        topics: Sequence[str] | None = None,
        *,
        settings: Settings | None = None,
        store: Store | None = None,
        checkpoint_every: int = CHECKPOINT_EVERY,
        log_retention_s: float = LOG_RETENTION_S,
        grace_s: float = GRACE_S,
        unsafe_no_minimum: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        if checkpoint_every < 1:
            msg = f"checkpoint_every is {checkpoint_every}; it must be at least 1."
            raise ConfigError(msg)
        if not unsafe_no_minimum and (log_retention_s < MIN_LOG_RETENTION_S or grace_s < MIN_GRACE_S):
            msg = (
                f"A log retention of {log_retention_s:g} s with a grace time of {grace_s:g} s is not safe beside running "
                f"writers; use at least {MIN_LOG_RETENTION_S:g} and {MIN_GRACE_S:g}."
            )
            raise ConfigError(msg)
        self._settings = settings or (Settings.load() if store is None else None)
        self._store = store or open_store(self._settings or Settings.load())
        self._topics = None if topics is None else [check_name(topic) for topic in topics]
        self._checkpoint_every = checkpoint_every
        self._log_retention_s = log_retention_s
        self._grace_s = grace_s
        self._settle_s = 0.0 if unsafe_no_minimum else SETTLE_S
        self._skew_s = 0.0 if unsafe_no_minimum else _SKEW_S
        self._clock = clock

    def run_once(self, *, sweep: bool = True) -> list[Report]:
        """Does what is due, table by table. A table that fails is reported as skipped and does not stop the others.

        Args:
            sweep: also look for orphaned objects, which lists each table.

        Raises:
            TopicNotFound: one of the named topics does not exist and never did.
            StoreUnavailable, AccessDenied, BucketNotFound: the topics could not be listed.
        """
        return [self._maintain(table, sweep=sweep) for table in self._tables()]

    def watch(self, interval_s: float, stop: threading.Event) -> Iterator[list[Report]]:
        """Runs every ``interval_s`` until ``stop`` is set, and yields each run's reports.

        Orphans are looked for every ``SWEEP_EVERY_S``. A store that fails is tried again at the next turn.
        """
        sweep_at = self._clock.monotonic()
        while not stop.is_set():
            sweep = self._clock.monotonic() >= sweep_at
            if sweep:
                sweep_at = self._clock.monotonic() + SWEEP_EVERY_S
            try:
                yield self.run_once(sweep=sweep)
            except TopicNotFound:
                raise
            except BrokerlessError as error:
                yield [Report("", skipped=(str(error),))]
            stop.wait(interval_s)

    def _tables(self) -> list[str]:
        if self._topics is None:
            # Not list_topics: the tables of deleted topics are what there is most to remove from.
            return [name for name in self._store.folders() if not name.startswith(("_", "."))]
        tables: list[str] = []
        for topic in self._topics:
            metadata = DeltaLog(self._store, topic, clock=self._clock).load().metadata
            partitions = int(metadata.configuration.get(PARTITIONS_KEY, "1"))
            tables += [partition_table(topic, number) for number in range(partitions)]
        return tables

    def _maintain(self, table: str, *, sweep: bool) -> Report:
        work = _Work(table)
        log = DeltaLog(self._store, table, clock=self._clock)
        steps = [("checkpoint", self._checkpoint), ("log clean-up", self._clean_log)]
        if sweep:
            steps.append(("orphans", self._sweep))
        for name, step in steps:
            try:
                step(log, work)
            except TopicNotFound:
                work.skipped.append("no table")
                break
            except BrokerlessError as error:
                work.skipped.append(f"{name}: {error}")
        return work.report()

    def _checkpoint(self, log: DeltaLog, work: _Work) -> None:
        last, head = log.checkpoint_version(), log.head_of_any()
        if head - (-1 if last is None else last) < self._checkpoint_every:
            return
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError
        except ImportError:
            work.skipped.append("checkpoint: deltalake is not installed; install brokerless with its extra 'local'")
            return
        options = {} if self._settings is None else storage_options(self._settings)
        try:
            delta = DeltaTable(f"{table_uri(self._store.uri)}/{log.table}", storage_options=options)
            delta.create_checkpoint()
        except (DeltaError, OSError) as error:
            work.skipped.append(f"checkpoint: {_first_line(error)}")
            return
        work.checkpoint = delta.version()

    def _clean_log(self, log: DeltaLog, work: _Work) -> None:
        hint = log.checkpoint_version()
        if hint is None:
            return
        now_s = self._clock.time_us() / 1e6
        found: list[tuple[int, ObjectInfo]] = []
        settled = -1
        for info in self._in_order(f"{log.table}/_delta_log"):
            name = info.path.rpartition("/")[2]
            if not re.match(r"\d{20}\.", name):
                continue
            version = int(name[:20])
            if version >= hint and not (version == hint and ".checkpoint." in name):
                break
            if ".checkpoint." in name and now_s - info.modified_s >= self._settle_s:
                settled = max(settled, version)
            # Only a prefix goes: readers and ``earliest`` rely on presence going from no to yes once.
            if now_s - info.modified_s < self._log_retention_s:
                break
            found.append((version, info))
        if settled < hint and found:
            newest = [i for i in self._store.list(f"{log.table}/_delta_log", after=found[-1][1].path) if _is_checkpoint(i, hint)] if False else []
            del newest
        gone = [(version, info) for version, info in found if version < settled]
        for batch in batched(gone, _DELETE_BATCH):
            self._store.delete([info.path for _, info in batch])
            work.entries_removed += sum(info.path.endswith(".json") for _, info in batch)
            work.bytes_removed += sum(info.size for _, info in batch)
