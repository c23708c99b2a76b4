"""One member of a group: its heartbeat, what it owns, what it has committed, and what it does for the others.

Each ``heartbeat_s`` a member writes its own object (one PUT), and looks at those of the two members after it in the
group: one that has not changed for its session is dead, is fenced, and is removed. Each ``WATCH_S`` it reads the group
(one GET). Nothing lists anything. ``brokerless.groups.state`` has the invariants.

Time decides only when somebody is taken for dead. Whether two members work on one partition, and whose commit counts,
never depends on a clock.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from brokerless.errors import ConfigError, MemberFenced
from brokerless.groups.assignment import STRATEGIES, Partition, Strategy
from brokerless.groups.objects import GroupObjects
from brokerless.groups.state import LEFT, Committed, GroupState, Member, MemberState, Share, key_of, newest
from brokerless.schema import check_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from brokerless.clock import Clock
    from brokerless.store import Store, Tag

HEARTBEAT_S: Final = 3.0
SESSION_BEATS: Final = 3
"""A member is dead after so many heartbeats that did not come: the last of them is not waited for to its end."""

STATIC_SESSION_S: Final = 60.0
"""A static member may be away for so long (a restart, a deployment) until its partitions go to others."""

WATCH_S: Final = 1.0
_HANDOVER_S: Final = 0.1
"""How often a member that waits for a partition asks whether its earlier owner has let go."""

_WATCHED: Final = 2


class Membership:
    """A member of a group. Join it, then call ``beat`` often; for threads.

    Args:
        store: where the group is.
        group: its name.
        topics: what this member reads, with the number of partitions of each.
        strategy: how partitions are divided; the same for all members.
        instance: a name of its own makes the member static: it does not leave when it closes, and whoever joins under
            the same name next gets its partitions.
        heartbeat_s: the time between two heartbeats.
        session_s: without a heartbeat for so long the member is dead; by default three heartbeats, for a static member
            a minute.
        clock: time, randomness and sleeping.

    Raises:
        ConfigError: names, strategy or times that cannot work.

    Attributes:
        name: of the member; each incarnation has another one.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        topics: Mapping[str, int],
        *,
        strategy: Strategy = "cooperative-sticky",
        instance: str | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        session_s: float | None = None,
        clock: Clock,
    ) -> None:
        if strategy not in STRATEGIES:
            raise ConfigError(f"The strategy of a group must be one of {', '.join(STRATEGIES)}, not {strategy!r}.")
        if session_s is None:
            session_s = SESSION_BEATS * heartbeat_s if instance is None else max(STATIC_SESSION_S, 3 * heartbeat_s)
        if heartbeat_s < 0.05 or session_s < SESSION_BEATS * heartbeat_s:
            raise ConfigError(
                f"A heartbeat must be at least 0.05 s and a session at least {SESSION_BEATS} heartbeats; got "
                f"{heartbeat_s:g} s and {session_s:g} s."
            )
        self.group = group
        self.objects = GroupObjects(store, group, clock)
        self._topics = dict(topics)
        self._strategy: Strategy = strategy
        self._instance = check_name(instance) if instance is not None else None
        self._heartbeat_s = heartbeat_s
        self._session_s = session_s
        self._clock = clock
        self._lock = threading.RLock()
        self.name = ""
        self._forget()

    def _forget(self) -> None:
        self._state = MemberState("")
        self._tag: Tag | None = None
        self._view: GroupState | None = None
        self._held: dict[Partition, int] = {}  # the epochs of what this member reads
        self._offers: dict[Partition, int] = {}  # the epochs of what it was offered last
        self._claims: dict[Partition, Committed] = {}  # the last ones, which may be known to others after any error
        self._last: dict[Partition, Committed] = {}  # of what it has handed over, until that is written
        self._staged: dict[Partition, Committed] = {}  # positions that the next heartbeat commits
        self._seen: dict[str, tuple[Tag | None, float]] = {}  # each watched member's tag, and since when
        self._beat_at = self._view_at = self._handover_at = float("-inf")
        self._waiting = False  # for an earlier owner to let go
        self._why: str | None = "it has not joined"

    @property
    def generation(self) -> int:
        """The generation of the group that this member knows."""
        return self._view.generation if self._view is not None else 0

    @property
    def waiting(self) -> bool:
        """Whether the last look found partitions that the member owns and does not read yet."""
        return self._waiting

    @property
    def lost(self) -> bool:
        """Whether the member is not in the group, or was removed from it; ``join`` makes it a new one."""
        return self._why is not None

    def join(self) -> None:
        """Join the group, as a new member.

        Raises:
            ConfigError: the group divides its partitions by another strategy.
            MemberFenced: another one has joined as this static member.
            StoreError: the group could not be read or changed.
        """
        with self._lock:
            # Else the two would take turns for ever.
            if self._why == self._replaced:
                raise MemberFenced(
                    f"{self.name} is not in the group {self.group!r} any more, because {self._why}. Close it, or give "
                    "each consumer an instance of its own."
                )
            self._forget()
            self.name = f"{self._instance or 'member'}-{self._clock.uuid()[:8]}"
            self._state = MemberState(self.name)
            sent_at = self._clock.monotonic()
            self._tag = self.objects.write_member(self._state, None)
            about = Member(self._topics, int(self._session_s * 1000), self._instance)
            self._view = self.objects.change(lambda old: self._joined(old, about))
            self._why = None
            self._beat_at, self._view_at = sent_at, self._clock.monotonic()

    def _joined(self, old: GroupState | None, about: Member) -> GroupState | None:
        group = old or GroupState(self.group, self._strategy)
        if self.name in group.members:
            return None
        if group.strategy != self._strategy:
            if group.members:
                raise ConfigError(
                    f"The group {self.group!r} divides its partitions by {group.strategy!r}; this member must do so, "
                    "too, or all others must leave first."
                )
            group = replace(group, strategy=self._strategy)
        for name, other in group.members.items():
            if self._instance is not None and other.instance == self._instance:
                state = self._fence(name, self._replaced)
                states = {**self.objects.read_members(group), name: state}
                group = replace(group, members={**group.members, name: about})
                return group.without(name, states, successor=self.name)
        return group.joined(self.name, about, self.objects.read_members(group))

    @property
    def _replaced(self) -> str:
        return f"another member joined as {self._instance!r}"

    def _fence(self, name: str, why: str) -> MemberState | None:
        """End a member now, even if it is alive; return its final state."""
        while (found := self.objects.read_member(name)) is not None and found[0].fenced is None:
            if (final := self.objects.fence(name, found[1], found[0], why)) is not None:
                return final
        return found and found[0]

    def beat(self) -> None:
        """Do what is due: a heartbeat, a look at the group and at other members. Cheap to call when nothing is.

        Raises:
            StoreError: the store failed; the next call tries again.
        """
        with self._lock:
            now = self._clock.monotonic()
            if not self.lost and now - self._view_at >= min(WATCH_S, self._heartbeat_s):
                self._look()
            if not self.lost and now - self._beat_at >= self._heartbeat_s:
                self._write()
                self._watch()

    def due_in_s(self) -> float:
        """Return how long there is nothing to do."""
        if self._waiting:
            return max(0.0, self._handover_at + _HANDOVER_S - self._clock.monotonic())
        next_view = self._view_at + min(WATCH_S, self._heartbeat_s)
        return max(0.0, min(next_view, self._beat_at + self._heartbeat_s) - self._clock.monotonic())

    def check_session(self) -> None:
        """Make sure that the member was not taken for dead, if it has slept for long enough to be.

        Raises:
            StoreError: the store failed.
        """
        with self._lock:
            # guard: a member that slept asks whether it is alive before it gives out messages
            while not self.lost and self._clock.monotonic() - self._beat_at > self._session_s / 2:
                self._write()

    def _look(self) -> None:
        view = self.objects.read_group()
        self._view_at = self._clock.monotonic()
        if view is None or self.name not in view.members:
            found = self.objects.read_member(self.name)
            self._end((found and found[0].fenced) or "the group was deleted")
            return
        self._view = view
        waiting = (share for share in view.shares.values() if self.name in share.handed_over_by)
        if any(share.epoch > self._state.generation for share in waiting) and not self.taken():
            self._write()  # somebody waits for a partition that this member was given, and has never read

    def _end(self, why: str) -> None:
        self._why = why
        self._held.clear()

    def _write(self, *, fenced: str | None = None) -> None:
        """Write this member's object, with what is staged. It may have been fenced; then ``lost`` is True."""
        staged = {key: one for key, one in self._staged.items() if self._held.get(key) == one.epoch}
        while True:
            # guard: a member acknowledges a generation only after it let go of what that took from it
            acknowledged = self._state.generation if self.taken() else self.generation
            new = replace(
                self._state,
                beat=self._state.beat + 1,
                generation=acknowledged,
                committed={**self._state.committed, **self._last, **staged},
                fenced=fenced,
            )
            sent_at = self._clock.monotonic()
            tag = self.objects.write_member(new, self._tag)
            if tag is not None:
                self._state, self._tag, self._staged, self._last = new, tag, {}, {}
                self._beat_at = sent_at  # for the others its session began then at the earliest
                return
            found = self.objects.read_member(self.name)
            if found is not None and found[0].fenced is None:
                self._state, self._tag = found  # an earlier write of this member, whose answer was lost
                continue
            self._end(found[0].fenced or LEFT if found is not None else "its object was removed")
            if found is not None and found[0].beat == new.beat:
                self._state, self._staged = found[0], {}  # it was accepted, and then the member was fenced
            return

    def _watch(self) -> None:
        """Look at the members after this one, and remove those that are dead."""
        view = self._view
        if view is None or self.name not in view.members:
            return
        ring = sorted(view.members)
        at = ring.index(self.name)
        watched = (ring[at + 1 :] + ring[:at])[:_WATCHED]
        self._seen = {name: seen for name, seen in self._seen.items() if name in watched}
        for name in watched:
            found = self.objects.read_member(name)
            now = self._clock.monotonic()
            tag = found and found[1]
            known, since = self._seen.get(name, (None, now))
            if name not in self._seen or known != tag:
                self._seen[name] = tag, now
                since = now
            # It is looked at once a heartbeat, so its last one was up to one before that. Half a heartbeat is for looks
            # that come a little early. For half a session a member does not ask whether it is alive.
            session_s = view.members[name].session_ms / 1000
            patience_s = max(session_s / 2, session_s - 1.5 * self._heartbeat_s)
            if found is None:
                self._remove(name, None)
            elif found[0].fenced is not None:
                self._remove(name, found[0])
            elif now - since >= patience_s:
                final = self.objects.fence(name, found[1], found[0], f"it sent no heartbeat for {session_s:g} s")
                if final is not None:
                    self._remove(name, final)

    def _remove(self, name: str, final: MemberState | None) -> None:
        def edit(old: GroupState | None) -> GroupState | None:
            if old is None or name not in old.members:
                return None
            return old.without(name, {**self.objects.read_members(old), name: final})

        view = self.objects.change(edit)
        if view is not None and self.name in view.members:
            self._view = view

    def taken(self) -> set[Partition]:
        """Return what this member reads and does not own any more. Stop reading it, then call ``release``."""
        with self._lock:
            if self.lost or self._view is None:
                return set(self._held)
            shares = self._view.shares
            return {key for key, epoch in self._held.items() if not self._owns(shares.get(key), epoch)}

    def _owns(self, share: Share | None, epoch: int) -> bool:
        return share is not None and share.owner == self.name and share.epoch == epoch

    def release(self, partitions: Collection[Partition], committed: Mapping[Partition, Committed]) -> None:
        """Hand over partitions that were taken from this member, with a last commit.

        Raises:
            StoreError: the store failed; the next heartbeat tells the others.
        """
        with self._lock:
            self._give_up(partitions, committed)
            if not self.lost:
                self._write()

    def _give_up(self, partitions: Collection[Partition], committed: Mapping[Partition, Committed]) -> None:
        """Read these partitions no more; the next write tells the others, with the last commit."""
        last = {**self._staged, **self._epochs(committed)}
        self._last |= {key: one for key, one in last.items() if key in partitions and self._held.get(key) == one.epoch}
        self._held = {key: epoch for key, epoch in self._held.items() if key not in partitions}

    def offered(self) -> dict[Partition, Committed | None]:
        """Return what this member owns and may begin to read, with the offset to begin at (None: there is none).

        Raises:
            StoreError: the store failed.
        """
        with self._lock:
            if self.lost or self._view is None:
                return {}
            mine = {key: share for key, share in self._view.shares.items() if share.owner == self.name}
            todo = {key: share for key, share in mine.items() if key not in self._held}
            self._waiting = bool(todo)
            now = self._clock.monotonic()
            if not todo or now - self._handover_at < _HANDOVER_S:
                return {}
            self._handover_at = now
            others: dict[str, MemberState | None] = {}
            for name in sorted({name for share in todo.values() for name in share.handed_over_by} - {self.name}):
                found = self.objects.read_member(name)
                others[name] = found and found[0]
            found_offers: dict[Partition, Committed | None] = {}
            for key, share in todo.items():
                earlier = [others[name] for name in share.handed_over_by if name != self.name]
                # guard: a member reads a partition only after its earlier owners let go of it
                if all(one is None or one.fenced is not None or one.generation >= share.epoch for one in earlier):
                    known = [one.committed.get(key) for one in earlier if one is not None]
                    own = self._last.get(key), self._state.committed.get(key)
                    found_offers[key] = newest(share.committed, *own, *known)
                    if (claim := self._claims.get(key)) is not None and claim.epoch == share.epoch:
                        found_offers[key] = claim  # "latest" may be another one by now
            self._offers = {key: todo[key].epoch for key in found_offers}
            self._waiting = len(found_offers) < len(todo)
            return found_offers

    def begin(self, committed: Mapping[Partition, Committed]) -> set[Partition]:
        """Claim partitions that were offered, at these positions; return those that this member reads now.

        Raises:
            StoreError: the store failed; none is claimed.
        """
        with self._lock:
            if self.lost or self._view is None or not committed:
                return set()
            shares, offers = self._view.shares, self._offers
            now = {
                key: replace(one, epoch=offers[key])
                for key, one in committed.items()
                # Not what was taken away since it was offered.
                if key in offers and self._owns(shares.get(key), offers[key])
            }
            if not now:
                return set()
            self._claims = now
            self._held |= {key: one.epoch for key, one in now.items()}
            self._staged |= now
            try:
                self._write()
            except BaseException:
                for key in now:
                    self._held.pop(key, None)
                    self._staged.pop(key, None)
                raise
            return set() if self.lost else set(now)

    def stage(self, committed: Mapping[Partition, Committed]) -> None:
        """Let the next heartbeat commit these positions, as far as the partitions are this member's then."""
        with self._lock:
            self._staged |= self._epochs(committed)

    def _epochs(self, committed: Mapping[Partition, Committed]) -> dict[Partition, Committed]:
        """Return the positions of what this member reads, with the epochs in which it got it."""
        held = self._held
        return {key: replace(one, epoch=held[key]) for key, one in committed.items() if key in held}

    def commit(self, committed: Mapping[Partition, Committed]) -> None:
        """Commit these positions; they are the group's when this returns.

        Raises:
            MemberFenced: the member does not own one of the partitions any more, or was removed; the text says why.
                Of partitions that it still owns nothing was committed either.
            StoreUnavailable: the store gave no clear answer; they may be committed.
        """
        if not committed:
            return
        with self._lock:
            for key, one in committed.items():
                # guard: a commit of a partition that was handed over is refused
                if key not in self._held:
                    raise MemberFenced(self._refusal(key, one))
            wanted = self._epochs(committed)
            self._staged |= wanted
            before = self._state.beat
            self._write()
            for key, one in wanted.items():
                # Even then this write may have been accepted, right before somebody fenced the member.
                if self.lost and (self._state.beat == before or self._state.committed.get(key) != one):
                    raise MemberFenced(self._refusal(key, one))

    def _refusal(self, key: Partition, one: Committed) -> str:
        what = f"The commit of {key_of(key)} at {one.offset} by {self.name} was refused"
        if self._why is not None:
            return (
                f"{what}: it is not in the group {self.group!r} any more, because {self._why}. Others get its "
                "messages from the last commit on; poll to join again."
            )
        share = None if self._view is None else self._view.shares.get(key)
        owner = "nobody" if share is None or share.owner is None else share.owner
        return (
            f"{what}: since generation {self.generation} of the group {self.group!r} the partition belongs to {owner}, "
            "which gets these messages again."
        )

    def committed(self) -> dict[Partition, Committed]:
        """Return what this member has committed of the partitions that it reads."""
        with self._lock:
            return {key: one for key, one in self._state.committed.items() if self._held.get(key) == one.epoch}

    def leave(self, committed: Mapping[Partition, Committed]) -> None:
        """Leave the group, with a last commit; a static member only stops, and stays in it until its session ends.

        Raises:
            StoreError: the store failed; the others find out when the session is over.
        """
        with self._lock:
            if self.lost:
                return
            self._give_up(list(self._held), committed)
            self._write(fenced=LEFT if self._instance is None else None)
            lost, self._why = self.lost, LEFT
            if not lost and self._instance is None:
                self._remove(self.name, self._state)
