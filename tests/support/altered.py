"""A topic whose columns another engine changes in place, as ``ALTER TABLE ... ADD COLUMN`` does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brokerless.log.entries import build_entry
from brokerless.log.log import DeltaLog

if TYPE_CHECKING:
    from brokerless.schema import Schema
    from tests.support.fakes import FakeStore


def alter(store: FakeStore, table: str, schema: Schema) -> None:
    """Commits metadata with other columns to a table; its id stays."""
    log = DeltaLog(store, table, clock=store.clock)
    state = log.state
    store.create(
        log.entry_path(state.version + 1),
        build_entry(
            commit_id=store.clock.uuid(),
            timestamp_ms=store.clock.time_us() // 1000,
            operation="ADD COLUMNS",
            engine="another engine",
            metadata=replace(state.metadata, schema_string=schema.to_delta()),
        ),
    )
