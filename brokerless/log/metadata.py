"""Change a table's metadata while others write to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from brokerless.log.rewrite import Rewrite, RewriteConflict
from brokerless.schema import only_adds

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokerless.log.entries import Metadata
    from brokerless.log.log import DeltaLog
    from brokerless.schema import Schema

_TRIES: Final = 10


def change_metadata(log: DeltaLog, operation: str, change: Callable[[Metadata], Metadata]) -> int | None:
    """Write one entry with the changed metadata, and return its version; None if nothing changes.

    Args:
        log: of the table.
        operation: the entry's name in ``commitInfo``.
        change: returns the new metadata for the present one. Called again if another entry changes it meanwhile.

    Raises:
        RewriteConflict: other entries changed it each time.
        BrokerlessError: as ``DeltaLog.rewrite``, and what ``change`` raises.
    """
    for attempt in range(_TRIES):
        state = log.refresh()
        wanted = change(state.metadata)
        if wanted == state.metadata:
            return None
        try:
            return log.rewrite(Rewrite(operation, state.version, metadata=wanted)).version
        except RewriteConflict:
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("the last try raises")


def add_columns_to(log: DeltaLog, columns: Schema) -> int | None:
    """Add those of the columns that the table lacks; as ``change_metadata``.

    Raises:
        SchemaError: the table has one of them with another type.
        BrokerlessError: as ``change_metadata``.
    """

    def change(metadata: Metadata) -> Metadata:
        wanted = columns.added_to(metadata.schema_string)
        return metadata if only_adds(wanted, metadata.schema_string) else replace(metadata, schema_string=wanted)

    return change_metadata(log, "ADD COLUMNS", change)
