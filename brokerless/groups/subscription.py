"""What a consumer of a group does beside reading: join, take partitions over, hand them over, commit.

Partitions change hands inside of ``poll`` only: then the caller is done with what earlier polls returned. Between two
polls a thread sends the heartbeats, but not for longer than ``max_poll_interval_s``: who does not poll any more does
not keep partitions from the others.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Final

from brokerless.errors import BrokerlessError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from brokerless.clock import Clock
    from brokerless.groups.assignment import Partition
    from brokerless.groups.membership import Membership
    from brokerless.groups.state import Committed

MAX_POLL_INTERVAL_S: Final = 300.0
_RETRY_S: Final = 0.5
_LEAST_S: Final = 0.05


class Subscription:
    """The part of one consumer in its group.

    Args:
        membership: of the consumer.
        auto_commit: whether what earlier polls returned is committed by the heartbeats, and at a rebalance.
        positions: returns where the consumer is in each partition that it reads.
        open_partition: prepares reading of a partition from the committed offset, or from where the consumer begins
            without one; returns that position.
        drop: ends reading of these partitions.
        pulse: the heartbeats between two polls.
    """

    def __init__(
        self,
        membership: Membership,
        *,
        auto_commit: bool,
        positions: Callable[[], Mapping[Partition, Committed]],
        open_partition: Callable[[Partition, Committed | None], Committed],
        drop: Callable[[Collection[Partition]], None],
        pulse: Pulse,
    ) -> None:
        self.membership = membership
        self._auto_commit = auto_commit
        self._positions = positions
        self._open_partition = open_partition
        self._drop = drop
        self._pulse = pulse
        self._held: set[Partition] = set()

    def update(self) -> None:
        """Do what is due before a read: join, beat, hand partitions over, begin others.

        Raises:
            StoreError: the store failed.
            ConfigError: the group divides its partitions by another strategy.
            MemberFenced: another one has joined as this static member.
            OffsetOutOfRange: retention has removed what the group reads next.
        """
        member = self.membership
        self._pulse.polled()
        if member.lost:
            self._let_go(self._held)
            member.join()
        member.beat()
        if taken := member.taken():
            last = self._positions() if self._auto_commit else {}
            self._let_go(taken)
            member.release(taken, last)
        if offered := member.offered():
            begun: dict[Partition, Committed] = {}
            held: Collection[Partition] = ()
            try:
                for key, committed in offered.items():
                    begun[key] = self._open_partition(key, committed)
                    self._held.add(key)
                held = member.begin(begun)
            finally:
                self._let_go(begun.keys() - set(held))

    def _let_go(self, partitions: Collection[Partition]) -> None:
        gone = self._held & set(partitions)
        self._held -= gone
        self._drop(gone)

    @property
    def settled(self) -> bool:
        """Whether the consumer reads all partitions that the group gives it."""
        return not self.membership.lost and not self.membership.waiting

    def due_in_s(self) -> float:
        """Return how long ``update`` has nothing to do."""
        return self.membership.due_in_s()

    def may_give_out(self) -> bool:
        """Return whether what was read may be given to the caller: not if the member was removed meanwhile.

        Raises:
            StoreError: the store failed.
        """
        self.membership.check_session()
        return not self.membership.lost

    def done(self, positions: Mapping[Partition, Committed]) -> None:
        """Note how far the caller is; with automatic commits, the next heartbeat commits it."""
        if self._auto_commit:
            self.membership.stage(positions)

    def leave(self, positions: Mapping[Partition, Committed]) -> None:
        """Leave the group; with automatic commits, these positions are the last."""
        with contextlib.suppress(StoreError):  # the others find out when the session is over
            self.membership.leave(positions if self._auto_commit else {})


class Pulse:
    """The heartbeats of a member between two polls; it does not keep the consumer alive.

    Args:
        membership: whose heartbeats.
        max_poll_interval_s: after so long without a poll there are none.
        clock: time.
    """

    def __init__(self, membership: Membership, max_poll_interval_s: float, clock: Clock) -> None:
        self._membership = membership
        self._max_poll_interval_s = max_poll_interval_s
        self._clock = clock
        self.polled()

    def polled(self) -> None:
        """Note that the caller polls."""
        self._polled_at = self._clock.monotonic()

    def beat(self) -> float:
        """Send what is due; return when to call again, in seconds."""
        if self._clock.monotonic() - self._polled_at > self._max_poll_interval_s:
            return _RETRY_S
        try:
            self._membership.beat()
        except BrokerlessError:
            return _RETRY_S  # the next poll says what is wrong, if it stays so
        return self._membership.due_in_s()

    def start(self, owner: object) -> Callable[[], None]:
        """Beat in a thread, until the owner is collected or the returned function is called."""
        stop = threading.Event()

        def run() -> None:
            wait_s = 0.0
            while not stop.wait(max(_LEAST_S, wait_s)):
                wait_s = self.beat()

        weakref.finalize(owner, stop.set)
        threading.Thread(target=run, name="brokerless-heartbeat", daemon=True).start()
        return stop.set
