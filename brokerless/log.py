"""The one primitive: a Delta table's log as an append-only queue on an object store.

Invariants:

1. A writer puts only to (last entry it has read) + 1. So versions have no gaps, and a writer has examined every entry
   below the one that it writes: a deleted topic, a changed schema or somebody else's txn is seen before the commit.
2. An entry is written by one conditional PUT (``If-None-Match: *``) and carries a commit id. When the answer is odd
   (timeout, reset, 5xx, 409, 412) the entry is read back: with our commit id it is ours; with another's we examine it
   and move on; absent, the first PUT may still be in flight, so the *same bytes* go to the *same* version again and
   whichever lands is ours. We move on only when the version is taken by another: a late PUT can then never succeed.
3. Nothing is guessed. At the deadline ``CommitUnknown`` says what to look for later; ``NotCommitted`` is raised only
   when every version that was tried is taken by others.
4. Nobody commits into the past. Log clean-up frees old names, and a conditional PUT to one of them would succeed and
   be seen by nobody. Clean-up removes only entries that are older than the log retention (an hour at least) and lie
   below the checkpoint hint. So who finds the next name free *and then* a hint that is not beyond it has seen the
   head, and nobody can clean up what is written there for an hour. A writer trusts that for a minute; later it looks
   again before it writes. One that slept between looking and writing finds out after the write, by the hint, and
   asks the checkpoint whether it holds its files: no entry that others may have read is ever taken back.

Offsets: an entry's messages are the rows of its added files with ``dataChange``, in log order.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.entries import (
    DELETED_KEY,
    ENGINE_KEY,
    FIRST_VERSION_KEY,
    PARTITIONS_KEY,
    Add,
    Entry,
    Metadata,
    Protocol,
    build_entry,
    check_supported,
    parse_entry,
)
from brokerless.errors import (
    CommitUnknown,
    NotCommitted,
    OffsetOutOfRange,
    StoreError,
    TopicDeleted,
    TopicExists,
    TopicNotFound,
    UnsupportedTable,
    UsageError,
)
from brokerless.offsets import Offset
from brokerless.replay import TableState, checkpoint_hint, checkpoints_by_listing, read_checkpoint, replayed
from brokerless.version import ENGINE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from brokerless.store import Store

DEADLINE_S: Final = 30.0
"""How long an append tries before it gives up. Orphan removal waits far longer than this (``maintenance``)."""

FRESH_S: Final = 60.0
"""For so long what a writer knows about the head is trusted; far below the shortest log retention (invariant 4)."""

_EPOCH: Final = "/epoch"
_DAMAGED_MS: Final = -1  # the time of an entry that cannot be read
_WINDOW: Final = 16  # entries read at once when catching up; more would only queue in the connection pool


@dataclass(frozen=True, slots=True)
class Commit:
    """An entry that is known to be in the log. ``attempts`` counts conditional PUTs: 1 without contention."""

    version: int
    timestamp_ms: int
    attempts: int
    commit_id: str


class TxnAdvanced(Exception):
    """A txn of this commit has moved since the writer last knew it; nothing was written.

    Attributes:
        app_id: which txn.
        found: its version now.
        entry: the entry that moved it.
        ours: True if an earlier commit of this very log handle did it, whose outcome had been unknown.
    """

    def __init__(self, app_id: str, found: int, entry: Entry, *, ours: bool) -> None:
        super().__init__(f"txn {app_id!r} is at {found} since entry {entry.version}")
        self.app_id = app_id
        self.found = found
        self.entry = entry
        self.ours = ours


class DeltaLog:
    """One table's log. Safe to use from several threads; appends of one handle take turns.

    Args:
        store: where the tables are.
        table: the table's folder in the store.
        clock: time, randomness and sleeping.
        skip_damaged: for readers, who must be able to open behind a damaged entry: the state is what the others say.
            Reading the entry itself is an error as ever. Nothing may be written by such a handle.
    """

    def __init__(self, store: Store, table: str, *, clock: Clock = SYSTEM, skip_damaged: bool = False) -> None:
        self.store = store
        self.table = table
        self.uri = f"{store.uri}/{table}"
        self._clock = clock
        self._skip_damaged = skip_damaged
        self._lock = threading.RLock()
        self._state: TableState | None = None
        # Commit ids whose outcome was unknown when append gave up: should they turn up, they are ours, not a rival's.
        self._unresolved: set[str] = set()
        self._confirmed = (0.0, 0)  # when the head was last known, on both clocks

    # Reading

    def entry_path(self, version: int) -> str:
        """Where an entry is stored: twenty digits, so that names sort like versions."""
        return f"{self.table}/_delta_log/{version:020d}.json"

    def read(self, version: int) -> Entry | None:
        """The entry, or None if it is absent: not written yet, or removed by log clean-up (see ``earliest``)."""
        try:
            data = self.store.get(self.entry_path(version))
        except FileNotFoundError:
            return None
        return parse_entry(version, data, table=self.uri)

    def _read_known(self, version: int) -> Entry | None:
        """As ``read``, for the state: with ``skip_damaged``, an entry that cannot be read says nothing."""
        try:
            data = self.store.get(self.entry_path(version))
        except FileNotFoundError:
            return None
        try:
            return parse_entry(version, data, table=self.uri)
        except StoreError:
            if not self._skip_damaged:
                raise
            return Entry(version, _DAMAGED_MS, None, "", (), (), {}, None, None)

    def read_from(self, version: int, *, known: bool = False) -> Iterator[Entry]:
        """Entries from ``version`` up to the head; the further behind, the more are read at once."""
        read = self._read_known if known else self.read
        # Two single reads first: whoever keeps up meets the head at once, and absent entries cost requests too.
        for window in chain((1, 1, 2, 4, 8), repeat(_WINDOW)):
            versions = range(version, version + window)
            for entry in map(read, versions) if window == 1 else read_pool().map(read, versions):
                if entry is None:
                    return
                yield entry
            version += window

    @property
    def state(self) -> TableState:
        """What is known of the table; loaded from the last checkpoint and the entries after it on first use.

        Raises:
            TopicNotFound: there is no table.
            TopicDeleted: there is only the tombstone of one.
            UnsupportedTable: it has features that the log does not support.
        """
        with self._lock:
            if self._state is None:
                looked = self._now()
                state = self.load()
                check_supported(state.protocol, state.metadata, table=self.uri)
                if state.metadata.deleted:
                    msg = f"{self.uri} was deleted. Create it again with 'brokerless topics create'."
                    raise TopicDeleted(msg)
                self._state = state
                self._confirmed = looked
            return self._state

    def refresh(self) -> TableState:
        """The state with every entry up to the head of the log.

        Raises:
            TopicDeleted, UnsupportedTable: as ``state``; also when the topic was deleted and created again.
        """
        with self._lock:
            self._catch_up_if_stale()
            for entry in self.read_from(self.state.version + 1, known=True):
                self._absorb(entry)
            return self.state

    def load(self, *, with_files: bool = False) -> TableState:
        """Replays checkpoint and log anew, without any check of what it finds.

        Correct across checkpoints and log clean-up: txns and metadata that only a checkpoint still holds are found.

        Raises:
            TopicNotFound: there is no table.
        """
        for attempt in range(10):
            state = self._load(with_files)
            # Clean-up may have run between the reads, and then "absent" was not the head (invariant 4).
            if (self.checkpoint_version() or 0) <= state.version:
                return state
            self._clock.backoff(attempt)
        msg = f"{self.uri}: the hint names checkpoint {self.checkpoint_version()}, but the log ends at {state.version}."
        msg_0 = f"{msg} The log is damaged; restore it before anything writes to the table."
        raise StoreError(msg_0)

    def _load(self, with_files: bool) -> TableState:
        hint = self.checkpoint_version()
        state = None if hint is None else read_checkpoint(self.store, self.table, hint, with_files=with_files)
        state = self._replay(state, with_files)
        if state is None:
            # No checkpoint by the hint and no entry 0: cleaned up behind a lost hint, or no table at all.
            for version in checkpoints_by_listing(self.store, self.table):
                state = read_checkpoint(self.store, self.table, version, with_files=with_files)
                if state is not None:
                    return self._replay(state, with_files) or state
            msg = f"There is no topic at {self.uri}. Create it with 'brokerless topics create'."
            raise TopicNotFound(msg)
        return state

    def _replay(self, state: TableState | None, with_files: bool) -> TableState | None:
        for entry in self.read_from(0 if state is None else state.version + 1, known=True):
            state = replayed(state, entry, uri=self.uri, with_files=with_files)
        # Checkpoints do not say when their last entry was written, and times must not go back behind it.
        if state is not None and not state.timestamp_ms and (last := self._read_known(state.version)) is not None:
            state.timestamp_ms = max(last.timestamp_ms, 0)
        return state

    def txn(self, app_id: str) -> int | None:
        """The version that the last txn of this application id recorded, as far as the log has been read."""
        version = self.state.txns.get(app_id)
        return None if version is None or version < 0 else version  # -1: forgotten, see ``create``

    def head(self) -> int:
        """The last entry's version: probes from what is known, without a listing and without reading entries."""
        low = self.checkpoint_version() if self._state is None or self._is_stale() else None
        if low is None or (self._state and self._state.version > low):
            low = self.state.version
        step = 1
        while self.store.exists(self.entry_path(low + step)):
            low, step = low + step, step * 2
        while step > 1:
            step //= 2
            if self.store.exists(self.entry_path(low + step)):
                low += step
        return low

    def earliest(self) -> int:
        """The oldest version whose messages the log can still show; head + 1 if there is none.

        The entry that creates a topic holds no messages, so on a log without clean-up this is the one after it. Other
        writers may create a table with messages.
        """
        with self._lock:
            self._catch_up_if_stale()
            state = self.state
        first = state.metadata.first_version + 1
        if state.version < first or self.store.exists(self.entry_path(first)):
            foreign = PARTITIONS_KEY not in state.metadata.configuration
            created = self._read_known(first - 1) if foreign else None
            return first - 1 if created is not None and created.messages else first
        # Clean-up removes a prefix, so presence goes from no to yes once.
        low, high = first, state.version + 1
        while low + 1 < high:
            middle = (low + high) // 2
            if self.store.exists(self.entry_path(middle)):
                high = middle
            else:
                low = middle
        return high

    def version_at(self, time_us: int) -> int:
        """The first retained version committed at or after an instant; head + 1 if all are older."""
        low, high = self.earliest(), self.refresh().version + 1
        while low < high:
            looked = middle = (low + high) // 2
            # A damaged entry does not say; the next that does stands for it, and without one it may be the first.
            while (entry := self._read_known(looked)) is not None and entry.timestamp_ms == _DAMAGED_MS:
                if (looked := looked + 1) == high:
                    break
            if looked == high:
                high = middle
            elif entry is not None and entry.timestamp_ms * 1000 >= time_us:
                high = looked
            else:
                low = looked + 1
        return low

    def checkpoint_version(self) -> int | None:
        """The version of the last checkpoint by its hint, or None without one."""
        return checkpoint_hint(self.store, self.table)

    def check_retained(self, version: int) -> None:
        """Tells "not yet" from "cleaned up", for a reader that waits for an absent entry. Costs one GET, rarely two.

        Raises:
            OffsetOutOfRange: a checkpoint covers the version, so it was there and clean-up has removed it.
        """
        checkpoint = self.checkpoint_version()
        if checkpoint is None or checkpoint < version or self.store.exists(self.entry_path(version)):
            return
        with self._lock:
            self._reload()
            earliest = Offset(self.earliest())
        msg = f"Offset {version}:0 of {self.uri} is gone: log clean-up removed it. The earliest offset is {earliest}."
        raise OffsetOutOfRange(
            msg,
            earliest=earliest,
        )

    # Writing

    def append(
        self,
        adds: Sequence[Add],
        txns: Mapping[str, int] | None = None,
        *,
        expect: Mapping[str, int] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> Commit:
        """Writes the next entry; returns once it is known to be in the log.

        The txns must be higher than those in the log, unless ``expect`` names their present version: then they may
        move to any number (compare-and-set). Both are compared with every entry that comes in between.

        Args:
            adds: the files, which are uploaded already.
            txns: application id -> version.
            expect: txns that must still have these very versions, such as an owner's epoch; -1 is a txn that the log
                does not have.
            deadline_s: how long to try.

        Raises:
            TxnAdvanced: the log has one of the txns at this or a higher version, another writer moved it, or one in
                ``expect`` is not as expected.
            TopicDeleted, UnsupportedTable, SchemaError: the table changed under the writer.
            NotCommitted: the deadline passed; this commit is not in the log and never will be.
            CommitUnknown: the deadline passed and nobody can say yet.
            AccessDenied, BucketNotFound: the store refused.
        """
        return self._append(
            adds=tuple(adds), txns=txns or {}, expect=expect or {}, deadline_s=deadline_s
        )  # fmt: skip

    def claim(self, app_id: str) -> int:
        """Takes over an application id: advances its epoch txn, so that an older owner meets it and stops.

        Returns the epoch. One commit without data.
        """
        name = epoch_of(app_id)
        while True:
            with self._lock:
                epoch = self.refresh().txns.get(name, 0) + 1
                try:
                    self._append(txns={name: epoch})
                except TxnAdvanced:
                    continue  # another newcomer was faster; it gets fenced by the next epoch
                return epoch

    def create(self, *, schema_string: str, configuration: Mapping[str, str], exist_ok: bool = False) -> Metadata:
        """Creates the table; after a deletion the version line goes on, with a new table id.

        Raises:
            TopicExists: the table is there (unless ``exist_ok``, which returns its metadata as it is).
        """
        while True:
            looked = self._now()
            try:
                state = self.load()
            except TopicNotFound:
                state = None
            timestamp = max(self._clock.time_us() // 1000, state.timestamp_ms if state else 0)
            if state and not state.metadata.deleted:
                if exist_ok:
                    return state.metadata
                msg = f"{self.uri} exists already."
                raise TopicExists(msg)
            version = state.version + 1 if state else 0
            wanted = Metadata(self._clock.uuid(), schema_string, configuration=dict(configuration))
            if version:
                wanted = replace(wanted, configuration={**configuration, FIRST_VERSION_KEY: str(version)})
            wanted = replace(wanted, created_ms=timestamp)
            protocol = Protocol(1, 2)
            # Progress belongs to messages that are gone: a producer that sent sequence 7 to the old topic must be able
            # to send it to the new one. A log cannot forget a txn, but set it back. Epochs go on: they only fence.
            forgotten = dict.fromkeys((a for a in (state.txns if state else {}) if not a.endswith(_EPOCH)), -1)
            commit_id = self._clock.uuid()
            body = build_entry(
                commit_id=commit_id,
                timestamp_ms=timestamp,
                operation="CREATE TABLE",
                engine=ENGINE,
                txns=forgotten,
                metadata=wanted,
                protocol=None if version else protocol,
            )
            entry, _ = self._put_entry(version, body, commit_id, deadline=self._clock.monotonic() + DEADLINE_S)
            if entry is None:
                with self._lock:
                    txns = {**state.txns, **forgotten} if state else {}
                    self._state = TableState(version, wanted, state.protocol if state else protocol, txns, timestamp)
                    self._confirmed = looked
                return wanted

    def delete(self) -> None:
        """Ends the log with a tombstone entry: the table reads as empty, stale writers and readers stop by name.

        Raises:
            TopicNotFound, TopicDeleted: there is nothing to delete.
        """
        while True:
            with self._lock:
                self._state = None
                metadata = self.state.metadata
                state = self.load(with_files=True)
                self._state = state
                tombstone = replace(metadata, configuration={**metadata.configuration, DELETED_KEY: "true"})
                commit_id = self._clock.uuid()
                body = build_entry(
                    commit_id=commit_id,
                    timestamp_ms=max(self._clock.time_us() // 1000, state.timestamp_ms),
                    operation="DROP TABLE",
                    engine=ENGINE,
                    removes=tuple(state.files),
                    metadata=tombstone,
                )
                # Only this version will do: a commit in between has files that the tombstone must remove too.
                deadline = self._clock.monotonic() + DEADLINE_S
                entry, _ = self._put_entry(state.version + 1, body, commit_id, deadline=deadline)
                if entry is None:
                    self._state = None
                    return

    def _append(
        self,
        *,
        txns: Mapping[str, int],
        adds: tuple[Add, ...] = (),
        expect: Mapping[str, int] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> Commit:
        with self._lock:
            deadline = self._clock.monotonic() + deadline_s
            self._catch_up_if_stale()
            state = self.state
            if state.metadata.configuration.get(ENGINE_KEY) == "delta":
                msg = (
                    f"{self.uri} is an output of the delta engine: Spark's Delta writer commits to it and could "
                    "overwrite this commit. Write to a topic of your own."
                )
                raise UnsupportedTable(msg)
            self._check_txns(txns, expect or {})
            commit_id = self._clock.uuid()
            conflicts = attempts = 0
            while True:
                version = state.version + 1
                timestamp = max(self._clock.time_us() // 1000, state.timestamp_ms)
                body = build_entry(
                    commit_id=commit_id,
                    timestamp_ms=timestamp,
                    operation="WRITE",
                    engine=ENGINE,
                    adds=adds,
                    txns=txns,
                )
                looked = self._now()
                rival, tries = self._put_entry(version, body, commit_id, deadline=deadline)
                attempts += tries
                if rival is None:
                    if self._is_stale() and self._is_past(version, adds, commit_id):
                        if adds or self._is_cut_off(version):
                            self.store.delete([self.entry_path(version)])
                        state = self._reload()
                        self._check_txns(txns, expect or {})
                        continue
                    state.version, state.timestamp_ms = version, timestamp
                    state.txns.update(txns)
                    self._confirmed = looked
                    return Commit(version, timestamp, attempts, commit_id)
                self._absorb(rival)
                self._check_rival(rival, txns, expect or {})
                conflicts += 1
                if self._clock.monotonic() >= deadline:
                    msg_0 = (
                        f"{self.uri}: {conflicts} other commits came first within {deadline_s:.0f} s; nothing was "
                        "written. Use fewer writers per partition, or more partitions."
                    )
                    raise NotCommitted(msg_0)
                # Others committed since we last looked: catch up with all of them before the next try.
                for entry in self.read_from(state.version + 1):
                    self._absorb(entry)
                    self._check_rival(entry, txns, expect or {})
                if conflicts > 1:
                    self._clock.backoff(conflicts, base_s=0.005, cap_s=0.25)

    def _put_entry(self, version: int, body: bytes, commit_id: str, *, deadline: float) -> tuple[Entry | None, int]:
        """Settles who owns ``version``: (None, PUTs) if it is this commit, otherwise (the other's entry, PUTs)."""
        path = self.entry_path(version)
        attempt = 0
        doubt = False  # whether a PUT is out whose answer we do not know
        while True:
            try:
                outcome = self.store.put_if_absent(path, body)
                attempt += 1
                if outcome == "created":
                    return None, attempt
                doubt = True  # 409 and 412 too: a proxy or a retry below us may have met our own first try
                entry = self.read(version)
            except (StoreError, UsageError) as error:
                # The store refused or failed (credentials expire, too) while the fate of this entry is open: that is
                # not "failed", and the caller must not remove the file that the entry may name.
                if doubt:
                    raise self._unknown(version, commit_id, error) from error
                if attempt == 0:
                    raise
                entry = None
            except BaseException:
                self._unresolved.add(commit_id)  # interrupted: should the entry turn up, it is no rival's
                raise
            if entry is not None:
                return (None if entry.commit_id == commit_id else entry), attempt
            if self._clock.monotonic() >= deadline:
                raise self._unknown(version, commit_id, None)
            self._clock.backoff(attempt, base_s=0.02)

    def _unknown(self, version: int, commit_id: str, error: Exception | None) -> CommitUnknown:
        self._unresolved.add(commit_id)
        return CommitUnknown(
            f"{self.uri}: the store did not say whether entry {version} was written"
            f"{f' ({error})' if error else ''}. It may still appear: read entry {version} later; it is this commit "
            f"if its txnId is {commit_id}.",
            table=self.uri,
            version=version,
            commit_id=commit_id,
        )

    def _now(self) -> tuple[float, int]:
        return self._clock.monotonic(), self._clock.time_us()

    def _is_stale(self) -> bool:
        monotonic, wall_us = self._confirmed
        # Both clocks: the monotonic one stands still while a laptop sleeps, the wall clock can be set back.
        elapsed = max(self._clock.monotonic() - monotonic, (self._clock.time_us() - wall_us) / 1e6)
        return elapsed > FRESH_S

    def _catch_up_if_stale(self) -> None:
        """Sees the head again (invariant 4): first that the next name is free, then that it never was taken."""
        state = self.state
        while self._is_stale():
            looked = self._now()
            entry = self._read_known(state.version + 1)
            checkpoint = self.checkpoint_version()
            if checkpoint is not None and checkpoint > state.version:
                state = self._reload()
            elif entry is None:
                self._confirmed = looked
            else:
                for following in self.read_from(state.version + 1, known=True):
                    self._absorb(following)

    def _is_past(self, version: int, adds: Sequence[Add], commit_id: str) -> bool:
        """Whether an entry that we just wrote, after a long sleep, took a name that clean-up had freed.

        Without files there is nothing to tell it by. Then the answer is yes, and the caller writes it again: txns
        alone do no harm twice.

        Raises:
            CommitUnknown: the store failed us before we knew.
        """
        try:
            checkpoint = self.checkpoint_version()
            if checkpoint is None or checkpoint < version:
                return False  # clean-up never reached this far
            known = self.load(with_files=True)
        except (StoreError, UsageError) as error:
            raise self._unknown(version, commit_id, error) from error
        return not any(add.path in known.files or add.path in known.tombstones for add in adds)

    def _is_cut_off(self, version: int) -> bool:
        """Whether clean-up has removed the entry behind this one, and so what was in this one's place before."""
        return (self.checkpoint_version() or 0) > version and not self.store.exists(self.entry_path(version + 1))

    def _reload(self) -> TableState:
        """Reads the state anew; the table must still be the one that this handle was opened on."""
        before, self._state = self._state, None
        state = self.state
        if before and before.metadata.id != state.metadata.id:
            msg = f"{self.uri} was deleted and created again: this one held the old topic. Open it again."
            raise TopicDeleted(msg)
        return state

    def _check_txns(self, txns: Mapping[str, int], expect: Mapping[str, int]) -> None:
        known = self.state.txns
        for app_id, version in expect.items():
            if (found := known.get(app_id, -1)) != version:
                nothing = Entry(self.state.version, 0, None, "", (), (), {}, None, None)
                raise TxnAdvanced(app_id, found, nothing, ours=False)
        for app_id, version in txns.items():
            if app_id not in expect and known.get(app_id, -1) >= version:
                nothing = Entry(self.state.version, 0, None, "", (), (), {}, None, None)
                raise TxnAdvanced(app_id, known[app_id], nothing, ours=True)

    def _check_rival(self, entry: Entry, txns: Mapping[str, int], expect: Mapping[str, int]) -> None:
        ours = entry.commit_id in self._unresolved
        for app_id, version in expect.items():
            if entry.txns.get(app_id, version) != version:
                raise TxnAdvanced(app_id, entry.txns[app_id], entry, ours=False)
        for app_id, version in txns.items():
            found = entry.txns.get(app_id)
            if app_id not in expect and found is not None and (not ours or found >= version):
                raise TxnAdvanced(app_id, found, entry, ours=ours)

    def _absorb(self, entry: Entry) -> None:
        """Moves the state past an entry, or refuses it by name and leaves the state before it."""
        state = self.state
        metadata, protocol = entry.metadata or state.metadata, entry.protocol or state.protocol
        if metadata.id != state.metadata.id:
            msg = (
                f"{self.uri} was deleted and created again (entry {entry.version}): this one held the old topic. "
                "Open it again."
            )
            raise TopicDeleted(msg)
        if metadata.deleted:
            msg = f"{self.uri} was deleted (entry {entry.version})."
            raise TopicDeleted(msg)
        check_supported(protocol, metadata, table=self.uri)
        if metadata.schema_string != state.metadata.schema_string:
            msg = (
                f"The schema of {self.uri} was changed (entry {entry.version}): this one holds the old schema. "
                "Open it again."
            )
            raise TopicDeleted(msg)
        state.version, state.metadata, state.protocol = entry.version, metadata, protocol
        state.timestamp_ms = max(state.timestamp_ms, entry.timestamp_ms)
        state.txns.update(entry.txns)


def read_pool() -> ThreadPoolExecutor:
    """Threads that wait for GETs; one pool a process. Tasks in it must not wait for other tasks in it."""
    return _pool(os.getpid())  # keyed by pid: threads do not survive a fork


@lru_cache(maxsize=1)
def _pool(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_WINDOW, thread_name_prefix="brokerless-read")


def epoch_of(app_id: str) -> str:
    """The application id whose txn counts the owners of ``app_id``."""
    return app_id + _EPOCH
