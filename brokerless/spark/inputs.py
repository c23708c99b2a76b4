"""A pipeline's inputs: the logs of its topics, where a run begins in them, and what has come since.

Nothing here knows Spark; both engines read by it, with the options that ``source`` lists (keys in lower case).
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from brokerless.columns import records
from brokerless.consumer import POLL_S, Tail, resolve_start
from brokerless.errors import (
    AccessDenied,
    BrokerlessError,
    BucketNotFound,
    ConfigError,
    LogIncomplete,
    SchemaError,
    StoreError,
    StoreUnavailable,
    TopicChanged,
    TopicDeleted,
    TopicNotFound,
    TopicRewritten,
)
from brokerless.log.entries import PARTITIONS_KEY
from brokerless.log.log import DeltaLog
from brokerless.offsets import Offset, parse_start
from brokerless.schema import PRODUCED_AT, Column, Schema, dead_letters, partition_table, split_table
from brokerless.spark.progress import Begin, Position, TableIds, position_in, recorded_in
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa
    from arro3.core import Table

    from brokerless.log.entries import Add, Entry
    from brokerless.spark.outputs import Output
    from brokerless.store import Store

METADATA: Final = (
    Column("_topic", "string"),
    Column("_partition", "integer"),
    Column("_version", "long"),
    Column("_index", "long"),
)

WAIT_S: Final = 0.2
"""How long a look at the inputs may wait for something new before its caller gets control back (to stop, say)."""

IDLE_POLL_MAX_S: Final = 0.25
"""How far apart polls get when nothing comes: four GETs a second and partition, and half a percent of a core."""

SAME_S: Final = 60.0
"""How often a source makes sure that each input is still the table that it opened: one made by hand in its place may
have entries at the versions that it waits for."""

READ_AHEAD: Final = 64  # entries a tail may take at once, per partition


@dataclass(frozen=True, slots=True)
class Pending:
    """A commit that is known but not yet in a batch."""

    version: int
    files: tuple[Add, ...]
    rows: int
    size: int


class Input:
    """One input table: its tail, and the commits that are known but not done."""

    def __init__(self, log: DeltaLog, *, accept_rewrites: bool, poll_s: float = POLL_S) -> None:
        self.log = log
        self._tail = Tail(log, 0, idle_max_s=IDLE_POLL_MAX_S, accept_rewrites=accept_rewrites, poll_s=poll_s)
        self._known: deque[Pending] = deque()
        self.rows = 0  # of all commits that were ever known
        self._at_once = READ_AHEAD
        self.error: BrokerlessError | None = None
        self.error_at = 0.0
        self._same_at = time.monotonic()

    def due_in_s(self) -> float:
        """How long it is no use to look again; 0 if it is now."""
        return WAIT_S if self.error is not None else self._tail.due_in_s()

    def end(self) -> int:
        """The last entry that the log has now; opening it made sure by a LIST that what is absent is the end."""
        state = self.log.state
        # What cannot be read may be the last one: then there is no end but that error.
        return state.version if state.damage is None else sys.maxsize

    def ask_why_nothing_comes(self) -> None:
        """Finds out what is wrong with a log that had more entries when it was opened; asks nothing of others."""
        waiting, version = self._tail.version, self.log.state.version
        if self.error is not None or waiting > version:
            return
        try:
            if self.log.check_end(waiting):
                raise LogIncomplete(
                    f"Entry {waiting} of the log of {self.log.uri} is missing, and so is what was behind it, up to "
                    f"entry {version}, when this run began. Restore it and start again.",
                    version=waiting,
                )
            self.log.check_retained(waiting)
        except BrokerlessError as error:
            self._keep(error)

    def seek(self, position: int) -> None:
        """Goes on behind this entry."""
        self._tail.seek(position + 1)
        self._known.clear()

    def look(self, *, prompt: bool = False) -> None:
        """Takes note of what has come since the last look; a long backlog in portions.

        What is wrong with this input alone is kept as its ``error``: what is known of it, and the others, come first.

        Args:
            prompt: a commit that has just come is most likely the last: do not look for the next one before it is seen.
        """
        if self.error is not None or len(self._known) > 100_000:
            return
        try:
            if time.monotonic() - self._same_at > SAME_S:
                self.log.check_same()
                self._same_at = time.monotonic()
            first = 1 if prompt else self._at_once
            while entries := self._take(first):
                for entry in entries:
                    self._known.append(self._pending(entry))
                    self.rows += self._known[-1].rows
                if len(entries) < first or (prompt and self._tail.is_fresh(entries[-1])):
                    break
                first = self._at_once
        except BrokerlessError as error:
            self._keep(error)

    def _keep(self, error: BrokerlessError) -> None:
        if isinstance(error, (StoreUnavailable, AccessDenied, BucketNotFound)):
            raise error  # of all inputs, most likely
        if isinstance(error, TopicRewritten):
            error = TopicRewritten(
                f"{error} A pipeline that is to go on takes --accept-rewrites, or "
                "read_stream(..., accept_rewrites=True): its outputs then have those rows twice."
            )
        self.error_at, self.error = time.monotonic(), error  # in this order: another thread may look at both

    def _take(self, at_once: int) -> list[Entry]:
        try:
            return self._tail.take(min(at_once, self._at_once))
        except (StoreUnavailable, AccessDenied, BucketNotFound):
            raise
        except BrokerlessError:
            self._at_once = 1  # what is before the entry that cannot be taken
            return self._tail.take(1)

    def _pending(self, entry: Entry) -> Pending:
        files = tuple(self._tail.new_files(entry))
        rows = 0
        for add in files:
            if add.rows is None:
                raise SchemaError(
                    f"{self.log.uri}/{add.path} was committed without numRecords; pipelines need it for offsets. "
                    "Write with statistics."
                )
            rows += add.rows
        return Pending(entry.version, files, rows, sum(add.size for add in files))

    def has(self, last: int | None) -> bool:
        """Whether something is known, up to the last that is asked for."""
        return bool(self._known) and (last is None or self._known[0].version <= last)

    def take(self, last: int | None) -> Pending | None:
        """The first commit that is known, up to the last that is asked for; it is not known any more."""
        return self._known.popleft() if self.has(last) else None

    def pending_after(self, version: int, last: int | None) -> deque[Pending]:
        """What is known behind an entry, up to the last that is asked for."""
        return deque(c for c in self._known if c.version > version and (last is None or c.version <= last))

    def between(self, start: int, end: int) -> list[Pending]:
        """What is known behind one entry, up to another."""
        return [commit for commit in self._known if start < commit.version <= end]

    def forget(self, version: int) -> None:
        """Drops what is done."""
        while self._known and self._known[0].version <= version:
            self._known.popleft()


@dataclass(slots=True)
class Inputs:
    """All tables of a pipeline's topics, as a run opened them.

    Attributes:
        tables: by name; each is at the run's beginning.
        at: that beginning.
        ids: of the tables.
        ahead: where the dead letters are ahead of it, after a crash between the two commits. Until all these positions
            are reached, nothing behind them may be read: the dead letters before them are written already.
        until: where the run ends; None if it does not.
    """

    tables: dict[str, Input]
    at: Position
    ids: TableIds
    ahead: Position = field(default_factory=dict)
    until: Position | None = None


def open_inputs(store: Store, options: Mapping[str, str], *, poll_s: float = POLL_S) -> Inputs:
    """Opens the topics' logs, each after what the pipeline's output records, or at the option ``start``.

    Args:
        store: where the topics are.
        options: of the source.
        poll_s: the time from one look to the next while entries come.

    Raises:
        TopicNotFound, TopicChanged, ConfigError: as ``first_position``.
    """
    rewrites = flag(options, "acceptrewrites")
    tables = {log.table: Input(log, accept_rewrites=rewrites, poll_s=poll_s) for log in open_logs(store, options)}
    name, output, letters = _progress_logs(store, options)
    recorded = partial(recorded_in, output, name) if output is not None else nothing_recorded
    at = {table: begin_in(source.log, recorded, options)[0] for table, source in tables.items()}
    for table, source in tables.items():
        source.seek(at[table])
    opened = Inputs(tables, at, {table: source.log.state.metadata.id for table, source in tables.items()})
    if letters is not None:
        opened.ahead = {t: v for t, v in position_in(letters, name, opened.ids).items() if v > at[t]}
    if options.get("until") == "now":
        opened.until = {table: source.end() for table, source in tables.items()}
    return opened


def _progress_logs(store: Store, options: Mapping[str, str]) -> tuple[str, DeltaLog | None, DeltaLog | None]:
    """The pipeline's name, and where it keeps its progress: the logs of its output and its dead letters."""
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


