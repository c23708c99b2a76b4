"""Columns <-> Parquet bytes, and the shapes that messages come in. Arrow in, Arrow out; no per-row work for columns.

Producers hand over any Arrow table or record batch (anything with the Arrow PyCapsule interface: pyarrow, polars,
DuckDB, arro3), a dictionary of columns, one message as a dictionary, or a list of rows. Consumers get arro3 tables,
which the same libraries take without a copy (``pyarrow.table(batch.data)``).

No value changes silently on its way into a topic: what its column cannot hold is an error that names row and column.
Only a fraction is rounded to the nearest ``double`` or ``float``, as everywhere (0.1 has no exact one).
"""

from __future__ import annotations

import array
import base64
import contextlib
import io
import json
import math
import re
import zlib
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, cast

from arro3.core import Array, ChunkedArray, DataType, Field, Table
from arro3.core import Schema as ArrowSchema
from arro3.io import read_parquet, write_ipc_stream, write_parquet

from brokerless.columns.footer import check_footer, with_arrow_schema
from brokerless.errors import BrokerlessError, MessageError, SchemaError, StoreError
from brokerless.schema import PRODUCED_AT, Schema, split_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arro3.core import RecordBatchReader
    from arro3.core.types import ArrowArrayExportable, ArrowStreamExportable

    from brokerless.schema import Column
    from brokerless.store import Store

    Messages = ArrowArrayExportable | ArrowStreamExportable | Mapping[str, Any] | Sequence[Mapping[str, Any]]

TIMESTAMP: Final = DataType.timestamp("us", tz="UTC")

_ARROW: Final[dict[str, Callable[[], DataType]]] = {
    "string": DataType.string,
    "long": DataType.int64,
    "integer": DataType.int32,
    "short": DataType.int16,
    "byte": DataType.int8,
    "float": DataType.float32,
    "double": DataType.float64,
    "boolean": DataType.bool,
    "binary": DataType.binary,
    "date": DataType.date32,
    "timestamp": lambda: TIMESTAMP,
}
MAX_DECODED_BYTES: Final = 2**30
"""Of one object in memory. Encodings pack equal values without a bound: 300 kB of Parquet held 3 GB in a test.
Producers write a fiftieth of this at a time."""

_CHECKSUM: Final = re.compile(r"\.([0-9a-f]{8})\.snappy\.parquet$")
_DECIMAL: Final = re.compile(r"decimal\(([0-9]{1,2}), ?([0-9]{1,2})\)")
_DECIMAL_PRECISION: Final = 38
_DECIMAL_DIGITS: Final = 100  # far beyond the 38 that a column can have
_NANOSECONDS: Final = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")  # anything but zeros behind the microseconds
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


ERASED: Final = "_erased"
"""The folder of a table with what is left of objects of which rows were erased. Other engines skip such names."""

ROW: Final = "_row"
"""A column of these: the row's number in the object as it was. So offsets stay."""


def arrow_type(column: Column) -> DataType:
    """The Arrow type of a column with one of Delta's primitive types.

    Raises:
        SchemaError: the column has a nested or unknown type.
    """
    if column.type in _ARROW:
        return _ARROW[column.type]()
    if (decimal := _DECIMAL.fullmatch(column.type)) and int(decimal[2]) <= int(decimal[1]) <= _DECIMAL_PRECISION:
        return DataType.decimal128(int(decimal[1]), int(decimal[2]))
    raise column.not_primitive()


def arrow_schema(schema: Schema) -> ArrowSchema:
    """The Arrow schema of a topic's objects: its columns and ``_produced_at``, all nullable."""
    fields = [Field(column.name, arrow_type(column), nullable=True) for column in schema.columns]
    return ArrowSchema([*fields, Field(PRODUCED_AT, TIMESTAMP, nullable=True)])


