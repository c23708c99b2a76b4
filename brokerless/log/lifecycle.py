"""Creation and deletion of a log's table: its first entry and its tombstone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from brokerless.errors import TopicExists, TopicNotFound
from brokerless.log.checkpoint import TableState
from brokerless.log.entries import DELETED_KEY, FIRST_VERSION_KEY, Metadata, Protocol, build_entry, digest_of
from brokerless.version import ENGINE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokerless.log.log import DeltaLog

_EPOCH: Final = "/epoch"


def create(
    log: DeltaLog, *, schema_string: str, configuration: Mapping[str, str], exist_ok: bool, deadline_s: float
) -> Metadata:
    """Write the entry that creates the table, see ``DeltaLog.create``."""
    while True:
        looked = log._now()
        try:
            state = log.load()
        except TopicNotFound:
            state = None
        timestamp = max(log._clock.time_us() // 1000, state.timestamp_ms if state else 0)
        if state and not state.metadata.deleted:
            if exist_ok:
                return state.metadata
            raise TopicExists(f"{log.uri} exists already.")
        version = state.version + 1 if state else 0
        wanted = Metadata(log._clock.uuid(), schema_string, configuration=dict(configuration))
        if version:
            wanted = replace(wanted, configuration={**configuration, FIRST_VERSION_KEY: str(version)})
        wanted = replace(wanted, created_ms=timestamp)
        protocol = Protocol(1, 2)
        # Progress belongs to messages that are gone: a producer that sent sequence 7 to the old topic must be able
        # to send it to the new one. A log cannot forget a txn, but set it back. Epochs go on: they only fence.
        forgotten = dict.fromkeys((a for a in (state.txns if state else {}) if not a.endswith(_EPOCH)), -1)
        commit_id = log._commit_id()
        body = build_entry(
            commit_id=commit_id,
            timestamp_ms=timestamp,
            operation="CREATE TABLE",
            engine=ENGINE,
            table_id=wanted.id,
            txns=forgotten,
            metadata=wanted,
            protocol=None if version else protocol,
            total=0,
        )
        entry, _ = log._put_entry(version, body, commit_id, deadline=log._clock.monotonic() + deadline_s)
        if entry is None:
            with log._lock:
                txns = {**state.txns, **forgotten} if state else {}
                protocol = state.protocol if state else protocol
                log._know(
                    TableState(version, wanted, protocol, txns, timestamp, digest=digest_of(body), total=0), looked
                )
            return wanted


def delete(log: DeltaLog, *, deadline_s: float) -> None:
    """Write the tombstone, see ``DeltaLog.delete``."""
    while True:
        with log._lock:
            before, log._state = log._state, None
            metadata = log.state.metadata  # refuses what is deleted already
            if before is not None and before.metadata.id != metadata.id:
                raise log._another(log.state.version)
            state = log.load(with_files=True)
            if state.metadata.id != metadata.id:
                continue
            log._state = state
            tombstone = replace(metadata, configuration={**metadata.configuration, DELETED_KEY: "true"})
            commit_id = log._commit_id()
            body = build_entry(
                commit_id=commit_id,
                timestamp_ms=max(log._clock.time_us() // 1000, state.timestamp_ms),
                operation="DROP TABLE",
                engine=ENGINE,
                table_id=metadata.id,
                removes=tuple(state.files),
                metadata=tombstone,
            )
            # Only this version will do: a commit in between has files that the tombstone must remove too.
            deadline = log._clock.monotonic() + deadline_s
            entry, _ = log._put_entry(state.version + 1, body, commit_id, deadline=deadline)
            if entry is None:
                log._state = None
                return


def epoch_of(app_id: str) -> str:
    """The application id whose txn counts the owners of ``app_id``."""
    return app_id + _EPOCH
