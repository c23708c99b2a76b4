"""The topics of a stage, which are created before anything writes to them and never deleted by a deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aws_cdk as cdk
from constructs import Construct

from brokerless.aws.environment import TopicsEnvironment
from infra.constructs.access import allow_appending
from infra.constructs.functions import BrokerlessFunction
from infra.constructs.providers import make_provider

if TYPE_CHECKING:
    from infra.constructs.functions import Platform


class Topics(Construct):
    """Creates every topic of the stage.

    Attributes:
        resource: what producers and jobs have to wait for.
    """

    def __init__(self, scope: Construct, construct_id: str, *, platform: Platform) -> None:
        super().__init__(scope, construct_id)
        stage = platform.stage
        creator = BrokerlessFunction(
            self,
            "Creator",
            platform=platform,
            name="topics",
            environment=TopicsEnvironment(stage.name, stage.metrics_namespace, root=platform.storage.root),
            memory_mb=512,
            timeout=cdk.Duration.minutes(10),
            description="Creates topics at a deployment",
        )
        allow_appending(
            creator.role, platform.storage, [table for request in stage.requests for table in request.tables]
        )
        provider = make_provider(self, "Provider", platform=platform, function=creator.function, polls=False)
        self.resource = cdk.CustomResource(
            self,
            "Topics",
            service_token=provider.service_token,
            resource_type="Custom::BrokerlessTopics",
            properties={"Topics": [request.to_properties() for request in stage.requests]},
        )
        self.resource.node.add_dependency(creator.role)
