"""Check the app against rules at each synth, and record exceptions with their reasons.

An exception stands beside the construct that needs it and names one finding: a wildcard that is added later is found.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import aws_cdk as cdk
import cdk_nag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from constructs import Construct


def check(app: cdk.App) -> None:
    """Make synth fail on findings of the rule packs AwsSolutions and Serverless."""
    cdk.Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks(app), cdk_nag.ServerlessChecks(app))


def acknowledge(construct: Construct, rule: str, reason: str) -> None:
    """Accept one finding at a construct and below.

    Args:
        construct: where.
        rule: its id, as ``AwsSolutions-S1``, or with the detail in brackets for a rule that has one.
        reason: why it does not matter here.
    """
    cdk.Validations.of(construct).acknowledge(cdk.Acknowledgment(id=rule, reason=reason))


def acknowledge_resources(construct: Construct, resources: Iterable[str], reason: str) -> None:
    """Accept wildcards in these resources of policies (AwsSolutions-IAM5) at a construct and below."""
    stack = cdk.Stack.of(construct)
    for resource in resources:
        flat = _flat(stack.resolve(resource))
        if "*" in flat:
            acknowledge(construct, f"AwsSolutions-IAM5[Resource::{flat}]", reason)


def _flat(value: object) -> str:
    """Return a resolved value in the notation of cdk-nag: references in angle brackets."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        (function, argument), *_ = value.items()
        if function == "Fn::Join":
            return str(argument[0]).join(_flat(part) for part in argument[1])
        if function == "Ref":
            return f"<{argument}>"
        if function == "Fn::GetAtt":
            return f"<{'.'.join(argument)}>"
    return json.dumps(value)
