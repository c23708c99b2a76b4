"""Dead letters as messages of the topics that they came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from arro3.core import Field, Table

from brokerless.columns import records
from brokerless.columns.text import DECODER, RowReader
from brokerless.errors import ConfigError, MessageError, SchemaError, TopicNotFound
from brokerless.offsets import Offset
from brokerless.schema import DEAD_LETTER_COLUMNS, PRODUCED_AT, partition_table
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from brokerless.clock import Clock
    from brokerless.dlq.ledger import Range
    from brokerless.store import Store
    from brokerless.topics import Topic

    Json = str | bytes | Mapping[str, Any]

POSITION: Final = "_position"
"""The key of a dead letter's own offset in JSON lines; ``_offset`` is that of the message that it was."""

_OWN: Final = frozenset({PRODUCED_AT, POSITION, *(column.name for column in DEAD_LETTER_COLUMNS)})


@dataclass(frozen=True, slots=True)
class EditedRow:
    """A row to send instead of a dead letter.

    Attributes:
        place: where it is from, as errors begin.
        values: its columns.
    """

    place: str
    values: Mapping[str, Any]


@dataclass(slots=True)
class Chunk:
    """The messages of one plan.

    Attributes:
        ranges: their positions in the dead-letter topic.
        edited: the edited ones by position.
        tables: what each topic and partition gets, in order.
    """

    ranges: list[Range] = field(default_factory=list)
    edited: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    tables: dict[tuple[str, int], list[Table]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many messages there are."""
        return sum(table.num_rows for tables in self.tables.values() for table in tables)

    @property
    def size(self) -> int:
        """How large they are, in bytes of Arrow memory."""
        return sum(table.nbytes for tables in self.tables.values() for table in tables)


class Targets:
    """The topics that messages are sent back to, opened once each."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._topics: dict[str, Topic] = {}

    def open(self, name: str) -> Topic:
        """Return a topic.

        Raises:
            TopicNotFound: it is gone.
        """
        if name not in self._topics:
            try:
                self._topics[name] = describe_topic(self._store, name, clock=self._clock)
            except (TopicNotFound, ConfigError) as error:
                raise TopicNotFound(
                    f"Dead letters came from topic {name!r}, which is gone. Create it again, or redrive others with "
                    f"--reason, --from and --until. ({error})"
                ) from None
        return self._topics[name]

    def partition(self, name: str, number: int) -> int:
        """Return the partition of a topic with this number; if it was made again with fewer, another one."""
        return number % self.open(name).partitions

    def has_table(self, name: str, number: int, tables: Mapping[str, str]) -> bool:
        """Return whether the topic's partition is still the one in ``tables``."""
        try:
            topic = self.open(name)
        except TopicNotFound:
            return False
        number %= topic.partitions
        return tables.get(partition_table(name, number)) == topic.table_ids[number]

    def table_of(self, name: str, rows: Table) -> Table:
        """Return dead letters as messages of their topic.

        Raises:
            SchemaError: they have other columns.
        """
        schema = self.open(name).schema
        lost = [
            column
            for column in rows.column_names
            if column not in _OWN and column not in schema.names and rows.column(column).null_count < rows.num_rows
        ]
        if lost:
            raise SchemaError(
                f"Dead letters have values in {', '.join(lost)}, which topic {name!r} has not. Save them with "
                "'brokerless dlq show --json', correct them, and redrive the file with --file."
            )
        found = rows.select([column for column in rows.column_names if column in schema.names and column not in _OWN])
        for column in schema.columns:
            if column.name not in found.column_names:
                kind = records.arrow_type(column)
                found = found.append_column(Field(column.name, kind, nullable=True), records.nulls(kind, rows.num_rows))
        return records.to_table(found, schema, topic=name, produced_at_us=self._clock.time_us())

    def table_of_edited(self, name: str, rows: list[EditedRow]) -> Table:
        """Return edited rows as messages of their topic.

        Raises:
            SchemaError, MessageError: a row does not fit; the text begins with its place.
        """
        schema = self.open(name).schema
        reader = RowReader(name, schema)
        values = [
            reader.check(
                {key: value for key, value in row.values.items() if _is_wanted(key, value, schema.names)},
                place=row.place,
            )
            for row in rows
        ]
        table = reader.table(values, lambda row: rows[row].place)
        return records.to_table(table, schema, topic=name, produced_at_us=self._clock.time_us())


def _is_wanted(key: str, value: object, names: tuple[str, ...]) -> bool:
    """Return whether a row's value is one of the topic: inputs with other columns leave nulls."""
    return key not in _OWN and (key in names or value is not None)


def edited_rows(rows: Iterable[Json], source: str) -> dict[Offset, EditedRow]:
    """Return edited rows by the positions of their dead letters.

    Raises:
        MessageError: a row is no JSON object, or its position is missing or that of another row.
    """
    found: dict[Offset, EditedRow] = {}
    for number, row in enumerate(rows, start=1):
        place = f"{source}, line {number}"
        value: Any = row
        if isinstance(row, str | bytes):
            if not row.strip():
                continue
            try:
                value = DECODER.decode(row.decode("utf-8-sig") if isinstance(row, bytes) else row)
            except (ValueError, RecursionError) as error:
                raise MessageError(f"{place} is not JSON ({error}). Write one object a line.") from None
        try:
            position = Offset.parse(value[POSITION])
        except (TypeError, KeyError, ConfigError):
            raise MessageError(
                f"{place} has no {POSITION}, which names its dead letter. Begin with the lines of 'brokerless dlq show "
                "--json', and keep it."
            ) from None
        if position in found:
            raise MessageError(f"{place} has the {POSITION} of {found[position].place}. Keep one of them.")
        found[position] = EditedRow(place, value)
    return found
