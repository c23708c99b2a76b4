"""All messages of a topic as one relation, or the latest message of each key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arro3.core import Table

from brokerless.clock import SYSTEM, Clock
from brokerless.columns import frames, records
from brokerless.columns.select import rows_where
from brokerless.errors import ConfigError
from brokerless.log.entries import COMPACT_BY_KEY
from brokerless.log.log import read_pool
from brokerless.maintenance.compaction import compacted_range, entries_of, files_without_entry, latest
from brokerless.schema import PRODUCED_AT, Column, Schema
from brokerless.topics import open_topic, store_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb
    import pandas
    import polars
    import pyarrow

    from brokerless.log.log import DeltaLog
    from brokerless.settings import Settings
    from brokerless.store import Store
    from brokerless.topics import Topic


@dataclass(frozen=True, slots=True)
class Scan:
    """The messages of a topic, in memory.

    Attributes:
        data: an arro3 table with the topic's columns and ``_produced_at``: partition by partition, and in each one in
            the order of the log.
    """

    data: Table

    def __len__(self) -> int:
        """Return the number of messages."""
        return self.data.num_rows

    def rows(self) -> list[dict[str, Any]]:
        """Return the messages as dictionaries of Python values; times are aware, in UTC."""
        names = self.data.column_names
        columns = [records.values_of(self.data.column(name)) for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def to_arrow(self) -> pyarrow.Table:
        """Return the messages as a pyarrow table, without a copy."""
        return frames.to_arrow(self.data)

    def to_polars(self) -> polars.DataFrame:
        """Return the messages as a polars data frame."""
        return frames.to_polars(self.data)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the messages as a pandas data frame."""
        return frames.to_pandas(self.data)

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Return the messages as a relation of DuckDB, of this connection or of a new one in memory."""
        module = frames.optional("duckdb", "duckdb")
        relation: duckdb.DuckDBPyRelation = (connection or module.connect()).from_arrow(self.to_arrow())
        return relation


def scan(
    topic: str | Topic,
    *,
    partitions: Sequence[int] | None = None,
    latest_only: bool = False,
    key: str | None = None,
    settings: Settings | None = None,
    store: Store | None = None,
    clock: Clock = SYSTEM,
) -> Scan:
    """Read all messages that a topic's tables hold now, in all partitions.

    Args:
        topic: the topic, or its name.
        partitions: only these.
        latest_only: only the latest message of each key; a key whose latest message has nothing else is left out.
        key: the column of the keys; by default the one that the topic is compacted by. Messages of one key must be in
            one partition, as a producer with this key sends them.
        settings: where; read from the environment by default.
        store: instead of the one that the settings name.
        clock: time.

    Raises:
        TopicNotFound: there is none.
        ConfigError: it has no such partition or column, or no key to tell the latest messages by.
        StoreError: the store failed, or an object is missing or damaged.
    """
    used = store_of(topic, settings, store)
    about = open_topic(used, topic, clock=clock)
    wanted = range(about.partitions) if partitions is None else partitions
    if missing := [number for number in wanted if not 0 <= number < about.partitions]:
        raise ConfigError(f"Topic {about.name!r} has the partitions 0 to {about.partitions - 1}, not {missing[0]}.")
    if latest_only:
        key = key or about.limits.get(COMPACT_BY_KEY)
        if key not in about.schema.names:
            raise ConfigError(
                f"Topic {about.name!r} has no column {key!r} to tell the latest messages by; give key=, one of: "
                f"{', '.join(about.schema.names)}."
            )
    columns = (*about.schema.columns, Column(PRODUCED_AT, "timestamp"))
    batches = []
    for number in wanted:
        tables = _tables(used, about.logs[number], columns)
        for table in _latest(tables, key or "") if latest_only else tables:
            batches += table.to_batches()
    schema = records.arrow_schema(about.schema)
    return Scan(Table.from_batches(batches, schema=schema) if batches else _empty(about.schema))


def _empty(schema: Schema) -> Table:
    return records.to_table([], schema, topic="", produced_at_us=0)


def _tables(store: Store, log: DeltaLog, columns: Sequence[Column]) -> list[Table]:
    """Return the rows of the live objects, in the order of the log."""
    state = log.load(with_files=True)
    last = max((compacted_range(path)[1] for path in state.files), default=-1)
    begin = min(max(log.earliest(), last + 1), state.version + 1)
    entries = entries_of(log, state, begin)
    # By their uploads, which of rewritten objects are those of their newest messages; then by the entries.
    paths = [add.path for add in files_without_entry(state, entries, begin)]
    paths += [add.path for entry in entries for add in entry.adds if add.path in state.files]

    def load(path: str) -> Table:
        return records.with_columns(records.load(store, f"{log.table}/{path}"), columns, path=path)

    return list(read_pool().map(load, dict.fromkeys(paths)))


def _latest(tables: Sequence[Table], key: str) -> list[Table]:
    """Return the latest message of each key, without deleted keys."""
    seen: set[Any] = set()
    found: list[Table] = []
    for table in reversed(tables):
        if not table.num_rows:
            continue
        left = latest(table, key, seen)
        others = [left.column(name).to_pylist() for name in left.column_names if name not in {key, PRODUCED_AT}]
        found.append(rows_where(left, [any(value is not None for value in row) for row in zip(*others, strict=True)]))
    return found[::-1]
