"""Two topics are compared by their rows, in memory that does not grow with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from brokerless.errors import SchemaError
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.topics import create_topic
from brokerless.verify import compare as compare_module
from brokerless.verify.compare import Comparison, compare_topics
from tests.support.fakes import FakeClock, FakeStore

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS = [(n, f"u{n % 7}") for n in range(100)]


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    topic(store, "a", ROWS, partitions=2)
    return store


def topic(store: FakeStore, name: str, rows: Sequence[tuple[int, str]], *, partitions: int = 1) -> None:
    create_topic(store, name, Schema.parse("id long, user string"), partitions=partitions, clock=store.clock)
    with Producer(name, store=store, clock=store.clock) as producer:
        for begin in range(0, len(rows), 30):
            producer.send([{"id": n, "user": user} for n, user in rows[begin : begin + 30]])


def compare(store: FakeStore, **more: Any) -> Comparison:
    return compare_topics(store, "a", "b", clock=store.clock, **more)


def test_the_same_rows_in_another_order_are_equal_and_read_once(store: FakeStore) -> None:
    topic(store, "b", ROWS[::-1])
    read: list[int] = []
    found = compare(store, on_rows=read.append)
    assert found.ok
    assert found.rows == (100, 100)
    assert read[-1] == 200
    assert compare(store, key=["id"]).ok


def test_rows_are_counted_not_only_looked_for(store: FakeStore) -> None:
    topic(store, "b", [*ROWS, ROWS[0], ROWS[0]])
    assert (compare(store).only_first, compare(store).only_second) == (0, 2)
    assert compare(store, key=["id"]).differing == 1


@pytest.mark.parametrize("at_once", [1, 500_000])
def test_changed_missing_and_new_rows(store: FakeStore, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(compare_module, "_MOST_ROWS", at_once)
    topic(store, "b", [*ROWS[2:50], (50, "changed"), *ROWS[51:], (100, "new")])
    plain = compare(store)
    assert (plain.only_first, plain.only_second, plain.differing) == (3, 2, 0)
    assert not plain.ok
    keyed = compare(store, key=["id"])
    assert (keyed.only_first, keyed.only_second, keyed.differing) == (2, 1, 1)
    shown = sorted((json.loads(one) for one in keyed.examples), key=lambda one: one["row"]["id"])
    assert shown == [
        {"in": ["a"], "row": {"id": 0}},
        {"in": ["a"], "row": {"id": 1}},
        {"in": ["a", "b"], "row": {"id": 50}},
        {"in": ["b"], "row": {"id": 100}},
    ]
    assert len(compare(store, examples=1).examples) == 1


def test_only_common_columns_are_compared(store: FakeStore) -> None:
    create_topic(store, "b", Schema.parse("user string, extra long"), clock=store.clock)
    with Producer("b", store=store, clock=store.clock) as producer:
        producer.send([{"user": user, "extra": n} for n, user in ROWS])
    assert compare(store).columns == ("user",)
    assert compare(store).ok
    with pytest.raises(SchemaError, match="must both have id"):
        compare(store, key=["id"])
