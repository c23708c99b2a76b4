"""A pipeline's inputs: the logs of its topics, the position at which a run begins, and new commits since then.

Nothing here depends on Spark; both engines use it, with the options that ``source`` lists (keys in lower case).
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brokerless.errors import (
    AccessDenied,
    BrokerlessError,
    BucketNotFound,
    ConfigError,
    LogIncomplete,
    SchemaError,
    StoreUnavailable,
    TopicChanged,
    TopicDeleted,
    TopicNotFound,
    TopicRewritten,
)
from brokerless.log.entries import PARTITIONS_KEY
from brokerless.log.log import DeltaLog
from brokerless.log.start import resolve_start
from brokerless.log.tail import POLL_S, Tail
from brokerless.offsets import Offset
from brokerless.schema import Schema, dead_letters, only_adds, partition_table
from brokerless.spark.messages import flag, start_option, topic_names, until_option
from brokerless.spark.progress import Begin, Position, TableIds, position_in, recorded_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokerless.log.entries import Add, Entry, Metadata
    from brokerless.spark.outputs import OutputLog
    from brokerless.store import Store


WAIT_S: Final = 0.2
"""The longest time to wait for new commits before the caller gets control back (for example, to stop)."""

IDLE_POLL_MAX_S: Final = 0.25
"""The longest time between two polls when idle: four GETs per second and partition, and half a percent of a core."""

SAME_S: Final = 60.0
"""The time between two checks that each input is still the table that was opened: a table that was created again by
hand may have entries with the expected versions."""

READ_AHEAD: Final = 64  # entries that a tail may read at once, per partition


@dataclass(frozen=True, slots=True)
class Pending:
    """A known commit that is not yet in a batch."""

    version: int
    files: tuple[Add, ...]
    rows: int
    size: int


class Input:
    """One input table: its tail, and the commits that are known but not processed."""

    def __init__(self, log: DeltaLog, *, accept_rewrites: bool, poll_s: float = POLL_S) -> None:
        self.log = log
        self._opened = log.state.metadata
        self._tail = Tail(log, 0, idle_max_s=IDLE_POLL_MAX_S, accept_rewrites=accept_rewrites, poll_s=poll_s)
        self._known: deque[Pending] = deque()
        self.rows = 0  # of all commits that were known so far
        self._at_once = READ_AHEAD
        self.error: BrokerlessError | None = None
        self.error_at = 0.0
        self._same_at = time.monotonic()

    def due_in_s(self) -> float:
        """Return the time in seconds until the next poll; 0 if it is due."""
        return WAIT_S if self.error is not None else self._tail.due_in_s()

    def end(self) -> int:
        """Return the last version of the log; opening the log has checked by a LIST that nothing follows."""
        state = self.log.state
        # If the last entry cannot be read, the end is unknown and the error is raised.
        return state.version if state.damage is None else sys.maxsize

    def ask_why_nothing_comes(self) -> None:
        """Find out why no entry follows although the log had more when it was opened; no requests otherwise."""
        waiting, version = self._tail.version, self.log.state.version
        if self.error is not None or waiting > version:
            return
        try:
            if self.log.check_end(waiting):
                raise LogIncomplete(
                    f"Entry {waiting} of the log of {self.log.uri} is missing, and so are the entries after it up to "
                    f"{version}, which existed when this run began. Restore them and start the pipeline again.",
                    version=waiting,
                )
            self.log.check_retained(waiting)
        except BrokerlessError as error:
            self._hold(error)

    def seek(self, position: int) -> None:
        """Continue after this entry."""
        self._tail.seek(position + 1)
        self._known.clear()

    def look(self, *, prompt: bool = False) -> None:
        """Read new commits since the last call; a long backlog in several calls.

        An error of this input alone is stored in ``error``: its known commits and the other inputs are processed first.

        Args:
            prompt: return after one new commit, which is most likely the last, without looking for the next one.
        """
        if self.error is not None or len(self._known) > 100_000:
            return
        try:
            if time.monotonic() - self._same_at > SAME_S:
                self.log.check_same()
                self._same_at = time.monotonic()
            first = 1 if prompt else self._at_once
            while entries := self._read(first):
                for entry in entries:
                    if entry.metadata is not None:
                        self._tell_added(entry.metadata, entry.version)
                    self._known.append(self._pending(entry))
                    self.rows += self._known[-1].rows
                if len(entries) < first or (prompt and self._tail.is_fresh(entries[-1])):
                    break
                first = self._at_once
        except BrokerlessError as error:
            self._hold(error)

    def _tell_added(self, metadata: Metadata, version: int) -> None:
        """Say in the pipeline's log that the topic has columns that this run does not read."""
        known = Schema.from_delta(self._opened.schema_string)
        more = set(Schema.from_delta(metadata.schema_string).names) - set(known.names)
        if more and only_adds(self._opened.schema_string, metadata.schema_string):
            print(
                f"brokerless: {self.log.uri} has more columns since entry {version}: {', '.join(sorted(more))}. This "
                "pipeline goes on without them; start it again to read them.",
                file=sys.stderr,
                flush=True,
            )

    def _hold(self, error: BrokerlessError) -> None:
        if isinstance(error, (StoreUnavailable, AccessDenied, BucketNotFound)):
            raise error  # most likely, all inputs have this error
        if isinstance(error, TopicRewritten):
            error = TopicRewritten(
                f"{error} To continue, use --accept-rewrites or read_stream(..., accept_rewrites=True); the outputs "
                "will then contain unchanged rows twice."
            )
        self.error_at, self.error = time.monotonic(), error  # in this order, because another thread may read both

    def _read(self, at_once: int) -> list[Entry]:
        try:
            return self._tail.next_entries(min(at_once, self._at_once))
        except (StoreUnavailable, AccessDenied, BucketNotFound):
            raise
        except BrokerlessError:
            self._at_once = 1  # read the entries before the unreadable one
            return self._tail.next_entries(1)

    def _pending(self, entry: Entry) -> Pending:
        files = tuple(self._tail.new_files(entry))
        rows = 0
        for add in files:
            if add.rows is None:
                raise SchemaError(
                    f"{self.log.uri}/{add.path} was committed without the statistic numRecords, which pipelines need "
                    "for offsets. Let its writer write statistics."
                )
            rows += add.rows
        return Pending(entry.version, files, rows, sum(add.size for add in files))

    def has(self, last: int | None) -> bool:
        """Return whether a commit up to ``last`` is known."""
        return bool(self._known) and (last is None or self._known[0].version <= last)

    def next_commit(self, last: int | None) -> Pending | None:
        """Remove and return the first known commit up to ``last``, or None."""
        return self._known.popleft() if self.has(last) else None

    def between(self, start: int, end: int | None) -> deque[Pending]:
        """Return the known commits after ``start``, up to ``end``."""
        return deque(c for c in self._known if c.version > start and (end is None or c.version <= end))

    def forget(self, version: int) -> None:
        """Remove the commits that are processed."""
        while self._known and self._known[0].version <= version:
            self._known.popleft()


