"""Least privilege, role by role, in the templates as they are deployed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import aws_cdk as cdk
import pytest
from aws_cdk import aws_iam as iam
from aws_cdk.assertions import Template

from brokerless.errors import ConfigError
from brokerless.groups.state import FOLDER
from infra.config import TopicConfig
from infra.constructs.access import allow_group, topic_tables
from infra.constructs.storage import TOPICS
from tests.infra.templates import ACCOUNT, REGION, allowed, data, statements, text, texts

if TYPE_CHECKING:
    from tests.infra.conftest import Synthesised

APPEND = ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"]
SCRATCH = f"arn:aws:s3:::brokerless-%s-scratch-{ACCOUNT}-{REGION}/%s/timezone-etl/*"

# What AWS's service authorisation reference lists without resources.
NO_RESOURCES = {
    "cloudwatch:PutMetricData",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeRouteTables",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcAttribute",
    "ec2:DescribeVpcEndpoints",
    "ec2:DescribeVpcs",
    "glue:GetSecurityConfiguration",
    "kinesis:ListStreams",
    "logs:CreateLogDelivery",
    "xray:PutTelemetryRecords",
    "xray:PutTraceSegments",
}


@pytest.fixture(params=["dev", "staging", "prod", "wide"])
def app(request: pytest.FixtureRequest) -> Synthesised:
    """Each stage in turn."""
    return request.getfixturevalue(request.param)


def test_no_statement_has_a_wildcard_action(app: Synthesised) -> None:
    actions = {action for one in statements(app) for action in texts(one["Action"])}
    assert [action for action in actions if "*" in action] == []


def test_only_actions_without_resources_are_allowed_on_all(app: Synthesised) -> None:
    everywhere = [one for one in statements(app) if "*" in texts(one["Resource"])]
    assert {action for one in everywhere for action in texts(one["Action"])} <= NO_RESOURCES


# (of each stage's own roles; the CDK's own for deployments are not among them)
def test_roles_have_no_policies_of_aws(app: Synthesised) -> None:
    roles = app.resources("streams", "AWS::IAM::Role")
    managed = {name for name, role in roles.items() if "ManagedPolicyArns" in role}
    assert all("Providerframework" in name for name in managed)


def test_metrics_go_to_the_stages_namespace_only(app: Synthesised, request: pytest.FixtureRequest) -> None:
    found = [one for one in statements(app) if "cloudwatch:PutMetricData" in texts(one["Action"])]
    assert found
    for one in found:
        namespaces = texts(one["Condition"]["StringEquals"]["cloudwatch:namespace"])
        assert set(namespaces) <= {f"Brokerless/{request.node.callspec.params['app']}", "Glue"}


@pytest.mark.parametrize(("stage", "service"), [("prod", "glue"), ("staging", "emr")])
def test_the_job_reads_its_inputs_and_writes_its_output(
    stage: str, service: str, request: pytest.FixtureRequest
) -> None:
    found: Synthesised = request.getfixturevalue(stage)
    role = "Jobtimezoneetl"
    written = {data("timezone_unified", stage), data("timezone_unified.dead_letters", stage)}
    scratch = SCRATCH % (stage, service)
    assert allowed(found, role, "s3:PutObject") == {*written, scratch}
    read = {data("timezone1", stage), data("timezone2", stage)}
    assets = {one for one in allowed(found, role, "s3:GetObject") if "cdk-hnb659fds-assets" in one}
    assert allowed(found, role, "s3:GetObject") == {*written, *read, scratch, *assets}
    assert len(assets) == 2
    assert not any("*" in asset for asset in assets)


def test_listing_is_limited_to_the_tables(prod: Synthesised) -> None:
    (one,) = (one for one in statements(prod, "Ingesttimezone1") if "s3:ListBucket" in texts(one["Action"]))
    assert texts(one["Resource"]) == [f"arn:aws:s3:::brokerless-prod-data-{ACCOUNT}-{REGION}"]
    prefixes = ["topics/timezone1/*", "topics/timezone1.dead_letters/*"]
    assert one["Condition"] == {"StringLike": {"s3:prefix": prefixes}}


def test_a_producer_appends_to_its_topic_only(wide: Synthesised) -> None:
    tables = {data("timezone1", "wide"), data("timezone1.dead_letters", "wide")}
    for action in APPEND:
        assert allowed(wide, "Ingesttimezone1", action) == tables


def test_a_topic_of_many_partitions_is_a_pattern_for_each_number_of_digits() -> None:
    few = TopicConfig("t", "n long", partitions=2)
    assert topic_tables(few) == ("t", "t.1", "t.dead_letters")
    many = TopicConfig("t", "n long", partitions=1000)
    assert topic_tables(many) == ("t", "t.?", "t.??", "t.???", "t.dead_letters")


def test_the_canary_reads_the_output_and_writes_the_input(prod: Synthesised) -> None:
    assert allowed(prod, "Canarytimezoneetl", "s3:PutObject") == {data("timezone1", "prod")}
    output = {data("timezone_unified", "prod"), data("timezone_unified.dead_letters", "prod")}
    assert allowed(prod, "Canarytimezoneetl", "s3:GetObject") == {*output, data("timezone1", "prod")}


def test_only_maintenance_reaches_all_tables(app: Synthesised, request: pytest.FixtureRequest) -> None:
    everything = data("*", "x").replace("brokerless-x", f"brokerless-{request.node.callspec.params['app']}")
    everything = everything.replace("/topics/*/*", "/topics/*")
    assert allowed(app, "Maintenance", "s3:PutObject") == {everything}
    for stack in app.templates:
        for name in app.resources(stack, "AWS::IAM::Role"):
            if not name.startswith("Maintenance"):
                assert everything not in allowed(app, name, "s3:PutObject"), name


def test_nobody_but_maintenance_removes_messages(app: Synthesised) -> None:
    for stack in app.templates:
        for name in app.resources(stack, "AWS::IAM::Role"):
            removable = {one for one in allowed(app, name, "s3:DeleteObject") if "/topics" in one}
            assert bool(removable) == name.startswith("Maintenance"), name


def test_the_controllers_records_are_out_of_the_topics(dev: Synthesised) -> None:
    records = f"arn:aws:s3:::brokerless-dev-data-{ACCOUNT}-{REGION}/controller/*"
    assert allowed(dev, "ControllerFunction", "s3:PutObject") == {records}


def test_the_controller_starts_the_jobs_and_no_others(prod: Synthesised) -> None:
    job = f"arn:aws:glue:{REGION}:{ACCOUNT}:job/brokerless-prod-timezone-etl"
    for action in ("glue:StartJobRun", "glue:BatchStopJobRun", "glue:GetJobRuns"):
        assert allowed(prod, "ControllerFunction", action) == {job}
    assert allowed(prod, "ControllerFunction", "iam:PassRole") == set()


def test_the_controller_passes_the_jobs_role_to_emr_only(staging: Synthesised) -> None:
    passing = [one for one in statements(staging) if "iam:PassRole" in texts(one["Action"])]
    (one,) = passing
    assert one["Condition"] == {"StringEquals": {"iam:PassedToService": "emr-serverless.amazonaws.com"}}
    (role,) = texts(one["Resource"])
    assert role.startswith("<Jobtimezoneetl")


def test_the_key_is_used_through_a_service_only(prod: Synthesised) -> None:
    found = [one for one in statements(prod) if any(action.startswith("kms:") for action in texts(one["Action"]))]
    by_service = [one for one in found if "Condition" in one]
    assert len(by_service) >= 5
    for one in by_service:
        assert text(one["Condition"]["StringEquals"]["kms:ViaService"]).endswith(f".{REGION}.amazonaws.com")
    # The CDK's own: a queue's consumer decrypts its messages.
    assert {action for one in found if "Condition" not in one for action in texts(one["Action"])} <= {"kms:Decrypt"}


def test_a_member_of_a_group_reaches_the_objects_of_that_group_only() -> None:
    stack = cdk.Stack(cdk.App(), "S")
    role = iam.Role(stack, "Role", assumed_by=iam.AccountRootPrincipal())
    storage = SimpleNamespace(data_arn="arn:aws:s3:::data", key=None)
    allow_group(role, storage, "billing")  # type: ignore[arg-type]
    (policy,) = Template.from_stack(stack).find_resources("AWS::IAM::Policy").values()
    objects, listing = policy["Properties"]["PolicyDocument"]["Statement"]
    assert objects["Action"] == ["s3:GetObject", "s3:PutObject"]
    assert objects["Resource"] == f"arn:aws:s3:::data/{TOPICS}/{FOLDER}/billing/*"
    assert listing["Condition"]["StringLike"]["s3:prefix"] == [f"{TOPICS}/{FOLDER}/billing/*"]
    with pytest.raises(ConfigError):
        allow_group(role, storage, "*")  # type: ignore[arg-type]
