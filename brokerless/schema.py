"""Names and schemas of topics, and the tables of their partitions. Uses the standard library only.

Partition 0 of topic ``t`` is the Delta table ``<root>/t``, partition n is ``<root>/t.n``. The tables are siblings,
never one inside another, so that every Delta reader can open each of them. A topic's name may have dots
(``timezone_unified.dead_letters``), but its last part is never a number.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from brokerless.errors import ConfigError, SchemaError
from brokerless.schema_files import columns_of_avro, columns_of_json_schema, columns_of_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PRODUCED_AT: Final = "_produced_at"
"""The last column of every topic: when the producer received the message (timestamp, microseconds, UTC)."""

DEAD_LETTERS_SUFFIX: Final = ".dead_letters"

ADDED_KEY: Final = "brokerless.added"
"""In the metadata of a column that was added to a topic, so that messages may lack it."""

FIXED_COLUMNS: Final = (
    "The columns of a topic stay as they are, because tables of Delta's reader version 1 know no other columns than "
    "those in their files: columns can only be added. Create a topic with the columns that you want, and let a "
    "pipeline write to it from this one."
)

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
    """A column: its name and its Delta type (``string``, ``long``, ``decimal(10,2)``, ...). All are nullable.

    Attributes:
        added: whether it was added to the topic later, so that messages may lack it.
    """

    name: str
    type: str
    added: bool = field(default=False, compare=False)

    def not_primitive(self) -> SchemaError:
        """Return the error for a column whose type is nested or unknown."""
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
    """The columns of a topic without ``_produced_at``, which every topic has."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the columns' names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def required(self) -> tuple[str, ...]:
        """Return the names of the columns that the topic began with: a message has them, if only as null."""
        return tuple(column.name for column in self.columns if not column.added)

    def __str__(self) -> str:
        return ", ".join(f"{column.name} {column.type}" for column in self.columns)

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Parse schema text such as ``"date string, message string"``.

        Raises:
            SchemaError: the text cannot be parsed, a type is unknown, or a name is duplicate, reserved or not valid in
                Delta.
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
        """Return a schema of these columns after checking their names and types.

        Args:
            columns: the columns, in order.
            reserved: allow names that begin with ``_`` (for topics that brokerless creates itself).

        Raises:
            SchemaError: there are no columns, a type is nested, or a name is duplicate, reserved or not valid in Delta.
        """
        if not columns:
            raise SchemaError("A topic needs at least one column.")
        seen: set[str] = set()
        for column in columns:
            name = column.name[1:] if reserved and column.name.startswith("_") else column.name
            if column.name == PRODUCED_AT or not _COLUMN.fullmatch(name):
                raise SchemaError(
                    f"{column.name!r} is not a valid column name; use letters, digits and underscores, beginning with "
                    "a letter (names with a leading underscore are reserved for brokerless)."
                )
            if column.name.lower() in seen:
                raise SchemaError(f"Column {column.name!r} appears twice (Delta ignores case in column names).")
            seen.add(column.name.lower())
            if column.type not in _TYPES.values() and not _DECIMAL.fullmatch(column.type):
                raise column.not_primitive()
        return cls(tuple(columns))

    @classmethod
    def from_json_schema(cls, document: Any) -> Schema:
        """Return the schema that a JSON Schema (draft 2020-12, parsed) of an object describes.

        Raises:
            SchemaError: a property cannot be a column; the text names it.
        """
        return cls.of([Column(name, kind) for name, kind in columns_of_json_schema(document)])

    @classmethod
    def from_avro(cls, document: Any) -> Schema:
        """Return the schema that an Avro record (parsed JSON) describes.

        Raises:
            SchemaError: a field cannot be a column; the text names it.
        """
        pairs = columns_of_avro(document)
        return cls.of([Column(name, _delta_type(kind, column=name)) for name, kind in pairs])

    @classmethod
    def infer(cls, rows: Iterable[Mapping[str, Any]], *, texts: bool = False) -> Schema:
        """Return a schema for rows such as these, by the values of the first 1,000.

        Args:
            rows: as a producer takes them.
            texts: whether all values are text, as in CSV; an empty one is none.

        Raises:
            SchemaError: there are no rows, or a field has values that no one column can hold; the text names it.
        """
        pairs = columns_of_rows(rows, texts=texts)
        return cls.of([Column(name, kind) for name, kind in pairs if name != PRODUCED_AT])

    def to_delta(self) -> str:
        """Return the table's ``schemaString``, with ``_produced_at`` as its last column."""
        fields = [_field(column) for column in (*self.columns, Column(PRODUCED_AT, "timestamp"))]
        return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))

    def added_to(self, schema_string: str) -> str:
        """Return a table's ``schemaString`` with these columns after its own, but before ``_produced_at``.

        Raises:
            SchemaError: the table has one of them with another type; or it is no Delta schema.
        """
        there = {column.name.lower(): column for column in Schema.from_delta(schema_string).columns}
        fields = json.loads(schema_string)["fields"]
        place = len(fields) - (fields[-1]["name"] == PRODUCED_AT)
        for column in self.columns:
            known = there.get(column.name.lower())
            if known is None:
                fields.insert(place, _field(replace(column, added=True)))
                place += 1
            elif known != column:
                raise SchemaError(
                    f"There is the column {known.name!r} of type {known.type}; it cannot become {column.name!r} of "
                    f"type {column.type}. {FIXED_COLUMNS}"
                )
        return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))

    @classmethod
    def from_delta(cls, schema_string: str) -> Schema:
        """Parse a table's ``schemaString``; ``_produced_at`` is left out.

        A nested type is kept as JSON text in the column's type: such columns can be read, not produced.

        Raises:
            SchemaError: the text is not a Delta schema.
        """
        try:
            fields = [one for one in json.loads(schema_string)["fields"] if one["name"] != PRODUCED_AT]
            if not all(isinstance(one["name"], str) for one in fields):
                raise TypeError("a column's name must be a string")
            columns = [_column(one) for one in fields]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SchemaError(
                f"{schema_string[:100]!r} is not the schema of a Delta table ({type(error).__name__}: "
                f"{str(error)[:100]}); the table's metadata is damaged. 'brokerless verify' shows the entry."
            ) from None
        return cls(tuple(columns))