@dataclass(slots=True)
class Inputs:
    """All tables of a pipeline's topics, as opened by a run.

    Attributes:
        tables: the inputs by name; each is at the run's start position.
        at: that start position.
        ids: the tables' ids.
        ahead: positions at which dead letters are ahead of ``at``, after a crash between the two commits. Until all of
            them are reached, nothing after them may be read: the dead letters before them are already written.
        until: the position at which the run ends; None if it does not end.
    """

    tables: dict[str, Input]
    at: Position
    ids: TableIds
    ahead: Position = field(default_factory=dict)
    until: Position | None = None


def open_inputs(store: Store, options: Mapping[str, str], *, poll_s: float = POLL_S) -> Inputs:
    """Open the topics' logs, each after the position in the pipeline's output, or at the option ``start``.

    Args:
        store: the store with the topics.
        options: the options of the source.
        poll_s: the time between two polls while entries arrive.

    Raises:
        TopicNotFound, TopicChanged, ConfigError: as ``first_position``.
    """
    rewrites = flag(options, "acceptrewrites")
    tables = {log.table: Input(log, accept_rewrites=rewrites, poll_s=poll_s) for log in open_logs(store, options)}
    name, output, rejected = _progress_logs(store, options)
    recorded = (lambda source: recorded_in(output, name, source)) if output is not None else lambda _: None
    at = {table: begin_in(source.log, recorded, options)[0] for table, source in tables.items()}
    for table, source in tables.items():
        source.seek(at[table])
    opened = Inputs(tables, at, {table: source.log.state.metadata.id for table, source in tables.items()})
    if rejected is not None:
        opened.ahead = {t: v for t, v in position_in(rejected, name, opened.ids).items() if v > at[t]}
    if text := options.get("until"):
        # A run with an end reads up to it and no further.
        opened.until = {table: _last_version(source, text, alone=len(tables) == 1) for table, source in tables.items()}
    return opened


