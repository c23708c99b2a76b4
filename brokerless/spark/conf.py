"""Spark settings for small, fast batches, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Engine = Literal["auto", "realtime", "micro-batch", "delta"]
"""How a pipeline runs: ``auto`` is ``realtime`` where Spark and the transform allow it, else ``micro-batch``; ``delta``
is stock delta-spark, for stateful SQL and comparison."""

STREAM_CONF: Final[Mapping[str, str]] = {
    # Adaptive planning does not help small batches.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # The source itself waits for data, with a back-off; Spark need not wait in addition.
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # The checkpoint is scratch on a local disk, where rename is atomic; this manager halves the cost of its files.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # With a limit in bytes, Spark measures the batch after each row: a quarter of the time of a large batch (measured).
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.session.timeZone": "UTC",
}
"""SQL settings of a streaming query; they can be set on a running session."""

SESSION_CONF: Final[Mapping[str, str]] = {
    # Spark writes two log files per batch: without checksum files, and (VFORK, below) with a cheaper start of the
    # ``chmod`` that Hadoop runs for each file if its native library is missing: 12 ms per batch instead of 28.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Without it, each Python worker waits 40 ms for a delayed TCP acknowledgement (see worker.py).
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.locality.wait": "0s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ui.retainedExecutions": "1",
}
"""Settings that must be set before the session starts."""
