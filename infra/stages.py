"""The stages that are deployed. Edit this file to add a topic, a pipeline or a stage: all resources follow from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from brokerless.errors import ConfigError
from brokerless.examples.timezone.messages import INPUT_SCHEMA, NEW_YORK, PARIS, UNIFIED, UNIFIED_SCHEMA
from infra.config import PipelineConfig, StageConfig, TopicConfig

_TOPICS: Final = (
    TopicConfig(NEW_YORK, INPUT_SCHEMA, sources=("url", "sqs")),
    TopicConfig(PARIS, INPUT_SCHEMA, sources=("url", "sqs")),
)

_TIMEZONE_ETL: Final = PipelineConfig(
    name="timezone-etl",
    script="timezone_etl.py",
    inputs=(NEW_YORK, PARIS),
    output=UNIFIED,
    output_schema=UNIFIED_SCHEMA,
    latency_objective_p99_s=2.0,
    canary=NEW_YORK,
)

_DEV: Final = StageConfig(
    name="dev",
    topics=_TOPICS,
    pipelines=(_TIMEZONE_ETL,),
    retention_days=1,
    kms=False,
    monthly_budget_usd=200,
    removal="destroy",
    log_retention_days=7,
)

STAGES: Final = {
    "dev": _DEV,
    "staging": replace(_DEV, name="staging", runs_on="emr-serverless", kms=True, monthly_budget_usd=400),
    "prod": replace(
        _DEV,
        name="prod",
        pipelines=(replace(_TIMEZONE_ETL, workers=2, worker_type="G.1X"),),
        retention_days=7,
        kms=True,
        monthly_budget_usd=1000,
        removal="retain",
        log_retention_days=90,
        ingest_concurrency=20,
    ),
}
"""``staging`` runs on EMR Serverless so that both services are tested before ``prod`` is changed."""


def stage_config(name: str) -> StageConfig:
    """Return the stage with this name.

    Raises:
        ConfigError: there is no such stage.
    """
    try:
        return STAGES[name]
    except KeyError:
        raise ConfigError(f"Unknown stage {name!r}. infra/stages.py has: {', '.join(STAGES)}.") from None
