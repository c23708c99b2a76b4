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
``until``          ``now``: end at the heads that the logs have at start (then Spark finds nothing more)
``cores``          how many tasks can run at once; a large batch is cut into about two for each (default 1)
``settings``       profile, root, endpoint and region as JSON; credentials come from the environment or the chain
=================  ==================================================================================================

Three processes run this module: Spark's planner process holds one ``Reader`` (``initialOffset``, ``latestOffset``,
``partitions``), workers run ``Reader.read`` with one ``Slice`` each, and the driver only the schema.
"""

from __future__ import annotations

import math
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
from brokerless.errors import ConfigError, PipelineError, SchemaError, TopicDeleted, TopicNotFound
from brokerless.log import DeltaLog, read_pool
from brokerless.offsets import Offset, parse_start
from brokerless.spark.progress import Position, SourceOffset, position_in
from brokerless.spark.worker import cure_worker, store_of
from brokerless.topics import PRODUCED_AT, Column, Schema, dead_letters, partition_table, split_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa
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
            if now >= deadline or self._until is not None:
                return last.to_dict()
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
        start = _start(self._options)
        at: Position = {}
        self._inputs = {table: _Input(DeltaLog(store, table)) for table in _tables(store, self._options)}
        recorded, ahead = self._recorded(store)
        for table, source in self._inputs.items():
            if table in recorded:
                # A topic that was deleted and created again goes on at its new beginning.
                at[table] = max(recorded[table], source.log.state.metadata.first_version)
            else:
                at[table] = resolve_start(source.log, start).version - 1
            source.seek(at[table])
        self._target = {table: v for table, v in ahead.items() if v > at.get(table, v)}
        if self._options.get("until") == "now":
            self._until = {table: source.log.refresh().version for table, source in self._inputs.items()}
        if len(self._inputs) > 1:
            self._pool = ThreadPoolExecutor(min(len(self._inputs), 16))
        born = {table: source.log.state.metadata.first_version for table, source in self._inputs.items()}
        self._first = self._last = SourceOffset(at, at, {t: v for t, v in born.items() if v}, rows=0, seen=0)
        return self._first

    def _recorded(self, store: Store) -> tuple[Position, Position]:
        """The positions that the output and its dead letters record; empty before a pipeline's first run."""
        name, output = self._options.get("pipeline"), self._options.get("output")
        if not name or not output:
            return {}, {}
        found: list[Position] = []
        for topic in (output, dead_letters(output)):
            try:
                found.append(position_in(DeltaLog(store, topic), name, self._inputs))
            except (TopicNotFound, TopicDeleted):
                found.append({})
        return found[0], found[1]

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
        if at == last.at:
            return last
        done = last.rows + rows
        seen = done + sum(commit.rows for queue in queues.values() for commit in queue)
        return replace(last, at=at, rows=done, seen=seen, asked=self._asked())

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

        from brokerless import records

        cure_worker()
        if not isinstance(partition, Slice):
            raise TypeError(partition)
        store = store_of(_option(self._options, "settings"))
        paths = [path for _, _, _, path in partition.objects]
        load = partial(records.load, store)
        loaded = read_pool().map(load, paths) if len(paths) > 1 else map(load, paths)
        metadata = _flag(self._options, "metadata")
        fields = self._schema.fields[: -len(METADATA)] if metadata else self._schema.fields
        columns = [Column(field.name, str(field.dataType.jsonValue())) for field in fields]
        for (table, version, index, path), messages in zip(partition.objects, loaded, strict=True):
            if not messages.num_rows:
                continue  # columns of another writer, perhaps
            rows = pa.table(records.with_columns(messages, columns, path=f"{store.uri}/{path}"))
            if metadata:
                topic, number = split_table(table)
                rows = rows.append_column("_topic", pa.repeat(pa.scalar(topic), rows.num_rows))
                rows = rows.append_column("_partition", pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows))
                rows = rows.append_column("_version", pa.repeat(pa.scalar(version, pa.int64()), rows.num_rows))
                rows = rows.append_column("_index", pa.array(np.arange(index, index + rows.num_rows)))
            yield from rows.to_batches()


class _Input:
    """One input table in the planner: its tail, and the commits that are known but not done."""

    def __init__(self, log: DeltaLog) -> None:
        self.log = log
        self._tail = Tail(log, 0, idle_max_s=IDLE_POLL_MAX_S)
        self._known: deque[_Pending] = deque()

    def due_in_s(self) -> float:
        return self._tail.due_in_s()

    def seek(self, position: int) -> None:
        self._tail.seek(position + 1)
        self._known.clear()

    def look(self) -> None:
        """Takes note of what has come since the last look; a long backlog in portions."""
        if len(self._known) > 100_000:
            return
        while entries := self._tail.take(READ_AHEAD):
            self._known.extend(self._pending(entry) for entry in entries)
            if len(entries) < READ_AHEAD:
                break

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


def first_position(store: Store, options: Mapping[str, str], output: Output) -> Position:
    """Where inputs begin that an output does not record yet: clean-up moves ``beginning``, new messages ``latest``.

    Args:
        store: where the topics are.
        options: of the source; keys in lower case.
        output: of the pipeline.
    """
    start = _start(options)
    tables = _tables(store, options)
    known = output.position(tables)
    first = {table: resolve_start(DeltaLog(store, table), start).version - 1 for table in tables if table not in known}
    # No txn says "before version 0", where another writer's table may have messages.
    return {table: version for table, version in first.items() if version >= 0}


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


def _tables(store: Store, options: Mapping[str, str]) -> list[str]:
    """All partitions of the topics."""
    tables: list[str] = []
    for topic in _names(options):
        partitions = int(DeltaLog(store, topic).state.metadata.configuration.get(PARTITIONS_KEY, "1"))
        tables += [partition_table(topic, number) for number in range(partitions)]
    return tables


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


def _flag(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"


def _ddl(delta_type: str) -> str:
    return {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}.get(delta_type, delta_type)
