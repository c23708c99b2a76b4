"""The ``delta`` engine: the same transform on stock delta-spark, source and sink, with a tuned session.

It is for stateful SQL, for comparison and for interoperability; the other engines are many times faster. Spark's own
Delta writer commits to the output, and it overwrites log entries unconditionally on S3 (``S3SingleDriverLogStore`` of
Delta 4.2 checks, then puts). So the table belongs to this engine alone: it has the property ``brokerless.engine =
delta``, all other writers of brokerless refuse it, and this engine refuses any other table. Only one driver at a time
may write to it, as Delta documents.

Exactly once comes from Spark's checkpoint on the object store and Delta's ``txnAppId`` and ``txnVersion``.
"""

from __future__ import annotations

import sys
from functools import reduce
from typing import TYPE_CHECKING, Final

from brokerless.errors import ConfigError, TopicDeleted, TopicNotFound
from brokerless.log.entries import ENGINE_KEY
from brokerless.log.log import DeltaLog
from brokerless.schema import PRODUCED_AT, dead_letters, partition_table
from brokerless.spark.messages import DEAD_LETTER, METADATA
from brokerless.spark.running import RunningPipeline
from brokerless.spark.session import spark_session
from brokerless.store import open_store
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from brokerless.settings import Settings

_SDK: Final = "2.29.52"  # the version for hadoop-aws 3.4.2 and so for pyspark 4.1.1
PACKAGES: Final = (
    "io.delta:delta-spark_4.1_2.13:4.2.0",
    "org.apache.hadoop:hadoop-aws:3.4.2",
    *(
        f"software.amazon.awssdk:{module}:{_SDK}"
        for module in ("s3", "sts", "kms", "s3-transfer-manager", "apache-client", "netty-nio-client")
    ),
)
# The SDK's bundle has 500 MB; pyspark already contains the others in versions that must not be mixed (netty 4.2 with
# 4.1, Jackson, Parquet, Hadoop's client).
EXCLUDES: Final = (
    "software.amazon.awssdk:bundle",
    "io.netty:*",
    "org.slf4j:*",
    "commons-logging:*",
    "com.fasterxml.jackson.core:*",
    "org.apache.parquet:*",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.scala-lang:*",
    "org.apache.logging.log4j:*",
    "org.wildfly.openssl:*",
    "org.apache.httpcomponents:*",
    "commons-codec:*",
)

DELTA_CONF: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Each batch reconstructs the sink's state, by default with 50 tiny tasks.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    "spark.databricks.delta.stats.collect": "false",
    "spark.databricks.delta.properties.defaults.checkpointInterval": "100",
    "spark.hadoop.delta.enableFastS3AListFrom": "true",
    # Spark's default, INT96, has no time zone, so other readers would lose it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.hadoop.fs.s3a.fast.upload.buffer": "bytebuffer",
    # This checkpoint is on the object store, where the local manager's rename would be a copy that is not atomic.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    ),
}


def delta_session(settings: Settings, *, name: str) -> SparkSession:
    """Return a session with Delta and S3A; on first use, it downloads their pinned jars (about 25 MB).

    Raises:
        ConfigError: as ``spark_session``; also for a root that these jars do not support.
    """
    conf = dict(DELTA_CONF)
    if settings.root.startswith("s3://"):
        conf |= {
            # Credentials come from the environment: Spark shows its settings in process lists and user interfaces.
            "spark.hadoop.fs.s3a.aws.credentials.provider": (
                "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"
                if settings.access_key
                else "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
            ),
            "spark.hadoop.fs.s3a.endpoint.region": settings.region,
        }
        if settings.endpoint:
            conf |= {
                "spark.hadoop.fs.s3a.endpoint": settings.endpoint,
                "spark.hadoop.fs.s3a.path.style.access": "true",
                "spark.hadoop.fs.s3a.connection.ssl.enabled": str(settings.endpoint.startswith("https")).lower(),
            }
    elif not settings.root.startswith("file://"):
        raise ConfigError(f"The delta engine supports only s3:// and file://, got {settings.root}; use another engine.")
    print("The delta engine needs its jars (about 25 MB); they are downloaded once.", file=sys.stderr, flush=True)
    packages = {"spark.jars.packages": ",".join(PACKAGES), "spark.jars.excludes": ",".join(EXCLUDES)}
    return spark_session(settings, name=name, conf={**conf, **packages})


