"""The schema of a topic from a file: a description of messages, or messages."""

from __future__ import annotations

import csv
import json
import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from arro3.core import DataType
from arro3.io import read_parquet

from brokerless.columns.records import arrow_type
from brokerless.columns.text import DECODER
from brokerless.errors import ConfigError, SchemaError
from brokerless.schema import PRODUCED_AT, Column, Schema
from brokerless.schema_files import INFER_ROWS

if TYPE_CHECKING:
    from pathlib import Path

_PRIMITIVE: Final = ("string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date")
_DECIMAL: Final = re.compile(r"Decimal128\((\d+), ?(\d+)\)", re.IGNORECASE)
_LIKE: Final = (".parquet", ".jsonl", ".csv")


def schema_of_file(path: Path) -> Schema:
    """Return the schema in an Avro file (``.avsc``) or a JSON Schema (any other name).

    Raises:
        ConfigError: there is no such file.
        SchemaError: it cannot be mapped; the text names the field.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{path} is not JSON ({error}).") from None
    return Schema.from_avro(document) if path.suffix == ".avsc" else Schema.from_json_schema(document)


def schema_like(path: Path) -> Schema:
    """Return the schema of messages such as those in a file: exact of Parquet, else from the first 1,000 rows.

    Raises:
        ConfigError: there is no such file, or its name does not end in ``.parquet``, ``.jsonl`` or ``.csv``.
        SchemaError: a column cannot be mapped; the text names it.
    """
    if path.suffix not in _LIKE:
        raise ConfigError(f"A schema can be inferred from {', '.join(_LIKE)}, not from {path.name!r}.")
    try:
        if path.suffix == ".parquet":
            return _of_parquet(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix == ".csv":
                return Schema.infer(islice(csv.DictReader(file), INFER_ROWS), texts=True)
            return Schema.infer(_rows(path, islice((line for line in file if line.strip()), INFER_ROWS)))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise SchemaError(f"{path} is not UTF-8 ({error.reason}).") from None


def _rows(path: Path, lines: Any) -> list[dict[str, Any]]:
    rows = []
    for line in lines:
        try:
            row = DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"{path} is not JSON lines ({error}).") from None
        if not isinstance(row, dict):
            raise SchemaError(f"{path} is not JSON lines: write one object a line.")
        rows.append(row)
    return rows


def _of_parquet(path: Path) -> Schema:
    try:
        with path.open("rb") as file:
            found = read_parquet(file).schema
    except OSError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise SchemaError(f"{path} is no Parquet that can be read ({str(error)[:200]}).") from None
    fields = [found.field(number) for number in range(len(found))]
    return Schema.of([Column(one.name, _delta_type(one.name, one.type)) for one in fields if one.name != PRODUCED_AT])


def _delta_type(name: str, kind: DataType) -> str:
    for delta_type in _PRIMITIVE:
        if arrow_type(Column(name, delta_type)).equals(kind):
            return delta_type
    if DataType.is_large_string(kind) or DataType.is_string_view(kind):
        return "string"
    if DataType.is_large_binary(kind) or DataType.is_binary_view(kind):
        return "binary"
    if DataType.is_timestamp(kind) and kind.tz is not None:
        return "timestamp"
    shown = str(kind).strip().removeprefix("arro3.core.DataType<").removesuffix(">")
    if decimal := _DECIMAL.match(shown):
        return f"decimal({decimal[1]},{decimal[2]})"
    raise SchemaError(f"Field {name!r} is {shown[:100]}, which no column can be: write it as another type.")
