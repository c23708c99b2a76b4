"""Messages as text: CSV and JSON lines.

CSV is made for spreadsheets and for the example's readers. Its header and all its fields are quoted; doubles are plain
decimals, never in scientific notation; a null is an empty field without quotes. A text (or a column's name) that begins
with ``=``, ``+``, ``-``, ``@``, the wide forms of these, a tab or a line break would be run as a formula by a
spreadsheet: it gets a ``'`` in front, the spreadsheets' own mark for "this is text". Numbers are not touched, and
neither is JSON, which holds every message as it was sent. ``raw`` leaves the ``'`` out, for programs that read CSV.
"""

from __future__ import annotations

import json
import math
import struct
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from arro3.core import DataType, Table

from brokerless.columns.records import json_value, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# With the full-width forms, which spreadsheets in East Asian settings take for the plain ones.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def json_lines(table: Table) -> list[str]:
    """Each row as JSON text: instants as ISO 8601, bytes as base64, decimals, NaN and infinities as text."""
    names = table.column_names
    columns = [values_of(table.column(name)) for name in names]
    encode = json.JSONEncoder(default=json_value, ensure_ascii=False, allow_nan=False).encode
    lines: list[str] = []
    for row in zip(*columns, strict=True):
        try:
            lines.append(encode(dict(zip(names, row, strict=True))))
        except ValueError:  # JSON has no NaN; bare NaN would make the line unreadable for most others
            safe = (repr(v) if isinstance(v, float) and not math.isfinite(v) else v for v in row)
            lines.append(encode(dict(zip(names, safe, strict=True))))
    return lines


def csv_header(names: Sequence[str], *, raw: bool = False) -> str:
    """The header line, safe unless ``raw`` (see the module), without its end."""
    return ",".join(_quote(name if raw else _defuse(name)) for name in names)


def csv_lines(table: Table, *, raw: bool = False) -> list[str]:
    """Each row as a line of CSV, safe unless ``raw`` (see the module), without its end."""
    columns = [_csv_column(table, name, raw=raw) for name in table.column_names]
    return [",".join(row) for row in zip(*columns, strict=True)]


def plain_decimal(value: float, *, single: bool = False) -> str:
    """The shortest plain decimal that reads back as the same number: ``1724403133066.217``, never ``1.7E12``.

    Args:
        value: NaN and infinities become ``NaN``, ``Infinity`` and ``-Infinity``.
        single: the number is of single precision, whose shortest text is shorter.
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    text = repr(value)
    if single:
        # Nine digits tell any two singles apart; fewer often do.
        text = next(
            t
            for t in (f"{value:.{digits}g}" for digits in range(6, 10))
            if struct.pack("f", float(t)) == struct.pack("f", value)
        )
        text = text if "e" in text or "." in text else text + ".0"
    if "e" not in text:
        return text
    plain = f"{Decimal(text):f}"
    return plain if "." in plain else plain + ".0"


def as_texts(table: Table, name: str, *, null: str = "") -> list[str]:
    """A column's values as text for people: plain decimals, ISO 8601, base64; ``null`` for none."""
    text = _formatter(table.column(name).type)
    return [null if value is None else text(value) for value in values_of(table.column(name))]


def _csv_column(table: Table, name: str, *, raw: bool) -> list[str]:
    column = table.column(name)
    text = _formatter(column.type)
    # Numbers may begin with a minus; everything else is somebody's text.
    guard = _plain if raw or DataType.is_numeric(column.type) or DataType.is_boolean(column.type) else _defuse
    return ["" if value is None else _quote(guard(text(value))) for value in values_of(column)]


def _formatter(kind: DataType) -> Callable[[Any], str]:
    if DataType.is_floating(kind):
        single = kind.equals(DataType.float32())
        return lambda value: plain_decimal(value, single=single)
    if DataType.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if DataType.is_decimal(kind):
        return lambda value: f"{value:f}"
    return _as_text


def _plain(text: str) -> str:
    return text


def _defuse(text: str) -> str:
    return "'" + text if text.startswith(_FORMULA) else text


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | datetime | date):
        return json_value(value)
    return json.dumps(value, default=json_value, ensure_ascii=False)


def _quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
