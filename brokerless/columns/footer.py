"""A Parquet object's footer, checked before the decoder believes it.

The decoder at hand panics on places and sizes below zero, and where its rows cross into Python a panic ends the
process: one object of a kilobyte in a topic would end every reader of it, again at each start. What pages hold is the
decoder's to check, and there are bytes on which it ends the process still (``docs/threat-model.md``).

Sources: the Apache Parquet format (``parquet.thrift``, field numbers below) and Thrift's compact protocol.
"""

from __future__ import annotations

import base64
from typing import Any, Final

_MAGIC: Final = b"PAR1"
_TAIL: Final = 8  # the footer's length and the magic
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)
_INTEGERS: Final = frozenset((_I16, _I32, _I64))
_SIZES: Final = {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8, _UUID: 16}  # in a list, and of fields but for the first two
_MAX_DEPTH: Final = 16  # FileMetaData is eight deep
_VARINT_BITS: Final = 63

_SCHEMA, _ROWS, _ROW_GROUPS, _KEY_VALUES = 2, 3, 4, 5  # of FileMetaData
_TYPE, _CHILDREN = 1, 5  # of SchemaElement
_INT96: Final = 3
_COLUMNS, _NUM_ROWS = 1, 3  # of RowGroup
_META: Final = 3  # of ColumnChunk
_NUM_VALUES, _PACKED, _DATA, _DICTIONARY = 5, 7, 9, 11  # of ColumnMetaData


def check_footer(data: bytes) -> list[bool]:
    """Passes if the footer of a whole Parquet object points nowhere but into the object.

    Returns:
        For each leaf column, in their order, whether it holds INT96 timestamps.

    Raises:
        ValueError: it does not, or cannot be read.
    """
    footer, begin, _ = _footer(data)
    try:
        for group in footer.get(_ROW_GROUPS, []):
            if group[_NUM_ROWS] < 0 or not all(_is_inside(column[_META], begin) for column in group[_COLUMNS]):
                raise ValueError("its footer points outside of it")
        return [e.get(_TYPE) == _INT96 for e in footer.get(_SCHEMA, [])[1:] if not e.get(_CHILDREN)]
    except (IndexError, KeyError, TypeError, AttributeError):
        raise _damaged() from None


def row_count(data: bytes) -> int:
    """The number of rows that the footer of a whole Parquet object says: a log's statistics must agree with it.

    Raises:
        ValueError: it is no Parquet object, or its footer is damaged (or encrypted).
    """
    rows = _footer(data)[0].get(_ROWS)
    if not isinstance(rows, int):
        raise _damaged()
    return rows


def with_arrow_schema(data: bytes, schema: bytes) -> bytes:
    """Return the object with an Arrow schema in its footer, which decoders take the columns' Arrow types from.

    Args:
        data: a whole Parquet object. Other keys and values in its footer are lost.
        schema: an Arrow IPC stream.
    """
    _, begin, at = _footer(data)
    pair = b"".join(b"\x18" + _varint(len(text)) + text for text in (b"ARROW:schema", base64.b64encode(schema)))
    # A field's number may be anywhere if it is written out, and of a field that is there twice the last one counts.
    field = bytes((_LIST, _KEY_VALUES << 1, 1 << 4 | _STRUCT)) + pair + b"\0"
    footer = data[begin : at - 1] + field + data[at - 1 : -_TAIL]
    return data[:begin] + footer + len(footer).to_bytes(4, "little") + _MAGIC


def _footer(data: bytes) -> tuple[dict[int, Any], int, int]:
    """The outermost struct of the footer, where it begins and where it ends."""
    end = len(data) - _TAIL
    begin = end - int.from_bytes(data[end : end + 4], "little") if end > 0 else -1
    if data[:4] != _MAGIC or data[-4:] != _MAGIC:
        raise ValueError("no Parquet object: it does not begin and end with PAR1")
    if begin < len(_MAGIC):
        raise _damaged()
    try:
        fields, at = _struct(data, begin, end)
        return fields, begin, at
    except (IndexError, KeyError, RecursionError, TypeError):
        raise _damaged() from None


def _damaged() -> ValueError:
    return ValueError("its Parquet footer is damaged")


def _is_inside(column: dict[int, Any], end: int) -> bool:
    start, size = column.get(_DICTIONARY, column[_DATA]), column[_PACKED]
    return bool(min(start, size, column[_DATA], column[_NUM_VALUES]) >= 0 and start + size <= end)


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes((*digits, value))


def _struct(data: bytes, at: int, end: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Read a struct: its fields by number, and where it ends. Texts, doubles and maps, which nobody needs, are None.

    Written for speed, numbers and texts in place: for a small object this takes as long as the decoder does.

    Args:
        data: the object.
        at: where the struct begins.
        end: where the footer ends; a struct whose end is not before it is damaged.
        depth: in how many others it is.
    """
    if depth > _MAX_DEPTH:
        raise IndexError
    fields: dict[int, Any] = {}
    number = 0
    while at < end:
        header = data[at]
        at += 1
        if header == 0:
            return fields, at
        if header > 15:
            number += header >> 4
        else:
            number, at = _zigzag(data, at)
        kind = header & 15
        if kind in _INTEGERS:
            value = data[at]
            at += 1
            if value > 127:
                value, at = _read_varint(data, at - 1)
            fields[number] = value >> 1 ^ -(value & 1)
        elif kind == _BINARY:
            length = data[at]
            at += 1
            if length > 127:
                length, at = _read_varint(data, at - 1)
            at += length
            fields[number] = None
        elif kind in (_TRUE, _FALSE):
            fields[number] = None  # the header is the value; in a list it has a byte
        else:
            fields[number], at = _value(data, at, end, kind, depth)
    raise IndexError


def _value(data: bytes, at: int, end: int, kind: int, depth: int) -> tuple[Any, int]:
    """Read a value of this kind, and where it ends; see ``_struct``."""
    if kind == _STRUCT:
        return _struct(data, at, end, depth + 1)
    if kind in (_LIST, _SET):
        return _list(data, at, end, depth)
    if kind in _INTEGERS:
        return _zigzag(data, at)
    if kind == _BINARY:
        length, at = _read_varint(data, at)
        return None, at + length
    if kind == _MAP:
        count, at = _read_varint(data, at)
        kinds = data[at] if count else 0
        at += bool(count)
        for _ in range(count):
            for of in (kinds >> 4, kinds & 15):
                if at >= end or depth > _MAX_DEPTH:
                    raise IndexError
                at = _value(data, at, end, of, depth + 1)[1]
        return None, at
    return None, at + _SIZES[kind]


def _list(data: bytes, at: int, end: int, depth: int) -> tuple[list[Any], int]:
    header = data[at]
    at += 1
    count, kind = header >> 4, header & 15
    if count == 15:
        count, at = _read_varint(data, at)
    values = []
    for _ in range(count):
        if at >= end or depth > _MAX_DEPTH:
            raise IndexError
        if kind in _INTEGERS and data[at] < 128:
            value = data[at] >> 1 ^ -(data[at] & 1)
            at += 1
        else:
            value, at = _value(data, at, end, kind, depth + 1)
        values.append(value)
    return values, at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > _VARINT_BITS:
            raise IndexError


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return value >> 1 ^ -(value & 1), at
