"""The catalogue of metrics: the name, unit, dimension, meaning and alarm of each, defined once. Standard library only.

Code that emits a metric takes it from here; the dashboard, the alarms and ``docs/metrics.md`` are made from
``METRICS``. A metric has one dimension, because each combination of values is billed as its own metric.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Unit = Literal["Count", "Seconds", "Bytes", "None"]
"""The unit, with CloudWatch's names."""

Dimension = Literal["Topic", "Pipeline", "Stage", "Group"]

Row = Literal["latency", "throughput", "lag", "errors", "cost"]
"""The row of the dashboard."""

NAMESPACE: Final = "Brokerless"
"""The prefix of namespaces. A stage has ``Brokerless/<stage>``, so that a policy can allow one stage only."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """The condition of an alarm: one value of a statistic over a window of minutes is out of bounds.

    Attributes:
        why: its meaning, in one sentence. ``docs/runbook.md`` has a section with the metric's name.
        statistic: CloudWatch's name: ``Sum``, ``Maximum``, ``p99``.
        above: the alarm is raised above this value, in the metric's unit; ``objective`` is the pipeline's objective.
        below: the alarm is raised below this value instead.
        minutes: the window.
        missing: whether a window without data raises the alarm too.
        canary: whether the alarm is only for pipelines with a canary: without one, no data proves nothing.
        backlog: a metric of the same dimension. If given, the alarm is a composite, which also requires that this
            metric's minimum is above zero and does not fall from one window to the next.
        critical: whether somebody must act now; otherwise it is a warning.

    Raises:
        ValueError: not exactly one of ``above`` and ``below`` is given.
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
                f"An alarm must have exactly one bound, got above={self.above!r} and below={self.below!r}."
            )


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: the name in CloudWatch.
        statistics: the statistics on the dashboard.
        emitter: the sender: ``producers``, ``pipeline``, ``controller``, ``canary``, ``maintenance``, or ``lag`` (the
            command, for Prometheus).
        help: the meaning, in one sentence.
    """

    name: str
    unit: Unit
    dimension: Dimension
    statistics: tuple[str, ...]
    row: Row
    emitter: Literal["producers", "pipeline", "controller", "canary", "maintenance", "lag"]
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
    "Time from the call of a producer until its messages were committed: the first hop.",
)
COMMIT_CONFLICTS: Final = Metric(
    "CommitConflicts",
    "Count",
    "Topic",
    ("Sum",),
    "errors",
    "producers",
    "Conditional PUTs that failed because another writer was faster, and were repeated.",
    Alarm(
        "Too many writers commit to one partition; their latency and cost grow.", above=600, minutes=15, critical=False
    ),
)
REJECTED_MESSAGES: Final = Metric(
    "RejectedMessages",
    "Count",
    "Topic",
    ("Sum",),
    "errors",
    "producers",
    "Messages that did not fit a topic and became dead letters, or were rejected over HTTP.",
    Alarm("A producer sends messages that do not fit the topic.", above=0, critical=False),
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
        "The pipeline committed nothing for 15 minutes, although the canary sends a message each minute.",
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
    "Messages that waited when a batch was planned; in real-time mode, when a commit was made.",
)
END_TO_END_LATENCY: Final = Metric(
    "EndToEndLatency",
    "Seconds",
    "Pipeline",
    _PERCENTILES,
    "latency",
    "pipeline",
    "Time from ``_produced_at`` until the message was committed to the pipeline's output.",
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
    "Duration of one batch: read, transform, and upload by executors. In real-time mode, the upload of one commit.",
)
COMMIT_LATENCY: Final = Metric(
    "CommitLatency",
    "Seconds",
    "Pipeline",
    _PERCENTILES,
    "latency",
    "pipeline",
    "Duration of one commit of a pipeline: upload by the driver, and the log entries.",
)
LAG_SECONDS: Final = Metric(
    "LagSeconds",
    "Seconds",
    "Pipeline",
    ("Maximum",),
    "lag",
    "pipeline",
    "Age of the newest processed message while others waited; 0 when none waited.",
)
DEAD_LETTERS: Final = Metric(
    "DeadLetters",
    "Count",
    "Pipeline",
    ("Sum",),
    "errors",
    "pipeline",
    "Messages that a pipeline could not process and wrote to its dead-letter topic.",
    Alarm(
        "The pipeline reads messages that it cannot process; they are dead letters, with the reason.",
        above=0,
        critical=False,
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
    "1 while the pipeline's job runs, 0 while it should run and does not; every five minutes and at each change.",
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
    "Runs that the controller started after a run had ended by itself.",
    Alarm("The job ends and is restarted again and again.", above=2, minutes=60),
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
        "The job is down and stays down until it is deployed again or reset.", statistic="Maximum", above=0, minutes=15
    ),
)

CANARY_LATENCY: Final = Metric(
    "CanaryLatency",
    "Seconds",
    "Pipeline",
    _PERCENTILES,
    "latency",
    "canary",
    "Time from sending the canary's message until a reader received it from the output: all hops, each minute.",
)
CANARY_MISSING: Final = Metric(
    "CanaryMissing",
    "Count",
    "Pipeline",
    ("Sum",),
    "errors",
    "canary",
    "Canary messages that no reader received within the time-out; 0 for each that one received.",
    Alarm(
        "Messages do not arrive in the output in time, or the canary itself does not run.",
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
    "Steps of maintenance that failed; the log has the reasons.",
    Alarm(
        "Tables are not maintained: opening them gets slower, and storage grows.", above=0, minutes=60, critical=False
    ),
)
BYTES_REMOVED: Final = Metric(
    "BytesRemoved", "Bytes", "Stage", ("Sum",), "cost", "maintenance", "Bytes that maintenance removed from the bucket."
)

GROUP_LAG_MESSAGES: Final = Metric(
    "GroupLagMessages",
    "Count",
    "Group",
    ("Maximum",),
    "lag",
    "lag",
    "Messages of a partition that a consumer group has not committed.",
)
GROUP_LAG_SECONDS: Final = Metric(
    "GroupLagSeconds",
    "Seconds",
    "Group",
    ("Maximum",),
    "lag",
    "lag",
    "Age of the oldest message of a partition that a consumer group has not committed; 0 without one.",
)

GROUP_METRICS: Final = (GROUP_LAG_MESSAGES, GROUP_LAG_SECONDS)
"""The metrics of consumer groups. They are for Prometheus (``brokerless lag --prometheus``), not in CloudWatch."""

METRICS: Final = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric) and value not in GROUP_METRICS
)
"""All metrics in CloudWatch, in the order above."""


@dataclass(frozen=True, slots=True)
class Billed:
    """The numbers that CloudWatch bills for a stage.

    Attributes:
        metrics: one for each metric and value of its dimension; statistics cost nothing.
        alarms: alarms on a metric, with the two parts of each composite.
        composites: alarms made of other alarms.
    """

    metrics: int
    alarms: int
    composites: int


def billed(*, topics: int, pipelines: int, canaries: int) -> Billed:
    """Return what CloudWatch bills for a stage with this number of topics, pipelines and canaries."""
    count = {"Topic": topics, "Pipeline": pipelines, "Stage": 1, "Group": 0}
    alarms = [
        (metric.alarm, canaries if metric.alarm.canary else count[metric.dimension])
        for metric in METRICS
        if metric.alarm is not None
    ]
    return Billed(
        metrics=sum(canaries if metric.emitter == "canary" else count[metric.dimension] for metric in METRICS),
        alarms=sum(number * (1 if alarm.backlog is None else 2) for alarm, number in alarms),
        composites=sum(number for alarm, number in alarms if alarm.backlog is not None),
    )
