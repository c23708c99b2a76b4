"""Maintain tables beside running programs: checkpoints, retention, merging, log clean-up and garbage collection.

Invariants: what is committed has no new messages and is passed over by readers, no lock is taken, and no object that a
retained entry names is removed but those of which rows were erased, so producers, pipelines and readers are not
affected. A table whose log has a missing entry is reported as ``LogIncomplete`` and not changed. Ages are measured by
the store's time; a maintainer's clock only decides when it runs. Without names only tables of this kit are maintained.
``docs/maintenance.md`` explains the rules and their reasons.

Not covered: two maintainers of one table of which one is suspended for longer than the log retention between writing a
checkpoint and its hint. Run one maintainer for each topic.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import (
    AccessDenied,
    BrokerlessError,
    BucketNotFound,
    ConfigError,
    LogIncomplete,
    StoreError,
    StoreUnavailable,
    TopicNotFound,
    UnsupportedTable,
)
from brokerless.log.entries import PARTITIONS_KEY
from brokerless.log.log import DeltaLog
from brokerless.maintenance.compaction import Compaction
from brokerless.maintenance.garbage import GarbageCollection
from brokerless.maintenance.groups import remove_members
from brokerless.maintenance.log_cleanup import LogCleanup
from brokerless.maintenance.log_end import FindEnd
from brokerless.maintenance.retention import Retention
from brokerless.maintenance.step import MIN_LOG_RETENTION_S, NOT_OURS, ForeignTable, Limits, Report, StoreTime, Work
from brokerless.schema import check_name, is_table, partition_table, split_table
from brokerless.settings import Settings
from brokerless.store import open_store

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence

    from brokerless.store import Store

CHECKPOINT_EVERY: Final = 100
MERGE_EVERY: Final = 1000
"""Each merge is an entry with as many removed files; and the table has this many small objects at most."""

LOG_RETENTION_S: Final = 7 * 86400.0
GRACE_S: Final = 3600.0
MIN_GRACE_S: Final = 3600.0
"""The age of an object at its commit is at most 40 minutes; the rest is a margin. A writer that knows how long it
waited uploads again after ten minutes (``commit.UPLOAD_VALID_S``). A suspended machine may not know, but S3 refuses
requests whose signing time differs by over 15 minutes: the upload can be 15 early, the entry 15 late, 10 between."""

SETTLE_S: Final = 600.0
"""How long a checkpoint must have been readable before entries below it are removed."""

GARBAGE_EVERY_S: Final = 86400.0
"""How often garbage is collected. Only crashes make orphans, but the listing of every object costs: four times an hour
it was a fifth of the bill of a busy topic (``brokerless cost --clean-up-every-h 0.25``)."""

TIME_PATH: Final = "_brokerless/time/maintenance"
"""The object that each run writes to learn the store's time, relative to the root."""

ROUND_PATH: Final = "_brokerless/maintenance.json"
"""The object with the position of ``run_round``, relative to the root."""

NO_TABLE: Final = "no table"
"""The reason in the report of a folder that is not a table."""

_SCHEDULE_JITTER_S: Final = 60.0  # schedules are exact to the minute; a few seconds must not postpone a collection
_SKEW_S: Final = 3600.0  # between an upload and its commit by the store's time, and between clocks of a table's writers


@dataclass(frozen=True, slots=True)
class _Round:
    """The position of a round over all tables, in the order of their names. ``after`` is empty before the first round.

    ``collect_garbage`` is that of this round, and ``garbage_at_s`` the beginning of the last round that collected.
    """

    after: str = ""
    collect_garbage: bool = False
    garbage_at_s: float = 0.0


