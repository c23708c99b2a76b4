"""Definitions that fit together, latencies that add up, and a meter that loses nothing between threads."""

from __future__ import annotations

import math
import random
import re
import sys
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from brokerless import metrics
from brokerless.metrics import (
    GROUP_METRICS,
    LATENCY_BOUNDS_S,
    METRICS,
    Alarm,
    Billed,
    Datum,
    Histogram,
    Meter,
    Metric,
    billed,
)
from tools.pages import metrics as metrics_page

if TYPE_CHECKING:
    from collections.abc import Iterator

each_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
STATISTICS = r"Sum|Minimum|Maximum|Average|SampleCount|p\d{1,2}(\.\d+)?"


# Definitions


def test_every_metric_of_the_module_is_listed_once() -> None:
    constants = {value for value in vars(metrics).values() if isinstance(value, Metric)}
    assert {*METRICS, *GROUP_METRICS} == constants
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@each_metric
def test_the_constant_is_named_like_the_metric(metric: Metric) -> None:
    constant = next(name for name, value in vars(metrics).items() if value is metric)
    spelled = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", metric.name).upper()
    assert constant in {spelled, "USD_PER_MILLION"}


@each_metric
def test_statistics_are_those_of_cloudwatch(metric: Metric) -> None:
    asked = [*metric.statistics, *([metric.alarm.statistic] if metric.alarm else [])]
    for statistic in asked:
        assert re.fullmatch(STATISTICS, statistic), statistic


@each_metric
def test_latencies_are_shown_as_percentiles_never_as_averages(metric: Metric) -> None:
    assert (metric.row == "latency") == (metric.statistics == ("p50", "p95", "p99"))
    assert metric.row != "latency" or metric.unit == "Seconds"


@each_metric
def test_an_alarm_fits_its_metric(metric: Metric) -> None:
    if metric.alarm is None:
        return
    assert metric.alarm.above != "objective" or (metric.dimension, metric.unit) == ("Pipeline", "Seconds")
    assert not metric.alarm.canary or metric.dimension == "Pipeline"
    if metric.alarm.backlog is not None:
        assert metric.alarm.backlog in METRICS
        assert metric.alarm.backlog.dimension == metric.dimension
        assert "Minimum" in metric.alarm.backlog.statistics


@pytest.mark.parametrize(("above", "below"), [(None, None), (1.0, 1.0)])
def test_an_alarm_has_one_bound(above: float | None, below: float | None) -> None:
    with pytest.raises(ValueError, match="exactly one bound"):
        Alarm("why", above=above, below=below)


# Latencies


def test_bounds_fit_one_entry_of_cloudwatch_and_are_a_tenth_apart() -> None:
    assert len(LATENCY_BOUNDS_S) + 1 <= 150
    assert (LATENCY_BOUNDS_S[0], LATENCY_BOUNDS_S[-1]) == (0.001, 1000.0)
    for lower, upper in pairwise(LATENCY_BOUNDS_S):
        assert 1.09 < upper / lower < 1.11


def histogram(latencies: list[float]) -> Histogram:
    counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
    for latency in latencies:
        counts[next((n for n, bound in enumerate(LATENCY_BOUNDS_S) if latency <= bound), -1)] += 1
    return Histogram(counts)


@pytest.mark.parametrize("percent", [50, 95, 99])
def test_a_percentile_is_at_most_a_tenth_too_high(percent: float) -> None:
    rng = random.Random(3)
    latencies = sorted(rng.lognormvariate(-1, 1) for _ in range(5000))
    exact = latencies[math.ceil(len(latencies) * percent / 100) - 1]
    found = histogram(latencies).percentile(percent)
    assert found is not None
    assert exact <= found <= 1.11 * exact


def test_percentiles_of_a_sum_are_those_of_all_rows() -> None:
    both = histogram([0.01] * 99)
    both.add_counts(histogram([5.0]).counts)
    assert both.percentile(99) == pytest.approx(0.01, rel=0.11)
    assert both.percentile(100) == pytest.approx(5.0, rel=0.11)


