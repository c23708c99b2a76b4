"""The values of a job that the stream controller needs, on Glue or EMR Serverless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aws_cdk import CfnResource
    from aws_cdk import aws_iam as iam

    from brokerless.aws.controller.desired import DesiredPipeline


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