def to_table(messages: Messages, schema: Schema, *, topic: str, produced_at_us: int) -> Table:
    """The messages as one table of the topic's Arrow schema.

    A dictionary is columns if its values are lists or arrays, and one message if none of them is.

    ``_produced_at`` is taken from the messages that have it (a pipeline carries it through); the others get
    ``produced_at_us``, unless that is 0: then a time that only some messages lack is left to the next call. Missing
    columns of rows are null; missing columns of tables are an error, because there they are more likely a mistake,
    unless they were added to the topic later.

    A value is the same in the topic, or it is an error. Errors are: a number beyond its column's range (``1e300`` in a
    ``float``, which would be infinity), an integer that ``double`` or ``float`` would round (2^53 + 1, 2^24 + 1), a
    decimal with more digits than its column, an instant finer than a microsecond, a ``date64`` with a time of day.
    Rounded without an error is only a floating-point number from ``double`` to ``float``, and a decimal fraction in
    text (``0.1``) to the nearest ``double`` or ``float``.

    Raises:
        SchemaError: unknown or missing columns, or a column of another type.
        MessageError: a value that its column cannot hold; the text names row and column. Or neither columns nor rows.
    """
    try:
        if hasattr(messages, "__arrow_c_stream__"):
            table = Table.from_arrow(messages)
        elif hasattr(messages, "__arrow_c_array__"):
            table = Table.from_arrow(cast("Any", messages))
        elif isinstance(messages, dict):
            # By its values: lists and arrays are columns; a dictionary without one is a message.
            one = messages and not any(map(_is_column, messages.values()))
            table = _from_rows([messages], schema, topic) if one else _from_columns(messages, schema, topic)
        else:
            # A list, because rows are looked at more than once, and an iterator would then have no more of them.
            table = _from_rows(list(cast("Sequence[Mapping[str, Any]]", messages)), schema, topic)
        return _conform(table, schema, topic, produced_at_us)
    except (BrokerlessError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Arrow library is no Exception
        raise MessageError(
            f"What was sent to topic {topic!r} cannot be read as messages ({type(error).__name__}: "
            f"{str(error)[:200]}). Send an Arrow table, a dictionary of columns, one message, or a list of rows."
        ) from error


def encode(table: Table) -> bytes:
    """Parquet bytes of a table: one object of a topic.

    Snappy because every reader has it. No dictionaries and no page statistics: for messages, which rarely repeat and
    which nobody skips by value, they cost three times the rest of the encoding.
    """
    buffer = io.BytesIO()
    write_parquet(
        table,
        buffer,
        compression="snappy",
        dictionary_enabled=False,
        max_statistics_size=64,
        skip_arrow_metadata=True,
        write_batch_size=8192,
    )
    return buffer.getvalue()


def decode(data: bytes) -> Table:
    """The table in Parquet bytes.

    Raises:
        StoreError: they are damaged, hold more than ``MAX_DECODED_BYTES``, or INT96 timestamps that cannot be read.
    """
    try:
        int96 = check_footer(data)
        batches = []
        size = 0
        reader = read_parquet(io.BytesIO(data))
        if any(int96):
            reader = _with_int96(data, reader.schema, int96)
        # What the footer says of sizes is the writer's word, so what comes out is counted: 1,024 rows at a time.
        for batch in reader:
            size += batch.nbytes
            if size > MAX_DECODED_BYTES:
                raise StoreError(
                    f"{len(data)} bytes of Parquet unpack to more than {MAX_DECODED_BYTES} bytes, the limit of one "
                    "object. Its writer must write fewer rows at a time."
                )
            batches.append(batch)
        return Table.from_batches(batches, schema=reader.schema)
    except (KeyboardInterrupt, SystemExit, StoreError):
        raise
    except BaseException as error:  # a panic of the Parquet library is no Exception
        raise StoreError(
            f"{len(data)} bytes are no Parquet that can be read ({type(error).__name__}: {str(error)[:200]})."
        ) from None


def _with_int96(data: bytes, schema: ArrowSchema, int96: list[bool]) -> RecordBatchReader:
    """A reader of an object with Spark's default timestamps: whole microseconds, in UTC.

    Read as they are, in nanoseconds, they wrap around outside the years 1677 to 2262: 3000 becomes 1830.
    """
    leaves = iter(int96)
    fields = [schema.field(number) for number in range(len(schema))]
    wanted = [field.with_type(_int96_type(field.type, leaves)) for field in fields]
    stream = io.BytesIO()
    write_ipc_stream(ArrowSchema(wanted).empty_table(), stream)
    reader = read_parquet(io.BytesIO(with_arrow_schema(data, stream.getvalue())))
    if any(not reader.schema.field(number).type.equals(field.type) for number, field in enumerate(wanted)):
        raise ValueError("its INT96 timestamps cannot be read; write them as TIMESTAMP_MICROS, or use a newer arro3-io")
    return reader


def _int96_type(kind: DataType, leaves: Iterator[bool]) -> DataType:
    if DataType.is_struct(kind):
        return DataType.struct([field.with_type(_int96_type(field.type, leaves)) for field in kind.fields])
    if DataType.is_list(kind):
        of = kind.value_field
        return DataType.list(of.with_type(_int96_type(of.type, leaves)))
    if DataType.is_nested(kind):
        raise ValueError(
            f"INT96 timestamps beside {_type_name(kind)[:100]} cannot be read; write them as TIMESTAMP_MICROS"
        )
    return TIMESTAMP if next(leaves) else kind


def object_name(data: bytes, unique: str) -> str:
    """What an object of a topic is called: with the CRC-32 of its bytes, by which a reader knows damaged ones.

    In the name, because every place that reads an object has its name, and other Delta readers need not know.
    """
    return f"part-{unique}.{zlib.crc32(data):08x}.snappy.parquet"


def damage(path: str, data: bytes) -> str | None:
    """What is wrong with an object's bytes by the checksum in its name; None if nothing is, or if it has none."""
    checksum = _CHECKSUM.search(path)
    if checksum is None or int(checksum[1], 16) == zlib.crc32(data):
        return None
    return f"{len(data)} bytes have the CRC-32 {zlib.crc32(data):08x}, not {checksum[1]} as its name says."


def load(store: Store, path: str) -> Table:
    """The rows of an object; where some were erased and it was removed, the others, with their numbers (``ROW``).

    Damaged bytes are asked for once more: most likely they became so on the way.
    Without TLS nothing else notices: a bit that flips in a number is a valid number. Objects of other writers have no
    checksum in their names, and are taken as they are.

    Raises:
        StoreError: there is no such object, the store failed, or the bytes were damaged twice.
    """
    for _ in range(2):
        try:
            data = store.get(path)
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError):
                return decode(store.get(erased_path(path)))
            raise StoreError(
                f"{store.uri}/{path} is in the log but not in the store. Try again; if it stays away, see what is "
                f"missing with 'brokerless verify {split_table(path.partition('/')[0])[0]}'. A reader goes on after it "
                "with seek or --from."
            ) from None
        try:
            problem = damage(path, data)
            if problem is None:
                return decode(data)
        except StoreError as error:
            problem = str(error)
    raise StoreError(
        f"{store.uri}/{path} is damaged: {problem} 'brokerless verify' tells whether it is the object or the network."
    )


