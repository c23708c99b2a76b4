"""Topics in Spark Structured Streaming. The only part of the library that imports pyspark (with the jobs in glue_jobs).

``read_stream`` and ``write_stream`` make an exactly-once pipeline; ``spark_session`` gives a session that is tuned for
small batches. Names are loaded on first use, so that Java can be looked for without pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brokerless.spark.pipeline import dead_letter, ensure_dead_letters, read_stream, run
    from brokerless.spark.session import register, spark_session, tune
    from brokerless.spark.sink import EXECUTOR_ROWS, Stream, write_stream

__all__ = [
    "EXECUTOR_ROWS",
    "Stream",
    "dead_letter",
    "ensure_dead_letters",
    "read_stream",
    "register",
    "run",
    "spark_session",
    "tune",
    "write_stream",
]

_HOME = {
    "EXECUTOR_ROWS": "sink",
    "Stream": "sink",
    "dead_letter": "pipeline",
    "ensure_dead_letters": "pipeline",
    "read_stream": "pipeline",
    "register": "session",
    "run": "pipeline",
    "spark_session": "session",
    "tune": "session",
    "write_stream": "sink",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'brokerless.spark' has no attribute {name!r}")
    return getattr(import_module(f"brokerless.spark.{_HOME[name]}"), name)
