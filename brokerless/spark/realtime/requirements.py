"""What real-time mode needs of Spark, of the session and of the transform; without it, a pipeline runs in batches."""

from __future__ import annotations

import re
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from brokerless.errors import ConfigError
from brokerless.spark.plan import nodes
from brokerless.spark.session import BRIDGE_JAR

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MAX_CLUSTER_LANES: Final = 8
"""The driver reads and writes for all lanes; more of them would only wait for it."""


EXECUTORS_S: Final = 20.0


PROVIDER: Final = "brokerless.realtime.Provider"


_INTERNALS: Final = (
    "org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode",
    "org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead",
    "org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend",
    "org.apache.spark.sql.execution.arrow.ArrowWriter",
    "org.apache.spark.sql.util.ArrowUtils",
    "org.apache.spark.sql.vectorized.ArrowColumnVector",
    "org.apache.spark.sql.catalyst.InternalRow",
    "org.apache.arrow.vector.ipc.message.MessageSerializer",
    PROVIDER,
)
"""The classes of Spark that the jar uses beyond the public API; a Spark without one of them cannot run this engine."""


_ALLOWLISTS: Final = (
    "org.apache.spark.sql.execution.streaming.RealTimeModeAllowlist",
    "org.apache.spark.sql.execution.streaming.runtime.RealTimeModeAllowlist",  # from Spark 4.2 on
)


_ENCRYPTS: Final = ("spark.network.crypto.enabled", "spark.ssl.enabled", "spark.ssl.rpc.enabled")


class NotRealtimeError(ConfigError):
    """Error raised when a pipeline cannot run in real-time mode here; nothing was claimed, read or written."""


def check_session(spark: SparkSession) -> None:
    """Refuse a platform without Unix sockets, and a Spark that lacks a class."""
    if not hasattr(socket, "AF_UNIX") or not sys.platform.startswith(("linux", "darwin")):
        raise NotRealtimeError(f"real-time pipelines need Unix sockets, which Python has not on {sys.platform}")
    _check_classes(spark)


def network_of(spark: SparkSession, *, any_cluster: bool) -> tuple[str, str] | None:
    """Return the address to listen at and the one by which executors reach it; None for a local session.

    Raises:
        NotRealtimeError: the driver is elsewhere, the kind of cluster was not tested, or the session encrypts.
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


def local_slots(spark: SparkSession) -> int:
    """Return how many tasks can run at once; more lanes than that would wait for ever."""
    master = spark.sparkContext.master or ""
    slots = re.match(r"local\[(\d+)", master)
    return int(slots[1]) if slots else spark.sparkContext.defaultParallelism if "[" in master else 1


def cluster_slots(spark: SparkSession) -> int:
    """Wait for the first executors, and return how many tasks they can run at once.

    Raises:
        NotRealtimeError: no executor came.
    """
    context = jvm_of(spark).org.apache.spark.SparkContext.getOrCreate()
    deadline = time.monotonic() + EXECUTORS_S
    slots = 0
    while time.monotonic() < deadline:
        before = slots
        slots = int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
        if slots and slots == before:
            break
        time.sleep(0.5)
    if not slots:
        raise NotRealtimeError(f"no executor came within {EXECUTORS_S:.0f} s")
    return min(slots, MAX_CLUSTER_LANES)


def _check_classes(spark: SparkSession) -> None:
    # A session that spark-submit started (Glue's and EMR's, too) has the jar only if somebody named it.
    if not _has_class(spark, PROVIDER) and BRIDGE_JAR.is_file():
        spark.sql(f"ADD JAR '{BRIDGE_JAR}'")
    for name in _INTERNALS:
        if not _has_class(spark, name):
            lacks = f"the session was started without --jars {BRIDGE_JAR}" if name == PROVIDER else f"it lacks {name}"
            raise NotRealtimeError(f"this Spark {spark.version} cannot: {lacks}")


def _has_class(spark: SparkSession, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        jvm_of(spark).java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True


def jvm_of(spark: SparkSession) -> Any:
    """Return the JVM of a session."""
    return spark._jvm


def check_sources(df: DataFrame) -> None:
    """Refuse several sources: the order and the positions of their rows would be mixed."""
    sources = sum(node.nodeName() == "StreamingRelationV2" for node, _ in nodes(df))
    if sources != 1:
        raise NotRealtimeError(f"the transform reads its input {sources} times")


def check_plan(spark: SparkSession, query: StreamingQuery) -> None:
    """Refuse a plan with an operator that, as Spark knows, does not pass each row on at once.

    Spark's own look at the operators comes with one at the sink, and is switched off with that. With such an operator
    (a Python function, say) rows would be held back while the position goes on: they would be lost without a word.
    """
    from py4j.protocol import Py4JJavaError

    plan = query._jsq.streamingQuery().lastExecution().executedPlan()
    loader = jvm_of(spark).java.lang.Thread.currentThread().getContextClassLoader()
    for name in _ALLOWLISTS:
        try:
            loader.loadClass(name)
        except Py4JJavaError:
            continue
        allowlist = jvm_of(spark)
        for part in name.split("."):
            allowlist = getattr(allowlist, part)
        try:
            allowlist.checkAllowedPhysicalOperator(plan, True)
        except Exception as error:  # whatever keeps it from saying yes
            raise NotRealtimeError(reason(str(error))) from None
        return
    raise NotRealtimeError(f"this Spark {spark.version} cannot: it lacks {_ALLOWLISTS[0]}")


def reason(said: str) -> str:
    """Return Spark's report in one line: the operators that it refuses, or its first line."""
    operators = sorted(set(re.findall(r"\.(\w+)Exec\b", said.partition("\n")[0])))
    if operators:
        return f"the transform needs {', '.join(operators)}, where rows wait for others"
    return next((line.strip() for line in said.splitlines() if line.strip()), "Spark did not say why")[:300]
