"""Objects that a log entry is to name: uploaded before it, and again if the entry came late.

An object that no entry names yet is an orphan to maintenance, which removes it after a grace time. So an object must
not wait for its entry as long as that: where a process slept in between, the object is uploaded once more.

A DELETE that maintenance has decided on may still come after that, as there is no conditional one everywhere. So
maintenance marks the table for as long as it removes, and marks it *before* it asks the log for the last time. Whoever
finds no mark after the entry is there is safe: what was marked before has been removed by now, and whoever marks later
sees the entry. Whoever finds some uploads, for the readers, and once more when these are gone.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from brokerless.columns import records
from brokerless.deadlines import requests_within
from brokerless.errors import BrokerlessError, CommitUnknown, StoreError
from brokerless.log.entries import Add

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from arro3.core import Table

    from brokerless.clock import Clock
    from brokerless.log.log import Commit, DeltaLog
    from brokerless.store import Store

UPLOAD_VALID_S: Final = 600.0
"""An object that waited longer for its commit is uploaded again; far below maintenance's grace time for orphans."""

REMOVALS: Final = "_removals"
"""The folder of a table in which maintenance keeps a mark for each removal under way."""

REMOVAL_VALID_S: Final = 6 * 3600.0
"""A mark that is older is one of a maintainer that was killed: nobody waits for it."""

_TRIES: Final = 5
_T = TypeVar("_T")


def commit_table(
    log: DeltaLog,
    table: Table,
    *,
    txns: Mapping[str, int],
    expect: Mapping[str, int],
    timeout_s: float,
    clock: Clock,
) -> Commit:
    """Uploads the rows as one object and commits it. An object that no entry can ever name is left to maintenance.

    Args:
        log: of the partition.
        table: rows of the topic's Arrow schema.
        txns: as for ``DeltaLog.append``.
        expect: likewise.
        timeout_s: how long all of it is tried.
        clock: time and the object's name.

    Raises:
        TxnAdvanced, NotCommitted, TopicDeleted, UnsupportedTable: nothing was written.
        CommitUnknown: nobody can say yet.
        StoreError: the store failed.
    """
    data = records.encode(table)
    begun_s, begun_us = clock.monotonic(), clock.time_us()
    uploads = Uploads(log, clock=clock)
    # guard: the object goes before its entry
    name = uploads.put(data, clock.uuid(), within_s=timeout_s)
    left_s = max(begun_s + timeout_s - clock.monotonic(), 0.0)
    add = Add(name, len(data), table.num_rows, begun_us // 1000)
    return uploads.commit(lambda: log.append([add], txns, expect=expect, deadline_s=left_s))


class Uploads:
    """The objects that one entry is to name, in memory until the entry is there.

    Args:
        log: of the partition.
        clock: time.
    """

    def __init__(self, log: DeltaLog, *, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._objects: dict[str, bytes] = {}
        self._begun = clock.monotonic(), clock.time_us()

    def put(self, data: bytes, unique: str, *, within_s: float | None = None) -> str:
        """Upload an object, and return its name."""
        if not self._objects:
            self._begun = self._clock.monotonic(), self._clock.time_us()
        name = records.object_name(data, unique)
        self._objects[name] = data
        self._log.store.put(f"{self._log.table}/{name}", data, within_s=within_s)
        return name

    @property
    def size(self) -> int:
        """Return the bytes of all objects."""
        return sum(map(len, self._objects.values()))

    def commit(self, write: Callable[[], Commit]) -> Commit:
        """Write the entry, and upload its objects again if it came late.

        Raises:
            CommitUnknown: nobody can say yet, or the objects may be missing.
            BrokerlessError: as ``write``.
        """
        try:
            commit = write()
        except CommitUnknown:
            with contextlib.suppress(BrokerlessError):  # what is unknown already cannot become worse
                self._put_again_if_late()
            raise
        try:
            self._put_again_if_late()
        except BrokerlessError as error:
            # Not "failed": the entry is in the log, and who sent the messages again would write them twice.
            raise CommitUnknown(
                f"{self._log.uri}: entry {commit.version} was written, but so late that its object may have been "
                f"removed meanwhile, and the store did not take it again ({error}).",
                table=self._log.uri,
                version=commit.version,
                commit_id=commit.commit_id,
            ) from error
        return commit

    def _put_again_if_late(self) -> None:
        # We slept between upload and commit, so long that maintenance may have taken the object for an orphan. Both
        # clocks: the monotonic one stands still while a machine sleeps, the wall clock can be set back.
        begun_s, begun_us = self._begun
        waited_s = max(self._clock.monotonic() - begun_s, (self._clock.time_us() - begun_us) / 1e6)
        # guard: an object that waited long for its commit is put again
        if waited_s > UPLOAD_VALID_S:
            with requests_within(None):  # however long it takes: without its object the entry is damaged
                put_again(self._log.store, self._log.table, self._objects, clock=self._clock)


def put_again(store: Store, table: str, objects: Mapping[str, bytes], *, clock: Clock) -> None:
    """Uploads objects whose entry is in the log already, where maintenance may have removed them meanwhile.

    Waits for the removals that are under way: seconds, but hours where maintenance stands still. Tries for longer than
    the store does by itself: whoever gives up here leaves an entry without its objects.

    Args:
        store: of the table.
        table: relative to the store.
        objects: by their paths in the table.
        clock: time.

    Raises:
        BrokerlessError: the store did not answer, or did not take them.
    """

    def removals() -> set[str]:
        # Marks have the store's time, so their age does, too: this machine has slept, and its clock may be set wrong.
        valid_s = stored_s + clock.monotonic() - begun - REMOVAL_VALID_S
        return {mark.path for mark in store.list(f"{table}/{REMOVALS}") if mark.modified_s > valid_s}

    def put() -> None:
        for path, data in objects.items():
            _persist(partial(store.put, f"{table}/{path}", data), clock)

    if not objects:
        return
    put()
    begun = clock.monotonic()
    try:
        stored_s = _persist(partial(_stored_s, store, f"{table}/{next(iter(objects))}", clock), clock)
        under_way = _persist(removals, clock)
    finally:
        put()
    waited = 0
    while under_way:
        clock.backoff(waited, base_s=1.0, cap_s=60.0)
        waited += 1
        under_way &= _persist(removals, clock)
        if not under_way:
            put()


def _stored_s(store: Store, path: str, clock: Clock) -> float:
    """When the store took an object just now, by the store's clock; by this machine's if it is gone again."""
    found = store.list(path.rpartition("/")[0], after=path[:-1])
    return next((info.modified_s for info in found if info.path == path), clock.time_us() / 1e6)


def _persist(request: Callable[[], _T], clock: Clock) -> _T:
    for attempt in range(_TRIES - 1):
        with contextlib.suppress(StoreError):
            return request()
        clock.backoff(attempt, base_s=1.0, cap_s=10.0)
    return request()
