"""Compare the columns of a Parquet object with those of the table's log."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

from arro3.core import DataType
from arro3.io import read_parquet

from brokerless.columns.footer import check_footer
from brokerless.columns.records import arrow_type
from brokerless.errors import SchemaError
from brokerless.schema import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokerless.log.entries import Metadata

    _Test = Callable[[DataType], bool]

# Writers choose among these types, and every reader accepts all of them.
_KINDS: Final[dict[str, tuple[_Test, ...]]] = {
    "string": (DataType.is_string, DataType.is_large_string, DataType.is_string_view),
    "binary": (DataType.is_binary, DataType.is_large_binary, DataType.is_binary_view, DataType.is_fixed_size_binary),
    "timestamp": (DataType.is_timestamp,),
    "timestamp_ntz": (DataType.is_timestamp,),
    "struct": (DataType.is_struct,),
    "array": (DataType.is_list, DataType.is_large_list, DataType.is_fixed_size_list),
    "map": (DataType.is_map,),
}
_MAPPED: Final = "delta.columnMapping.mode"
_WIDENED: Final = "delta.enableTypeWidening"


def columns_of(metadata: Metadata) -> dict[str, Any]:
    """Return the columns' Delta types by name: text, or a dictionary for nested types.

    Raises:
        ValueError, KeyError, TypeError, RecursionError: the schema is invalid.
    """
    columns = {field["name"]: field["type"] for field in json.loads(metadata.schema_string)["fields"]}
    if not all(isinstance(name, str) and isinstance(kind, str | dict) for name, kind in columns.items()):
        raise TypeError("a column's name must be a string, and its type a string or a structure")
    return columns


def difference(metadata: Metadata, data: bytes, *, exact: bool) -> str | None:
    """Return how the columns of an object differ from the table's; None if they do not, or if it is unknown.

    Args:
        metadata: the metadata of the table.
        data: the object's bytes.
        exact: whether the object must have all columns and no others. Otherwise it may lack columns that were added
            later, and have columns that were dropped; but an object with none of them is of another table.

    Raises:
        ValueError: the object is not readable Parquet.
    """
    try:
        wanted = columns_of(metadata)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # reported as its own finding
    if metadata.configuration.get(_MAPPED, "none") != "none":
        return None
    wanted = {name: kind for name, kind in wanted.items() if name not in metadata.partition_columns}
    have = _columns_in(data)
    lacks, more = sorted(wanted.keys() - have.keys()), sorted(have.keys() - wanted.keys())
    is_other = bool(lacks or more) if exact else bool(wanted) and not wanted.keys() & have.keys()
    differences = [f"lacks {name}" for name in lacks if is_other] + [f"has {name}" for name in more if is_other]
    if metadata.configuration.get(_WIDENED) != "true":
        differences += [
            f"has {name} as {_name(have[name])}, not {kind if isinstance(kind, str) else kind.get('type')}"
            for name, kind in wanted.items()
            if name in have and not _fits(kind, have[name])
        ]
    return ", ".join(differences) or None


def _columns_in(data: bytes) -> dict[str, DataType]:
    check_footer(data)
    try:
        schema = read_parquet(io.BytesIO(data)).schema
        return {field.name: field.type for field in (schema.field(n) for n in range(len(schema)))}
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Parquet library is not an Exception
        raise ValueError(f"its columns cannot be read ({type(error).__name__}: {str(error)[:200]})") from None


def _fits(kind: str | Mapping[str, Any], found: DataType) -> bool:
    name = kind if isinstance(kind, str) else str(kind.get("type"))
    if DataType.is_dictionary(found) and found.value_type is not None:
        found = found.value_type
    if name in _KINDS:
        return any(test(found) for test in _KINDS[name])
    try:
        return arrow_type(Column(name, name)).equals(found)
    except SchemaError:
        return True  # a type that this kit does not have


def _name(kind: DataType) -> str:
    return repr(kind).strip().removeprefix("arro3.core.DataType<").removesuffix(">")
