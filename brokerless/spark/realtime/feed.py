"""The rows of new commits for a real-time pipeline, in the order of each log; objects are loaded ahead."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from brokerless.errors import BrokerlessError, StoreError
from brokerless.log.log import read_pool
from brokerless.spark.failures import HOLD_S, unreadable
from brokerless.spark.inputs import WAIT_S, Input
from brokerless.spark.messages import load_object, with_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from arro3.core import Table

    from brokerless.schema import Column
    from brokerless.spark.inputs import Inputs, Pending
    from brokerless.spark.progress import Position
    from brokerless.store import Store

IDLE_S: Final = 1.0
"""How long nothing else must have come before what an input cannot go on with ends the run."""

AHEAD_BYTES: Final = 16 * 2**20
"""How many bytes of objects are fetched ahead of their turn, soft by one object."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one object of a commit, with the columns of ``METADATA``; none where a commit has no messages."""

    table: str
    version: int
    rows: pa.Table | None
    last: bool


@dataclass(slots=True)
class _Fetch:
    """An object that is being loaded."""

    table: str
    version: int
    index: int
    rows: int
    size: int
    first: bool
    last: bool
    loaded: Future[Table | StoreError] | None


class Feed:
    """The rows of all inputs, which take turns. One thread looks for commits (``look``), another reads rows (``next``).

    Args:
        store: the store with the topics.
        inputs: the opened inputs.
        columns: the columns of all topics, without those of ``METADATA``.
        skipped: objects to skip if they cannot be read: ``table@version:index``.
        committed: returns the position in the output's log.
    """

    def __init__(
        self,
        store: Store,
        inputs: Inputs,
        columns: Sequence[Column],
        *,
        skipped: frozenset[str],
        committed: Callable[[], Position],
    ) -> None:
        self._inputs = inputs
        self._skipped = skipped
        self._committed = committed
        self._load = partial(load_object, store, list(columns))
        self._held: dict[str, tuple[BrokerlessError, float]] = {}  # objects that cannot be read, and since when
        self._last_piece = time.monotonic()
        self._taken = 0
        self._at = dict(inputs.at)
        self._news = threading.Condition()
        self._fetching: deque[_Fetch] = deque()
        self._fetching_bytes = 0
        self._files = self._in_turn()
        self._pool = ThreadPoolExecutor(min(len(inputs.tables), 16), thread_name_prefix="brokerless-look")

    # In the watching thread

    def look(self) -> float:
        """Look for new commits in the inputs that are due, and return the seconds until the next one is due."""
        sources = self._inputs.tables.values()
        due = [source for source in sources if not source.due_in_s()]
        look = partial(Input.look, prompt=True)
        for _ in map(look, due) if len(due) == 1 else self._pool.map(look, due):
            pass
        if due:
            self.wake()
        for source in sources:
            source.ask_why_nothing_comes()
        return min(source.due_in_s() for source in sources)

    # In the feeding thread

    def next(self, max_wait_s: float) -> Piece | None:
        """Return the next piece; None if nothing came in time.

        Raises:
            BrokerlessError: an input cannot be read; the pieces of the others come first, for up to a minute.
        """
        deadline = time.monotonic() + max_wait_s
        while True:
            self._raise_held(idle=False)
            self._fetch_ahead()
            while self._fetching:
                if piece := self._arrived(self._fetching.popleft()):
                    self._last_piece = time.monotonic()
                    return piece
                self._fetch_ahead()
            self._raise_held(idle=True)
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            with self._news:
                if not self._has_news():
                    self._news.wait(min(left, WAIT_S))

    def wake(self) -> None:
        """Let ``next`` look again, because the output's position has moved."""
        with self._news:
            self._news.notify_all()

    def waiting(self) -> int:
        """Return the number of known messages that ``next`` has not returned."""
        return sum(source.rows for source in self._inputs.tables.values()) - self._taken

    def is_over(self) -> bool:
        """Return whether a run that has an end has committed everything up to it."""
        until, committed = self._inputs.until, self._committed()
        return until is not None and all(committed[table] >= version for table, version in until.items())

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _has_news(self) -> bool:
        return any(
            table not in self._held and source.has(self._end(table)) for table, source in self._inputs.tables.items()
        )

    def _end(self, table: str) -> int | None:
        """Return the last version of a table that may be read now."""
        ahead = self._inputs.ahead
        if ahead:
            committed = self._committed()
            if any(committed[name] < version for name, version in ahead.items()):
                return ahead.get(table, -1)
            self._inputs.ahead = {}
        return None if self._inputs.until is None else self._inputs.until[table]

    def _in_turn(self) -> Iterator[_Fetch | None]:
        """Yield the objects of commits, tables in turn; None when there is nothing."""
        while True:
            idle = True
            for table, source in self._inputs.tables.items():
                if table not in self._held and (commit := source.next_commit(self._end(table))):
                    idle = False
                    self._at[table] = commit.version
                    yield from self._of_commit(table, commit)
            if idle:
                yield None

    def _of_commit(self, table: str, commit: Pending) -> Iterator[_Fetch]:
        if not commit.files:
            yield _Fetch(table, commit.version, 0, 0, 0, first=True, last=True, loaded=None)
        index = 0
        for number, add in enumerate(commit.files):
            last = number == len(commit.files) - 1
            rows = add.rows or 0
            loaded = read_pool().submit(self._load, f"{table}/{add.path}")
            yield _Fetch(table, commit.version, index, rows, add.size, not number, last, loaded)
            index += rows

    def _fetch_ahead(self) -> None:
        while not self._fetching or self._fetching_bytes < AHEAD_BYTES:
            fetch = next(self._files)
            if fetch is None:
                return
            self._fetching.append(fetch)
            self._fetching_bytes += fetch.size

    def _arrived(self, fetch: _Fetch) -> Piece | None:
        """Return the piece of an object; None if it follows one that cannot be read."""
        loaded = fetch.loaded.result() if fetch.loaded else None
        self._fetching_bytes -= fetch.size
        if fetch.table in self._held:
            return None
        if error := self._damage(fetch):
            if not fetch.first:
                raise error  # the beginning of its commit is on its way
            self._held[fetch.table] = error, time.monotonic()
            return None
        self._taken += fetch.rows
        if loaded is None or isinstance(loaded, StoreError) or not loaded.num_rows:
            return Piece(fetch.table, fetch.version, None, fetch.last)
        rows = with_metadata(pa.table(loaded), fetch.table, fetch.version, fetch.index)
        return Piece(fetch.table, fetch.version, rows, fetch.last)

    def _damage(self, fetch: _Fetch) -> StoreError | None:
        """Return the error of an object, or of a later one of its commit that is being loaded."""
        of_commit = takewhile(
            lambda other: (other.table, other.version) == (fetch.table, fetch.version), self._fetching
        )
        for each in (fetch, *(of_commit if fetch.first else ())):
            loaded = each.loaded.result() if each.loaded else None
            if isinstance(loaded, StoreError) and f"{each.table}@{each.version}:{each.index}" not in self._skipped:
                error = StoreError(unreadable(each.table, each.version, each.index, loaded))
                error.__cause__ = loaded
                return error
        return None

    def _raise_held(self, *, idle: bool) -> None:
        """Raise the error of an input when nothing else comes, or after a minute."""
        until, now = self._inputs.until, time.monotonic()
        held = list(self._held.values())
        for table, source in self._inputs.tables.items():
            if source.error is not None and not (until is not None and self._at[table] >= until[table]):
                held.append((source.error, source.error_at))
        for error, since in held:
            if now - since > HOLD_S or (idle and now - max(since, self._last_piece) > IDLE_S):
                raise error
