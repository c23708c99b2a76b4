"""What every store's compare-and-swap must do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from brokerless.store import Outcome, Store

THREADS, ROUNDS = 16, 20


def check_swaps(store: Store) -> None:
    """A swap needs the tag that the object has now, from a write or a read."""
    outcome, first = store.swap("g/x", b"1", None)
    assert outcome == "created"
    assert store.swap("g/x", b"other", None) == ("exists", None)
    assert store.get_tagged("g/x") == (b"1", first)
    outcome, second = store.swap("g/x", b"2", first)
    assert outcome == "created"
    assert second != first
    assert store.swap("g/x", b"3", first) == ("exists", None)
    data, read = store.get_tagged("g/x", within_s=5)
    assert (data, read) == (b"2", second)
    assert store.swap("g/x", b"4", read, within_s=5)[0] == "created"
    assert store.get("g/x") == b"4"


def check_missing(store: Store) -> None:
    """What is not there cannot be replaced, and is not made by trying."""
    with pytest.raises(FileNotFoundError):
        store.get_tagged("g/x")
    _, tag = store.swap("other/x", b"1", None)
    assert store.swap("g/x", b"1", tag) == ("exists", None)
    assert not store.exists("g/x")
    store.delete(["other/x"])
    assert store.swap("other/x", b"2", tag) == ("exists", None)
    assert not store.exists("other/x")


def race(store: Store) -> None:
    """Of those who swap at once exactly one wins, and it is the one whose bytes are there."""
    barrier = threading.Barrier(THREADS)
    store.swap("g/x", b"begin", None)

    def swap(number: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for n in range(ROUNDS):
            barrier.wait(60)
            tag = store.get_tagged("g/x")[1]
            barrier.wait(60)
            outcomes.append(store.swap("g/x", f"{n} by {number}".encode(), tag)[0])
            barrier.wait(60)
            winner = store.get("g/x").decode()
            assert (winner == f"{n} by {number}") == (outcomes[-1] == "created"), (winner, number, outcomes[-1])
        return outcomes

    with ThreadPoolExecutor(THREADS) as pool:
        rounds = list(zip(*pool.map(swap, range(THREADS)), strict=True))
    assert [outcomes.count("created") for outcomes in rounds] == [1] * ROUNDS
