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
   be seen by nobody. Clean-up removes a prefix, and only entries that are older than the log retention (an hour at
   least). So as long as an entry that a writer knows is there, the names behind it were never freed. A writer looks
   once a second (``RECHECK_S``) at what was the last entry when it looked before (what came since, it may itself have
   written into a folder that somebody has removed), trusts what it saw for a minute by both of its clocks, and
   one that slept between looking and writing finds out after the write. A machine whose clocks both stood still is
   stopped by the store's: S3 and its like refuse a request that was signed more than a quarter of an hour ago.
5. A decision not to write rests on the log (``confirm``): the next entry is asked for, and the last one known must
   still be the same. That also tells a table that was removed and made again by hand.
6. Absent is not the end. An entry may be late, lost or not yet restored; so where the end matters, at opening and once
   a minute (``FRESH_S``) after that, one LIST shows whether there are entries beyond it. Then ``LogIncomplete`` stops
   readers and writers, and nothing is put into the hole.

Several threads that append to one handle share entries: whoever comes first writes for all that wait (``_Request``).

Offsets: an entry's messages are the rows of its added files with ``dataChange``, in log order.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from brokerless.clock import SYSTEM, Clock
from brokerless.deadlines import carried
from brokerless.errors import (
    CommitUnknown,
    LogDamaged,
    LogIncomplete,
    NotCommitted,
    OffsetOutOfRange,
    StoreError,
    TopicChanged,
    TopicDeleted,
    TopicNotFound,
    UnsupportedTable,
    UsageError,
)
from brokerless.log import lifecycle
from brokerless.log.checkpoint import PAGE, TableState, checkpoint_hint, listed, read_checkpoint, replayed
from brokerless.log.entries import (
    ENGINE_KEY,
    PARTITIONS_KEY,
    START_TXN,
    WRITER_DIGITS,
    Add,
    Entry,
    Metadata,
    build_entry,
    check_supported,
    digest_of,
    parse_entry,
    rows_in,
)
from brokerless.log.lifecycle import epoch_of
from brokerless.log.rewrite import RewriteConflict
from brokerless.log.turns import Turns
from brokerless.offsets import Offset
from brokerless.schema import only_adds
from brokerless.version import ENGINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from brokerless.log.rewrite import Rewrite
    from brokerless.store import Store

DEADLINE_S: Final = 30.0
"""How long an append tries before it gives up. Orphan removal waits far longer than this (``maintenance``)."""

FRESH_S: Final = 60.0
"""For so long what a handle knows about the head is trusted; far below the shortest log retention (invariant 4). Also
how often a writer, or a reader that waits, asks by one LIST whether there is a hole (invariant 6)."""

RECHECK_S: Final = 1.0
"""How often a writer looks whether the last entry that it knows is still there: one GET a second at most. For so long
it may be acknowledged into a table that somebody has removed by hand."""

GROUP_ROWS: Final = 1_000_000
GROUP_BYTES: Final = 64 * 2**20
"""Threads that append at once share an entry up to this size: a commit is never split by a reader."""

_LEAST_S: Final = 0.25  # a request in doubt gets one look even when the time is over
_T = TypeVar("_T")
_R = TypeVar("_R")
_WINDOW: Final = 16  # entries read at once when catching up; more would only queue in the connection pool
_FIRST_WINDOWS: Final = (1, 1, 2, 4, *[8] * 7)
"""Before that, for the first 64 entries. Two single reads: whoever keeps up meets the head at once. And what is asked
for behind the head is asked for in vain, so a short log is not read in large steps."""

KEPT_ACTIONS: Final = 2_000
"""What an opening hands on to the reader of a log (``DeltaLog.open``), in files, txns and entries: about 2 MB."""


@dataclass(frozen=True, slots=True)
class Commit:
    """An entry that is known to be in the log.

    Attributes:
        attempts: conditional PUTs: 1 without contention.
        first_index: of this commit's first row: threads of one handle share entries.
    """

    version: int
    timestamp_ms: int
    attempts: int
    commit_id: str
    first_index: int = 0


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


@dataclass(slots=True)
class _Request:
    """What one thread wants to append, and what became of it."""

    adds: tuple[Add, ...]
    txns: Mapping[str, int]
    expect: Mapping[str, int]
    begun: float
    deadline: float
    outcome: Commit | BaseException | None = None

    @property
    def rows(self) -> int:
        return sum(add.rows or 0 for add in self.adds)

    @property
    def size(self) -> int:
        return sum(add.size for add in self.adds)

    def result(self) -> Commit:
        if isinstance(self.outcome, Commit):
            return self.outcome
        raise self.outcome or RuntimeError("the request was not settled")


