"""What is measured: each metric's name, unit, dimension, meaning and alarm, once. Standard library only.

Whoever emits a metric takes it from here; dashboard, alarms and ``docs/metrics.md`` are made from ``METRICS``. A metric
has one dimension, because each combination of values is billed as a metric of its own.

Latency is a histogram with fixed bounds, so that those of batches, tasks and hosts add up. Percentiles of a sum are
those of all its rows; averages of percentiles are not, so nothing here computes them. CloudWatch keeps percentiles if
it is sent values with counts (``Datum``), for any number of messages in one call.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Unit = Literal["Count", "Seconds", "Bytes", "None"]
"""As CloudWatch names them."""

Dimension = Literal["Topic", "Pipeline", "Stage"]

Row = Literal["latency", "throughput", "lag", "errors", "cost"]
"""Where on the dashboard."""

NAMESPACE: Final = "Brokerless"
"""Of all stages; a stage's metrics are in ``Brokerless/<stage>``, so that a policy can tell them apart."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """When somebody should look: one value of a statistic, taken over a window of minutes, is out of bounds.

    Attributes:
        why: what it means, in one sentence. ``docs/runbook.md`` has a section with the metric's name.
        statistic: as CloudWatch spells it: ``Sum``, ``Maximum``, ``p99``.
        above: alarming are values above this, in the metric's unit; ``objective`` is the pipeline's latency objective.
        below: alarming are values below this instead.
        minutes: the window.
        missing: whether a window without data is alarming, too.
        canary: whether it is for pipelines with a canary only: without one, silence proves nothing.
        backlog: a metric of the same dimension. If given, the alarm is a composite: it also takes that this metric's
            minimum is above zero and does not fall from one window to the next, so it will not pass by itself.
        critical: whether somebody must act now; otherwise it is a warning.

    Raises:
        ValueError: not exactly one of ``above`` and ``below``.
    """

    why: str
    statistic: str = "Sum"
    above: float | Literal["objective"] | None = None
    below: float | None = None
    minutes: int = 5
    missing: bool = False
    canary: bool = False
    backlog: Metric | None = None
    critical: bool = True

    def __post_init__(self) -> None:
        if (self.above is None) == (self.below is None):
            raise ValueError(
                f"An alarm has one bound, this one has above={self.above!r} and below={self.below!r}; give one."
            )


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: as in CloudWatch.
        statistics: those that say something, for the dashboard.
        emitter: who sends it: ``producers``, ``pipeline``, ``controller``, ``canary`` or ``maintenance``.
        help: what it is, in one sentence.
    """

    name: str
    unit: Unit
    dimension: Dimension
    statistics: tuple[str, ...]
    row: Row
    emitter: Literal["producers", "pipeline", "controller", "canary", "maintenance"]
    help: str
    alarm: Alarm | None = None


_PERCENTILES: Final = ("p50", "p95", "p99")

PRODUCED_MESSAGES: Final = Metric(
    "ProducedMessages", "Count", "Topic", ("Sum",), "throughput", "producers", "Messages committed to a topic."
)
PRODUCE_LATENCY: Final = Metric(
    "ProduceLatency",
    "Seconds",
    "Topic",
    _PERCENTILES,
    "latency",
    "producers",
    "From the moment a producer took messages until they were committed: the first hop.",
)
COMMIT_CONFLICTS: Final = Metric(
    "CommitConflicts",
    "Count",
    "Topic",
    ("Sum",),
    "errors",
    "producers",
    "Conditional PUTs that another writer's commit made void, so that they were tried again.",
    Alarm(
        "Writers fight over one partition; their latency and their bill grow.", above=600, minutes=15, critical=False
    ),
)
REJECTED_MESSAGES: Final = Metric(
    "RejectedMessages",
    "Count",
    "Topic",
    ("Sum",),
    "errors",
    "producers",
    "Messages that did not fit a topic and went to its dead-letter topic, or were refused over HTTP.",
    Alarm("Somebody sends what the topic cannot hold.", above=0, critical=False),
)

