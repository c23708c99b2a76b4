"""The start of a real-time pipeline, and its reasons not to be one."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from brokerless.columns.records import arrow_schema
from brokerless.errors import BrokerlessError, ConfigError, PipelineError
from brokerless.log.tail import POLL_S
from brokerless.schema import Schema
from brokerless.spark.inputs import (
    IDLE_POLL_MAX_S,
    METADATA,
    columns_of,
    ddl,
    first_position,
    open_inputs,
    skipped_objects,
)
from brokerless.spark.progress import SourceOffset
from brokerless.spark.realtime.bridge import Bridge
from brokerless.spark.realtime.feed import Feed
from brokerless.spark.realtime.packer import Packer
from brokerless.spark.session import BRIDGE_JAR, scratch_root
from brokerless.spark.sink import (
    BatchReport,
    check_stateless,
    fresh_checkpoint,
    nodes,
    outputs_of,
    query_name,
    remove_checkpoint,
)
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
"""The time between two commits unless another is asked for: about what micro-batches take, and so is the bill."""

BATCH: Final = "5 minutes"
"""How often Spark notes its own offsets, which nobody reads; each time is a pause of about 200 ms."""

CLUSTER_BATCH: Final = "3650 days"
"""The same on a cluster, where tasks of a next batch could start on other executors than those that hold the lanes."""

MAX_CLUSTER_LANES: Final = 8
"""The driver reads and writes for all lanes, so that more of them only wait for it."""

CONNECT_S: Final = 120.0
EXECUTORS_S: Final = 20.0
STOPPED_S: Final = 10

_PROVIDER: Final = "brokerless.realtime.Provider"
_INTERNALS: Final = (
    "org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode",
    "org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead",
    "org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend",
    "org.apache.spark.sql.execution.arrow.ArrowWriter",
    "org.apache.spark.sql.util.ArrowUtils",
    "org.apache.spark.sql.vectorized.ArrowColumnVector",
    "org.apache.spark.sql.catalyst.InternalRow",
    "org.apache.arrow.vector.ipc.message.MessageSerializer",
    _PROVIDER,
)
"""What the jar touches of Spark beyond its public API; a build of Spark that lacks one cannot run this engine."""

_ALLOWLISTS: Final = (
    "org.apache.spark.sql.execution.streaming.RealTimeModeAllowlist",
    "org.apache.spark.sql.execution.streaming.runtime.RealTimeModeAllowlist",  # from Spark 4.2 on
)
_ENCRYPTS: Final = ("spark.network.crypto.enabled", "spark.ssl.enabled", "spark.ssl.rpc.enabled")

_CHECK: Final = "spark.sql.streaming.realTimeMode.allowlistCheck"


_lanes_in: Final[Counter[str]] = Counter()  # by Spark application: task slots that are held


class NotRealtimeError(ConfigError):
    """Why a pipeline cannot run in real-time mode here. Nothing was claimed, read or written."""


@dataclass(slots=True)
class RealtimeStream:
    """A running pipeline, with the face of ``RunningPipeline``."""

    query: StreamingQuery
    name: str
    _bridge: Bridge
    _checkpoint: Path
    engine: str = "realtime"
    _reports: list[BatchReport] = field(default_factory=list)
    _stopped: bool = False

    def ready(self) -> bool:
        """True: it is not there before the lanes are."""
        return True

    def drain(self) -> list[BatchReport]:
        """The reports since the last call."""
        taken, self._reports[:] = list(self._reports), []
        return taken

    def wait(self, *, once: bool) -> None:
        """Waits for its end: an error, or with ``once`` that nothing is left."""
        self._bridge.ended.wait()
        if self._bridge.error is not None or self._bridge.is_done or self._stopped:
            return
        # A task failed: Spark says why in a moment. If an executor was lost, it waits for another one instead.
        if not self.query.awaitTermination(STOPPED_S) and not self._stopped:
            lost = "A task ended without an error: its executor was lost. Start the pipeline again."
            self._bridge.close(error=PipelineError(lost))

    def stop(self, timeout_s: float = 8.0) -> None:
        """Lets what is on its way be committed (for at most ``timeout_s``), then ends the query."""
        if self._stopped:
            return
        self._stopped = True
        self._bridge.drain(timeout_s)
        self._bridge.end()
        _end(self.query, self._bridge, self._checkpoint)

    def error(self) -> BrokerlessError | None:
        """The kit's own error that ended the pipeline, if one did."""
        return self._bridge.error


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
) -> RealtimeStream:
    """Starts the pipeline ``name`` in real-time mode.

    Args:
        spark: a local session from ``spark_session``, or one of a cluster: its executors transform, and this process
            reads and writes for all of them.
        transform: from the inputs' messages to the output's columns.
        output: an existing topic with one partition.
        name: the pipeline's name, under which the output keeps its progress.
        settings: where.
        options: of the source, as ``source`` lists them, in lower case.
        commit_interval_s: the least time from one commit to the next.
        any_cluster: also on clusters on which this was never tried: all but Spark's own standalone ones.
        lanes: how many tasks transform rows, each with a task slot of its own for ever; by default all that are free.

    Raises:
        NotRealtimeError: Spark, the session or the transform is not made for it; nothing was claimed, read or written.
        BrokerlessError: as ``read_stream`` and ``write_stream``.
    """
    network = _network(spark, any_cluster=any_cluster)
    _check_session(spark)
    free = (_local_slots(spark) if network is None else _cluster_slots(spark)) - _lanes_in[_application(spark)]
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
        rows = spark.readStream.format(_PROVIDER).schema(ddl(columns))
        df = transform(rows.options(**bridge.listener.options).load())
        check_stateless(df)
        _check_sources(df)
        outputs = outputs_of(df, output, name=name, store=store)
        checkpoint = fresh_checkpoint(scratch_root(settings), name)
        batch = BATCH if network is None else CLUSTER_BATCH
        query = _start_query(spark, df, query_name(name, checkpoint), checkpoint, batch)
        _connect(bridge, query)
        _check_plan(spark, query)
        outputs.claim()
        outputs.record_start(first_position(store, options, outputs.output))
        # More looks than four for each commit are requests without use.
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
    return RealtimeStream(query, name, bridge, checkpoint, _reports=reports)


