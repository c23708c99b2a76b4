"""Messages in every shape they may come in, to Parquet and back."""

from __future__ import annotations

import io
import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arro3.core import Table
from hypothesis import given
from hypothesis import strategies as st

from brokerless.columns import records
from brokerless.errors import MessageError, SchemaError, StoreError
from brokerless.schema import Column, Schema

NOW_US = 1_800_000_000_123_456
ALL = Schema.parse(
    "s string, l long, i integer, h short, y byte, f float, d double, b boolean, x binary, t date, ts timestamp, "
    "n decimal(20,4)"
)
EASTER = datetime(2026, 3, 29, 1, 30, 0, 5, tzinfo=UTC)


class Nanoseconds(datetime):
    """As pandas has it."""

    nanosecond = 1


ROWS = st.fixed_dictionaries(
    {
        "s": st.none() | st.text(),
        "l": st.none() | st.integers(-(2**63), 2**63 - 1),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "h": st.none() | st.integers(-(2**15), 2**15 - 1),
        "y": st.none() | st.integers(-(2**7), 2**7 - 1),
        "f": st.none() | st.floats(width=32, allow_nan=False),
        "d": st.none() | st.floats(allow_nan=False),
        "b": st.none() | st.booleans(),
        "x": st.none() | st.binary(),
        "t": st.none() | st.dates(),
        "ts": st.none() | st.datetimes(timezones=st.just(UTC)),
        "n": st.none()
        | st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**15), max_value=10**15),
    }
)


def table_of(messages: Any, schema: Schema = ALL) -> Table:
    return records.to_table(messages, schema, topic="t", produced_at_us=NOW_US)


def rows_of(table: Table) -> list[dict[str, Any]]:
    return pa.table(table).to_pylist()


@given(st.lists(ROWS, min_size=1, max_size=5))
def test_rows_come_back_from_parquet_as_they_went_in(rows: list[dict[str, Any]]) -> None:
    back = records.decode(records.encode(table_of(rows)))
    found = rows_of(back)
    assert [{k: v for k, v in row.items() if k != "_produced_at"} for row in found] == rows
    assert {records.microseconds(row["_produced_at"]) for row in found} == {NOW_US}
    assert back.column_names == [*ALL.names, "_produced_at"]


@given(st.lists(ROWS, min_size=1, max_size=3))
def test_all_shapes_mean_the_same(rows: list[dict[str, Any]]) -> None:
    columns = {name: [row[name] for row in rows] for name in ALL.names}
    expected = rows_of(table_of(rows))
    arrow = pa.table(table_of(rows)).drop_columns(["_produced_at"])
    for shape in (columns, arrow, arrow.to_batches()[0], Table.from_arrow(arrow)):
        assert rows_of(table_of(shape)) == expected


def test_polars_frames_and_large_strings_are_taken() -> None:
    frame = pl.DataFrame({"a": ["x", None], "n": [1, 2]})
    table = table_of(frame, Schema.parse("n long, a string"))
    assert [(row["n"], row["a"]) for row in rows_of(table)] == [(1, "x"), (2, None)]


def test_produced_at_is_kept_where_messages_have_it() -> None:
    rows = [{"s": "a", "_produced_at": EASTER}, {"s": "b", "_produced_at": "2026-03-29T03:30:00.000005+02:00"}]
    assert [row["_produced_at"] for row in rows_of(table_of(rows))] == [EASTER, EASTER]


def test_messages_without_a_time_get_one_beside_those_that_have_it() -> None:
    rows = [{"s": "a", "_produced_at": EASTER}, {"s": "b"}, {"s": "c", "_produced_at": None}]
    expected = [records.microseconds(EASTER), NOW_US, NOW_US]
    checked = records.to_table(rows, ALL, topic="t", produced_at_us=0)  # as for lines, before they are sent
    for messages in (rows, checked):
        found = [records.microseconds(row["_produced_at"]) for row in rows_of(table_of(messages))]
        assert found == expected