def erased_path(path: str) -> str:
    """Where the rows of an object are that stayed when some of them were erased, with their numbers (``ROW``)."""
    table, _, name = path.partition("/")
    return f"{table}/{ERASED}/{name}"


def with_columns(table: Table, columns: Sequence[Column], *, path: str) -> Table:
    """The rows of an object with exactly these columns, in this order, whoever wrote it; no rows as they are.

    As for other Delta readers, a column that the object lacks is null, one that the table lacks is left out, and
    instants count whole microseconds, which is all that a Delta table has.

    Args:
        table: what the object holds.
        columns: of the topic; nested ones are taken as they come.
        path: of the object, for errors.

    Raises:
        StoreError: a column has another type, or values that do not fit; no row of the object is of this topic.
    """
    names = [column.name for column in columns]
    flat = [arrow_type(c) if _DECIMAL.fullmatch(c.type) or c.type in _ARROW else None for c in columns]
    have = [table.schema.field(number).type for number in range(table.num_columns)]
    known = table.column_names == names and all(t is None or h.equals(t) for h, t in zip(have, flat, strict=True))
    if known or not table.num_rows:
        return table
    found: dict[str, Any] = {}
    for column, want in zip(columns, flat, strict=True):
        same = [i for i, name in enumerate(table.column_names) if name == column.name]
        if len(same) > 1 or (want is None and not same):
            raise StoreError(
                f"{path} holds the column {column.name!r} {len(same)} times; it was not written for this table."
            )
        if not same and want is not None:
            found[column.name] = _array([None] * table.num_rows, want)
        elif want is None:
            found[column.name] = table.column(same[0]).combine_chunks()
        else:
            found[column.name] = _read_as(table.column(same[0]), want, column, path).combine_chunks()
    return Table.from_pydict(found)


