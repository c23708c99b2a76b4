"""``spark.readStream.format("brokerless")``: read topics as a stream by following their logs.

Options (``read_stream`` sets them):

=================  ==================================================================================================
``topics``         names, comma-separated; all their partitions are read
``start``          where a pipeline without progress begins: ``beginning`` (default), ``latest`` or a time;
                   ``write_stream`` records the position in the output, so that a crash does not change it
``pipeline``       the pipeline's name, and
``output``         its output topic: the stream continues after the progress recorded there
``metadata``       ``true`` adds ``_topic``, ``_partition``, ``_version`` and ``_index``
``maxRows``        limits of one batch, which may be exceeded by one commit, because a commit is never split;
``maxBytes``       also ``maxFiles``
``skip``           offsets of lost objects to skip, comma-separated, each as ``table@version:index``
``acceptRewrites`` ``true`` reads unchanged rows again after another engine's delete or update, instead of stopping
``acceptNewInput`` ``true`` reads an input that was deleted and created again by hand from its beginning
``until``          ``now``: end at the last versions that the logs have at start (then Spark finds nothing more); or a
                   time, or an offset such as ``12:0`` of the only partition: end before it
``cores``          how many tasks can run at once; a large batch is cut into about two for each (default 1)
``settings``       profile, root, endpoint and region as JSON; credentials come from the environment or AWS's chain
=================  ==================================================================================================

Three processes run this module: Spark's planner process holds one ``Reader`` (``initialOffset``, ``latestOffset``,
``partitions``), workers run ``Reader.read`` with one ``Slice`` each, and the driver only the schema.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from brokerless.columns.records import ROW
from brokerless.errors import (
    PipelineError,
    StoreError,
)
from brokerless.log.log import read_pool
from brokerless.schema import Column
from brokerless.spark.failures import HOLD_S, unreadable
from brokerless.spark.inputs import WAIT_S, Input, open_inputs
from brokerless.spark.messages import (
    METADATA,
    columns_of,
    ddl,
    flag,
    load_object,
    option,
    skipped_objects,
    with_metadata,
)
from brokerless.spark.progress import Position, SourceOffset
from brokerless.spark.worker import cure_worker, part_of_task, store_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType


SLICE_ROWS: Final = 25_000
"""The fewest rows for a second task: a task costs about ten milliseconds, a row two or three microseconds."""

SLICE_BYTES: Final = 16 * 2**20
"""The most bytes of one task (except for one larger object): a task has its rows in memory."""


class BrokerlessSource(DataSource):
    """The data source; register it with ``spark.dataSource.register``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "brokerless"

    def schema(self) -> str:
        """Return the columns of all topics as DDL."""
        options = _lower(self.options)
        return ddl(columns_of(store_of(option(options, "settings")), options))

    def streamReader(self, schema: StructType) -> Reader:  # the name is Spark's
        """Return the reader for the planner and the workers."""
        return Reader(_lower(self.options), schema)


class Slice(InputPartition):
    """The objects of one task, in order: (table, version, first index, path)."""

    def __init__(self, objects: Sequence[tuple[str, int, int, str]]) -> None:
        super().__init__(tuple(objects))
        self.objects = tuple(objects)


