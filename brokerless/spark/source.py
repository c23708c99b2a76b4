"""``spark.readStream.format("brokerless")``: topics as a stream, by tailing their logs.

Options (``read_stream`` sets them):

=================  ==================================================================================================
``topics``         names, comma-separated; all their partitions are read
``start``          where a pipeline without progress begins: ``beginning`` (default), ``latest`` or a time;
                   ``write_stream`` notes in the output what that means now, so that a crash does not move it
``pipeline``       the pipeline's name, and
``output``         its output topic: with progress recorded there the stream resumes after it
``metadata``       ``true`` adds ``_topic``, ``_partition``, ``_version`` and ``_index``
``maxRows``        limits of one batch, each soft by one commit, because a batch never splits a commit;
``maxBytes``       also ``maxFiles``
``skip``           offsets of objects that nobody has any more, comma-separated, each as ``table@version:index``
``acceptRewrites`` ``true`` delivers again what another engine's delete or update has kept, instead of stopping there
``acceptNewInput`` ``true`` begins anew with an input that was removed and made again by hand, instead of stopping
``until``          ``now``: end at the heads that the logs have at start (then Spark finds nothing more)
``cores``          how many tasks can run at once; a large batch is cut into about two for each (default 1)
``settings``       profile, root, endpoint and region as JSON; credentials come from the environment or the chain
=================  ==================================================================================================

Three processes run this module: Spark's planner process holds one ``Reader`` (``initialOffset``, ``latestOffset``,
``partitions``), workers run ``Reader.read`` with one ``Slice`` each, and the driver only the schema.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from brokerless.admin import describe_topic
from brokerless.consumer import Tail, resolve_start
from brokerless.entries import PARTITIONS_KEY
from brokerless.errors import (
    AccessDenied,
    BrokerlessError,
    BucketNotFound,
    ConfigError,
    LogIncomplete,
    PipelineError,
    SchemaError,
    StoreError,
    StoreUnavailable,
    TopicChanged,
    TopicDeleted,
    TopicNotFound,
    TopicRewritten,
)
from brokerless.log import DeltaLog, read_pool
from brokerless.offsets import Offset, parse_start
from brokerless.spark.failures import HOLD_S, unreadable
from brokerless.spark.progress import Begin, Position, SourceOffset, TableIds, position_in, recorded_in
from brokerless.spark.worker import cure_worker, part_of_task, store_of
from brokerless.topics import PRODUCED_AT, Column, Schema, dead_letters, partition_table, split_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa
    from arro3.core import Table
    from pyspark.sql.types import StructType

    from brokerless.entries import Add, Entry
    from brokerless.spark.outputs import Output
    from brokerless.store import Store

METADATA: Final = (
    Column("_topic", "string"),
    Column("_partition", "integer"),
    Column("_version", "long"),
    Column("_index", "long"),
)

WAIT_S: Final = 0.2
"""How long ``latestOffset`` waits for something new before Spark's loop gets control back (to stop, for example)."""

IDLE_POLL_MAX_S: Final = 0.1
SAME_S: Final = 60.0
"""How often a source makes sure that each input is still the table that it opened: one made by hand in its place may
have entries at the versions that it waits for."""

READ_AHEAD: Final = 64  # entries a tail may take at once, per partition
SLICE_ROWS: Final = 25_000
"""The least that a second task is started for: a task costs some ten milliseconds, a row two or three microseconds."""

SLICE_BYTES: Final = 16 * 2**20
"""The most that one task reads, but for an object that is larger: a task holds its rows in memory."""


