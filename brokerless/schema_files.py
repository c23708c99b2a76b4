"""Columns from JSON Schema, from Avro and from values: ``(name, type)`` pairs. Uses the standard library only."""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NoReturn

from brokerless.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Pairs = list[tuple[str, str]]

INFER_ROWS: Final = 1_000
"""From how many rows a schema is inferred at most."""

_JSON: Final = {"string": "string", "integer": "long", "number": "double", "boolean": "boolean"}
_FORMATS: Final = {"date-time": "timestamp", "date": "date"}
_AVRO: Final = {
    "string": "string",
    "bytes": "binary",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "enum": "string",
    "fixed": "binary",
}
_LOGICAL: Final = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "uuid": "string",
}
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_REFERENCES: Final = 20  # how many may point to each other before it is taken for a circle


def columns_of_json_schema(document: Any) -> Pairs:
    """Return the columns of a JSON Schema (draft 2020-12) of an object.

    Raises:
        SchemaError: it is none of an object, or a property has no type that a column can have; the text names it.
    """
    whole = _resolved(document, document, "the schema")
    properties = whole.get("properties")
    if whole.get("type", "object") != "object" or not isinstance(properties, dict) or not properties:
        raise SchemaError("A topic's JSON Schema must be of an object with 'properties': each becomes a column.")
    return [(name, _json_type(document, one, name)) for name, one in properties.items()]


def _json_type(document: Any, given: Any, name: str) -> str:
    one = _resolved(document, given, name)
    for key in ("anyOf", "oneOf"):
        if key in one:
            choices = [_resolved(document, choice, name) for choice in one[key]]
            others = [choice for choice in choices if choice.get("type") != "null"]
            if len(others) != 1:
                _refuse(name, f"{key} of {len(others)} types", "give it one type, which may be null")
            return _json_type(document, others[0], name)
    values = one.get("enum", [one["const"]] if "const" in one else None)
    kind = one.get("type")
    if kind is None and values and all(value is None or isinstance(value, str) for value in values):
        kind = "string"
    kinds = [each for each in (kind if isinstance(kind, list) else [kind]) if each != "null"]
    if len(kinds) != 1 or kinds[0] not in _JSON:
        shown = " or ".join(map(str, kinds)) if any(kinds) else "no type"
        _refuse(name, shown, "give it the type string, integer, number or boolean, or keep it as JSON text in a string")
    if kinds[0] == "string" and one.get("contentEncoding") == "base64":
        return "binary"
    return _FORMATS.get(str(one.get("format")), "string") if kinds[0] == "string" else _JSON[kinds[0]]


def _resolved(document: Any, one: Any, name: str) -> dict[str, Any]:
    for _ in range(_REFERENCES):
        if not isinstance(one, dict):
            _refuse(name, f"{one!r:.60}", "describe it with an object")
        if "$ref" not in one:
            return one
        path, one = str(one["$ref"]), document
        if not path.startswith("#"):
            _refuse(name, f"the reference {path!r:.60}", "put what it refers to into '$defs' of the same file")
        for part in path[1:].strip("/").split("/") if path != "#" else ():
            one = one.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(one, dict) else None
    _refuse(name, "references in a circle", "give it a type")


def columns_of_avro(document: Any) -> Pairs:
    """Return the columns of an Avro record.

    Raises:
        SchemaError: it is no record, or a field has no type that a column can have; the text names it.
    """
    if not isinstance(document, dict) or document.get("type") != "record" or not document.get("fields"):
        raise SchemaError("A topic's Avro schema must be a record with 'fields': each becomes a column.")
    named: dict[str, Any] = {}
    try:
        return [(field["name"], _avro_type(field["type"], field["name"], named)) for field in document["fields"]]
    except (KeyError, TypeError) as error:
        raise SchemaError(f"This is no Avro record: a field has no {error}.") from None