PIPELINE_MESSAGES: Final = Metric(
    "PipelineMessages",
    "Count",
    "Pipeline",
    ("Sum",),
    "throughput",
    "pipeline",
    "Messages that a pipeline committed to its output.",
    Alarm(
        "The pipeline committed nothing for a quarter of an hour, although the canary sends a message each minute.",
        below=1,
        minutes=15,
        missing=True,
        canary=True,
    ),
)
LAG_MESSAGES: Final = Metric(
    "LagMessages",
    "Count",
    "Pipeline",
    ("Minimum", "Maximum"),
    "lag",
    "pipeline",
    "Messages that were waiting behind a batch when it was cut; in real-time mode, behind a commit.",
)
END_TO_END_LATENCY: Final = Metric(
    "EndToEndLatency",
    "Seconds",
    "Pipeline",
    _PERCENTILES,
    "latency",
    "pipeline",
    "From ``_produced_at`` until the message was committed to the pipeline's output.",
    Alarm(
        "Messages arrive later than the objective, and the backlog does not shrink.",
        statistic="p99",
        above="objective",
        backlog=LAG_MESSAGES,
    ),
)
BATCH_DURATION: Final = Metric(
    "BatchDuration",
    "Seconds",
    "Pipeline",
    _PERCENTILES,
    "latency",
    "pipeline",
    "One batch: reading, transforming and, by executors, uploading. In real-time mode, the uploading of one commit.",
)
COMMIT_LATENCY: Final = Metric(
    "CommitLatency",
    "Seconds",
    "Pipeline",
    _PERCENTILES,
    "latency",
    "pipeline",
    "One commit of a pipeline: uploading by the driver, and the log entries.",
)
LAG_SECONDS: Final = Metric(
    "LagSeconds",
    "Seconds",
    "Pipeline",
    ("Maximum",),
    "lag",
    "pipeline",
    "Age of the newest message that was processed while others waited; 0 when none did.",
)
DEAD_LETTERS: Final = Metric(
    "DeadLetters",
    "Count",
    "Pipeline",
    ("Sum",),
    "errors",
    "pipeline",
    "Messages that a pipeline could not process and kept in its dead-letter topic.",
    Alarm(
        "The pipeline meets messages that it cannot process; they are kept, with the reason.", above=0, critical=False
    ),
)
S3_REQUESTS: Final = Metric(
    "S3Requests",
    "Count",
    "Pipeline",
    ("Sum",),
    "cost",
    "pipeline",
    "Requests that the pipeline sent to S3, without those of idle polling since its last batch.",
)
USD_PER_MILLION: Final = Metric(
    "UsdPerMillionMessages",
    "None",
    "Pipeline",
    ("Average",),
    "cost",
    "pipeline",
    "Estimated: the pipeline's requests and its workers, by list price, for a million messages at this minute's rate.",
)

PIPELINE_RUNNING: Final = Metric(
    "PipelineRunning",
    "Count",
    "Pipeline",
    ("Minimum",),
    "errors",
    "controller",
    "1 while the pipeline's job runs, 0 while it should and does not; every five minutes and at each change.",
    Alarm(
        "The pipeline's job is not running, or the controller that watches it is not.",
        statistic="Maximum",
        below=1,
        minutes=15,
        missing=True,
    ),
)
RESTARTS: Final = Metric(
    "Restarts",
    "Count",
    "Pipeline",
    ("Sum",),
    "errors",
    "controller",
    "Runs that the controller started in place of one that had ended by itself.",
    Alarm("The job keeps ending and is started again and again.", above=2, minutes=60),
)
RUN_FAILURES: Final = Metric(
    "RunFailures", "Count", "Pipeline", ("Sum",), "errors", "controller", "Runs of the job that failed."
)
GAVE_UP: Final = Metric(
    "GaveUp",
    "Count",
    "Pipeline",
    ("Maximum",),
    "errors",
    "controller",
    "1 while the controller has stopped restarting the job, because it failed too often within an hour.",
    Alarm(
        "The job is down and stays down until it is deployed anew or reset.", statistic="Maximum", above=0, minutes=15
    ),
)

CANARY_LATENCY: Final = Metric(
    "CanaryLatency",
    "Seconds",
    "Pipeline",
    _PERCENTILES,
    "latency",
    "canary",
    "From the sending of the canary's message until a reader saw it in the output: all hops, each minute.",
)
CANARY_MISSING: Final = Metric(
    "CanaryMissing",
    "Count",
    "Pipeline",
    ("Sum",),
    "errors",
    "canary",
    "Canary messages that no reader saw within the time-out; 0 for each that one saw.",
    Alarm(
        "Messages go in and do not come out in time, or the canary itself is dead.",
        above=2,
        missing=True,
        canary=True,
    ),
)

