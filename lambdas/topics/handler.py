"""Create topics for CloudFormation: the ``on_event`` function of a custom resource's Provider.

It returns when the topics exist, or raises an error, and the Provider reports the result to CloudFormation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aws_lambda_powertools import Logger

from brokerless.aws.environment import TopicsEnvironment
from brokerless.aws.topics_resource import on_event
from brokerless.settings import Settings
from brokerless.store import open_store

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

ENVIRONMENT: Final = TopicsEnvironment.load()
STORE: Final = open_store(Settings.load(root=ENVIRONMENT.root))

logger = Logger()


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Return ``PhysicalResourceId`` and ``Data``.

    Raises:
        BrokerlessError: a topic could not be created as it was asked for; CloudFormation shows the text.
    """
    answer, outcome = on_event(event, STORE)
    if outcome.ready:
        logger.info("These topics exist as they were asked for.", topics=outcome.ready)
    if outcome.left:
        logger.warning("These topics are not asked for any more. They were not changed.", topics=outcome.left)
    return answer
