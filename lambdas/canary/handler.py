"""Send the canary's message and report its latency, or that it is missing. A schedule starts it each minute.

The function must have no retries (a repeated event is another message), one instance at a time, and a time-out of at
least that of the canary and ``RESERVE_S``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics

from brokerless.aws.canary import Canary
from brokerless.aws.environment import CanaryEnvironment
from brokerless.metrics import CANARY_LATENCY, CANARY_MISSING

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

RESERVE_S: Final = 10.0
"""The reserved part of the function's time, to read dead letters and to report: a killed function reports nothing."""

ENVIRONMENT: Final = CanaryEnvironment.load()
CANARY: Final = Canary(ENVIRONMENT.topic, ENVIRONMENT.output)

logger = Logger()
# Without a service, which would become a second dimension that no dashboard or alarm asks for.
metrics = EphemeralMetrics(namespace=ENVIRONMENT.metrics_namespace, service="")
metrics.set_default_dimensions(**{CANARY_LATENCY.dimension: ENVIRONMENT.pipeline})


@logger.inject_lambda_context
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Return the latency in seconds, or None.

    Raises:
        BrokerlessError: the message could not be sent, or the output could not be read. It counts as missing too.
    """
    timeout_s = min(ENVIRONMENT.timeout_s, context.get_remaining_time_in_millis() / 1000 - RESERVE_S)
    try:
        result = CANARY.run(timeout_s)
    except Exception:  # the message was not received, and missing data would raise no alarm
        metrics.add_metric(CANARY_MISSING.name, CANARY_MISSING.unit, 1)
        raise
    log = logger.error if result.latency_s is None else logger.info
    log(str(result), canary=result.text, requests=dict(result.requests), usd=result.usd)
    metrics.add_metric(CANARY_MISSING.name, CANARY_MISSING.unit, int(result.latency_s is None))
    if result.latency_s is not None:
        metrics.add_metric(CANARY_LATENCY.name, CANARY_LATENCY.unit, result.latency_s)
    return {"latency_s": result.latency_s, "text": result.text, "dead_letter": result.reason}