MAINTENANCE_SKIPPED: Final = Metric(
    "MaintenanceSkipped",
    "Count",
    "Stage",
    ("Sum",),
    "errors",
    "maintenance",
    "Steps of maintenance that could not be done; the log has the reasons.",
    Alarm(
        "Tables are not kept in order: opening them gets slower, storage grows.", above=0, minutes=60, critical=False
    ),
)
BYTES_REMOVED: Final = Metric(
    "BytesRemoved", "Bytes", "Stage", ("Sum",), "cost", "maintenance", "What maintenance removed from the bucket."
)

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All of them, in the order above."""


@dataclass(frozen=True, slots=True)
class Billed:
    """What CloudWatch counts of a stage.

    Attributes:
        metrics: one for each metric and value of its dimension; statistics cost nothing.
        alarms: those on a metric, also the halves of composite ones.
        composites: alarms made of other alarms.
    """

    metrics: int
    alarms: int
    composites: int


def billed(*, topics: int, pipelines: int, canaries: int) -> Billed:
    """What a stage is billed for, with so many topics that producers write, and pipelines, some with a canary."""
    count = {"Topic": topics, "Pipeline": pipelines, "Stage": 1}
    ringing = [
        (metric.alarm, canaries if metric.alarm.canary else count[metric.dimension])
        for metric in METRICS
        if metric.alarm is not None
    ]
    return Billed(
        metrics=sum(canaries if metric.emitter == "canary" else count[metric.dimension] for metric in METRICS),
        alarms=sum(number * (1 if alarm.backlog is None else 2) for alarm, number in ringing),
        composites=sum(number for alarm, number in ringing if alarm.backlog is not None),
    )


LATENCY_BOUNDS_S: Final = tuple(round(10 ** (e / 24), 7) for e in range(-72, 73))
"""Upper bounds in seconds, 24 a decade from 1 ms to 1,000 s: a percentile is at most 10 % too high. 145 buckets, fewer
than the 150 values that one CloudWatch PutMetricData entry takes."""

_BEYOND_S: Final = 10 * LATENCY_BOUNDS_S[-1]
"""What a latency above all bounds is sent as."""


@dataclass(slots=True)
class Histogram:
    """Counts of latencies by ``LATENCY_BOUNDS_S``; the last bucket holds all that are longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))

    @property
    def total(self) -> int:
        """How many latencies were counted."""
        return sum(self.counts)

    def add_counts(self, counts: Sequence[int]) -> None:
        """Adds another histogram's counts."""
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]

    def percentile(self, percent: float) -> float | None:
        """The bound in seconds below which at least ``percent`` of the latencies lie; None of nothing."""
        wanted = math.ceil(self.total * percent / 100)
        if not self.total:
            return None
        running = 0
        for bound, count in zip((*LATENCY_BOUNDS_S, math.inf), self.counts, strict=True):
            running += count
            if running >= max(wanted, 1):
                return bound
        return math.inf


@dataclass(frozen=True, slots=True)
class Datum:
    """Values of one metric since the last time, each with how often it occurred.

    Attributes:
        of: the dimension's value: which topic, which pipeline.
    """

    metric: Metric
    of: str
    values: tuple[float, ...]
    counts: tuple[float, ...]


class Meter:
    """Collects what happened, from any thread, until somebody takes it to be sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[Metric, str], dict[float, float]] = {}

    def add(self, metric: Metric, of: str, value: float, count: float = 1.0) -> None:
        """One value, which occurred ``count`` times.

        Infinity and NaN are left out: CloudWatch refuses them, and with them all that is in the same request.
        """
        if not math.isfinite(value):
            return
        with self._lock:
            values = self._values.setdefault((metric, of), {})
            values[value] = values.get(value, 0.0) + count

    def add_histogram(self, metric: Metric, of: str, histogram: Histogram) -> None:
        """Latencies in seconds; each counts as its bucket's upper bound."""
        bounds = (*LATENCY_BOUNDS_S, _BEYOND_S)
        for bound, count in zip(bounds, histogram.counts, strict=True):
            if count:
                self.add(metric, of, bound, count)

    def observe(self, metric: Metric, of: str, seconds: float) -> None:
        """One latency, rounded up to its bucket's bound: any number of them stays a few values."""
        bounds = (*LATENCY_BOUNDS_S, _BEYOND_S)
        self.add(metric, of, bounds[bisect_left(LATENCY_BOUNDS_S, seconds)])

    def take(self) -> list[Datum]:
        """What was collected since the last call."""
        with self._lock:
            taken, self._values = self._values, {}
        return [Datum(metric, of, tuple(v), tuple(v.values())) for (metric, of), v in taken.items()]
