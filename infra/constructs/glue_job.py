"""A pipeline on AWS Glue 6.0: the script of ``glue_jobs/``, with the library installed from a zip of wheels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aws_cdk as cdk
from aws_cdk import aws_glue as glue
from aws_cdk import aws_iam as iam
from constructs import Construct

from brokerless.aws.controller.desired import DesiredPipeline
from brokerless.aws.controller.services import JobLocation
from brokerless.cost.bill import glue as glue_price
from infra.assets import Asset
from infra.checks import acknowledge, acknowledge_resources
from infra.config import REPOSITORY
from infra.constructs.access import allow, allow_metrics, allow_scratch
from infra.constructs.functions import log_group
from infra.constructs.spark import SPARK_CONF, ManagedJob, chained, config_hash
from infra.constructs.uploads import Upload, file_digest

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms

    from infra.config import PipelineConfig
    from infra.constructs.functions import Platform
    from infra.constructs.network import Network
    from infra.constructs.spark import JobPlan

GLUE_VERSION: Final = "6.0"
"""The version, because the service has another default: Spark 4.1.1, Python 3.13, Java 17."""

_WINDOW: Final = "Sun:3"


def usd_per_hour(pipeline: PipelineConfig) -> float:
    """Return the list price of the pipeline's workers."""
    return glue_price(pipeline.worker_type, pipeline.workers, GLUE_VERSION).usd_per_hour


