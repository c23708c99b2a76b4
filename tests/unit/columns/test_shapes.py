"""The shapes that messages come in, and those that they are given out as."""

from __future__ import annotations

import datetime as dt
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from brokerless import Batch, ConfigError, Consumer, Message, MessageError, Offset, Producer, Schema, create_topic
from tests.support.fakes import FakeClock, FakeStore

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = Schema.parse("user string, n long, at timestamp, data binary, price decimal(6,2), day date")
CEST = dt.timezone(dt.timedelta(hours=2))
AT = dt.datetime(2026, 7, 1, 12, 30, tzinfo=CEST)

NONE = {
    "at": pa.nulls(2, pa.timestamp("us", tz="UTC")),
    "data": pa.nulls(2, pa.binary()),
    "price": pa.nulls(2, pa.decimal128(6, 2)),
    "day": pa.nulls(2, pa.date32()),
}


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore(FakeClock())
    create_topic(store, "t", SCHEMA)
    return store


def sent(store: FakeStore, *messages: Any) -> list[Batch]:
    with Producer("t", store=store) as producer:
        for one in messages:
            producer.send(one)
    with Consumer("t", start="beginning", store=store) as consumer:
        found: list[Batch] = []
        while batches := consumer.poll(0):
            found += batches
        return found


def values(batches: list[Batch], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for batch in batches for row in batch.rows()]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ({"user": "ada", "n": 1}, [("ada", 1)]),
        ({"user": "ada"}, [("ada", None)]),
        ({"user": None, "n": None}, [(None, None)]),
        ({"user": "ada", "data": b"xy"}, [("ada", None)]),
        ([{"user": "ada", "n": 1}, {"user": "bob"}], [("ada", 1), ("bob", None)]),
        (pa.table({"user": ["ada", "bob"], "n": [1, 2], **{c: pa.nulls(2) for c in SCHEMA.names[2:]}}), None),
        (
            pl.from_arrow(pa.table({"user": ["ada", "bob"], "n": [1, 2], **{c: NONE[c] for c in SCHEMA.names[2:]}})),
            None,
        ),
        ({"user": ["ada", "bob"], "n": np.array([1, 2]), **{c: [None, None] for c in SCHEMA.names[2:]}}, None),
    ],
)
def test_a_message_a_list_columns_and_arrow_are_taken(store: FakeStore, messages: Any, expected: Any) -> None:
    assert values(sent(store, messages), "user", "n") == (expected or [("ada", 1), ("bob", 2)])


def test_a_dictionary_of_one_value_lists_stays_columns(store: FakeStore) -> None:
    with Producer("t", store=store) as producer, pytest.raises(Exception, match="The messages lack 'n'"):
        producer.send({"user": ["ada"]})


def test_a_mixed_dictionary_is_an_error_that_names_both_columns(store: FakeStore) -> None:
    with (
        Producer("t", store=store) as producer,
        pytest.raises(MessageError, match=r"'n' is 3, one value, but 'user' is a list or an array; give a list"),
    ):
        producer.send({"user": ["ada"], "n": 3})


def test_a_nested_value_of_a_message_is_not_a_column(store: FakeStore) -> None:
    with Producer("t", store=store) as producer, pytest.raises(MessageError, match="column 'user' is Utf8, but"):
        producer.send({"user": {"first": "ada"}})


def test_enqueue_takes_a_single_message_too(store: FakeStore) -> None:
    with Producer("t", store=store) as producer:
        assert [ack.rows for ack in producer.enqueue({"user": "ada"}).result(10)] == [1]


def test_rows_are_python_values_and_times_are_aware(store: FakeStore) -> None:
    import decimal

    whole = {
        "user": "ada",
        "n": 1,
        "at": AT,
        "data": b"x",
        "price": decimal.Decimal("1.50"),
        "day": dt.date(2026, 1, 2),
    }
    (row,) = sent(store, whole)[0].rows()
    produced = row.pop("_produced_at")
    assert row == whole
    assert row["at"].utcoffset() == dt.timedelta(0)
    assert produced.tzinfo is not None


def test_a_batch_has_a_length_and_gives_its_messages_with_offsets(store: FakeStore) -> None:
    first, second = sent(store, [{"n": 1}, {"n": 2}], {"n": 3})
    assert (len(first), len(second)) == (2, 1)
    found = list(first)
    assert [(m.topic, m.partition, m.offset, m.value["n"]) for m in found] == [
        ("t", 0, Offset(1, 0), 1),
        ("t", 0, Offset(1, 1), 2),
    ]
    assert isinstance(found[0], Message)


def test_messages_of_a_consumer_come_one_by_one_from_where_it_was_sought(store: FakeStore) -> None:
    sent(store, [{"n": 1}, {"n": 2}], {"n": 3})
    with Consumer("t", start=Offset(1, 1), store=store) as consumer:
        found = []
        for message in consumer.messages():
            found.append((message.offset, message.value["n"]))
            if len(found) == 2:
                consumer.close()
    assert found == [(Offset(1, 1), 2), (Offset(2, 0), 3)]


def test_a_batch_becomes_a_frame_of_each_library_with_times_in_utc(store: FakeStore) -> None:
    (batch,) = sent(store, [{"n": 1, "at": AT}, {"n": 2}])
    assert batch.to_arrow().column("n").to_pylist() == [1, 2]
    polars, pandas = batch.to_polars(), batch.to_pandas()
    assert polars["n"].to_list() == [1, 2]
    assert polars["at"].to_list()[0] == AT
    assert list(pandas["n"]) == [1, 2]
    assert pandas["at"][0].to_pydatetime() == AT
    assert str(pandas["at"].dtype) == "datetime64[us, UTC]"


@pytest.mark.parametrize(
    ("package", "call", "extra"),
    [
        ("pyarrow", Batch.to_arrow, "arrow"),
        ("polars", Batch.to_polars, "polars"),
        ("pandas", Batch.to_pandas, "pandas"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch, package: str, call: Callable[[Batch], object], extra: str
) -> None:
    (batch,) = sent(store, {"n": 1})
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as failed:
        call(batch)
    assert str(failed.value) == f"This needs {package}: pip install 'brokerless[{extra}]'."
