"""Text from outside into rows that fit a topic: JSON objects, whatever somebody sends.

Whoever wrote the text is not trusted. Every text becomes a row or a ``UsageError`` that says where and why, of bounded
length; nothing in it makes the reader crash, wait or take memory out of proportion.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, NoReturn

from arro3.core import Table

from brokerless.columns.records import arrow_schema, to_table
from brokerless.errors import MessageError, SchemaError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from brokerless.schema import Schema

_EXCERPT: Final = 60
_NAMES: Final = 5


class RowReader:
    """Reads rows of one topic.

    Args:
        topic: for errors.
        schema: what each row must have: every column, with null for no value, and no other. Columns that were added
            later may be left out.
        optional: columns that a row may have besides.

    Raises:
        SchemaError: the topic has columns of a type that cannot be written.
    """

    def __init__(self, topic: str, schema: Schema, *, optional: Iterable[str] = ()) -> None:
        arrow_schema(schema)
        self.topic = topic
        self.schema = schema
        self.names = frozenset(schema.names)
        self._optional = frozenset(optional)
        self._required = frozenset(schema.required)

    def parse(self, text: bytes | str, *, place: str) -> dict[str, Any]:
        """The row in one JSON object.

        Args:
            text: the object, and nothing else.
            place: where it is from, as errors begin: ``file.jsonl, line 3``.

        Raises:
            MessageError: not JSON, not an object, or a number that no column can hold.
            SchemaError: a column too many or too few.
        """
        try:
            value = DECODER.decode(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise MessageError(
                f"{place} is not JSON ({reason}): {excerpt(text)}. Write one JSON object a line, such as "
                f"{json.dumps(dict.fromkeys(sorted(self.names), '...'))}."
            ) from None
        return self.check(value, place=place, text=text)

    def check(self, value: object, *, place: str, text: bytes | str = "") -> dict[str, Any]:
        """The row in a JSON value that was parsed before.

        Raises:
            MessageError, SchemaError: as ``parse``.
        """
        if not isinstance(value, dict):
            raise MessageError(
                f"{place} is not a JSON object{f': {excerpt(text)}' if text else ''}. Write one object a line, with "
                f"the topic's columns {', '.join(sorted(self.names))}."
            )
        self._check_names(value.keys(), place=place)
        for name, cell in value.items():
            # 1e999 is JSON, and Python reads it as infinity.
            if isinstance(cell, float) and not math.isfinite(cell):
                raise MessageError(f"{place}: column {name!r} has a number that no double can hold. Correct the value.")
        return value

    def _check_names(self, names: Iterable[str], *, place: str) -> None:
        found = frozenset(names)
        if unknown := found - self.names - self._optional:
            raise SchemaError(
                f"{place}: topic {self.topic!r} has no column {_listed(unknown)}; it has "
                f"{', '.join(sorted(self.names))}. Leave it out, or create a topic with it."
            )
        if missing := self._required - found:
            raise SchemaError(
                f"{place} lacks the column {_listed(missing)} of topic {self.topic!r}. Add it, with null for no value."
            )

    def table(self, rows: Sequence[Mapping[str, Any]], place: Callable[[int], str]) -> Table:
        """The rows as a table; ``place`` says where a row is from.

        Raises:
            MessageError: a value that does not fit its column; names the first such row by its place.
        """
        table, bad = self.fitting(rows)
        if bad:
            number = min(bad)
            raise MessageError(f"{place(number)}: {bad[number].rstrip('.')}. Correct the value.")
        return table

    def fitting(self, rows: Sequence[Mapping[str, Any]]) -> tuple[Table, dict[int, str]]:
        """The rows that fit as one table, and the numbers of the others with the reason. Few of these cost little."""
        tables: list[Table] = []
        misfits: dict[int, str] = {}
        todo = [(0, len(rows))]
        while todo:
            start, end = todo.pop()
            try:
                tables.append(to_table(rows[start:end], self.schema, topic=self.topic, produced_at_us=0))
            except Exception as error:  # whatever it is about one row, it must not take the others with it
                if end - start == 1:
                    text = str(error) if isinstance(error, UsageError) else type(error).__name__
                    misfits[start] = text.removeprefix("Row 0: ")
                else:
                    middle = (start + end) // 2
                    todo += [(middle, end), (start, middle)]
        batches = [batch for table in tables for batch in table.to_batches()]
        return Table.from_batches(batches, schema=arrow_schema(self.schema)), misfits


def excerpt(text: bytes | str) -> str:
    """The beginning of a text, quoted, as errors show it."""
    # Whitespace in front may be long, too.
    start = text[: 4 * _EXCERPT].strip()[: _EXCERPT + 1]
    shown = start.decode("utf-8", "backslashreplace") if isinstance(start, bytes) else start
    return repr(shown if len(shown) <= _EXCERPT else shown[:_EXCERPT] + "...")


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMES} more" if len(ordered) > _NAMES else ""
    return ", ".join(map(excerpt, ordered[:_NAMES])) + more


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a name twice")
    return found


DECODER: Final = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_unique)
"""Of JSON as its standard has it: without NaN and Infinity. A name twice would lose one of its values."""