class Maintainer:
    """Maintains the tables of topics. It has no state that a crash could lose.

    Args:
        topics: names; None for all topics below the root, with deleted ones. Tables of other programs must be named.
        settings: the root and the store; by default from the environment.
        store: a store, instead of that of the settings.
        checkpoint_every: the number of commits between two checkpoints. Opening a table reads at most this number of
            entries; a checkpoint takes time in proportion to the live files.
        log_retention_s: how far back in time readers may go.
        grace_s: how old an unreferenced object must be; longer than any producer's ``delivery_timeout_s``.
        merge_every: so many small objects of a table are merged into a larger one.
        unsafe_no_minimum: for tests only: accept any retention and grace time, and do not wait for checkpoints to
            settle. Beside a running writer this loses messages.
        clock: time, randomness and sleeping.

    Raises:
        ConfigError: a retention or grace time is below its minimum.
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
        merge_every: int = MERGE_EVERY,
        unsafe_no_minimum: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        if checkpoint_every < 1:
            raise ConfigError(f"checkpoint_every must be at least 1, got {checkpoint_every}.")
        if not unsafe_no_minimum and (log_retention_s < MIN_LOG_RETENTION_S or grace_s < MIN_GRACE_S):
            raise ConfigError(
                f"The log retention must be at least {MIN_LOG_RETENTION_S:g} s and the grace time at least "
                f"{MIN_GRACE_S:g} s to be safe beside running writers, got {log_retention_s:g} and {grace_s:g}."
            )
        self._store = store or open_store(settings or Settings.load())
        self._topics = None if topics is None else [check_name(topic) for topic in topics]
        self._clock = clock
        limits = Limits(
            checkpoint_every=checkpoint_every,
            log_retention_s=log_retention_s,
            grace_s=grace_s,
            # The checkpoint of this run is younger than the run.
            settle_s=-math.inf if unsafe_no_minimum else SETTLE_S,
            skew_s=0.0 if unsafe_no_minimum else _SKEW_S,
            any_table=topics is not None,
            merge_every=merge_every,
        )
        self._end = FindEnd(self._store, clock, limits)
        self._cleanup = LogCleanup(self._store, clock, limits)
        self._retention = Retention(self._store, clock, limits)
        self._compaction = Compaction(self._store, clock, limits)
        self._garbage = GarbageCollection(self._store, clock, limits)

    def run_once(self, *, collect_garbage: bool = True) -> list[Report]:
        """Run all steps that are due, table by table. A table that fails is reported and does not stop the others.

        Args:
            collect_garbage: also remove orphaned objects, which lists each table.

        Raises:
            TopicNotFound: one of the named topics never existed.
            StoreUnavailable, AccessDenied, BucketNotFound: the topics could not be listed.
        """
        tables = self._tables()
        time = self._ask_time() if tables else StoreTime(0.0, 0.0)
        reports = [self._maintain(table, time, collect_garbage=collect_garbage) for table in tables]
        return reports + (self._groups(time) if tables and collect_garbage else [])

    def run_round(self, *, until_s: float = math.inf, garbage_every_s: float = GARBAGE_EVERY_S) -> Iterator[Report]:
        """Continue the round over all tables where the last call stopped, and yield each table's report.

        A call ends after the last table or when its time is over, but never before the first table, so each call makes
        progress. A step that the time interrupts is reported as skipped, and the next call begins with the next table.

        Args:
            until_s: when to stop, on the clock's ``monotonic``. A checkpoint is not interrupted.
            garbage_every_s: a round collects garbage if the last round that did so began this long ago. Such a round
                may take several calls.

        Raises:
            TopicNotFound, StoreUnavailable, AccessDenied, BucketNotFound: as ``run_once``; also if the position of the
                round could not be read or written.
        """
        position = self._load_round()
        tables = sorted(self._tables())
        if not tables:
            return
        time = self._ask_time()
        rest = [table for table in tables if table > position.after]
        if not position.after or not rest:
            due = time.now_s - position.garbage_at_s >= garbage_every_s - _SCHEDULE_JITTER_S
            position = _Round("", due, time.now_s if due else position.garbage_at_s)
            rest = tables
        for number, table in enumerate(rest):
            position = replace(position, after=table)
            if number == 0:
                self._save_round(position)
            yield self._maintain(table, time, collect_garbage=position.collect_garbage, until_s=until_s)
            if self._clock.monotonic() >= until_s:
                break
        if len(rest) > 1:
            self._save_round(position)
        if position.collect_garbage and position.after == tables[-1]:
            yield from self._groups(time)

    def _groups(self, time: StoreTime) -> list[Report]:
        """Remove what members of groups left, unless only some topics are maintained."""
        report = None if self._topics is not None else remove_members(self._store, self._clock, time.now_s)
        return [] if report is None else [report]

    def _load_round(self) -> _Round:
        try:
            found = json.loads(self._store.get(ROUND_PATH))
            return _Round(str(found["after"]), bool(found["sweep"]), float(found["swept_at_s"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return _Round()  # none yet, or damaged: a round from the start does no harm

    def _save_round(self, position: _Round) -> None:
        values = {
            "after": position.after,
            "sweep": position.collect_garbage,
            "swept_at_s": position.garbage_at_s,
        }
        self._store.put(ROUND_PATH, json.dumps(values).encode())

    def _ask_time(self) -> StoreTime:
        """Return the store's time, from the time of an object that was just written.

        It is used for the whole run: a time that is too early removes less.
        """
        self._store.put(TIME_PATH, b"")
        local_s = self._clock.time_us() / 1e6
        for info in self._store.list(TIME_PATH.rpartition("/")[0]):
            if info.path == TIME_PATH:
                return StoreTime(info.modified_s, local_s - info.modified_s)
        raise StoreError(
            f"{self._store.uri}/{TIME_PATH} was written and is not listed. Nothing is removed without the store's time."
        )

    def watch(self, interval_s: float, stop: threading.Event) -> Iterator[list[Report]]:
        """Run every ``interval_s`` until ``stop`` is set, and yield each run's reports.

        Garbage is collected every ``GARBAGE_EVERY_S``. After an error of the store the next run tries again.
        """
        garbage_at = self._clock.monotonic()
        while not stop.is_set():
            due = self._clock.monotonic() >= garbage_at
            if due:
                garbage_at = self._clock.monotonic() + GARBAGE_EVERY_S
            try:
                yield self.run_once(collect_garbage=due)
            except TopicNotFound:
                raise
            except BrokerlessError as error:
                yield [Report("", skipped=(str(error),))]
            stop.wait(interval_s)

    def _tables(self) -> list[str]:
        if self._topics is None:
            # Not list_topics: the tables of deleted topics have most to remove. But only names that a topic may have:
            # delta-rs reads the folder "%2e%2e" as the parent folder, outside the root.
            return [name for name in self._store.folders() if is_table(name)]
        tables: list[str] = []
        for topic in self._topics:
            try:
                metadata = DeltaLog(self._store, topic, clock=self._clock).load().metadata
            except (StoreUnavailable, AccessDenied, BucketNotFound):
                raise
            except (UnsupportedTable, StoreError):
                # A damaged log must be reported, and must not stop the other topics.
                tables += [name for name in self._store.folders() if is_table(name) and split_table(name)[0] == topic]
                continue
            partitions = int(metadata.configuration.get(PARTITIONS_KEY, "1"))
            tables += [partition_table(topic, number) for number in range(partitions)]
        return tables

    def _maintain(self, table: str, time: StoreTime, *, collect_garbage: bool, until_s: float = math.inf) -> Report:
        work = Work(until_s, time, Report(table), collect_garbage)
        log = DeltaLog(self._store, table, clock=self._clock)
        steps = [
            ("checkpoint", self._cleanup.write_checkpoint),
            ("retention", self._retention.expire),
            ("merging", self._compaction.compact),
            ("log clean-up", self._cleanup.clean_log),
        ]
        if collect_garbage:
            steps.append(("orphans", self._garbage.collect))
        name = "log"
        try:
            end = self._end.find(log)
            for name, step in steps:
                try:
                    step(log, end, work)
                except (LogIncomplete, ForeignTable):
                    raise  # nothing of such a table is changed
                except BrokerlessError as error:
                    work.report.skipped += (f"{name}: {error}",)
        except TopicNotFound:
            work.report.skipped += (NO_TABLE,)
        except ForeignTable:
            work.report.skipped += (NOT_OURS,)
        except LogIncomplete as error:
            work.report.skipped += (f"{name}: LogIncomplete: {error}",)
        except BrokerlessError as error:
            work.report.skipped += (f"{name}: {error}",)
        return work.report


def storage_options(settings: Settings) -> dict[str, str]:
    """Return the storage options of delta-rs (and Polars) for the settings' root. They have secrets: never log them."""
    if not settings.root.startswith("s3://"):
        return {}
    values = {
        "AWS_REGION": settings.region,
        # Both names: delta-rs prefers the second, and would take it from the environment.
        "AWS_ENDPOINT_URL": settings.endpoint,
        "AWS_ENDPOINT_URL_S3": settings.endpoint,
        "AWS_ALLOW_HTTP": "true" if (settings.endpoint or "").startswith("http://") else None,
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false" if settings.endpoint else None,
        "AWS_ACCESS_KEY_ID": settings.access_key,
        "AWS_SECRET_ACCESS_KEY": settings.secret_key,
        "AWS_SESSION_TOKEN": settings.session_token,
        "connect_timeout": "5s",
        "timeout": "60s",  # of one request; the checkpoint of a large table is one long PUT
    }
    return {key: value for key, value in values.items() if value is not None}
