"""Takes messages of SQS, SNS, EventBridge, Kinesis, Kafka and HTTP requests into topics.

What each source may expect is said in ``brokerless.ingest.batches`` and ``brokerless.ingest.http``. Event source
mappings must ask for partial batch responses (``ReportBatchItemFailures``), and that of Kinesis must keep a
parallelization factor of 1.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from aws_lambda_powertools import Logger

from brokerless.aws.environment import IngestEnvironment
from brokerless.ingest.batches import TIMEOUT_S, Ingest, Routes
from brokerless.ingest.http import Post, Posts
from brokerless.metrics import Meter
from brokerless.producer.pool import Producers
from brokerless.settings import Settings
from brokerless.store import open_store
from lambdas.emf import emit
from lambdas.ingest.events import batch_of, post_of

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

ENVIRONMENT: Final = IngestEnvironment.load()
METER: Final = Meter()
STORE: Final = open_store(Settings.load(root=ENVIRONMENT.root))
PRODUCERS: Final = Producers(STORE, timeout_s=TIMEOUT_S)
ROUTES: Final = Routes(ENVIRONMENT.topics, ENVIRONMENT.default_topic)
INGEST: Final = Ingest(STORE, routes=ROUTES, producers=PRODUCERS, meter=METER)
POSTS: Final = Posts(routes=ROUTES, producers=PRODUCERS, max_bytes=ENVIRONMENT.max_body_bytes, meter=METER)

logger = Logger()


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answers a request, or which messages of a batch are to be delivered again.

    Raises:
        BrokerlessError: none of the batch could be taken, or the source knows no partial answer.
    """
    try:
        post = post_of(event)
        return _take(event) if post is None else _answer(post)
    finally:
        emit(METER, ENVIRONMENT.metrics_namespace)


def _answer(post: Post) -> dict[str, Any]:
    answer = POSTS.answer(post)
    logger.info("A request was answered.", status=answer.status, bytes=len(post.body))
    headers = {"Content-Type": "application/json", **answer.headers}
    return {"statusCode": answer.status, "headers": headers, "body": json.dumps(answer.content)}


def _take(event: dict[str, Any]) -> dict[str, Any]:
    batch = batch_of(event)
    taken = INGEST.take(batch.messages)
    log = logger.error if taken.failed else logger.info
    log(
        "A batch was taken.",
        committed=taken.committed,
        rejected=taken.rejected,
        skipped=taken.skipped,
        failed=len(taken.failed),
        errors=[str(error) for error in taken.errors],
    )
    if taken.failed and (not batch.partial or len(taken.failed) == len(batch.messages)):
        raise taken.errors[0]
    return batch.failures(taken.failed)