class Reader(DataSourceStreamReader):
    """A reader that divides the logs into batches of whole commits.

    Args:
        options: see the module; keys in lower case, as Spark passes them.
        schema: the columns that the tasks deliver.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = schema
        self._names: list[str] = []
        self._inputs: dict[str, Input] = {}
        self._first: SourceOffset | None = None
        self._last: SourceOffset | None = None
        self._target: Position = {}
        self._until: Position | None = None
        self._files = 0  # objects in all batches of this run; a task reads each with one GET
        self._pool: ThreadPoolExecutor | None = None

    # These methods run in the planner process.

    def initialOffset(self) -> dict[str, object]:
        """Return the offset at which this run begins: after the output's progress, or at the option ``start``."""
        return (self._first or self._open()).to_dict()

    def latestOffset(self) -> dict[str, object]:
        """Return the end of the next batch, or the last offset again if nothing arrived for ``WAIT_S``."""
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
        """Return the objects between two offsets in slices, in order."""
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
            raise PipelineError(
                f"The batch from {since.at} to {until.at} must have {until.rows - since.rows} messages, got {rows}. "
                "Nothing was written; start the pipeline again."
            )
        cores = int(self._options.get("cores", 1))
        return [Slice(objects[a:b]) for a, b in _cuts(sizes, cores)] or [Slice(())]

    def commit(self, end: dict[str, Any]) -> None:
        """Forget the processed commits."""
        for table, version in SourceOffset.of(end).at.items():
            self._inputs[table].forget(version)

    def stop(self) -> None:
        """Do nothing: the reader holds no resources."""

    def _open(self) -> SourceOffset:
        opened = open_inputs(store_of(option(self._options, "settings")), self._options)
        self._inputs, self._target, self._until = opened.tables, opened.ahead, opened.until
        if len(self._inputs) > 1:
            self._pool = ThreadPoolExecutor(min(len(self._inputs), 16))
        self._first = self._last = SourceOffset(opened.at, opened.at, opened.ids, rows=0, known_rows=0)
        return self._first

    def _cut(self, last: SourceOffset) -> SourceOffset:
        """Return the end of the next batch: all known commits within the limits, taking tables in turn."""
        due = [source for source in self._inputs.values() if not source.due_in_s()]
        for _ in (self._pool.map if self._pool else map)(Input.look, due):
            pass
        rows_left = int(self._options.get("maxrows", 2_000_000))
        bytes_left = int(self._options.get("maxbytes", 256 * 2**20))
        files_left = int(self._options.get("maxfiles", 10_000))
        at = dict(last.at)
        rows = 0
        # After a crash between two outputs, batches must not cross the position of the one that is ahead.
        # guard: batches end at the position of the output that is ahead
        target = {t: v for t, v in self._target.items() if v > at[t]}
        queues = {
            table: source.between(at[table], target.get(table, -1) if target else self._end(table))
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
        return replace(last, at=at, rows=done, known_rows=seen, requests=self._asked())

    def _raise_held(self, at: Position, *, nothing_else: bool) -> None:
        """Raise the error of an input after all other commits are processed, or after a minute."""
        for table, source in self._inputs.items():
            if self._until is not None and at[table] >= self._until[table]:
                continue  # this run ends before the unreadable entry
            if source.error is not None and (nothing_else or time.monotonic() - source.error_at > HOLD_S):
                raise source.error

    def _asked(self) -> dict[str, int]:
        asked = store_of(option(self._options, "settings")).requests
        return {**asked, "GET": asked.get("GET", 0) + self._files}

    def _end(self, table: str) -> int | None:
        return None if self._until is None else self._until[table]

    # This method runs in the workers.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a slice as Arrow batches in log order."""
        import pyarrow as pa

        cure_worker()
        if not isinstance(partition, Slice):
            raise TypeError(partition)
        store = store_of(option(self._options, "settings"))
        part = part_of_task()
        objects = [o for o in partition.objects if part is None or part[o[0]][0] < o[1] <= part[o[0]][1]]
        skipped = skipped_objects(self._options)
        metadata = flag(self._options, "metadata")
        fields = self._schema.fields[: -len(METADATA)] if metadata else self._schema.fields
        columns = [Column(field.name, str(field.dataType.jsonValue())) for field in fields]
        paths = [path for _, _, _, path in objects]
        load = partial(load_object, store, columns)
        loaded = read_pool().map(load, paths) if len(paths) > 1 else map(load, paths)
        for (table, version, index, _), messages in zip(objects, loaded, strict=True):
            if isinstance(messages, StoreError):
                if f"{table}@{version}:{index}" in skipped:
                    continue
                raise StoreError(unreadable(table, version, index, messages)) from messages
            if not messages.num_rows:
                continue  # perhaps columns of another writer
            rows = pa.table(messages)
            if metadata:
                rows = with_metadata(rows, table, version, index)
            elif ROW in rows.column_names:
                rows = rows.drop_columns([ROW])
            yield from rows.to_batches()


def _cuts(sizes: Sequence[tuple[int, int]], cores: int) -> list[tuple[int, int]]:
    """Divide objects with these (rows, bytes) into ranges, one per task: two per core, so that cores end together."""
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


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in options.items()}
