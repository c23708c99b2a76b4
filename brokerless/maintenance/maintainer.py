"""Maintenance: checkpoints, log clean-up and removal of orphaned objects, beside everything that runs.

Nothing here commits to a log, takes a lock or touches a live file, so producers, pipelines and readers do not notice:

* A checkpoint is one more object beside the log, with a hint that names it (``brokerless.maintenance.checkpoints``).
* Clean-up removes entries from the front of the log. An entry goes only if it is older than the log retention (an hour
  at least) and lies below a checkpoint that has been readable for ``SETTLE_S``. Writers rely on both: they trust their
  view of the head for a minute and look again after that (invariant 4 of ``brokerless.log.log``), so a name is never
  freed while a writer may still believe that it is the next one; and whoever has just read an older hint finds all that
  it leads to. Readers that are further behind get ``OffsetOutOfRange`` with the earliest offset.
* An object is removed only when no retained entry can name it, and the log is asked once more right before. What the
  log does not know may be a producer's upload on its way to a commit: it is left alone for the grace time (an hour),
  far longer than any commit is tried. A mark beside the objects says that a removal is under way, to writers that slept
  even longer (``brokerless.log.commit``). Rules, in the order of ``_is_garbage``:

  1. live: never;
  2. younger than the grace time: not yet;
  3. a tombstone: when it was uploaded, and by the log's own times removed, before the oldest retained entry, because
     then no entry that a reader can meet adds it. In a deleted topic: after the grace time;
  4. not in the log, by its name an object of this kit, and younger than the time for which a table keeps tombstones: it
     was never committed, an orphan;
  5. not in the log and older, or uploaded by another engine, which may commit days later: as with rule 3.

**Absent is not the end.** An entry that cannot be found may be late, lost, or not yet restored, and what lies behind it
is as good as ever. So each table's log is listed first, and the last look before a removal lists it again. A log in
which an entry is missing is reported as ``LogIncomplete``, and nothing of its table is written or removed. Likewise
entries that cannot be read: a checkpoint, on which everything rests that comes later, is written only when each entry
that it will stand for has been read in full.

**Time is the store's.** What decides is how much older than a marker, which each run writes first, an object is by the
store's own stamps. A maintainer's clock only keeps the pace. (delta-rs drops tombstones from checkpoints by the
machine's clock; so none is written while that is wrong.)

**Whose tables.** Without names only tables that this kit made, by their properties. Other tables must be named, and
their own properties then lengthen every time: those of Delta's defaults where they say nothing. So do outputs of the
``delta`` engine, for which Spark uploads hours before it commits.

delta-rs's own ``vacuum`` is not used: it commits two entries a run, which wake every reader, and it does not know which
entries readers may still ask for. Its ``cleanup_metadata`` takes the retention from the table only and does not wait
for a checkpoint to settle.

Where no process lives on (``run_round`` in a function that a schedule starts) a small object below the root remembers
how far the pass over all tables has come and when orphans were last looked for. The schedule's own time could not: an
event that is late, lost or repeated would shift or drop a sweep, and it does not know where the last run stopped. The
place is written before the first table and after the last one of a run. So a run that is killed (out of memory in the
checkpoint of a huge table) begins one table further the next time: no table can keep the others from their turn.

Not covered: two maintainers of one table of which one is suspended for longer than the log retention between writing a
checkpoint and its hint. Run one per topic.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, TypeVar, cast

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
from brokerless.log.checkpoint import read_checkpoint
from brokerless.log.commit import REMOVAL_VALID_S, REMOVALS
from brokerless.log.entries import ENGINE_KEY, PARTITIONS_KEY, check_supported
from brokerless.log.log import DeltaLog
from brokerless.maintenance.checkpoints import LogCopy
from brokerless.schema import check_name, is_table, partition_table, split_table
from brokerless.settings import Settings
from brokerless.store import open_store

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from brokerless.log.checkpoint import TableState
    from brokerless.log.entries import Entry, Metadata
    from brokerless.store import ObjectInfo, Store

CHECKPOINT_EVERY: Final = 100
LOG_RETENTION_S: Final = 7 * 86400.0
MIN_LOG_RETENTION_S: Final = 3600.0
"""Sixty times what writers trust their view of the head for (``log.FRESH_S``)."""

GRACE_S: Final = 3600.0
MIN_GRACE_S: Final = 3600.0
"""How old an object can be when it is committed: 40 minutes, with room. A writer that knows how long it waited uploads
again after ten (``upload.UPLOAD_VALID_S``). A machine that was suspended may know nothing, where both of its clocks
stood still; but S3 refuses requests whose signing time is off by more than 15 minutes. So the upload can be 15 early,
the entry 15 late, and 10 between them."""

SETTLE_S: Final = 600.0
"""How long a checkpoint must have been readable before entries below it go."""

SWEEP_EVERY_S: Final = 86400.0
"""How often orphans are looked for. Only crashes make them, but looking lists every object: four times an hour it was a
fifth of the bill of a busy stream (``brokerless cost --sweep-every-h 0.25``)."""

TOMBSTONE_RETENTION_S: Final = 7 * 86400.0
"""For how long checkpoints keep tombstones, and objects that no entry names stay, unless the table says otherwise
(Delta's default)."""

DELTA_LOG_RETENTION_S: Final = 30 * 86400.0
"""For how long other engines keep log entries unless the table says otherwise (Delta's default)."""

TIME_PATH: Final = "_brokerless/time/maintenance"
"""What each run writes to learn the store's time, relative to the root."""

ROUND_PATH: Final = "_brokerless/maintenance.json"
"""Where ``run_round`` keeps its place, relative to the root."""

NO_TABLE: Final = "no table"
NOT_OURS: Final = "not a table of this kit; name it to have it maintained by its own retention times"
"""What a report says of folders that are nobody's fault."""

_SCHEDULE_JITTER_S: Final = 60.0  # schedules are exact to the minute; a sweep must not wait a turn for a few seconds
_SKEW_S: Final = 3600.0  # between an upload and its commit by the store's time, and between clocks of a table's writers
_CLOCK_OFF_S: Final = 1800.0  # of this machine's clock, by which delta-rs drops tombstones: far below their retention
_LOOKS: Final = 5
_ENTRY: Final = re.compile(r".*/\d{20}\.json")
_OF_THE_KIT: Final = re.compile(r"part-[^/]+\.[0-9a-f]{8}\.snappy\.parquet")  # records.object_name
_PROBE: Final = re.compile(r"_probe-[0-9a-f-]{36}")  # admin.check_conditional_put
_DELETE_BATCH: Final = 1000
_T = TypeVar("_T")
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


@dataclass(frozen=True, slots=True)
class _Round:
    """A pass over all tables, in the order of their names: the last one done, and whether orphans are looked for.

    Without a last one, no pass has begun.
    """

    after: str = ""
    sweep: bool = False
    swept_at_s: float = 0.0


class _NoTimeLeft(BrokerlessError):
    """A step that can be cut short was."""


class _NotOurs(BrokerlessError):
    """A table that this kit did not make, and that nobody named."""


@dataclass(frozen=True, slots=True)
class _End:
    """Where a log ends by its listing, which proves that no entry is missing between the checkpoint and there."""

    hint: int | None
    last: int


@dataclass(frozen=True, slots=True)
class _Rules:
    """The times that hold for one table.

    Attributes:
        kit: written by this kit, whose writers commit what they upload within minutes.
        log_retention_s: for entries.
        foreign_grace_s: for objects that another engine may be about to commit.
        removed_s: for objects that a commit has removed.
    """

    kit: bool
    log_retention_s: float
    foreign_grace_s: float
    removed_s: float


@dataclass(frozen=True, slots=True)
class _Horizon:
    """What is out of every reader's reach.

    Attributes:
        now_s: by the store's time.
        stored_s: by the store's time: objects that were uploaded before are named by no retained entry.
        written_ms: by the writers' time: commits before are retained no more.
        ended_s: when a deleted topic was deleted, by the store's time.
    """

    now_s: float
    stored_s: float = -math.inf
    written_ms: float = -math.inf
    ended_s: float = math.inf


class Maintainer:
    """Keeps the tables of some topics in order. Holds no state that a crash could lose.

    Args:
        topics: names; all topics below the root, deleted ones too, if None. Tables of others only by name.
        settings: where; read from the environment by default.
        store: instead of the one that the settings name.
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
            raise ConfigError(f"checkpoint_every is {checkpoint_every}; it must be at least 1.")
        if not unsafe_no_minimum and (log_retention_s < MIN_LOG_RETENTION_S or grace_s < MIN_GRACE_S):
            raise ConfigError(
                f"A log retention of {log_retention_s:g} s with a grace time of {grace_s:g} s is not safe beside "
                f"running writers; use at least {MIN_LOG_RETENTION_S:g} and {MIN_GRACE_S:g}."
            )
        self._store = store or open_store(settings or Settings.load())
        self._topics = None if topics is None else [check_name(topic) for topic in topics]
        self._checkpoint_every = checkpoint_every
        self._log_retention_s = log_retention_s
        self._grace_s = grace_s
        # (This run's own checkpoint is younger than the run.)
        self._settle_s = -math.inf if unsafe_no_minimum else SETTLE_S
        self._skew_s = 0.0 if unsafe_no_minimum else _SKEW_S
        self._listed_by_name = not self._store.uri.startswith("file:")
        self._clock = clock

    def run_once(self, *, sweep: bool = True) -> list[Report]:
        """Does what is due, table by table. A table that fails is reported as skipped and does not stop the others.

        Args:
            sweep: also look for orphaned objects, which lists each table.

        Raises:
            TopicNotFound: one of the named topics does not exist and never did.
            StoreUnavailable, AccessDenied, BucketNotFound: the topics could not be listed.
        """
        tables = self._tables()
        time = self._ask_time() if tables else _Time(0.0, 0.0)
        return [self._maintain(table, time, sweep=sweep) for table in tables]

    def run_round(self, *, until_s: float = math.inf, sweep_every_s: float = SWEEP_EVERY_S) -> Iterator[Report]:
        """Goes on with the pass over the tables where the last call stopped, and yields each table's report.

        Ends after the last table or when the time is over, whichever comes first, but never before the first table:
        however short its time, each call gets further. The next call goes on, or begins anew. A step that the time
        cuts short is reported as skipped, and the next table is the first of the next call.

        Args:
            until_s: when to stop, on the clock's ``monotonic``. A checkpoint that is being written is not cut short.
            sweep_every_s: a pass looks for orphans if the last one that did began so long ago. One such pass may take
                several calls.

        Raises:
            TopicNotFound, StoreUnavailable, AccessDenied, BucketNotFound: as ``run_once``; also when the place of the
                pass could not be read or written.
        """
        place = self._load_round()
        tables = sorted(self._tables())
        if not tables:
            return
        time = self._ask_time()
        rest = [table for table in tables if table > place.after]
        if not place.after or not rest:
            sweep = time.now_s - place.swept_at_s >= sweep_every_s - _SCHEDULE_JITTER_S
            place = _Round("", sweep, time.now_s if sweep else place.swept_at_s)
            rest = tables
        for number, table in enumerate(rest):
            place = replace(place, after=table)
            if number == 0:
                self._save_round(place)
            yield self._maintain(table, time, sweep=place.sweep, until_s=until_s)
            if self._clock.monotonic() >= until_s:
                break
        if len(rest) > 1:
            self._save_round(place)

    def _load_round(self) -> _Round:
        try:
            found = json.loads(self._store.get(ROUND_PATH))
            return _Round(str(found["after"]), bool(found["sweep"]), float(found["swept_at_s"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return _Round()  # none yet, or damaged: a pass from the start does no harm

    def _save_round(self, place: _Round) -> None:
        self._store.put(ROUND_PATH, json.dumps(asdict(place)).encode())

    def _ask_time(self) -> _Time:
        """The store's time, from what it says of an object that it has just taken.

        Used for the whole run: a time that is too early removes less.
        """
        self._store.put(TIME_PATH, b"")
        local_s = self._clock.time_us() / 1e6
        for info in self._store.list(TIME_PATH.rpartition("/")[0]):
            if info.path == TIME_PATH:
                return _Time(info.modified_s, local_s - info.modified_s)
        raise StoreError(
            f"{self._store.uri}/{TIME_PATH} was written and is not listed: without the store's time nothing is removed."
        )

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
            # Not list_topics: the tables of deleted topics are what there is most to remove from. But only names that
            # a topic may have: delta-rs reads the folder "%2e%2e" as the one above, outside of the root.
            return [name for name in self._store.folders() if is_table(name)]
        tables: list[str] = []
        for topic in self._topics:
            try:
                metadata = DeltaLog(self._store, topic, clock=self._clock).load().metadata
            except (StoreUnavailable, AccessDenied, BucketNotFound):
                raise
            except (UnsupportedTable, StoreError):
                # A damaged log must keep neither the others from their turn nor this one from being reported.
                tables += [name for name in self._store.folders() if is_table(name) and split_table(name)[0] == topic]
                continue
            partitions = int(metadata.configuration.get(PARTITIONS_KEY, "1"))
            tables += [partition_table(topic, number) for number in range(partitions)]
        return tables

    def _maintain(self, table: str, time: _Time, *, sweep: bool, until_s: float = math.inf) -> Report:
        work = _Work(table, until_s, time)
        log = DeltaLog(self._store, table, clock=self._clock)
        steps = [("checkpoint", self._checkpoint), ("log clean-up", self._clean_log)]
        if sweep:
            steps.append(("orphans", self._sweep))
        name = "log"
        try:
            end = self._find_end(log)
            for name, step in steps:
                try:
                    step(log, end, work)
                except (LogIncomplete, _NotOurs):
                    raise  # of such a table nothing is touched
                except BrokerlessError as error:
                    work.skipped.append(f"{name}: {error}")
        except TopicNotFound:
            work.skipped.append(NO_TABLE)
        except _NotOurs:
            work.skipped.append(NOT_OURS)
        except LogIncomplete as error:
            work.skipped.append(f"{name}: LogIncomplete: {error}")
        except BrokerlessError as error:
            work.skipped.append(f"{name}: {error}")
        return work.report()

    def _find_end(self, log: DeltaLog) -> _End:
        """Looks from the last checkpoint on, by a listing, for the end of the log and for holes before it.

        Raises:
            TopicNotFound: there is no log.
            LogIncomplete: an entry is missing.
        """
        missing = 0
        for attempt in range(_LOOKS):
            hint = log.checkpoint_version()
            end, missing = self._list_end(log, hint)
            if end is not None:
                return end
            # A listing is not one instant: the entry may have come after its place was listed. Or it was cleaned up.
            if not self._store.exists(log.entry_path(missing)) and log.checkpoint_version() == hint:
                break
            self._clock.backoff(attempt)
        raise _incomplete(log, missing)

    def _list_end(self, log: DeltaLog, hint: int | None) -> tuple[_End | None, int]:
        """Where the log ends; or None and the first entry that is missing."""
        folder = f"{log.table}/_delta_log"
        last = -1 if hint is None else hint
        begins, checkpoint = hint is not None, -1
        gap: int | None = None
        for version, info in self._versioned(folder, after=None if hint is None else log.entry_path(hint)):
            if ".checkpoint." in info.path:
                checkpoint = max(checkpoint, version)
            if version <= last or not _ENTRY.fullmatch(info.path):
                continue
            if gap is None and version != last + 1:
                gap = last + 1
            begins |= version == 0
            last = version
        if last < 0 and checkpoint < 0:
            raise TopicNotFound(log.uri)
        if not begins:  # the hint was lost after clean-up: as ``DeltaLog.load``, which takes the last checkpoint
            return self._list_end(log, checkpoint) if checkpoint >= 0 else (None, 0)
        return (_End(hint, last), 0) if gap is None else (None, gap)

    def _load(self, log: DeltaLog, end: _End, *, with_files: bool = False) -> TableState:
        """The state; every entry behind the checkpoint has been read in full."""
        state = log.load(with_files=with_files)
        if state.version < end.last:
            raise _incomplete(log, state.version + 1)
        return state

    def _rules(self, log: DeltaLog, metadata: Metadata) -> _Rules:
        properties = metadata.configuration
        sparks = properties.get(ENGINE_KEY) == "delta"
        if not (sparks or PARTITIONS_KEY in properties or self._topics is not None):
            raise _NotOurs(NOT_OURS)
        kit = PARTITIONS_KEY in properties and not sparks
        # A time that cannot be read is for ever. Our own topics have no properties but those that somebody gave them.
        keep_log_s = _interval_s(properties, "delta.logRetentionDuration", 0.0 if kit else DELTA_LOG_RETENTION_S)
        if properties.get("delta.enableExpiredLogCleanup", "true").lower() != "true":
            keep_log_s = math.inf
        retention = "delta.deletedFileRetentionDuration"
        return _Rules(
            kit,
            max(self._log_retention_s, keep_log_s),
            max(self._grace_s, _interval_s(properties, retention, TOMBSTONE_RETENTION_S)),
            _interval_s(properties, retention, 0.0 if kit else TOMBSTONE_RETENTION_S),
        )

    def _checkpoint(self, log: DeltaLog, end: _End, work: _Work) -> None:
        if end.last - (-1 if end.hint is None else end.hint) < self._checkpoint_every:
            return
        if abs(work.time.ahead_s) > _CLOCK_OFF_S:
            work.skipped.append(
                f"checkpoint: this machine's clock is {work.time.ahead_s:+.0f} s off the store's, and tombstones are "
                "dropped by it; set the clock"
            )
            return
        with LogCopy(self._store, log.table) as copy:
            state = self._load(DeltaLog(cast("Store", copy), log.table, clock=self._clock), end)
            if state.metadata.deleted:
                return  # its log does not grow any more
            self._rules(log, state.metadata)
            try:
                copy.write_checkpoint(state.version)
            except ImportError:
                work.skipped.append("checkpoint: deltalake is not installed; install brokerless with its extra 'local'")
                return
        work.checkpoint = state.version

    def _clean_log(self, log: DeltaLog, end: _End, work: _Work) -> None:
        hint = log.checkpoint_version()
        if hint is None:
            return
        now_s = work.time.now_s
        folder = f"{log.table}/_delta_log"
        settled = -1
        # The hint's own checkpoint first: on a quiet topic it is the only one.
        for version, info in self._versioned(folder, after=f"{folder}/{hint:020d}"):
            if version != hint:
                break
            if ".checkpoint." in info.path and now_s - info.modified_s >= self._settle_s:
                settled = hint
        retention_s = self._log_retention_s
        old: list[tuple[int, ObjectInfo]] = []
        last: int | None = None
        for version, info in self._versioned(folder):
            last = _next_entry(log, last, version, info, alone=len(old) == 1)
            # Only a prefix goes: readers and ``earliest`` rely on presence going from no to yes once.
            if version >= hint or now_s - info.modified_s < retention_s:
                break
            old.append((version, info))
        while True:
            expired = list(takewhile(lambda found: now_s - found[1].modified_s >= retention_s, old))  # noqa: B023
            # A checkpoint that is older than the retention has settled, too.
            base = max([settled, *(version for version, info in expired if ".checkpoint." in info.path)])
            gone = [info for version, info in expired if version < base]
            if not gone:
                return
            # What is to stand for them is read before they go: with a damaged one the table would be lost.
            checkpoint = read_checkpoint(self._store, log.table, base, with_files=False)
            if checkpoint is None:
                raise StoreError(f"{log.uri}: checkpoint {base} is not whole, so the entries below it stay.")
            rules = self._rules(log, checkpoint.metadata)
            if rules.log_retention_s <= retention_s:
                break
            retention_s = rules.log_retention_s
        for batch in self._in_time(_batches(gone), work):
            self._store.delete([info.path for info in batch])
            work.entries_removed += sum(bool(_ENTRY.fullmatch(info.path)) for info in batch)
            work.bytes_removed += sum(info.size for info in batch)

    def _sweep(self, log: DeltaLog, end: _End, work: _Work) -> None:
        now_s = work.time.now_s
        # The objects first, the log second: what is committed in between is then seen as live.
        found = list(self._in_time(self._data_objects(log.table), work))
        skip = len(log.table) + 1
        inner = tuple({info.path[: at + 1] for info in found if (at := info.path.find("/_delta_log/", skip)) > 0})
        # guard: orphans have a time of grace
        old = [i for i in found if now_s - i.modified_s >= self._grace_s and not i.path.startswith(inner)]
        marks = self._store.list(f"{log.table}/{REMOVALS}")
        left = [mark.path for mark in marks if now_s - mark.modified_s >= REMOVAL_VALID_S]
        if not old and not left:
            return
        state = self._load(log, end, with_files=True)
        rules = self._rules(log, state.metadata)
        if left:
            self._store.delete(left)
        check_supported(state.protocol, state.metadata, table=log.uri)
        horizon = self._horizon(log, state, now_s)
        live, version = set(state.files), state.version
        garbage = [info for info in old if self._is_garbage(info, info.path[skip:], state, rules, horizon)]
        for batch in self._in_time(_batches(garbage), work):
            mark = f"{log.table}/{REMOVALS}/{self._clock.uuid()}"
            self._store.put(mark, b"")
            # Once more, right before: a producer may have slept for the whole grace time and committed just now.
            try:
                for entry in self._read_behind(log, version):
                    live.update(add.path for add in entry.adds)
                    version = entry.version
            except BrokerlessError:
                self._store.delete([mark])
                raise
            doomed = [info for info in batch if info.path[skip:] not in live]
            # A DELETE without an answer may still be on its way: then the mark stays.
            if doomed:
                self._store.delete([info.path for info in doomed])
            work.objects_removed += len(doomed)
            work.bytes_removed += sum(info.size for info in doomed)
            self._store.delete([mark])

    def _read_behind(self, log: DeltaLog, version: int) -> Iterator[Entry]:
        """The entries behind a version, up to an end that the listing agrees with.

        Raises:
            LogIncomplete: one is missing.
        """
        listed = version
        for found, info in self._versioned(f"{log.table}/_delta_log", after=log.entry_path(version)):
            if _ENTRY.fullmatch(info.path):
                listed = max(listed, found)
        for entry in log.read_from(version + 1):
            version = entry.version
            yield entry
        if version < listed:
            raise _incomplete(log, version + 1)

    def _in_time(self, items: Iterable[_T], work: _Work) -> Iterator[_T]:
        for done, item in enumerate(items):
            if self._clock.monotonic() >= work.until_s:
                raise _NoTimeLeft(f"the time was over after {done} of its parts; give a run more time")
            yield item

    def _is_garbage(self, info: ObjectInfo, path: str, state: TableState, rules: _Rules, horizon: _Horizon) -> bool:
        """Whether no entry that a reader can still meet names this object, which is past the grace time."""
        if path in state.files:
            return False
        removed_ms = state.tombstones.get(path)
        if state.metadata.deleted:
            # Nothing can be committed behind the end of this log; the newest tombstones are the topic's own end.
            return horizon.now_s - horizon.ended_s >= (self._grace_s if rules.kit else rules.foreign_grace_s)
        age_s = horizon.now_s - info.modified_s
        # Objects come before their entries, so the entry that adds this one was older than all that are there.
        unreachable = info.modified_s < horizon.stored_s
        if removed_ms is not None:
            return unreachable and removed_ms < min(horizon.written_ms, (horizon.now_s - rules.removed_s) * 1000)
        if _PROBE.fullmatch(path):
            return rules.kit
        if rules.kit and _OF_THE_KIT.fullmatch(path) and age_s < _tombstone_retention_s(state) - self._skew_s:
            return True
        return unreachable and age_s >= rules.foreign_grace_s

    def _horizon(self, log: DeltaLog, state: TableState, now_s: float) -> _Horizon:
        first = state.version if state.metadata.deleted else state.metadata.first_version
        # By a listing, not by trying: a hole must not pass for the log's beginning.
        found = self._versioned(f"{log.table}/_delta_log", after=log.entry_path(first - 1) if first else None)
        # The oldest of one page: a writer that slept may have left an entry of today before the log's beginning.
        page = islice(((v, i) for v, i in found if _ENTRY.fullmatch(i.path)), _DELETE_BATCH)
        version, info = min(page, key=lambda one: one[1].modified_s, default=(-1, None))
        if info is None:
            return _Horizon(now_s)
        if state.metadata.deleted:
            return _Horizon(now_s, ended_s=info.modified_s)
        entry = log.read(version)
        if entry is None:  # cleaned up meanwhile
            return _Horizon(now_s)
        return _Horizon(now_s, info.modified_s - self._skew_s, entry.timestamp_ms - self._skew_s * 1000)

    def _versioned(self, folder: str, *, after: str | None = None) -> Iterator[tuple[int, ObjectInfo]]:
        """Entries and checkpoints of a log with their versions, oldest first."""
        objects = self._store.list(folder, after=after)
        # Object stores list by name, which is by version; a local folder comes in any order.
        for info in objects if self._listed_by_name else sorted(objects, key=lambda found: found.path):
            name = info.path.rpartition("/")[2]
            if re.match(r"\d{20}\.", name):
                yield int(name[:20]), info

    def _data_objects(self, table: str) -> Iterator[ObjectInfo]:
        """The Parquet objects below a table, what is left of probes, and the logs of tables inside of it.

        Its own log is left out (and, where names are in order, not even listed).
        """
        log = f"{table}/_delta_log/"
        after: str | None = None
        while True:
            for info in self._store.list(table, after=after):
                if info.path.startswith(log):
                    if after is None and self._listed_by_name:
                        break
                    continue
                path = info.path.removeprefix(f"{table}/")
                hidden = any(part.startswith(("_", ".")) for part in path.split("/"))
                if (path.endswith(".parquet") and not hidden) or _PROBE.fullmatch(path) or "/_delta_log/" in path:
                    yield info
            else:
                return
            after = f"{table}/_delta_log0"  # the first name behind the log: "0" comes right after "/"


def maintain(
    topics: Sequence[str] | None = None,
    *,
    settings: Settings | None = None,
    store: Store | None = None,
    log_retention_s: float = LOG_RETENTION_S,
    grace_s: float = GRACE_S,
) -> list[Report]:
    """One run of a ``Maintainer``: what it did, table by table.

    Raises:
        As ``Maintainer`` and ``Maintainer.run_once``.
    """
    return Maintainer(
        topics, settings=settings, store=store, log_retention_s=log_retention_s, grace_s=grace_s
    ).run_once()  # fmt: skip


def storage_options(settings: Settings) -> dict[str, str]:
    """How delta-rs (and Polars, which uses it) reaches the settings' root. Holds secrets: never log it."""
    if not settings.root.startswith("s3://"):
        return {}
    values = {
        "AWS_REGION": settings.region,
        "AWS_ENDPOINT_URL": settings.endpoint,
        "AWS_ALLOW_HTTP": "true" if (settings.endpoint or "").startswith("http://") else None,
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false" if settings.endpoint else None,
        "AWS_ACCESS_KEY_ID": settings.access_key,
        "AWS_SECRET_ACCESS_KEY": settings.secret_key,
        "AWS_SESSION_TOKEN": settings.session_token,
        "connect_timeout": "5s",
        "timeout": "60s",  # of one request; the checkpoint of a large table is one long PUT
    }
    return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Time:
    """The store's time at the beginning of a run, and how far this machine's clock is ahead of it."""

    now_s: float
    ahead_s: float


@dataclass(slots=True)
class _Work:
    """A report in the making."""

    table: str
    until_s: float
    time: _Time
    checkpoint: int | None = None
    entries_removed: int = 0
    objects_removed: int = 0
    bytes_removed: int = 0
    skipped: list[str] = field(default_factory=list)

    def report(self) -> Report:
        return Report(
            self.table,
            self.checkpoint,
            self.entries_removed,
            self.objects_removed,
            self.bytes_removed,
            tuple(self.skipped),
        )  # fmt: skip


def _next_entry(log: DeltaLog, last: int | None, version: int, info: ObjectInfo, *, alone: bool) -> int | None:
    """The last entry's version with this object; refuses to go past a missing one.

    Without those before it, nobody could tell that it is missing. But one that stands alone at the beginning a sleeper
    may have put there; the first of all it cannot.
    """
    if not _ENTRY.fullmatch(info.path):
        return last
    if last is not None and version != last + 1 and (last == 0 or not alone):
        raise LogIncomplete(
            f"Entry {last + 1} of the log of {log.uri} is missing, but entry {version} is there: it is late, lost or "
            "not yet restored. No entry was removed. Restore it; 'brokerless verify' shows what else is missing.",
            version=last + 1,
        )
    return version


def _batches(found: list[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    for start in range(0, len(found), _DELETE_BATCH):
        yield found[start : start + _DELETE_BATCH]


def _incomplete(log: DeltaLog, version: int) -> LogIncomplete:
    return LogIncomplete(
        f"Entry {version} of the log of {log.uri} is missing although later ones are there, so nothing of the table "
        "was written or removed. Restore the entry, or wait for the replica; 'brokerless verify' shows more.",
        version=version,
    )


def _tombstone_retention_s(state: TableState) -> float:
    """For how long checkpoints of this table keep tombstones. 0, the careful answer, if its property is unreadable."""
    kept_s = _interval_s(state.metadata.configuration, "delta.deletedFileRetentionDuration", TOMBSTONE_RETENTION_S)
    return kept_s if kept_s < math.inf else 0.0


def _interval_s(properties: Mapping[str, str], name: str, default_s: float) -> float:
    """A time in a table's properties; for ever if it cannot be read."""
    text = properties.get(name)
    if text is None:
        return default_s
    match = re.fullmatch(r"(?:interval\s+)?(\d+)\s+([a-z]+?)s?", text.strip().lower())
    return int(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else math.inf
