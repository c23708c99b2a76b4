"""Commit the messages of HTTP requests: either all messages of a request, or none.

======  ========================================================================================================
status  when
======  ========================================================================================================
200     committed; the body has the acknowledgements: topic, partition, first and last offset
400     the body cannot be read, a message does not fit the topic, or a header is invalid; names the line
403     the topic is not one of those that are allowed
404     the path or the allowed topic does not exist
405     not a POST
413     the body is too large, packed or unpacked, or has too many messages
415     the content type, character set or encoding is not supported
429     other writers won each commit until the deadline; nothing was written
503     the store failed or did not respond; ``unknown`` says whether the messages may still appear
======  ========================================================================================================

``POST /topics/<topic>``, or ``POST /`` for the default topic. A request that a client repeats after 503 or after a lost
response is written twice, unless it has the headers ``Producer-Id`` (a permanent name) and ``Producer-Sequence`` (a
growing number, from 0): then a repeated request is acknowledged with ``duplicate``. Ids belong to the authenticated
caller (``namespace_of``). Rejected messages are not stored: the client has them, and the response has the reason.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from brokerless import metrics
from brokerless.clock import SYSTEM, Clock
from brokerless.columns.text import RowReader, excerpt
from brokerless.errors import (
    BrokerlessError,
    CommitUnknown,
    DeliveryFailed,
    MessageError,
    NotCommitted,
    ProducerFenced,
    SchemaError,
    StoreUnavailable,
    TopicChanged,
    TopicDeleted,
    TopicNotFound,
    UsageError,
)
from brokerless.ingest.bodies import BodyTooLarge, UnsupportedBody, raw_body, table_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokerless.ingest.batches import Routes
    from brokerless.metrics import Meter
    from brokerless.offsets import Ack
    from brokerless.producer.pool import ProducerPool

_PATH: Final = re.compile(r"/(?:topics/([^/]+)/?)?")
_PRODUCER_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_EPOCH: Final = "epoch"  # in a namespace, its sequences would be read as an epoch, which outlives the topic
_MAX_CALLER: Final = 120
_SEQUENCE: Final = re.compile(r"[0-9]{1,18}")
_UNAVAILABLE: Final[tuple[tuple[type[BrokerlessError], int, str], ...]] = (
    (NotCommitted, 429, "Too many writers commit at the same time; nothing was written. Send the request again."),
    (
        ProducerFenced,
        503,
        "A request with this Producer-Id is being processed; nothing was written. Send one request at a time.",
    ),
    (TopicChanged, 503, "The topic changed during the request; nothing was written. Send the request again."),
    (
        CommitUnknown,
        503,
        "The store did not respond, so the messages may or may not be committed. Send the same request again; "
        "without Producer-Id and Producer-Sequence it can be written twice.",
    ),
    (StoreUnavailable, 503, "The store does not respond; nothing was written. Send the request again."),
)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP request.

    Attributes:
        headers: values by name in lower case.
        body: as in the event.
        base64_encoded: whether ``body`` is base64.
        caller: the identity that AWS or another gateway authenticated, never what the sender claims; empty without
            authentication.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: str
    base64_encoded: bool
    caller: str = ""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The response to a request. ``content`` is its body, to be encoded as JSON."""

    status: int
    content: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpError(Exception):
    """A request that is not committed, with its response."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(reason)
        self.response = HttpResponse(status, {"error": reason, **more}, headers or {})


class HttpIngest:
    """Handles HTTP requests with messages. Create one a process: it uses the pool's opened producers.

    Args:
        routes: the allowed topics.
        producers: the pool of the topics' producers.
        max_bytes: the limit of one body, packed and unpacked.
        meter: receives the counts and latencies.
        clock: measures latencies.
    """

    def __init__(
        self,
        *,
        routes: Routes,
        producers: ProducerPool,
        max_bytes: int,
        meter: Meter,
        clock: Clock = SYSTEM,
    ) -> None:
        self._routes = routes
        self._producers = producers
        self._max_bytes = max_bytes
        self._meter = meter
        self._clock = clock

    def handle(self, request: HttpRequest) -> HttpResponse:
        """Commit the request's messages and return the response.

        Raises:
            BrokerlessError: the function is configured wrongly (credentials, bucket), or the log is damaged; nothing
                was written.
        """
        try:
            topic = self._topic_of(request)
            try:
                return self._commit(topic, request)
            except HttpError as error:
                if error.response.status in {400, 413, 415}:
                    self._meter.add(metrics.REJECTED_MESSAGES, topic, 1)
                raise
        except HttpError as error:
            return error.response

    def _topic_of(self, request: HttpRequest) -> str:
        match = _PATH.fullmatch(request.path)
        if match is None:
            raise HttpError(404, f"The path {excerpt(request.path)} does not exist. Send messages to /topics/<topic>.")
        topic = match[1] or self._routes.default
        if not topic:
            raise HttpError(404, "There is no default topic. Send messages to /topics/<topic>.")
        if topic not in self._routes.topics:
            raise HttpError(403, f"The topic {excerpt(topic)} is not allowed here.")
        if request.method != "POST":
            raise HttpError(405, f"The method must be POST, got {excerpt(request.method)}.", {"Allow": "POST"})
        return topic

    def _commit(self, topic: str, request: HttpRequest) -> HttpResponse:
        begun = self._clock.monotonic()
        producer_id, sequence = _identity(request.headers)
        try:
            encoding = request.headers.get("content-encoding", "")
            data = raw_body(
                request.body,
                base64_encoded=request.base64_encoded,
                encoding=encoding,
                max_bytes=self._max_bytes,
            )
            acks, conflicts = self._send(topic, data, request, producer_id, sequence)
        except BodyTooLarge as error:
            raise HttpError(413, str(error)) from error
        except UnsupportedBody as error:
            raise HttpError(415, str(error)) from error
        except (MessageError, SchemaError) as error:
            raise HttpError(400, str(error)) from error
        except (TopicNotFound, TopicDeleted) as error:
            self._producers.forget(topic)
            raise HttpError(404, f"The topic {topic!r} does not exist.") from error
        except (DeliveryFailed, ProducerFenced, StoreUnavailable, TopicChanged) as error:
            raise _unavailable(error) from error
        except UsageError as error:
            if type(error) is not UsageError:
                raise  # an error of the operator, such as invalid settings
            raise HttpError(400, str(error)) from error  # a sequence that goes back
        if rows := sum(ack.rows for ack in acks if not ack.duplicate):
            self._meter.add(metrics.PRODUCED_MESSAGES, topic, rows)
            self._meter.observe(metrics.PRODUCE_LATENCY, topic, self._clock.monotonic() - begun)
        if conflicts:
            self._meter.add(metrics.COMMIT_CONFLICTS, topic, conflicts)
        return HttpResponse(200, {"acks": [_ack(ack) for ack in acks]})

    def _send(
        self, topic: str, data: bytes, request: HttpRequest, producer_id: str | None, sequence: int | None
    ) -> tuple[tuple[Ack, ...], int]:
        namespace = None if producer_id is None else namespace_of(request.caller)

        def attempt() -> tuple[tuple[Ack, ...], int]:
            producer = self._producers.get(topic, producer_id, namespace=namespace)
            before = producer.conflicts
            try:
                reader = RowReader(topic, producer.schema)
                table = table_of(data, content_type=request.headers.get("content-type", ""), reader=reader)
                return producer.send(table, sequence=sequence), producer.conflicts - before
            except (MessageError, SchemaError):
                producer.confirm()  # the topic may have other columns by now
                raise

        try:
            return attempt()
        except TopicChanged:
            self._producers.forget(topic)  # all of them opened the old topic
        except ProducerFenced:
            # Another instance of this function handled the client's last request, and owns its id since then.
            self._producers.forget(topic, producer_id, namespace=namespace)
        return attempt()  # nothing was written


def namespace_of(caller: str) -> str:
    """Return the namespace of a caller's producer ids: separate from the library, pipelines and other callers.

    Letters, digits, '.', '_' and '-' are unchanged; other characters are escaped with '%'. A name that is too long is
    cut and gets a hash after '~', a character that no escaped name has.
    """
    name = quote(caller, safe="").replace("~", "%7E")
    if len(name) > _MAX_CALLER:
        name = f"{name[:_MAX_CALLER]}~{hashlib.sha256(caller.encode()).hexdigest()}"
    return f"http/{name or 'anonymous'}"


def _identity(headers: Mapping[str, str]) -> tuple[str | None, int | None]:
    producer_id, sequence = headers.get("producer-id"), headers.get("producer-sequence")
    if producer_id is None and sequence is None:
        return None, None
    if producer_id is None or sequence is None:
        raise HttpError(400, "Producer-Id and Producer-Sequence must be sent together. Send both headers, or neither.")
    if not _PRODUCER_ID.fullmatch(producer_id) or producer_id == _EPOCH:
        reason = (
            f"Producer-Id must be 1 to 200 letters, digits, '.', '_' or '-', and not '{_EPOCH}', "
            f"got {excerpt(producer_id)}."
        )
        raise HttpError(400, reason)
    if not _SEQUENCE.fullmatch(sequence):
        raise HttpError(400, f"Producer-Sequence must be a number of at most 18 digits, got {excerpt(sequence)}.")
    return producer_id, int(sequence)


def _unavailable(error: BrokerlessError) -> HttpError:
    cause = error.__cause__ if isinstance(error, DeliveryFailed) else error
    for kind, status, reason in _UNAVAILABLE:
        if isinstance(cause, kind):
            return HttpError(status, reason, {"Retry-After": "2"}, unknown=kind is CommitUnknown)
    raise error


def _ack(ack: Ack) -> dict[str, Any]:
    known = ack.version >= 0
    return {
        "topic": ack.topic,
        "partition": ack.partition,
        "first": str(ack.first) if known else None,
        "last": str(ack.last) if known else None,
        "messages": ack.rows,
        "duplicate": ack.duplicate,
    }