def _avro_type(given: Any, name: str, named: dict[str, Any]) -> str:
    if isinstance(given, list):
        others = [one for one in given if one != "null"]
        if len(others) != 1:
            _refuse(name, f"a union of {len(others)} types", "give it one type, which may be null")
        return _avro_type(others[0], name, named)
    one = named.get(given, {"type": given}) if isinstance(given, str) else given
    kind = one["type"]
    if isinstance(kind, dict | list):
        return _avro_type(kind, name, named)
    if kind in {"enum", "fixed"}:
        named[one["name"]] = one
    logical = one.get("logicalType")
    if logical == "decimal":
        return f"decimal({one['precision']},{one.get('scale', 0)})"
    if kind not in _AVRO or (logical is not None and logical not in _LOGICAL):
        _refuse(name, str(logical or kind), "give it a primitive type, or keep it as JSON text in a string")
    return _LOGICAL[logical] if logical is not None else _AVRO[kind]


def columns_of_rows(rows: Iterable[Mapping[str, Any]], *, texts: bool = False) -> Pairs:
    """Return the columns that rows have, by their values; one without any value is ``string``.

    Args:
        rows: as they came from JSON or from Python; the first ``INFER_ROWS`` count.
        texts: whether all values are text, as in CSV; an empty one is none.

    Raises:
        SchemaError: there are no rows, or a column has values of several types or of none that it can have.
    """
    found: dict[str, list[Any]] = {}
    for number, row in enumerate(rows):
        if number == INFER_ROWS:
            break
        for name, value in row.items():
            values = found.setdefault(name, [])
            if value is not None and not (texts and value == ""):
                values.append(value)
    if not found:
        raise SchemaError("There are no rows to infer a schema from.")
    return [(name, _text_type(values) if texts else _value_type(name, values)) for name, values in found.items()]


def _value_type(name: str, values: Sequence[Any]) -> str:
    kinds = {_python_type(name, value) for value in values}
    if kinds == {"long", "double"}:
        return "double"
    if len(kinds) > 1:
        _refuse(name, " and ".join(sorted(kinds)), "give all its values one type")
    kind = kinds.pop() if kinds else "string"
    return _instant_type(values) if kind == "string" else kind


def _python_type(name: str, value: Any) -> str:
    for kind, delta_type in (
        (bool, "boolean"),
        (int, "long"),
        (float, "double"),
        (str, "string"),
        (bytes, "binary"),
        (datetime, "timestamp"),
        (date, "date"),
    ):
        if isinstance(value, kind):
            if kind is int and isinstance(value, int) and not -(2**63) <= value < 2**63:
                _refuse(
                    name, f"the number {str(value)[:30]}, larger than a long", "name it as decimal(38,0) in --schema"
                )
            return delta_type
    if isinstance(value, Decimal):
        _refuse(name, "Decimal", "name it as decimal(precision,scale) in --schema")
    _refuse(name, type(value).__name__, "keep it as JSON text in a string, or give each of its fields a column")


def _text_type(values: Sequence[str]) -> str:
    if values and all(value in {"true", "false"} for value in values):
        return "boolean"
    if values and all(_INTEGER.fullmatch(value) and -(2**63) <= int(value) < 2**63 for value in values):
        return "long"
    if values and all(_NUMBER.fullmatch(value) for value in values):
        return "double"
    return _instant_type(values)


def _instant_type(values: Sequence[str]) -> str:
    """Return ``timestamp`` or ``date`` if all texts are such in ISO 8601, as messages must have them; or ``string``."""
    if values and all(re.fullmatch(r"\d{4}-\d\d-\d\d", value) and _parses(date, value) for value in values):
        return "date"
    if values and all(re.match(r"\d{4}-\d\d-\d\dT.*(Z|[+-]\d\d:?\d\d)\Z", v) and _parses(datetime, v) for v in values):
        return "timestamp"
    return "string"


def _parses(kind: type[date], value: str) -> bool:
    try:
        kind.fromisoformat(value)
    except ValueError:
        return False
    return True


def _refuse(name: str, what: str, instead: str) -> NoReturn:
    raise SchemaError(f"Field {name!r} is {what}, which no column can be: {instead}.")
