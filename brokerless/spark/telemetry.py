"""A pipeline's metrics: the reports of its batches as metrics of ``brokerless.metrics``, sent once a minute."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from brokerless import metrics
from brokerless.aws.cloudwatch import PERIOD_S, CloudWatchSink, JsonLinesSink, Publisher, cloudwatch_client
from brokerless.clock import SYSTEM, Clock
from brokerless.cost.bill import requests_usd
from brokerless.metrics import Meter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from brokerless.aws.cloudwatch import Sink
    from brokerless.spark.running import BatchReport


class PipelineMeter:
    """A converter of batch reports into metrics.

    Args:
        pipeline: the dimension's value.
        usd_per_hour: the price of the job's workers, for the estimated cost; 0 omits them.
        meter: receives the values.
        clock: time.
    """

    def __init__(
        self, pipeline: str, *, usd_per_hour: float = 0.0, meter: Meter | None = None, clock: Clock = SYSTEM
    ) -> None:
        self.meter = meter or Meter()
        self._pipeline = pipeline
        self._usd_per_s = usd_per_hour / 3600
        self._clock = clock
        self._since = clock.monotonic()
        self._rows = 0
        self._usd = 0.0

    def record(self, reports: Sequence[BatchReport]) -> None:
        """Add the reports of these batches. Call it at least once per second, with no reports if there are none."""
        for report in reports:
            self._record(report)
        elapsed = self._clock.monotonic() - self._since
        if elapsed >= PERIOD_S:
            if self._rows:
                usd = self._usd + elapsed * self._usd_per_s
                self.meter.add(metrics.USD_PER_MILLION, self._pipeline, round(usd / self._rows * 1e6, 4))
            self._since, self._rows, self._usd = self._clock.monotonic(), 0, 0.0

    def _record(self, report: BatchReport) -> None:
        name, meter = self._pipeline, self.meter
        rows = report.rows + report.dead_letters
        meter.add(metrics.PIPELINE_MESSAGES, name, report.rows)
        meter.add(metrics.DEAD_LETTERS, name, report.dead_letters)
        meter.add(metrics.LAG_MESSAGES, name, report.lag_rows)
        # Waiting messages are younger than processed ones, so the youngest row's age is an upper bound of the lag.
        youngest = report.latency.percentile(0) if report.lag_rows else 0.0
        meter.observe(metrics.LAG_SECONDS, name, youngest or 0.0)
        meter.add_histogram(metrics.END_TO_END_LATENCY, name, report.latency)
        meter.observe(metrics.BATCH_DURATION, name, report.compute_s)
        meter.observe(metrics.COMMIT_LATENCY, name, report.commit_s)
        meter.add(metrics.S3_REQUESTS, name, sum(report.requests.values()))
        self._rows += rows
        self._usd += requests_usd(report.requests)


@contextlib.contextmanager
def published(meter: Meter, *, namespace: str | None, path: Path | None, region: str) -> Iterator[None]:
    """Publish the meter's values while the block runs, and once more at its end.

    Args:
        meter: the meter to publish.
        namespace: the CloudWatch namespace; None sends nothing.
        path: a file for one line of JSON per metric; None writes no file.
        region: the CloudWatch region. boto3 does not read ``AWS_REGION``, the only variable that EMR jobs have.
    """
    if namespace is None and path is None:
        yield
        return
    sink: Sink = JsonLinesSink(path) if path else CloudWatchSink(cloudwatch_client(region), namespace or "")
    with Publisher(meter, sink, period_s=PERIOD_S):
        yield
