"""The pipeline between two hops of Kafka, run by ``benchmarks.peers.kafka`` in a process of its own.

It prints one JSON line when it waits for messages and one when it has ended. Its jars come from
``PYSPARK_SUBMIT_ARGS``, and the object store's settings from the environment, as for every job.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from brokerless.log.entries import ENGINE_KEY
from brokerless.settings import Settings
from glue_jobs.timezone_etl import instant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SEPARATOR: Final = "\t"  # as in kafka.py, which the job does not import

_SOURCE: Final = {
    "startingOffsets": "earliest",
    # A poll returns all rows of a fetch, not 500, and a fetch returns all available rows.
    "kafka.max.poll.records": "100000",
    "kafka.max.partition.fetch.bytes": str(16 * 2**20),
}
_SINK: Final = {
    "kafka.acks": "all",
    # Spark flushes at a task's end, so no row waits longer; until then, requests are large.
    "kafka.linger.ms": "5",
    "kafka.batch.size": str(256 * 2**10),
    "kafka.buffer.memory": str(128 * 2**20),
    "kafka.compression.type": "lz4",  # as in the producers
}
_UNTUNED: Final = {"startingOffsets": "earliest", "kafka.acks": "all"}
"""Options of source and sink with default clients: where to begin, and not to lose messages."""

_BATCH_SINK: Final = {
    # This changes no guarantee, because Spark's Kafka sink is at-least-once anyway, and saves two files per batch.
    "asyncProgressTrackingEnabled": "true",
}
_CONF: Final = {
    # The checkpoint is on local disk for both sinks. Delta's session expects it on the object store.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Each poll is a request to the broker.
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.sql.streaming.numRecentProgressUpdates": "5000",
}
_REALTIME_BATCH: Final = "5 minutes"
"""The duration of a batch in real-time mode, Spark's default; recording the offsets at its end takes about 200 ms."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM, or until standard input closes because the parent ended; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--bootstrap", required=True, help="the broker's host:port")
    parser.add_argument("--inputs", required=True, help='JSON: {"topic": [partition, ...]}')
    parser.add_argument("--output", required=True, help="topic or table")
    parser.add_argument("--sink", choices=["kafka", "delta"], required=True)
    parser.add_argument("--checkpoint", required=True, help="a folder on local disk")
    parser.add_argument("--realtime", action="store_true", help="Spark's real-time mode instead of micro-batches")
    parser.add_argument("--defaults", action="store_true", help="Kafka's clients as they are, not tuned")
    args = parser.parse_args(argv)
    if args.realtime and args.sink != "kafka":
        parser.error("Spark's real-time mode writes to Kafka only; choose another output or micro-batches")
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tasks = sum(map(len, json.loads(args.inputs).values()))
    # In real-time mode, a partition whose task finds no free core is never read, without an error.
    spark = _session(args.sink, cores=max(tasks, os.cpu_count() or 1) if args.realtime else None)
    source = spark.readStream.format("kafka").options(**(_UNTUNED if args.defaults else _SOURCE))
    # Assigned, not subscribed: a subscription would look for new partitions before each batch.
    source = source.option("kafka.bootstrap.servers", args.bootstrap).option("assign", args.inputs)
    rows = unify(source.load())
    writer = _to_kafka(rows, args) if args.sink == "kafka" else _to_delta(rows, args)
    if args.realtime:
        writer = _realtime(spark, writer)
    query = writer.option("checkpointLocation", args.checkpoint).start()

    def ready() -> bool:
        if args.realtime:
            return _running_tasks(spark) >= tasks
        return query.lastProgress is not None or "Waiting for data" in query.status["message"]

    while query.isActive and not ready():
        stopping.wait(0.05)
    _print(event="started")
    while query.isActive and not stopping.wait(0.2):
        pass
    failure = query.exception()
    if failure is not None:
        print(failure, file=sys.stderr, flush=True)
        return 1
    query.stop()
    _print(event="stopped", **figures([p.durationMs for p in query.recentProgress if p.numInputRows]))
    spark.stop()
    return 0


def unify(rows: DataFrame) -> DataFrame:
    """Return ``timestamp`` and ``message`` of Kafka's rows: the transform of ``timezone_etl`` without dead letters."""
    text = rows.select(F.col("value").cast("string").alias("text"))
    date, message = F.substring_index("text", SEPARATOR, 1), F.substring_index("text", SEPARATOR, -1)
    dated = text.select(date.alias("date"), message.alias("message"))
    return dated.select((F.unix_micros(instant("date")) / F.lit(1000.0)).alias("timestamp"), "message")


def figures(batches: Sequence[dict[str, int]]) -> dict[str, Any]:
    """Return the mean milliseconds of batches and their phases in the second half, after the JVM has compiled."""
    steady = batches[len(batches) // 2 :]
    if not steady:
        return {"batches": 0}

    def mean(part: str) -> float:
        return round(sum(batch.get(part, 0) for batch in steady) / len(steady), 1)

    return {
        "batches": len(batches),
        "batch_ms": mean("triggerExecution"),
        "latest_offset_ms": mean("latestOffset"),
        "add_batch_ms": mean("addBatch"),
        "checkpoint_ms": round(mean("walCommit") + mean("commitOffsets"), 1),
    }


def _session(sink: str, cores: int | None) -> SparkSession:
    settings = Settings.load(dotenv=None)
    if sink == "delta":
        from brokerless.spark.delta import delta_session

        spark = delta_session(settings, name="kafka-delta")
    else:
        from brokerless.spark import spark_session

        spark = spark_session(settings, name="kafka-kafka", cores=cores)
    for key, value in _CONF.items():
        spark.conf.set(key, value)
    return spark


def _to_kafka(rows: DataFrame, args: argparse.Namespace) -> DataStreamWriter:
    value = F.concat(F.col("timestamp").cast("string"), F.lit(SEPARATOR), "message")
    writer = (
        rows.select(value.alias("value")).writeStream.format("kafka").options(**(_UNTUNED if args.defaults else _SINK))
    )
    if not args.realtime and not args.defaults:
        writer = writer.options(**_BATCH_SINK)
    return writer.option("kafka.bootstrap.servers", args.bootstrap).option("topic", args.output)


def _realtime(spark: SparkSession, writer: DataStreamWriter) -> DataStreamWriter:
    jvm: Any = spark._jvm
    writer = writer.outputMode("update")
    # pyspark's own trigger() supports this from 4.2 on.
    trigger = jvm.org.apache.spark.sql.streaming.Trigger.RealTime(_REALTIME_BATCH)
    writer._jwrite = writer._jwrite.trigger(trigger)
    return writer


def _running_tasks(spark: SparkSession) -> int:
    """Return how many tasks run now. Tasks of real-time mode run until the batch ends."""
    tracker = spark.sparkContext.statusTracker()
    stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def _to_delta(rows: DataFrame, args: argparse.Namespace) -> DataStreamWriter:
    from delta.tables import DeltaTable

    settings = Settings.load(dotenv=None)
    location = f"{settings.root.replace('s3://', 's3a://', 1)}/{args.output}"
    table = DeltaTable.createIfNotExists(rows.sparkSession).location(location).addColumns(rows.schema)
    table.property(ENGINE_KEY, "delta").execute()
    # One file per commit: fewer requests, and the rows of a producer stay in order.
    return rows.coalesce(1).writeStream.format("delta").option("path", location)


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)  # the JVM then ends with this process


def _print(**values: object) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    sys.exit(main())
