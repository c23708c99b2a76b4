"""What a kind of malformed input is to the runner, and what attacks of several kinds need.

A kind generates inputs from a seed and attacks with one of them. An exception that brokerless does not document is a
crash: an attack lets it pass, and the runner reports it. What an attack itself must find out is whether the neighbours
of the bad input, which are valid messages, are there exactly once.
"""

from __future__ import annotations

import importlib
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from brokerless.columns.records import rows_as_json, values_of
from brokerless.errors import BrokerlessError
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.topics import create_topic
from tests.support.fakes import FakeClock, FakeStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from brokerless.consumer import Consumer

KINDS: Final = ("send", "json-lines", "parquet", "log-entries", "checkpoints", "ingest", "transform")

GIB: Final = 2**30


@dataclass(slots=True)
class World:
    """Where an attack happens.

    Attributes:
        outcomes: what became of the inputs, by its name: an error's class, ``dead letter``, ``valid after all``.
        place: what the kind has opened for all its attacks, if anything.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    place: Any = None

    def error(self, act: Callable[[], object]) -> BrokerlessError | None:
        """The documented error of an act, None if it went through; any other error passes."""
        try:
            act()
        except BrokerlessError as error:
            if not str(error).strip():
                raise AssertionError(f"{type(error).__name__} says nothing") from error
            return error
        return None

    def count(self, error: BrokerlessError | None) -> None:
        self.outcomes[type(error).__name__ if error is not None else "valid after all"] += 1


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of input.

    Attributes:
        generate: a bad input; the same one from the same randomness.
        attack: gives it to brokerless; returns what went wrong, or None.
        place: what all attacks of this kind share, opened once a process.
        inputs: how many malformed inputs one attack has.
        limit_s: how long one attack may take, on a machine that others use too.
        memory: how many bytes it may take; None if other processes do the work.
    """

    generate: Callable[[Random], Any]
    attack: Callable[[Any, World], str | None]
    place: Callable[[], AbstractContextManager[Any]] = nullcontext
    inputs: int = 1
    limit_s: float = 20.0
    memory: int | None = GIB


def kind_of(name: str) -> Kind:
    """The kind in the module ``tests.malformed.<name>``."""
    kind: Kind = importlib.import_module(f"tests.malformed.{name.replace('-', '_')}").KIND
    return kind


@lru_cache(maxsize=8)
def _image(topic: str, schema: str) -> dict[str, bytes]:
    store = FakeStore(FakeClock())
    create_topic(store, topic, Schema.parse(schema), clock=store.clock)
    return store.objects


def store_with(topic: str, schema: str) -> FakeStore:
    """A store in memory with this empty topic."""
    store = FakeStore(FakeClock(seed=1))
    for path, data in _image(topic, schema).items():
        store.put(path, data)
    return store


def producer_on(store: FakeStore, topic: str) -> Producer:
    return Producer(topic, store=store, clock=store.clock, linger_s=0, delivery_timeout_s=2)


def drained(consumer: Consumer, rows: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """All rows from the position on, also shown as text, as ``tail`` does; those before an error are in ``rows``."""
    rows = [] if rows is None else rows
    while batches := consumer.poll(0):
        for batch in batches:
            columns = {name: values_of(batch.data.column(name)) for name in batch.data.column_names}
            rows += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            rows_as_json(batch.data)
    return rows


def once_each(rows: list[dict[str, Any]], column: str, wanted: list[Any]) -> str | None:
    """None if each of these messages is there exactly once, and in this order; others do not matter."""
    found = [row.get(column) for row in rows if row.get(column) in wanted]
    return None if found == wanted else f"neighbours {wanted} were delivered as {found}"
