"""The job of the delta-spark peers: Delta's streaming source, the parse, Delta's streaming sink. One JSON argument.

Its standard output is JSON lines: ``started`` when the query has polled its inputs once, then one ``batch`` for each
batch with rows. SIGTERM stops it in order; it also ends when the process that started it ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import reduce
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

REPORT_S: Final = 5.0  # Spark keeps its last 100 reports: enough for 20 batches per second

_WAITING: Final = "Waiting for data to arrive"


@dataclass(frozen=True, slots=True)
class Job:
    """The parameters of the job. Paths are in Spark's form (``s3a://``).

    Attributes:
        conf: the settings of the session.
        inputs: the tables to read.
        output: the table to write, created here.
        checkpoint: the location of the query's checkpoint.
    """

    conf: dict[str, str]
    inputs: tuple[str, ...]
    output: str
    checkpoint: str

    def to_json(self) -> str:
        """Return the command-line argument."""
        return json.dumps(asdict(self))


def main(job: Job, events: IO[str]) -> int:
    """Run the job, and return the exit code."""
    from pyspark.sql import SparkSession

    starter = os.getppid()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    builder = SparkSession.builder.appName("delta-spark").master("local[*]")
    for key, value in job.conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    query = _start(spark, job)

    def over() -> bool:
        return stop.is_set() or os.getppid() != starter or not query.isActive

    _wait_ready(query, over)
    reported = -1
    if not over():
        _say(events, {"event": "started"})
    while not over():
        stop.wait(REPORT_S)
        reported = _report(query, events, reported)
    error = query.exception()
    if error is not None:
        print(error, file=sys.stderr)
        return 1
    query.stop()
    return 0


def unify(rows: DataFrame) -> DataFrame:
    """Parse ``timestamp double`` (epoch milliseconds) and ``message`` as in the example."""
    from pyspark.sql import functions as F

    from glue_jobs.timezone_etl import instant

    parsed = rows.withColumn("_instant", instant("date"))
    return parsed.select((F.unix_micros("_instant") / F.lit(1000.0)).alias("timestamp"), "message")


def _start(spark: SparkSession, job: Job) -> StreamingQuery:
    # Only Spark commits to this table: its log store checks for an entry, then writes it unconditionally.
    spark.sql(f"CREATE TABLE delta.`{job.output}` (timestamp DOUBLE, message STRING) USING delta")
    inputs = [spark.readStream.format("delta").load(path) for path in job.inputs]
    rows = reduce(lambda a, b: a.unionByName(b), inputs)
    writer = unify(rows).writeStream.format("delta").option("checkpointLocation", job.checkpoint)
    return writer.start(job.output)


def _wait_ready(query: StreamingQuery, over: Callable[[], bool]) -> None:
    """Wait for the first poll of all inputs (an empty batch for new tables), or for the end."""
    while not over() and query.lastProgress is None and query.status["message"] != _WAITING:
        time.sleep(0.05)


def _report(query: StreamingQuery, events: IO[str], after: int) -> int:
    """Print the batches with rows after this one; return the number of the last."""
    for progress in query.recentProgress:
        number = progress["batchId"]
        if number > after and progress["numInputRows"]:
            after = number
            at_s = datetime.fromisoformat(progress["timestamp"]).timestamp()
            rows, phases = progress["numInputRows"], dict(progress["durationMs"])
            _say(events, {"event": "batch", "at_s": at_s, "rows": rows, "ms": phases})
    return after


def _say(events: IO[str], event: dict[str, Any]) -> None:
    print(json.dumps(event), file=events, flush=True)


if __name__ == "__main__":
    # Other output of Spark and its children must not be mixed with the events.
    own = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.exit(main(Job(**json.loads(sys.argv[1])), own))