def _read_as(column: ChunkedArray, want: DataType, of: Column, path: str) -> ChunkedArray:
    if DataType.is_timestamp(column.type) and DataType.is_timestamp(want):
        return column.cast(want)  # Spark's older timestamps have no zone, and mean UTC
    try:
        return _cast(column, want, of.name, of.type, "")
    except SchemaError:
        raise StoreError(
            f"{path} has the column {of.name!r} as {_type_name(column.type)}, but the table has it as {of.type}."
        ) from None
    except MessageError as error:
        raise StoreError(f"{path} does not fit its table. {error}") from None


def nulls(kind: DataType, rows: int) -> ChunkedArray:
    """A column without a value."""
    return ChunkedArray([_array([None] * rows, kind)])


def constant(value_us: int, rows: int) -> Array:
    """A timestamp column that holds one instant."""
    return Array.from_buffer(array.array("q", (value_us,)) * rows).cast(TIMESTAMP)


def microseconds(instant: datetime) -> int:
    """Microseconds since the epoch, exactly (``timestamp()`` is a float and rounds)."""
    return (instant - _EPOCH) // _MICROSECOND


def _conform(table: Table, schema: Schema, topic: str, produced_at_us: int) -> Table:
    have = {name: i for i, name in enumerate(table.column_names)}
    allowed = set(schema.names) | {PRODUCED_AT}
    unknown = [name for name in table.column_names if name not in allowed]
    missing = [name for name in schema.required if name not in have]
    if unknown or missing or len(have) != table.num_columns:
        _raise_columns(topic, schema, unknown=unknown, missing=missing)
    target = arrow_schema(schema)
    if table.num_rows == 0:
        return target.empty_table()
    columns: list[ChunkedArray] = []
    for column in schema.columns:
        if column.name in have:
            columns.append(_cast(table.column(have[column.name]), arrow_type(column), column.name, column.type, topic))
        else:
            columns.append(nulls(arrow_type(column), table.num_rows))
    if PRODUCED_AT in have:
        stamps = _cast(table.column(have[PRODUCED_AT]), TIMESTAMP, PRODUCED_AT, "timestamp", topic)
        columns.append(_filled(stamps, produced_at_us) if produced_at_us and stamps.null_count else stamps)
    else:
        columns.append(ChunkedArray([constant(produced_at_us, table.num_rows)]))
    # One chunk a column: chunks of different lengths in one table are costly for every step that follows.
    return Table.from_arrays([c.combine_chunks() for c in columns], schema=target)


def _filled(stamps: ChunkedArray, value_us: int) -> ChunkedArray:
    found = stamps.cast(DataType.int64()).to_pylist()
    return ChunkedArray([Array([value_us if us is None else us for us in found], type=DataType.int64())]).cast(
        TIMESTAMP
    )


