"""Messages that a program hands to ``Producer.send`` and ``enqueue``: rows, columns and Arrow tables.

A call either fails by a named error before anything is written, or all that it wrote can be read and shown, with the
values that were sent. Neighbours are calls before and after, and calls that wait in the same buffer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from brokerless.consumer import Consumer
from tests.malformed import nasty
from tests.malformed.kinds import Kind, World, drained, once_each, producer_on, store_with

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

SCHEMA: Final = (
    "id string, n long, small byte, d double, f float, b boolean, x binary, day date, at timestamp, price decimal(10,2)"
)
COLUMNS: Final = ("n", "small", "d", "f", "b", "x", "day", "at", "price")
GOOD: Final[dict[str, Any]] = {
    "id": "?",
    "n": 1,
    "small": 2,
    "d": 0.5,
    "f": 0.25,
    "b": True,
    "x": b"\xff",
    "day": date(2026, 11, 21),
    "at": datetime(2026, 11, 21, tzinfo=UTC),
    "price": Decimal("9.99"),
}
_TYPES: Final = pa.schema(
    {
        "id": pa.string(),
        "n": pa.int64(),
        "small": pa.int8(),
        "d": pa.float64(),
        "f": pa.float32(),
        "b": pa.bool_(),
        "x": pa.binary(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "price": pa.decimal128(10, 2),
    }
)
NEIGHBOURS: Final = ["before", "waiting", "behind", "after"]


class Unprintable:
    """Whoever wants to show it in an error fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


OBJECTS: Final[tuple[Any, ...]] = (
    Unprintable(),
    object(),
    datetime(2024, 1, 1),  # noqa: DTZ001  # that it lacks a zone is the point
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=23, minutes=59))),
    datetime(9999, 12, 31, 23, 59, tzinfo=timezone(-timedelta(hours=23))),
    date(1, 1, 1),
    timedelta(1),
    Decimal("NaN"),
    Decimal("1e999999"),
    Decimal("-0.001"),
    10**4299,
    b"",
    b"\xff\xfe",
    bytearray(b"x"),
    memoryview(b"x"),
    {1, 2},
    (1, "a"),
    1j,
    range(3),
    nasty.nested(50),
    nasty.nested(100_000),
    iter(()),
)


@dataclass(frozen=True, slots=True)
class Bad:
    """What is sent, and how. ``values`` is the row, if it is a single one whose values are comparable."""

    messages: Any
    enqueued: bool
    values: dict[str, Any] | None = None


def generate(rng: Random) -> Bad:
    make = rng.choice((_row, _row, _row, _rows, _columns, _arrow, _arrow, _arrow, _thing))
    messages = make(rng)
    row = messages[0] if make is _row else None
    return Bad(messages, rng.random() < 0.5, row)


def _value(rng: Random) -> Any:
    return rng.choice(OBJECTS) if rng.random() < 0.4 else nasty.value(rng)


def _row(rng: Random) -> list[Any]:
    row: dict[Any, Any] = {**GOOD, "id": "bad"}
    for _ in range(rng.choice((1, 1, 2, 9))):
        row[rng.choice(COLUMNS)] = _value(rng)
    if rng.random() < 0.15:
        row[rng.choice(("", "N", "_produced_at", "more", 5, None, "\ud800", b"n", ("n",)))] = _value(rng)
    if rng.random() < 0.1:
        del row[rng.choice(list(row))]
    return [row]


def _rows(rng: Random) -> Any:
    good = {**GOOD, "id": "bad"}
    return rng.choice(
        (
            [good, _value(rng)],
            [good, *_row(rng)],
            [None],
            [[]],
            [good, "text"],
            [good | {5: 1, "x5": 2}],
            (good, 1),
            [{}],
            [{}, {}],
        )
    )


def _columns(rng: Random) -> Any:
    columns: dict[Any, Any] = {name: [value] * 2 for name, value in {**GOOD, "id": "bad"}.items()}
    name = rng.choice(COLUMNS)
    columns[name] = rng.choice(
        (
            5,
            None,
            "ab",
            b"ab",
            [],
            [1],
            [_value(rng), _value(rng)],
            {"a": 1},
            iter([1, 2]),
            pa.array([1, 2, 3]),
            object(),
        )
    )
    if rng.random() < 0.2:
        columns[rng.choice(("more", 5, None, "\ud800"))] = [1, 2]
    if rng.random() < 0.2:
        del columns[rng.choice(list(columns))]
    return columns


def _thing(rng: Random) -> Any:
    return rng.choice(
        (
            None,
            5,
            "text",
            b"bytes",
            {},
            [],
            {"n": {}},
            object(),
            Unprintable(),
            pa.array([1]),
            pa.schema([]),
            iter([1]),
            int,
        )
    )


def _broken_text(data: bytes) -> pa.Array:
    ends = b"\0\0\0\0" + len(data).to_bytes(4, "little")
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


