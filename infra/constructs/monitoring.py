"""Alarms and a dashboard of a stage, made from ``brokerless.metrics.METRICS`` and the configuration.

Nothing is named here a second time: a metric that is added to the definitions gets its graph and its alarm, a topic or
pipeline that is added to the configuration gets all of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from constructs import Construct

from infra.constructs.alarms import Alarms
from infra.constructs.dashboard import Dashboard

if TYPE_CHECKING:
    from aws_cdk import aws_kms as kms

    from infra.config import StageConfig


class Monitoring(Construct):
    """Alarms and dashboard of a stage.

    Attributes:
        alarms: and the SNS topics that they tell.

    Args:
        scope: the parent.
        construct_id: below it.
        stage: the configuration.
        encryption_key: the stage's; None if it has none.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, stage: StageConfig, encryption_key: kms.IKey | None
    ) -> None:
        super().__init__(scope, construct_id)
        self.alarms = Alarms(self, "Alarms", stage=stage, encryption_key=encryption_key)
        Dashboard(self, "Dashboard", stage=stage, alarms=self.alarms.notified)
