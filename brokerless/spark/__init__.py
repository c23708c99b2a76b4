"""Topics in Spark Structured Streaming. The only part of the library that imports pyspark (with the jobs in glue_jobs).

``Pipeline`` (also ``brokerless.Pipeline``) is a pipeline, and ``dead_letter`` marks what it cannot process;
``static_messages`` gives a test what a transform is given. Below that, ``read_stream`` and ``write_stream`` are the
micro-batch engine, and ``spark_session`` gives a session that is tuned for small batches. Names are loaded on first
use, so that Java can be looked for without pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brokerless.spark.pipeline import Pipeline, dead_letter
    from brokerless.spark.reader import read_stream, static_messages
    from brokerless.spark.runner import PipelineResult
    from brokerless.spark.running import RunningPipeline
    from brokerless.spark.session import register, spark_session, tune
    from brokerless.spark.sink import EXECUTOR_ROWS, write_stream

__all__ = [
    "EXECUTOR_ROWS",
    "Pipeline",
    "PipelineResult",
    "RunningPipeline",
    "dead_letter",
    "read_stream",
    "register",
    "spark_session",
    "static_messages",
    "tune",
    "write_stream",
]

_HOME = {
    "EXECUTOR_ROWS": "sink",
    "Pipeline": "pipeline",
    "PipelineResult": "runner",
    "RunningPipeline": "running",
    "dead_letter": "pipeline",
    "read_stream": "reader",
    "register": "session",
    "spark_session": "session",
    "static_messages": "reader",
    "tune": "session",
    "write_stream": "sink",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'brokerless.spark' has no attribute {name!r}")
    return getattr(import_module(f"brokerless.spark.{_HOME[name]}"), name)
