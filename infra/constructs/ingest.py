"""The ingest function of a topic and its sources, for producers that do not use the library.

Each topic has its own function. So a producer of one topic cannot write to another, a burst in one topic does not slow
down the others, and a message does not have to name its topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kinesis as kinesis
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_event_sources as sources
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from brokerless.aws.environment import IngestEnvironment
from infra.checks import acknowledge, acknowledge_resources
from infra.config import resource_name
from infra.constructs.access import allow_appending, topic_tables
from infra.constructs.functions import BrokerlessFunction, encrypted_queue

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms

    from infra.config import MskConfig, StageConfig, TopicConfig
    from infra.constructs.functions import Platform

_TIMEOUT: Final = cdk.Duration.seconds(60)
# Six times the function's time, as Lambda asks for: a message must not come back while it is being worked on.
_VISIBILITY: Final = cdk.Duration.seconds(360)
_ATTEMPTS: Final = 5
_MAX_BODY_BYTES: Final = 6 * 2**20
"""The limit of one invocation."""


def event_bus(scope: Construct, stage: StageConfig, key: kms.IKey | None) -> events.EventBus | None:
    """Create the event bus if a topic of the stage has that source. The detail type of an event names its topic."""
    if not any("eventbridge" in topic.sources for topic in stage.topics):
        return None
    return events.EventBus(
        scope, "Bus", event_bus_name=stage.prefix, description=f"Messages for topics of stage {stage.name}", kms_key=key
    )


class TopicIngest(Construct):
    """Commits messages from the sources of a topic."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        platform: Platform,
        topic: TopicConfig,
        bus: events.IEventBus | None,
    ) -> None:
        super().__init__(scope, construct_id)
        self._platform, self._topic = platform, topic
        stage = platform.stage
        self._name = stage.ingest_name(topic)
        environment = IngestEnvironment(
            stage.name,
            stage.metrics_namespace,
            root=platform.storage.root,
            topics=(topic.name,),
            default_topic=topic.name,
            max_body_bytes=_MAX_BODY_BYTES,
        )
        ingest = BrokerlessFunction(
            self,
            "Function",
            platform=platform,
            name="ingest",
            suffix=f"-{resource_name(topic.name)}",
            environment=environment,
            memory_mb=1024,
            timeout=_TIMEOUT,
            # Each copy is a writer that commits; more of them than this only get in each other's way.
            concurrency=stage.ingest_concurrency,
            description=f"Commits messages to the topic {topic.name}",
        )
        self._function, self._role = ingest.function, ingest.role
        allow_appending(self._role, platform.storage, topic_tables(topic))
        for source in topic.sources:
            match source:
                case "url":
                    self._open_url()
                case "sqs" | "sqs-fifo":
                    self._open_queue(fifo=source == "sqs-fifo")
                case "kinesis":
                    self._open_stream()
                case "sns":
                    self._open_notifications()
                case "eventbridge":
                    self._open_bus(bus)
                case "msk":
                    self._open_kafka(stage.msk)

    def _open_url(self) -> None:
        url = self._function.add_function_url(auth_type=lambda_.FunctionUrlAuthType.AWS_IAM)
        cdk.CfnOutput(self, "Url", value=url.url, description=f"POST messages of {self._topic.name}, signed (SigV4)")

    def _open_queue(self, *, fifo: bool) -> None:
        kind, ending = ("Fifo", ".fifo") if fifo else ("Queue", "")
        key = self._platform.key
        rest = encrypted_queue(
            self,
            f"{kind}DeadLetters",
            key=key,
            name=self._platform.stage.dead_letter_queue(self._topic, "sqs-fifo" if fifo else "sqs"),
            fifo=fifo,
            retention=cdk.Duration.days(14),
        )
        for rule in ("AwsSolutions-SQS3", "Serverless-SQSRedrivePolicy"):
            acknowledge(rest, rule, "This is the queue for dead letters itself.")
        queue = encrypted_queue(
            self,
            kind,
            key=key,
            name=f"{self._name}{ending}",
            fifo=fifo,
            retention=cdk.Duration.days(4),
            visibility=_VISIBILITY,
            dead_letters=sqs.DeadLetterQueue(max_receive_count=_ATTEMPTS, queue=rest),
        )
        self._function.add_event_source(
            sources.SqsEventSource(
                queue,
                # One commit carries what came within a second: objects stay few and large.
                batch_size=10 if fifo else 1000,
                max_batching_window=None if fifo else cdk.Duration.seconds(1),
                max_concurrency=max(2, self._platform.stage.ingest_concurrency - 1),
                report_batch_item_failures=True,
            )
        )
        acknowledge(
            self._function,
            "Serverless-LambdaEventSourceMappingDestination",
            "A queue keeps what fails itself, and gives it to its own queue for dead letters.",
        )
        cdk.CfnOutput(self, f"{kind}Url", value=queue.queue_url, description=f"Send messages of {self._topic.name}")

    def _open_stream(self) -> None:
        key = self._platform.key
        stream = kinesis.Stream(
            self,
            "Stream",
            stream_name=self._name,
            stream_mode=kinesis.StreamMode.ON_DEMAND,
            encryption=kinesis.StreamEncryption.KMS if key else kinesis.StreamEncryption.MANAGED,
            encryption_key=key,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        if key:
            acknowledge(stream, "AwsSolutions-KDS3", "The stage has a key of its own, to decide itself who may read.")
        self._function.add_event_source(
            sources.KinesisEventSource(
                stream,
                starting_position=lambda_.StartingPosition.TRIM_HORIZON,
                batch_size=1000,
                max_batching_window=cdk.Duration.seconds(1),
                bisect_batch_on_error=True,
                retry_attempts=_ATTEMPTS,
                # More than one batch of a shard at a time, and their sequence numbers would not come in order.
                parallelization_factor=1,
                report_batch_item_failures=True,
                on_failure=sources.SqsDlq(self._platform.failures.sink),
            )
        )
        acknowledge_resources(self._role, ["*"], "ListStreams knows no resources.")
        cdk.CfnOutput(self, "StreamName", value=stream.stream_name, description=f"Put messages of {self._topic.name}")

    def _open_notifications(self) -> None:
        topic = sns.Topic(self, "Notifications", topic_name=self._name, master_key=self._platform.key, enforce_ssl=True)
        topic.add_subscription(
            subscriptions.LambdaSubscription(self._function, dead_letter_queue=self._platform.failures.queue)
        )
        cdk.CfnOutput(self, "TopicArn", value=topic.topic_arn, description=f"Publish messages of {self._topic.name}")

    def _open_bus(self, bus: events.IEventBus | None) -> None:
        events.Rule(
            self,
            "FromBus",
            event_bus=bus,
            description=f"Events with the detail type {self._topic.name}",
            event_pattern=events.EventPattern(detail_type=[self._topic.name]),
            targets=[targets.LambdaFunction(self._function, dead_letter_queue=self._platform.failures.queue)],
        )

    def _open_kafka(self, msk: MskConfig | None) -> None:
        if msk is None:
            return  # refused by StageConfig
        cluster = msk.cluster_arn
        kinds = ("network-interface", "security-group", "subnet")
        interfaces = [f"arn:aws:ec2:{cdk.Aws.REGION}:{cdk.Aws.ACCOUNT_ID}:{kind}/*" for kind in kinds]
        for statement in (
            iam.PolicyStatement(
                actions=["kafka:DescribeClusterV2", "kafka:GetBootstrapBrokers", "kafka-cluster:Connect"],
                resources=[cluster],
            ),
            iam.PolicyStatement(
                actions=["kafka-cluster:DescribeTopic", "kafka-cluster:ReadData"],
                resources=[f"{cluster.replace(':cluster/', ':topic/')}/{self._topic.name}"],
            ),
            iam.PolicyStatement(
                actions=["kafka-cluster:AlterGroup", "kafka-cluster:DescribeGroup"],
                resources=[f"{cluster.replace(':cluster/', ':group/')}/{self._name}"],
            ),
            # Lambda reaches the brokers through interfaces in the cluster's subnets, which only the cluster knows.
            iam.PolicyStatement(
                actions=["ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface"], resources=interfaces
            ),
            iam.PolicyStatement(
                actions=[f"ec2:Describe{what}" for what in ("NetworkInterfaces", "SecurityGroups", "Subnets", "Vpcs")],
                resources=["*"],
            ),
        ):
            self._role.add_to_policy(statement)
        why = "Lambda's poller of Kafka makes interfaces in the cluster's network; describing knows no resources."
        acknowledge_resources(self._role, [*interfaces, "*"], why)
        self._function.add_event_source_mapping(
            "Kafka",
            event_source_arn=cluster,
            kafka_topic=self._topic.name,
            kafka_consumer_group_id=self._name,
            starting_position=lambda_.StartingPosition.TRIM_HORIZON,
            batch_size=1000,
            max_batching_window=cdk.Duration.seconds(1),
            report_batch_item_failures=True,
            on_failure=sources.SqsDlq(self._platform.failures.sink),
        )