class BrokerlessSource(DataSource):
    """The data source; register it with ``spark.dataSource.register``."""

    @classmethod
    def name(cls) -> str:
        """For ``format``."""
        return "brokerless"

    def schema(self) -> str:
        """The topics' columns together, as DDL."""
        store = store_of(_option(self.options, "settings"))
        schemas = [describe_topic(store, topic).schema for topic in _names(self.options)]
        columns = [*union_columns(schemas).columns, Column(PRODUCED_AT, "timestamp")]
        if _flag(self.options, "metadata"):
            columns += METADATA
        return ", ".join(f"`{c.name}` {_ddl(c.type)}" for c in columns)

    def streamReader(self, schema: StructType) -> Reader:  # Spark's name
        """The reader that the planner and the workers share."""
        return Reader({key.lower(): value for key, value in self.options.items()}, schema)


class Slice(InputPartition):
    """The objects that one task reads, in order: (table, version, first index, path)."""

    def __init__(self, objects: Sequence[tuple[str, int, int, str]]) -> None:
        super().__init__(tuple(objects))
        self.objects = tuple(objects)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A commit that is known but not yet in a batch."""

    version: int
    files: tuple[Add, ...]
    rows: int
    size: int


class Reader(DataSourceStreamReader):
    """Cuts the logs into batches of whole commits.

    Args:
        options: see the module; keys in lower case, as Spark hands them over.
        schema: the columns that the tasks deliver.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = schema
        self._names: list[str] = []
        self._inputs: dict[str, _Input] = {}
        self._first: SourceOffset | None = None
        self._last: SourceOffset | None = None
        self._target: Position = {}
        self._until: Position | None = None
        self._files = 0  # that all batches of this run hold; a task reads each by one GET
        self._pool: ThreadPoolExecutor | None = None

    # In the planner process

    def initialOffset(self) -> dict[str, object]:
        """Where this run begins: after what the output records, or at the option ``start``."""
        return (self._first or self._open()).to_dict()

    def latestOffset(self) -> dict[str, object]:
        """The end of the next batch, or the last offset again if nothing came for ``WAIT_S``."""
        last = self._last or self._open()
        deadline = time.monotonic() + WAIT_S
        while True:
            offset = self._cut(last)
            now = time.monotonic()
            if offset.at != last.at:
                self._last = offset
                return offset.to_dict()
            if now >= deadline if self._until is None else all(last.at[t] >= v for t, v in self._until.items()):
                return last.to_dict()
            for source in self._inputs.values():
                source.ask_why_nothing_comes()
            time.sleep(max(0.001, min(deadline - now, *(source.due_in_s() for source in self._inputs.values()))))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The objects between two offsets, cut into slices, in order."""
        since, until = SourceOffset.of(start), SourceOffset.of(end)
        objects: list[tuple[str, int, int, str]] = []
        sizes: list[tuple[int, int]] = []
        rows = 0
        for table, last in until.at.items():
            for commit in self._inputs[table].between(since.at[table], last):
                index = 0
                for add in commit.files:
                    objects.append((table, commit.version, index, f"{table}/{add.path}"))
                    sizes.append((add.rows or 0, add.size))
                    index += add.rows or 0
                rows += commit.rows
        if rows != until.rows - since.rows:
            msg = (
                f"The batch from {since.at} to {until.at} has {until.rows - since.rows} messages, but {rows} are known "
                "of. Nothing was written; start the pipeline again."
            )
            raise PipelineError(msg)
        cores = int(self._options.get("cores", 1))
        return [Slice(objects[a:b]) for a, b in _cuts(sizes, cores)] or [Slice(())]

    def commit(self, end: dict[str, Any]) -> None:
        """Forgets what is done."""
        for table, version in SourceOffset.of(end).at.items():
            self._inputs[table].forget(version)

    def stop(self) -> None:
        """Nothing is held."""

    def _open(self) -> SourceOffset:
        store = store_of(_option(self._options, "settings"))
        at: Position = {}
        rewrites = _flag(self._options, "acceptrewrites")
        logs = _logs(store, self._options)
        self._inputs = {log.table: _Input(log, accept_rewrites=rewrites) for log in logs}
        ids = {table: source.log.state.metadata.id for table, source in self._inputs.items()}
        name, output, letters = self._outputs(store)
        for table, source in self._inputs.items():
            recorded = partial(recorded_in, output, name) if output is not None else _nothing
            at[table] = _begin(source.log, recorded, self._options)[0]
            source.seek(at[table])
        ahead = position_in(letters, name, ids) if letters is not None else {}
        self._target = {table: v for table, v in ahead.items() if v > at.get(table, v)}
        if self._options.get("until") == "now":
            self._until = {table: source.end() for table, source in self._inputs.items()}
        if len(self._inputs) > 1:
            self._pool = ThreadPoolExecutor(min(len(self._inputs), 16))
        self._first = self._last = SourceOffset(at, at, ids, rows=0, seen=0)
        return self._first

    def _outputs(self, store: Store) -> tuple[str, DeltaLog | None, DeltaLog | None]:
        """The pipeline's name, and where it keeps its progress: the logs of its output and its dead letters."""
        name, output = self._options.get("pipeline"), self._options.get("output")
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

    def _cut(self, last: SourceOffset) -> SourceOffset:
        """The offset after the next batch: everything there is, within the limits, tables taking turns."""
        due = [source for source in self._inputs.values() if not source.due_in_s()]
        for _ in (self._pool.map if self._pool else map)(_Input.look, due):
            pass
        rows_left = int(self._options.get("maxrows", 2_000_000))
        bytes_left = int(self._options.get("maxbytes", 256 * 2**20))
        files_left = int(self._options.get("maxfiles", 10_000))
        at = dict(last.at)
        rows = 0
        # After a crash between two outputs, batches must not cross the position of the one that is ahead.
        target = {t: v for t, v in self._target.items() if v > at[t]}
        queues = {
            table: source.pending_after(at[table], target.get(table, -1) if target else self._end(table))
            for table, source in self._inputs.items()
        }
        while any(queues.values()) and rows_left > 0 and bytes_left > 0 and files_left > 0:
            for table, queue in queues.items():
                if queue and rows_left > 0 and bytes_left > 0 and files_left > 0:
                    commit = queue.popleft()
                    at[table] = commit.version
                    rows += commit.rows
                    rows_left -= commit.rows
                    bytes_left -= commit.size
                    files_left -= len(commit.files)
                    self._files += len(commit.files)
        self._raise_held(at, nothing_else=at == last.at)
        if at == last.at:
            return last
        done = last.rows + rows
        seen = done + sum(commit.rows for queue in queues.values() for commit in queue)
        return replace(last, at=at, rows=done, seen=seen, asked=self._asked())

    def _raise_held(self, at: Position, *, nothing_else: bool) -> None:
        """Raises what is wrong with an input, when what could be done without it is done, or after a minute."""
        for table, source in self._inputs.items():
            if self._until is not None and at[table] >= self._until[table]:
                continue  # this run ends before it
            if source.error is not None and (nothing_else or time.monotonic() - source.error_at > HOLD_S):
                raise source.error

    def _asked(self) -> dict[str, int]:
        asked = store_of(_option(self._options, "settings")).requests
        return {**asked, "GET": asked.get("GET", 0) + self._files}

    def _end(self, table: str) -> int | None:
        return None if self._until is None else self._until[table]

    # In the workers

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, as Arrow batches in log order."""
        import numpy as np
        import pyarrow as pa

        cure_worker()
        if not isinstance(partition, Slice):
            raise TypeError(partition)
        store = store_of(_option(self._options, "settings"))
        part = part_of_task()
        objects = [o for o in partition.objects if part is None or part[o[0]][0] < o[1] <= part[o[0]][1]]
        skipped = _skipped(self._options)
        metadata = _flag(self._options, "metadata")
        fields = self._schema.fields[: -len(METADATA)] if metadata else self._schema.fields
        columns = [Column(field.name, str(field.dataType.jsonValue())) for field in fields]
        paths = [path for _, _, _, path in objects]
        load = partial(_load, store, columns)
        loaded = read_pool().map(load, paths) if len(paths) > 1 else map(load, paths)
        for (table, version, index, _), messages in zip(objects, loaded, strict=True):
            if isinstance(messages, StoreError):
                if f"{table}@{version}:{index}" in skipped:
                    continue
                raise StoreError(unreadable(table, version, index, messages)) from messages
            if not messages.num_rows:
                continue  # columns of another writer, perhaps
            rows = pa.table(messages)
            if metadata:
                topic, number = split_table(table)
                rows = rows.append_column("_topic", pa.repeat(pa.scalar(topic), rows.num_rows))
                rows = rows.append_column("_partition", pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows))
                rows = rows.append_column("_version", pa.repeat(pa.scalar(version, pa.int64()), rows.num_rows))
                rows = rows.append_column("_index", pa.array(np.arange(index, index + rows.num_rows)))
            yield from rows.to_batches()


def _load(store: Store, columns: Sequence[Column], path: str) -> Table | StoreError:
    """The rows of an object, or what is wrong with it: an error that this object has alone."""
    from brokerless import records

    try:
        rows = records.load(store, path)
        return records.with_columns(rows, columns, path=f"{store.uri}/{path}") if rows.num_rows else rows
    except StoreError as error:
        if type(error) is not StoreError:
            raise  # of the whole store, most likely: it does not answer, or refuses
        return error


class _Input:
    """One input table in the planner: its tail, and the commits that are known but not done."""

    def __init__(self, log: DeltaLog, *, accept_rewrites: bool) -> None:
        self.log = log
        self._tail = Tail(log, 0, idle_max_s=IDLE_POLL_MAX_S, accept_rewrites=accept_rewrites)
        self._known: deque[_Pending] = deque()
        self._at_once = READ_AHEAD
        self.error: BrokerlessError | None = None
        self.error_at = 0.0
        self._same_at = time.monotonic()

    def due_in_s(self) -> float:
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
                msg = (
                    f"Entry {waiting} of the log of {self.log.uri} is missing, and so is what was behind it, up to "
                    f"entry {version}, when this run began. Restore it and start again."
                )
                raise LogIncomplete(msg, version=waiting)
            self.log.check_retained(waiting)
        except BrokerlessError as error:
            self._keep(error)

    def seek(self, position: int) -> None:
        self._tail.seek(position + 1)
        self._known.clear()

    def look(self) -> None:
        """Takes note of what has come since the last look; a long backlog in portions.

        What is wrong with this input alone is kept as its ``error``: what is known of it, and the others, come first.
        """
        if self.error is not None or len(self._known) > 100_000:
            return
        try:
            if time.monotonic() - self._same_at > SAME_S:
                self.log.check_same()
                self._same_at = time.monotonic()
            while entries := self._take():
                for entry in entries:
                    self._known.append(self._pending(entry))
                if len(entries) < self._at_once:
                    break
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
        self.error, self.error_at = error, time.monotonic()

    def _take(self) -> list[Entry]:
        try:
            return self._tail.take(self._at_once)
        except (StoreUnavailable, AccessDenied, BucketNotFound):
            raise
        except BrokerlessError:
            self._at_once = 1  # what is before the entry that cannot be taken
            return self._tail.take(1)

    def _pending(self, entry: Entry) -> _Pending:
        files = tuple(self._tail.new_files(entry))
        rows = 0
        for add in files:
            if add.rows is None:
                msg = (
                    f"{self.log.uri}/{add.path} was committed without numRecords; pipelines need it for offsets. "
                    "Write with statistics."
                )
                raise SchemaError(msg)
            rows += add.rows
        return _Pending(entry.version, files, rows, sum(add.size for add in files))

    def pending_after(self, version: int, last: int | None) -> deque[_Pending]:
        return deque(c for c in self._known if c.version > version and (last is None or c.version <= last))

    def between(self, start: int, end: int) -> list[_Pending]:
        return [commit for commit in self._known if start < commit.version <= end]

    def forget(self, version: int) -> None:
        while self._known and self._known[0].version <= version:
            self._known.popleft()


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
    for log in _logs(store, options):
        at[log.table], fresh = _begin(log, output.recorded, options)
        ids[log.table] = log.state.metadata.id
        if fresh:
            anew.add(log.table)
    # No txn says "before version 0", where another writer's table may have messages.
    return Begin({table: version for table, version in at.items() if version >= 0}, ids, frozenset(anew))


def _begin(log: DeltaLog, recorded: Callable[[DeltaLog], int | None], options: Mapping[str, str]) -> tuple[int, bool]:
    """The position in an input with which a run begins, and whether that is so in spite of recorded progress."""
    try:
        if (version := recorded(log)) is not None:
            return version, False
    except TopicChanged as error:
        if isinstance(error, TopicDeleted) or not _flag(options, "acceptnewinput"):
            raise
        return resolve_start(log, "beginning").version - 1, True
    return resolve_start(log, _start(options)).version - 1, False


def _nothing(log: DeltaLog) -> None:
    """What is recorded of an input where there is no output."""


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
                msg = (
                    f"Column {column.name!r} is {known.type} in one topic and {column.type} in another; "
                    "read them in two pipelines."
                )
                raise SchemaError(msg)
    return Schema(tuple(columns.values()))


def _cuts(sizes: Sequence[tuple[int, int]], cores: int) -> list[tuple[int, int]]:
    """Ranges of objects for one task each, from their (rows, bytes); two for a core, so that cores end together."""
    enough = max(SLICE_ROWS, math.ceil(sum(rows for rows, _ in sizes) / (2 * cores)))
    cuts: list[tuple[int, int]] = []
    begin = total_rows = total_bytes = 0
    for i, (rows, size) in enumerate(sizes):
        total_rows += rows
        total_bytes += size
        if total_rows >= enough or total_bytes >= SLICE_BYTES:
            cuts.append((begin, i + 1))
            begin, total_rows, total_bytes = i + 1, 0, 0
    if begin < len(sizes):
        cuts.append((begin, len(sizes)))
    return cuts


def _start(options: Mapping[str, str]) -> Literal["beginning", "latest"] | datetime:
    start = parse_start(options.get("start", "beginning"))
    if isinstance(start, Offset):
        msg = "A pipeline starts at beginning, latest or a time; offsets differ between partitions."
        raise ConfigError(msg)
    return start


def _logs(store: Store, options: Mapping[str, str]) -> list[DeltaLog]:
    """The logs of all partitions of the topics.

    Partition 0 is opened once: if the topic is created again meanwhile, with more partitions, that handle notices.
    """
    logs: list[DeltaLog] = []
    for topic in _names(options):
        first = DeltaLog(store, topic)
        partitions = int(first.state.metadata.configuration.get(PARTITIONS_KEY, "1"))
        logs += [first, *(DeltaLog(store, partition_table(topic, number)) for number in range(1, partitions))]
    return logs


def _names(options: Mapping[str, str]) -> list[str]:
    names = [name.strip() for name in _option(options, "topics").split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        msg = f"The option topics names none, or one twice: {options.get('topics')!r}."
        raise ConfigError(msg)
    return names


def _option(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        msg = f"The brokerless source needs the option {name!r}; use brokerless.spark.read_stream."
        raise ConfigError(msg)
    return value


def _skipped(options: Mapping[str, str]) -> frozenset[str]:
    """Objects to go on without, if they cannot be read."""
    return frozenset(name.strip() for name in options.get("skip", "").split(","))


def _flag(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"


def _ddl(delta_type: str) -> str:
    return {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}.get(delta_type, delta_type)
