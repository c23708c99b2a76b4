"""Convert events of AWS services into messages: the source, position and topic of each message.

=========================  ==================================  ================  ==============================
event                      source of a message                 position          topic
=========================  ==================================  ================  ==============================
SQS FIFO                   ``sqs/<queue>/<group>``             sequence number   message attribute ``topic``
SQS standard               ``sqs/<queue>``                     none              message attribute ``topic``
Kinesis                    ``kinesis/<stream>/<shard>``        sequence number   the default
MSK, self-managed Kafka    ``kafka/<cluster>/<partition>``     offset            the default
SNS                        ``sns/<topic>``                     none              message attribute ``topic``
EventBridge                ``eventbridge/<source>/<type>``     none              the default
=========================  ==================================  ================  ==============================

The envelopes of SNS and EventBridge in a queue are removed: the message is the notification's text, or the event's
detail.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

from aws_lambda_powertools.utilities.data_classes import (
    EventBridgeEvent,
    KafkaEvent,
    KinesisStreamEvent,
    LambdaFunctionUrlEvent,
    SNSEvent,
    SQSEvent,
)

from brokerless.columns.text import DECODER
from brokerless.errors import MessageError
from brokerless.ingest.batches import SourceMessage
from brokerless.ingest.http import HttpRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TOPIC: Final = "topic"
_NOTIFICATION: Final = frozenset({"Type", "MessageId", "TopicArn", "Message", "Timestamp"})
_EVENT: Final = frozenset({"id", "source", "detail-type", "detail", "account", "region"})


class _KafkaItem(TypedDict):
    partition: str
    offset: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages of an event.

    Attributes:
        partial: whether the service accepts a list of messages to deliver again; otherwise the function must fail.
        stream: whether the service delivers everything again from the first of these messages on.
    """

    messages: tuple[SourceMessage, ...]
    partial: bool
    stream: bool = False

    def failures(self, failed: Iterable[SourceMessage]) -> dict[str, Any]:
        """Return the response that makes the service deliver these messages again."""
        if self.stream:
            first: dict[str, SourceMessage] = {}
            for message in failed:
                first.setdefault(message.source, message)
            failed = first.values()
        return {"batchItemFailures": [{"itemIdentifier": message.item} for message in failed]}


def http_request_of(event: dict[str, Any]) -> HttpRequest | None:
    """Return the request of a function URL's event (or an HTTP API's, which is the same); None for other events."""
    if "http" not in event.get("requestContext", {}):
        return None
    request = LambdaFunctionUrlEvent(event)
    return HttpRequest(
        method=request.request_context.http.method,
        path=request.raw_path,
        headers={name.lower(): value for name, value in request.headers.items()},
        body=request.body or "",
        base64_encoded=bool(request.is_base64_encoded),
        caller=_caller(event["requestContext"].get("authorizer")),
    )


def _caller(authorizer: Any) -> str:
    """Return the identity that AWS authenticated; empty without authentication or with an unknown authorizer.

    A role is named without its session, because the instances of one program share the role.
    """
    match authorizer:
        # All users of an identity pool have one role.
        case {"iam": {"cognitoIdentity": {"identityId": str(identity)}}}:
            return f"cognito:{identity}"
        case {"iam": {"userArn": str(arn)}}:
            return "/".join(arn.split("/")[:2]) if ":assumed-role/" in arn else arn
        case {"iam": {"callerId": str(principal)}}:
            return f"iam:{principal}"
        case {"jwt": {"claims": {"iss": str(issuer), "sub": str(subject)}}}:
            return f"jwt:{issuer}:{subject}"
    return ""


def batch_of(event: dict[str, Any]) -> Batch:
    """Return the messages of an event of a queue, stream or bus.

    Raises:
        MessageError: the event is of another service, or has another form. Nothing was written.
    """
    try:
        return _batch_of(event)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise MessageError(
            f"An event with the keys {sorted(map(str, event))[:10]} does not have the form of its service "
            f"({type(error).__name__}: {str(error)[:200]}). Nothing was written. Check the settings of the source."
        ) from error


