"""A tail follows one log, entry by entry, for consumers and the Spark source.

It waits for the next entry by asking for it (one GET, a 404 while it is not there): every 10 ms when the rhythm of the
last entries says that it is due, less often when idle.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import BrokerlessError, LogIncomplete, TopicDeleted, TopicRewritten
from brokerless.log.entries import Entry, check_supported
from brokerless.log.log import FRESH_S, DeltaLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from brokerless.log.entries import Add

POLL_S: Final = 0.01
FLOWING_S: Final = 1.0
"""For so long after the last entry, polls stay ``POLL_S`` apart; then the wait doubles up to its ceiling."""

RHYTHM: Final = 8
EARLY: Final = 0.8
"""After an entry, the next is not asked for until this share of the shortest of the last ``RHYTHM`` gaps has passed."""

RETENTION_CHECK_S: Final = 5.0
"""How often an idle reader makes sure that it waits for the future and not for what clean-up has removed."""

FRESH_MS: Final = 100
"""An entry younger than this is taken for the head of the log. A wrong guess costs one more round, no message."""

TICK_S: Final = 0.001
REMEMBERED_PATHS: Final = 10_000


class Tail:
    """Follows one partition's log, entry by entry. Shared by consumers and the Spark source.

    Args:
        log: the partition's log; used for reading only.
        version: the first entry to deliver.
        idle_max_s: the longest time between two looks (``due_in_s``).
        accept_rewrites: go on where another engine deleted or updated rows; rows that it left come once more.
        poll_s: the time from one look to the next while entries come.
        entries: what the opening of the log has read already (``DeltaLog.open``). For a minute (``FRESH_S``) these are
            delivered as they were read; once a second one GET makes sure that their table is still there.
    """

    def __init__(
        self,
        log: DeltaLog,
        version: int,
        *,
        idle_max_s: float,
        clock: Clock = SYSTEM,
        accept_rewrites: bool = False,
        poll_s: float = POLL_S,
        entries: Sequence[Entry] = (),
    ) -> None:
        self.log = log
        self.version = version
        self._poll_s = poll_s
        self._clock = clock
        self._id = log.state.metadata.id
        self._accept_rewrites = accept_rewrites
        self._check_at = float("-inf")
        self._hole: str | None = None  # why the next entry is missing, once that is known
        # Some writers add a file twice after a lost answer; a tailer would deliver it twice.
        self._delivered: OrderedDict[str, None] = OrderedDict()
        self._marked = 0  # how many paths were ever put into it
        self._idle_max_s = max(idle_max_s, poll_s)
        self._gaps_s: deque[float] = deque(maxlen=RHYTHM)
        self._last_ms: int | None = None
        self._last_seen = self._look_at = clock.monotonic()
        self._absent_at = float("-inf")  # when the next entry was last looked for in vain
        self._wait_s = poll_s
        self._opened = {entry.version: entry for entry in entries if entry.version >= version}
        self._opened_at = clock.monotonic()

    def due_in_s(self) -> float:
        """How long it is no use to look again; 0 if it is now."""
        left = self._look_at - self._clock.monotonic()
        return left if left > TICK_S else 0.0

    def take(self, limit: int) -> list[Entry]:
        """The next entries that are there now, at most ``limit``, each delivered once.

        What is before an entry with which it cannot go on comes first; the next call raises.

        Raises:
            OffsetOutOfRange: clean-up has removed the next one.
            LogIncomplete: the next one is missing although later ones are there.
            TopicDeleted: the topic was deleted, or deleted and created again.
            TopicRewritten: another engine deleted or updated rows.
            UnsupportedTable: the table got features that the log does not read.
            StoreError: the store failed, or the next one is damaged.
        """
        entries: list[Entry] = []
        began = self._clock.monotonic()
        try:
            for entry in islice(self._entries(), limit):
                self._check(entry)
                entries.append(entry)
        except BrokerlessError:
            if not entries:
                raise
        now = self._clock.monotonic()
        if entries:
            self.version = entries[-1].version + 1
            # What is there now proves that clean-up has not overtaken us.
            self._check_at = now + RETENTION_CHECK_S
            self._hole = None
            self._pace(entries, now)
            return entries
        self._check_waiting(now)
        self._absent_at = began
        if now - self._last_seen > FLOWING_S:
            # Kept from look to look: an idle reader that polls in short turns must become slow, too.
            self._wait_s = min(self._wait_s * 2, self._idle_max_s)
        self._look_at = now + self._wait_s
        return entries

    def _entries(self) -> Iterator[Entry]:
        """The entries from the position on: first those that the opening has read, then those in the log."""
        if self._opened and (self.version not in self._opened or self._clock.monotonic() - self._opened_at > FRESH_S):
            self._opened = {}
        if self._opened:
            try:
                self.log.check_recent()
            except BrokerlessError:
                self._opened = {}  # what is wrong will be met where it is
        version = self.version
        while (entry := self._opened.get(version)) is not None:
            yield entry
            version += 1
        yield from self.log.read_from(version)

    def _check_waiting(self, now: float) -> None:
        """Makes sure that what is absent is still to come."""
        damage = self.log.state.damage
        if isinstance(damage, LogIncomplete) and damage.version == self.version:
            self._hole = str(damage)
        # The log looks for holes only once a minute: one that was found is one until its entry is there.
        if self._hole is None and now >= self._check_at:
            try:
                # guard: a reader that waits asks whether its entry was removed
                self.log.check_retained(self.version)
            except LogIncomplete as error:
                self._hole = str(error)
            self._check_at = now + RETENTION_CHECK_S
        if self._hole is not None:
            raise LogIncomplete(self._hole, version=self.version)

    def _pace(self, entries: Sequence[Entry], now: float) -> None:
        """Decides when to look again, after entries came."""
        # By the writers' clocks, as far as what was seen here does not contradict them: one may be a day ahead.
        seen_s = now - self._last_seen + 2 * self._poll_s
        for entry in entries:
            if self._last_ms is not None:
                self._gaps_s.append(min((entry.timestamp_ms - self._last_ms) / 1000, seen_s))
            self._last_ms = entry.timestamp_ms
        self._last_seen, self._wait_s = now, self._poll_s
        self._look_at = now
        if len(self._gaps_s) == RHYTHM and self._last_ms is not None:
            age_s = min(max(self._clock.time_us() / 1e6 - self._last_ms / 1000, 0.0), now - self._absent_at)
            self._look_at += min(max(EARLY * min(self._gaps_s) - age_s, 0.0), self._idle_max_s)

    def new_files(self, entry: Entry) -> list[Add]:
        """The entry's files with messages that were not delivered before."""
        fresh = [add for add in entry.messages if add.path not in self._delivered]
        for add in fresh:
            self._delivered[add.path] = None
        self._marked += len(fresh)
        while len(self._delivered) > REMEMBERED_PATHS:
            self._delivered.popitem(last=False)
        return fresh

    def mark(self) -> tuple[int, int]:
        """The place to give to ``rewind``."""
        return self.version, self._marked

    def rewind(self, mark: tuple[int, int]) -> None:
        """Takes back what was delivered since ``mark``, and only that: what was delivered before stays remembered."""
        self.version, marked = mark
        for _ in range(min(self._marked - marked, len(self._delivered))):
            self._delivered.popitem()
        self._marked = marked

    def is_fresh(self, entry: Entry) -> bool:
        """Whether an entry that was just taken was committed just now: it was not there before, or its time says so."""
        if (self._clock.monotonic() - self._absent_at) * 1000 < FRESH_MS:
            return True
        return abs(self._clock.time_us() // 1000 - entry.timestamp_ms) < FRESH_MS

    def seek(self, version: int) -> None:
        """Goes on at this entry."""
        self.version = version
        self._check_at = self._look_at = self._absent_at = float("-inf")
        self._hole = None
        self._opened = {}
        self._delivered.clear()

    def _check(self, entry: Entry) -> None:
        if entry.rewritten and not self._accept_rewrites:
            raise TopicRewritten(
                f"Entry {entry.version} of {self.log.uri} ({entry.operation or 'without a name'}, by another engine) "
                "deleted, updated or restored rows: it adds rows again that were delivered before, and nothing tells "
                f"which. Go on behind it with seek or --from {entry.version + 1}:0, without what it adds; or accept "
                "rewrites (accept_rewrites=True), and get the rows that it kept once more."
            )
        metadata = entry.metadata
        if metadata is None:
            # guard: a reader notices that its table was made again by hand
            if not self.log.meant(entry):
                raise TopicDeleted(f"{self.log.uri} was removed and made again (entry {entry.version}). Open it again.")
            return
        # guard: a reader notices that its topic was deleted
        if metadata.deleted or metadata.id != self._id:
            again = "" if metadata.deleted else " and created again"
            raise TopicDeleted(f"{self.log.uri} was deleted{again} (entry {entry.version}). Open it again.")
        check_supported(entry.protocol or self.log.state.protocol, metadata, table=self.log.uri)
