"""The stacks of a stage. They compose constructs, which define the resources, and grant permissions between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aws_cdk as cdk
from constructs import Construct

from infra.constructs import emr_job, glue_job
from infra.constructs.access import allow_appending, allow_reading
from infra.constructs.alarms import Alarms, QueueAlarms
from infra.constructs.budget import StageBudget
from infra.constructs.catalog import Catalog
from infra.constructs.controller import StreamController
from infra.constructs.dashboard import Dashboard
from infra.constructs.functions import Failures, Platform, log_group
from infra.constructs.ingest import TopicIngest, event_bus
from infra.constructs.network import Network
from infra.constructs.schedules import Canary, Generator, Maintenance
from infra.constructs.spark import JobPlan
from infra.constructs.storage import Storage
from infra.constructs.topics import Topics

if TYPE_CHECKING:
    from infra.assets import Assets
    from infra.config import PipelineConfig, StageConfig


class DataStack(cdk.Stack):
    """The stack that outlives the others: buckets, key, catalog.

    Attributes:
        storage: buckets and key.
    """

    def __init__(self, scope: Construct, construct_id: str, *, stage: StageConfig) -> None:
        super().__init__(
            scope,
            construct_id,
            stack_name=f"{stage.prefix}-data",
            description=f"brokerless, stage {stage.name}: where messages lie",
            termination_protection=stage.removal == "retain",
        )
        self.storage = Storage(self, "Storage", stage=stage)
        Catalog(self, "Catalog", stage=stage, storage=self.storage)


class StreamStack(cdk.Stack):
    """The stack of topics, functions, jobs and their controller. It can be destroyed and created again."""

    def __init__(
        self, scope: Construct, construct_id: str, *, stage: StageConfig, assets: Assets, data: DataStack
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            stack_name=f"{stage.prefix}-streams",
            description=f"brokerless, stage {stage.name}: topics, functions and jobs",
        )
        # Names of buckets are known without asking the other stack, so that it must be declared.
        self.add_stack_dependency(data)
        storage = data.storage
        failures = Failures(self, "Failures", stage=stage, key=storage.key)
        network = self._network(stage, storage)
        platform = Platform(stage=stage, assets=assets, storage=storage, failures=failures, network=network)
        topics = Topics(self, "Topics", platform=platform)
        bus = event_bus(self, stage, storage.key)
        writers = [
            *(
                TopicIngest(self, f"Ingest-{topic.name}", topic=topic, bus=bus, platform=platform)
                for topic in stage.ingested
            ),
            *(
                Canary(self, f"Canary-{one.name}", pipeline=one, platform=platform)
                for one in stage.pipelines
                if one.watched
            ),
        ]
        if stage.has_example:
            writers.append(Generator(self, "Generator", platform=platform))
        Maintenance(self, "Maintenance", platform=platform)
        jobs = [self._job(platform, pipeline) for pipeline in stage.pipelines]
        controller = StreamController(self, "Controller", jobs=[job.managed for job in jobs], platform=platform)
        for one in (*writers, *controller.streams):
            one.node.add_dependency(topics.resource)

    def _network(self, stage: StageConfig, storage: Storage) -> Network | None:
        if stage.vpc is None:
            return None
        flow = log_group(self, "FlowLog", stage=stage, key=storage.key, name=f"{stage.log_prefix}/network")
        return Network(self, "Network", config=stage.vpc, flow_log=flow)

    def _job(self, platform: Platform, pipeline: PipelineConfig) -> glue_job.GlueJob | emr_job.EmrJob:
        stage, storage = platform.stage, platform.storage
        name = f"Job-{pipeline.name}"
        job: glue_job.GlueJob | emr_job.EmrJob
        if stage.service_of(pipeline) == "glue":
            plan = JobPlan(stage, pipeline, storage.root, glue_job.usd_per_hour(pipeline))
            job = glue_job.GlueJob(self, name, platform=platform, plan=plan)
        else:
            plan = JobPlan(stage, pipeline, storage.root, emr_job.usd_per_hour(pipeline, stage))
            job = emr_job.EmrJob(self, name, platform=platform, plan=plan)
        cdk.Tags.of(job).add("pipeline", pipeline.name)
        allow_reading(job.role, storage, stage.tables_of(pipeline.inputs))
        allow_appending(job.role, storage, stage.tables_of((pipeline.output, pipeline.dead_letters)))
        return job


class MonitoringStack(cdk.Stack):
    """The stack of dashboard, alarms and budget. It uses metrics by name, so it can change without the others."""

    def __init__(self, scope: Construct, construct_id: str, *, stage: StageConfig, data: DataStack) -> None:
        super().__init__(
            scope,
            construct_id,
            stack_name=f"{stage.prefix}-monitoring",
            description=f"brokerless, stage {stage.name}: dashboard, alarms and budget",
        )
        monitoring = Construct(self, "Monitoring")
        alarms = Alarms(monitoring, "Alarms", stage=stage, encryption_key=data.storage.key)
        Dashboard(monitoring, "Dashboard", stage=stage, alarms=alarms.notified)
        QueueAlarms(self, "Queues", stage=stage, notified=alarms.warning)
        if stage.monthly_budget_usd is not None:
            StageBudget(self, "Budget", stage=stage, usd=stage.monthly_budget_usd, notified=alarms.warning)
