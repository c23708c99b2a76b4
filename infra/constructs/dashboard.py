"""The dashboard of a stage: alarms on top, then rows of graphs made from the metrics' definitions, each a question.

Graphs show the pipeline and the topic that are chosen above them; only the overview shows all at once. It finds them by
a search, which the choice does not reach.

Of the platforms' own metrics there are errors and throttles of functions, which stop messages, and memory and load of
Glue's drivers, which say why a job slows down. EMR Serverless counts workers by an application's generated id, which
says nothing that the latency does not say first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from brokerless.metrics import END_TO_END_LATENCY, METRICS, PRODUCED_MESSAGES
from infra.constructs.alarms import RUNBOOK, statistic_of, watched

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from brokerless.metrics import Dimension, Metric, Row
    from infra.config import StageConfig

_QUESTIONS: Final[dict[Row, str]] = {
    "latency": "Latency: how long does a message take, hop by hop?",
    "throughput": "Throughput: how many messages come and go each minute?",
    "lag": "Lag: how many messages wait, and how old are they?",
    "errors": "Errors: what went wrong?",
    "cost": "Cost: what does it take?",
}
"""The rows, from top to bottom."""

_WIDTH: Final = 24
_PER_LINE: Final = 3
_ALARMS_PER_WIDGET: Final = 100  # CloudWatch's limit
_GLUE_DRIVER: Final = {
    "glue.driver.jvm.heap.usage": "share of the heap in use",
    "glue.driver.system.cpuSystemLoad": "share of the processors in use",
}


class Dashboard(Construct):
    """The dashboard ``brokerless-<stage>``.

    Args:
        stage: the configuration.
        alarms: what the top shows.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, stage: StageConfig, alarms: Sequence[cloudwatch.AlarmBase]
    ) -> None:
        super().__init__(scope, construct_id)
        self._stage = stage
        self._minute = cdk.Duration.minutes(1)
        rows: list[list[cloudwatch.IWidget]] = [
            *_statuses(alarms),
            [_text(_header(stage), height=2)],
            *_titled("All pipelines and topics", self._overview()),
        ]
        for row, question in _QUESTIONS.items():
            rows += _titled(question, [self._graph(metric, of) for metric, of in self._chosen_first(row)])
        rows += _titled("Platforms: functions and jobs", self._platforms())
        cloudwatch.Dashboard(
            self,
            "Dashboard",
            dashboard_name=stage.prefix,
            default_interval=cdk.Duration.hours(3),
            variables=[*self._variables()],
            widgets=rows,
        )

    def _variables(self) -> Iterable[cloudwatch.DashboardVariable]:
        names: dict[Dimension, list[str]] = {
            "Pipeline": [pipeline.name for pipeline in self._stage.pipelines],
            "Topic": [topic.name for topic in self._stage.topics],
        }
        for dimension, values in names.items():
            if values:
                yield cloudwatch.DashboardVariable(
                    id=dimension.lower(),
                    type=cloudwatch.VariableType.PROPERTY,
                    value=dimension,
                    label=dimension,
                    input_type=cloudwatch.VariableInputType.SELECT,
                    values=cloudwatch.Values.from_values(*(cloudwatch.VariableValue(value=name) for name in values)),
                    default_value=cloudwatch.DefaultValue.value(values[0]),
                    visible=True,
                )

    def _overview(self) -> list[cloudwatch.IWidget]:
        return [
            self._searched(
                f"{END_TO_END_LATENCY.name}, p99 of each pipeline",
                [self._all(END_TO_END_LATENCY, "p99")],
                unit=END_TO_END_LATENCY.unit,
                annotations=self._objectives(),
            ),
            self._searched(
                f"{PRODUCED_MESSAGES.name} of each topic",
                [self._all(PRODUCED_MESSAGES, "Sum")],
                unit="messages a minute",
            ),
        ]

    def _all(self, metric: Metric, statistic: str) -> cloudwatch.SearchExpression:
        schema = f"{{{self._stage.metrics_namespace},{metric.dimension}}}"
        return self._search(f'{schema} MetricName="{metric.name}"', statistic, f"${{PROP('Dim.{metric.dimension}')}}")

    def _search(self, what: str, statistic: str, label: str) -> cloudwatch.SearchExpression:
        return cloudwatch.SearchExpression(
            expression=f"SEARCH('{what}', '{statistic}')", label=label, period=self._minute
        )

    def _searched(
        self,
        title: str,
        searches: Sequence[cloudwatch.IMetric],
        *,
        unit: str,
        annotations: Sequence[cloudwatch.HorizontalAnnotation] = (),
    ) -> cloudwatch.GraphWidget:
        return cloudwatch.GraphWidget(
            title=title,
            left=[*searches],
            left_y_axis=cloudwatch.YAxisProps(label=unit, min=0, show_units=False),
            left_annotations=[*annotations],
            width=_WIDTH // 2,
            height=6,
        )

    def _chosen_first(self, row: Row) -> Iterable[tuple[Metric, str]]:
        for metric in METRICS:
            if metric.row == row:
                yield from ((metric, of) for of in watched(self._stage, metric)[:1])

    def _graph(self, metric: Metric, of: str) -> cloudwatch.IWidget:
        return cloudwatch.GraphWidget(
            title=metric.name,
            left=[
                statistic_of(self._stage, metric, of, statistic=statistic, period=self._minute, label=statistic)
                for statistic in metric.statistics
            ],
            left_y_axis=cloudwatch.YAxisProps(label=metric.unit, min=0, show_units=False),
            left_annotations=self._objectives() if metric is END_TO_END_LATENCY else [],
            width=_WIDTH // _PER_LINE,
            height=6,
        )

    def _objectives(self) -> list[cloudwatch.HorizontalAnnotation]:
        # By value, each with the pipelines that have it: the graph does not change its lines with the choice.
        pipelines: dict[float, list[str]] = {}
        for pipeline in self._stage.pipelines:
            pipelines.setdefault(pipeline.latency_objective_p99_s, []).append(pipeline.name)
        return [
            cloudwatch.HorizontalAnnotation(
                value=objective, label=f"objective of p99: {', '.join(names)}", color=cloudwatch.Color.RED
            )
            for objective, names in pipelines.items()
        ]

    def _platforms(self) -> list[cloudwatch.IWidget]:
        stage = self._stage
        of_functions = " ".join(stage.prefix.split("-"))  # a search knows a name's parts
        functions = [
            self._search(
                f'{{AWS/Lambda,FunctionName}} MetricName="{name}" {of_functions}', "Sum", f"{name}: ${{LABEL}}"
            )
            for name in ("Errors", "Throttles")
        ]
        widgets: list[cloudwatch.IWidget] = [
            self._searched("Functions: errors and throttles", functions, unit="Count"),
        ]
        jobs = [pipeline for pipeline in stage.pipelines if stage.service_of(pipeline) == "glue"]
        if jobs:
            drivers = [
                cloudwatch.Metric(
                    namespace="Glue",
                    metric_name=name,
                    dimensions_map={"JobName": f"{stage.prefix}-{job.name}", "JobRunId": "ALL", "Type": "gauge"},
                    statistic="Maximum",
                    period=self._minute,
                    label=f"{job.name}: {meaning}",
                )
                for job in jobs
                for name, meaning in _GLUE_DRIVER.items()
            ]
            widgets.append(self._searched("Glue: drivers", drivers, unit="share of 1"))
        return widgets


