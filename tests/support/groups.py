"""Members of a group that read nothing but do all the rest, and a group without heartbeat threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brokerless.groups.membership import Membership
from brokerless.groups.state import Committed
from brokerless.offsets import Offset

if TYPE_CHECKING:
    from brokerless.groups.assignment import Partition
    from tests.support.fakes import FakeClock, FakeStore


class Reader:
    """A member with a position in each partition that it has."""

    def __init__(self, store: FakeStore, clock: FakeClock, *, partitions: int = 2, **more: Any) -> None:
        self.member = Membership(store, "g", {"t": partitions}, clock=clock, **more)
        self.at: dict[Partition, int] = {}

    def step(self) -> None:
        """What a poll does, without its reads; each one moves every position by one."""
        member = self.member
        if member.lost:
            self.at.clear()
            member.join()
        member.beat()
        if taken := member.taken():
            last = {key: committed(self.at.pop(key)) for key in taken if key in self.at}
            member.release(taken, last)
        if offered := member.offered():
            begun = {key: one or committed(0) for key, one in offered.items()}
            for key in member.begin(begun):
                self.at[key] = begun[key].offset.version
        for key in self.at:
            self.at[key] += 1

    def commit(self) -> None:
        """Commit all positions."""
        self.member.commit({key: committed(version) for key, version in self.at.items()})


def committed(version: int) -> Committed:
    """A position as a caller gives it."""
    return Committed(Offset(version), 0, "id")


def run(clock: FakeClock, seconds: float, *readers: Reader, every_s: float = 0.25) -> None:
    """Let the members live for so long; others stand still."""
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        for reader in readers:
            reader.step()
        clock.advance(every_s)
