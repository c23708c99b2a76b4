"""What batches did, as metrics."""

from __future__ import annotations

import pytest

from brokerless import metrics
from brokerless.aws.cloudwatch import PERIOD_S, JsonLinesSink
from brokerless.metrics import Histogram, Meter, Metric
from brokerless.spark import telemetry
from brokerless.spark.running import BatchReport
from brokerless.spark.telemetry import PipelineMeter, published
from tests.support.fakes import FakeClock


def ages(**by_bound: int) -> Histogram:
    """Counts by bucket number: ``ages(_24=3)`` is three rows of at most 10 ms."""
    histogram = Histogram()
    for bucket, count in by_bound.items():
        histogram.counts[int(bucket[1:])] = count
    return histogram


def report(*, rows: int = 3, letters: int = 1, lag: int = 0, requests: dict[str, int] | None = None) -> BatchReport:
    return BatchReport(
        batch_id=0,
        rows=rows,
        dead_letters=letters,
        lag_rows=lag,
        compute_s=0.05,
        commit_s=0.01,
        by="driver",
        latency=ages(_24=1, _48=2),
        requests=requests or {},
    )


def values(meter: Meter) -> dict[Metric, dict[float, float]]:
    return {datum.metric: dict(zip(datum.values, datum.counts, strict=True)) for datum in meter.take()}


def test_a_batch_becomes_messages_latencies_and_dead_letters() -> None:
    pipeline = PipelineMeter("etl", clock=FakeClock())
    pipeline.record([report(requests={"PUT": 2, "GET": 3}), report(rows=5, letters=0)])
    found = values(pipeline.meter)
    assert found[metrics.S3_REQUESTS] == {5: 1, 0: 1}
    assert found[metrics.PIPELINE_MESSAGES] == {3: 1, 5: 1}
    assert found[metrics.DEAD_LETTERS] == {1: 1, 0: 1}
    assert found[metrics.END_TO_END_LATENCY] == {0.01: 2, 0.1: 4}
    assert found[metrics.COMMIT_LATENCY] == {0.01: 2}


def test_lag_is_the_age_of_the_youngest_row_only_while_others_wait() -> None:
    pipeline = PipelineMeter("etl", clock=FakeClock())
    pipeline.record([report(lag=0)])
    assert values(pipeline.meter)[metrics.LAG_SECONDS] == {0.001: 1}  # the lowest bound: none
    pipeline.record([report(lag=7)])
    found = values(pipeline.meter)
    assert found[metrics.LAG_SECONDS] == {0.01: 1}
    assert found[metrics.LAG_MESSAGES] == {7: 1}


def test_cost_a_million_is_requests_and_workers_over_the_minutes_rows() -> None:
    clock = FakeClock()
    pipeline = PipelineMeter("etl", usd_per_hour=0.36, clock=clock)
    pipeline.record([report(rows=99, requests={"PUT": 1000, "GET": 10_000, "DELETE": 5})])
    clock.advance(PERIOD_S)
    pipeline.record([])
    # 0.005 + 0.004 for the requests, 60 s x 0.0001 for the workers, over 100 messages.
    assert values(pipeline.meter)[metrics.USD_PER_MILLION] == pytest.approx({150.0: 1})
    clock.advance(PERIOD_S)
    pipeline.record([])
    assert metrics.USD_PER_MILLION not in values(pipeline.meter), "no messages have no price"


def test_cloudwatch_is_of_the_region_that_the_settings_name(monkeypatch, tmp_path) -> None:
    """boto3 reads AWS_DEFAULT_REGION and its own files; a deployed pipeline has neither."""
    clients = []
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    def sink(client, namespace):
        clients.append((client.meta.region_name, namespace))
        return JsonLinesSink(tmp_path / "sent")

    monkeypatch.setattr(telemetry, "CloudWatchSink", sink)
    with published(Meter(), namespace="n", path=None, region="eu-west-1"):
        pass
    assert clients == [("eu-west-1", "n")]
