"""Objects that a log entry is to name: uploaded before it, and again if the entry came late.

An object that no entry names yet is an orphan to maintenance, which removes it after a grace time. So an object must
not wait for its entry as long as that: where a process slept in between, the object is uploaded once more.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from brokerless import records
from brokerless.entries import Add
from brokerless.errors import CommitUnknown, NotCommitted, StoreError, UsageError
from brokerless.log import TxnAdvanced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arro3.core import Table

    from brokerless.clock import Clock
    from brokerless.log import Commit, DeltaLog
    from brokerless.store import Store

UPLOAD_VALID_S: Final = 600.0
"""An object that waited longer for its commit is uploaded again; far below maintenance's grace time for orphans."""

_PUT_AGAIN_TRIES: Final = 5


def commit_table(
    log: DeltaLog,
    table: Table,
    *,
    txns: Mapping[str, int],
    expect: Mapping[str, int],
    timeout_s: float,
    clock: Clock,
) -> Commit:
    """Uploads the rows as one object and commits it; an object that no entry can ever name is removed again.

    Args:
        log: of the partition.
        table: rows of the topic's Arrow schema.
        txns: as for ``DeltaLog.append``.
        expect: likewise.
        timeout_s: how long the commit is tried.
        clock: time and the object's name.

    Raises:
        TxnAdvanced, NotCommitted, TopicDeleted, UnsupportedTable: nothing was written.
        CommitUnknown: nobody can say yet.
        StoreError: the store failed.
    """
    data = records.encode(table)
    name = records.object_name(data, clock.uuid())
    path = f"{log.table}/{name}"
    uploaded_s, uploaded_us = clock.monotonic(), clock.time_us()

    def put_again_if_late() -> None:
        # We slept between upload and commit, so long that maintenance may have taken the object for an orphan. Both
        # clocks: the monotonic one stands still while a machine sleeps, the wall clock can be set back.
        waited_s = max(clock.monotonic() - uploaded_s, (clock.time_us() - uploaded_us) / 1e6)
        if waited_s > UPLOAD_VALID_S:
            put_again(log.store, path, data, clock=clock)

    log.store.put(path, data)
    add = Add(name, len(data), table.num_rows, uploaded_us // 1000)
    try:
        commit = log.append([add], txns, expect=expect, deadline_s=timeout_s)
    except (TxnAdvanced, NotCommitted, UsageError):
        with contextlib.suppress(StoreError):  # if it cannot be removed, maintenance does it
            log.store.delete([path])
        raise
    except CommitUnknown:
        with contextlib.suppress(StoreError):  # what is unknown already cannot become worse
            put_again_if_late()
        raise
    try:
        put_again_if_late()
    except StoreError as error:
        # Not "failed": the entry is in the log, and who sent the messages again would write them twice.
        msg = (
            f"{log.uri}: entry {commit.version} was written, but so late that its object may have been removed "
            f"meanwhile, and the store did not take it again ({error})."
        )
        raise CommitUnknown(msg, table=log.uri, version=commit.version, commit_id=commit.commit_id) from error
    return commit


def put_again(store: Store, path: str, data: bytes, *, clock: Clock) -> None:
    """Uploads an object whose entry is in the log already, where maintenance may have removed it meanwhile.

    Tries for longer than the store does by itself: whoever gives up here leaves an entry without its object.

    Raises:
        StoreError: the store did not take it.
    """
    for attempt in range(_PUT_AGAIN_TRIES - 1):
        with contextlib.suppress(StoreError):
            store.put(path, data)
            return
        clock.backoff(attempt, base_s=1.0, cap_s=10.0)
    store.put(path, data)
