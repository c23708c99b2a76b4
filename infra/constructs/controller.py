"""The stream controller: a function that starts each pipeline at deployment and restarts it when its run ends.

The function has three callers: CloudFormation (by a Provider, which polls until the pipeline runs), the events of Glue
and EMR Serverless, and a schedule, because events may be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from constructs import Construct

from brokerless.aws.environment import ControllerEnvironment
from infra.checks import acknowledge_resources
from infra.constructs.access import allow, allow_state
from infra.constructs.functions import BrokerlessFunction
from infra.constructs.providers import make_provider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aws_cdk import aws_sqs as sqs
    from aws_cdk import custom_resources

    from infra.constructs.functions import Platform
    from infra.constructs.spark import ManagedJob

RECONCILE: Final = cdk.Duration.minutes(5)

# The end of a run, however it came: the controller looks for itself what happened.
_GLUE_ENDS: Final = ["FAILED", "TIMEOUT", "STOPPED", "SUCCEEDED", "ERROR", "EXPIRED"]
_EMR_ENDS: Final = ["FAILED", "CANCELLED", "SUCCESS"]


class StreamController(Construct):
    """Keeps jobs running.

    Attributes:
        function: the controller.
        streams: one custom resource a pipeline; it is done when the pipeline runs.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        platform: Platform,
        jobs: Sequence[ManagedJob],
    ) -> None:
        super().__init__(scope, construct_id)
        stage = platform.stage
        environment = ControllerEnvironment(stage.name, stage.metrics_namespace, state_prefix=platform.storage.state)
        controller = BrokerlessFunction(
            self,
            "Function",
            platform=platform,
            name="stream_controller",
            environment=environment,
            memory_mb=512,
            timeout=cdk.Duration.minutes(1),
            description="Starts pipelines at deployments, and keeps them running",
        )
        allow_state(controller.role, platform.storage)
        self.function, self._role = controller.function, controller.role
        glue = [job for job in jobs if job.desired.location.runs_on == "glue"]
        emr = [job for job in jobs if job.desired.location.runs_on == "emr-serverless"]
        self._allow(glue, emr)
        self._subscribe(glue, emr, failures=platform.failures.queue)
        provider = make_provider(self, "Provider", platform=platform, function=self.function, polls=True)
        self.streams = [self._stream(provider, job) for job in jobs]

    def _stream(self, provider: custom_resources.Provider, job: ManagedJob) -> cdk.CustomResource:
        stream = cdk.CustomResource(
            self,
            f"Stream-{job.desired.pipeline}",
            service_token=provider.service_token,
            resource_type="Custom::BrokerlessStream",
            properties=job.desired.to_properties(),
        )
        # A run may be started when all that it needs is there, and is to be stopped before any of it goes.
        stream.node.add_dependency(job.resource, job.role, self._role)
        return stream

    def _subscribe(self, glue: Sequence[ManagedJob], emr: Sequence[ManagedJob], *, failures: sqs.IQueue) -> None:
        target = targets.LambdaFunction(self.function, dead_letter_queue=failures)
        if glue:
            events.Rule(
                self,
                "GlueEnds",
                description="A run of a pipeline on Glue has ended",
                event_pattern=events.EventPattern(
                    source=["aws.glue"],
                    detail_type=["Glue Job State Change"],
                    detail={"jobName": [job.desired.location.name for job in glue], "state": _GLUE_ENDS},
                ),
                targets=[target],
            )
        if emr:
            events.Rule(
                self,
                "EmrEnds",
                description="A run of a pipeline on EMR Serverless has ended",
                event_pattern=events.EventPattern(
                    source=["aws.emr-serverless"],
                    detail_type=["EMR Serverless Job Run State Change"],
                    detail={"applicationId": [job.desired.location.name for job in emr], "state": _EMR_ENDS},
                ),
                targets=[target],
            )
        events.Rule(
            self,
            "Reconcile",
            description="Events are best effort: look whether all pipelines run",
            schedule=events.Schedule.rate(RECONCILE),
            targets=[target],
        )

    def _allow(self, glue: Sequence[ManagedJob], emr: Sequence[ManagedJob]) -> None:
        if glue:
            allow(
                self._role, ["glue:BatchStopJobRun", "glue:GetJobRuns", "glue:StartJobRun"], [job.arn for job in glue]
            )
        if emr:
            allow(
                self._role,
                [
                    "emr-serverless:GetApplication",
                    "emr-serverless:ListJobRuns",
                    "emr-serverless:StartJobRun",
                ],
                [job.arn for job in emr],
            )
            runs = [f"{job.arn}/jobruns/*" for job in emr]
            allow(self._role, ["emr-serverless:CancelJobRun", "emr-serverless:GetJobRun"], runs)
            acknowledge_resources(self._role, runs, "Runs of the pipelines' own applications; AWS makes up their ids.")
            allow(
                self._role,
                ["iam:PassRole"],
                [job.role.role_arn for job in emr],
                conditions={"StringEquals": {"iam:PassedToService": "emr-serverless.amazonaws.com"}},
            )
