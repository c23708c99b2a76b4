"""The buckets for data, scratch files and access logs, and the key for all of them.

Names of buckets follow from stage, account and region, so that other stacks, and people, know them. The data bucket
enforces what the library's guarantees rest on: an entry of a table's log can only be created, never written over; and
only maintenance, after the log retention, removes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.checks import acknowledge

if TYPE_CHECKING:
    from infra.config import StageConfig

TOPICS: Final = "topics"
"""The prefix of the topics' tables in the data bucket."""

STATE: Final = "controller"
"""The prefix of the controller's states in the data bucket."""


class Storage(Construct):
    """The buckets and the key of a stage.

    Attributes:
        key: for everything of the stage; None if it has none of its own.
        data: the bucket of topics, and of what the controller remembers.
        root: the topics' root as the library names it.
        state: where the controller's records are.
        data_arn: of the bucket, from the same parts as its name: policies in other stacks can be checked by it.
        scratch_url: of the scratch bucket.
        scratch_arn: likewise.
    """

    def __init__(self, scope: Construct, construct_id: str, *, stage: StageConfig) -> None:
        super().__init__(scope, construct_id)
        self._stage = stage
        self._removal = cdk.RemovalPolicy.RETAIN if stage.removal == "retain" else cdk.RemovalPolicy.DESTROY
        self.key = self._make_key() if stage.kms else None
        logs = self._bucket("Logs", "logs", expire_days=stage.log_retention_days)
        acknowledge(
            logs, "AwsSolutions-S1", "Logs of access to the bucket of access logs would only describe themselves."
        )
        self.data = self._bucket("Data", "data", logs=logs)
        self._bucket("Scratch", "scratch", logs=logs, expire_days=7)
        self.data_arn = f"arn:aws:s3:::{_name(stage, 'data')}"
        self.root = f"s3://{_name(stage, 'data')}/{TOPICS}"
        self.state = f"s3://{_name(stage, 'data')}/{STATE}"
        self.scratch_url = f"s3://{_name(stage, 'scratch')}"
        self.scratch_arn = f"arn:aws:s3:::{_name(stage, 'scratch')}"
        self._refuse_unconditional_commits()
        self._refuse_all_but_maintenance()

    def _make_key(self) -> kms.Key:
        stage = self._stage
        key = kms.Key(
            self,
            "Key",
            alias=f"alias/{stage.prefix}",
            description=f"Messages, logs and queues of brokerless, stage {stage.name}",
            enable_key_rotation=True,
            removal_policy=self._removal,
        )
        region, account = cdk.Aws.REGION, cdk.Aws.ACCOUNT_ID
        groups = f"arn:aws:logs:{region}:{account}:log-group:{stage.log_prefix}/*"
        key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="LogGroupsOfThisStage",
                principals=[iam.ServicePrincipal(f"logs.{region}.amazonaws.com")],
                actions=["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"],
                resources=["*"],  # in a key's policy: this key
                conditions={"ArnLike": {"kms:EncryptionContext:aws:logs:arn": groups}},
            )
        )
        # Alarms and notifications do not say for which account they use a key; whom they may tell is the SNS topics'
        # and the queues' policy.
        ours = {"StringEquals": {"aws:SourceAccount": account}}
        for sid, services, conditions in (
            ("EventsAndBudgets", ("budgets", "events"), ours),
            ("AlarmsAndNotifications", ("cloudwatch", "sns"), None),
        ):
            key.add_to_resource_policy(
                iam.PolicyStatement(
                    sid=sid,
                    principals=[iam.ServicePrincipal(f"{service}.amazonaws.com") for service in services],
                    actions=["kms:Decrypt", "kms:GenerateDataKey*"],
                    resources=["*"],
                    conditions=conditions,
                )
            )
        return key

    def _bucket(
        self, construct_id: str, name: str, *, logs: s3.Bucket | None = None, expire_days: int = 0
    ) -> s3.Bucket:
        return s3.Bucket(
            self,
            construct_id,
            bucket_name=_name(self._stage, name),
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            enforce_ssl=True,
            # The log delivery service cannot use a customer's key in the bucket that it writes to.
            encryption=s3.BucketEncryption.KMS if self.key and logs else s3.BucketEncryption.S3_MANAGED,
            encryption_key=self.key if logs else None,
            # One request to KMS for many objects, instead of one each.
            bucket_key_enabled=bool(self.key and logs) or None,
            server_access_logs_bucket=logs,
            server_access_logs_prefix=f"{name}/" if logs else None,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            lifecycle_rules=[
                # Only what was never completed: tables are cleaned by maintenance, which knows their logs.
                s3.LifecycleRule(id="abort-uploads", abort_incomplete_multipart_upload_after=cdk.Duration.days(1)),
                *([s3.LifecycleRule(id="expire", expiration=cdk.Duration.days(expire_days))] if expire_days else []),
            ],
            removal_policy=self._removal,
            auto_delete_objects=self._stage.auto_delete,
        )

    def _refuse_unconditional_commits(self) -> None:
        # A writer that does not ask for "only if it is not there" can replace another's commit, without intending to:
        # Spark's own Delta writer on S3 is one. Parts of multipart uploads cannot carry the condition; completing can.
        self.data.add_to_resource_policy(
            iam.PolicyStatement(
                sid="LogEntriesAreCreatedNeverReplaced",
                effect=iam.Effect.DENY,
                principals=[iam.AnyPrincipal()],
                actions=["s3:PutObject"],
                resources=[f"{self.data_arn}/{TOPICS}/*/_delta_log/*.json"],
                conditions={"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}},
            )
        )

    def _refuse_all_but_maintenance(self) -> None:
        # Whoever may delete an entry may put another in its place, and who may write a checkpoint, too: new readers
        # believe it. By the role's name: it is in another stack, which comes later.
        account = cdk.Aws.ACCOUNT_ID
        maintenance = f"arn:aws:iam::{account}:role/{maintenance_role(self._stage)}"
        removers = [maintenance]
        if self._stage.auto_delete:
            # The CDK's function that empties the bucket when the stage is destroyed.
            provider = cdk.Stack.of(self).node.find_child("Custom::S3AutoDeleteObjectsCustomResourceProvider")
            role = cast("cdk.CfnElement", provider.node.find_child("Role"))
            removers.append(cdk.Fn.get_att(role.logical_id, "Arn").to_string())
        log = f"{self.data_arn}/{TOPICS}/*/_delta_log"
        for sid, actions, objects, allowed in (
            ("OnlyMaintenanceRemovesLogEntries", ["s3:DeleteObject", "s3:DeleteObjectVersion"], "*", removers),
            ("OnlyMaintenanceWritesCheckpoints", ["s3:PutObject"], "*checkpoint*", [maintenance]),
        ):
            self.data.add_to_resource_policy(
                iam.PolicyStatement(
                    sid=sid,
                    effect=iam.Effect.DENY,
                    principals=[iam.AnyPrincipal()],
                    actions=actions,
                    resources=[f"{log}/{objects}"],
                    conditions={"ArnNotEquals": {"aws:PrincipalArn": allowed}},
                )
            )


def maintenance_role(stage: StageConfig) -> str:
    """Return the name of the only role that may remove messages' objects. It has the region: role names are global."""
    return f"{stage.prefix}-maintenance-{cdk.Aws.REGION}"


def _name(stage: StageConfig, what: str) -> str:
    return f"{stage.prefix}-{what}-{cdk.Aws.ACCOUNT_ID}-{cdk.Aws.REGION}"
