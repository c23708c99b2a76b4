"""``write_stream``: write a streaming DataFrame to an output topic, exactly once.

A batch's end is in the offset log of Spark's checkpoint, its start is the end of the batch before. It must continue the
position in the output's log; a gap or an overlap can only come from a wrong configuration and stops the pipeline. Dead
letters are committed to their topic, then the other rows to the output: Parquet objects, and one log entry with
``txn(pipeline:topic:partition:table id, end)`` for each input. A restart begins at the output's txns, so committing the
output first could lose dead letters. Spark's checkpoint is a scratch folder that is deleted at start.

A batch is written in parts if an object cannot be read (only its partition waits for it), or if executors needed so
long that maintenance could remove their objects as orphans. Before the first batch, the option ``start`` is recorded as
txns. A second pipeline of the same name advances the epoch txn; the first then stops with ``PipelineFenced``.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from brokerless.clock import SYSTEM
from brokerless.errors import BrokerlessError, ConfigError, PipelineError
from brokerless.log.entries import Add
from brokerless.metrics import Histogram
from brokerless.schema import dead_letters
from brokerless.settings import Settings
from brokerless.spark.arrow import ages, split_dead_letters
from brokerless.spark.checkpoints import fresh_checkpoint, queries, query_name, read_offset, remove_checkpoint
from brokerless.spark.failures import HOLD_S, named_error, unreadable_in
from brokerless.spark.inputs import first_position
from brokerless.spark.messages import DEAD_LETTER
from brokerless.spark.outputs import ObjectsTooOldError, OutputLog, PipelineOutputs, TableWriter, UploadedFiles
from brokerless.spark.plan import check_columns, check_source, check_stateless, is_shuffled, options_of_sources
from brokerless.spark.progress import Position, SourceOffset, halves, pieces
from brokerless.spark.running import BatchReport, RunningPipeline
from brokerless.spark.session import scratch_root
from brokerless.spark.worker import PART, cure_worker, settings_option, store_of
from brokerless.store import open_store
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from brokerless.store import Store

EXECUTOR_ROWS: Final = 500_000
"""Batches with more rows are written by the executors. On two cores they are faster from there on (docs/adr/0005); use
a lower value with many idle executors."""


@dataclass(slots=True)
class _MicroBatches(RunningPipeline):
    sink: _Sink = field(kw_only=True)

    def ready(self) -> bool:
        """Return whether the source is open and the first batch can start at once (or did)."""
        return bool(self.reports) or "Waiting" in self.query.status["message"]

    def stop(self, timeout_s: float = 8.0) -> None:
        """Let the running batch finish (for at most ``timeout_s``), then end the query."""
        self.sink.close(timeout_s)
        self.query.stop()
        remove_checkpoint(self.sink.checkpoint)

    def error(self) -> BrokerlessError | None:
        """Return the brokerless error that ended the query, or None."""
        return self.sink.error


def write_stream(
    df: DataFrame,
    table: str,
    *,
    name: str,
    settings: Settings | None = None,
    interval_s: float = 0.0,
    executor_rows: int = EXECUTOR_ROWS,
) -> RunningPipeline:
    """Start the pipeline ``name``, which writes ``df`` to the output topic ``table``.

    Args:
        df: from ``read_stream`` with the same name and output. Its columns are those of the output topic, plus
            optionally ``_produced_at`` (unchanged from the input, so that ages are measured from there) and
            ``_dead_letter`` (see ``dead_letter``): rows in which it is set go to ``<table>.dead_letters``.
        table: an existing topic with one partition.
        name: the pipeline's name, under which the output's log records its progress.
        settings: the settings; loaded from the environment if None.
        interval_s: time between batches; 0 is as short as possible.
        executor_rows: batches with more rows are written by the executors.

    Raises:
        TopicNotFound, SchemaError, ConfigError: raised before anything is written.
    """
    settings = settings or Settings.load()
    sink = _Sink(df, table, name=name, settings=settings, executor_rows=executor_rows)
    warming = threading.Thread(target=_warm_up, args=(df,), name=f"warm-up-{name}", daemon=True)
    warming.start()
    writer = df.writeStream.foreachBatch(sink.write).option("checkpointLocation", sink.checkpoint.as_uri())
    if interval_s > 0:
        writer = writer.trigger(processingTime=f"{int(interval_s * 1000)} milliseconds")
    try:
        query = writer.queryName(query_name(name, sink.checkpoint)).start()
    except Exception:
        remove_checkpoint(sink.checkpoint)
        raise
    queries[sink.checkpoint] = query
    warming.join()
    return _MicroBatches(query, name, "micro-batch", sink.reports, sink=sink)


def _warm_up(df: DataFrame) -> None:
    """Start a Python worker with its imports, and load Arrow in the JVM and here, before the first batch needs them.

    It runs at the same time as the start of the source's planner process. It does not compile the batch's plan.
    """
    spark = df.sparkSession
    rows = (
        spark.range(1)
        .selectExpr("cast(null as timestamp) as _produced_at")
        .mapInArrow(_import_all, "_produced_at timestamp")
    )
    with contextlib.suppress(Exception):  # the first batch will have the same error and report it
        split_dead_letters(rows.toArrow())


def _import_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import numpy  # noqa: F401
    import pyspark.sql.pandas.types  # noqa: F401

    import brokerless.spark.source  # noqa: F401

    cure_worker()
    yield from batches


class _StoppingError(Exception):
    """Error raised in a batch that began while the pipeline was stopping: it writes nothing, the next run does."""


class _Sink:
    """The state of one running pipeline on the driver."""

    def __init__(self, df: DataFrame, table: str, *, name: str, settings: Settings, executor_rows: int) -> None:
        self._settings = settings
        self._executor_rows = executor_rows
        self._store = open_store(settings)
        self._outputs = outputs_of(df, table, name=name, store=self._store)
        check_stateless(df)
        check_source(df, table, name, settings)
        scratch = scratch_root(settings)  # before the claim: with a full disk, no other pipeline must be fenced
        self.reports: list[BatchReport] = []
        self.error: BrokerlessError | None = None
        self._running = threading.Lock()
        self._closed = False
        self._held: dict[str, int] = {}  # the last version before an unreadable object, by table
        self._holding: BrokerlessError | None = None
        self._held_at = 0.0
        self._pieces = 1  # the number of parts of a batch
        self._counted: Counter[str] = Counter()
        self._outputs.claim()
        self._begin(df)
        self.checkpoint = fresh_checkpoint(scratch, name)

    def _begin(self, df: DataFrame) -> None:
        """Record in the output where a new pipeline begins, before the source looks for it there."""
        for options in options_of_sources(df):
            self._outputs.record_start(first_position(self._store, options, self._outputs.output))

    def close(self, timeout_s: float) -> None:
        """Wait for the running batch, and let no other batch begin."""
        self._closed = True
        if self._running.acquire(timeout=timeout_s):
            self._running.release()

    def write(self, df: DataFrame, batch_id: int) -> None:
        """Write one batch; Spark's ``foreachBatch`` calls it."""
        with self._running:
            if self._closed:
                raise _StoppingError
            try:
                self._write(df, batch_id)
            except BrokerlessError as error:
                self.error = error
                raise
            except Exception as error:
                cause = named_error(str(error)) if "brokerless.errors." in str(error) else None
                self.error = cause or PipelineError(f"Batch {batch_id} failed: {type(error).__name__}: {error}")
                raise

    def _write(self, df: DataFrame, batch_id: int) -> None:
        start, offset, rows = self._range(batch_id)
        whole = start, offset.at
        parts = deque(pieces(self._readable(start), self._readable(offset.at), self._pieces))
        while parts:
            part = parts.popleft()
            share = math.ceil(rows * _commits(part) / max(1, _commits(whole)))
            try:
                with self._reading(df, part, whole):
                    self._write_part(df, part[0], replace(offset, at=part[1]), share, batch_id)
            except ObjectsTooOldError:
                # Split the batch; a single commit is written by the driver, whose objects do not wait for other tasks.
                if smaller := [] if is_shuffled(df) else halves(*part):
                    self._pieces *= 2
                    parts.extendleft(reversed(smaller))
                else:
                    with self._reading(df, part, whole):
                        self._write_part(df, part[0], replace(offset, at=part[1]), 0, batch_id)
            except Exception as error:
                if (unreadable := unreadable_in(str(error))) is None or is_shuffled(df):
                    raise
                table, version = unreadable
                self._held[table] = min(version - 1, self._held.get(table, version))
                if self._holding is None:
                    self._holding, self._held_at = named_error(str(error)), time.monotonic()
                parts = deque((self._readable(a), self._readable(b)) for a, b in (part, *parts))
        waiting = offset.known_rows > offset.rows and time.monotonic() - self._held_at < HOLD_S
        if self._holding is not None and not waiting:
            raise self._holding

    def _readable(self, position: Position) -> Position:
        return {table: min(version, self._held.get(table, version)) for table, version in position.items()}

    @contextlib.contextmanager
    def _reading(
        self, df: DataFrame, part: tuple[Position, Position], whole: tuple[Position, Position]
    ) -> Iterator[None]:
        """Let Spark's jobs in the block read only one part of the batch."""
        if part == whole:
            yield
            return
        context = df.sparkSession.sparkContext
        since, until = part
        context.setLocalProperty(PART, json.dumps({table: (since[table], until[table]) for table in until}))
        try:
            yield
        finally:
            context.setLocalProperty(PART, None)  # type: ignore[arg-type]  # None is Spark's way to unset it

    def _write_part(self, df: DataFrame, start: Position, offset: SourceOffset, rows: int, batch_id: int) -> None:
        begun = time.perf_counter()
        lag = offset.known_rows - offset.rows
        todo = self._outputs.missing(start, offset, batch_id=batch_id)
        if not todo:
            return
        by_driver = rows <= self._executor_rows
        result = (self._by_driver if by_driver else self._by_executors)(df, todo)
        computed = time.perf_counter()
        rejected = result.dead_letters
        self._outputs.commit(result.good, rejected, offset, missing=todo)
        latency = result.latency if result.table is None else ages(result.table, SYSTEM.time_us())
        ended = time.perf_counter()
        self.reports.append(
            BatchReport(
                batch_id=batch_id,
                rows=result.good.rows,
                dead_letters=rejected.rows,
                lag_rows=lag,
                compute_s=computed - begun,
                commit_s=ended - computed,
                by="driver" if by_driver else "executors",
                latency=latency,
                requests=self._requests(offset, 0 if by_driver else len(result.good.adds) + len(rejected.adds)),
            )
        )
        del self.reports[:-10_000]

    def _requests(self, offset: SourceOffset, uploads: int) -> dict[str, int]:
        """Count S3 requests since the last report; executors do not count, but each of their objects is one PUT."""
        total = Counter(offset.requests) + Counter(self._store.requests)
        new = total - self._counted
        self._counted = total
        new["PUT"] += uploads
        return dict(new)

    def _range(self, batch_id: int) -> tuple[Position, SourceOffset, int]:
        """Return a batch's start, end and rows, from the checkpoint's offset log, which Spark has written before."""
        end = read_offset(self.checkpoint, batch_id)
        if batch_id == 0:
            return end.run_start, end, end.rows
        start = read_offset(self.checkpoint, batch_id - 1)
        return start.at, end, end.rows - start.rows

    def _by_driver(self, df: DataFrame, todo: Sequence[OutputLog]) -> _Result:
        good, rejected = split_dead_letters(df.toArrow())
        result = _Result(table=good)
        to_rejected, to_output = self._outputs.dead_letters, self._outputs.output
        for output, rows, objects in ((to_rejected, rejected, result.dead_letters), (to_output, good, result.good)):
            if output in todo and output is not None and rows is not None:
                output.upload(rows, objects)
        return result

    def _by_executors(self, df: DataFrame, todo: Sequence[OutputLog]) -> _Result:
        output, to_rejected = self._outputs.output, self._outputs.dead_letters
        task = _ExecutorTask(
            settings_option(self._settings),
            output.writer if output in todo else None,
            to_rejected.writer if to_rejected in todo and to_rejected is not None else None,
        )
        result = _Result()
        # The order of the partitions is the order of the log.
        for row in df.mapInArrow(task, "written string").collect():
            written = json.loads(row.written)
            result.good.adds += [Add(*values) for values in written["good"]]
            result.dead_letters.adds += [Add(*values) for values in written["rejected"]]
            result.latency.add_counts(written["latency"])
        return result


