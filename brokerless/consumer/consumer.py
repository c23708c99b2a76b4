"""Read messages out of topics, with their offsets; in one module, because one class owns all positions.

A consumer is a position in each partition and nothing else: it writes nothing, and a second one disturbs nobody.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.consumer.partition import Batch, Message, PartitionReader, ReadEntry, batches_of, columns_of
from brokerless.deadlines import carried, patiently, requests_within
from brokerless.errors import (
    ConfigError,
    UsageError,
)
from brokerless.forks import is_copy, refuse_copy
from brokerless.groups.membership import HEARTBEAT_S, Membership
from brokerless.groups.state import Committed
from brokerless.groups.subscription import MAX_POLL_INTERVAL_S, Pulse, Subscription
from brokerless.log.entries import Entry
from brokerless.log.start import resolve_end, resolve_start
from brokerless.log.tail import TICK_S, Tail
from brokerless.offsets import Offset, Start, parse_start
from brokerless.topics import Topic, open_topic, store_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from brokerless.groups.assignment import Partition, Strategy
    from brokerless.settings import Settings
    from brokerless.store import Store

RAISE_AGAIN_S: Final = 10.0
"""How often a partition that cannot go on is an error while others bring messages."""

_TRY_AGAIN_S: Final = 1.0  # between two looks at such a partition, while others bring messages


class Consumer:
    """Reads one or several topics. After a fork, the child needs a consumer of its own.

    Args:
        topics: one or several, by name or as they were opened (``describe_topic``); all partitions of each are read.
        start: an ``Offset`` (applied to every partition), a time with a zone, or text: ``beginning`` or ``earliest``,
            ``latest``, ``12:3``, an ISO time with a UTC offset, a date, ``today``, ``yesterday``, ``1h``, ``30m``,
            ``7d`` (so long ago).
        until: end there, exclusively: at an offset of each partition, within its commit if need be; or before the first
            message whose commit is at or after a time, by the clocks of the writers. Times as for ``start``; the end
            must be there already (``latest``: where the partitions end now). Then polls return nothing, at once, and
            iteration ends.
        settings: where; read from the environment by default.
        partitions: only these partitions (of each topic).
        idle_poll_max_s: how far apart polls may get when nothing comes. Polling costs requests (see ``cost``).
        batch_bytes: about how many bytes of objects one poll fetches; soft by one commit.
        accept_rewrites: go on where another engine deleted or updated rows; rows that it left come once more.
        group: the name of a consumer group. Its members share the partitions, and go on where it has committed;
            ``start`` is for partitions of which it has committed nothing.
        auto_commit: whether a group commits, at each heartbeat, what was returned before the last poll.
        instance: makes this a static member of the group: one that comes back under the same name, within its
            session, gets the same partitions, and nobody else notices.
        strategy: how the group divides partitions: ``cooperative-sticky`` or ``range``.
        heartbeat_s: the time between two heartbeats to the group (one PUT and about five GETs each).
        session_s: a member without a heartbeat for so long is removed from the group; by default three heartbeats, for
            a static member a minute.
        max_poll_interval_s: so is one that does not poll for so long.
        store: instead of the one that the settings name.
        clock: time, randomness and sleeping.

    Raises:
        TopicNotFound, TopicChanged, ConfigError, OffsetOutOfRange: at once.

    Attributes:
        topics: what is read, as it was when the consumer was opened.
    """

    def __init__(
        self,
        topics: str | Topic | Sequence[str | Topic],
        *,
        start: Start = "latest",
        until: Start | None = None,
        settings: Settings | None = None,
        partitions: Sequence[int] | None = None,
        idle_poll_max_s: float = 0.25,
        batch_bytes: int = 64 * 2**20,
        accept_rewrites: bool = False,
        group: str | None = None,
        auto_commit: bool = True,
        instance: str | None = None,
        strategy: Strategy = "cooperative-sticky",
        heartbeat_s: float = HEARTBEAT_S,
        session_s: float | None = None,
        max_poll_interval_s: float = MAX_POLL_INTERVAL_S,
        store: Store | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._opened_in = os.getpid()
        if group is not None and partitions is not None:
            raise ConfigError("The group divides the partitions; give a consumer either group or partitions.")
        if group is not None and until is not None:
            raise ConfigError("A group goes on where it has committed, and has no end; leave out group or until.")
        if group is None and instance is not None:
            raise ConfigError("Only a member of a group has an instance; give the group, too.")
        given = [topics] if isinstance(topics, str | Topic) else topics
        wanted = {topic if isinstance(topic, str) else topic.name: topic for topic in given}
        if not wanted:
            raise ConfigError("A consumer needs at least one topic and one partition.")
        stores = [store_of(topic, settings, store) for topic in wanted.values()]
        if any(other is not stores[0] for other in stores):
            raise ConfigError("The topics of one consumer must be in one store; open a consumer for each of them.")
        self._store = stores[0]
        self._clock = clock
        self._batch_bytes = batch_bytes
        self._start = parse_start(start, clock) if isinstance(start, str) else start
        self._idle_poll_max_s = idle_poll_max_s
        self._accept_rewrites = accept_rewrites
        self._parts: list[PartitionReader] = []
        opened: list[Topic] = []
        for name, topic in wanted.items():
            # Whoever begins at the head has no use for what is read on the way to it.
            entries: dict[int, list[Entry]] | None = None if self._start == "latest" or group is not None else {}
            about = open_topic(self._store, topic, clock=clock, entries=entries)
            opened.append(about)
            for number in range(about.partitions) if partitions is None else partitions:
                if not 0 <= number < about.partitions:
                    raise ConfigError(f"Topic {name!r} has the partitions 0 to {about.partitions - 1}, not {number}.")
                if group is None:
                    log = about.logs[number]  # opened with the others: the number of partitions may change meanwhile
                    offset = resolve_start(log, self._start, clock)
                    end = None if until is None else resolve_end(log, until, clock)
                    self._parts.append(self._part(about, number, offset, (entries or {}).get(number, ()), end))
        self.topics = tuple(opened)
        if not self._parts and group is None:
            raise ConfigError("A consumer needs at least one topic and one partition.")
        most = sum(about.partitions for about in opened) if partitions is None else len(self._parts)
        # Not the pool of the reads: a task there must not wait for another one.
        self._pool = ThreadPoolExecutor(min(most, 16) or 1, thread_name_prefix="brokerless-poll")
        self._turn_s = max(1.0, idle_poll_max_s)
        self._undelivered: deque[Batch] = deque()  # fetched by iteration, and not yet given to the caller
        self._polling = threading.Lock()
        self._stopped = threading.Event()
        self._done: dict[Partition, Committed] = {}  # where the caller surely is
        self._in_hand = False  # whether a batch that iteration gave out is being worked on
        self._group: Subscription | None = None
        if group is not None:
            member = Membership(
                self._store,
                group,
                {about.name: about.partitions for about in opened},
                strategy=strategy,
                instance=instance,
                heartbeat_s=heartbeat_s,
                session_s=session_s,
                clock=clock,
            )
            pulse = Pulse(member, max_poll_interval_s, clock)
            self._group = Subscription(
                member,
                auto_commit=auto_commit,
                positions=self._positions,
                open_partition=self._open_partition,
                drop=self._drop,
                pulse=pulse,
            )
            self._end_heartbeats = pulse.start(self)

    def _part(
        self, about: Topic, number: int, offset: Offset, entries: Sequence[Entry] = (), end: Offset | None = None
    ) -> PartitionReader:
        log = about.logs[number]
        tail = Tail(
            log,
            offset.version,
            idle_max_s=self._idle_poll_max_s,
            clock=self._clock,
            accept_rewrites=self._accept_rewrites,
            entries=entries,
        )
        return PartitionReader(about.name, number, tail, offset.index, columns_of(log.state.metadata), end)

    def _open_partition(self, partition: Partition, committed: Committed | None) -> Committed:
        topic, number = partition
        about = next(one for one in self.topics if one.name == topic)
        log = about.logs[number]
        if committed is None:
            offset = resolve_start(log, self._start, self._clock)
        elif committed.table_id != log.table_id:
            offset = resolve_start(log, "beginning")  # of a topic that was created again: nothing of it was read
        else:
            offset = committed.offset
        self._parts.append(self._part(about, number, offset))
        return Committed(offset, 0, log.table_id)

    def _drop(self, partitions: Collection[Partition]) -> None:
        self._parts = [part for part in self._parts if (part.topic, part.number) not in partitions]
        self._undelivered = deque(b for b in self._undelivered if (b.topic, b.partition) not in partitions)
        self._done = {key: one for key, one in self._done.items() if key not in partitions}

    def _positions(self) -> dict[Partition, Committed]:
        ids = self.table_ids()
        return {key: Committed(offset, 0, ids[key]) for key, offset in self.position().items()}

    def commit(self, offsets: Mapping[tuple[str, int], Offset] | None = None) -> None:
        """Commit for the group where it goes on: at the position, or at these offsets, by topic and partition.

        Raises:
            MemberFenced: the member does not own one of the partitions any more; nothing was committed.
            StoreUnavailable: the store gave no clear answer; the offsets may be committed.
            UsageError: this consumer is in no group.
        """
        if self._group is None:
            raise UsageError("Only a consumer of a group commits; open it with group=... .")
        refuse_copy(self._opened_in, "consumer")
        if offsets is None:
            committed = self._positions()
        else:
            ids = self.table_ids()
            committed = {key: Committed(offset, 0, ids.get(key, "")) for key, offset in offsets.items()}
        self._group.membership.commit(committed)

    def committed(self) -> dict[tuple[str, int], Offset]:
        """Return what the group has committed, by topic and partition, of the partitions that this member reads.

        Raises:
            UsageError: this consumer is in no group.
        """
        if self._group is None:
            raise UsageError("Only a consumer of a group has committed offsets; open it with group=... .")
        return {key: one.offset for key, one in self._group.membership.committed().items()}

    def poll(self, max_wait_s: float = 1.0) -> list[Batch]:
        """The next messages: one batch a commit, in order within each partition, partitions taking turns.

        Returns an empty list if none came within ``max_wait_s``; with 0 it looks once, for as long as the store's
        client retries. A store that does not answer is a ``StoreUnavailable`` at most one second after ``max_wait_s``;
        only messages that were found are loaded to the end. The position moves past what is returned, and stays where
        it is if an error or an interrupt ends the call.

        An error holds back only what is behind it in its own partition. What is before it is returned first; the next
        poll that meets the error raises it, and the position stays there. Further polls return what the other
        partitions bring. They raise it again when they would return nothing otherwise, and each 10 s.

        Raises:
            OffsetOutOfRange: retention overtook a position; ``seek`` to go on.
            TopicDeleted: a topic was deleted, or deleted and created again.
            TopicRewritten: another engine deleted or updated rows; see ``accept_rewrites``.
            LogIncomplete: an entry is missing although later ones are there.
            StoreError: the store failed, or an entry or an object is missing or damaged; the text has its offset.
            MemberFenced: another consumer has joined the group as this static member.
            UsageError: this process was forked from the one that opened the consumer.
        """
        refuse_copy(self._opened_in, "consumer")
        try:
            with requests_within(max_wait_s if max_wait_s > 0 else None), self._polling:
                self._note_done()
                return self._poll(max_wait_s)
        finally:
            if self._stopped.is_set() and not is_copy(self._opened_in):
                self._close(self._done)  # what this poll returns is not done yet

    def _note_done(self) -> None:
        """Note that the caller is done with all that it was given."""
        self._in_hand = False
        if self._group is not None:
            self._done = self._positions()
            self._group.done(self._done)

    def _poll(self, max_wait_s: float) -> list[Batch]:
        if self._undelivered and self._group is None:
            return self._next_undelivered()
        deadline = self._clock.monotonic() + max_wait_s
        while not self._stopped.is_set():
            if self._group is not None:
                self._group.update()
                if self._undelivered:
                    if self._may_give_out():
                        return self._next_undelivered()
                    continue
            now = self._clock.monotonic()
            open_parts = [part for part in self._parts if not part.at_end]
            if not open_parts and self._parts:
                break
            due = [p for p in open_parts if now >= p.next_try and (max_wait_s <= 0 or not p.tail.due_in_s())]
            batches = self._look(due)
            if not self._may_give_out(batches):
                continue
            self._raise_if_due(due, batches)
            if batches:
                return batches
            left = deadline - self._clock.monotonic()
            if left <= 0 or (open_parts and all(part.error for part in open_parts)):
                # Nothing else comes: do not pass over in silence what cannot go on.
                rest = [part for part in self._parts if part.error and part not in due]
                batches = self._look(rest)
                if not self._may_give_out(batches):
                    continue
                self._raise_if_due(self._parts, batches, again=not batches)
                if batches or left <= 0:
                    return batches
                continue
            waits = [left, *(part.due_in_s(self._clock) for part in open_parts)]
            if self._group is not None:
                waits.append(self._group.due_in_s())
            self._clock.sleep(max(TICK_S, min(waits)))
        return []

    def _next_undelivered(self) -> list[Batch]:
        batches = list(self._undelivered)
        self._undelivered.clear()
        return batches

    def _may_give_out(self, batches: Sequence[Batch] = ()) -> bool:
        """Whether messages may be given out; if not, the next round gives the partitions up and joins again."""
        if self._group is None:
            return True
        count = len(self._undelivered)
        self._undelivered.extend(batches)  # an error leaves them for the next poll
        if not self._group.may_give_out():
            return False
        for _ in range(len(self._undelivered) - count):
            self._undelivered.pop()
        return True

    def _raise_if_due(self, parts: Sequence[PartitionReader], batches: Sequence[Batch], *, again: bool = False) -> None:
        """Raises the error of a partition that has just met it, if it is time; the batches are for the next poll."""
        now = self._clock.monotonic()
        moved = {(batch.topic, batch.partition) for batch in batches}
        for part in parts:
            if part.error is None or (part.topic, part.number) in moved:
                part.next_raise, part.next_try = None, float("-inf")
            if part.error is None:
                continue
            if batches and part.next_raise is None:
                part.next_raise = now  # a new one: first what came with it
            elif again or part.next_raise is None or now >= part.next_raise:
                part.next_raise, part.next_try = now + RAISE_AGAIN_S, now + _TRY_AGAIN_S
                self._undelivered.extend(batches)
                raise part.error

    def __iter__(self) -> Iterator[Batch]:
        """Batches for ever, until ``close`` (from another thread or a signal handler) or the end (``until``).

        The position moves past a batch when it is given out, so that whoever leaves the loop can go on after it.
        """
        while not self._stopped.is_set() and not self.finished:
            with patiently():
                batches = self.poll(self._turn_s)
            self._undelivered.extend(batches)
            while self._undelivered and not self._stopped.is_set():
                self._note_done()
                batch, self._in_hand = self._undelivered.popleft(), True
                yield batch
                self._in_hand = False  # not if the loop was left: by an error as by ``break``

    @property
    def finished(self) -> bool:
        """Whether all messages before the end (``until``) were returned."""
        return bool(self._parts) and not self._undelivered and all(part.at_end for part in self._parts)

    @property
    def settled(self) -> bool:
        """Whether the consumer reads all partitions that its group gives it; without a group always."""
        return self._group is None or self._group.settled

    def messages(self) -> Iterator[Message]:
        """Messages one by one, for ever, until ``close``; the position moves by whole batches, as in iteration."""
        for batch in self:
            yield from batch

    def seek(self, start: Start, *, topic: str | None = None, partition: int | None = None) -> None:
        """Moves the position, of all partitions or of some.

        Raises:
            OffsetOutOfRange: an offset that is beyond the log's end, or that retention has removed.
            ConfigError: this consumer reads no such partition.
        """
        refuse_copy(self._opened_in, "consumer")
        sought = [p for p in self._parts if topic in (None, p.topic) and partition in (None, p.number)]
        if not sought:
            raise ConfigError(
                f"This consumer does not read partition {partition} of topic {topic!r}, so it cannot seek there."
            )
        for part in sought:
            offset = resolve_start(part.tail.log, start, self._clock)
            part.tail.seek(offset.version)
            part.skip = offset.index
            part.error, part.next_raise, part.next_try = None, None, float("-inf")
            left = [b for b in self._undelivered if (b.topic, b.partition) != (part.topic, part.number)]
            self._undelivered = deque(left)

    def position(self) -> dict[tuple[str, int], Offset]:
        """The next offset to read, by topic and partition."""
        found = {(part.topic, part.number): Offset(part.tail.version, part.skip) for part in self._parts}
        for batch in reversed(self._undelivered):
            found[batch.topic, batch.partition] = batch.first
        return found

    def table_ids(self) -> dict[tuple[str, int], str]:
        """The id of each partition's table: a position means something in that one only."""
        return {(part.topic, part.number): part.tail.log.table_id for part in self._parts}

    def check_ends(self) -> None:
        """Returns if no partition waits for an entry behind which there are others; one LIST a partition.

        Raises:
            LogIncomplete: one does, so what it waits for is not yet to come but missing.
        """
        for part in self._parts:
            part.tail.log.check_end(part.tail.version)

    def close(self) -> None:
        """Ends iteration and a poll that waits; what was not given out stays before the position."""
        if is_copy(self._opened_in):
            return
        self._close(self._done if self._in_hand else None)

    def _close(self, done: Mapping[Partition, Committed] | None = None) -> None:
        """Close; a group with automatic commits goes on at what is done, or else at the position."""
        self._stopped.set()
        # A poll in another thread, or under this signal handler, still needs its threads; it closes in its turn.
        if self._polling.acquire(blocking=False):
            try:
                if self._group is not None:
                    self._end_heartbeats()
                    self._group.leave(self._positions() if done is None else done)
                self._pool.shutdown(wait=False)
            finally:
                self._polling.release()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *error: object) -> None:
        if not is_copy(self._opened_in):
            # What failed is given to the group once more; after ``break`` the last batch is done.
            self._close(None if error[0] is None else self._done)

    def _look(self, parts: Sequence[PartitionReader]) -> list[Batch]:
        for part in parts:
            part.error = None
        # Other writers add objects without rows; "nothing came" would be wrong, because the position moved.
        while parts:
            batches, found = self._look_once(parts)
            if batches or not found:
                return batches
            parts = [part for part in parts if part.error is None]
        return []

    def _look_once(self, parts: Sequence[PartitionReader]) -> tuple[list[Batch], bool]:
        """Return what one look finds, and whether there were objects, which may be without a row."""
        # Partitions take turns in being first, and each gives at most its share of the bytes.
        self._parts.append(self._parts.pop(0))
        starts = [(part.tail.mark(), part.skip) for part in parts]
        entries: list[ReadEntry] = []
        futures: list[Future[list[ReadEntry]]] = []
        try:
            share = max(1, self._batch_bytes // len(self._parts))
            if len(parts) == 1:
                entries = parts[0].next_entries(share)
            else:
                for part in parts:
                    futures.append(self._pool.submit(carried(part.next_entries), share))
                for future in futures:
                    entries.extend(future.result())
            with requests_within(None):  # what is on its way is not cut off
                batches = [batch for batch in batches_of(self._store, entries, self.commit) if batch.data.num_rows]
            return batches, any(entry.files for entry in entries)
        except BaseException:  # interrupts, too: what was read is in nobody's hands
            try:
                wait(futures)  # a straggler would move a position that was rewound
            finally:
                for part, (mark, skip) in zip(parts, starts, strict=True):
                    part.tail.rewind(mark)
                    part.skip = skip
            raise
