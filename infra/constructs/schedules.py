"""Functions that a schedule starts: maintenance, the canaries, and the example's generator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from constructs import Construct

from brokerless.aws.environment import CanaryEnvironment, GeneratorEnvironment, MaintenanceEnvironment
from brokerless.examples.timezone.generator import STOP_BEFORE_S
from brokerless.examples.timezone.messages import ZONES
from brokerless.maintenance.maintainer import GARBAGE_EVERY_S, GRACE_S
from infra.constructs.access import allow_appending, allow_maintaining, allow_reading, topic_tables
from infra.constructs.functions import BrokerlessFunction
from infra.constructs.storage import maintenance_role

if TYPE_CHECKING:
    from aws_cdk import aws_lambda as lambda_
    from aws_cdk import aws_sqs as sqs

    from infra.config import PipelineConfig
    from infra.constructs.functions import Platform

_DAY_S: Final = 86400.0

# No run of these is of use to a later one, so a run that failed is not repeated; the next one comes by itself. Each
# function ends before its next start, so that two of it never run at once.
_MAINTENANCE_EVERY: Final = cdk.Duration.minutes(5)
_MAINTENANCE_TIMEOUT: Final = cdk.Duration.seconds(285)
_CANARY_EVERY: Final = cdk.Duration.minutes(1)
_CANARY_TIMEOUT: Final = cdk.Duration.seconds(55)
_CANARY_WAITS_S: Final = 40.0
_GENERATOR_EVERY: Final = cdk.Duration.minutes(1)


class Maintenance(Construct):
    """Maintains all topics: checkpoints, log clean-up, garbage collection."""

    def __init__(self, scope: Construct, construct_id: str, *, platform: Platform) -> None:
        super().__init__(scope, construct_id)
        stage = platform.stage
        environment = MaintenanceEnvironment(
            stage.name,
            stage.metrics_namespace,
            root=platform.storage.root,
            log_retention_s=stage.retention_days * _DAY_S,
            grace_s=GRACE_S,
            sweep_every_s=GARBAGE_EVERY_S,
        )
        maintenance = BrokerlessFunction(
            self,
            "Function",
            platform=platform,
            name="maintenance",
            package="maintenance",
            environment=environment,
            memory_mb=2048,
            timeout=_MAINTENANCE_TIMEOUT,
            concurrency=1,
            retries=0,
            role_name=maintenance_role(stage),
            description="Writes checkpoints and removes what no reader needs any more",
        )
        allow_maintaining(maintenance.role, platform.storage)
        _schedule(self, maintenance.function, _MAINTENANCE_EVERY, platform.failures.queue)


class Canary(Construct):
    """Sends one message a minute through a pipeline, and reads it from the output."""

    def __init__(self, scope: Construct, construct_id: str, *, platform: Platform, pipeline: PipelineConfig) -> None:
        super().__init__(scope, construct_id)
        stage = platform.stage
        environment = CanaryEnvironment(
            stage.name,
            stage.metrics_namespace,
            root=platform.storage.root,
            topic=pipeline.canary or "",
            output=pipeline.output,
            pipeline=pipeline.name,
            timeout_s=_CANARY_WAITS_S,
        )
        canary = BrokerlessFunction(
            self,
            "Function",
            platform=platform,
            name="canary",
            suffix=f"-{pipeline.name}",
            environment=environment,
            memory_mb=512,
            timeout=_CANARY_TIMEOUT,
            concurrency=1,
            retries=0,
            description=f"Measures the pipeline {pipeline.name} from outside",
        )
        allow_appending(canary.role, platform.storage, stage.tables_of((environment.topic,)))
        allow_reading(canary.role, platform.storage, stage.tables_of((pipeline.output, pipeline.dead_letters)))
        _schedule(self, canary.function, _CANARY_EVERY, platform.failures.queue)


class Generator(Construct):
    """Sends the example's messages, each minute or when it is invoked."""

    def __init__(self, scope: Construct, construct_id: str, *, platform: Platform) -> None:
        super().__init__(scope, construct_id)
        stage = platform.stage
        environment = GeneratorEnvironment(
            stage.name,
            stage.metrics_namespace,
            root=platform.storage.root,
            rate_per_s=stage.generator.rate_per_s,
            duration_s=stage.generator.duration_s,
        )
        generator = BrokerlessFunction(
            self,
            "Function",
            platform=platform,
            name="generator",
            environment=environment,
            memory_mb=1024,
            timeout=cdk.Duration.seconds(stage.generator.duration_s + STOP_BEFORE_S),
            concurrency=1,
            retries=0,
            description="Sends the example's messages",
        )
        tables = [table for topic in stage.topics if topic.name in ZONES for table in topic_tables(topic)]
        allow_appending(generator.role, platform.storage, tables)
        if stage.generator.enabled:
            _schedule(self, generator.function, _GENERATOR_EVERY, platform.failures.queue)


def _schedule(scope: Construct, function: lambda_.IFunction, every: cdk.Duration, failures: sqs.IQueue) -> None:
    target = targets.LambdaFunction(function, dead_letter_queue=failures)
    events.Rule(scope, "Schedule", schedule=events.Schedule.rate(every), targets=[target])
