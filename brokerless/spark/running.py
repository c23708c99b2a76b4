"""A running pipeline, whatever engine runs it, and the reports of its batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from brokerless.errors import BrokerlessError
    from brokerless.metrics import Histogram


@dataclass(slots=True)
class BatchReport:
    """The figures of one batch.

    Attributes:
        lag_rows: messages that were available after the end of this batch when it was planned.
        compute_s: time for reading, transforming and (by executors) uploading.
        commit_s: time for uploading by the driver, and for the log entries.
        latency: ages of the output's rows when they were committed (by executors: uploaded).
        requests: S3 requests since the last batch, by kind: of the source (with polling), the tasks and the driver.
    """

    batch_id: int
    rows: int
    dead_letters: int
    lag_rows: int
    compute_s: float
    commit_s: float
    by: Literal["driver", "executors"]
    latency: Histogram
    requests: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class RunningPipeline:
    """A running pipeline.

    Attributes:
        query: Spark's query.
        engine: ``micro-batch``, ``realtime``, or ``delta``, which has no reports and leaves errors to the query.
        reports: the reports of finished batches, newest last; ``drain`` removes them.
    """

    query: StreamingQuery
    name: str
    engine: str
    reports: list[BatchReport] = field(default_factory=list)

    def ready(self) -> bool:
        """Return whether messages that arrive now are processed at once."""
        return True

    def drain(self) -> list[BatchReport]:
        """Return the reports since the last call."""
        drained, self.reports[:] = list(self.reports), []
        return drained

    def wait(self, *, once: bool) -> None:
        """Wait for the query's end; with ``once``, until all available messages are processed."""
        if once:
            self.query.processAllAvailable()
        else:
            self.query.awaitTermination()

    def stop(self, timeout_s: float = 8.0) -> None:
        """End the query, and let what is running be committed before (for at most ``timeout_s``)."""
        self.query.stop()

    def error(self) -> BrokerlessError | None:
        """Return the brokerless error that ended the pipeline, or None."""
        return None
