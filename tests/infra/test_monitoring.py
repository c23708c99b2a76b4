"""What watches a stage: alarms that mean something, a dashboard that shows what is sent, and nothing that is not."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from brokerless import metrics
from brokerless.metrics import END_TO_END_LATENCY, METRICS, Metric, billed
from infra.config import StageConfig, TopicConfig
from infra.constructs.alarms import RUNBOOK, watched
from infra.stages import STAGES
from tests.infra.templates import text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.infra.conftest import Synthesised

REPO = Path(__file__).parents[2]

_PROD = STAGES["prod"]
_ETL = _PROD.pipelines[0]
BUSY = replace(
    _PROD,
    name="busy",
    topics=(*_PROD.topics, TopicConfig("clicks", "page string")),
    pipelines=(
        _ETL,
        replace(_ETL, name="counts", inputs=("clicks",), output="counted", latency_objective_p99_s=30, canary=None),
    ),
    alarm_emails=("ops@example.com", "dev@example.com"),
)
EMPTY = replace(_PROD, name="empty", pipelines=())
STAGES_HERE = {stage.name: stage for stage in (STAGES["dev"], _PROD, BUSY, EMPTY)}

each_stage = pytest.mark.parametrize("name", STAGES_HERE)


@dataclass(frozen=True)
class Monitored:
    """The template of one stage's monitoring."""

    stage: StageConfig
    resources: dict[str, Any]

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [one["Properties"] for one in self.resources.values() if one["Type"] == f"AWS::{kind}"]

    @property
    def alarms(self) -> dict[str, dict[str, Any]]:
        return {alarm["AlarmName"]: alarm for alarm in self.of_type("CloudWatch::Alarm") + self.composites}

    @property
    def composites(self) -> list[dict[str, Any]]:
        return self.of_type("CloudWatch::CompositeAlarm")

    @property
    def dashboard(self) -> dict[str, Any]:
        (dashboard,) = self.of_type("CloudWatch::Dashboard")
        body: dict[str, Any] = json.loads(flat(dashboard["DashboardBody"]))
        return body

    def widgets(self, kind: str = "metric") -> list[dict[str, Any]]:
        return [widget["properties"] for widget in self.dashboard["widgets"] if widget["type"] == kind]

    def graph(self, title: str) -> dict[str, Any]:
        (found,) = [graph for graph in self.widgets() if graph["title"] == title]
        return found

    def topic(self, name: str) -> tuple[str, dict[str, Any]]:
        (found,) = [
            (logical, one["Properties"])
            for logical, one in self.resources.items()
            if one["Type"] == "AWS::SNS::Topic" and one["Properties"]["TopicName"] == f"{self.stage.prefix}-{name}"
        ]
        return found


def flat(value: Any) -> str:
    """Text in which each reference is the logical id that it refers to."""
    return re.sub(r"<(\w+)(\.\w+)?>", r"\1", text(value))


@pytest.fixture(scope="session")
def synthesised(dev: Synthesised, prod: Synthesised, synth: Callable[..., Synthesised]) -> dict[str, Monitored]:
    """The monitoring of all stages, without queues and budgets."""
    apps = {"dev": dev, "prod": prod, "busy": synth(BUSY, rules=False), "empty": synth(EMPTY, rules=False)}
    return {
        name: Monitored(
            STAGES_HERE[name],
            {
                logical: one
                for logical, one in app.templates["monitoring"]["Resources"].items()
                if not logical.startswith(("Queues", "Budget"))
            },
        )
        for name, app in apps.items()
    }


# Alarms


def test_each_topic_and_pipeline_has_its_alarms(synthesised: dict[str, Monitored]) -> None:
    assert set(synthesised["busy"].alarms) == {
        *(f"busy-{topic}-{name}" for topic in ("timezone1", "timezone2", "clicks") for name in TOPIC_ALARMS),
        *(f"busy-{pipeline}-{name}" for pipeline in ("timezone-etl", "counts") for name in PIPELINE_ALARMS),
        *(f"busy-timezone-etl-{name}" for name in CANARY_ALARMS),
        "busy-MaintenanceSkipped",
    }


TOPIC_ALARMS = ("CommitConflicts", "RejectedMessages")
PIPELINE_ALARMS = (
    "EndToEndLatency",
    "EndToEndLatency-p99",
    "LagMessages-growing",
    "DeadLetters",
    "PipelineRunning",
    "Restarts",
    "GaveUp",
)
CANARY_ALARMS = ("PipelineMessages", "CanaryMissing")