def _cast(column: ChunkedArray, want: DataType, name: str, delta_type: str, topic: str) -> ChunkedArray:
    have = column.type
    if have.equals(want) and not _is_text(have):
        return column
    widening = (
        DataType.is_null(have)
        or (DataType.is_integer(have) and (DataType.is_integer(want) or DataType.is_floating(want)))
        or (DataType.is_floating(have) and DataType.is_floating(want))
        or (_is_text(have) and DataType.is_string(want))
        or (_is_bytes(have) and DataType.is_binary(want))
        or (DataType.is_timestamp(have) and have.tz is not None and DataType.is_timestamp(want))
        or (DataType.is_date(have) and DataType.is_date(want))
        or (DataType.is_decimal(have) and DataType.is_decimal(want))
    )
    if widening:
        if (result := _converted(column, want)) is not None:
            return result
        row = _first_misfit(column, want)
        of_topic = f" of topic {topic!r}" if topic else ""
        raise MessageError(
            f"Row {row}: column {name!r}{of_topic} is {delta_type}, which cannot hold "
            f"{_shown_cell(column.slice(row, 1))} as it is. Convert it first, or use another type."
        )
    hint = ""
    if DataType.is_timestamp(have) and DataType.is_timestamp(want):
        hint = " Give it a time zone."
    elif DataType.is_nested(have):
        hint = " Topics have no nested columns: send JSON text in a string column, or a column for each field."
    of_topic = f"topic {topic!r} has it as {delta_type}" if topic else f"the table has it as {delta_type}"
    raise SchemaError(f"Column {name!r} is {_type_name(have)}, but {of_topic}.{hint}")


def _converted(column: ChunkedArray, want: DataType) -> ChunkedArray | None:
    """Cast a column to a wider type of its kind; None if one of its values would change."""
    have = column.type
    result = column.cast(want)
    if DataType.is_null(have):
        return result  # whose null count is 0
    if DataType.is_string(want):
        # Nobody has looked at the bytes of a text yet. Committed, one that is no UTF-8 makes its whole object
        # unreadable, with the messages of others in it.
        result = result.cast(DataType.binary()).cast(want)
    # A cast turns what is out of range into null; what it cuts or rounds does not come back.
    if result.null_count != column.null_count:
        return None
    if DataType.is_floating(have):
        return None if DataType.is_float32(want) and _overflowed(column, result) else result
    rounds = DataType.is_floating(want) or DataType.is_decimal(want) or DataType.is_temporal(want)
    # Without its field, whose name and metadata the comparison would look at, and a cast leaves out.
    return None if rounds and not result.cast(have).equals(ChunkedArray(column.chunks, type=have)) else result


def _overflowed(column: ChunkedArray, result: ChunkedArray) -> bool:
    """Tell whether a number became infinite that was not."""
    # No decimal is infinite or not a number, and this one holds every finite float: the cheapest way to count them.
    if result.cast(DataType.decimal128(38, -1)).null_count == column.null_count:
        return False
    return any(
        after is not None and math.isinf(after) and not math.isinf(before)
        for before, after in zip(column.to_pylist(), result.to_pylist(), strict=True)
    )


