"""The arguments and Spark settings of a pipeline's job, for Glue and EMR Serverless, from the library.

The settings are those of a local session (``brokerless.spark.conf``), because a session that is given by the platform
can no longer be changed by the script. The JVM's options are EMR's only: they hold spaces, and Glue's single ``--conf``
has no documented way to quote.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import aws_cdk as cdk

from brokerless.spark.conf import SESSION_CONF, STREAM_CONF

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aws_cdk import CfnResource
    from aws_cdk import aws_iam as iam

    from brokerless.aws.controller.desired import DesiredPipeline
    from infra.config import PipelineConfig, StageConfig

STATE_DIR: Final = "/tmp/brokerless"  # noqa: S108  # scratch of the job's own container, as every checkpoint here is
SPARK_CONF: Final = {**SESSION_CONF, **STREAM_CONF}


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A pipeline's job without its service: pass it to ``GlueJob`` or ``EmrJob``.

    Attributes:
        stage: the configuration.
        pipeline: which one.
        root: where topics are.
        usd_per_hour: the list price of its workers, from which the job computes what a message costs.
    """

    stage: StageConfig
    pipeline: PipelineConfig
    root: str
    usd_per_hour: float

    @property
    def name(self) -> str:
        """The name of the job: ``brokerless-dev-timezone-etl``."""
        return f"{self.stage.prefix}-{self.pipeline.name}"

    @property
    def log_prefix(self) -> str:
        """The prefix of its log groups."""
        return f"{self.stage.log_prefix}/jobs/{self.pipeline.name}"

    @property
    def arguments(self) -> dict[str, str]:
        """The script's arguments; a pipeline's own arguments override the others."""
        pipeline = self.pipeline
        return {
            "--root": self.root,
            "--profile": "aws",
            "--region": cdk.Aws.REGION,
            "--inputs": ",".join(pipeline.inputs),
            "--output": pipeline.output,
            "--name": pipeline.name,
            "--metrics-namespace": self.stage.metrics_namespace,
            "--state-dir": STATE_DIR,
            "--usd-per-hour": f"{self.usd_per_hour:.4f}",
            **dict(pipeline.arguments),
        }


@dataclass(frozen=True, slots=True)
class ManagedJob:
    """A job that the controller runs.

    Attributes:
        desired: the properties of its custom resource.
        arn: the ARN of the Glue job or the EMR application.
        resource: the resource that must be up to date before a run is started.
        role: the role of the runs.
    """

    desired: DesiredPipeline
    arn: str
    resource: CfnResource
    role: iam.Role


def chained(conf: Mapping[str, str]) -> str:
    """Return settings as the value of one ``--conf``, because Glue accepts an argument only once.

    Raises:
        ValueError: a value holds a space, which would end it.
    """
    for key, value in conf.items():
        if " " in value:
            raise ValueError(
                f"The setting {key}={value!r} holds a space, and Glue's --conf has no quotes; leave it out."
            )
    return " --conf ".join(f"{key}={value}" for key, value in conf.items())


def config_hash(plan: JobPlan, *further: object) -> str:
    """Return a hash that changes when a run must be replaced for another reason than its code.

    It is made from the configuration and not from the arguments, which hold the CDK's placeholders.
    """
    pipeline = plan.pipeline
    named = (pipeline.name, pipeline.inputs, pipeline.output, pipeline.arguments, plan.stage.metrics_namespace)
    sized = (pipeline.workers, pipeline.worker_type, pipeline.driver, pipeline.executor, plan.usd_per_hour)
    known = [named, sized, SPARK_CONF, plan.stage.kms, plan.stage.vpc is None, *further]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]
