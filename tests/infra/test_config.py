"""A stage's configuration is refused with a reason before anything is synthesised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerless.errors import ConfigError, SchemaError
from infra.config import GeneratorConfig, PipelineConfig, Runtime, StageConfig, TopicConfig
from infra.stages import STAGES, stage_config

TOPIC = TopicConfig("clicks", "n long")
PIPELINE = PipelineConfig("sum", "timezone_etl.py", ("clicks",), "sums", "n long", latency_objective_p99_s=1.0)
STAGE = StageConfig("test", (TOPIC,), (PIPELINE,))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "a/b"}, "is not a valid topic name"),
        ({"name": "x" * 25}, "has 25 characters"),
        ({"partitions": 0}, "has 0 partitions"),
        ({"sources": ("mail",)}, "unknown source 'mail'"),
        ({"sources": ("sqs", "sqs")}, "the source 'sqs' twice"),
    ],
)
def test_a_topic_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        replace(TOPIC, **change)


def test_a_schema_is_refused() -> None:
    with pytest.raises(SchemaError, match="unknown type 'colour'"):
        replace(TOPIC, schema="n colour")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "Sum"}, "cannot be called 'Sum'"),
        ({"script": "missing.py"}, "not in glue_jobs/"),
        ({"inputs": ()}, "no inputs"),
        ({"inputs": ("clicks", "clicks")}, "reads 'clicks' twice"),
        ({"output": "clicks"}, "reads its own output"),
        ({"latency_objective_p99_s": 0}, "must be above zero"),
        ({"latency_objective_p99_s": float("nan")}, "must be above zero"),
        ({"runs_on": "hadoop"}, "unknown runs_on 'hadoop'"),
        ({"worker_type": "G.16X"}, "unknown worker type 'G.16X'"),
        ({"workers": 1}, "at least 2"),
        ({"canary": "sums"}, "which it does not read"),
        ({"arguments": (("--engine", "delta"),)}, "does not commit conditionally"),
    ],
)
def test_a_pipeline_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        replace(PIPELINE, **change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "Prod"}, "cannot be called 'Prod'"),
        ({"name": "a-b"}, "cannot be called 'a-b'"),
        ({"runs_on": "hadoop"}, "unknown runs_on"),
        ({"topics": (TOPIC, TOPIC)}, "the topic 'clicks' twice"),
        ({"topics": ()}, "reads the unknown topic 'clicks'"),
        ({"pipelines": (PIPELINE, replace(PIPELINE, output="other"))}, "the pipeline 'sum' twice"),
        ({"pipelines": (PIPELINE, replace(PIPELINE, name="sum2"))}, "the output 'sums' twice"),
        ({"topics": (TOPIC, TopicConfig("sums", "n long"))}, "one committing writer"),
        ({"topics": (TOPIC, TopicConfig("CLICKS", "n long"))}, "Two tables .* would be 'clicks'"),
        ({"topics": (replace(TOPIC, sources=("msk",)),)}, "has no cluster"),
        ({"pipelines": (replace(PIPELINE, canary="clicks"),)}, "topic 'clicks' lacks the column 'message'"),
        ({"alarm_emails": ("nobody",)}, "which is no address"),
        ({"retention_days": 0}, "retention_days = 0"),
        ({"monthly_budget_usd": -5}, "monthly_budget_usd = -5"),
        ({"max_failures_per_hour": 0}, "max_failures_per_hour = 0"),
        ({"log_retention_days": 8}, "CloudWatch offers"),
    ],
)
def test_a_stage_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        replace(STAGE, **change)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: GeneratorConfig(rate_per_s=0), "cannot send 0"),
        (lambda: GeneratorConfig(duration_s=601), "at most 600 s"),
        (lambda: GeneratorConfig(duration_s=51, enabled=True), "starts each minute"),
        (lambda: Runtime(architecture="riscv"), "Unknown architecture 'riscv'"),
        (lambda: Runtime(python="313"), "Unknown Python '313'"),
        (lambda: stage_config("production"), "Unknown stage 'production'. .* dev, staging, prod"),
    ],
)
def test_other_values_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()


def test_an_output_may_be_another_pipelines_input() -> None:
    second = replace(PIPELINE, name="again", inputs=("sums",), output="again")
    stage = replace(STAGE, pipelines=(PIPELINE, second))
    assert [request.name for request in stage.requests] == ["clicks", "sums", "again"]


def test_tables_of_a_topic_are_those_of_its_partitions() -> None:
    stage = replace(STAGE, topics=(replace(TOPIC, partitions=3),))
    assert stage.tables_of(["clicks"]) == ("clicks", "clicks.1", "clicks.2")
    assert stage.tables_of(["sums"]) == ("sums",)
    assert stage.tables_of(["sums.dead_letters"]) == ("sums.dead_letters",)


def test_stages_are_called_by_their_names() -> None:
    assert {name: stage.name for name, stage in STAGES.items()} == {name: name for name in ("dev", "staging", "prod")}


def test_both_services_are_used_before_production() -> None:
    assert {stage.runs_on for stage in STAGES.values()} == {"glue", "emr-serverless"}
