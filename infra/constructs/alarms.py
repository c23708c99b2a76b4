"""Create the alarms of a stage from the definitions of metrics, for each topic and pipeline, and their SNS topics.

A critical alarm goes to the SNS topic ``page``, a warning to ``morning``. Both send to the stage's e-mails, and a pager
subscribes to the first. The meaning of an alarm, and what to do, is in its description and in the runbook.

Latency above the objective is not critical as long as the backlog shrinks: the alarm is a composite of two silent
alarms, and only the composite notifies anybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from brokerless.metrics import METRICS
from infra.checks import acknowledge

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms

    from brokerless.metrics import Alarm, Metric
    from infra.config import StageConfig

RUNBOOK: Final = "docs/runbook.md"

_DOES_NOT_SHRINK: Final = "IF(backlog > 0 AND DIFF(backlog) >= 0, 1, 0)"
"""Whether the backlog does not shrink. The minimum of a window omits the messages that a healthy pipeline processes."""


def runbook(metric: Metric) -> str:
    """Return the section of the runbook for the metric's alarm."""
    return f"{RUNBOOK}#{metric.name.lower()}"


def watched(stage: StageConfig, metric: Metric) -> tuple[str, ...]:
    """Return the values of the metric's dimension in the stage."""
    if metric.dimension == "Topic":
        return tuple(topic.name for topic in stage.topics)
    if metric.dimension == "Stage":
        return (stage.name,)
    with_canary_only = metric.emitter == "canary"
    return tuple(p.name for p in stage.pipelines if p.canary is not None or not with_canary_only)


def statistic_of(
    stage: StageConfig, metric: Metric, of: str, *, statistic: str, period: cdk.Duration, label: str | None = None
) -> cloudwatch.Metric:
    """Return one statistic of one topic's, pipeline's or stage's metric."""
    return cloudwatch.Metric(
        namespace=stage.metrics_namespace,
        metric_name=metric.name,
        dimensions_map={metric.dimension: of},
        statistic=statistic,
        period=period,
        label=label,
    )


class Alarms(Construct):
    """All alarms of a stage.

    Attributes:
        critical: the SNS topic of critical alarms.
        warning: the SNS topic of warnings.
        notified: the alarms that notify one of the two.

    Args:
        stage: the configuration.
        encryption_key: the key of both SNS topics; its policy must let CloudWatch use it, as that of ``Storage`` does,
            or alarms are never delivered. None leaves them unencrypted (AWS's own key for SNS is closed to CloudWatch);
            alarms name topics and pipelines, never messages.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, stage: StageConfig, encryption_key: kms.IKey | None
    ) -> None:
        super().__init__(scope, construct_id)
        self._stage = stage
        self.critical = self._topic("Page", "somebody should look now", encryption_key)
        self.warning = self._topic("Morning", "somebody should look in the morning", encryption_key)
        self.notified: list[cloudwatch.AlarmBase] = []
        for metric in METRICS:
            if metric.alarm is not None:
                for of in watched(stage, metric):
                    if self._is_due(metric.alarm, of):
                        self._notify(self._alarm(metric, metric.alarm, of), metric.alarm)

    def _is_due(self, alarm: Alarm, of: str) -> bool:
        pipeline = next((known for known in self._stage.pipelines if known.name == of), None)
        return pipeline is None or (pipeline.watched if alarm.canary else pipeline.running)

    def _topic(self, name: str, purpose: str, key: kms.IKey | None) -> sns.Topic:
        stage = self._stage
        topic = sns.Topic(
            self,
            name,
            topic_name=f"{stage.prefix}-{name.lower()}",
            display_name=f"brokerless {stage.name}: {purpose}",
            master_key=key,
            enforce_ssl=True,
        )
        # An explicit policy replaces the default one, which allowed CloudWatch to publish.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="AlarmsOfThisAccount",
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": cdk.Aws.ACCOUNT_ID}},
            )
        )
        for email in stage.alarm_emails:
            topic.add_subscription(subscriptions.EmailSubscription(email))
            acknowledge(
                topic,
                "Serverless-SNSRedrivePolicy",
                "What a mail server refuses is still on the dashboard; a queue of it would be read by nobody.",
            )
        return topic

    def _alarm(self, metric: Metric, alarm: Alarm, of: str) -> cloudwatch.AlarmBase:
        if alarm.backlog is None:
            return self._bound(metric, alarm, of, suffix="", why=_description(metric, alarm))
        late = self._bound(metric, alarm, of, suffix=f"-{alarm.statistic}", why=_half(metric))
        stuck = self._backlog(alarm.backlog, alarm, of, why=_half(metric))
        return cloudwatch.CompositeAlarm(
            self,
            f"{of}-{metric.name}",
            composite_alarm_name=self._name(metric, of),
            alarm_description=_description(metric, alarm),
            alarm_rule=cloudwatch.AlarmRule.all_of(late, stuck),
        )

    def _bound(self, metric: Metric, alarm: Alarm, of: str, *, suffix: str, why: str) -> cloudwatch.Alarm:
        above = alarm.below is None
        return cloudwatch.Alarm(
            self,
            f"{of}-{metric.name}{suffix}",
            alarm_name=self._name(metric, of) + suffix,
            alarm_description=why,
            metric=statistic_of(
                self._stage, metric, of, statistic=alarm.statistic, period=cdk.Duration.minutes(alarm.minutes)
            ),
            threshold=self._threshold(alarm, of),
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD
            if above
            else cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            evaluation_periods=1,
            treat_missing_data=cloudwatch.TreatMissingData.BREACHING
            if alarm.missing
            else cloudwatch.TreatMissingData.NOT_BREACHING,
        )

    def _threshold(self, alarm: Alarm, of: str) -> float:
        if alarm.above == "objective":
            return next(known.latency_objective_p99_s for known in self._stage.pipelines if known.name == of)
        return next(float(bound) for bound in (alarm.above, alarm.below) if bound is not None)

    def _backlog(self, metric: Metric, alarm: Alarm, of: str, *, why: str) -> cloudwatch.Alarm:
        period = cdk.Duration.minutes(alarm.minutes)
        floor = statistic_of(self._stage, metric, of, statistic="Minimum", period=period)
        return cloudwatch.Alarm(
            self,
            f"{of}-{metric.name}-growing",
            alarm_name=f"{self._name(metric, of)}-growing",
            alarm_description=why,
            metric=cloudwatch.MathExpression(
                expression=_DOES_NOT_SHRINK,
                using_metrics={"backlog": floor},
                period=period,
                label="the backlog does not shrink",
            ),
            threshold=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            # DIFF has no value for the first window that it sees, so it has to see two.
            evaluation_periods=2,
            datapoints_to_alarm=1,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )

    def _name(self, metric: Metric, of: str) -> str:
        stage = self._stage.name
        return f"{stage}-{metric.name}" if metric.dimension == "Stage" else f"{stage}-{of}-{metric.name}"

    def _notify(self, made: cloudwatch.AlarmBase, alarm: Alarm) -> None:
        action = actions.SnsAction(self.critical if alarm.critical else self.warning)
        made.add_alarm_action(action)
        made.add_ok_action(action)
        self.notified.append(made)


class QueueAlarms(Construct):
    """One alarm for each queue of what no function could process: it waits there until a person checks."""

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


def _description(metric: Metric, alarm: Alarm) -> str:
    return f"{alarm.why} What to do: {runbook(metric)}"


def _half(metric: Metric) -> str:
    return f"Half of the alarm {metric.name}, which rings when both halves do. What to do then: {runbook(metric)}"
