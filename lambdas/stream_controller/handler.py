"""Calls the stream controller for whoever asks: CloudFormation, events of Glue and EMR Serverless, schedule, person.

One function with one entry, ``handler``. A custom resource's Provider takes it for both ``on_event`` and
``is_complete``: what ``on_event`` answers comes back with each poll, and by the mark in it the two are told apart. A
poll never fails for a reason that may pass, because the Provider fails the deployment at the first error.

A person starts a pipeline that was given up again by invoking it with ``{"reset": "<pipeline>"}``.

The function needs a minute, and no reserved concurrency: the records keep concurrent calls apart.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import boto3
from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics
from botocore.config import Config

from brokerless.aws.controller.controller import Controller, Request, Status
from brokerless.aws.controller.engines import EmrServerlessEngine, GlueEngine, Place, client_config
from brokerless.aws.controller.records import Desired, S3Records
from brokerless.aws.environment import ControllerEnvironment
from brokerless.clock import SYSTEM
from brokerless.errors import StoreError, UsageError
from brokerless.metrics import GAVE_UP, PIPELINE_RUNNING, RESTARTS, RUN_FAILURES

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

ENVIRONMENT: Final = ControllerEnvironment.load()

POLL: Final = "BrokerlessPoll"
"""The mark in what ``on_event`` answers."""

logger = Logger()


def report(status: Status) -> None:
    """Logs a status and sends its metrics, one set a pipeline."""
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
    records=S3Records(
        boto3.client("s3", config=Config(connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 3})),
        ENVIRONMENT.state_prefix,
        clock=SYSTEM,
    ),
    engines={
        "glue": GlueEngine(boto3.client("glue", config=client_config())),
        "emr-serverless": EmrServerlessEngine(boto3.client("emr-serverless", config=client_config())),
    },
    clock=SYSTEM,
    report=report,
)


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answers what the caller expects: the Provider's answers, or the states of the pipelines that were looked at.

    Raises:
        BrokerlessError: CloudFormation's request cannot be done; it shows the text.
        ExceptionGroup: some pipelines could not be reconciled.
    """
    if "RequestType" in event:
        return is_complete(event) if POLL in event else on_event(event)
    if "reset" in event:
        return _states([CONTROLLER.reset(event["reset"])])
    detail = event.get("detail", {})
    match event.get("source"):
        case "aws.glue":
            return _states(CONTROLLER.reconcile_at(Place("glue", detail["jobName"])))
        case "aws.emr-serverless":
            return _states(CONTROLLER.reconcile_at(Place("emr-serverless", detail["applicationId"])))
        case "aws.events" | "aws.scheduler":
            return _states(CONTROLLER.reconcile_all())
    raise UsageError(f"The controller does not know this event, which has: {', '.join(sorted(event))}.")


def on_event(event: dict[str, Any]) -> dict[str, Any]:
    """Takes note of what CloudFormation wants, and leaves the work to the polls.

    After an error in here CloudFormation would not send a Delete for a Create, so nothing is started in here.
    """
    request = _request(event)
    CONTROLLER.request(request)
    return {"PhysicalResourceId": f"brokerless-pipeline-{request.desired.pipeline}", POLL: True}


def is_complete(event: dict[str, Any]) -> dict[str, Any]:
    """Takes a step, and says whether all is as CloudFormation wants it."""
    try:
        return {"IsComplete": CONTROLLER.is_done(_request(event))}
    except StoreError as error:
        logger.warning(str(error))
        return {"IsComplete": False}


def _request(event: dict[str, Any]) -> Request:
    old = event.get("OldResourceProperties")
    return Request(
        previous=None if old is None else Desired.from_properties(old).place,
        desired=Desired.from_properties(event["ResourceProperties"]),
        owner=f"{event['StackId']} {event['LogicalResourceId']}",
        id=event["RequestId"],
        delete=event["RequestType"] == "Delete",
    )


def _states(statuses: list[Status | None] | tuple[Status, ...]) -> dict[str, Any]:
    return {status.pipeline: status.state for status in statuses if status is not None}
