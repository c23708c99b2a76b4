"""HTTP requests with messages: all of a request is committed, or nothing.

======  ========================================================================================================
answer  when
======  ========================================================================================================
200     committed; the body has the acknowledgements: topic, partition, first and last offset
400     the body cannot be read, a message does not fit the topic, or a header is wrong; says where and why
403     the topic is not one of those that are allowed
404     there is no such path, or the allowed topic does not exist
405     not a POST
413     too large, also after it was unpacked, or too many messages
415     another content type, character set or encoding
429     other writers were faster until the deadline; nothing was written
503     the store failed or did not say what happened; ``unknown`` tells whether the messages may still appear
======  ========================================================================================================

``POST /topics/<topic>``, or ``POST /`` for the default topic. A client that repeats a request after 503 or a lost
answer writes its messages twice, unless it says who it is and which request this is: ``Producer-Id`` (a lasting name)
and ``Producer-Sequence`` (0 or more, growing). It then sends one request at a time, and the same request again until
it is answered; what the log has already is acknowledged with ``duplicate``. Ids belong to the caller that was
authenticated (``namespace_of``): nobody can use those of another caller, of a library's producer or of a pipeline.

Refused messages are not kept: the client has them, and knows why.
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
    from brokerless.producer.pool import Producers

_PATH: Final = re.compile(r"/(?:topics/([^/]+)/?)?")
_PRODUCER_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_EPOCH: Final = "epoch"  # in a name space, its sequences would look like an epoch, which outlives the topic
_MAX_CALLER: Final = 120
_SEQUENCE: Final = re.compile(r"[0-9]{1,18}")
_RETRY_AFTER: Final = {"Retry-After": "2"}


@dataclass(frozen=True, slots=True)
class Post:
    """A request.

    Attributes:
        headers: names in small letters.
        caller: who sends it, as AWS or another gate has found out, never as the sender says; empty if nobody asked.
        body: as the event has it.
        base64_encoded: whether ``body`` is.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: str
    base64_encoded: bool
    caller: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request; ``content`` is its body, to be written as JSON."""

    status: int
    content: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


class _Refused(Exception):
    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(reason)
        self.answer = Answer(status, {"error": reason, **more}, headers or {})


class Posts:
    """Answers requests. Keep it for as long as the process lives.

    Args:
        routes: where messages may go.
        producers: of the topics.
        max_bytes: of one body, packed and unpacked.
        meter: counts what happened.
        clock: measures how long it took.
    """

    def __init__(
        self,
        *,
        routes: Routes,
        producers: Producers,
        max_bytes: int,
        meter: Meter,
        clock: Clock = SYSTEM,
    ) -> None:
        self._routes = routes
        self._producers = producers
        self._max_bytes = max_bytes
        self._meter = meter
        self._clock = clock

    def answer(self, post: Post) -> Answer:
        """Commits the request's messages, or says why not.

        Raises:
            BrokerlessError: the function is set up wrongly (credentials, bucket), or the log is damaged; nothing
                was written.
        """
        try:
            topic = self._topic_of(post)
            try:
                return self._commit(topic, post)
            except _Refused as refused:
                if refused.answer.status in {400, 413, 415}:
                    self._meter.add(metrics.REJECTED_MESSAGES, topic, 1)
                raise
        except _Refused as refused:
            return refused.answer

    def _topic_of(self, post: Post) -> str:
        match = _PATH.fullmatch(post.path)
        if match is None:
            reason = f"There is nothing at {excerpt(post.path)}. Send messages to /topics/<topic>."
            raise _Refused(404, reason)
        topic = match[1] or self._routes.default
        if not topic:
            reason = "There is no default topic. Send messages to /topics/<topic>."
            raise _Refused(404, reason)
        if topic not in self._routes.topics:
            reason = f"The topic {excerpt(topic)} is not allowed here."
            raise _Refused(403, reason)
        if post.method != "POST":
            reason = f"{excerpt(post.method)} is not possible here. Send messages by POST."
            raise _Refused(405, reason, {"Allow": "POST"})
        return topic

    def _commit(self, topic: str, post: Post) -> Answer:
        begun = self._clock.monotonic()
        producer_id, sequence = _identity(post.headers)
        try:
            encoding = post.headers.get("content-encoding", "")
            data = raw_body(post.body, base64_encoded=post.base64_encoded, encoding=encoding, max_bytes=self._max_bytes)
            acks, conflicts = self._send(topic, data, post, producer_id, sequence)
        except BodyTooLarge as error:
            raise _Refused(413, str(error)) from error
        except UnsupportedBody as error:
            raise _Refused(415, str(error)) from error
        except (MessageError, SchemaError) as error:
            raise _Refused(400, str(error)) from error
        except (TopicNotFound, TopicDeleted) as error:
            self._producers.forget(topic)
            reason = f"The topic {topic!r} does not exist."
            raise _Refused(404, reason) from error
        except (DeliveryFailed, ProducerFenced, StoreUnavailable, TopicChanged) as error:
            raise _unavailable(error) from error
        except UsageError as error:
            if type(error) is not UsageError:
                raise  # the operator's, such as settings
            raise _Refused(400, str(error)) from error  # a sequence that goes back
        if rows := sum(ack.rows for ack in acks if not ack.duplicate):
            self._meter.add(metrics.PRODUCED_MESSAGES, topic, rows)
            self._meter.observe(metrics.PRODUCE_LATENCY, topic, self._clock.monotonic() - begun)
        if conflicts:
            self._meter.add(metrics.COMMIT_CONFLICTS, topic, conflicts)
        return Answer(200, {"acks": [_ack(ack) for ack in acks]})

    def _send(
        self, topic: str, data: bytes, post: Post, producer_id: str | None, sequence: int | None
    ) -> tuple[tuple[Ack, ...], int]:
        namespace = None if producer_id is None else namespace_of(post.caller)

        def attempt() -> tuple[tuple[Ack, ...], int]:
            producer = self._producers.get(topic, producer_id, namespace=namespace)
            before = producer.conflicts
            try:
                reader = RowReader(topic, producer.schema)
                table = table_of(data, content_type=post.headers.get("content-type", ""), reader=reader)
                return producer.send(table, sequence=sequence), producer.conflicts - before
            except (MessageError, SchemaError):
                producer.confirm()  # the topic may have other columns by now
                raise

        try:
            return attempt()
        except TopicChanged:
            self._producers.forget(topic)  # all of them hold the old one
        except ProducerFenced:
            # Another copy of this function answered the client's last request, and has its id since then.
            self._producers.forget(topic, producer_id, namespace=namespace)
        return attempt()  # nothing was written


def namespace_of(caller: str) -> str:
    """Where the producer ids of a caller live: apart from those of the library, of pipelines and of other callers.

    Letters, digits, '.', '_' and '-' stay, other characters are escaped with '%'. What is too long is cut, with a hash
    behind '~', which no escaped name has.
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
        reason = "Producer-Id and Producer-Sequence belong together. Send both, or none."
        raise _Refused(400, reason)
    if not _PRODUCER_ID.fullmatch(producer_id) or producer_id == _EPOCH:
        reason = (
            f"Producer-Id {excerpt(producer_id)} must be 1 to 200 letters, digits, '.', '_' or '-', not '{_EPOCH}'."
        )
        raise _Refused(400, reason)
    if not _SEQUENCE.fullmatch(sequence):
        reason = f"Producer-Sequence {excerpt(sequence)} must be a number of at most 18 digits."
        raise _Refused(400, reason)
    return producer_id, int(sequence)


def _unavailable(error: BrokerlessError) -> _Refused:
    cause = error.__cause__ if isinstance(error, DeliveryFailed) else error
    if isinstance(cause, NotCommitted):
        reason = "Too many writers at once; nothing was written. Send the request again."
        return _Refused(429, reason, _RETRY_AFTER, unknown=False)
    if isinstance(cause, ProducerFenced):
        reason = "Another request with this Producer-Id is under way; nothing was written. Send one at a time."
        return _Refused(503, reason, _RETRY_AFTER, unknown=False)
    if isinstance(cause, TopicChanged):
        reason = "The topic was changed or created again meanwhile; nothing was written. Send the request again."
        return _Refused(503, reason, _RETRY_AFTER, unknown=False)
    if isinstance(cause, CommitUnknown):
        reason = (
            "The store did not say whether the messages were committed: they may still appear. Send the same request "
            "again; without Producer-Id and Producer-Sequence they can then be there twice."
        )
        return _Refused(503, reason, _RETRY_AFTER, unknown=True)
    if isinstance(cause, StoreUnavailable):
        reason = "The store does not answer; nothing was written. Send the request again."
        return _Refused(503, reason, _RETRY_AFTER, unknown=False)
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