def _end(query: StreamingQuery | None, bridge: Bridge, checkpoint: Path | None) -> None:
    try:
        if query is not None:
            query.stop()
    finally:
        bridge.close()
        if checkpoint is not None:
            remove_checkpoint(checkpoint)
        _lanes_in[bridge.application] -= bridge.lanes


def _check_session(spark: SparkSession) -> None:
    if not hasattr(socket, "AF_UNIX") or not sys.platform.startswith(("linux", "darwin")):
        raise NotRealtimeError(f"real-time pipelines need Unix sockets, which Python has not on {sys.platform}")
    _check_classes(spark)


def _application(spark: SparkSession) -> str:
    return spark.sparkContext.applicationId or ""


def _network(spark: SparkSession, *, any_cluster: bool) -> tuple[str, str] | None:
    """Where tasks on other machines reach this process: the address to listen at, and theirs; None if all are here.

    Raises:
        NotRealtimeError: the session has no driver here, runs on another kind of cluster than those that were tried, or
            encrypts what its processes say to each other.
    """
    if not hasattr(spark, "_jvm"):
        raise NotRealtimeError("the session is one of Spark Connect")
    master = spark.sparkContext.master or ""
    if master.startswith("local") and not master.startswith("local-cluster"):
        return None
    if not any_cluster and not master.startswith("spark://"):
        raise NotRealtimeError(
            f"it was not tried on clusters of this kind (master {master}); --engine realtime tries it"
        )
    conf = spark.sparkContext.getConf()
    for name in _ENCRYPTS:
        if (conf.get(name) or "false").lower() == "true":
            raise NotRealtimeError(f"the session encrypts its network ({name}), which this engine does not")
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return conf.get("spark.driver.bindAddress") or host, host


def _local_slots(spark: SparkSession) -> int:
    """How many tasks can run at once. More lanes than that would never be read, and nobody would say so."""
    master = spark.sparkContext.master or ""
    slots = re.match(r"local\[(\d+)", master)
    return int(slots[1]) if slots else spark.sparkContext.defaultParallelism if "[" in master else 1


def _cluster_slots(spark: SparkSession) -> int:
    """The same for the executors that are there now; the first ones are waited for.

    Raises:
        NotRealtimeError: none came.
    """
    context = _jvm(spark).org.apache.spark.SparkContext.getOrCreate()
    deadline = time.monotonic() + EXECUTORS_S
    slots = 0
    while time.monotonic() < deadline:
        before = slots
        slots = int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
        if slots and slots == before:
            return min(slots, MAX_CLUSTER_LANES)
        time.sleep(0.5)
    if slots:
        return min(slots, MAX_CLUSTER_LANES)
    raise NotRealtimeError(f"no executor came within {EXECUTORS_S:.0f} s")