def _first_misfit(column: ChunkedArray, want: DataType) -> int:
    """The number of the first row that changes with the type, in a column that has one."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        if _converted(column.slice(low, middle - low), want) is None:
            high = middle
        else:
            low = middle
    return low


def _shown_cell(cell: ChunkedArray) -> str:
    if _is_text(cell.type):
        return _shown(cell.cast(DataType.binary()).to_pylist()[0])
    # Not in Python's types, which have no nanoseconds. No zone, because not every machine knows them all.
    kind = DataType.timestamp(cell.type.time_unit or "us", tz="UTC") if DataType.is_timestamp(cell.type) else cell.type
    try:
        return str(cell.cast(kind).cast(DataType.string()).to_pylist()[0])[:60]
    except Exception:  # an instant that has no date
        return f"the value {cell.cast(DataType.int64()).to_pylist()[0]}"


def _type_name(data_type: DataType) -> str:
    return str(data_type).strip().removeprefix("arro3.core.DataType<").removesuffix(">")


def _is_text(t: DataType) -> bool:
    return DataType.is_string(t) or DataType.is_large_string(t) or DataType.is_string_view(t)


def _is_bytes(t: DataType) -> bool:
    return DataType.is_binary(t) or DataType.is_large_binary(t) or DataType.is_binary_view(t)


def _raise_columns(topic: str, schema: Schema, *, unknown: Sequence[str], missing: Sequence[str]) -> None:
    parts = [f"Topic {topic!r} has the columns: {', '.join(schema.names)}."]
    if unknown:
        parts.append(f"It has no column {', '.join(map(_shown, unknown))}.")
    if missing:
        parts.append(f"The messages lack {', '.join(map(repr, missing))}.")
    if not unknown and not missing:
        parts.append("The messages hold one of them twice.")
    raise SchemaError(" ".join(parts))


def _is_column(values: Any) -> bool:
    """Return whether this is a list or an array of values, and not one value (text, bytes, a number, a mapping)."""
    if isinstance(values, str | bytes | Mapping):
        return False
    return hasattr(values, "__iter__") or hasattr(values, "__arrow_c_array__")


def _from_columns(columns: Mapping[str, Any], schema: Schema, topic: str) -> Table:
    types = {c.name: arrow_type(c) for c in schema.columns} | {PRODUCED_AT: TIMESTAMP}
    unknown = [name for name in columns if name not in types]
    if unknown:
        _raise_columns(topic, schema, unknown=unknown, missing=[])
    for name, values in columns.items():
        if not _is_column(values):
            other = next(name for name, value in columns.items() if _is_column(value))
            raise MessageError(
                f"Column {name!r} is {_shown(values)}, one value, but {other!r} is a list or an array; give a list or "
                "an array with a value for each row in all columns, or one value in each for a single message."
            )
    arrays = {
        name: values if hasattr(values, "__arrow_c_array__") else _column(list(values), name, types[name])
        for name, values in columns.items()
    }
    lengths = {len(values) for values in arrays.values()}
    if len(lengths) > 1:
        raise SchemaError(f"The columns for topic {topic!r} differ in length: {sorted(lengths)}.")
    return Table.from_pydict(arrays)


def _from_rows(rows: Sequence[Mapping[str, Any]], schema: Schema, topic: str) -> Table:
    names = [*schema.names]
    known = {*names, PRODUCED_AT}
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise MessageError(f"Row {number} is {type(row).__name__}, not a mapping of column to value.")
        if not row.keys() <= known:
            _raise_columns(topic, schema, unknown=sorted(row.keys() - known, key=_shown), missing=[])
    if any(PRODUCED_AT in row for row in rows):
        names.append(PRODUCED_AT)
    types = {c.name: arrow_type(c) for c in schema.columns} | {PRODUCED_AT: TIMESTAMP}
    return Table.from_pydict({name: _column([row.get(name) for row in rows], name, types[name]) for name in names})


def _column(values: list[Any], name: str, want: DataType) -> Array:
    """Python values as a column; the slow path for a value that does not fit says which one it is."""
    try:
        return _array(values, want)
    except Exception:
        for number, value in enumerate(values):
            try:
                _array([value], want)
            except _Changed:
                raise MessageError(
                    f"Row {number}: column {name!r} is {_type_name(want)}, which cannot hold {_shown(value)} as it is."
                ) from None
            except Exception:
                raise MessageError(
                    f"Row {number}: column {name!r} is {_type_name(want)}, but the value is {_shown(value)}."
                ) from None
        raise


class _Changed(ValueError):
    """A value of the right kind, which its column would round or cut."""


def _shown(value: Any) -> str:
    """A value as errors show it; some cannot be: integers of 5,000 digits, lists in a thousand lists."""
    try:
        text = repr(value)
    except Exception:  # of any class: the value's own code runs
        return f"one of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= 60 else text[:60] + "..."


def _array(values: list[Any], want: DataType) -> Array:
    if DataType.is_timestamp(want):
        return Array([_to_us(v) for v in values], type=DataType.int64()).cast(want)
    if DataType.is_date(want):
        days = [None if v is None else (_to_date(v) - date(1970, 1, 1)).days for v in values]
        return Array(days, type=DataType.int32()).cast(want)
    if DataType.is_decimal(want):
        scale = int(_type_name(want).rpartition(",")[2].rstrip(")"))
        texts = Array([None if v is None else _to_decimal(v, scale) for v in values], type=DataType.string())
        result = texts.cast(want)
        if result.null_count != texts.null_count:
            raise ValueError("does not fit")
        return result
    if DataType.is_binary(want):
        return Array([base64.b64decode(v, validate=True) if isinstance(v, str) else v for v in values], type=want)
    if DataType.is_boolean(want) and not all(v is None or isinstance(v, bool) for v in values):
        raise ValueError("not a boolean")
    if DataType.is_numeric(want) and any(isinstance(v, bool) for v in values):
        raise ValueError("a boolean is not a number")
    if DataType.is_floating(want):
        bits = 53 if DataType.is_float64(want) else 24
        if not all(v is None or isinstance(v, float) or _is_exact(v, bits) for v in values):
            raise _Changed
        result = _converted(ChunkedArray([Array(values, type=DataType.float64())]), want)
        if result is None:
            raise _Changed
        return result.combine_chunks()
    return Array(values, type=want)


def _is_exact(value: Any, bits: int) -> bool:
    """Tell whether a floating-point number with so many bits gives an integer or a decimal back."""
    if isinstance(value, Decimal):
        return Decimal(repr(float(value))) == value
    if not hasattr(value, "__index__"):  # NumPy's integers have it
        return True
    number = int(value)
    spare = max(0, number.bit_length() - bits)
    # JavaScript writes doubles up to 1e21 as integers: the digits that tell them apart, then zeros.
    return number >> spare << spare == number or (bits == 53 and Decimal(repr(float(number))) == number)


def _to_us(value: Any) -> int | None:
    if value is None:
        return None
    instant = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(instant, datetime) or instant.tzinfo is None:
        raise ValueError("not an instant with a time zone")
    # Python cuts the nanoseconds of a text; those of pandas are beside what a datetime holds.
    if _NANOSECONDS.search(value) if isinstance(value, str) else getattr(value, "nanosecond", 0):
        raise _Changed
    # In UTC: where the offset moves it out of the years 1 to 9999, no reader in Python could show it.
    return microseconds(instant.astimezone(UTC))


def _to_date(value: Any) -> date:
    return date.fromisoformat(value) if isinstance(value, str) else cast("date", value)


def _to_decimal(value: Any, scale: int) -> str:
    # Not a float, which is not exact; not a list, which Decimal would take for sign, digits and exponent.
    if isinstance(value, bool) or not isinstance(value, Decimal | int | str):
        raise ValueError("not exact")
    number = Decimal(value)
    # Written out, '1e999999999' takes a gigabyte.
    if not number.is_finite() or abs(number.adjusted()) > _DECIMAL_DIGITS:
        raise ValueError("does not fit")
    text = f"{number:f}"
    if len(text.partition(".")[2].rstrip("0")) > scale:
        raise _Changed
    return text


def values_of(column: ChunkedArray) -> list[Any]:
    """The column's values in Python's types; instants and days outside the years 1 to 9999, which it lacks, as text."""
    if DataType.is_timestamp(column.type) and column.type.tz is not None:
        # to_pylist would ask for the time zone "UTC" by name, which machines without a time-zone database do not have.
        return [None if v is None else _instant(v) for v in column.cast(TIMESTAMP).cast(DataType.int64()).to_pylist()]
    if DataType.is_date32(column.type):
        return [None if v is None else _day(v) for v in column.cast(DataType.int32()).to_pylist()]
    return list(column.to_pylist())


def _instant(value_us: int) -> datetime | str:
    try:
        return _EPOCH + timedelta(microseconds=value_us)
    except OverflowError:
        return f"{value_us} microseconds since 1970-01-01"


def _day(days: int) -> date | str:
    try:
        return date(1970, 1, 1) + timedelta(days=days)
    except OverflowError:
        return f"{days} days since 1970-01-01"


def rows_of(table: Table) -> list[dict[str, Any]]:
    """Each row as a dictionary of Python values (``values_of``)."""
    names = table.column_names
    columns = [values_of(table.column(i)) for i in range(table.num_columns)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def rows_as_json(table: Table) -> list[str]:
    """Each row as JSON text: instants as ISO 8601, bytes as base64, decimals as text."""
    return [json.dumps(row, default=json_value, ensure_ascii=False) for row in rows_of(table)]


def json_value(value: Any) -> str:
    """What JSON has no type for, as text."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