class DeltaLog:
    """One table's log. Safe to use from several threads; those that append at once share entries.

    Args:
        store: where the tables are.
        table: the table's folder in the store.
        clock: time, randomness and sleeping.
    """

    def __init__(self, store: Store, table: str, *, clock: Clock = SYSTEM) -> None:
        self.store = store
        self.table = table
        self.uri = f"{store.uri}/{table}"
        self._clock = clock
        self._lock = threading.RLock()
        self._state: TableState | None = None
        # Commit ids whose outcome was unknown when append gave up: should they turn up, they are ours, not a rival's.
        self._unresolved: set[str] = set()
        self._writer = f"{clock.rng.getrandbits(4 * WRITER_DIGITS):0{WRITER_DIGITS}x}"
        self._turns = Turns(self._writer, clock)
        self._waiting: deque[_Request] = deque()
        self._is_outdated = False
        # When the head was last known, when the last entry was last seen, and when the end was last listed; each on
        # both clocks.
        self._confirmed = self._looked = self._listed = (float("-inf"), 0)
        self._anchor: tuple[int, int | None] = (-1, None)  # the last entry when it was looked at for the last time

    # Reading

    def entry_path(self, version: int) -> str:
        """Where an entry is stored: twenty digits, so that names sort like versions."""
        return f"{self.table}/_delta_log/{version:020d}.json"

    @property
    def table_id(self) -> str:
        """The id of the table that this handle was opened on."""
        return self.state.metadata.id

    def read(self, version: int, *, within_s: float | None = None) -> Entry | None:
        """The entry, or None if it is absent: not written yet, removed by log clean-up (see ``earliest``), or lost.

        Raises:
            LogDamaged: it is there and cannot be read.
        """
        try:
            data = self.store.get(self.entry_path(version), within_s=within_s)
        except FileNotFoundError:
            return None
        return parse_entry(version, data, table=self.uri)

    def read_from(self, version: int, *, damages: list[StoreError] | None = None) -> Iterator[Entry]:
        """Entries from ``version`` up to the first that is absent; the further behind, the more are read at once.

        Args:
            version: the first one.
            damages: takes up what is wrong with entries that cannot be read, which are then passed over.

        Raises:
            LogDamaged: an entry cannot be read, and there is no such list.
        """

        def read(version: int) -> Entry | LogDamaged | None:
            try:
                return self.read(version)
            except LogDamaged as error:
                return error

        for window in chain(_FIRST_WINDOWS, repeat(_WINDOW)):
            versions = range(version, version + window)
            for entry in map(read, versions) if window == 1 else side_by_side(read, versions):
                if entry is None:
                    return
                if isinstance(entry, Entry):
                    yield entry
                elif damages is None:
                    raise entry
                else:
                    damages.append(entry)
            version += window

    @property
    def state(self) -> TableState:
        """What is known of the table; read from the log on first use, see ``open``."""
        return self.open()

    def open(self, *, entries: list[Entry] | None = None) -> TableState:
        """Read the last checkpoint and the entries after it, unless this handle has read them before.

        Entries that are missing or damaged are passed over and noted (``TableState.damage``): they hold back what is
        behind them, not a reader that begins later. Writers refuse such a log.

        Args:
            entries: takes up the first entries that were read, up to ``KEPT_ACTIONS``: a reader that begins there need
                not ask for them again.

        Raises:
            TopicNotFound: there is no table.
            TopicDeleted: there is only the tombstone of one.
            UnsupportedTable: it has features that the log does not support.
        """
        with self._lock:
            if self._state is None:
                looked = self._now()
                state = self.load(strict=False, entries=entries)
                check_supported(state.protocol, state.metadata, table=self.uri)
                if state.metadata.deleted:
                    raise TopicDeleted(f"{self.uri} was deleted. Create it again with 'brokerless topics create'.")
                self._know(state, looked)
                return state
            return self._state

    def refresh(self) -> TableState:
        """The state with every entry up to the head of the log.

        Raises:
            TopicChanged, TopicDeleted, UnsupportedTable: as ``state``; also when the table is another one by now.
            LogIncomplete, LogDamaged: an entry is missing or cannot be read.
        """
        with self._lock:
            self._look_again()
            for entry in self.read_from(self.state.version + 1):
                self._absorb(entry)
            return self.state

    def confirm(self) -> TableState:
        """As ``refresh``, and proof that this is still the table that the handle was opened on.

        For every decision not to write ("duplicate", "skipped", "does not fit"): memory alone may be that of a table
        which is gone. Two GETs.

        Raises:
            TopicChanged, TopicDeleted, UnsupportedTable, LogIncomplete, LogDamaged: as ``refresh``.
        """
        with self._lock:
            self._check_last()
            self.refresh()
            return self._whole()

    def check_same(self) -> None:
        """Makes sure that this is still the table that the handle was opened on, for a reader under way. One GET.

        Raises:
            TopicChanged, TopicDeleted, LogIncomplete: it is not.
        """
        with self._lock:
            self._check_last()

    def check_recent(self) -> None:
        """As ``check_same``, unless that was seen a moment ago (``RECHECK_S``)."""
        with self._lock:
            if self._is_older(self._looked, RECHECK_S):
                self._check_last()

    def copy(self) -> DeltaLog:
        """Return a handle of its own on the same table, which begins with what this one knows. No request.

        What readers and writers note about the log's end they must note for themselves, so each needs a handle.
        """
        with self._lock:
            log = DeltaLog(self.store, self.table, clock=self._clock)
            log._take_over(self)
            return log

    def catch_up(self, other: DeltaLog) -> bool:
        """Take over what another handle has just read of the same table, in place of reading it again.

        Returns:
            False if the last entry that this handle knows is not the one in the log: lost, or in the place of another.
            Then it takes over nothing and has to find out by itself, so that its writers hear of it. One GET tells.
        """
        if not self._lock.acquire(blocking=False):
            return True  # a commit is under way, which catches up by itself
        try:
            known, newer = self.state, other.state
            if newer.version == known.version:
                return newer.digest == known.digest
            entry = self.read(known.version)
            if entry is None or entry.digest != known.digest:
                return False
            if newer.version > known.version and newer.damage is None:
                self._take_over(other)
            return True
        finally:
            self._lock.release()

    def _take_over(self, other: DeltaLog) -> None:
        state = other._state
        self._state = None if state is None else replace(state, txns=dict(state.txns))
        self._confirmed, self._looked, self._listed = other._confirmed, other._looked, other._listed
        self._anchor, self._is_outdated = other._anchor, other._is_outdated

    def load(self, *, with_files: bool = False, strict: bool = True, entries: list[Entry] | None = None) -> TableState:
        """Replays checkpoint and log anew, without any check of what it finds.

        Correct across checkpoints and log clean-up: txns and metadata that only a checkpoint still holds are found.

        Args:
            with_files: also which files are live.
            strict: fail if an entry is missing or cannot be read, instead of noting it in ``TableState.damage``.
            entries: as for ``open``.

        Raises:
            TopicNotFound: there is no table.
            LogIncomplete, LogDamaged: an entry is missing, or cannot be read.
        """
        for attempt in range(10):
            damages: list[StoreError] | None = None if strict else []
            state = self._load(with_files, damages, entries)
            if state is not None:
                state.damage = damages[0] if damages else None
                return state
            self._clock.backoff(attempt)  # clean-up ran between the reads, and "absent" was not the head
        if self.checkpoint_version() is None:
            # Clean-up needs a hint: so nobody has removed them.
            raise LogIncomplete(
                f"Entries of the log of {self.uri} are missing below a checkpoint without a hint: they are late, lost "
                "or not yet restored. Restore them; 'brokerless verify' shows which.",
                version=0,
            )
        raise StoreError(
            f"{self.uri}: checkpoint {self.checkpoint_version()} is named by its hint or listed, but it or the entries "
            "behind it are not there. The log is damaged; restore it before anything writes to the table."
        )

    def _load(
        self, with_files: bool, damages: list[StoreError] | None, entries: list[Entry] | None
    ) -> TableState | None:
        """One try of ``load``; None if clean-up got in its way."""
        hint = self.checkpoint_version()
        state = None if hint is None else read_checkpoint(self.store, self.table, hint, with_files=with_files)
        state, is_whole = self._replay(state, with_files, damages, entries)
        if state is not None:
            return state if is_whole else None
        # No checkpoint by the hint and no entry 0: cleaned up behind a lost hint, or no table at all.
        found = listed(self.store, self.table)
        for version in reversed(found.checkpoints):
            state = read_checkpoint(self.store, self.table, version, with_files=with_files)
            if state is not None:
                state, is_whole = self._replay(state, with_files, damages, entries)
                return state if is_whole else None
        if found.entries and not damages and self.store.exists(self.entry_path(0)):
            return None  # somebody has created the table since we asked for entry 0
        if found.entries:
            # Without the first entry nobody knows the columns, so there is nothing to be tolerant with.
            raise damages[0] if damages else self._incomplete(0, found.entries[0])
        raise TopicNotFound(f"There is no topic at {self.uri}. Create it with 'brokerless topics create'.")

    def _replay(
        self,
        state: TableState | None,
        with_files: bool,
        damages: list[StoreError] | None,
        entries: list[Entry] | None,
    ) -> tuple[TableState | None, bool]:
        """The state after all entries, and whether the end was seen (or what is missing was noted)."""
        version = 0 if state is None else state.version + 1
        actions = 0
        if entries is not None:
            entries.clear()
        while True:
            for entry in self.read_from(version, damages=damages):
                state = replayed(state, entry, uri=self.uri, with_files=with_files)
                version = entry.version + 1
                actions += 1 + len(entry.adds) + len(entry.removes) + len(entry.txns)
                if entries is not None and actions <= KEPT_ACTIONS:
                    entries.append(entry)
                if entry.table_id not in (None, state.metadata.id) and not self._begins(state.metadata):
                    return state, False  # the folder was removed and made again while it was read
            if state is None:
                return None, True
            if damages and isinstance(damages[-1], LogDamaged):
                version = max(version, damages[-1].version + 1)
            # guard: a listing tells the end of a log from a hole
            following = self._behind(version)
            if following is None:
                break
            if following < 0:
                return state, False
            if following > version:
                if damages is None:
                    raise self._incomplete(version, following)
                damages.append(self._incomplete(version, following))
                version = following
        # Checkpoints do not say when their last entry was written, and times must not go back behind it.
        if state.digest is None and (last := self.read(state.version)) is not None:
            state.timestamp_ms, state.digest = max(state.timestamp_ms, last.timestamp_ms), last.digest
            state.total = last.total
        return state, True

    def _begins(self, metadata: Metadata) -> bool:
        """Whether the log still begins with this table, as far as can be seen."""
        first = self.read(metadata.first_version)
        return first is None or first.metadata is None or first.metadata.id == metadata.id

    def _behind(self, version: int) -> int | None:
        """The first entry at ``version`` or behind it, by one LIST; None if there is none, -1 if it was cleaned up."""
        found = listed(self.store, self.table, after=self.entry_path(version - 1), most=PAGE)
        entries = [number for number in found.entries if number >= version]
        if found.checkpoints and found.checkpoints[-1] >= version and version not in entries:
            return -1
        if not entries:
            return None
        # A listing of a folder is not one instant: what came last may be in it, and not what came before.
        return version if self.store.exists(self.entry_path(version)) else entries[0]

    def meant(self, entry: Entry) -> bool:
        """Whether an entry is one of the table that this handle was opened on.

        Its writer says which table it meant. If that was another one, either this table has its place by now, or it was
        written at the last moment by who could not know yet that the folder had been removed: it counts.

        Raises:
            TopicNotFound, LogIncomplete, LogDamaged: as ``load``.
        """
        if entry.table_id in (None, self.table_id):
            return True
        return self.load(strict=False).metadata.id == self.table_id

    def check_end(self, version: int) -> bool:
        """Whether the log ends before the absent entry ``version``; False if it was written (or cleaned up) meanwhile.

        One LIST, and a GET if there is something.

        Raises:
            LogIncomplete: there are entries behind it.
        """
        following = self._behind(version)
        if following is not None and following > version:
            raise self._incomplete(version, following)
        return following is None

    def _incomplete(self, version: int, following: int) -> LogIncomplete:
        return LogIncomplete(
            f"Entry {version} of the log of {self.uri} is missing, but entry {following} is there: it is late, lost or "
            "not yet restored. Nothing was written in its place and nothing behind it may be removed. Restore it; "
            "'brokerless verify' shows what else is missing.",
            version=version,
        )

    def txn(self, app_id: str) -> int | None:
        """The version that the last txn of this application id recorded, as far as the log has been read."""
        # Without the lock where it can be: who only asks must not wait for a commit under way.
        version = (self._state or self.state).txns.get(app_id)
        return None if version is None or version < 0 else version  # -1: forgotten, see ``create``

    def head(self) -> int:
        """The last entry's version: probes from what is known, without reading entries, and makes sure by one LIST.

        Raises:
            LogIncomplete: there are entries behind the one that seems to be the last.
        """
        low = self.checkpoint_version() if self._state is None or self._is_older(self._confirmed, FRESH_S) else None
        if low is None or self._state is None or self._state.version > low:
            low = self.state.version
        step = 1
        while self.store.exists(self.entry_path(low + step)):
            low, step = low + step, step * 2
        while step > 1:
            step //= 2
            if self.store.exists(self.entry_path(low + step)):
                low += step
        while not self.check_end(low + 1):
            low += 1
        return low

    def earliest(self) -> int:
        """The oldest version whose messages the log can still show; head + 1 if there is none.

        The entry that creates a topic holds no messages, so on a log without clean-up this is the one after it. Other
        writers may create a table with messages.

        Raises:
            LogIncomplete: the first is missing, and it was not clean-up that removed it.
        """
        with self._lock:
            state = self.state
            if self._is_older(self._confirmed, FRESH_S):
                state = self._reload()
        first = max(state.metadata.first_version + 1, self.state.txns.get(START_TXN, 0))
        # Clean-up removes the entry that created the topic first; the one after it a sleeper may have put back.
        if state.version < first or self.store.exists(self.entry_path(first - 1)):
            if isinstance(state.damage, LogIncomplete) and state.damage.version == first:
                raise state.damage
            foreign = PARTITIONS_KEY not in state.metadata.configuration
            created = self.read(first - 1) if foreign else None
            return first - 1 if created is not None and created.messages else first
        # Clean-up removes a prefix, so what is listed first is the oldest.
        retained = list(listed(self.store, self.table, after=self.entry_path(first - 1), most=PAGE).entries)
        # But for an entry that a writer put into a freed name after a long sleep: it stands alone, and nobody reads it.
        while len(retained) > 1 and retained[1] != retained[0] + 1 and retained[1] <= state.version:
            del retained[0]
        if not retained:
            return self.head() + 1
        if (self.checkpoint_version() or 0) < retained[0]:  # clean-up leaves one: else what comes before is lost
            raise self._incomplete(first, retained[0])
        return retained[0]

    def version_at(self, time_us: int) -> int:
        """The first retained version committed at or after an instant; head + 1 if all are older."""
        low, high = self.earliest(), self.head() + 1
        while low < high:
            middle = looked = (low + high) // 2
            # A damaged entry does not say; the next one that does stands for it.
            while (committed_ms := self._committed_ms(looked)) is None and looked + 1 < high:
                looked += 1
            if committed_ms is None or committed_ms * 1000 >= time_us:
                high = middle
            else:
                low = looked + 1
        return low

    def _committed_ms(self, version: int) -> int | None:
        try:
            entry = self.read(version)
        except LogDamaged:
            return None
        return None if entry is None else entry.timestamp_ms

    def checkpoint_version(self) -> int | None:
        """The version of the last checkpoint by its hint, or None without one."""
        return checkpoint_hint(self.store, self.table)

    def check_retained(self, version: int) -> None:
        """Tells "not yet" from "cleaned up" and "lost", for a reader that waits for an absent entry.

        Costs one GET; once a minute (``FRESH_S``) a LIST and a GET more.

        Raises:
            OffsetOutOfRange: a checkpoint covers the version, so it was there and clean-up has removed it.
            LogIncomplete: later entries are there, or the one before and a checkpoint of a later one.
            TopicDeleted: the table was removed, and perhaps made again.
        """
        checkpoint = self.checkpoint_version()
        if checkpoint is None or checkpoint < version:
            self._check_waiting(version)
            return
        if self.store.exists(self.entry_path(version)):
            return
        with self._lock:
            self._reload()
        # Clean-up removes a prefix: if what comes before is still there, this one was lost. (Two, because a sleeper may
        # have left one in a freed name.)
        first = self.state.metadata.first_version
        before = range(max(version - 2, first), version)
        if before and all(self.store.exists(self.entry_path(number)) for number in before):
            raise self._incomplete(version, checkpoint)
        earliest = Offset(self.earliest())
        raise OffsetOutOfRange(
            f"Offset {version}:0 of {self.uri} is gone: log clean-up removed it. The earliest offset is {earliest}.",
            earliest=earliest,
        )

    def _check_waiting(self, version: int) -> None:
        """Looks, once a minute, for a hole where a reader waits, and whether its table is still there."""
        if not self._is_older(self._listed, FRESH_S):
            return
        self._listed = self._now()
        # guard: a reader that waits makes sure that its table is there
        self.check_same()
        self.check_end(version)

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
        now = self._clock.monotonic()
        request = _Request(tuple(adds), txns or {}, expect or {}, now, now + deadline_s)
        self._waiting.append(request)
        try:
            is_next = self._lock.acquire(timeout=min(max(deadline_s, 0.0), threading.TIMEOUT_MAX))
        except BaseException:
            with contextlib.suppress(ValueError):  # another thread is committing it
                self._waiting.remove(request)
            raise
        if not is_next:
            with contextlib.suppress(ValueError):
                self._waiting.remove(request)
                raise NotCommitted(
                    f"{self.uri}: other commits of this process took the {deadline_s:.0f} s; nothing was written. "
                    "Send fewer at a time, or use more partitions."
                )
            self._lock.acquire()
        try:
            while request.outcome is None:
                self._commit(self._next_group())
        finally:
            self._lock.release()
        return request.result()

    def _next_group(self) -> list[_Request]:
        """The requests that wait, as many as one entry can take, in their order; no two of them touch the same txn."""
        group: list[_Request] = []
        names: set[str] = set()
        rows = size = 0
        while self._waiting:
            request = self._waiting[0]
            touched = request.txns.keys() | request.expect.keys()
            rows, size = rows + request.rows, size + request.size
            if group and (names & touched or rows > GROUP_ROWS or size > GROUP_BYTES):
                break
            names |= touched
            group.append(self._waiting.popleft())
        return group

    def claim(self, app_id: str, *, deadline_s: float = DEADLINE_S) -> int:
        """Takes over an application id: advances its epoch txn, so that an older owner meets it and stops.

        Returns the epoch. One commit without data.
        """
        name = epoch_of(app_id)
        while True:
            with self._lock:
                epoch = self.refresh().txns.get(name, 0) + 1
                now = self._clock.monotonic()
                request = _Request((), {name: epoch}, {}, now, now + deadline_s)
                self._commit([request])
                with contextlib.suppress(TxnAdvanced):  # another newcomer was faster; the next epoch fences it
                    request.result()
                    return epoch

    def rewrite(self, change: Rewrite, *, deadline_s: float = DEADLINE_S) -> Commit:
        """Write an entry without new messages.

        Raises:
            RewriteConflict: another commit removed one of the files, or changed the table, or this machine slept; what
                was written, if anything, is no part of the log.
            NotCommitted: others were faster until the deadline; nothing was written.
            CommitUnknown: the deadline passed and nobody can say yet.
            TopicChanged, LogIncomplete, LogDamaged, StoreError: as ``append``.
        """
        deadline = self._clock.monotonic() + deadline_s
        with self._lock:
            self._check_last()
            self._look_again()
            for entry in self.read_from(min(change.since, self.state.version) + 1):
                if entry.version > change.since:
                    # guard: a rewrite gives way to who removed a file first
                    change.check(entry, self.uri)
                if entry.version > self.state.version:
                    self._absorb(entry)
            commit_id = self._commit_id()
            attempts = 0
            while True:
                state = self._whole()
                version = state.version + 1
                timestamp = max(self._clock.time_us() // 1000, state.timestamp_ms)
                body = build_entry(
                    commit_id=commit_id,
                    timestamp_ms=timestamp,
                    operation=change.operation,
                    engine=ENGINE,
                    table_id=state.metadata.id,
                    adds=[replace(add, data_change=not change.keeps_rows) for add in change.adds],
                    removes=change.removes,
                    txns=change.txns,
                    metadata=change.metadata,
                    removes_rows=not change.keeps_rows,
                    nothing_new=bool(change.adds) and not change.keeps_rows,
                    info_about=change.about,
                )
                self._turns.before(deadline)
                rival, tries = self._put_entry(version, body, commit_id, deadline=deadline)
                attempts += tries
                if rival is None:
                    added = [add.path for add in change.adds]
                    # guard: a rewrite that slept makes sure that its entry is in the log
                    if self._is_older(self._confirmed, FRESH_S) and self._is_past(
                        version, added, commit_id, removes=change.removes
                    ):
                        self._reload()
                        raise RewriteConflict(
                            f"{self.uri}: this machine slept, and its entry came too late. Try again."
                        )
                    self._absorb(parse_entry(version, body, table=self.uri))
                    return Commit(version, timestamp, attempts, commit_id)
                for entry in (rival, *self.read_from(version + 1)):
                    change.check(entry, self.uri)
                    self._absorb(entry)
                if self._clock.monotonic() >= deadline:
                    raise NotCommitted(
                        f"{self.uri}: other commits came first for {deadline_s:.0f} s; nothing was written. Try again."
                    )

    def create(self, *, schema_string: str, configuration: Mapping[str, str], exist_ok: bool = False) -> Metadata:
        """Creates the table; after a deletion the version line goes on, with a new table id.

        Raises:
            TopicExists: the table is there (unless ``exist_ok``, which returns its metadata as it is).
        """
        return lifecycle.create(
            self, schema_string=schema_string, configuration=configuration, exist_ok=exist_ok, deadline_s=DEADLINE_S
        )

    def delete(self) -> None:
        """Ends the log with a tombstone entry: the table reads as empty, stale writers and readers stop by name.

        Raises:
            TopicNotFound, TopicDeleted: there is nothing to delete.
        """
        lifecycle.delete(self, deadline_s=DEADLINE_S)

    def _commit(self, group: list[_Request]) -> None:
        """Settles requests: writes the next entry for those of them that may be in it."""
        try:
            self._write(group)
        except BaseException as error:
            for request in group:
                request.outcome = request.outcome or error
            if not isinstance(error, Exception):
                raise

    def _write(self, group: list[_Request]) -> None:
        deadline = min(request.deadline for request in group)
        # guard: a writer looks once a second whether its table is there
        if self._is_outdated or self._is_older(self._looked, RECHECK_S):
            self._check_last()
        self._look_again()
        state = self._whole()
        if state.metadata.configuration.get(ENGINE_KEY) == "delta":
            raise UnsupportedTable(
                f"{self.uri} is an output of the delta engine: Spark's Delta writer commits to it and could "
                "overwrite this commit. Write to a topic of your own."
            )
        commit_id = self._commit_id()
        conflicts = attempts = 0
        # guard: known txns are compared before the first PUT
        group = self._unopposed(group, self._check_txns)
        self._turns.before(deadline)
        while group:
            version = state.version + 1
            # guard: times do not go back
            timestamp = max(self._clock.time_us() // 1000, state.timestamp_ms)
            adds = [add for request in group for add in request.adds]
            rows = rows_in(add for add in adds if add.data_change)
            # guard: an entry counts the messages on from the last one
            total = None if state.total is None or rows is None else state.total + rows
            body = build_entry(
                commit_id=commit_id,
                timestamp_ms=timestamp,
                operation="WRITE",
                engine=ENGINE,
                table_id=state.metadata.id,
                adds=adds,
                txns={name: moved for request in group for name, moved in request.txns.items()},
                total=total,
            )
            looked = self._now()
            rival, tries = self._put_entry(version, body, commit_id, deadline=deadline)
            attempts += tries
            if rival is None:
                added = [add.path for request in group for add in request.adds]
                if self._is_older(self._confirmed, FRESH_S) and self._is_past(version, added, commit_id):
                    self._reload()
                    state = self._whole()
                    group = self._unopposed(group, self._check_txns)
                    continue
                state.version, state.timestamp_ms, state.digest = version, timestamp, digest_of(body)
                state.total = total
                self._confirmed = looked
                self._turns.committed()
                index = 0
                for request in group:
                    state.txns.update(request.txns)
                    request.outcome = Commit(version, timestamp, attempts, commit_id, index)
                    index += request.rows
                return
            conflicts += 1
            # guard: txns of the entry that came first are compared
            group = self._pass(rival, group)
            self._turns.after_loss(min((r.begun for r in group), default=0.0), deadline)
            # Others committed since we last looked: catch up with all of them before the next try.
            # guard: every entry is read before the next version is tried
            for entry in self.read_from(state.version + 1):
                # guard: txns of entries in between are compared
                group = self._pass(entry, group)
                if self._clock.monotonic() >= deadline:
                    break
            group = self._in_time(group, conflicts)
            deadline = min((request.deadline for request in group), default=deadline)

    def _commit_id(self) -> str:
        return self._writer + self._clock.uuid()[WRITER_DIGITS:]

    def _pass(self, entry: Entry, group: list[_Request]) -> list[_Request]:
        """Moves the state past another's entry; the requests that it leaves standing."""
        self._absorb(entry)
        return self._unopposed(group, partial(self._check_rival, entry))

    @staticmethod
    def _unopposed(
        group: list[_Request], check: Callable[[Mapping[str, int], Mapping[str, int]], None]
    ) -> list[_Request]:
        """The requests that pass the check; the others are settled by its error."""
        left: list[_Request] = []
        for request in group:
            try:
                check(request.txns, request.expect)
            except TxnAdvanced as error:
                request.outcome = error
            else:
                left.append(request)
        return left

    def _in_time(self, group: list[_Request], conflicts: int) -> list[_Request]:
        """The requests that have time for one more try; the others are settled as not committed.

        A try that the deadline would cut off could only end as unknown.
        """
        now = self._clock.monotonic() + 2 * self._turns.put_s
        for request in group:
            if now >= request.deadline:
                msg = (
                    f"{self.uri}: {conflicts} other commits came first within "
                    f"{request.deadline - request.begun:.0f} s, of {self._turns.rivals()} other writers; nothing was "
                    "written. Use fewer writers per partition, or more partitions."
                )
                request.outcome = NotCommitted(msg)
        return [request for request in group if request.outcome is None]

    def _put_entry(self, version: int, body: bytes, commit_id: str, *, deadline: float) -> tuple[Entry | None, int]:
        """Settles who owns ``version``: (None, PUTs) if it is this commit, otherwise (the other's entry, PUTs)."""
        path = self.entry_path(version)
        attempt = 0
        doubt = False  # whether a PUT is out whose answer we do not know
        while True:
            try:
                begun = self._clock.monotonic()
                # guard: the same bytes go to the same version again
                outcome = self.store.put_if_absent(path, body, within_s=max(deadline - begun, _LEAST_S))
                self._turns.put_took(self._clock.monotonic() - begun)
                attempt += 1
                if outcome == "created":
                    return None, attempt
                # guard: a refused name is read, not believed
                doubt = True  # 409 and 412 too: a proxy or a retry below us may have met our own first try
                entry = self.read(version, within_s=max(deadline - self._clock.monotonic(), _LEAST_S))
            except (StoreError, UsageError) as error:
                # The store refused or failed (credentials expire, too) while the fate of this entry is open: that is
                # not "failed", and the caller must not remove the file that the entry may name.
                # guard: an error of the store while in doubt is no failure
                if doubt:
                    raise self._unknown(version, commit_id, error) from error
                if attempt == 0:
                    raise
                entry = None
            except BaseException:
                self._unresolved.add(commit_id)  # interrupted: should the entry turn up, it is no rival's
                raise
            if entry is not None:
                # guard: an entry with our commit id is ours
                # guard: an entry with another commit id is not ours
                return (None if entry.commit_id == commit_id else entry), attempt
            # guard: at the deadline an open outcome is unknown
            if self._clock.monotonic() >= deadline:
                raise self._unknown(version, commit_id, None)
            # guard: an entry that is not there yet may still come
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

    def _is_older(self, moment: tuple[float, int], seconds: float) -> bool:
        monotonic, wall_us = moment
        # Both clocks: the monotonic one stands still while a laptop sleeps, the wall clock can be set back.
        return max(self._clock.monotonic() - monotonic, (self._clock.time_us() - wall_us) / 1e6) > seconds

    def _whole(self) -> TableState:
        """The state, if no entry is missing or damaged; what was may have been restored meanwhile."""
        state = self.state if self.state.damage is None else self._reload()
        # guard: nobody writes to a log with a hole
        if state.damage is not None:
            raise state.damage
        return state

    def _check_last(self) -> None:
        """Makes sure that what was the last entry at the last look is still there, and so this table (4 and 5).

        Not the last one now: in a folder that was removed since, there would be what this handle wrote there itself.
        """
        state, looked = self.state, self._now()
        version, digest = self._anchor
        entry = self.read(version)
        if entry is None or entry.digest != digest:
            self._reload()
            return
        self._anchor = state.version, state.digest
        self._confirmed = self._looked = looked

    def _know(self, state: TableState, looked: tuple[float, int]) -> None:
        """Takes what was read of the whole log for true."""
        self._state = state
        self._anchor = state.version, state.digest
        self._confirmed = self._looked = self._listed = looked

    def _look_again(self) -> None:
        """Makes sure, once a minute, that the log really ends where it seems to (invariants 4 and 6)."""
        if not self._is_older(self._listed, FRESH_S):
            return
        self._listed = (float("-inf"), 0)  # until the end is seen, whatever the clock says: somebody may set it
        while True:
            looked = self._now()
            self._check_last()
            version = self.state.version
            if self.check_end(version + 1):
                self._listed = looked
                return
            for entry in self.read_from(version + 1):
                self._absorb(entry)
            if self.state.version == version:
                self._reload()  # cleaned up: the checkpoint knows

    def _is_past(self, version: int, adds: Sequence[str], commit_id: str, *, removes: Sequence[str] = ()) -> bool:
        """Whether an entry that we just wrote, after a long sleep, took a name that clean-up had freed.

        It stays there, because writers remove nothing: ``earliest`` passes over it. Without files there is nothing to
        tell it by. Then the answer is yes, and the caller writes it again: txns alone do no harm twice.

        Raises:
            CommitUnknown: the store failed us before we knew.
        """
        try:
            before = self.read(version - 1)
            if before is not None and before.digest == self.state.digest:
                return False
            checkpoint = self.checkpoint_version()
            known = self.load(with_files=True)
        except (StoreError, UsageError) as error:
            raise self._unknown(version, commit_id, error) from error
        if known.metadata.id != self.state.metadata.id:
            raise self._another(known.version)
        if checkpoint is None or checkpoint < version:
            return False  # clean-up never reached this far
        if any(path in known.tombstones for path in removes):
            return False
        return not any(path in known.files or path in known.tombstones for path in adds)

    def _reload(self) -> TableState:
        """Reads the state anew; the table must still be the one that this handle was opened on.

        Raises:
            TopicDeleted: it is gone, or another one has its place.
            TopicChanged: its columns were changed and not only added to, or it has another history.
            LogIncomplete: what this handle has seen of its log is not there any more.
        """
        before, looked = self.state, self._now()
        try:
            state = self.load(strict=False)
        except TopicNotFound:
            raise TopicDeleted(f"{self.uri} was removed: this one held the old topic. Open it again.") from None
        if state.metadata.id != before.metadata.id:
            raise self._another(state.version)
        check_supported(state.protocol, state.metadata, table=self.uri)
        if state.metadata.deleted:
            raise TopicDeleted(f"{self.uri} was deleted.")
        if _changed(before.metadata, state.metadata):
            raise self._other_columns(state.version)
        if state.version < before.version:
            raise LogIncomplete(
                f"The log of {self.uri} ends at entry {state.version}, but entry {before.version} was there before: it "
                "is lost, or not yet restored. Restore it, or open the topic again to go on without it.",
                version=before.version,
            )
        if state.version == before.version and before.digest not in (None, state.digest):
            raise TopicChanged(
                f"Entry {state.version} of the log of {self.uri} is not the one that was there before. Open it again."
            )
        self._know(state, looked)
        return state

    @property
    def outdated(self) -> bool:
        """Whether this handle has met an error that only opening the table again can mend."""
        return self._is_outdated or (self._state is not None and self._state.damage is not None)

    def _another(self, version: int) -> TopicDeleted:
        self._is_outdated = True
        return TopicDeleted(
            f"{self.uri} was deleted and created again (entry {version}): this one held the old topic. Open it again."
        )

    def _other_columns(self, version: int) -> TopicChanged:
        self._is_outdated = True
        return TopicChanged(
            f"The columns of {self.uri} were changed (entry {version}): this one holds the old ones. Open it again."
        )

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
        if metadata.id != state.metadata.id or not self.meant(entry):
            raise self._another(entry.version)
        if metadata.deleted:
            raise TopicDeleted(f"{self.uri} was deleted (entry {entry.version}).")
        check_supported(protocol, metadata, table=self.uri)
        # guard: columns may only be added
        if _changed(state.metadata, metadata):
            raise self._other_columns(entry.version)
        self._turns.saw(entry)
        state.total = entry.total_after(state.total)
        state.version, state.metadata, state.protocol = entry.version, metadata, protocol
        state.timestamp_ms, state.digest = max(state.timestamp_ms, entry.timestamp_ms), entry.digest
        state.txns.update(entry.txns)
        self._confirmed = self._now()


def _changed(before: Metadata, now: Metadata) -> bool:
    """Return whether columns were changed other than by adding nullable ones, which writers need not know."""
    return before.schema_string != now.schema_string and not only_adds(before.schema_string, now.schema_string)


def side_by_side(function: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[_R]:
    """As ``map``, with the pool's threads; without them while the interpreter ends, when no thread takes anything."""
    try:
        return read_pool().map(carried(function), items)
    except RuntimeError:
        return map(function, items)


def read_pool() -> ThreadPoolExecutor:
    """Threads that wait for GETs; one pool a process. Tasks in it must not wait for other tasks in it."""
    return _pool(os.getpid())  # keyed by pid: threads do not survive a fork


@lru_cache(maxsize=1)
def _pool(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_WINDOW, thread_name_prefix="brokerless-read")


def shared(log: DeltaLog) -> DeltaLog:
    """The handle that this process has on the very same table, or this one: threads of one handle share entries."""
    state = log.state
    key = os.getpid(), id(log.store), id(log._clock), log.table, state.metadata.id, state.metadata.schema_string
    with _shared_lock:
        known = _shared.get(key)
        if known is None or known.outdated:
            _shared[key] = known = log
    if known is not log and not known.catch_up(log):
        with _shared_lock:
            _shared[key] = known = log
    return known


_shared: Final[WeakValueDictionary[tuple[int, int, int, str, str, str], DeltaLog]] = WeakValueDictionary()
_shared_lock: Final = threading.Lock()
