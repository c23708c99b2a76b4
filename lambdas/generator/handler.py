"""Send the example's messages. The event ``{"rate_per_s": 100, "duration_s": 50}`` overrides the environment.

A repeated run sends its messages again, so invoke the function without retries.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from aws_lambda_powertools import Logger

from brokerless.aws.environment import GeneratorEnvironment
from brokerless.examples.timezone.generator import generate
from brokerless.metrics import Meter
from brokerless.settings import Settings
from brokerless.store import open_store
from lambdas.emf import emit

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

ENVIRONMENT: Final = GeneratorEnvironment.load()
METER: Final = Meter()

logger = Logger()


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Return the numbers of messages that were due, sent and acknowledged.

    Raises:
        BrokerlessError: the rate or duration is invalid, or a topic does not exist; nothing was sent.
    """
    try:
        generated = generate(
            open_store(Settings.load(root=ENVIRONMENT.root)),
            rate_per_s=event.get("rate_per_s", ENVIRONMENT.rate_per_s),
            duration_s=event.get("duration_s", ENVIRONMENT.duration_s),
            meter=METER,
            remaining_s=lambda: context.get_remaining_time_in_millis() / 1000,
        )
    finally:
        emit(METER, ENVIRONMENT.metrics_namespace)
    log = logger.info if generated.acknowledged == generated.due else logger.warning
    log("Messages were generated.", **asdict(generated))
    return asdict(generated)