def test_alarms_of_the_example_ask_what_they_are_meant_to(synthesised: dict[str, Monitored]) -> None:
    found = {
        name.removeprefix("prod-"): " ".join(
            str(alarm.get(part))
            for part in ("ComparisonOperator", "Threshold", "Period", "TreatMissingData", "EvaluationPeriods")
        )
        + f" {alarm.get('Statistic') or alarm.get('ExtendedStatistic')}"
        for name, alarm in synthesised["prod"].alarms.items()
        if "timezone2" not in name and "AlarmRule" not in alarm and "Metrics" not in alarm
    }
    above, below = "GreaterThanThreshold", "LessThanThreshold"
    assert found == {
        "timezone1-CommitConflicts": f"{above} 600 900 notBreaching 1 Sum",
        "timezone1-RejectedMessages": f"{above} 0 300 notBreaching 1 Sum",
        "timezone-etl-PipelineMessages": f"{below} 1 900 breaching 1 Sum",
        "timezone-etl-EndToEndLatency-p99": f"{above} 2 300 notBreaching 1 p99",
        "timezone-etl-DeadLetters": f"{above} 0 300 notBreaching 1 Sum",
        "timezone-etl-PipelineRunning": f"{below} 1 900 breaching 1 Maximum",
        "timezone-etl-Restarts": f"{above} 2 3600 notBreaching 1 Sum",
        "timezone-etl-GaveUp": f"{above} 0 900 notBreaching 1 Maximum",
        "timezone-etl-CanaryMissing": f"{above} 2 300 breaching 1 Sum",
        "MaintenanceSkipped": f"{above} 0 3600 notBreaching 1 Sum",
    }


@each_stage
def test_alarms_look_where_the_stage_sends(synthesised: dict[str, Monitored], name: str) -> None:
    here = synthesised[name]
    for alarm in here.alarms.values():
        asked = [alarm] if "MetricName" in alarm else [m["MetricStat"]["Metric"] for m in stats(alarm)]
        for one in asked:
            metric = next(metric for metric in METRICS if metric.name == one["MetricName"])
            (dimension,) = one["Dimensions"]
            assert one["Namespace"] == f"Brokerless/{name}"
            assert dimension["Name"] == metric.dimension
            assert dimension["Value"] in watched(here.stage, metric)


def stats(alarm: dict[str, Any]) -> list[dict[str, Any]]:
    return [metric for metric in alarm.get("Metrics", []) if "MetricStat" in metric]


def test_each_pipeline_has_its_own_objective(synthesised: dict[str, Monitored]) -> None:
    alarms = synthesised["busy"].alarms
    assert alarms["busy-timezone-etl-EndToEndLatency-p99"]["Threshold"] == 2
    assert alarms["busy-counts-EndToEndLatency-p99"]["Threshold"] == 30


def test_latency_rings_only_together_with_a_backlog_that_does_not_shrink(synthesised: dict[str, Monitored]) -> None:
    here = synthesised["prod"]
    (composite,) = here.composites
    halves = {
        logical: one["Properties"]["AlarmName"]
        for logical, one in here.resources.items()
        if one["Type"] == "AWS::CloudWatch::Alarm" and logical in flat(composite["AlarmRule"])
    }
    late, stuck = halves
    assert flat(composite["AlarmRule"]) == f'(ALARM("{late}") AND ALARM("{stuck}"))'
    assert list(halves.values()) == ["prod-timezone-etl-EndToEndLatency-p99", "prod-timezone-etl-LagMessages-growing"]


@each_stage
def test_only_halves_of_composites_tell_nobody_and_the_others_the_right_topic(
    synthesised: dict[str, Monitored], name: str
) -> None:
    here = synthesised[name]
    rules = "".join(flat(composite["AlarmRule"]) for composite in here.composites)
    for logical, one in here.resources.items():
        if one["Type"] not in {"AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm"}:
            continue
        alarm = one["Properties"]
        if f'"{logical}"' in rules:
            assert "AlarmActions" not in alarm
            assert "OKActions" not in alarm
            continue
        metric = next(metric for metric in METRICS if metric.name == alarm["AlarmName"].split("-")[-1])
        assert metric.alarm is not None
        topic, _ = here.topic("page" if metric.alarm.critical else "morning")
        assert alarm["AlarmActions"] == alarm["OKActions"] == [{"Ref": topic}]


