"""The CDK's Provider framework for custom resources, with the accepted findings of the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aws_cdk as cdk
from aws_cdk import custom_resources

from infra.checks import acknowledge, acknowledge_resources
from infra.constructs.functions import log_group

if TYPE_CHECKING:
    from aws_cdk import aws_lambda as lambda_
    from constructs import Construct

    from infra.constructs.functions import Platform

_INTERVAL: Final = cdk.Duration.seconds(15)
# Longer than the controller's own time-out of a deployment, which ends with a reason.
_TIMEOUT: Final = cdk.Duration.minutes(30)

_WHY: Final = "A part of the CDK's Provider framework: it runs during deployments only, and is not ours to configure."

_BASIC: Final = "arn:<AWS::Partition>:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"


def make_provider(
    scope: Construct,
    construct_id: str,
    *,
    platform: Platform,
    function: lambda_.IFunction,
    polls: bool,
) -> custom_resources.Provider:
    """Create a custom resource's provider, with a log that has a retention.

    Args:
        scope: the parent.
        construct_id: the provider's name.
        platform: what functions share.
        function: answers CloudFormation's events, and polls.
        polls: whether the resource is complete only when the function returns that it is.
    """
    name = f"{platform.stage.log_prefix}/providers/{scope.node.id.lower()}"
    provider = custom_resources.Provider(
        scope,
        construct_id,
        on_event_handler=function,
        is_complete_handler=function if polls else None,
        query_interval=_INTERVAL if polls else None,
        total_timeout=_TIMEOUT if polls else None,
        log_group=log_group(scope, f"{construct_id}Log", stage=platform.stage, key=platform.key, name=name),
    )
    _acknowledge(provider, function)
    return provider


def _acknowledge(provider: custom_resources.Provider, function: lambda_.IFunction) -> None:
    for rule in (
        f"AwsSolutions-IAM4[Policy::{_BASIC}]",
        "Serverless-LambdaDLQ",
        "Serverless-LambdaDefaultMemorySize",
        "Serverless-LambdaTracing",
    ):
        acknowledge(provider, rule, _WHY)
    acknowledge_resources(provider, [f"{function.function_arn}:*"], f"{_WHY} It invokes versions of our function.")
    machine = provider.node.try_find_child("waiter-state-machine")
    if machine is not None:
        for rule in ("AwsSolutions-SF1", "AwsSolutions-SF2", "Serverless-StepFunctionStateMachineXray"):
            acknowledge(provider, rule, _WHY)
        for name in ("framework-isComplete", "framework-onTimeout"):
            part: lambda_.IFunction = provider.node.find_child(name)  # type: ignore[assignment]
            acknowledge_resources(provider, [f"{part.function_arn}:*"], f"{_WHY} It invokes itself.")
