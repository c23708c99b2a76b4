"""Create the topics of a deployment when CloudFormation asks for them. Topics are never deleted here.

CloudFormation deletes what is removed from a template. Messages must not be lost like that: a topic that is no longer
asked for is not changed, also when the stack is deleted. Only ``brokerless topics delete`` deletes messages.

Everything is checked before anything is created, and creation can be repeated: after an update that failed half-way,
its roll-back accepts the topics that exist.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from brokerless.aws.topic_request import TopicRequest
from brokerless.clock import SYSTEM, Clock
from brokerless.errors import AccessDenied, ConfigError
from brokerless.schema import Schema, dead_letters
from brokerless.topics import create_dead_letters, create_topic, describe_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from brokerless.store import Store

PATIENCE_S: Final = 60.0
"""How long the store may refuse access. In a new stack the function's policy is a few seconds old and not effective
everywhere yet; a longer refusal is a mistake in the policy."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a request.

    Attributes:
        ready: the topics that exist as they were asked for, with dead-letter topics.
        left: the topics that are not asked for any more and were not changed.
    """

    ready: tuple[str, ...]
    left: tuple[str, ...]


def on_event(event: Mapping[str, Any], store: Store, *, clock: Clock = SYSTEM) -> tuple[dict[str, Any], Outcome]:
    """Handle a CloudFormation event of the custom resource.

    Args:
        event: with ``RequestType`` ``Create``, ``Update`` or ``Delete``, and ``Topics`` in ``ResourceProperties``.
        store: the store of the topics.
        clock: time, randomness and sleeping.

    Returns:
        The response for the Provider framework, and the result. A deleted resource leaves every topic.

    Raises:
        ConfigError, SchemaError: the event is invalid; nothing was created.
        TopicExists: a topic exists with another schema or number of partitions.
        TopicNotFound: an input with dead letters is neither asked for nor exists.
        AccessDenied: the store still refuses after ``PATIENCE_S``.
        StoreUnavailable, ConditionalPutUnsupported: the store failed.
    """
    kind = event["RequestType"]
    # Always the same: after a new id CloudFormation would send a Delete for the old one.
    answer: dict[str, Any] = {"PhysicalResourceId": event.get("PhysicalResourceId") or f"topics:{store.uri}"}
    if kind == "Delete":
        return answer, Outcome((), _names(event["ResourceProperties"]))
    requests = [TopicRequest.from_properties(entry) for entry in _entries(event["ResourceProperties"])]
    if again := [name for name, count in Counter(request.name for request in requests).items() if count > 1]:
        raise ConfigError(f"Topic {again[0]!r} is named twice. Name each topic once.")
    ready = _patiently(lambda: create_topics(requests, store, clock=clock), clock)
    answer["Data"] = {"Topics": str(len(ready))}
    before = _names(event.get("OldResourceProperties", {}))
    wanted = {request.name for request in requests}
    return answer, Outcome(ready, tuple(name for name in before if name not in wanted))


def create_topics(requests: Sequence[TopicRequest], store: Store, *, clock: Clock = SYSTEM) -> tuple[str, ...]:
    """Create the topics, then the dead-letter topics, or accept equal ones. Return their names.

    Raises:
        TopicExists, TopicNotFound, ConfigError, StoreError: as ``create_topic``; topics that were created before it
            stay.
    """
    schemas: dict[str, Schema] = {}
    for request in requests:
        topic = create_topic(
            store, request.name, Schema.parse(request.schema), partitions=request.partitions, exist_ok=True, clock=clock
        )
        schemas[topic.name] = topic.schema
    ready = list(schemas)
    for request in requests:
        if not request.dead_letters_of:
            continue
        inputs = [
            schemas[name] if name in schemas else describe_topic(store, name, clock=clock).schema
            for name in request.dead_letters_of
        ]
        create_dead_letters(store, request.name, inputs, clock=clock)
        ready.append(dead_letters(request.name))
    return tuple(ready)


def _patiently(create: Callable[[], tuple[str, ...]], clock: Clock) -> tuple[str, ...]:
    deadline = clock.monotonic() + PATIENCE_S
    attempt = 0
    while True:
        try:
            return create()
        except AccessDenied:
            if clock.monotonic() >= deadline:
                raise
        clock.backoff(attempt, base_s=1.0, cap_s=8.0)
        attempt += 1


def _entries(properties: Mapping[str, Any]) -> list[Any]:
    entries = properties.get("Topics")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"The property Topics must be a list of at least one topic, got {entries!r}.")
    return entries


def _names(properties: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the topics' names in properties, also invalid ones: a roll-back sends those too."""
    entries = properties.get("Topics")
    if not isinstance(entries, list):
        return ()
    return tuple(str(entry["Name"]) for entry in entries if isinstance(entry, dict) and "Name" in entry)