def _batch_of(event: dict[str, Any]) -> Batch:
    if event.get("eventSource") in {"aws:kafka", "SelfManagedKafka"}:
        return Batch(tuple(_kafka(event)), partial=True, stream=True)
    if "detail-type" in event:
        return Batch((_event_bridge(event),), partial=False)
    records = event.get("Records") or [{}]
    match records[0].get("eventSource") or records[0].get("EventSource"):
        case "aws:sqs":
            return Batch(tuple(_sqs(event)), partial=True)
        case "aws:kinesis":
            return Batch(tuple(_kinesis(event)), partial=True, stream=True)
        case "aws:sns":
            return Batch(tuple(_sns(event)), partial=False)
    raise MessageError(
        f"An event with the keys {sorted(event)[:10]} is not of a supported service. Send messages by "
        "SQS, SNS, EventBridge, Kinesis, Kafka, or as a request to the function's URL."
    )


def _sqs(event: dict[str, Any]) -> Iterator[SourceMessage]:
    for record in SQSEvent(event).records:
        attribute = record.message_attributes[_TOPIC]
        topic = attribute.get("stringValue") if attribute else None
        body, inner_topic = _unwrapped(record.body)
        source, position = f"sqs/{record.event_source_arn}", None
        # Standard queues can have message groups as well, but no sequence numbers.
        if (number := record.attributes.sequence_number) is not None:
            source, position = f"{source}/{record.attributes.message_group_id}", int(number)
        yield SourceMessage(body, source, record.message_id, position, topic or inner_topic)


def _kinesis(event: dict[str, Any]) -> Iterator[SourceMessage]:
    for record in KinesisStreamEvent(event).records:
        # With enhanced fan-out the source is a consumer of the stream, but the positions are those of the shard.
        stream = record.event_source_arn.partition("/consumer/")[0]
        shard = record.event_id.partition(":")[0]
        number = record.kinesis.sequence_number
        yield SourceMessage(_decoded(record.kinesis.data), f"kinesis/{stream}/{shard}", number, int(number))


def _kafka(event: dict[str, Any]) -> Iterator[SourceMessage]:
    kafka = KafkaEvent(event)
    # The order in which somebody listed the brokers says nothing.
    cluster = kafka.event_source_arn or ",".join(sorted(kafka.decoded_bootstrap_servers))
    for record in kafka.records:
        body = _decoded(record["value"]) if record.get("value") is not None else None
        offset = int(record.offset)
        item = _KafkaItem(partition=f"{record.topic}-{record.partition}", offset=offset)
        source = f"kafka/{cluster}/{record.topic}/{record.partition}"
        yield SourceMessage(body, source, item, offset)


def _sns(event: dict[str, Any]) -> Iterator[SourceMessage]:
    for record in SNSEvent(event).records:
        body, _ = _unwrapped(record.sns.message)
        yield SourceMessage(
            body, f"sns/{record.sns.topic_arn}", record.sns.message_id, topic=_sns_topic(record.sns.raw_event)
        )


def _event_bridge(event: dict[str, Any]) -> SourceMessage:
    bus = EventBridgeEvent(event)
    return SourceMessage(json.dumps(bus.detail).encode(), f"eventbridge/{bus.source}/{bus.detail_type}", bus.get_id)


def _decoded(text: str) -> bytes:
    """Return the bytes of a payload. Text that is not base64 is returned as it is, and becomes a dead letter."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return text.encode(errors="surrogatepass")


def _unwrapped(text: str) -> tuple[bytes, str | None]:
    """Return a message without the envelopes of SNS and EventBridge, and the topic that the SNS envelope names.

    An envelope is recognised by keys that a message cannot have together: a column cannot be called ``detail-type``,
    and no topic has columns ``TopicArn``, ``MessageId`` and the other keys by accident.
    """
    topic = None
    if '"TopicArn"' in text and (found := _object(text)) and found.keys() >= _NOTIFICATION:
        text, topic = str(found["Message"]), _sns_topic(found)
    if '"detail-type"' in text and (found := _object(text)) and found.keys() >= _EVENT:
        text = json.dumps(found["detail"])
    return text.encode(errors="surrogatepass"), topic


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = DECODER.decode(text)
    except (ValueError, RecursionError):
        return None  # not an envelope; the reader of the topic decides whether it is a message
    return found if isinstance(found, dict) else None


def _sns_topic(notification: dict[str, Any]) -> str | None:
    attributes = notification.get("MessageAttributes")
    attribute = attributes.get(_TOPIC) if isinstance(attributes, dict) else None
    value = attribute.get("Value") if isinstance(attribute, dict) else None
    return value if isinstance(value, str) else None