def first_position(store: Store, options: Mapping[str, str], output: Output) -> Begin:
    """Where a run begins; to be noted in its output: clean-up moves ``beginning``, new messages ``latest``.

    Args:
        store: where the topics are.
        options: of the source; keys in lower case.
        output: of the pipeline.

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
    # No txn says "before version 0", where another writer's table may have messages.
    return Begin({table: version for table, version in at.items() if version >= 0}, ids, frozenset(anew))


def begin_in(log: DeltaLog, recorded: Callable[[DeltaLog], int | None], options: Mapping[str, str]) -> tuple[int, bool]:
    """The position in an input with which a run begins, and whether that is so in spite of recorded progress."""
    try:
        # guard: a restart begins after what the output records
        if (version := recorded(log)) is not None:
            return version, False
    except TopicChanged as error:
        if isinstance(error, TopicDeleted) or not flag(options, "acceptnewinput"):
            raise
        return resolve_start(log, "beginning").version - 1, True
    return resolve_start(log, _start(options)).version - 1, False


def nothing_recorded(log: DeltaLog) -> None:
    """What is recorded of an input where there is no output."""


def open_logs(store: Store, options: Mapping[str, str]) -> list[DeltaLog]:
    """The logs of all partitions of the topics.

    Partition 0 is opened once: if the topic is created again meanwhile, with more partitions, that handle notices.
    """
    logs: list[DeltaLog] = []
    for topic in topic_names(options):
        first = DeltaLog(store, topic)
        partitions = int(first.state.metadata.configuration.get(PARTITIONS_KEY, "1"))
        logs += [first, *(DeltaLog(store, partition_table(topic, number)) for number in range(1, partitions))]
    return logs


def union_columns(schemas: Sequence[Schema]) -> Schema:
    """The columns of several topics together.

    Raises:
        SchemaError: one name has two types.
    """
    columns: dict[str, Column] = {}
    for schema in schemas:
        for column in schema.columns:
            known = columns.setdefault(column.name, column)
            if known.type != column.type:
                raise SchemaError(
                    f"Column {column.name!r} is {known.type} in one topic and {column.type} in another; "
                    "read them in two pipelines."
                )
    return Schema(tuple(columns.values()))


def load_object(store: Store, columns: Sequence[Column], path: str) -> Table | StoreError:
    """The rows of an object, or what is wrong with it: an error that this object has alone."""
    try:
        rows = records.load(store, path)
        return records.with_columns(rows, columns, path=f"{store.uri}/{path}") if rows.num_rows else rows
    except StoreError as error:
        if type(error) is not StoreError:
            raise  # of the whole store, most likely: it does not answer, or refuses
        return error


def columns_of(store: Store, options: Mapping[str, str]) -> list[Column]:
    """The columns of what is read: the topics' together, ``_produced_at``, and with ``metadata`` those."""
    schemas = [describe_topic(store, topic).schema for topic in topic_names(options)]
    columns = [*union_columns(schemas).columns, Column(PRODUCED_AT, "timestamp")]
    return columns + list(METADATA) if flag(options, "metadata") else columns


