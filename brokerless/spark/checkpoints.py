"""Spark's scratch checkpoints: a folder for each query, and the offsets that Spark has written there."""

from __future__ import annotations

import os
import shutil
import uuid
from typing import TYPE_CHECKING, Final

from brokerless.errors import PipelineError
from brokerless.spark.progress import SourceOffset

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql.streaming.query import StreamingQuery

queries: Final[dict[Path, StreamingQuery | None]] = {}
"""The queries of this process by their checkpoints; None while a query is starting."""


def fresh_checkpoint(scratch: Path, name: str) -> Path:
    """Create an empty folder for Spark's checkpoint, and remove those that no query uses any more."""
    root = scratch / f"pipeline-{name}"
    for old in root.glob("*-*"):
        if not _is_used(old):
            remove_checkpoint(old)
    path = root / f"{os.getpid()}-{uuid.uuid4().hex}"
    queries[path] = None
    path.mkdir(parents=True)
    return path


def query_name(name: str, checkpoint: Path) -> str:
    """Return a unique name for Spark, which refuses two queries with one name; fencing handles duplicates instead."""
    return f"{name}-{checkpoint.name.partition('-')[2][:8]}"


def remove_checkpoint(path: Path) -> None:
    """Remove the folder of a query that has ended."""
    shutil.rmtree(path, ignore_errors=True)
    queries.pop(path, None)


def _is_used(path: Path) -> bool:
    """Return whether a query of this process uses the folder, or another running process may use it."""
    pid = int(path.name.partition("-")[0])
    if pid != os.getpid():
        return _is_alive(pid)
    if path not in queries:
        return False  # from an earlier process with this pid
    query = queries[path]
    try:
        return query is None or query.isActive
    except Exception:  # the JVM has ended, and the query with it
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # the process belongs to another user
    return True


def read_offset(checkpoint: Path, batch_id: int) -> SourceOffset:
    """Return the source's offset of a batch.

    Format: ``OffsetSeqLog`` version 1: a version, the batch's metadata, then one line of JSON for each source.
    """
    lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    if len(lines) != 3 or lines[0] != "v1":
        raise PipelineError(
            f"The query has {len(lines) - 2} sources; read all topics by one read_stream (offset log {lines[0]})."
        )
    return SourceOffset.of(lines[2])