class GlueJob(Construct):
    """A streaming job with its own role, log groups and security configuration.

    Neither Glue nor the job restarts a run that failed: the controller does, and counts.

    Attributes:
        role: of the job; grants to tables are the stack's.
        managed: what the controller needs to know.
    """

    def __init__(self, scope: Construct, construct_id: str, *, platform: Platform, plan: JobPlan) -> None:
        super().__init__(scope, construct_id)
        stage, pipeline = plan.stage, plan.pipeline
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal(
                "glue.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": cdk.Aws.ACCOUNT_ID}}
            ),
            description=f"Of the Glue job {plan.name}",
        )
        security = self._security(plan, platform.key)
        self._logs(plan, platform, encrypted=security is not None)
        script_path = REPOSITORY / "glue_jobs" / pipeline.script
        script = Upload(self, "Script", asset=Asset(script_path, file_digest(script_path)))
        wheels = Upload(self, "Wheels", asset=platform.assets.gluewheels)
        for upload in (script, wheels):
            upload.allow_reading(self.role)
        allow_scratch(self.role, platform.storage, f"glue/{pipeline.name}")
        # Glue itself sends what it knows of the job to its own namespace, by the job's role.
        allow_metrics(self.role, [stage.metrics_namespace, "Glue"])
        job = glue.CfnJob(
            self,
            "Job",
            name=plan.name,
            description=f"Pipeline {pipeline.name}: {', '.join(pipeline.inputs)} into {pipeline.output}",
            role=self.role.role_arn,
            glue_version=GLUE_VERSION,
            command=glue.CfnJob.JobCommandProperty(
                name="gluestreaming", python_version="3", script_location=script.url
            ),
            worker_type=pipeline.worker_type,
            number_of_workers=pipeline.workers,
            # Two runs at once would fence each other. Glue has no token that makes starting idempotent; this does.
            execution_property=glue.CfnJob.ExecutionPropertyProperty(max_concurrent_runs=1),
            max_retries=0,
            job_run_queuing_enabled=False,
            maintenance_window=_WINDOW,
            security_configuration=security.ref if security else None,
            connections=self._connections(platform.network, plan),
            default_arguments={
                "--additional-python-modules": wheels.url,
                "--python-modules-installer-option": "--no-index",
                "--conf": chained(SPARK_CONF),
                "--custom-logGroup-prefix": plan.log_prefix,
                "--enable-metrics": "true",
                "--enable-observability-metrics": "true",
                "--job-language": "python",
                "--TempDir": f"{platform.storage.scratch_url}/glue/{pipeline.name}/",
                **plan.arguments,
            },
        )
        job.node.add_dependency(self.role)
        self.managed = ManagedJob(
            desired=DesiredPipeline(
                pipeline=pipeline.name,
                location=JobLocation("glue", plan.name),
                code_hash=f"{script.digest[:16]}{wheels.digest[:16]}",
                config_hash=config_hash(plan, GLUE_VERSION),
                max_failures_per_hour=stage.max_failures_per_hour,
                running=pipeline.running,
            ),
            arn=f"arn:aws:glue:{cdk.Aws.REGION}:{cdk.Aws.ACCOUNT_ID}:job/{plan.name}",
            resource=job,
            role=self.role,
        )

    def _security(self, plan: JobPlan, key: kms.IKey | None) -> glue.CfnSecurityConfiguration | None:
        if key is None:
            for rule in ("AwsSolutions-GL1", "AwsSolutions-GL3"):
                acknowledge(self, rule, f"Stage {plan.stage.name} has no key of its own; AWS's keys encrypt its logs.")
            return None
        configuration = glue.CfnSecurityConfiguration(
            self,
            "Security",
            name=plan.name,
            encryption_configuration=glue.CfnSecurityConfiguration.EncryptionConfigurationProperty(
                cloud_watch_encryption=glue.CfnSecurityConfiguration.CloudWatchEncryptionProperty(
                    cloud_watch_encryption_mode="SSE-KMS", kms_key_arn=key.key_arn
                ),
                job_bookmarks_encryption=glue.CfnSecurityConfiguration.JobBookmarksEncryptionProperty(
                    job_bookmarks_encryption_mode="CSE-KMS", kms_key_arn=key.key_arn
                ),
                s3_encryptions=[
                    glue.CfnSecurityConfiguration.S3EncryptionProperty(
                        s3_encryption_mode="SSE-KMS", kms_key_arn=key.key_arn
                    )
                ],
            ),
        )
        allow(self.role, ["glue:GetSecurityConfiguration"], ["*"])
        acknowledge_resources(self.role, ["*"], "GetSecurityConfiguration knows no resources, and only reads.")
        return configuration

    def _logs(self, plan: JobPlan, platform: Platform, *, encrypted: bool) -> None:
        # Glue makes these names up from the prefix, and makes the groups if they are missing, without retention or key.
        prefix = f"{plan.log_prefix}/{plan.name}-role/{self.role.role_name}" if encrypted else plan.log_prefix
        for stream in ("error", "output"):
            group = log_group(
                self, f"Log{stream.title()}", stage=plan.stage, key=platform.key, name=f"{prefix}/{stream}"
            )
            actions = ["logs:CreateLogStream", "logs:PutLogEvents"]
            if encrypted:
                # Glue associates the key again, and logs nothing at all if it may not.
                actions.append("logs:AssociateKmsKey")
            allow(self.role, actions, [group.log_group_arn])

    def _connections(self, network: Network | None, plan: JobPlan) -> glue.CfnJob.ConnectionsListProperty | None:
        if network is None:
            return None
        connection = glue.CfnConnection(
            self,
            "Connection",
            catalog_id=cdk.Aws.ACCOUNT_ID,
            connection_input=glue.CfnConnection.ConnectionInputProperty(
                name=f"{plan.name}-network",
                connection_type="NETWORK",
                physical_connection_requirements=glue.CfnConnection.PhysicalConnectionRequirementsProperty(
                    security_group_id_list=[network.group.security_group_id], subnet_id=network.subnet_ids[0]
                ),
            ),
        )
        network.allow_interfaces(self.role)
        here = f"arn:aws:glue:{cdk.Aws.REGION}:{cdk.Aws.ACCOUNT_ID}"
        allow(self.role, ["glue:GetConnection"], [f"{here}:catalog", f"{here}:connection/{connection.ref}"])
        return glue.CfnJob.ConnectionsListProperty(connections=[connection.ref])
