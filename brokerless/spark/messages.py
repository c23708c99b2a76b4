"""What Spark sees of a topic: the columns of messages, their rows with metadata, and the options of the source."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

from brokerless.columns import records
from brokerless.errors import ConfigError, SchemaError, StoreError
from brokerless.offsets import Offset, parse_start
from brokerless.schema import PRODUCED_AT, Column, Schema, split_table
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from arro3.core import Table

    from brokerless.store import Store

METADATA: Final = (
    Column("_topic", "string"),
    Column("_partition", "integer"),
    Column("_version", "long"),
    Column("_index", "long"),
)


DEAD_LETTER: Final = "_dead_letter"
"""The struct column that marks a row as a dead letter; its fields are the columns of the dead-letter topic."""


def union_columns(schemas: Sequence[Schema]) -> Schema:
    """Return the union of the columns of several topics.

    Raises:
        SchemaError: one name has two types.
    """
    columns: dict[str, Column] = {}
    for schema in schemas:
        for column in schema.columns:
            known = columns.setdefault(column.name, column)
            if known.type != column.type:
                raise SchemaError(
                    f"Column {column.name!r} is {known.type} in one topic and {column.type} in another; "
                    "read them in two pipelines."
                )
    return Schema(tuple(columns.values()))


def columns_of(store: Store, options: Mapping[str, str]) -> list[Column]:
    """Return the columns of the source: those of all topics, ``_produced_at``, and with ``metadata`` those as well."""
    schemas = [describe_topic(store, topic).schema for topic in topic_names(options)]
    columns = [*union_columns(schemas).columns, Column(PRODUCED_AT, "timestamp")]
    return columns + list(METADATA) if flag(options, "metadata") else columns


def ddl(columns: Sequence[Column]) -> str:
    """Return columns in Spark's DDL."""
    return ", ".join(f"`{column.name}` {_ddl(column.type)}" for column in columns)


def _ddl(delta_type: str) -> str:
    return {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}.get(delta_type, delta_type)


def load_object(store: Store, columns: Sequence[Column], path: str) -> Table | StoreError:
    """Return the rows of an object, or the error if only this object cannot be read.

    Where some were erased, the others have their numbers in the last column, ``records.ROW``.
    """
    try:
        rows = records.load(store, path)
        if not rows.num_rows:
            return rows
        found = records.with_columns(rows, columns, path=f"{store.uri}/{path}")
        if records.ROW not in rows.column_names:
            return found
        return found.append_column(rows.schema.field(records.ROW), rows.column(records.ROW))
    except StoreError as error:
        if type(error) is not StoreError:
            raise  # most likely the whole store does not answer or refuses
        return error


def with_metadata(rows: pa.Table, table: str, version: int, index: int) -> pa.Table:
    """Add the columns of ``METADATA`` to rows of an object whose first row has, or had, this offset."""
    import numpy as np
    import pyarrow as pa

    topic, number = split_table(table)
    count = rows.num_rows
    numbers = np.arange(count)
    if records.ROW in rows.column_names:
        numbers = rows.column(records.ROW).to_numpy()
        rows = rows.drop_columns([records.ROW])
    rows = rows.append_column("_topic", pa.repeat(pa.scalar(topic), count))
    rows = rows.append_column("_partition", pa.repeat(pa.scalar(number, pa.int32()), count))
    rows = rows.append_column("_version", pa.repeat(pa.scalar(version, pa.int64()), count))
    return rows.append_column("_index", pa.array(index + numbers))


def start_option(options: Mapping[str, str]) -> Literal["beginning", "latest"] | datetime:
    """Return the value of the option ``start``."""
    start = parse_start(options.get("start", "beginning"))
    if isinstance(start, Offset):
        raise ConfigError(
            "The start of a pipeline must be beginning, latest or a time; offsets differ between partitions."
        )
    return start


def until_option(text: str) -> Literal["latest"] | Offset | datetime:
    """Return the position before which a run ends: ``latest`` (``now``), an offset such as ``12:0``, or a past time.

    Raises:
        ConfigError: the text is none of these.
    """
    until = parse_start("latest" if text == "now" else text)
    if until == "beginning":
        raise ConfigError("A run must end at now, a time or an offset, got beginning.")
    if isinstance(until, Offset) and until.index:
        raise ConfigError(f"A run reads whole commits, so it cannot end at {until}; use {until.version}:0 or later.")
    if isinstance(until, datetime) and until > datetime.now(UTC):
        raise ConfigError(f"A run cannot end at {text}, which has not come yet; use now, or leave the end out.")
    return until


def topic_names(options: Mapping[str, str]) -> list[str]:
    """Return the topics of the option ``topics``."""
    names = [name.strip() for name in option(options, "topics").split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"The option topics must be a list of different topic names, got {options.get('topics')!r}.")
    return names


def option(options: Mapping[str, str], name: str) -> str:
    """Return the value of a required option."""
    value = options.get(name)
    if not value:
        raise ConfigError(f"The brokerless source needs the option {name!r}; use brokerless.spark.read_stream.")
    return value


def skipped_objects(options: Mapping[str, str]) -> frozenset[str]:
    """Return the objects to skip if they cannot be read."""
    return frozenset(name.strip() for name in options.get("skip", "").split(","))


def flag(options: Mapping[str, str], name: str) -> bool:
    """Return the value of an option that is true or false."""
    return options.get(name, "false").lower() == "true"
