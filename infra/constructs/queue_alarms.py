"""Alarms for events and messages that no function could process: they wait in queues until a person checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from constructs import Construct

if TYPE_CHECKING:
    from aws_cdk import aws_sns as sns

    from infra.config import StageConfig


class QueueAlarms(Construct):
    """One alarm for each queue that should be empty."""

    def __init__(self, scope: Construct, construct_id: str, *, stage: StageConfig, notified: sns.ITopic) -> None:
        super().__init__(scope, construct_id)
        for queue in stage.queues_to_watch:
            metric = cloudwatch.Metric(
                namespace="AWS/SQS",
                metric_name="ApproximateNumberOfMessagesVisible",
                dimensions_map={"QueueName": queue},
                statistic="Maximum",
                period=cdk.Duration.minutes(5),
            )
            alarm = metric.create_alarm(
                self,
                queue,
                alarm_name=f"{queue}-not-empty",
                alarm_description="Nothing could process these. Look at them, mend the cause, send them again.",
                threshold=0,
                comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
                evaluation_periods=1,
                treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
            )
            alarm.add_alarm_action(actions.SnsAction(notified))
