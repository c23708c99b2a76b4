"""A pipeline on EMR Serverless: the script of ``glue_jobs/``, with its packages in an unpacked archive.

CloudFormation has no resource for a run; the controller starts it, with the parameters that are made here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aws_cdk as cdk
from aws_cdk import aws_emrserverless as emr
from aws_cdk import aws_iam as iam
from constructs import Construct

from brokerless.aws.controller.desired import DesiredPipeline
from brokerless.aws.controller.services import EmrJob as EmrJobRun
from brokerless.aws.controller.services import JobLocation
from brokerless.cost.bill import emr_serverless as emr_price
from brokerless.spark.session import JIT_OPTIONS
from infra.assets import Asset
from infra.checks import acknowledge_resources
from infra.config import REPOSITORY
from infra.constructs.access import allow, allow_metrics, allow_scratch
from infra.constructs.functions import log_group
from infra.constructs.spark import SPARK_CONF, ManagedJob, config_hash
from infra.constructs.uploads import Upload, file_digest

if TYPE_CHECKING:
    from infra.config import PipelineConfig, StageConfig
    from infra.constructs.functions import Platform
    from infra.constructs.spark import JobPlan

RELEASE: Final = "emr-spark-8.1.0"
"""Spark 4.1.1 like Glue 6.0, with support until 2029-09-07."""

# Below it ``spark.archives`` unpacks, in the working directory of driver and executors.
_ENVIRONMENT: Final = "environment"
_ARCHITECTURES: Final = {"arm64": "ARM64", "x86_64": "X86_64"}


def usd_per_hour(pipeline: PipelineConfig, stage: StageConfig) -> float:
    """Return the list price of the pipeline's driver and executors."""
    cores, memory = _capacity(pipeline)
    return emr_price(cores, memory, arm=stage.runtime.architecture == "arm64").usd_per_hour


class EmrJob(Construct):
    """An application with the capacity for one pipeline, and the parameters of its runs.

    Attributes:
        role: of the run; grants to tables are the stack's.
        managed: what the controller needs to know.
    """

    def __init__(self, scope: Construct, construct_id: str, *, platform: Platform, plan: JobPlan) -> None:
        super().__init__(scope, construct_id)
        stage, pipeline = plan.stage, plan.pipeline
        region, account = cdk.Aws.REGION, cdk.Aws.ACCOUNT_ID
        application = self._application(platform, plan)
        arn = f"arn:aws:emr-serverless:{region}:{account}:/applications/{application.attr_application_id}"
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal(
                "emr-serverless.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": account}}
            ),
            description=f"Of runs of the pipeline {pipeline.name}",
        )
        group = log_group(self, "Log", stage=stage, key=platform.key, name=plan.log_prefix)
        actions = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
        if platform.key:
            actions.append("logs:AssociateKmsKey")
        allow(self.role, actions, [group.log_group_arn])
        groups = f"arn:aws:logs:{region}:{account}:log-group:*"
        allow(self.role, ["logs:DescribeLogGroups"], [groups])
        acknowledge_resources(self.role, [groups], "EMR looks for the run's log group by listing all of them.")
        script_path = REPOSITORY / "glue_jobs" / pipeline.script
        script = Upload(self, "Script", asset=Asset(script_path, file_digest(script_path)))
        packages = Upload(self, "Packages", asset=platform.assets.environment)
        for upload in (script, packages):
            upload.allow_reading(self.role)
        allow_scratch(self.role, platform.storage, f"emr/{pipeline.name}")
        allow_metrics(self.role, [stage.metrics_namespace])
        run = EmrJobRun(
            entry_point=script.url,
            role_arn=self.role.role_arn,
            arguments=tuple(part for pair in plan.arguments.items() for part in pair),
            spark_submit=_submit(plan, packages.url),
            log_group=group.log_group_name,
            log_prefix=pipeline.name,
            log_key_arn=platform.key.key_arn if platform.key else "",
        )
        self.managed = ManagedJob(
            desired=DesiredPipeline(
                pipeline=pipeline.name,
                location=JobLocation("emr-serverless", application.attr_application_id),
                code_hash=f"{script.digest[:16]}{packages.digest[:16]}",
                config_hash=config_hash(plan, RELEASE, stage.emr_python),
                job=run,
                max_failures_per_hour=stage.max_failures_per_hour,
                running=pipeline.running,
            ),
            arn=arn,
            resource=application,
            role=self.role,
        )

    def _application(self, platform: Platform, plan: JobPlan) -> emr.CfnApplication:
        cores, memory = _capacity(plan.pipeline)
        network = platform.network
        return emr.CfnApplication(
            self,
            "Application",
            name=plan.name,
            release_label=RELEASE,
            type="SPARK",
            architecture=_ARCHITECTURES[plan.stage.runtime.architecture],
            # The brake on the bill: twice a run, so that a new one can start while the old one ends.
            maximum_capacity=emr.CfnApplication.MaximumAllowedResourcesProperty(
                cpu=f"{2 * cores} vCPU", memory=f"{2 * memory} GB"
            ),
            auto_start_configuration=emr.CfnApplication.AutoStartConfigurationProperty(enabled=True),
            auto_stop_configuration=emr.CfnApplication.AutoStopConfigurationProperty(
                enabled=True, idle_timeout_minutes=15
            ),
            network_configuration=emr.CfnApplication.NetworkConfigurationProperty(
                subnet_ids=network.subnet_ids, security_group_ids=[network.group.security_group_id]
            )
            if network
            else None,
        )


def _capacity(pipeline: PipelineConfig) -> tuple[int, int]:
    """Return the cores and GB of the driver and all executors."""
    executors = pipeline.workers - 1
    return (
        pipeline.driver[0] + executors * pipeline.executor[0],
        pipeline.driver[1] + executors * pipeline.executor[1],
    )


def _submit(plan: JobPlan, packages: str) -> str:
    pipeline, python = plan.pipeline, plan.stage.emr_python
    conf = {
        **SPARK_CONF,
        "spark.archives": f"{packages}#{_ENVIRONMENT}",
        "spark.emr-serverless.driverEnv.PYTHONPATH": f"./{_ENVIRONMENT}",
        "spark.executorEnv.PYTHONPATH": f"./{_ENVIRONMENT}",
        "spark.emr-serverless.driverEnv.PYSPARK_PYTHON": python,
        "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON": python,
        "spark.executorEnv.PYSPARK_PYTHON": python,
        "spark.emr-serverless.driverEnv.AWS_REGION": cdk.Aws.REGION,
        "spark.executorEnv.AWS_REGION": cdk.Aws.REGION,
        "spark.driver.cores": str(pipeline.driver[0]),
        "spark.driver.memory": _heap(pipeline.driver[1]),
        "spark.executor.cores": str(pipeline.executor[0]),
        "spark.executor.memory": _heap(pipeline.executor[1]),
        "spark.executor.instances": str(pipeline.workers - 1),
        # An executor that comes and goes costs each batch more than it saves.
        "spark.dynamicAllocation.enabled": "false",
    }
    options = " ".join(JIT_OPTIONS)
    settings = [f"--conf {key}={value}" for key, value in conf.items()]
    return " ".join([*settings, f'--conf "spark.driver.extraJavaOptions={options}"'])


def _heap(container_gb: int) -> str:
    """Return the memory of the JVM: Spark adds a tenth, 384 MB at least, for memory outside the heap.

    Python's processes live there, too, hence three quarters.
    """
    return f"{container_gb * 768}m"
