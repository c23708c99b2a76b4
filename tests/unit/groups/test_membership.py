"""Members of a group: joining, leaving, dying, handing over, zombies, lost answers, static members, damaged objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerless.errors import ConfigError, GroupDamaged, MemberFenced, StoreUnavailable
from brokerless.groups.membership import Membership
from brokerless.groups.objects import GroupObjects
from brokerless.groups.state import MemberState, group_path, member_path
from tests.support.fakes import FakeClock, FakeStore, Put
from tests.support.groups import Reader, committed, run

P0, P1 = ("t", 0), ("t", 1)
GROUP = group_path("g")


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    return FakeStore(clock)


@pytest.fixture
def two(store: FakeStore, clock: FakeClock) -> tuple[Reader, Reader]:
    """Two members with one of two partitions each."""
    readers = Reader(store, clock), Reader(store, clock)
    run(clock, 5, *readers)
    assert [len(reader.at) for reader in readers] == [1, 1]
    return readers


def group(store: FakeStore, clock: FakeClock) -> Any:
    return GroupObjects(store, "g", clock).read_group()


def own(reader: Reader, store: FakeStore, clock: FakeClock) -> MemberState:
    found = GroupObjects(store, "g", clock).read_member(reader.member.name)
    assert found is not None
    return found[0]


# Joining, leaving, dying


def test_the_first_member_gets_everything_at_its_first_poll(store: FakeStore, clock: FakeClock) -> None:
    reader = Reader(store, clock)
    assert reader.member.lost
    reader.step()
    assert reader.at == {P0: 1, P1: 1}
    assert reader.member.committed() == {P0: _held(reader, 0), P1: _held(reader, 0)}


def _held(reader: Reader, version: int) -> Any:
    return committed(version).__class__(committed(version).offset, reader.member.generation, "id")


def test_a_second_member_gets_its_half_where_the_first_one_stopped(store: FakeStore, clock: FakeClock) -> None:
    first, second = Reader(store, clock), Reader(store, clock)
    run(clock, 3, first)
    before = dict(first.at)
    second.step()
    assert second.at == {}, "the first one has not let go yet"
    run(clock, 2, first, second)
    (key,) = second.at
    assert first.at.keys() == {P0, P1} - {key}
    assert before[key] <= second.at[key] <= before[key] + 20, "it went on, and did not begin anew"
    assert own(first, store, clock).committed[key].offset.version >= before[key]


def test_who_leaves_hands_over_at_once(two: tuple[Reader, Reader], store: FakeStore, clock: FakeClock) -> None:
    first, second = two
    (key,) = first.at
    last = first.at[key]
    first.member.leave({key: committed(last)})
    assert first.member.lost
    assert first.member.name not in group(store, clock).members
    second.member._look()
    second.step()
    assert second.at[key] == last + 1
    first.member.leave({})  # once more is nothing


def test_a_dead_member_is_replaced_within_three_heartbeats(
    two: tuple[Reader, Reader], store: FakeStore, clock: FakeClock
) -> None:
    first, second = two
    (key,) = first.at
    first.step()
    first.commit()
    at, died = first.at[key], clock.monotonic()
    while key not in second.at:
        run(clock, 0.25, second)
        assert clock.monotonic() - died <= 3 * 3.0
    assert clock.monotonic() - died > 3.0, "one heartbeat that comes late is no death"
    assert second.at[key] == at + 1
    assert "no heartbeat for 9 s" in str(own(first, store, clock).fenced)


def test_a_member_that_beats_late_but_within_its_session_lives(store: FakeStore, clock: FakeClock) -> None:
    slow, quick = Reader(store, clock), Reader(store, clock)
    run(clock, 5, slow, quick)
    name = slow.member.name
    for _ in range(10):
        run(clock, 4.0, quick)  # instead of 3
        slow.step()
    assert not slow.member.lost
    assert slow.member.name == name


def test_a_member_with_slower_heartbeats_does_not_take_others_for_dead(store: FakeStore, clock: FakeClock) -> None:
    slow = Reader(store, clock, heartbeat_s=10.0)
    quick = Reader(store, clock)
    run(clock, 60, slow, quick)
    assert group(store, clock).generation == 2, "nobody was removed"


def test_three_that_die_at_once_are_all_found(store: FakeStore, clock: FakeClock) -> None:
    readers = [Reader(store, clock, partitions=8) for _ in range(4)]
    run(clock, 8, *readers)
    assert [len(reader.at) for reader in readers] == [2] * 4
    run(clock, 30, readers[0])
    assert len(readers[0].at) == 8
    assert set(group(store, clock).members) == {readers[0].member.name}


# Handovers


def test_a_handover_waits_until_the_earlier_owner_lets_go(store: FakeStore, clock: FakeClock) -> None:
    first, second = Reader(store, clock), Reader(store, clock)
    run(clock, 3, first)
    second.step()
    for _ in range(40):
        clock.advance(0.2)
        first.member.beat()  # alive, and at work on what it has
        second.step()
        assert second.at == {}
    assert len(first.at) == 2
    first.step()
    clock.advance(0.2)
    second.step()
    assert len(second.at) == 1


def test_a_member_that_never_read_its_partition_does_not_block_the_next(store: FakeStore, clock: FakeClock) -> None:
    busy, waiting = (
        Reader(store, clock, partitions=1),
        Reader(store, clock, partitions=1),
    )
    run(clock, 2, busy)
    waiting.step()
    state = group(store, clock)
    # The partition is given to the second, then to a third, before the second could begin.
    third = Reader(store, clock, partitions=1)
    third.step()
    objects = GroupObjects(store, "g", clock)
    for reader in (waiting, third):
        objects.change(
            lambda old, to=reader: _given(old, to.member.name)  # type: ignore[misc]
        )
        waiting.member._look()
    assert state.shares[P0].owner == busy.member.name
    run(clock, 3, busy, waiting, third)
    assert (set(busy.at), set(waiting.at), set(third.at)) == (set(), set(), {P0})


def _given(old: Any, to: str) -> Any:
    share = old.shares[P0]
    earlier = (*share.handed_over_by, share.owner)
    moved = replace(share, owner=to, epoch=old.generation + 1, handed_over_by=earlier)
    return replace(old, generation=old.generation + 1, shares={P0: moved})


def test_what_was_taken_away_between_offer_and_claim_is_not_claimed(store: FakeStore, clock: FakeClock) -> None:
    first, second = Reader(store, clock, partitions=1), Reader(store, clock, partitions=1)
    first.member.join()
    second.member.join()
    offered = first.member.offered()
    assert offered == {P0: None}
    GroupObjects(store, "g", clock).change(lambda old: _given(old, second.member.name))
    clock.advance(1.1)
    first.member.beat()  # its thread sees it while the poll opens the partition
    assert first.member.begin({P0: committed(0)}) == set()
    assert P0 not in own(first, store, clock).committed
    clock.advance(1.1)
    second.step()
    assert second.at == {P0: 1}


def test_a_release_that_fails_is_told_by_the_next_heartbeat(store: FakeStore, clock: FakeClock) -> None:
    first, second = Reader(store, clock), Reader(store, clock)
    run(clock, 3, first)
    second.step()
    clock.advance(1.1)
    first.member.beat()
    (key,) = first.member.taken()
    store.swaps = [Put(StoreUnavailable("no answer"))]
    with pytest.raises(StoreUnavailable):
        first.member.release({key}, {key: committed(70)})
    # It may be known to the others by now, so it is not read any more, and no commit counts.
    assert first.member.taken() == set()
    with pytest.raises(MemberFenced, match="belongs to"):
        first.member.commit({key: committed(80)})
    clock.advance(3)
    first.member.beat()
    second.step()
    assert second.at[key] == 71


# Commits


def test_a_zombies_commit_is_refused_with_its_reason(
    two: tuple[Reader, Reader], store: FakeStore, clock: FakeClock
) -> None:
    zombie, other = two
    (key,) = zombie.at
    run(clock, 10, other)
    assert key in other.at
    with pytest.raises(MemberFenced, match=r"at 500:0 .* refused: .*no heartbeat for 9 s.*poll to join again"):
        zombie.member.commit({key: committed(500)})
    assert zombie.member.lost
    with pytest.raises(MemberFenced, match="no heartbeat"):
        zombie.member.commit({key: committed(500)})
    run(clock, 4, other, zombie)
    assert all(version < 200 for reader in two for version in reader.at.values())


def test_a_sleeper_asks_before_it_gives_anything_out(two: tuple[Reader, Reader], clock: FakeClock) -> None:
    sleeper, other = two
    clock.advance(4)
    sleeper.member.check_session()
    assert not sleeper.member.lost
    run(clock, 10, other)
    sleeper.member.check_session()
    assert sleeper.member.lost
    assert sleeper.member.taken() == set()


def test_a_commit_of_what_was_handed_over_is_refused(store: FakeStore, clock: FakeClock) -> None:
    first, second = Reader(store, clock), Reader(store, clock)
    run(clock, 3, first)
    run(clock, 2, first, second)
    (key,) = second.at
    (other,) = first.at
    with pytest.raises(MemberFenced, match=rf"t/{key[1]} at 9:0 .* belongs to {second.member.name}"):
        first.member.commit({other: committed(90), key: committed(9)})
    assert own(first, store, clock).committed[other].offset.version < 90, "all or nothing"
    assert not first.member.lost


def test_a_commit_of_nothing_asks_nothing(store: FakeStore, clock: FakeClock) -> None:
    Reader(store, clock).member.commit({})
    assert not store.requests
    assert store.objects == {}


def test_staged_positions_are_committed_by_the_heartbeat(store: FakeStore, clock: FakeClock) -> None:
    reader = Reader(store, clock)
    reader.step()
    reader.member.stage({P0: committed(7), ("other", 0): committed(8)})
    assert own(reader, store, clock).committed[P0].offset.version == 0
    clock.advance(3)
    reader.member.beat()
    state = own(reader, store, clock)
    assert state.committed[P0].offset.version == 7
    assert ("other", 0) not in state.committed


# Lost answers


def cases() -> list[Put]:
    return [Put("unknown"), Put("unknown", applied=False), Put("exists"), Put("exists", applied=False)]


@pytest.mark.parametrize("put", range(5))
@pytest.mark.parametrize("case", range(4))
def test_a_lost_answer_to_any_put_changes_nothing(store: FakeStore, clock: FakeClock, put: int, case: int) -> None:
    reader = Reader(store, clock)
    usual = [Put("created") for _ in range(put)]
    store.swaps = [*usual, cases()[case]]
    clock.on_sleep = lambda: store.land_late_swaps() and None  # late, and before the second try
    reader.step()  # its object, the group, the claim
    assert reader.at == {P0: 1, P1: 1}
    reader.commit()
    clock.advance(3)
    reader.member.beat()
    assert not store.swaps, "the case was met"
    state = own(reader, store, clock)
    assert {key: one.offset.version for key, one in state.committed.items()} == {P0: 1, P1: 1}
    assert group(store, clock).generation == 1
    assert list(group(store, clock).members) == [reader.member.name]
    reader.member.leave({})
    assert group(store, clock).members == {}


def test_a_commit_without_any_answer_is_open_and_may_count_later(store: FakeStore, clock: FakeClock) -> None:
    reader = Reader(store, clock)
    reader.step()
    store.swaps = [Put("unknown", applied=False)] * 30
    with pytest.raises(StoreUnavailable, match="may become known later"):
        reader.member.commit({P0: committed(40)})
    store.swaps = []
    store.late_swaps = store.late_swaps[:1]
    assert store.land_late_swaps() == ["created"]
    assert own(reader, store, clock).committed[P0].offset.version == 40
    reader.member.commit({P0: committed(41)})  # it finds its own earlier write
    assert own(reader, store, clock).committed[P0].offset.version == 41


def test_a_commit_that_was_accepted_before_the_fence_is_no_failure(store: FakeStore, clock: FakeClock) -> None:
    reader = Reader(store, clock)
    reader.step()
    objects = GroupObjects(store, "g", clock)

    def fence() -> None:
        found = objects.read_member(reader.member.name)
        assert found is not None
        assert objects.fence(reader.member.name, found[1], found[0], "it was slow") is not None

    clock.on_sleep = fence
    honest = store.swap

    def swap(path: str, data: bytes, tag: Any, *, within_s: float | None = None) -> Any:
        store.swap = honest  # type: ignore[method-assign]
        honest(path, data, tag)
        fence()
        return "unknown", None

    store.swap = swap  # type: ignore[method-assign]
    reader.member.commit({P0: committed(5)})
    assert reader.member.lost
    assert own(reader, store, clock).committed[P0].offset.version == 5


def test_a_group_that_cannot_be_changed_is_named(store: FakeStore, clock: FakeClock) -> None:
    reader = Reader(store, clock)
    store.swaps = [Put("created"), *[Put("unknown", applied=False)] * 200]
    with pytest.raises(StoreUnavailable, match="'g' could not be changed within 30 s"):
        reader.step()
    assert reader.member.lost
    store.swaps = []
    reader.step()
    assert len(reader.at) == 2


# Static members


def test_a_static_member_comes_back_and_nobody_notices(store: FakeStore, clock: FakeClock) -> None:
    other = Reader(store, clock, instance="other")
    static = Reader(store, clock, instance="one")
    run(clock, 5, other, static)
    (key,) = static.at
    at = static.at[key]
    before = group(store, clock).shares
    static.member.leave({key: committed(at)})
    run(clock, 20, other)
    assert group(store, clock).shares == before, "it may be away for a minute"
    again = Reader(store, clock, instance="one")
    again.step()
    assert again.at == {key: at + 1}, "at once, and where it was"
    run(clock, 5, other, again)
    assert len(other.at) == 1
    assert {share.owner for share in group(store, clock).shares.values()} == {other.member.name, again.member.name}


def test_a_static_member_that_does_not_come_back_is_replaced_after_its_session(
    store: FakeStore, clock: FakeClock
) -> None:
    other, static = Reader(store, clock), Reader(store, clock, instance="one")
    run(clock, 5, other, static)
    run(clock, 40, other)
    assert len(other.at) == 1
    run(clock, 30, other)
    assert len(other.at) == 2


def test_a_static_member_lets_go_of_what_was_taken_when_it_closes(store: FakeStore, clock: FakeClock) -> None:
    static = Reader(store, clock, instance="one")
    run(clock, 3, static)
    other = Reader(store, clock)
    other.step()
    clock.advance(1.1)
    static.member.beat()
    (key,) = static.member.taken()
    static.member.leave({key: committed(50)})
    clock.advance(1.1)
    other.step()
    assert other.at == {key: 51}


def test_of_two_members_with_one_instance_the_earlier_one_stops(store: FakeStore, clock: FakeClock) -> None:
    first, second = Reader(store, clock, instance="one"), Reader(store, clock, instance="one")
    run(clock, 3, first)
    at = max(first.at.values())
    first.commit()
    second.step()
    assert second.at == {P0: at + 1, P1: at + 1}
    with pytest.raises(MemberFenced, match="another member joined as 'one'"):
        first.member.commit({P0: committed(at + 5)})
    with pytest.raises(MemberFenced):
        first.commit()
    for _ in range(2):
        with pytest.raises(MemberFenced, match=r"another member joined as 'one'.*an instance of its own"):
            first.step()
    run(clock, 10, second)
    assert group(store, clock).generation == 2, "they do not take turns for ever"


# Groups that are deleted, damaged, or wanted otherwise


def test_a_deleted_group_is_begun_anew(two: tuple[Reader, Reader], store: FakeStore, clock: FakeClock) -> None:
    first, second = two
    store.delete(list(store.objects))
    (key,) = first.at
    with pytest.raises(MemberFenced, match="its object was removed"):
        first.member.commit({key: committed(9)})
    run(clock, 6, first, second)
    assert sorted(len(reader.at) for reader in two) == [1, 1]
    assert all(version < 60 for reader in two for version in reader.at.values())


@pytest.mark.parametrize("path", [GROUP, "member"])
def test_a_damaged_object_is_named_and_changed_by_nobody(
    two: tuple[Reader, Reader], store: FakeStore, clock: FakeClock, path: str
) -> None:
    first, second = two
    path = member_path("g", second.member.name) if path == "member" else path
    store.objects[path] = b"{}"
    with pytest.raises(GroupDamaged, match=path):
        run(clock, 5, first)
    assert store.objects[path] == b"{}"


def test_all_members_must_want_one_strategy(store: FakeStore, clock: FakeClock) -> None:
    first = Reader(store, clock)
    first.step()
    other = Reader(store, clock, strategy="range")
    with pytest.raises(ConfigError, match=r"'g' divides its partitions by 'cooperative-sticky'"):
        other.step()
    first.member.leave({})
    other.step()
    assert group(store, clock).strategy == "range"
    assert len(other.at) == 2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"strategy": "sticky"}, "'sticky'"),
        ({"heartbeat_s": 0.01}, "at least 0.05 s"),
        ({"heartbeat_s": 3.0, "session_s": 6.0}, "at least 3 heartbeats; got 3 s and 6 s"),
        ({"instance": "a/b"}, "a/b"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    store: FakeStore, clock: FakeClock, change: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        Membership(store, "g", {"t": 1}, clock=clock, **change)
    assert not store.requests


def test_a_member_that_waits_is_due_soon_and_others_at_their_heartbeat(store: FakeStore, clock: FakeClock) -> None:
    first, second = Reader(store, clock), Reader(store, clock)
    run(clock, 3, first)
    first.step()
    assert 0 < first.member.due_in_s() <= 1.0
    second.step()
    assert second.member.due_in_s() <= 0.1


def test_nothing_is_listed(store: FakeStore, clock: FakeClock) -> None:
    first, second = Reader(store, clock), Reader(store, clock, instance="one")
    run(clock, 5, first, second)
    run(clock, 80, second)
    second.member.leave({})
    assert set(store.requests) == {"GET", "PUT"}
