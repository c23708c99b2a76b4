"""Buckets, key and catalog: what protects messages, and what makes them readable."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokerless.schema import PRODUCED_AT, Schema
from brokerless.settings import Settings
from brokerless.store import open_store
from brokerless.topics import create_dead_letters
from infra.constructs.catalog import athena_type
from infra.stages import STAGES
from tests.infra.templates import ACCOUNT, REGION, text, texts

if TYPE_CHECKING:
    from tests.infra.conftest import Synthesised

EVERY_STAGE = ["dev", "staging", "prod", "wide"]


@pytest.fixture(params=EVERY_STAGE)
def app(request: pytest.FixtureRequest) -> Synthesised:
    """Each stage in turn."""
    return request.getfixturevalue(request.param)


def bucket(app: Synthesised, name: str) -> dict[str, Any]:
    found = app.resources("data", "AWS::S3::Bucket").values()
    return next(one for one in found if f"-{name}-" in text(one["BucketName"]))


def test_every_bucket_is_private_and_encrypted(app: Synthesised) -> None:
    for one in app.resources("data", "AWS::S3::Bucket").values():
        assert set(one["PublicAccessBlockConfiguration"].values()) == {True}
        assert one["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert one["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]


def test_every_bucket_refuses_plain_http(app: Synthesised) -> None:
    buckets = app.resources("data", "AWS::S3::Bucket")
    secured = set()
    for policy in app.resources("data", "AWS::S3::BucketPolicy").values():
        for statement in policy["PolicyDocument"]["Statement"]:
            if statement.get("Condition") == {"Bool": {"aws:SecureTransport": "false"}}:
                assert (statement["Effect"], statement["Action"]) == ("Deny", "s3:*")
                secured.add(policy["Bucket"]["Ref"])
    assert secured == set(buckets)


def test_messages_have_the_stages_key(prod: Synthesised, dev: Synthesised) -> None:
    (rule,) = bucket(prod, "data")["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["BucketKeyEnabled"] is True
    assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "aws:kms"
    (key,) = prod.resources("data", "AWS::KMS::Key").values()
    assert key["EnableKeyRotation"] is True
    assert dev.resources("data", "AWS::KMS::Key") == {}


def test_services_that_tell_somebody_may_use_the_key(prod: Synthesised) -> None:
    (key,) = prod.resources("data", "AWS::KMS::Key").values()
    granted = {
        service
        for statement in key["KeyPolicy"]["Statement"]
        for service in texts(statement["Principal"].get("Service", []))
        if "kms:Decrypt" in statement["Action"]
    }
    notified = ("budgets", "cloudwatch", "events", f"logs.{REGION}", "sns")
    assert granted == {f"{service}.amazonaws.com" for service in notified}


def test_no_lifecycle_rule_touches_messages(app: Synthesised) -> None:
    assert bucket(app, "data")["LifecycleConfiguration"]["Rules"] == [
        {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}, "Id": "abort-uploads", "Status": "Enabled"}
    ]


def denied(app: Synthesised, sid: str) -> dict[str, Any]:
    """A denial of the data bucket's policy."""
    (denial,) = (
        statement
        for policy in app.resources("data", "AWS::S3::BucketPolicy").values()
        for statement in policy["PolicyDocument"]["Statement"]
        if statement.get("Sid") == sid
    )
    assert (denial["Effect"], denial["Principal"]) == ("Deny", {"AWS": "*"})
    return denial


def test_a_log_entry_cannot_be_replaced(app: Synthesised) -> None:
    denial = denied(app, "LogEntriesAreCreatedNeverReplaced")
    assert denial["Action"] == "s3:PutObject"
    assert text(denial["Resource"]).endswith(f"-data-{ACCOUNT}-{REGION}/topics/*/_delta_log/*.json")
    assert denial["Condition"] == {
        "Null": {"s3:if-none-match": "true"},
        "Bool": {"s3:ObjectCreationOperation": "true"},
    }


