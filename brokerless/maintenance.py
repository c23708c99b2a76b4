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
  far longer than any commit is tried. A mark beside the objects says that a removal is under way, to writers that slept
  even longer (``brokerless.upload``). Rules, in the order of ``_is_garbage``:

  1. live: never;
  2. younger than the grace time: not yet;
  3. a tombstone: when the commit that removed it is older than the oldest retained entry, because then so is the one
     that added it, and no reader can meet it again. In a deleted topic: after the grace time;
  4. not in the log, and younger than the time for which a table keeps tombstones: it was never committed, an orphan;
  5. not in the log and older: its tombstone may have been dropped, so as with rule 3.

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
from typing import TYPE_CHECKING, Final, TypeVar

from brokerless.clock import SYSTEM, Clock
from brokerless.entries import PARTITIONS_KEY, check_supported
from brokerless.errors import BrokerlessError, ConfigError, TopicDeleted, TopicNotFound, UnsupportedTable
from brokerless.log import DeltaLog
from brokerless.settings import Settings
from brokerless.store import open_store
from brokerless.topics import check_name, is_table, partition_table
from brokerless.upload import REMOVAL_VALID_S, REMOVALS

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator, Sequence

    from brokerless.replay import TableState
    from brokerless.store import ObjectInfo, Store

CHECKPOINT_EVERY: Final = 100
LOG_RETENTION_S: Final = 7 * 86400.0
MIN_LOG_RETENTION_S: Final = 3600.0
"""Sixty times what writers trust their view of the head for (``log.FRESH_S``)."""

GRACE_S: Final = 3600.0
MIN_GRACE_S: Final = 1800.0
"""Sixty times the default deadline of a commit, and three times ``upload.UPLOAD_VALID_S``."""

SETTLE_S: Final = 600.0
"""How long a checkpoint must have been readable before entries below it go."""

SWEEP_EVERY_S: Final = 86400.0
"""How often orphans are looked for. Only crashes make them, but looking lists every object: four times an hour it was a
fifth of the bill of a busy stream (``brokerless cost --sweep-every-h 0.25``)."""

TOMBSTONE_RETENTION_S: Final = 7 * 86400.0
"""For how long checkpoints keep tombstones unless the table says otherwise (Delta's default)."""

ROUND_PATH: Final = "_brokerless/maintenance.json"
"""Where ``run_round`` keeps its place, relative to the root."""