def test_missing_columns_of_rows_are_null_and_of_tables_an_error() -> None:
    assert rows_of(table_of([{"s": "a"}, {}]))[1]["s"] is None
    with pytest.raises(SchemaError, match="lack 'n'"):
        table_of({"s": ["a"]}, Schema.parse("s string, n long"))
    with pytest.raises(SchemaError, match="lack 'n'"):
        table_of(pa.table({"s": ["a"]}), Schema.parse("s string, n long"))


@pytest.mark.parametrize("messages", [[{"z": 1}], {"z": [1]}, pa.table({"z": [1]})])
def test_unknown_columns_are_named_with_the_known(messages: Any) -> None:
    with pytest.raises(SchemaError, match=r"(?s)columns: s\..*no column 'z'"):
        table_of(messages, Schema.parse("s string"))


WRONG: list[tuple[str, Any]] = [
    ("string", 1),
    ("long", "1"),
    ("long", 1.5),
    ("long", True),
    ("long", 2**63),
    ("integer", 2**31),
    ("short", 2**15),
    ("byte", -129),
    ("double", "x"),
    ("double", True),
    ("boolean", 1),
    ("boolean", "true"),
    ("binary", "not base64!"),
    ("date", "2026-13-01"),
    ("date", 5),
    ("timestamp", "yesterday"),
    ("timestamp", "2026-03-29T01:30:00"),
    ("timestamp", 5),
    ("decimal(4,2)", Decimal(1000)),
    ("decimal(4,2)", 1.5),
    ("decimal(4,2)", "1e999999999"),
    ("decimal(4,2)", "1e-999999999"),
    ("decimal(4,2)", (0, (1,), 999999999)),
    ("decimal(4,2)", "x"),
    ("string", {"nested": 1}),
]


@pytest.mark.parametrize(("kind", "value"), WRONG)
def test_a_value_that_does_not_fit_names_its_row_and_column(kind: str, value: Any) -> None:
    with pytest.raises(MessageError, match=r"Row 2: column 'c' is "):
        table_of([{}, {"c": None}, {"c": value}], Schema.parse(f"c {kind}"))


def test_long_values_are_cut_in_errors() -> None:
    with pytest.raises(MessageError) as caught:
        table_of([{"c": "x" * 10_000}], Schema.parse("c long"))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("row", ["text", 5, None, ["a"]])
def test_a_row_that_is_no_mapping_is_named(row: Any) -> None:
    with pytest.raises(MessageError, match="Row 1 is"):
        table_of([{"s": "a"}, row])


CASTS: list[tuple[str, pa.Array, bool]] = [
    ("long", pa.array([1], pa.int8()), True),
    ("integer", pa.array([1], pa.int64()), True),
    ("integer", pa.array([2**31], pa.int64()), False),
    ("byte", pa.array([200], pa.uint8()), False),
    ("long", pa.array([2**63], pa.uint64()), False),
    ("double", pa.array([1], pa.int32()), True),
    ("double", pa.array([1.5], pa.float32()), True),
    ("long", pa.array([1.0]), False),
    ("string", pa.array(["a"], pa.large_string()), True),
    ("string", pa.array([1]), False),
    ("long", pa.array(["1"]), False),
    ("binary", pa.array([b"a"], pa.large_binary()), True),
    ("binary", pa.array(["a"]), False),
    ("timestamp", pa.array([0], pa.timestamp("ms", tz="UTC")), True),
    ("timestamp", pa.array([0], pa.timestamp("us", tz="America/New_York")), True),
    ("timestamp", pa.array([0], pa.timestamp("us")), False),
    ("date", pa.array([0], pa.date64()), True),
    ("decimal(20,4)", pa.array([Decimal("1.5")]), True),
    ("decimal(4,2)", pa.array([Decimal(1000)]), False),
    ("string", pa.nulls(1), True),
    ("boolean", pa.array([1]), False),
]


