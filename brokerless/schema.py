"""Names and schemas of topics, and where their partitions lie. Standard library only.

Partition 0 of topic ``t`` is the Delta table ``<root>/t``, partition n is ``<root>/t.n``: siblings, never one table
inside another, so that every Delta reader can open each of them. A topic's name may have dots
(``timezone_unified.dead_letters``), but its last part is never a number.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import Final

from brokerless.errors import ConfigError, SchemaError

PRODUCED_AT: Final = "_produced_at"
"""When the producer took the message: timestamp, microseconds, UTC. The last column of every topic."""

DEAD_LETTERS_SUFFIX: Final = ".dead_letters"

MAX_PARTITIONS: Final = 1024

_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9_-]*"
_NAME: Final = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*")
_PARTITION: Final = re.compile(r"[1-9][0-9]{0,3}")
_COLUMN: Final = re.compile(r"[^\W\d_]\w*")
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")

# Delta's primitive types (Delta protocol, "Schema Serialization Format") and the SQL names that people write for them.
_TYPES: Final = {
    "string": "string",
    "long": "long",
    "bigint": "long",
    "integer": "integer",
    "int": "integer",
    "short": "short",
    "smallint": "short",
    "byte": "byte",
    "tinyint": "byte",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "bool": "boolean",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name and its Delta type (``string``, ``long``, ``decimal(10,2)``, ...). All are nullable."""

    name: str
    type: str

    def not_primitive(self) -> SchemaError:
        """The error for a column whose type is nested, or unknown here."""
        shown = self.type
        with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError):
            shown = json.loads(self.type)["type"]
        return SchemaError(
            f"Column {self.name!r} has the nested or unknown type {str(shown)[:100]!r}. The columns of a topic are "
            f"{', '.join(sorted(set(_TYPES.values())))}, decimal(precision,scale). Keep a nested value as JSON text in "
            "a string column, or give each of its fields a column."
        )


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a topic as its users see them; ``_produced_at`` is implied."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    def __str__(self) -> str:
        return ", ".join(f"{column.name} {column.type}" for column in self.columns)

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Reads ``"date string, message string"``.

        Raises:
            SchemaError: unreadable text, an unknown type, or a name that is taken, reserved or not usable in Delta.
        """
        columns: list[Column] = []
        # A comma in a decimal, or in a nested type, does not end a column.
        for part in re.split(r",(?![^(]*\)|[^<]*>)", text):
            words = re.split(r"\s*[\s:]\s*", part.strip(), maxsplit=1)
            if len(words) != 2:
                raise SchemaError(
                    f"Cannot read {part.strip()!r} in the schema {text!r}; write NAME TYPE, NAME TYPE, ... "
                    "for example 'date string, message string'."
                )
            columns.append(Column(words[0], _delta_type(words[1], column=words[0])))
        return cls.of(columns)

    @classmethod
    def of(cls, columns: list[Column], *, reserved: bool = False) -> Schema:
        """Checks the columns' names and types.

        Args:
            columns: in order.
            reserved: allow names that begin with ``_`` (for the kit's own topics).

        Raises:
            SchemaError: no columns, a name that is taken, reserved or not usable in Delta, or a nested type.
        """
        if not columns:
            raise SchemaError("A topic needs at least one column.")
        seen: set[str] = set()
        for column in columns:
            name = column.name[1:] if reserved and column.name.startswith("_") else column.name
            if column.name == PRODUCED_AT or not _COLUMN.fullmatch(name):
                raise SchemaError(
                    f"{column.name!r} cannot be a column's name: letters, digits and underscores, beginning with "
                    "a letter (names with a leading underscore are the kit's own)."
                )
            if column.name.lower() in seen:
                raise SchemaError(f"Column {column.name!r} appears twice (Delta does not tell case apart).")
            seen.add(column.name.lower())
            if column.type not in _TYPES.values() and not _DECIMAL.fullmatch(column.type):
                raise column.not_primitive()
        return cls(tuple(columns))

    def to_delta(self) -> str:
        """The table's ``schemaString``, with ``_produced_at`` last."""
        fields = [*self.columns, Column(PRODUCED_AT, "timestamp")]
        return json.dumps(
            {
                "type": "struct",
                "fields": [{"name": c.name, "type": c.type, "nullable": True, "metadata": {}} for c in fields],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_delta(cls, schema_string: str) -> Schema:
        """Reads a table's ``schemaString``; ``_produced_at`` is left out, being implied.

        Nested types keep their JSON text as the column's type: they can be read, not produced.

        Raises:
            SchemaError: it is none.
        """
        try:
            fields = [(field["name"], field["type"]) for field in json.loads(schema_string)["fields"]]
            if not all(isinstance(name, str) for name, _ in fields):
                raise TypeError("a name is no text")
            columns = [Column(n, t if isinstance(t, str) else json.dumps(t)) for n, t in fields if n != PRODUCED_AT]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SchemaError(
                f"{schema_string[:100]!r} is no schema of a Delta table ({type(error).__name__}: {str(error)[:100]}); "
                "the table's metadata is damaged. 'brokerless verify' shows the entry."
            ) from None
        return cls(tuple(columns))


def _delta_type(text: str, *, column: str) -> str:
    name = text.strip().lower()
    if name in _TYPES:
        return _TYPES[name]
    decimal = _DECIMAL.fullmatch(name.replace(" ", ""))
    if decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1]):
        return decimal[0]
    raise Column(column, text.strip()).not_primitive()


def check_name(topic: str) -> str:
    """Returns the name if a topic may have it.

    The rules keep a name from leaving the root, from meaning another topic's partition and from needing quotes.

    Raises:
        ConfigError: the name breaks a rule.
    """
    if len(topic) > 200 or not _NAME.fullmatch(topic) or re.search(r"\.\d+\Z", topic):
        raise ConfigError(
            f"{topic[:80]!r} cannot be a topic's name: letters, digits, '_', '-' and single dots, at most 200, "
            "beginning with a letter or digit; the part after the last dot is not a number."
        )
    return topic


def partition_table(topic: str, partition: int) -> str:
    """The table of a topic's partition, relative to the root."""
    return topic if partition == 0 else f"{topic}.{partition}"


def split_table(table: str) -> tuple[str, int]:
    """The topic and partition that a table holds; inverse of ``partition_table``."""
    topic, _, number = table.rpartition(".")
    # Only as partition_table writes it: a folder in the bucket may be called "t.01" or "t.²", too.
    return (topic, int(number)) if topic and _PARTITION.fullmatch(number) else (table, 0)


def is_table(name: str) -> bool:
    """Whether a folder below the root may hold a partition of a topic, by its name: whoever writes there chose it."""
    try:
        check_name(split_table(name)[0])
    except ConfigError:
        return False
    return True


def dead_letters(output: str) -> str:
    """The topic that holds what a pipeline with this output could not process."""
    return output + DEAD_LETTERS_SUFFIX
