"""Attacks that go wrong in every way that the runner must notice: they prove that it can."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from brokerless.errors import SchemaError
from tests.malformed.kinds import GIB, Kind, World, drained, once_each, producer_on, store_with

if TYPE_CHECKING:
    from random import Random

FAULTS: Final = ("none", "abort", "exit", "hang", "exception", "panic", "memory", "lost", "twice")


class Panic(BaseException):
    """As libraries in Rust raise it."""


def generate(rng: Random) -> str:
    return FAULTS[rng.randrange(len(FAULTS))]


def attack(bad: str, world: World) -> str | None:
    match bad:
        case "abort":
            os.abort()
        case "exit":
            os._exit(3)
        case "hang":
            while True:
                pass
        case "exception":
            {}["a key that is not there"]
        case "panic":
            raise Panic
        case "memory":
            return str(len(bytes(2 * GIB)))
        case "lost" | "twice":
            return _neighbours([1] if bad == "lost" else [1, 2, 2])
    world.count(SchemaError())
    return _neighbours([1, 2])


def _neighbours(sent: list[int]) -> str | None:
    from brokerless.consumer import Consumer

    store = store_with("t", "n long")
    with producer_on(store, "t") as producer:
        producer.send({"n": sent})
    with Consumer("t", start="beginning", store=store, clock=store.clock) as consumer:
        found: list[dict[str, Any]] = drained(consumer)
    return once_each(found, "n", [1, 2])


KIND: Final = Kind(generate, attack, limit_s=2.0)
