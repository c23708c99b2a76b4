"""The ``delta`` engine: the same transform on stock delta-spark, source and sink, with a tuned session.

For stateful SQL, for comparison and for interoperability; the other engines are many times faster. Its output table is
committed to by Spark's own Delta writer, which overwrites log entries unconditionally on S3 (``S3SingleDriverLogStore``
of Delta 4.2 checks, then puts). So the table belongs to this engine alone: it is created with the property
``brokerless.engine = delta``, the log of this kit refuses to append to such a table, and this engine refuses any other.
One driver at a time may write to it; Delta documents why.

Exactly once by Spark's checkpoint on the object store and Delta's ``txnAppId`` and ``txnVersion``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from brokerless.errors import ConfigError, TopicDeleted, TopicNotFound
from brokerless.log.entries import ENGINE_KEY
from brokerless.log.log import DeltaLog
from brokerless.schema import PRODUCED_AT, dead_letters, partition_table
from brokerless.spark.arrow import DEAD_LETTER
from brokerless.spark.inputs import METADATA
from brokerless.spark.session import spark_session
from brokerless.store import open_store
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from brokerless.settings import Settings
    from brokerless.spark.sink import BatchReport

_SDK: Final = "2.29.52"  # what hadoop-aws 3.4.2, and so pyspark 4.1.1, is built for
PACKAGES: Final = (
    "io.delta:delta-spark_4.1_2.13:4.2.0",
    "org.apache.hadoop:hadoop-aws:3.4.2",
    *(
        f"software.amazon.awssdk:{module}:{_SDK}"
        for module in ("s3", "sts", "kms", "s3-transfer-manager", "apache-client", "netty-nio-client")
    ),
)
# The SDK's bundle has 500 MB; everything else here is in pyspark already, in versions that must not be mixed
# (netty 4.2 beside 4.1, Jackson, Parquet, Hadoop's client).
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
    # Each batch reconstructs the sink's state: 50 tiny tasks by default.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    "spark.databricks.delta.stats.collect": "false",
    "spark.databricks.delta.properties.defaults.checkpointInterval": "100",
    "spark.hadoop.delta.enableFastS3AListFrom": "true",
    # Spark's default, INT96, has no time zone, and other readers then lose it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.hadoop.fs.s3a.fast.upload.buffer": "bytebuffer",
    # The checkpoint is on the object store here, where the local manager's rename would be a copy that is not atomic.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    ),
}


@dataclass(slots=True)
class DeltaStream:
    """A running query of this engine, with the face of ``Stream``."""

    query: StreamingQuery
    name: str
    engine: str = "delta"

    def ready(self) -> bool:
        """True: Spark's own progress tells more."""
        return True

    def drain(self) -> list[BatchReport]:
        """Nothing: Spark's own progress has the figures."""
        return []

    def wait(self, *, once: bool) -> None:
        """Waits for the query's end; with ``once`` until nothing is left."""
        if once:
            self.query.processAllAvailable()
        else:
            self.query.awaitTermination()

    def stop(self, timeout_s: float = 8.0) -> None:
        """Ends the query; a batch that it interrupts is repeated by the next run, without effect where it was done."""
        self.query.stop()

    def error(self) -> None:
        """Spark keeps the error."""
        return


def delta_session(settings: Settings, *, name: str) -> SparkSession:
    """A session with Delta and S3A, fetching their pinned jars on first use (about 25 MB, and says so).

    Raises:
        ConfigError: as ``spark_session``; also for a root that Spark cannot reach by these jars.
    """
    conf = dict(DELTA_CONF)
    if settings.root.startswith("s3://"):
        conf |= {
            # From the environment: settings of Spark are shown in process lists and user interfaces.
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
        raise ConfigError(f"The delta engine reaches s3:// and file:// only, not {settings.root}; use another engine.")
    print("The delta engine needs its jars (about 25 MB); they are fetched once.", file=sys.stderr, flush=True)
    packages = {"spark.jars.packages": ",".join(PACKAGES), "spark.jars.excludes": ",".join(EXCLUDES)}
    return spark_session(settings, name=name, conf={**conf, **packages})


def check_delta_output(settings: Settings, output: str) -> None:
    """Passes if this engine may write the output (and its dead letters): they are its own, or not there.

    Raises:
        ConfigError: it is a topic, or an output of another engine.
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
                "Give the delta engine an output of its own with --output."
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
) -> DeltaStream:
    """Starts the pipeline on stock Delta streaming.

    Dead letters have no ``_offset`` here: Delta's source does not tell a row's place.

    Raises:
        ConfigError: as ``check_delta_output``.
        TopicNotFound: an input is missing.
    """
    from pyspark.sql import functions as F

    check_delta_output(settings, output)
    store = open_store(settings)

    def place(table: str) -> str:
        return f"{settings.root.replace('s3://', 's3a://', 1)}/{table}"

    streams: list[DataFrame] = []
    for topic in inputs:
        for number in range(describe_topic(store, topic).partitions):
            rows = spark.readStream.format("delta").load(place(partition_table(topic, number)))
            values = (F.lit(topic), F.lit(number), F.lit(None).cast("long"), F.lit(None).cast("long"))
            streams.append(
                rows.withColumns({c.name: value for c, value in zip(METADATA, values, strict=True)})
            )  # fmt: skip
    result = transform(reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), streams))

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        options = {"txnAppId": name, "txnVersion": str(batch_id)}
        if DEAD_LETTER in batch.columns:
            letters = batch.where(F.col(DEAD_LETTER).isNotNull()).select(f"{DEAD_LETTER}.*", PRODUCED_AT)
            if not letters.isEmpty():
                _append(letters, dead_letters(output), options)
            batch_good = batch.where(F.col(DEAD_LETTER).isNull()).drop(DEAD_LETTER)
        else:
            batch_good = batch
        _append(batch_good, output, options)
        batch.unpersist()

    def _append(rows: DataFrame, topic: str, options: Mapping[str, str]) -> None:
        rows.coalesce(1).write.format("delta").mode("append").options(**options).save(place(topic))

    schema = result.drop(DEAD_LETTER).schema
    _create(spark, place(output), schema)
    if DEAD_LETTER in result.columns:
        letters = result.select(f"{DEAD_LETTER}.*", PRODUCED_AT).schema
        _create(spark, place(dead_letters(output)), letters)
    writer = result.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", place(f"_brokerless/checkpoints/{name}/{output}")).queryName(name)
    if once:
        writer = writer.trigger(availableNow=True)
    elif interval_s > 0:
        writer = writer.trigger(processingTime=f"{int(interval_s * 1000)} milliseconds")
    return DeltaStream(writer.start(), name)


def _create(spark: SparkSession, place: str, schema: StructType) -> None:
    """The table with its owner's mark; nothing if it is there."""
    from delta.tables import DeltaTable
    from pyspark.sql.types import StructField, StructType

    nullable = StructType([StructField(f.name, f.dataType, nullable=True) for f in schema])
    DeltaTable.createIfNotExists(spark).location(place).addColumns(nullable).property(ENGINE_KEY, "delta").execute()