def _last_version(source: Input, text: str, *, alone: bool) -> int:
    """Return the last version that a run reads which ends before a position.

    Raises:
        ConfigError: an offset, and there are several tables.
        OffsetOutOfRange: an offset that is not in the log.
    """
    until = until_option(text)
    if until == "latest":
        return source.end()
    if isinstance(until, Offset) and not alone:
        raise ConfigError(f"Several tables cannot end at the offset {until}: offsets differ between them. Use a time.")
    return resolve_start(source.log, until).version - 1


def _progress_logs(store: Store, options: Mapping[str, str]) -> tuple[str, DeltaLog | None, DeltaLog | None]:
    """Return the pipeline's name and the logs with its progress: those of its output and its dead letters."""
    name, output = options.get("pipeline"), options.get("output")
    logs: list[DeltaLog | None] = []
    for topic in (output, dead_letters(output)) if name and output else ():
        log = DeltaLog(store, topic)
        try:
            log.state  # noqa: B018  # reads it
        except (TopicNotFound, TopicDeleted):
            logs.append(None)
        else:
            logs.append(log)
    return name or "", *(logs or (None, None))


def first_position(store: Store, options: Mapping[str, str], output: OutputLog) -> Begin:
    """Return the position at which a run begins. It must be recorded: ``beginning`` and ``latest`` change with time.

    Args:
        store: the store with the topics.
        options: the options of the source; keys in lower case.
        output: the output of the pipeline.

    Raises:
        TopicChanged: an input is not the table that the output records.
    """
    at: Position = {}
    ids: TableIds = {}
    anew: set[str] = set()
    for log in open_logs(store, options):
        at[log.table], fresh = begin_in(log, output.recorded, options)
        ids[log.table] = log.state.metadata.id
        if fresh:
            anew.add(log.table)
    # A txn cannot record "before version 0", and another writer's table may have messages in version 0.
    return Begin({table: version for table, version in at.items() if version >= 0}, ids, frozenset(anew))


def begin_in(log: DeltaLog, recorded: Callable[[DeltaLog], int | None], options: Mapping[str, str]) -> tuple[int, bool]:
    """Return the position in an input at which a run begins, and whether recorded progress was ignored for it."""
    try:
        # guard: a restart begins after what the output records
        if (version := recorded(log)) is not None:
            return version, False
    except TopicChanged as error:
        if isinstance(error, TopicDeleted) or not flag(options, "acceptnewinput"):
            raise
        return resolve_start(log, "beginning").version - 1, True
    return resolve_start(log, start_option(options)).version - 1, False


def open_logs(store: Store, options: Mapping[str, str]) -> list[DeltaLog]:
    """Open the logs of all partitions of the topics.

    Partition 0 is opened once, so that its log notices if the topic is created again meanwhile with more partitions.
    """
    logs: list[DeltaLog] = []
    for topic in topic_names(options):
        first = DeltaLog(store, topic)
        partitions = int(first.state.metadata.configuration.get(PARTITIONS_KEY, "1"))
        logs += [first, *(DeltaLog(store, partition_table(topic, number)) for number in range(1, partitions))]
    return logs