_SCHEDULE_JITTER_S: Final = 60.0  # schedules are exact to the minute; a sweep must not wait a turn for a few seconds
_SKEW_S: Final = 3600.0  # how far the clocks of a table's writers and of its store may be apart
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
                f"A log retention of {log_retention_s:g} s with a grace time of {grace_s:g} s is not safe beside "
                f"running writers; use at least {MIN_LOG_RETENTION_S:g} and {MIN_GRACE_S:g}."
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
        return [self._maintain(table, sweep=sweep) for table in self._tables()]

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
        rest = [table for table in tables if table > place.after]
        if not place.after or not rest:
            now_s = self._clock.time_us() / 1e6
            sweep = now_s - place.swept_at_s >= sweep_every_s - _SCHEDULE_JITTER_S
            place = _Round("", sweep, now_s if sweep else place.swept_at_s)
            rest = tables
        for number, table in enumerate(rest):
            place = replace(place, after=table)
            if number == 0:
                self._save_round(place)
            yield self._maintain(table, sweep=place.sweep, until_s=until_s)
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
                partitions = int(metadata.configuration.get(PARTITIONS_KEY, "1"))
            except UnsupportedTable:
                partitions = 1  # whoever wrote that entry must not keep the others from their turn: see _maintain
            tables += [partition_table(topic, number) for number in range(partitions)]
        return tables

    def _maintain(self, table: str, *, sweep: bool, until_s: float = math.inf) -> Report:
        work = _Work(table, until_s)
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
        last = log.checkpoint_version()
        try:
            head = log.head()
        except TopicDeleted:
            return  # its log does not grow any more
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
            table = DeltaTable(f"{self._store.uri}/{log.table}", storage_options=options)
            table.create_checkpoint()
        except (DeltaError, OSError) as error:
            work.skipped.append(f"checkpoint: {str(error).splitlines()[0][:300]}")
            return
        work.checkpoint = table.version()

    def _clean_log(self, log: DeltaLog, work: _Work) -> None:
        hint = log.checkpoint_version()
        if hint is None:
            return
        now_s = self._clock.time_us() / 1e6
        folder = f"{log.table}/_delta_log"
        settled = -1
        # The hint's own checkpoint first: on a quiet topic it is the only one.
        for version, info in self._versioned(folder, after=f"{folder}/{hint:020d}"):
            if version != hint:
                break
            if ".checkpoint." in info.path and now_s - info.modified_s >= self._settle_s:
                settled = hint
        expired: list[tuple[int, ObjectInfo]] = []
        for version, info in self._versioned(folder):
            # Only a prefix goes: readers and ``earliest`` rely on presence going from no to yes once.
            if version >= hint or now_s - info.modified_s < self._log_retention_s:
                break
            if ".checkpoint." in info.path:
                settled = max(settled, version)  # older than the retention, so it has settled too
            expired.append((version, info))
        gone = [info for version, info in expired if version < settled]
        for batch in self._in_time(_batches(gone), work):
            self._store.delete([info.path for info in batch])
            work.entries_removed += sum(info.path.endswith(".json") for info in batch)
            work.bytes_removed += sum(info.size for info in batch)

    def _sweep(self, log: DeltaLog, work: _Work) -> None:
        now_s = self._clock.time_us() / 1e6
        # The objects first, the log second: what is committed in between is then seen as live.
        found = self._in_time(self._data_objects(log.table), work)
        old = [info for info in found if now_s - info.modified_s >= self._grace_s]
        marks = self._store.list(f"{log.table}/{REMOVALS}")
        if left := [mark.path for mark in marks if now_s - mark.modified_s >= REMOVAL_VALID_S]:
            self._store.delete(left)
        if not old:
            return
        state = log.load(with_files=True)
        check_supported(state.protocol, state.metadata, table=log.uri)
        horizon_ms = self._horizon_ms(log, state)
        live, version = set(state.files), state.version
        skip = len(log.table) + 1
        garbage = [info for info in old if self._is_garbage(info, info.path[skip:], state, now_s, horizon_ms)]
        for batch in self._in_time(_batches(garbage), work):
            mark = f"{log.table}/{REMOVALS}/{self._clock.uuid()}"
            self._store.put(mark, b"")
            # Once more, right before: a producer may have slept for the whole grace time and committed just now.
            try:
                for entry in log.read_from(version + 1):
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

    def _in_time(self, items: Iterable[_T], work: _Work) -> Iterator[_T]:
        for done, item in enumerate(items):
            if self._clock.monotonic() >= work.until_s:
                msg = f"the time was over after {done} of its parts; give a run more time"
                raise _NoTimeLeft(msg)
            yield item

    def _is_garbage(self, info: ObjectInfo, path: str, state: TableState, now_s: float, horizon_ms: float) -> bool:
        """Whether no entry that a reader can still meet names this object, which is past the grace time."""
        if path in state.files:
            return False
        removed_ms = state.tombstones.get(path)
        if state.metadata.deleted:
            # Nothing can be committed behind the end of this log; the newest tombstones are the topic's own end.
            return now_s - state.timestamp_ms / 1000 >= self._grace_s
        if removed_ms is not None:
            return removed_ms < horizon_ms
        age_s = now_s - info.modified_s
        never_committed = age_s < _tombstone_retention_s(state) - self._skew_s
        return never_committed or info.modified_s * 1000 < horizon_ms

    def _horizon_ms(self, log: DeltaLog, state: TableState) -> float:
        """Commits before this moment are out of every reader's reach: the time of the oldest retained entry."""
        if state.metadata.deleted:
            return 0.0
        oldest = log.read(log.earliest())
        return (oldest.timestamp_ms if oldest else state.timestamp_ms) - self._skew_s * 1000

    def _versioned(self, folder: str, *, after: str | None = None) -> Iterator[tuple[int, ObjectInfo]]:
        """Entries and checkpoints of a log with their versions, oldest first."""
        objects = self._store.list(folder, after=after)
        # Object stores list by name, which is by version; a local folder comes in any order.
        for info in objects if self._listed_by_name else sorted(objects, key=lambda found: found.path):
            name = info.path.rpartition("/")[2]
            if re.match(r"\d{20}\.", name):
                yield int(name[:20]), info

    def _data_objects(self, table: str) -> Iterator[ObjectInfo]:
        """The Parquet objects below a table, its log left out (and, where names are in order, not even listed)."""
        log = f"{table}/_delta_log/"
        after: str | None = None
        while True:
            for info in self._store.list(table, after=after):
                if info.path.startswith(log):
                    if after is None and self._listed_by_name:
                        break
                    continue
                parts = info.path.removeprefix(f"{table}/").split("/")
                if parts[-1].endswith(".parquet") and not any(part.startswith(("_", ".")) for part in parts):
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


@dataclass(slots=True)
class _Work:
    """A report in the making."""

    table: str
    until_s: float
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


def _batches(found: list[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    for start in range(0, len(found), _DELETE_BATCH):
        yield found[start : start + _DELETE_BATCH]


def _tombstone_retention_s(state: TableState) -> float:
    """For how long checkpoints of this table keep tombstones. 0, the careful answer, if its property is unreadable."""
    text = state.metadata.configuration.get("delta.deletedFileRetentionDuration")
    if text is None:
        return TOMBSTONE_RETENTION_S
    match = re.fullmatch(r"interval\s+(\d+)\s+([a-z]+?)s?", text.strip().lower())
    return int(match[1]) * _UNITS.get(match[2], 0) if match else 0.0