def only_adds(before: str, after: str) -> bool:
    """Return whether a ``schemaString`` has all fields of an earlier one as they were; new ones are nullable."""
    try:
        old, new = json.loads(before)["fields"], json.loads(after)["fields"]
        names = {one["name"] for one in old}
        return [one for one in new if one["name"] in names] == old and all(
            one["nullable"] is True for one in new if one["name"] not in names
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _field(column: Column) -> dict[str, Any]:
    metadata = {ADDED_KEY: "true"} if column.added else {}
    return {"name": column.name, "type": column.type, "nullable": True, "metadata": metadata}


def _column(one: dict[str, Any]) -> Column:
    kind, metadata = one["type"], one.get("metadata") or {}
    return Column(one["name"], kind if isinstance(kind, str) else json.dumps(kind), metadata.get(ADDED_KEY) == "true")


def _delta_type(text: str, *, column: str) -> str:
    name = text.strip().lower()
    if name in _TYPES:
        return _TYPES[name]
    decimal = _DECIMAL.fullmatch(name.replace(" ", ""))
    if decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1]):
        return decimal[0]
    raise Column(column, text.strip()).not_primitive()


def check_name(topic: str) -> str:
    """Return the name if it is a valid topic name.

    The rules make sure that a name cannot leave the root, cannot be another topic's partition and needs no quotes.

    Raises:
        ConfigError: the name is not valid.
    """
    if len(topic) > 200 or not _NAME.fullmatch(topic) or re.search(r"\.\d+\Z", topic):
        raise ConfigError(
            f"{topic[:80]!r} is not a valid topic name; use at most 200 letters, digits, '_', '-' and single dots, "
            "beginning with a letter or digit; the part after the last dot must not be a number."
        )
    return topic


def partition_table(topic: str, partition: int) -> str:
    """Return the path of the table of a topic's partition, relative to the root."""
    return topic if partition == 0 else f"{topic}.{partition}"


def split_table(table: str) -> tuple[str, int]:
    """Return the topic and partition that a table holds; the inverse of ``partition_table``."""
    topic, _, number = table.rpartition(".")
    # Only numbers as partition_table writes them: the bucket may also have a folder "t.01" or "t.²".
    return (topic, int(number)) if topic and _PARTITION.fullmatch(number) else (table, 0)


def is_table(name: str) -> bool:
    """Return whether a folder below the root may hold a partition of a topic, by its name alone."""
    try:
        check_name(split_table(name)[0])
    except ConfigError:
        return False
    return True


DEAD_LETTER_COLUMNS: Final = (
    Column("_reason", "string"),
    Column("_topic", "string"),
    Column("_partition", "integer"),
    Column("_offset", "string"),
)
"""What a pipeline's dead letters have after the columns of its inputs."""


def dead_letters(output: str) -> str:
    """Return the name of the dead-letter topic of a pipeline with this output."""
    return output + DEAD_LETTERS_SUFFIX
