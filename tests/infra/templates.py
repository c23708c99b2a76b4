"""Reading CloudFormation templates in tests: values as text, policies by role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.infra.conftest import Synthesised

REGION, ACCOUNT = "us-east-1", "123456789012"


def text(value: Any) -> str:
    """A value with joins done, account and region filled in, and references as their resource's logical id."""
    match value:
        case {"Fn::Join": [glue, parts]}:
            return str(glue).join(text(part) for part in parts)
        case {"Ref": "AWS::Region"}:
            return REGION
        case {"Ref": "AWS::AccountId"}:
            return ACCOUNT
        case {"Ref": "AWS::Partition"}:
            return "aws"
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::Sub": pattern}:
            return str(pattern).replace("${AWS::AccountId}", ACCOUNT).replace("${AWS::Region}", REGION)
        case {"Fn::GetStackOutput": {"OutputName": name}}:
            return f"<<{name}>>"
    return str(value)


def texts(value: Any) -> list[str]:
    """One value or a list of them."""
    return [text(one) for one in (value if isinstance(value, list) else [value])]


def statements(app: Synthesised, role: str = "") -> Iterator[dict[str, Any]]:
    """The statements of policies of the roles whose logical id begins so."""
    for stack in app.templates:
        for policy in app.resources(stack, "AWS::IAM::Policy").values():
            if any(attached["Ref"].startswith(role) for attached in policy["Roles"]):
                yield from policy["PolicyDocument"]["Statement"]


def allowed(app: Synthesised, role: str, action: str) -> set[str]:
    """On which resources a role may do something."""
    found = [one for one in statements(app, role) if action in texts(one["Action"]) and one["Effect"] == "Allow"]
    return {resource for one in found for resource in texts(one["Resource"])}


def data(table: str, stage: str) -> str:
    """The objects of a table, in a policy."""
    return f"arn:aws:s3:::brokerless-{stage}-data-{ACCOUNT}-{REGION}/topics/{table}/*"
