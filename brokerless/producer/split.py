"""Cut tables of messages by the partition of their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arro3.core import Array, DataType, Table

from brokerless.errors import SchemaError
from brokerless.producer.partitioner import partition_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def split(table: Table, key: str, partitions: int, spare: int) -> dict[int | None, tuple[Table, Sequence[int]]]:
    """Return each partition's rows in order, and their numbers; rows with a null key go to the partition ``spare``."""
    table = table.combine_chunks()
    column = table.column(key)
    kind = column.type
    if not (DataType.is_string(kind) or DataType.is_binary(kind) or DataType.is_integer(kind)):
        raise SchemaError(f"Column {key!r} cannot be a key: use a string, binary or integer column.")
    rows: dict[int, list[int]] = {}
    for number, value in enumerate(column.to_pylist()):
        rows.setdefault(spare if value is None else partition_of(value, partitions), []).append(number)
    return {partition: (selected(table, numbers), numbers) for partition, numbers in sorted(rows.items())}


def selected(table: Table, rows: Sequence[int]) -> Table:
    """Return these rows of a table that is not empty."""
    batch = table.combine_chunks().to_batches()[0]
    return Table.from_batches([batch.take(Array(rows, type=DataType.uint64()))])
