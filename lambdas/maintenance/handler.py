"""Maintain the tables of all topics, for as long as the function's time allows. A schedule starts it.

The next run continues with the remaining tables: ``Maintainer.run_round`` stores its position below the root. Only one
instance may run at a time, because a table has one maintainer.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics

from brokerless.aws.environment import MaintenanceEnvironment
from brokerless.clock import SYSTEM
from brokerless.maintenance.maintainer import Maintainer
from brokerless.maintenance.step import NOT_OURS
from brokerless.metrics import BYTES_REMOVED, MAINTENANCE_SKIPPED

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

RESERVE_S: Final = 15.0
"""The reserved part of the function's time: a request that hangs until its time-out of 10 s, and storing the position.
If that is not enough, the function is killed, and the next run skips the table that it was at."""

ENVIRONMENT: Final = MaintenanceEnvironment.load()
MAINTAINER: Final = Maintainer(log_retention_s=ENVIRONMENT.log_retention_s, grace_s=ENVIRONMENT.grace_s)

logger = Logger()
# Without a service, which would become a second dimension that no dashboard or alarm asks for.
metrics = EphemeralMetrics(namespace=ENVIRONMENT.metrics_namespace, service="")
metrics.set_default_dimensions(**{MAINTENANCE_SKIPPED.dimension: ENVIRONMENT.stage})


@logger.inject_lambda_context
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, int]:
    """Return the number of maintained tables, removed bytes and skipped steps.

    Raises:
        BrokerlessError: the tables could not be listed, or the position could not be stored. It counts as skipped too.
    """
    until_s = SYSTEM.monotonic() + context.get_remaining_time_in_millis() / 1000 - RESERVE_S
    tables = removed = skipped = 0
    try:
        for report in MAINTAINER.run_round(until_s=until_s, garbage_every_s=ENVIRONMENT.sweep_every_s):
            log = logger.warning if report.skipped else logger.info
            log("A table was maintained.", **asdict(report))
            tables, removed = tables + 1, removed + report.bytes_removed
            skipped += len(report.skipped) * (
                report.skipped != (NOT_OURS,)
            )  # a table of another program raises no alarm
    except Exception:  # the tables were not maintained, and missing data would raise no alarm
        skipped += 1
        raise
    finally:
        metrics.add_metric(BYTES_REMOVED.name, BYTES_REMOVED.unit, removed)
        metrics.add_metric(MAINTENANCE_SKIPPED.name, MAINTENANCE_SKIPPED.unit, skipped)
    return {"tables": tables, "bytes_removed": removed, "skipped": skipped}