# The runbook


def sections() -> list[str]:
    return re.findall(r"^## (.+)$", (REPO / RUNBOOK).read_text(), re.MULTILINE)


def test_each_alarm_has_a_section_and_each_section_an_alarm() -> None:
    assert sorted(sections()) == sorted(metric.name for metric in METRICS if metric.alarm)


@each_stage
def test_each_alarm_says_what_it_means_and_leads_to_its_section(synthesised: dict[str, Monitored], name: str) -> None:
    anchors = {section.lower() for section in sections()}
    for alarm in synthesised[name].alarms.values():
        text = alarm["AlarmDescription"]
        path, _, anchor = text.split()[-1].partition("#")
        assert (REPO / path).is_file()
        assert anchor in anchors
        assert len(text.split()) > 10


# Whom they tell


@pytest.mark.parametrize("name", ["page", "morning"])
def test_an_sns_topic_is_encrypted_and_takes_alarms_by_tls(synthesised: dict[str, Monitored], name: str) -> None:
    here = synthesised["prod"]
    logical, topic = here.topic(name)
    assert "KmsMasterKeyId" in topic
    (policy,) = [p for p in here.of_type("SNS::TopicPolicy") if p["Topics"] == [{"Ref": logical}]]
    denied, allowed, *_ = policy["PolicyDocument"]["Statement"]
    assert (denied["Effect"], denied["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})
    assert (allowed["Effect"], allowed["Action"]) == ("Allow", "sns:Publish")
    assert allowed["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    assert allowed["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}


def test_both_topics_send_to_every_address(synthesised: dict[str, Monitored]) -> None:
    here = synthesised["busy"]
    sent = {(one["TopicArn"]["Ref"], one["Protocol"], one["Endpoint"]) for one in here.of_type("SNS::Subscription")}
    topics = [here.topic(name)[0] for name in ("page", "morning")]
    assert sent == {(topic, "email", address) for topic in topics for address in BUSY.alarm_emails}


# The dashboard


def shown(here: Monitored) -> dict[str, set[str]]:
    """Our metrics on the dashboard, with their statistics, those of searches too."""
    found: dict[str, set[str]] = {}
    for graph in here.widgets():
        for line in graph["metrics"]:
            if line[0] == here.stage.metrics_namespace:
                assert len(line) == 5  # one dimension
                found.setdefault(line[1], set()).add(line[-1].get("stat", "Average"))
            elif isinstance(line[0], dict) and here.stage.metrics_namespace in line[0]["expression"]:
                name, statistic = re.findall(r"MetricName=\"(\w+)\"', '(\w+)'", line[0]["expression"])[0]
                found.setdefault(name, set()).add(statistic)
    return found


def test_every_metric_is_shown_with_its_statistics_and_no_other(synthesised: dict[str, Monitored]) -> None:
    assert shown(synthesised["prod"]) == {metric.name: set(metric.statistics) for metric in METRICS}


@each_stage
def test_graphs_show_what_the_stage_has(synthesised: dict[str, Monitored], name: str) -> None:
    here = synthesised[name]
    for graph in here.widgets():
        for line in graph["metrics"]:
            if line[0] == here.stage.metrics_namespace:
                metric = next(metric for metric in METRICS if metric.name == line[1])
                assert line[2] == metric.dimension
                assert line[3] == watched(here.stage, metric)[0]


def test_a_stage_without_pipelines_shows_its_topics(synthesised: dict[str, Monitored]) -> None:
    names = {metric.name for metric in METRICS if metric.dimension != "Pipeline"} | {END_TO_END_LATENCY.name}
    assert set(shown(synthesised["empty"])) == names
    assert [variable["property"] for variable in synthesised["empty"].dashboard["variables"]] == ["Topic"]


def test_the_rows_follow_the_questions(synthesised: dict[str, Monitored]) -> None:
    here = synthesised["prod"]
    titles = [widget["markdown"] for widget in here.widgets("text")]
    assert titles[0].startswith("# brokerless prod\ntimezone1 and timezone2 into timezone_unified (timezone-etl).")
    assert [title.removeprefix("## ").split(":")[0] for title in titles[1:]] == [
        "All pipelines and topics",
        "Latency",
        "Throughput",
        "Lag",
        "Errors",
        "Cost",
        "Platforms",
    ]


def test_nothing_overlaps(synthesised: dict[str, Monitored]) -> None:
    taken: set[tuple[int, int]] = set()
    for widget in synthesised["busy"].dashboard["widgets"]:
        cells = {
            (x, y)
            for x in range(widget["x"], widget["x"] + widget["width"])
            for y in range(widget["y"], widget["y"] + widget["height"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_objective_is_a_line_in_the_graphs_of_latency(synthesised: dict[str, Monitored]) -> None:
    lined = {
        graph["title"]: [(line["value"], line["label"]) for line in graph["annotations"]["horizontal"]]
        for graph in synthesised["busy"].widgets()
        if "annotations" in graph
    }
    lines = [(2, "objective of p99: timezone-etl"), (30, "objective of p99: counts")]
    assert lined == {"EndToEndLatency": lines, "EndToEndLatency, p99 of each pipeline": lines}


def test_pipeline_and_topic_can_be_chosen(synthesised: dict[str, Monitored]) -> None:
    chosen = {
        variable["property"]: (variable["defaultValue"], [one["value"] for one in variable["values"]])
        for variable in synthesised["busy"].dashboard["variables"]
    }
    assert chosen == {
        "Pipeline": ("timezone-etl", ["timezone-etl", "counts"]),
        "Topic": ("timezone1", ["timezone1", "timezone2", "clicks"]),
    }


def test_the_top_shows_every_alarm_that_tells_somebody(synthesised: dict[str, Monitored]) -> None:
    here = synthesised["busy"]
    first = here.dashboard["widgets"][0]
    telling = {logical for logical, one in here.resources.items() if "AlarmActions" in one.get("Properties", {})}
    assert (first["type"], first["y"]) == ("alarm", 0)
    assert set(first["properties"]["alarms"]) == telling


# Metrics and code


class Emissions(ast.NodeVisitor):
    """Which metric constants are handed to something that sends them."""

    SENDING: ClassVar = {"add", "observe", "add_histogram", "add_metric"}

    def __init__(self, constants: set[str]) -> None:
        self.constants = constants
        self.found: set[str] = set()

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr in self.SENDING:
            for argument in node.args:
                for part in ast.walk(argument):
                    name = part.id if isinstance(part, ast.Name) else getattr(part, "attr", "")
                    self.found |= {name} & self.constants
        self.generic_visit(node)


WHERE = {
    "producers": (
        "brokerless/ingest/batches.py",
        "brokerless/ingest/http.py",
        "brokerless/examples/timezone/generator.py",
        "brokerless/producer/producer.py",
    ),
    "pipeline": ("brokerless/spark/",),
    "controller": ("lambdas/stream_controller/",),
    "canary": ("lambdas/canary/",),
    "maintenance": ("lambdas/maintenance/",),
}


@pytest.fixture(scope="module")
def emitted() -> dict[str, set[str]]:
    """The files that send each metric, by the constant's name."""
    constants = {name for name, value in vars(metrics).items() if isinstance(value, Metric)}
    found: dict[str, set[str]] = {name: set() for name in constants}
    for folder in ("brokerless", "lambdas", "glue_jobs"):
        for path in (REPO / folder).rglob("*.py"):
            emissions = Emissions(constants)
            emissions.visit(ast.parse(path.read_text()))
            for name in emissions.found:
                found[name].add(path.relative_to(REPO).as_posix())
    return found


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_sent_by_whom_it_says(emitted: dict[str, set[str]], metric: Metric) -> None:
    constant = next(name for name, value in vars(metrics).items() if value is metric)
    assert emitted[constant], f"nobody sends {metric.name}"
    for file in emitted[constant]:
        assert file.startswith(WHERE[metric.emitter]), f"{file} sends {metric.name} of the {metric.emitter}"


# Whole templates


@each_stage
def test_what_is_billed_is_what_is_deployed(synthesised: dict[str, Monitored], name: str) -> None:
    here = synthesised[name]
    canaries = sum(pipeline.canary is not None for pipeline in here.stage.pipelines)
    count = billed(topics=len(here.stage.topics), pipelines=len(here.stage.pipelines), canaries=canaries)
    assert count.alarms == len(here.of_type("CloudWatch::Alarm"))
    assert count.composites == len(here.composites)
    assert count.metrics == sum(len(watched(here.stage, metric)) for metric in METRICS)