def test_nothing_has_no_percentile_and_beyond_the_bounds_is_infinite() -> None:
    assert Histogram().percentile(50) is None
    assert histogram([5000.0]).percentile(50) == math.inf


# The meter


def test_equal_values_are_counted_and_others_kept() -> None:
    meter = Meter()
    for value in (2, 3, 2):
        meter.add(metrics.RESTARTS, "etl", value)
    meter.add(metrics.RESTARTS, "other", 1, count=4)
    assert meter.take() == [
        Datum(metrics.RESTARTS, "etl", (2, 3), (2.0, 1.0)),
        Datum(metrics.RESTARTS, "other", (1,), (4,)),
    ]


def test_what_was_taken_is_gone() -> None:
    meter = Meter()
    meter.add(metrics.RESTARTS, "etl", 1)
    meter.take()
    assert meter.take() == []


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_cloudwatch_refuses_is_left_out(value: float) -> None:
    meter = Meter()
    meter.add(metrics.USD_PER_MILLION, "etl", value)
    assert meter.take() == []


@pytest.mark.parametrize(
    ("seconds", "sent_as"),
    [(0.0, 0.001), (0.001, 0.001), (0.00101, 0.0011007), (0.99, 1.0), (1000.0, 1000.0), (1000.1, 10_000.0)],
)
def test_a_latency_counts_as_its_buckets_upper_bound(seconds: float, sent_as: float) -> None:
    meter = Meter()
    meter.observe(metrics.CANARY_LATENCY, "etl", seconds)
    assert meter.take()[0].values == (sent_as,)


def test_a_histogram_is_added_as_its_latencies_one_by_one_would_be() -> None:
    latencies = [0.0, 0.005, 0.005, 0.7, 2000.0]
    whole, single = Meter(), Meter()
    whole.add_histogram(metrics.END_TO_END_LATENCY, "etl", histogram(latencies))
    for latency in latencies:
        single.observe(metrics.END_TO_END_LATENCY, "etl", latency)
    assert whole.take() == single.take()


@pytest.fixture
def hurry() -> Iterator[None]:
    """Threads change places after a microsecond, so that they meet in the middle of things."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hurry")
def test_threads_lose_no_count() -> None:
    meter = Meter()
    taken: list[Datum] = []

    def work() -> None:
        for _ in range(2000):
            meter.add(metrics.PRODUCED_MESSAGES, "clicks", 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += meter.take()
    taken += meter.take()
    assert sum(sum(datum.counts) for datum in taken) == 8000


# What is billed, and the page


def test_what_is_billed_counts_each_topic_pipeline_and_canary() -> None:
    none, topic = billed(topics=0, pipelines=0, canaries=0), billed(topics=1, pipelines=0, canaries=0)
    assert none == Billed(metrics=2, alarms=1, composites=0)  # of the stage: maintenance
    assert topic == Billed(metrics=2 + 4, alarms=1 + 2, composites=0)
    plain, canary = billed(topics=0, pipelines=1, canaries=0), billed(topics=0, pipelines=1, canaries=1)
    assert plain.composites == 1
    assert plain.metrics == 2 + sum(m.dimension == "Pipeline" and m.emitter != "canary" for m in METRICS)
    assert canary == Billed(metrics=plain.metrics + 2, alarms=plain.alarms + 2, composites=1)


def test_the_bill_on_the_page_adds_up() -> None:
    rows = re.findall(r"^\| ([\w ]+) \| ?[\d,]* \| (\d+\.\d\d) \|$", metrics_page.page(), re.MULTILINE)
    bill = {name: float(usd) for name, usd in rows}
    assert bill["metrics"] == pytest.approx(0.30 * 25)
    assert bill.pop("together") == pytest.approx(sum(bill.values()), abs=0.011)
