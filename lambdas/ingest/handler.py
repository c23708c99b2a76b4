"""Ingest messages of SQS, SNS, EventBridge, Kinesis, Kafka and HTTP requests into topics.

The guarantees of each source are in ``docs/guarantees.md``. Event source mappings must ask for partial batch responses
(``ReportBatchItemFailures``), and that of Kinesis must have a parallelization factor of 1.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from aws_lambda_powertools import Logger

from brokerless.aws.environment import IngestEnvironment
from brokerless.ingest.batches import TIMEOUT_S, BatchIngest, Routes
from brokerless.ingest.http import HttpIngest, HttpRequest
from brokerless.metrics import Meter
from brokerless.producer.pool import ProducerPool
from brokerless.settings import Settings
from brokerless.store import open_store
from lambdas.emf import emit
from lambdas.ingest.events import batch_of, http_request_of

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

ENVIRONMENT: Final = IngestEnvironment.load()
METER: Final = Meter()
STORE: Final = open_store(Settings.load(root=ENVIRONMENT.root))
PRODUCERS: Final = ProducerPool(STORE, timeout_s=TIMEOUT_S)
ROUTES: Final = Routes(ENVIRONMENT.topics, ENVIRONMENT.default_topic)
INGEST: Final = BatchIngest(STORE, routes=ROUTES, producers=PRODUCERS, meter=METER)
HTTP: Final = HttpIngest(routes=ROUTES, producers=PRODUCERS, max_bytes=ENVIRONMENT.max_body_bytes, meter=METER)

logger = Logger()


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Return the response to a request, or the messages of a batch that must be delivered again.

    Raises:
        BrokerlessError: no message of the batch could be written, or the source does not accept a partial response.
    """
    try:
        request = http_request_of(event)
        return _ingest(event) if request is None else _respond(request)
    finally:
        emit(METER, ENVIRONMENT.metrics_namespace)


def _respond(request: HttpRequest) -> dict[str, Any]:
    response = HTTP.handle(request)
    logger.info("A request was handled.", status=response.status, bytes=len(request.body))
    headers = {"Content-Type": "application/json", **response.headers}
    return {"statusCode": response.status, "headers": headers, "body": json.dumps(response.content)}


def _ingest(event: dict[str, Any]) -> dict[str, Any]:
    batch = batch_of(event)
    result = INGEST.ingest(batch.messages)
    log = logger.error if result.failed else logger.info
    log(
        "A batch was ingested.",
        committed=result.committed,
        rejected=result.rejected,
        skipped=result.skipped,
        failed=len(result.failed),
        errors=[str(error) for error in result.errors],
    )
    if result.failed and (not batch.partial or len(result.failed) == len(batch.messages)):
        raise result.errors[0]
    return batch.failures(result.failed)