def ddl(columns: Sequence[Column]) -> str:
    """Columns as Spark wants them written."""
    return ", ".join(f"`{column.name}` {_ddl(column.type)}" for column in columns)


def _ddl(delta_type: str) -> str:
    return {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}.get(delta_type, delta_type)


def with_metadata(rows: pa.Table, table: str, version: int, index: int) -> pa.Table:
    """The rows with the columns of ``METADATA``; the first has this offset."""
    import numpy as np
    import pyarrow as pa

    topic, number = split_table(table)
    count = rows.num_rows
    rows = rows.append_column("_topic", pa.repeat(pa.scalar(topic), count))
    rows = rows.append_column("_partition", pa.repeat(pa.scalar(number, pa.int32()), count))
    rows = rows.append_column("_version", pa.repeat(pa.scalar(version, pa.int64()), count))
    return rows.append_column("_index", pa.array(np.arange(index, index + count)))


def _start(options: Mapping[str, str]) -> Literal["beginning", "latest"] | datetime:
    start = parse_start(options.get("start", "beginning"))
    if isinstance(start, Offset):
        raise ConfigError("A pipeline starts at beginning, latest or a time; offsets differ between partitions.")
    return start


def topic_names(options: Mapping[str, str]) -> list[str]:
    """The option ``topics``."""
    names = [name.strip() for name in option(options, "topics").split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"The option topics names none, or one twice: {options.get('topics')!r}.")
    return names


def option(options: Mapping[str, str], name: str) -> str:
    """An option that must be there."""
    value = options.get(name)
    if not value:
        raise ConfigError(f"The brokerless source needs the option {name!r}; use brokerless.spark.read_stream.")
    return value


def skipped_objects(options: Mapping[str, str]) -> frozenset[str]:
    """Objects to go on without, if they cannot be read."""
    return frozenset(name.strip() for name in options.get("skip", "").split(","))


def flag(options: Mapping[str, str], name: str) -> bool:
    """An option that is true or false."""
    return options.get(name, "false").lower() == "true"