@pytest.mark.parametrize(("kind", "column", "fits"), CASTS)
def test_arrow_columns_are_widened_or_refused(kind: str, column: pa.Array, fits: bool) -> None:
    schema = Schema.parse(f"c {kind}")
    if fits:
        named = pa.schema([pa.field("c", column.type, metadata={"PARQUET:field_id": "1"})])
        table = table_of(pa.Table.from_arrays([column], schema=named), schema)
        assert rows_of(table)[0]["c"] == (column[0].as_py() if kind != "date" else date(1970, 1, 1))
    else:
        with pytest.raises((SchemaError, MessageError), match="'c'"):
            table_of(pa.table({"c": column}), schema)


BEYOND_DOUBLE, BEYOND_FLOAT = 2**53 + 1, 2**24 + 1
NANOSECONDS = pa.array([1_000, None, 1_001], pa.timestamp("ns", tz="Europe/Berlin"))
CHANGED: list[tuple[str, pa.Array, str]] = [
    ("decimal(10,1)", pa.array([Decimal("1.20"), None, Decimal("1.25")]), "1.25"),
    ("decimal(10,2)", pa.array([Decimal("1.2"), None, Decimal("1.255")], pa.decimal256(50, 3)), "1.255"),
    ("float", pa.array([0.1, math.inf, -1e300]), "-1e300"),
    ("float", pa.array([1, None, BEYOND_FLOAT]), f"{BEYOND_FLOAT}"),
    ("double", pa.array([2**53, None, BEYOND_DOUBLE]), f"{BEYOND_DOUBLE}"),
    ("double", pa.array([0, None, 2**64 - 1], pa.uint64()), f"{2**64 - 1}"),
    ("timestamp", NANOSECONDS, "1970-01-01T00:00:00.000001001Z"),
    ("timestamp", pa.array([0, None, 2**60], pa.timestamp("s", tz="UTC")), f"the value {2**60}"),
    ("date", pa.array([0, 86_400_000, 86_400_001], pa.int64()).view(pa.date64()), "1970-01-02T00:00:00.001"),
    ("integer", pa.array([1, None, 2**31]), f"{2**31}"),
]


@pytest.mark.parametrize(("kind", "column", "shown"), CHANGED)
def test_an_arrow_value_that_would_change_names_its_row_and_column(kind: str, column: pa.Array, shown: str) -> None:
    schema = Schema.parse(f"c {kind}")
    chunks = pa.chunked_array([column[:2], column[2:]])
    for messages in (pa.table({"c": chunks}), {"c": column}):
        with pytest.raises(MessageError, match=r"^Row 2: column 'c' of topic 't' is ") as caught:
            table_of(messages, schema)
        assert f"cannot hold {shown}" in str(caught.value)
    assert table_of(pa.table({"c": column[:2]}), schema).num_rows == 2


CHANGED_VALUES: list[tuple[str, Any, Any]] = [
    ("decimal(4,2)", "1.250", "1.255"),
    ("decimal(4,2)", Decimal("1E1"), Decimal("0.001")),
    ("float", 1e300 / 1e299, 1e300),
    ("float", -(2**24) - 2, -BEYOND_FLOAT),
    ("float", 2**127, 2**128),
    ("double", 2**53, BEYOND_DOUBLE),
    ("double", 1732294800123000000, 1732294800123000001),  # what JavaScript writes for the double 1.732294800123e18
    ("double", np.int64(2**53), np.int64(BEYOND_DOUBLE)),
    ("double", Decimal("0.1"), Decimal("0.10000000000000000001")),
    ("timestamp", "2026-03-29T01:30:00.123456000Z", "2026-03-29T01:30:00.123456001Z"),
    ("timestamp", EASTER, Nanoseconds(2026, 3, 29, tzinfo=UTC)),
]


@pytest.mark.parametrize(("kind", "held", "changed"), CHANGED_VALUES)
def test_a_value_of_a_row_that_would_change_names_its_row_and_column(kind: str, held: Any, changed: Any) -> None:
    schema = Schema.parse(f"c {kind}")
    for messages in ([{"c": held}, {}, {"c": changed}], {"c": [held, None, changed]}):
        with pytest.raises(MessageError, match=r"^Row 2: column 'c' is .*, which cannot hold ") as caught:
            table_of(messages, schema)
        assert repr(changed) in str(caught.value)
    assert table_of([{"c": held}], schema).num_rows == 1