def _check_classes(spark: SparkSession) -> None:
    # A session that spark-submit started (Glue's and EMR's, too) has the jar only if somebody named it.
    if not _has_class(spark, _PROVIDER) and BRIDGE_JAR.is_file():
        spark.sql(f"ADD JAR '{BRIDGE_JAR}'")
    for name in _INTERNALS:
        if not _has_class(spark, name):
            lacks = f"the session was started without --jars {BRIDGE_JAR}" if name == _PROVIDER else f"it lacks {name}"
            raise NotRealtimeError(f"this Spark {spark.version} cannot: {lacks}")


def _has_class(spark: SparkSession, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        _jvm(spark).java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm


def _check_sources(df: DataFrame) -> None:
    """One source only: rows of two would come in no order, and their positions would be mixed up."""
    sources = sum(node.nodeName() == "StreamingRelationV2" for node, _ in nodes(df))
    if sources != 1:
        raise NotRealtimeError(f"the transform reads its input {sources} times")


def _start_query(spark: SparkSession, df: DataFrame, name: str, checkpoint: Path, batch: str) -> StreamingQuery:
    writer = df.writeStream.format(_PROVIDER).outputMode("update").queryName(name)
    writer = writer.option("checkpointLocation", checkpoint.as_uri())
    # pyspark's own trigger() knows this one from 4.2 on.
    trigger = _jvm(spark).org.apache.spark.sql.streaming.Trigger.RealTime(batch)
    writer._jwrite = writer._jwrite.trigger(trigger)
    before = spark.conf.get(_CHECK, None)
    # Spark's list of sinks has its own only. Its list of operators, which counts, is asked in _check_plan.
    spark.conf.set(_CHECK, "false")
    try:
        return writer.start()
    finally:
        if before is None:
            spark.conf.unset(_CHECK)
        else:
            spark.conf.set(_CHECK, before)


def _connect(bridge: Bridge, query: StreamingQuery) -> None:
    """Waits until each lane has its task."""
    deadline = time.monotonic() + CONNECT_S
    while not bridge.listener.wait_connected(0.02):
        if not query.isActive:
            raise NotRealtimeError(_reason(str(query.exception() or "")))
        if time.monotonic() > deadline:
            raise NotRealtimeError(f"after {CONNECT_S:.0f} s not all of its {bridge.lanes} tasks were running")


def _check_plan(spark: SparkSession, query: StreamingQuery) -> None:
    """Asks Spark whether it knows an operator in the plan that does not hand each row on at once.

    Spark's own look at the operators comes with one at the sink, and is switched off with that. With such an operator
    (a Python function, say) rows would be kept back while the position goes on: they would be lost without a word.
    """
    from py4j.protocol import Py4JJavaError

    plan = query._jsq.streamingQuery().lastExecution().executedPlan()
    loader = _jvm(spark).java.lang.Thread.currentThread().getContextClassLoader()
    for name in _ALLOWLISTS:
        try:
            loader.loadClass(name)
        except Py4JJavaError:
            continue
        allowlist = _jvm(spark)
        for part in name.split("."):
            allowlist = getattr(allowlist, part)
        try:
            allowlist.checkAllowedPhysicalOperator(plan, True)
        except Exception as error:  # whatever keeps it from saying yes
            raise NotRealtimeError(_reason(str(error))) from None
        return
    raise NotRealtimeError(f"this Spark {spark.version} cannot: it lacks {_ALLOWLISTS[0]}")


def _reason(said: str) -> str:
    """What Spark said, in a line: the operators that it does not take, or its own first line."""
    operators = sorted(set(re.findall(r"\.(\w+)Exec\b", said.partition("\n")[0])))
    if operators:
        return f"the transform needs {', '.join(operators)}, where rows wait for others"
    return next((line.strip() for line in said.splitlines() if line.strip()), "Spark did not say why")[:300]


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
    """Ends the run when the query ends: a task failed, or the JVM is gone."""
    with contextlib.suppress(Exception):  # whoever runs the pipeline asks for it
        query.awaitTermination()
    bridge.ended.set()
