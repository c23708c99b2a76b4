"""Producers that stay open between the calls of a function: opening one costs several requests, a commit only two."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.producer.producer import Producer

if TYPE_CHECKING:
    from brokerless.store import Store

MAX_OPEN: Final = 64
"""Ids of producers come from outside, as many as somebody likes. The one that was not used for longest is closed."""


class ProducerPool:
    """One producer for each topic, name space and producer id. For one thread.

    Args:
        store: where the topics are.
        timeout_s: how long one commit is tried.
        clock: time, randomness and sleeping.
    """

    def __init__(self, store: Store, *, timeout_s: float, clock: Clock = SYSTEM) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._clock = clock
        self._open: OrderedDict[tuple[str, str | None, str | None], Producer] = OrderedDict()

    def get(self, topic: str, producer_id: str | None = None, *, namespace: str | None = None) -> Producer:
        """The producer, opened if necessary.

        Args:
            topic: where to.
            producer_id: None for the producer without one.
            namespace: whose id it is.

        Raises:
            TopicNotFound, ConfigError, StoreError: it cannot be opened.
        """
        key = topic, namespace, producer_id
        if key not in self._open:
            self._open[key] = Producer(
                topic,
                producer_id=producer_id,
                namespace=namespace,
                delivery_timeout_s=self._timeout_s,
                store=self._store,
                clock=self._clock,
            )
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(key)
        return self._open[key]

    def forget(self, topic: str, producer_id: str | None = None, *, namespace: str | None = None) -> None:
        """Closes the topic's producers, or only the one with this id: the next ``get`` opens it anew."""
        one = topic, namespace, producer_id
        for key in [key for key in self._open if (key[0] == topic if producer_id is None else key == one)]:
            self._open.pop(key).close()
