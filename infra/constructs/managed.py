"""What the stream controller needs of a job, whatever engine runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aws_cdk import CfnResource
    from aws_cdk import aws_iam as iam

    from brokerless.aws.controller.records import Desired


@dataclass(frozen=True, slots=True)
class ManagedJob:
    """A job that shall always run.

    Attributes:
        desired: what is wanted of it; the properties of its custom resource.
        arn: of the Glue job or the EMR application.
        resource: what must be up to date before a run is started.
        role: of the runs.
    """

    desired: Desired
    arn: str
    resource: CfnResource
    role: iam.Role