def check_delta_output(settings: Settings, output: str) -> None:
    """Raise unless this engine may write the output (and its dead letters): it created them, or they do not exist.

    Raises:
        ConfigError: the output is a topic, or an output of another engine.
    """
    store = open_store(settings)
    for topic in (output, dead_letters(output)):
        try:
            owner = DeltaLog(store, topic).state.metadata.configuration.get(ENGINE_KEY)
        except (TopicNotFound, TopicDeleted):
            continue
        if owner != "delta":
            raise ConfigError(
                f"{topic!r} is written by another engine, and Spark's Delta writer could overwrite its commits. "
                "Give the delta engine its own output with --output."
            )


def start_delta(
    spark: SparkSession,
    settings: Settings,
    transform: Callable[[DataFrame], DataFrame],
    *,
    inputs: Sequence[str],
    output: str,
    name: str,
    interval_s: float = 0.0,
    once: bool = False,
) -> RunningPipeline:
    """Start the pipeline on stock Delta streaming.

    Dead letters have no ``_offset`` with this engine, because Delta's source does not report a row's offset.

    Raises:
        ConfigError: as ``check_delta_output``.
        TopicNotFound: an input is missing.
    """
    from pyspark.sql import functions as F

    check_delta_output(settings, output)
    store = open_store(settings)

    def location(table: str) -> str:
        return f"{settings.root.replace('s3://', 's3a://', 1)}/{table}"

    streams: list[DataFrame] = []
    for topic in inputs:
        for number in range(describe_topic(store, topic).partitions):
            rows = spark.readStream.format("delta").load(location(partition_table(topic, number)))
            values = (F.lit(topic), F.lit(number), F.lit(None).cast("long"), F.lit(None).cast("long"))
            streams.append(
                rows.withColumns({c.name: value for c, value in zip(METADATA, values, strict=True)})
            )  # fmt: skip
    result = transform(reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), streams))

    def write(batch: DataFrame, batch_id: int) -> None:
        cached = batch.persist()
        options = {"txnAppId": name, "txnVersion": str(batch_id)}
        if DEAD_LETTER in batch.columns:
            dead = batch.where(F.col(DEAD_LETTER).isNotNull()).select(f"{DEAD_LETTER}.*", PRODUCED_AT)
            if not dead.isEmpty():
                _append(dead, dead_letters(output), options)
            batch = batch.where(F.col(DEAD_LETTER).isNull()).drop(DEAD_LETTER)
        _append(batch, output, options)
        cached.unpersist()

    def _append(rows: DataFrame, topic: str, options: Mapping[str, str]) -> None:
        rows.coalesce(1).write.format("delta").mode("append").options(**options).save(location(topic))

    schema = result.drop(DEAD_LETTER).schema
    _create(spark, location(output), schema)
    if DEAD_LETTER in result.columns:
        _create(spark, location(dead_letters(output)), result.select(f"{DEAD_LETTER}.*", PRODUCED_AT).schema)
    writer = result.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", location(f"_brokerless/checkpoints/{name}/{output}")).queryName(name)
    if once:
        writer = writer.trigger(availableNow=True)
    elif interval_s > 0:
        writer = writer.trigger(processingTime=f"{int(interval_s * 1000)} milliseconds")
    return RunningPipeline(writer.start(), name, "delta")


def _create(spark: SparkSession, location: str, schema: StructType) -> None:
    """Create the table with its owner's property if it does not exist."""
    from delta.tables import DeltaTable
    from pyspark.sql.types import StructField, StructType

    nullable = StructType([StructField(f.name, f.dataType, nullable=True) for f in schema])
    DeltaTable.createIfNotExists(spark).location(location).addColumns(nullable).property(ENGINE_KEY, "delta").execute()