@pytest.mark.parametrize("kind", ["float", "double"])
def test_fractions_are_rounded_and_numbers_that_are_none_kept(kind: str) -> None:
    values = [0.1, math.inf, -math.inf, None, 1e-300, 3.4028235e38]
    for messages in ({"c": pa.array(values)}, [{"c": value} for value in values]):
        found = table_of(messages, Schema.parse(f"c {kind}")).column("c").to_pylist()
        assert found[1:4] == [math.inf, -math.inf, None]
        assert [found[0], found[5]] == pytest.approx([0.1, 3.4028235e38])


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"differ in length: \[1, 2\]"):
        table_of({"s": ["a"], "n": [1, 2]}, Schema.parse("s string, n long"))


def test_a_column_twice_is_refused() -> None:
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["s", "s"])
    with pytest.raises(SchemaError, match="twice"):
        table_of(twice, Schema.parse("s string"))


@pytest.mark.parametrize("empty", [[], {"s": []}, pa.table({"s": pa.array([], pa.string())})])
def test_nothing_is_an_empty_table(empty: Any) -> None:
    assert table_of(empty, Schema.parse("s string")).num_rows == 0


def test_nested_columns_cannot_be_produced() -> None:
    tags = Column("tags", '{"type": "array", "elementType": "string", "containsNull": true}')
    with pytest.raises(SchemaError, match=r"Column 'tags' has the nested or unknown type 'array'.*JSON text"):
        table_of([{"tags": ["a"]}], Schema((tags,)))
    with pytest.raises(SchemaError, match=r"Column 's' is Struct.*JSON text"):
        table_of(pa.table({"s": [{"x": 1}]}), Schema.parse("s string"))
    with pytest.raises(MessageError, match=r"Row 0: column 's' is Utf8"):
        table_of([{"s": {"x": 1}}], Schema.parse("s string"))


def test_microseconds_are_exact() -> None:
    late = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert records.microseconds(late) == 253_402_300_799_999_999
    assert records.microseconds(EASTER.astimezone(timezone(timedelta(hours=-5)))) == records.microseconds(EASTER)


def test_rows_as_json() -> None:
    row = {"s": "é", "x": b"\x00\xff", "ts": EASTER, "t": date(2026, 1, 2), "n": Decimal("1.50"), "l": 2**60}
    found = json.loads(records.rows_as_json(table_of([row]))[0])
    assert (found["s"], found["x"], found["t"], found["n"], found["l"]) == ("é", "AP8=", "2026-01-02", "1.5000", 2**60)
    assert found["ts"] == "2026-03-29T01:30:00.000005+00:00"
    assert rows_of(table_of([{**found, "_produced_at": found["_produced_at"]}]))[0]["x"] == b"\x00\xff"


