"""Change a topic: more columns, how long messages stay, by which key they are compacted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import ConfigError
from brokerless.log.entries import COMPACT_BY_KEY, RETENTION_BYTES_KEY, RETENTION_KEY, RETENTION_READ_KEY
from brokerless.log.metadata import add_columns_to, change_metadata
from brokerless.schema import Schema
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokerless.log.entries import Metadata
    from brokerless.store import Store
    from brokerless.topics import Topic

MIN_RETENTION_S: Final = 3600.0


def limits_of(
    schema: Schema,
    *,
    retention_s: float | None = None,
    retention_bytes: int | None = None,
    until_read: bool | None = None,
    compact_by: str | None = None,
) -> dict[str, str]:
    """Return a topic's limits as properties of its tables; an empty text takes a limit away.

    Args:
        schema: of the topic.
        retention_s: how long messages stay, at least an hour; 0: for ever.
        retention_bytes: how large each partition may be; 0: as large as it gets.
        until_read: whether messages go as soon as every group that reads the topic has read them.
        compact_by: the column of which only the latest message for each value stays; empty: none.

    Raises:
        ConfigError: a limit that cannot work.
    """
    found: dict[str, str] = {}
    if retention_s is not None:
        if retention_s and retention_s < MIN_RETENTION_S:
            raise ConfigError(
                f"Messages must be kept for at least an hour, so that readers find them; got {retention_s:g} s."
            )
        found[RETENTION_KEY] = str(int(retention_s * 1000)) if retention_s else ""
    if retention_bytes is not None:
        if retention_bytes < 0:
            raise ConfigError(f"A partition cannot have {retention_bytes} bytes.")
        found[RETENTION_BYTES_KEY] = str(retention_bytes) if retention_bytes else ""
    if until_read is not None:
        found[RETENTION_READ_KEY] = "true" if until_read else ""
    if compact_by is not None:
        if compact_by and compact_by not in schema.names:
            raise ConfigError(f"There is no column {compact_by!r} to compact by; there are: {', '.join(schema.names)}.")
        found[COMPACT_BY_KEY] = compact_by
    return found


def alter_topic(store: Store, topic: str, limits: Mapping[str, str], *, clock: Clock = SYSTEM) -> Topic:
    """Change a topic's limits, and return it. Producers and readers go on.

    Args:
        store: where the topic is.
        topic: its name.
        limits: from ``limits_of``.
        clock: time.

    Raises:
        TopicNotFound: there is none.
        StoreError: the store failed; some partitions may have the new limits. Try again.
    """

    def change(metadata: Metadata) -> Metadata:
        properties = {**metadata.configuration, **limits}
        return replace(metadata, configuration={key: text for key, text in properties.items() if text})

    for log in describe_topic(store, topic, clock=clock).logs:
        change_metadata(log, "SET TBLPROPERTIES", change)
    return describe_topic(store, topic, clock=clock)


def add_columns(store: Store, topic: str, columns: Schema | str, *, clock: Clock = SYSTEM) -> Topic:
    """Add columns to a topic, and return it. Producers, consumers and pipelines go on.

    Messages that were sent before have no value in them, and later ones need not have one. Columns that are there
    already are left as they are, so the same call finishes what a crash has interrupted.

    Args:
        store: where the topic is.
        topic: its name.
        columns: the new ones, also as text: ``"ref string, price decimal(10,2)"``.
        clock: time.

    Raises:
        TopicNotFound: there is none.
        SchemaError: a name or type is not valid, or the topic has a column with that name and another type.
        StoreError: the store failed; some partitions may have the columns. Try again.
    """
    added = Schema.parse(columns) if isinstance(columns, str) else columns
    about = describe_topic(store, topic, clock=clock)
    added.added_to(about.logs[0].state.metadata.schema_string)
    # Partition 0 last: it says which columns the topic has, and then all partitions have them.
    # Partition 0 gets new columns last.
    for log in reversed(about.logs):
        add_columns_to(log, added)
    return describe_topic(store, topic, clock=clock)


def describe_limits(limits: Mapping[str, str]) -> str:
    """Return a topic's limits as a sentence."""
    parts: list[str] = []
    if RETENTION_KEY in limits:
        parts.append(f"for {timedelta(milliseconds=int(limits[RETENTION_KEY]))}")
    if limits.get(RETENTION_READ_KEY) == "true":
        parts.append("until every group has read them")
    if RETENTION_BYTES_KEY in limits:
        parts.append(f"up to {int(limits[RETENTION_BYTES_KEY]) / 1e6:,.0f} MB a partition")
    text = f"messages stay {', '.join(parts) or 'for ever'}"
    key = limits.get(COMPACT_BY_KEY)
    return text if key is None else f"{text}; in the table, only the latest of each {key}"
