"""The common parts of all functions: package, log group, role, tracing, and the queue of failed events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_destinations as destinations
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.checks import acknowledge, acknowledge_resources
from infra.constructs.access import allow, allow_key

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms

    from brokerless.aws.environment import Environment
    from infra.assets import Asset, Assets
    from infra.config import StageConfig
    from infra.constructs.network import Network
    from infra.constructs.storage import Storage

_PYTHON: Final = (
    "Python 3.13 is what Glue 6.0 runs and what the library is tested with; functions and jobs share its code."
)
_ARCHITECTURES: Final = {"arm64": lambda_.Architecture.ARM_64, "x86_64": lambda_.Architecture.X86_64}


class Failures(Construct):
    """The queue of events that no function could process, for a person to check and send again.

    Attributes:
        queue: the queue; for services, which need its policy to name them.
        sink: the same for functions, without its key: grants of the CDK would add wildcard actions on the key, and
            each function may use it by way of SQS anyhow.
    """

    def __init__(self, scope: Construct, construct_id: str, *, stage: StageConfig, key: kms.IKey | None) -> None:
        super().__init__(scope, construct_id)
        name = stage.failures_queue
        self.queue = encrypted_queue(self, "Queue", key=key, name=name, retention=cdk.Duration.days(14))
        self.sink = sqs.Queue.from_queue_arn(self, "Sink", self.queue.queue_arn)
        for rule in ("AwsSolutions-SQS3", "Serverless-SQSRedrivePolicy"):
            acknowledge(self, rule, "This is the queue for dead letters itself; what fails here has nowhere to go.")


@dataclass(frozen=True, slots=True)
class Platform:
    """The values that the functions of a stage share.

    Attributes:
        stage: the configuration.
        assets: the packages.
        storage: buckets and key.
        failures: where failed events go.
        network: the private network; None for none.
    """

    stage: StageConfig
    assets: Assets
    storage: Storage
    failures: Failures
    network: Network | None = None

    @property
    def key(self) -> kms.IKey | None:
        """The stage's key; None if it has none."""
        return self.storage.key


class BrokerlessFunction(Construct):
    """A function of ``lambdas/`` with its own role and log group.

    Attributes:
        function: the function.
        role: its role, without any right but writing its log and its traces.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        platform: Platform,
        name: str,
        environment: Environment,
        memory_mb: int,
        timeout: cdk.Duration,
        concurrency: int | None = None,
        retries: int | None = None,
        package: Literal["core", "maintenance"] = "core",
        suffix: str = "",
        role_name: str | None = None,
        description: str,
    ) -> None:
        """Create the function.

        Args:
            scope: the parent.
            construct_id: the construct's name.
            platform: what functions share.
            name: the folder in ``lambdas/``.
            environment: its environment variables.
            memory_mb: memory; processor time is in proportion to it.
            timeout: of one invocation.
            concurrency: how many run at once at most.
            retries: of an event that failed; Lambda's own two if None.
            package: which package it needs.
            suffix: of the function's name, where a folder has several.
            role_name: of its role, if a policy elsewhere names it.
            description: for people.
        """
        super().__init__(scope, construct_id)
        stage = platform.stage
        full_name = f"{stage.prefix}-{name.replace('_', '-')}{suffix}"
        group = log_group(self, "Log", stage=stage, key=platform.key, name=f"{stage.log_prefix}/lambda/{full_name}")
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            role_name=role_name,
            description=f"Of the function {full_name}",
        )
        if platform.network:
            platform.network.allow_interfaces(self.role)
        asset: Asset = getattr(platform.assets, package)
        self.function = lambda_.Function(
            self,
            "Function",
            function_name=full_name,
            description=description,
            runtime=lambda_.Runtime(f"python{stage.runtime.python}", lambda_.RuntimeFamily.PYTHON),
            architecture=_ARCHITECTURES[stage.runtime.architecture],
            handler=f"lambdas.{name}.handler.handler",
            code=lambda_.Code.from_asset(
                str(asset.path), asset_hash=asset.digest, asset_hash_type=cdk.AssetHashType.CUSTOM
            ),
            environment=environment.to_environ(),
            environment_encryption=platform.key,
            memory_size=memory_mb,
            timeout=timeout,
            reserved_concurrent_executions=concurrency if stage.reserve_concurrency else None,
            retry_attempts=retries,
            role=self.role,
            log_group=group,
            logging_format=lambda_.LoggingFormat.JSON,
            tracing=lambda_.Tracing.ACTIVE,
            # One of the two: both would get the event. Only the destination learns why it failed, too.
            dead_letter_queue=platform.failures.sink if retries is None else None,
            on_failure=None if retries is None else destinations.SqsDestination(platform.failures.sink),
            **(platform.network.of_functions() if platform.network else {}),
        )
        allow(self.role, ["logs:CreateLogStream", "logs:PutLogEvents"], [group.log_group_arn])
        if platform.key:
            allow_key(self.role, platform.key, service="lambda")
            allow_key(self.role, platform.key, service="sqs")
        acknowledge_resources(self.role, ["*"], "X-Ray's actions know no resources.")
        if retries is not None:
            acknowledge(self, "Serverless-LambdaDLQ", "Failed events go to the on-failure destination, with the error.")
        for rule in ("AwsSolutions-L1", "Serverless-LambdaLatestVersion"):
            acknowledge(self, rule, _PYTHON)


def log_group(
    scope: Construct, construct_id: str, *, stage: StageConfig, key: kms.IKey | None, name: str
) -> logs.LogGroup:
    """Create a log group that is deleted with the stage and has a retention."""
    return logs.LogGroup(
        scope,
        construct_id,
        log_group_name=name,
        encryption_key=key,
        retention=retention(stage.log_retention_days),
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )


def retention(days: int) -> logs.RetentionDays:
    """Return CloudWatch's name for a number of days."""
    names = {
        1: "ONE_DAY", 3: "THREE_DAYS", 5: "FIVE_DAYS", 7: "ONE_WEEK", 14: "TWO_WEEKS", 30: "ONE_MONTH",
        60: "TWO_MONTHS", 90: "THREE_MONTHS", 120: "FOUR_MONTHS", 150: "FIVE_MONTHS", 180: "SIX_MONTHS",
        365: "ONE_YEAR", 400: "THIRTEEN_MONTHS", 545: "EIGHTEEN_MONTHS", 731: "TWO_YEARS",
    }  # fmt: skip
    return logs.RetentionDays[names[days]]


def encrypted_queue(
    scope: Construct,
    construct_id: str,
    *,
    key: kms.IKey | None,
    retention: cdk.Duration,
    name: str | None = None,
    fifo: bool = False,
    visibility: cdk.Duration | None = None,
    dead_letters: sqs.DeadLetterQueue | None = None,
) -> sqs.Queue:
    """Create a queue that accepts only TLS, encrypted with the stage's key or with that of SQS."""
    return sqs.Queue(
        scope,
        construct_id,
        queue_name=name,
        fifo=True if fifo else None,
        content_based_deduplication=True if fifo else None,
        encryption=sqs.QueueEncryption.KMS if key else sqs.QueueEncryption.SQS_MANAGED,
        encryption_master_key=key,
        enforce_ssl=True,
        retention_period=retention,
        visibility_timeout=visibility,
        dead_letter_queue=dead_letters,
    )