def outputs_of(df: DataFrame, table: str, *, name: str, store: Store) -> PipelineOutputs:
    """Open the output of a pipeline, and its dead-letter topic if the transform has the column; claims nothing.

    Raises:
        ConfigError, SchemaError, TopicNotFound: the name or the columns are not valid, or a topic does not exist.
    """
    if not name or any(c in name for c in ":/") or len(name) > 100:
        raise ConfigError(f"A pipeline's name must have 1 to 100 characters, without ':' and '/', got {name!r}.")
    schema = describe_topic(store, table).schema
    check_columns(df, schema, table)
    output = OutputLog(store, table, schema, name)
    rejected: OutputLog | None = None
    if DEAD_LETTER in df.columns:
        topic = dead_letters(table)
        rejected = OutputLog(store, topic, describe_topic(store, topic).schema, name)
    return PipelineOutputs(output, rejected, name)


@dataclass(slots=True)
class _Result:
    good: UploadedFiles = field(default_factory=UploadedFiles)
    dead_letters: UploadedFiles = field(default_factory=UploadedFiles)
    latency: Histogram = field(default_factory=Histogram)
    table: pa.Table | None = None


@dataclass(frozen=True)
class _ExecutorTask:
    """The function for ``mapInArrow``: writes its partition's rows as objects and returns them as one row of JSON."""

    settings: str
    output: TableWriter | None
    dead_letters: TableWriter | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        cure_worker()
        rows = list(batches)
        if not rows:
            return
        good, rejected = split_dead_letters(pa.Table.from_batches(rows))
        store = store_of(self.settings)
        written = {
            "good": _uploaded(self.output, store, good),
            "rejected": _uploaded(self.dead_letters, store, rejected),
            "latency": ages(good, SYSTEM.time_us()).counts,
        }
        yield pa.RecordBatch.from_pydict({"written": [json.dumps(written)]})


def _commits(part: tuple[Position, Position]) -> int:
    start, end = part
    return sum(version - start[table] for table, version in end.items())


def _uploaded(target: TableWriter | None, store: Store, rows: pa.Table | None) -> list[list[Any]]:
    if target is None or rows is None:
        return []
    return [[add.path, add.size, add.rows, add.modified_ms] for add, _ in target.upload(store, rows)]