_ARRAYS: Final[tuple[Callable[[], pa.Array], ...]] = (
    lambda: pa.array([1], pa.int32()),
    lambda: pa.array([2**63], pa.uint64()),
    lambda: pa.array([300], pa.int16()),
    lambda: pa.array([1.5]),
    lambda: pa.array([math.nan]),
    lambda: pa.array([1e300]),
    lambda: pa.array(["1"]),
    lambda: pa.array(["1"], pa.large_string()),
    lambda: pa.array(["1"], pa.string_view()),
    lambda: pa.array([b"\xff"]),
    lambda: pa.array([b"\xff"], pa.binary(1)),
    lambda: pa.array([b"\xff"], pa.large_binary()),
    lambda: _broken_text(b"\xff\xfe"),
    lambda: _broken_text(b"\xed\xa0\x80"),
    lambda: _broken_text(b"ok\xc3"),
    lambda: pa.array([None]),
    lambda: pa.array([None], pa.string()),
    lambda: pa.array([True]),
    lambda: pa.array([2**31 - 1], pa.date32()),
    lambda: pa.array([-(2**31)], pa.date32()),
    lambda: pa.array([2**62], pa.int64()).cast(pa.timestamp("ms")).view(pa.date64()),
    lambda: pa.array([2**62], pa.timestamp("us", "UTC")),
    lambda: pa.array([-(2**62)], pa.timestamp("us", "UTC")),
    lambda: pa.array([2**62], pa.timestamp("s", "UTC")),
    lambda: pa.array([2**40], pa.timestamp("s", "Nowhere/Land")),
    lambda: pa.array([1], pa.timestamp("ns", "+14:00")),
    lambda: pa.array([1], pa.timestamp("us")),
    lambda: pa.array([1], pa.duration("us")),
    lambda: pa.array([1], pa.time64("us")),
    lambda: pa.array([Decimal("1e30")]),
    lambda: pa.array([Decimal("0.001")]),
    lambda: pa.array([Decimal(1)], pa.decimal256(76, 0)),
    lambda: pa.array([[1]]),
    lambda: pa.array([[1]], pa.large_list(pa.int64())),
    lambda: pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
    lambda: pa.array([{"a": [None, {"b": 1}]}]),
    lambda: pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    lambda: pa.array(["a"]).dictionary_encode(),
    lambda: pa.DictionaryArray.from_arrays(pa.array([5], pa.int8()), ["a"], safe=False),
    lambda: pa.RunEndEncodedArray.from_arrays([1], ["a"]),
    lambda: pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array(["a"])]),
    lambda: pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    lambda: pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16))),
)


def _arrow(rng: Random) -> Any:
    columns = {name: pa.array([value], _TYPES.field(name).type) for name, value in {**GOOD, "id": "bad"}.items()}
    name = rng.choice((*COLUMNS, "id"))
    columns[name] = rng.choice(_ARRAYS)()
    if rng.random() < 0.5:  # what has the right physical type gets into the column of that type
        name = "id"
        array = columns[name] = rng.choice(_ARRAYS)()
        for field in _TYPES:
            if field.type.id == array.type.id:
                name = field.name
        columns = {**columns, "id": pa.array(["bad"]), name: array}
    table = pa.table(columns)
    match rng.randrange(12):
        case 0:
            return table.drop_columns([name])
        case 1:
            return table.append_column(rng.choice((name, "more", "", "N", "\x00")), pa.array([1]))
        case 2:
            return pa.table({})
        case 3:
            return table.slice(0, 0)
        case 4:
            return pa.table({"n": [1]})
        case 5:
            return table.to_batches()[0]
        case 6:
            return table.to_struct_array()
        case 7:
            return table.column(name)
        case 8:
            return pa.RecordBatchReader.from_batches(_TYPES, table.to_batches())
    return table


def attack(bad: Bad, world: World) -> str | None:
    store = store_with("t", SCHEMA)
    with producer_on(store, "t") as producer:
        producer.send([{**GOOD, "id": "before"}])
        waiting = producer.enqueue([{**GOOD, "id": "waiting"}])
        error = world.error(lambda: producer.enqueue(bad.messages).result(5) if bad.enqueued else ())
        behind = producer.enqueue([{**GOOD, "id": "behind"}])
        waiting.result(5)
        behind.result(5)
        if not bad.enqueued:
            error = world.error(lambda: producer.send(bad.messages))
        producer.send([{**GOOD, "id": "after"}])
    with Consumer("t", start="beginning", store=store, clock=store.clock) as consumer:
        rows = drained(consumer)
    world.count(error)
    others = [row for row in rows if row["id"] not in NEIGHBOURS]
    if error is not None and others:
        return f"{type(error).__name__} was raised, but {len(others)} rows were written"
    if error is None and bad.values is not None:
        if len(others) != 1:
            return f"one row was accepted, and {len(others)} are there"
        for name in ("n", "small", "d", "f", "b", "id"):
            if not _same(bad.values.get(name), others[0][name], name):
                return f"column {name}: {ascii(bad.values.get(name))[:80]} was sent, {others[0][name]!r} is there"
    return once_each(rows, "id", NEIGHBOURS if bad.enqueued else ["before", "waiting", "behind", "after"])


def _same(sent: Any, read: Any, name: str) -> bool:
    if sent is None or read is None:
        return sent is read
    if name in {"d", "f"}:
        if math.isnan(sent):
            return math.isnan(read)
        return name == "f" or float(sent) == read
    return type(sent) is type(read) and sent == read


KIND: Final = Kind(generate, attack)
