"""The budget of a stage, which notifies when 80 % is spent or 100 % is forecast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aws_cdk as cdk
from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_iam as iam
from constructs import Construct

if TYPE_CHECKING:
    from aws_cdk import aws_sns as sns

    from infra.config import StageConfig


class StageBudget(Construct):
    """A budget for the costs of all resources with the stage's tags.

    AWS knows costs by tag only for tags that were activated for cost allocation, once for an account: ``stage``.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, stage: StageConfig, usd: float, notified: sns.Topic
    ) -> None:
        super().__init__(scope, construct_id)
        notified.add_to_resource_policy(
            iam.PolicyStatement(
                sid="Budget",
                principals=[iam.ServicePrincipal("budgets.amazonaws.com")],
                actions=["sns:Publish"],
                resources=[notified.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": cdk.Aws.ACCOUNT_ID}},
            )
        )
        budgets.CfnBudget(
            self,
            "Budget",
            budget=budgets.CfnBudget.BudgetDataProperty(
                budget_name=stage.prefix,
                budget_type="COST",
                time_unit="MONTHLY",
                budget_limit=budgets.CfnBudget.SpendProperty(amount=usd, unit="USD"),
                cost_filters={"TagKeyValue": [f"user:stage${stage.name}"]},
            ),
            notifications_with_subscribers=[
                budgets.CfnBudget.NotificationWithSubscribersProperty(
                    notification=budgets.CfnBudget.NotificationProperty(
                        notification_type=kind,
                        comparison_operator="GREATER_THAN",
                        threshold=threshold,
                        threshold_type="PERCENTAGE",
                    ),
                    subscribers=[
                        budgets.CfnBudget.SubscriberProperty(subscription_type="SNS", address=notified.topic_arn)
                    ],
                )
                for kind, threshold in (("ACTUAL", 80), ("FORECASTED", 100))
            ],
        )