def _statuses(alarms: Sequence[cloudwatch.AlarmBase]) -> list[list[cloudwatch.IWidget]]:
    parts = [alarms[start : start + _ALARMS_PER_WIDGET] for start in range(0, len(alarms), _ALARMS_PER_WIDGET)]
    return [[cloudwatch.AlarmStatusWidget(alarms=[*part], title="Alarms", width=_WIDTH, height=3)] for part in parts]


def _titled(title: str, widgets: Sequence[cloudwatch.IWidget]) -> list[list[cloudwatch.IWidget]]:
    lines = [list(widgets[start : start + _PER_LINE]) for start in range(0, len(widgets), _PER_LINE)]
    return [[_text(f"## {title}", height=1)], *lines]


def _text(markdown: str, *, height: int) -> cloudwatch.TextWidget:
    return cloudwatch.TextWidget(
        markdown=markdown, width=_WIDTH, height=height, background=cloudwatch.TextWidgetBackground.TRANSPARENT
    )


def _header(stage: StageConfig) -> str:
    pipelines = (
        "; ".join(f"{' and '.join(p.inputs)} into {p.output} ({p.name})" for p in stage.pipelines) or "no pipelines"
    )
    return (
        f"# brokerless {stage.name}\n"
        f"{pipelines}. What each metric is: `docs/metrics.md`. What to do about an alarm: `{RUNBOOK}`."
    )
