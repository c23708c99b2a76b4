"""A Spark session for small, fast batches, and what the session needs of its surroundings.

``spark_session`` is for a process of its own (laptop, container). On Glue and EMR Serverless the session exists already:
``tune`` sets what can still be set there, and the jobs' arguments the rest (``SESSION_CONF``).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brokerless.errors import ConfigError
from brokerless.spark.java import find_java_home

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from brokerless.settings import Settings

LOG_CONFIG: Final = Path(__file__).with_name("log4j2.properties")

STREAM_CONF: Final[Mapping[str, str]] = {
    # Planning: tiny batches gain nothing from a second look at their plan.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # The source waits for data itself, with a back-off; Spark need not wait on top of it.
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # The checkpoint is scratch on local disk: rename is atomic there, and this manager halves the cost of its files.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.session.timeZone": "UTC",
}
"""SQL settings of a streaming query; they can be set on a session that is running."""

SESSION_CONF: Final[Mapping[str, str]] = {
    # Without it each Python worker waits 40 ms for a delayed TCP acknowledgement (see worker.py).
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.locality.wait": "0s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ui.retainedExecutions": "1",
}
"""Settings that must be known before the session starts."""


def spark_session(
    settings: Settings,
    *,
    name: str = "brokerless",
    cores: int | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A local session with the settings' credentials in its environment, where its workers find them.

    Args:
        settings: where topics are.
        name: of the application.
        cores: how many tasks run at once; all cores by default.
        conf: further Spark settings; they win.

    Raises:
        ConfigError: no usable Java, or no pyspark.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError("Pipelines need pyspark; install it with: pip install 'brokerless[spark]'") from error

    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers are started by path: a relative one fails in the planner process, whose directory is another.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.update(settings.to_environ())
    scratch = scratch_root(settings)
    builder = SparkSession.builder.master(f"local[{cores or '*'}]").appName(name)
    values = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_CONFIG.as_uri()}",
        **SESSION_CONF,
        **STREAM_CONF,
        **(conf or {}),
    }
    for key, value in values.items():
        builder = builder.config(key, value)
    return register(builder.getOrCreate())


def tune(spark: SparkSession) -> SparkSession:
    """Sets the streaming settings on a session that exists already (Glue, EMR Serverless), and registers the source."""
    for key, value in STREAM_CONF.items():
        spark.conf.set(key, value)
    return register(spark)


def register(spark: SparkSession) -> SparkSession:
    """Makes ``format("brokerless")`` known to the session."""
    from brokerless.spark.source import BrokerlessSource

    spark.dataSource.register(BrokerlessSource)
    return spark


def scratch_root(settings: Settings) -> Path:
    """A folder on local disk for Spark's scratch files, checked to be writable.

    Raises:
        ConfigError: it cannot be written, or the disk is full.
    """
    root = (settings.state_dir / "scratch").absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as probe:
            probe.write(bytes(2**20))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise ConfigError(
            f"The scratch folder {root} cannot be used ({error.strerror}); free some space, or set "
            "BROKERLESS_STATE_DIR to a folder that can be written."
        ) from error
    return root