class Unprintable:
    """Whoever wants to show it fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def deep() -> list[Any]:
    inner: list[Any] = []
    for _ in range(100_000):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    "messages",
    [
        None,
        5,
        "text",
        object(),
        pa.array([1]),
        {"n": "12"},
        [{"n": 10**5000}],
        [{"n": Unprintable()}],
        [{"n": deep()}],
        pa.table({"n": pa.array([10**18], pa.int64()).cast(pa.timestamp("ms")).view(pa.date64())}).to_struct_array(),
        pa.table({"n": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}),
    ],
    ids=lambda messages: type(messages).__name__,
)
def test_what_is_neither_columns_nor_rows_is_a_named_error(messages: Any) -> None:
    with pytest.raises((MessageError, SchemaError)) as caught:
        records.to_table(messages, Schema.parse("n long"), topic="t", produced_at_us=0)
    assert len(str(caught.value)) < 500


def test_unknown_columns_of_any_type_are_named() -> None:
    with pytest.raises(SchemaError, match="no column 'z', 1, None"):
        records.to_table([{"n": 1, 1: 2, "z": 3, None: 4}], Schema.parse("n long"), topic="t", produced_at_us=0)


def test_an_iterator_of_rows_is_taken_as_a_whole() -> None:
    table = records.to_table(iter([{"n": 1}, {"n": 2}]), Schema.parse("n long"), topic="t", produced_at_us=0)  # type: ignore[arg-type]
    assert table.column("n").to_pylist() == [1, 2]


@pytest.mark.parametrize("broken", [b"\xff\xfe", b"\xed\xa0\x80", b"ok\xc3"])
def test_arrow_text_that_is_no_utf8_is_refused_before_it_makes_an_object_unreadable(broken: bytes) -> None:
    ends = pa.py_buffer(b"\0\0\0\0" + len(broken).to_bytes(4, "little"))
    text = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(broken)])
    with pytest.raises(MessageError, match="Row 0: column 's' of topic 't' is string, which cannot hold b"):
        records.to_table(pa.table({"s": text}), Schema.parse("s string"), topic="t", produced_at_us=0)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_an_instant_that_no_reader_in_python_can_show_is_refused(text: str) -> None:
    with pytest.raises(MessageError, match="Row 0: column 'at'"):
        records.to_table([{"at": text}], Schema.parse("at timestamp"), topic="t", produced_at_us=0)


def test_instants_and_days_of_others_outside_the_years_1_to_9999_are_shown_as_numbers() -> None:
    found = pa.table(
        {
            "at": pa.array([2**62, None, 0], pa.timestamp("us", "UTC")),
            "day": pa.array([2**31 - 1, None, 0], pa.date32()),
        }
    )
    first, second, third = map(json.loads, records.rows_as_json(Table.from_arrow(found)))
    assert first == {"at": f"{2**62} microseconds since 1970-01-01", "day": f"{2**31 - 1} days since 1970-01-01"}
    assert second == {"at": None, "day": None}
    assert third == {"at": "1970-01-01T00:00:00+00:00", "day": "1970-01-01"}


@pytest.mark.parametrize("kind", ["decimal(x,y)", "decimal()", "decimal(99,99)", "decimal(5,6)", "decimal"])
def test_a_decimal_that_is_none_is_refused(kind: str) -> None:
    with pytest.raises(SchemaError, match="'n' has the nested or unknown type"):
        records.arrow_type(Column("n", kind))


def test_a_column_may_be_an_array_that_cannot_be_iterated() -> None:
    columns = {"at": records.constant(0, 2)}
    table = records.to_table(columns, Schema.parse("at timestamp"), topic="t", produced_at_us=0)
    assert table.num_rows == 2


@pytest.mark.parametrize("of_pyarrow", [True, False])
def test_timestamps_as_spark_writes_them_are_read_to_the_microsecond(*, of_pyarrow: bool) -> None:
    instants = [
        datetime(year, 3, 1, 23, 59, 59, 999_999, tzinfo=UTC) for year in (1, 1500, 1969, 2026, 2300, 3000, 9999)
    ]
    rows = [{"ts": t, "n": 1, "s": {"ts": t, "all": [t, None]}} for t in [*instants, None]]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer, use_deprecated_int96_timestamps=True, store_schema=of_pyarrow)
    assert rows_of(records.decode(buffer.getvalue())) == rows


def test_timestamps_as_spark_writes_them_beside_a_map_are_refused() -> None:
    column = pa.array([[("a", EASTER)]], pa.map_(pa.string(), pa.timestamp("us")))
    buffer = io.BytesIO()
    pq.write_table(pa.table({"m": column}), buffer, use_deprecated_int96_timestamps=True, store_schema=False)
    with pytest.raises(StoreError, match="INT96 timestamps"):
        records.decode(buffer.getvalue())


def test_an_object_whose_values_its_table_cannot_hold_is_refused() -> None:
    table = Table.from_arrow(pa.table({"n": [Decimal("1.5"), Decimal("1.25")]}))
    with pytest.raises(StoreError, match=r"a/b does not fit its table. Row 1: column 'n' is decimal\(5,1\)"):
        records.with_columns(table, [Column("n", "decimal(5,1)")], path="a/b")
