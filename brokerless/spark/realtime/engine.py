"""The start and the end of a real-time pipeline."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from brokerless.columns.records import arrow_schema
from brokerless.errors import BrokerlessError, ConfigError, PipelineError
from brokerless.log.tail import POLL_S
from brokerless.schema import Schema
from brokerless.spark.checkpoints import fresh_checkpoint, query_name, remove_checkpoint
from brokerless.spark.inputs import IDLE_POLL_MAX_S, first_position, open_inputs
from brokerless.spark.messages import METADATA, columns_of, ddl, skipped_objects
from brokerless.spark.plan import check_stateless
from brokerless.spark.progress import SourceOffset
from brokerless.spark.realtime.bridge import Bridge
from brokerless.spark.realtime.feed import Feed
from brokerless.spark.realtime.packer import Packer
from brokerless.spark.realtime.requirements import (
    PROVIDER,
    NotRealtimeError,
    check_plan,
    check_session,
    check_sources,
    cluster_slots,
    jvm_of,
    local_slots,
    network_of,
    reason,
)
from brokerless.spark.running import BatchReport, RunningPipeline
from brokerless.spark.session import scratch_root
from brokerless.spark.sink import outputs_of
from brokerless.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from brokerless.schema import Column
    from brokerless.settings import Settings
    from brokerless.spark.realtime.packer import Committed
    from brokerless.store import ObstoreStore

COMMIT_INTERVAL_S: Final = 0.1
"""The default time between two commits: about that of micro-batches, and so with the same bill."""

BATCH: Final = "5 minutes"
"""The length of Spark's batches: between two of them is a pause of about 200 ms. Nobody reads Spark's own offsets."""

CLUSTER_BATCH: Final = "3650 days"
"""The same on a cluster, where tasks of the next batch could start on executors that do not have the lanes."""


CONNECT_S: Final = 120.0
STOPPED_S: Final = 10


_CHECK: Final = "spark.sql.streaming.realTimeMode.allowlistCheck"


_lanes_in: Final[Counter[str]] = Counter()  # by Spark application: task slots that are held


@dataclass(slots=True)
class RealtimePipeline(RunningPipeline):
    """A running pipeline in real-time mode; it is returned when its lanes are connected."""

    bridge: Bridge = field(kw_only=True)
    checkpoint: Path = field(kw_only=True)
    _stopped: bool = False

    def wait(self, *, once: bool) -> None:
        """Wait for the end: an error, or with ``once`` until all available messages are processed."""
        self.bridge.ended.wait()
        if self.bridge.error is not None or self.bridge.is_done or self._stopped:
            return
        # A task failed, and Spark will report why. If an executor was lost, Spark waits for another one instead.
        if not self.query.awaitTermination(STOPPED_S) and not self._stopped:
            lost = "A task ended without an error: its executor was lost. Start the pipeline again."
            self.bridge.close(error=PipelineError(lost))

    def stop(self, timeout_s: float = 8.0) -> None:
        """Let what was read be committed (for at most ``timeout_s``), then end the query."""
        if self._stopped:
            return
        self._stopped = True
        self.bridge.drain(timeout_s)
        self.bridge.end()
        _end(self.query, self.bridge, self.checkpoint)

    def error(self) -> BrokerlessError | None:
        """Return the brokerless error that ended the pipeline, or None."""
        return self.bridge.error


def start_realtime(
    spark: SparkSession,
    transform: Callable[[DataFrame], DataFrame],
    output: str,
    *,
    name: str,
    settings: Settings,
    options: Mapping[str, str],
    commit_interval_s: float = COMMIT_INTERVAL_S,
    lanes: int | None = None,
    any_cluster: bool = False,
) -> RealtimePipeline:
    """Start the pipeline ``name`` in real-time mode.

    Args:
        spark: a local session, or one of a cluster: its executors transform, and this process reads and writes.
        transform: the transform, as for ``Pipeline``.
        output: an existing topic with one partition.
        name: the pipeline's name, under which the output records its progress.
        settings: the settings.
        options: the options of the source, as ``source`` lists them, in lower case.
        commit_interval_s: the shortest time between two commits.
        any_cluster: accept clusters of kinds that were not tested: all but Spark's standalone ones.
        lanes: the number of tasks that transform rows; each holds a task slot until the end. None uses all free ones.

    Raises:
        NotRealtimeError: Spark, the session or the transform does not allow it; nothing was claimed, read or written.
        BrokerlessError: as ``read_stream`` and ``write_stream``.
    """
    network = network_of(spark, any_cluster=any_cluster)
    check_session(spark)
    free = (local_slots(spark) if network is None else cluster_slots(spark)) - _lanes_in[_application(spark)]
    if free < 1:
        raise ConfigError(
            "Other real-time pipelines hold all task slots of this Spark session; give this one a session of its own."
        )
    lanes = min(lanes or free, free)
    store = open_store(settings)
    columns = columns_of(store, options)
    reports: list[BatchReport] = []
    try:
        bridge = Bridge(lanes=lanes, interval_s=commit_interval_s, application=_application(spark), network=network)
    except OSError as error:
        where = f"in {tempfile.gettempdir()}" if network is None else f"at {network[0]}"
        raise NotRealtimeError(
            f"its sockets cannot be made {where} ({error}); set "
            + ("TMPDIR to a folder with a short path" if network is None else "spark.driver.bindAddress")
        ) from None
    _lanes_in[bridge.application] += lanes
    query: StreamingQuery | None = None
    checkpoint: Path | None = None
    try:
        rows = spark.readStream.format(PROVIDER).schema(ddl(columns))
        df = transform(rows.options(**bridge.listener.options).load())
        check_stateless(df)
        check_sources(df)
        outputs = outputs_of(df, output, name=name, store=store)
        checkpoint = fresh_checkpoint(scratch_root(settings), name)
        batch = BATCH if network is None else CLUSTER_BATCH
        query = _start_query(spark, df, query_name(name, checkpoint), checkpoint, batch)
        _connect(bridge, query)
        check_plan(spark, query)
        outputs.claim()
        outputs.record_start(first_position(store, options, outputs.output))
        # Polling more than four times per commit would not help.
        inputs = open_inputs(store, options, poll_s=min(max(POLL_S, commit_interval_s / 4), IDLE_POLL_MAX_S))
        offset = SourceOffset(inputs.at, inputs.at, inputs.ids, rows=0, known_rows=0)
        packer = Packer(outputs, offset, lanes=lanes, ahead=inputs.ahead)
        feed = Feed(
            store,
            inputs,
            columns[: -len(METADATA)],
            skipped=skipped_objects(options),
            committed=lambda: packer.committed.at,
        )
        bridge.begin(feed, packer, _arrow_schema(columns), _reporter(reports, store, feed, packer))
    except BaseException:
        _end(query, bridge, checkpoint)
        raise
    threading.Thread(target=_watch, args=(query, bridge), name=f"brokerless-query-{name}", daemon=True).start()
    return RealtimePipeline(query, name, "realtime", reports, bridge=bridge, checkpoint=checkpoint)


def _end(query: StreamingQuery | None, bridge: Bridge, checkpoint: Path | None) -> None:
    try:
        if query is not None:
            query.stop()
    finally:
        bridge.close()
        if checkpoint is not None:
            remove_checkpoint(checkpoint)
        _lanes_in[bridge.application] -= bridge.lanes


def _application(spark: SparkSession) -> str:
    return spark.sparkContext.applicationId or ""


def _start_query(spark: SparkSession, df: DataFrame, name: str, checkpoint: Path, batch: str) -> StreamingQuery:
    writer = df.writeStream.format(PROVIDER).outputMode("update").queryName(name)
    writer = writer.option("checkpointLocation", checkpoint.as_uri())
    # pyspark's own trigger() knows this one from 4.2 on.
    trigger = jvm_of(spark).org.apache.spark.sql.streaming.Trigger.RealTime(batch)
    writer._jwrite = writer._jwrite.trigger(trigger)
    before = spark.conf.get(_CHECK, None)
    # Spark's check allows only its own sinks; check_plan applies its list of operators.
    spark.conf.set(_CHECK, "false")
    try:
        return writer.start()
    finally:
        if before is None:
            spark.conf.unset(_CHECK)
        else:
            spark.conf.set(_CHECK, before)


def _connect(bridge: Bridge, query: StreamingQuery) -> None:
    """Wait until each lane has its task."""
    deadline = time.monotonic() + CONNECT_S
    while not bridge.listener.wait_connected(0.02):
        if not query.isActive:
            raise NotRealtimeError(reason(str(query.exception() or "")))
        if time.monotonic() > deadline:
            raise NotRealtimeError(f"after {CONNECT_S:.0f} s not all of its {bridge.lanes} tasks were running")


def _arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    import pyarrow as pa

    fields = list(pa.schema(arrow_schema(Schema(tuple(columns[: -len(METADATA) - 1])))))
    types = {"string": pa.string(), "integer": pa.int32(), "long": pa.int64()}
    return pa.schema([*fields, *(pa.field(column.name, types[column.type]) for column in METADATA)])


def _reporter(
    reports: list[BatchReport], store: ObstoreStore, feed: Feed, packer: Packer
) -> Callable[[Committed], None]:
    counted: Counter[str] = Counter()
    number = count()

    def report(committed: Committed) -> None:
        total = Counter(store.requests)
        requests = total - counted
        counted.update(requests)
        reports.append(
            BatchReport(
                batch_id=next(number),
                rows=committed.rows,
                dead_letters=committed.dead_letters,
                lag_rows=feed.waiting() + packer.rows,
                compute_s=committed.compute_s,
                commit_s=committed.commit_s,
                by="driver",
                latency=committed.latency,
                requests=dict(requests),
            )
        )
        del reports[:-10_000]

    return report


def _watch(query: StreamingQuery, bridge: Bridge) -> None:
    """End the run when the query ends: a task failed, or the JVM is gone."""
    with contextlib.suppress(Exception):  # RealtimePipeline.wait raises it
        query.awaitTermination()
    bridge.ended.set()