def test_only_maintenance_removes_log_entries_and_writes_checkpoints(
    app: Synthesised, request: pytest.FixtureRequest
) -> None:
    stage = request.node.callspec.params["app"]
    name = f"brokerless-{stage}-maintenance-{REGION}"
    (role,) = (one for one in app.resources("streams", "AWS::IAM::Role").values() if text(one.get("RoleName")) == name)
    assert "Of the function" in role["Description"]
    maintenance = f"arn:aws:iam::{ACCOUNT}:role/{name}"
    log = f"arn:aws:s3:::brokerless-{stage}-data-{ACCOUNT}-{REGION}/topics/*/_delta_log"

    removal = denied(app, "OnlyMaintenanceRemovesLogEntries")
    assert removal["Action"] == ["s3:DeleteObject", "s3:DeleteObjectVersion"]
    assert text(removal["Resource"]) == f"{log}/*"
    allowed = texts(removal["Condition"]["ArnNotEquals"]["aws:PrincipalArn"])
    assert allowed[0] == maintenance
    # A stage whose data goes with it must be able to go.
    assert [one.startswith("<CustomS3AutoDeleteObjects") for one in allowed[1:]] == [True] * (
        stage in {"dev", "staging"}
    )

    writing = denied(app, "OnlyMaintenanceWritesCheckpoints")
    assert (writing["Action"], text(writing["Resource"])) == ("s3:PutObject", f"{log}/*checkpoint*")
    assert texts(writing["Condition"]["ArnNotEquals"]["aws:PrincipalArn"]) == [maintenance]


@pytest.mark.parametrize(("stage", "policy"), [("dev", "Delete"), ("prod", "Retain")])
def test_data_goes_with_its_stage_only_where_that_is_wanted(
    stage: str, policy: str, request: pytest.FixtureRequest
) -> None:
    found: Synthesised = request.getfixturevalue(stage)
    resources = found.templates["data"]["Resources"].values()
    assert {one["DeletionPolicy"] for one in resources if one["Type"] == "AWS::S3::Bucket"} == {policy}
    emptied = [one for one in resources if one["Type"] == "Custom::S3AutoDeleteObjects"]
    assert bool(emptied) == (policy == "Delete")


def test_athena_knows_every_table(dev: Synthesised) -> None:
    tables = {
        one["TableInput"]["Name"]: one["TableInput"] for one in dev.resources("data", "AWS::Glue::Table").values()
    }
    assert set(tables) == {"timezone1", "timezone2", "timezone_unified", "timezone_unified_dead_letters"}
    unified = tables["timezone_unified"]
    assert unified["TableType"] == "EXTERNAL_TABLE"
    assert unified["Parameters"] == {"EXTERNAL": "TRUE", "table_type": "DELTA", "spark.sql.sources.provider": "delta"}
    where = f"s3://brokerless-dev-data-{ACCOUNT}-{REGION}/topics/timezone_unified/"
    assert text(unified["StorageDescriptor"]["Location"]) == where
    assert unified["StorageDescriptor"]["Columns"] == [
        {"Name": "timestamp", "Type": "double"},
        {"Name": "message", "Type": "string"},
        {"Name": PRODUCED_AT, "Type": "timestamp"},
    ]


def test_each_partition_is_a_table(wide: Synthesised) -> None:
    names = [one["TableInput"]["Name"] for one in wide.resources("data", "AWS::Glue::Table").values()]
    assert sorted(name for name in names if name.startswith("clicks")) == sorted(
        ["clicks_eu", *(f"clicks_eu_{number}" for number in range(1, 12))]
    )


def test_columns_of_dead_letters_are_the_librarys(dev: Synthesised) -> None:
    stage = STAGES["dev"]
    inputs = [Schema.parse(topic.schema) for topic in stage.topics]
    made = create_dead_letters(open_store(Settings("embedded", "memory://letters")), "timezone_unified", inputs)
    tables = [one["TableInput"] for one in dev.resources("data", "AWS::Glue::Table").values()]
    (table,) = (one for one in tables if one["Name"] == "timezone_unified_dead_letters")
    columns = [(column["Name"], column["Type"]) for column in table["StorageDescriptor"]["Columns"]]
    assert columns == [*((c.name, athena_type(c.type)) for c in made.schema.columns), (PRODUCED_AT, "timestamp")]


@pytest.mark.parametrize(
    ("delta", "athena"),
    [("long", "bigint"), ("integer", "int"), ("decimal(10,2)", "decimal(10,2)"), ("string", "string")],
)
def test_types_are_spelt_as_athena_does(delta: str, athena: str) -> None:
    assert athena_type(delta) == athena


def test_the_data_stack_of_production_is_protected(prod: Synthesised, dev: Synthesised) -> None:
    def protected(app: Synthesised, stage: str) -> object:
        manifest = json.loads((app.directory / "manifest.json").read_text())
        return manifest["artifacts"][f"brokerless-{stage}-data"]["properties"].get("terminationProtection")

    assert protected(prod, "prod") is True
    assert not protected(dev, "dev")
    assert replace(STAGES["prod"], removal="destroy").auto_delete
