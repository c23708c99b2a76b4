"""Choose rows of a table, by position or by a condition on its columns."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, Literal

from arro3.core import Array, DataType, Table

from brokerless.columns.records import to_table, values_of
from brokerless.errors import ConfigError, MessageError, SchemaError
from brokerless.schema import Column, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

_TERM: Final = re.compile(
    r"\s*(?P<column>[A-Za-z_]\w*|\"[^\"]+\")\s*"
    r"(?:(?P<null>is\s+(?:not\s+)?null)|(?P<op>=|<>|!=|<=|>=|<|>)\s*(?P<value>'(?:[^']|'')*'|[^\s']+)"
    r"|in\s*\((?P<values>(?:\s*(?:'(?:[^']|'')*'|[^\s',()]+)\s*,?)+)\))\s*",
    re.IGNORECASE,
)
_VALUE: Final = re.compile(r"'(?:[^']|'')*'|[^\s',]+")
_AND: Final = re.compile(r"and\b", re.IGNORECASE)
_Operator = Literal["in", "<", "<=", ">", ">=", "<>", "is null", "is not null"]


def rows_where(table: Table, keep: Sequence[bool]) -> Table:
    """Return the rows for which ``keep`` has True, in their order."""
    begin = 0
    batches = []
    for batch in table.to_batches():
        wanted = list(compress(range(batch.num_rows), keep[begin : begin + batch.num_rows]))
        begin += batch.num_rows
        if wanted:
            batches.append(batch.take(Array(wanted, DataType.uint32())))
    return Table.from_batches(batches, schema=table.schema) if batches else table.slice(0, 0)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on rows: comparisons of columns with values, all of which must hold.

    As in SQL, a comparison with a missing value does not hold.
    """

    terms: tuple[tuple[str, _Operator, tuple[Any, ...]], ...]
    text: str

    @classmethod
    def parse(cls, text: str, schema: Schema) -> Condition:
        """Parse a condition such as ``user = 'u194' and at < '2026-01-01T00:00:00Z'``.

        Operators are ``=``, ``<>``, ``<``, ``<=``, ``>``, ``>=``, ``in (...)``, ``is null`` and ``is not null``; ``or``
        and brackets are not supported: write one condition after the other.

        Raises:
            ConfigError: the text is not a condition on these columns.
        """
        terms: list[tuple[str, _Operator, tuple[Any, ...]]] = []
        at = 0
        while True:
            found = _TERM.match(text, at)
            if found is None:
                raise ConfigError(
                    f"{text!r} is not a condition at {text[at : at + 30]!r}. Write COLUMN = VALUE [and ...], with text "
                    "in single quotes, for example: user = 'u194'."
                )
            name = found["column"].strip('"')
            column = next((one for one in schema.columns if one.name == name), None)
            if column is None:
                raise ConfigError(f"There is no column {name!r}; there are: {', '.join(schema.names)}.")
            if found["null"]:
                operator: Any = "is null" if "not" not in found["null"].lower() else "is not null"
                terms.append((name, operator, ()))
            elif found["op"]:
                operator = {"=": "in", "!=": "<>"}.get(found["op"], found["op"])
                terms.append((name, operator, (_literal(found["value"], column, text),)))
            else:
                terms.append(
                    (name, "in", tuple(_literal(one, column, text) for one in _VALUE.findall(found["values"])))
                )
            at = found.end()
            if at == len(text):
                return cls(tuple(terms), text)
            if (joined := _AND.match(text, at)) is None:
                raise ConfigError(
                    f"{text!r} is not a condition at {text[at : at + 30]!r}; only 'and' joins conditions."
                )
            at = joined.end()

    def holds(self, table: Table) -> list[bool]:
        """Return for each row whether the condition holds."""
        result = [True] * table.num_rows
        for name, operator, values in self.terms:
            compare = _COMPARE[operator]
            for row, value in enumerate(values_of(table.column(name))):
                if result[row]:
                    result[row] = compare(value, values)
        return result


_COMPARE: Final[dict[str, Any]] = {
    "in": lambda value, values: value is not None and value in values,
    "<>": lambda value, values: value is not None and value != values[0],
    "<": lambda value, values: value is not None and value < values[0],
    "<=": lambda value, values: value is not None and value <= values[0],
    ">": lambda value, values: value is not None and value > values[0],
    ">=": lambda value, values: value is not None and value >= values[0],
    "is null": lambda value, values: value is None,
    "is not null": lambda value, values: value is not None,
}


def _literal(text: str, column: Column, condition: str) -> Any:
    """Return a literal as the value that this column has in Python."""
    try:
        value = text[1:-1].replace("''", "'") if text.startswith("'") else json.loads(text.lower())
        table = to_table([{column.name: value}], Schema((column,)), topic="", produced_at_us=0)
    except (ValueError, MessageError, SchemaError):
        raise ConfigError(
            f"{text} in {condition!r} is not a value of the column {column.name} ({column.type}). Text and times need "
            "single quotes."
        ) from None
    return values_of(table.column(column.name))[0]
