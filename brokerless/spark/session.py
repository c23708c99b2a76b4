"""A Spark session for small, fast batches.

``spark_session`` starts a local one. Under ``spark-submit`` (so on Glue and EMR Serverless) the JVM runs already:
``tune`` sets what can still be set, and the job's arguments must set the rest (``SESSION_CONF``).
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brokerless.errors import ConfigError
from brokerless.settings import Settings
from brokerless.spark.classes import archive_path, java_options
from brokerless.spark.conf import SESSION_CONF, STREAM_CONF
from brokerless.spark.java import find_java_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

BRIDGE_JAR: Final = Path(__file__).parent / "realtime" / "bridge.jar"

LOG_CONFIG: Final = Path(__file__).with_name("log4j2.properties")

JIT_OPTIONS: Final = (
    "-XX:Tier4InvocationThreshold=25000",
    "-XX:Tier4MinInvocationThreshold=3000",
    "-XX:Tier4CompileThreshold=75000",
    "-XX:Tier4BackEdgeThreshold=200000",
)
"""Five times the defaults. Spark plans each batch anew, and the optimising compiler works on that code for minutes: at
ten batches a second it took 30 % of a core, and with these 15 %, while the batches took no longer."""


ARROW_OPTIONS: Final = ("-Darrow.enable_unsafe_memory_access=true", "-Darrow.enable_null_check_for_get=false")
"""Without these, Arrow compares each single access with its buffer's bounds: a sixth of the rate of a backlog. Spark's
code asks whether a value is null before it reads it."""


def spark_session(
    settings: Settings | None = None,
    *,
    name: str = "brokerless",
    cores: int | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session for pipelines: a local one, or under ``spark-submit`` the given one, tuned.

    A local session puts the settings' credentials into this process's environment, where its workers find them.

    Args:
        settings: the settings; loaded from the environment if None.
        name: the name of the application.
        cores: how many tasks run at once; all cores if None.
        conf: further Spark settings, which take precedence.

    Raises:
        ConfigError: there is no usable Java or no pyspark.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError("Pipelines need pyspark; install it with: pip install 'brokerless[spark]'") from error

    settings = settings or Settings.load()
    builder = SparkSession.builder.appName(name)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Started by spark-submit (Glue and EMR Serverless do so): the JVM, its master and its settings are given.
        return tune(builder.getOrCreate())
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers are started by path: a relative one fails in the planner process, whose directory is another.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.update(settings.to_environ())
    scratch = scratch_root(settings)
    values = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": _java_options(),
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **SESSION_CONF,
        **STREAM_CONF,
        **(conf or {}),
    }
    # A jar, not a class path: that would invalidate the archive of Spark's classes.
    values["spark.jars"] = ",".join(filter(None, [str(BRIDGE_JAR), values.get("spark.jars")]))
    builder = builder.master(f"local[{cores or '*'}]")
    for key, value in values.items():
        builder = builder.config(key, value)
    return register(builder.getOrCreate())


def _java_options() -> str:
    options = [f"-Dlog4j2.configurationFile={LOG_CONFIG.as_uri()}", *JIT_OPTIONS, *ARROW_OPTIONS]
    if sys.platform == "linux":
        options.append("-Djdk.lang.Process.launchMechanism=VFORK")
    archive = archive_path()
    if archive.is_file():
        options.append(java_options(archive))
    return " ".join(options)


def tune(spark: SparkSession) -> SparkSession:
    """Set the streaming settings on an existing session (Glue, EMR Serverless), and register the source."""
    for key, value in STREAM_CONF.items():
        spark.conf.set(key, value)
    return register(spark)


@contextlib.contextmanager
def borrowed(spark: SparkSession) -> Iterator[SparkSession]:
    """Tune a session that somebody else started, as ``tune`` does, and restore its settings at the end of the block."""
    before = {key: spark.conf.get(key, None) for key in STREAM_CONF}
    try:
        yield tune(spark)
    finally:
        with contextlib.suppress(Exception):  # the session may have ended meanwhile, and its settings with it
            for key, value in before.items():
                if value is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, value)


def register(spark: SparkSession) -> SparkSession:
    """Register ``format("brokerless")`` with the session."""
    from brokerless.spark.source import BrokerlessSource

    spark.dataSource.register(BrokerlessSource)
    return spark


def scratch_root(settings: Settings) -> Path:
    """Return a folder on local disk for Spark's scratch files, after a test that it can be written.

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
