"""Call the stream controller for CloudFormation, for events of Glue and EMR Serverless, for a schedule or a person.

A custom resource's Provider uses ``handler`` as both ``on_event`` and ``is_complete``: the response of ``on_event``
comes back with each poll, and its mark distinguishes the two. A poll never fails for a temporary reason, because the
Provider fails the deployment at the first error.

To start a pipeline again after the controller gave up, invoke the function with ``{"reset": "<pipeline>"}``. The
function needs a minute, and no reserved concurrency: stored states separate concurrent calls.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import boto3
from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics
from botocore.config import Config

from brokerless.aws.controller.calls import client_config
from brokerless.aws.controller.controller import Controller, Request, Status
from brokerless.aws.controller.desired import DesiredPipeline
from brokerless.aws.controller.emr_serverless import EmrServerlessService
from brokerless.aws.controller.glue import GlueService
from brokerless.aws.controller.services import JobLocation
from brokerless.aws.controller.states import S3PipelineStates
from brokerless.aws.environment import ControllerEnvironment
from brokerless.clock import SYSTEM
from brokerless.errors import StoreError, UsageError
from brokerless.metrics import GAVE_UP, PIPELINE_RUNNING, RESTARTS, RUN_FAILURES

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

ENVIRONMENT: Final = ControllerEnvironment.load()

POLL: Final = "BrokerlessPoll"
"""The mark in the response of ``on_event``."""

logger = Logger()


def report(status: Status) -> None:
    """Log a status and send its metrics, one set for each pipeline."""
    log = logger.error if status.gave_up else logger.warning if status.run_failures else logger.info
    log(status.reason, status=asdict(status))
    # Without a service, which would become a second dimension that no dashboard or alarm asks for.
    metrics = EphemeralMetrics(namespace=ENVIRONMENT.metrics_namespace, service="")
    metrics.add_dimension(GAVE_UP.dimension, status.pipeline)
    metrics.add_metric(RESTARTS.name, RESTARTS.unit, status.restarts)
    metrics.add_metric(RUN_FAILURES.name, RUN_FAILURES.unit, status.run_failures)
    metrics.add_metric(GAVE_UP.name, GAVE_UP.unit, int(status.gave_up))
    if status.running is not None:
        metrics.add_metric(PIPELINE_RUNNING.name, PIPELINE_RUNNING.unit, int(status.running))
    metrics.flush_metrics()


CONTROLLER: Final = Controller(
    states=S3PipelineStates(
        boto3.client("s3", config=Config(connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 3})),
        ENVIRONMENT.state_prefix,
        clock=SYSTEM,
    ),
    services={
        "glue": GlueService(boto3.client("glue", config=client_config())),
        "emr-serverless": EmrServerlessService(boto3.client("emr-serverless", config=client_config())),
    },
    clock=SYSTEM,
    report=report,
)


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Return the response for the caller: that of the Provider, or the states of the reconciled pipelines.

    Raises:
        BrokerlessError: CloudFormation's request cannot be done; CloudFormation shows the text.
        ExceptionGroup: some pipelines could not be reconciled.
    """
    if "RequestType" in event:
        return is_complete(event) if POLL in event else on_event(event)
    if "reset" in event:
        return _states([CONTROLLER.reset(event["reset"])])
    detail = event.get("detail", {})
    match event.get("source"):
        case "aws.glue":
            return _states(CONTROLLER.reconcile_at(JobLocation("glue", detail["jobName"])))
        case "aws.emr-serverless":
            return _states(CONTROLLER.reconcile_at(JobLocation("emr-serverless", detail["applicationId"])))
        case "aws.events" | "aws.scheduler":
            return _states(CONTROLLER.reconcile_all())
    raise UsageError(f"The controller cannot handle this event. Its keys are: {', '.join(sorted(event))}.")


def on_event(event: dict[str, Any]) -> dict[str, Any]:
    """Store CloudFormation's request, and leave the work to the polls.

    Nothing is started here: after an error in ``on_event`` CloudFormation sends no Delete for a Create.
    """
    request = _request(event)
    CONTROLLER.request(request)
    return {"PhysicalResourceId": f"brokerless-pipeline-{request.desired.pipeline}", POLL: True}


def is_complete(event: dict[str, Any]) -> dict[str, Any]:
    """Take one step, and return whether CloudFormation's request is done."""
    try:
        return {"IsComplete": CONTROLLER.is_done(_request(event))}
    except StoreError as error:
        logger.warning(str(error))
        return {"IsComplete": False}


def _request(event: dict[str, Any]) -> Request:
    old = event.get("OldResourceProperties")
    return Request(
        previous=None if old is None else DesiredPipeline.from_properties(old).location,
        desired=DesiredPipeline.from_properties(event["ResourceProperties"]),
        owner=f"{event['StackId']} {event['LogicalResourceId']}",
        id=event["RequestId"],
        delete=event["RequestType"] == "Delete",
    )


def _states(statuses: list[Status | None] | tuple[Status, ...]) -> dict[str, Any]:
    return {status.pipeline: status.state for status in statuses if status is not None}
