"""Consumers in a group: what is committed when, what is given again, where they begin, and what an idle one asks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from brokerless.consumer import Batch, Consumer
from brokerless.errors import ConfigError, MemberFenced, StoreUnavailable, UsageError
from brokerless.groups.membership import HEARTBEAT_S, WATCH_S
from brokerless.groups.objects import GroupObjects
from brokerless.groups.subscription import Pulse
from brokerless.offsets import Offset
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.topics import create_topic, delete_topic
from tests.support.fakes import FakeClock, FakeStore, Put

SCHEMA = Schema.parse("n long")

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats are sent by polls only."""
    monkeypatch.setattr(Pulse, "start", lambda *_: lambda: None)


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    return store


def send(store: FakeStore, *ids: int, topic: str = "t", partition: int | None = None) -> None:
    Producer(topic, store=store, clock=store.clock, partition=partition).send({"n": list(ids)})


def member(store: FakeStore, **more: Any) -> Consumer:
    return Consumer(**{"topics": "t", "start": "beginning", "store": store, "clock": store.clock, "group": "g"} | more)


def numbers(batches: list[Batch]) -> list[int]:
    return [n for batch in batches for n in pa.table(batch.data)["n"].to_pylist()]


def drain(reader: Consumer) -> list[int]:
    found: list[int] = []
    while batches := reader.poll(0):
        found += numbers(batches)
    return found


def committed(store: FakeStore) -> dict[int, Offset]:
    """What the group has, by its objects."""
    objects = GroupObjects(store, "g", store.clock)
    group = objects.read_group()
    assert group is not None
    found: dict[int, Any] = {number: share.committed for (_, number), share in group.shares.items()}
    for name in group.members:
        state = objects.read_member(name)
        for (_, number), one in state[0].committed.items() if state else ():
            if found[number] is None or one.epoch > found[number].epoch:
                found[number] = one
    return {number: one.offset for number, one in found.items() if one is not None}


def beat(clock: FakeClock) -> None:
    clock.advance(HEARTBEAT_S + 0.1)


# Automatic commits


def test_a_heartbeat_commits_what_an_earlier_poll_returned(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    send(store, 2)
    reader = member(store, batch_bytes=1)
    assert numbers(reader.poll(0)) == [1]
    begun = committed(store)[0]
    beat(clock)
    assert numbers(reader.poll(0)) == [2], "this poll's heartbeat comes before its messages"
    assert committed(store)[0] == Offset(2)
    assert begun < Offset(2)
    beat(clock)
    assert reader.poll(0) == []
    assert committed(store)[0] == Offset(3)


def test_what_the_last_poll_returned_is_given_again_after_a_crash(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    reader = member(store)
    assert numbers(reader.poll(0)) == [1]
    clock.advance(30)  # it is dead
    assert drain_for(member(store), clock) == [1]


def drain_for(reader: Consumer, clock: FakeClock, seconds: float = 20) -> list[int]:
    found: list[int] = []
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        found += numbers(reader.poll(0))
        clock.advance(0.25)
    return found


def test_closing_commits_what_was_given_out(store: FakeStore) -> None:
    send(store, 1)
    with member(store) as reader:
        assert numbers(reader.poll(0)) == [1]
    assert drain(member(store)) == []


def test_without_automatic_commits_only_commits_count(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    send(store, 2)
    with member(store, auto_commit=False, batch_bytes=1) as reader:
        (batch,) = reader.poll(0)
        assert numbers(reader.poll(0)) == [2]
        batch.commit()
        assert reader.committed() == {("t", 0): Offset(2)}
        beat(clock)
        reader.poll(0)
    with member(store, auto_commit=False) as reader:
        assert drain(reader) == [2]
        reader.commit()
    assert drain(member(store)) == []


@pytest.mark.parametrize("closes", ["with", "close"])
def test_an_error_in_the_loop_gives_the_batch_again(store: FakeStore, closes: str) -> None:
    for n in (1, 2, 3):
        send(store, n)

    def work(reader: Consumer) -> None:
        for batch in reader:
            if numbers([batch]) == [2]:
                raise ZeroDivisionError

    reader = member(store)
    with pytest.raises(ZeroDivisionError):
        if closes == "with":
            with reader:
                work(reader)
        else:
            try:
                work(reader)
            finally:
                reader.close()
    assert drain(member(store)) == [2, 3]


def test_an_error_after_a_poll_gives_its_messages_again(store: FakeStore) -> None:
    send(store, 1)
    send(store, 2)
    with pytest.raises(ZeroDivisionError), member(store, batch_bytes=1) as reader:
        reader.poll(0)
        reader.poll(0)
        raise ZeroDivisionError
    assert drain(member(store)) == [2]


def test_whoever_breaks_out_of_the_loop_is_done_with_the_batch(store: FakeStore) -> None:
    for n in (1, 2, 3):
        send(store, n)
    with member(store) as reader:
        for batch in reader:
            if numbers([batch]) == [2]:
                break
    assert drain(member(store)) == [3]


def test_closing_while_the_loop_works_gives_that_batch_again(store: FakeStore) -> None:
    send(store, 1)
    send(store, 2)
    with member(store) as reader:
        for batch in reader:
            if numbers([batch]) == [2]:
                reader.close()  # as a signal handler would
    assert drain(member(store)) == [2]


def test_a_poll_that_is_closed_from_elsewhere_does_not_commit_what_it_returns(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(store, 1)
    reader = member(store)
    honest = Consumer._look

    def closing(self: Consumer, parts: Any) -> list[Batch]:
        batches = honest(self, parts)
        if batches:
            reader.close()
        return batches

    monkeypatch.setattr(Consumer, "_look", closing)
    assert numbers(reader.poll(0)) == [1]
    monkeypatch.undo()
    monkeypatch.setattr(Pulse, "start", lambda *_: lambda: None)
    assert drain(member(store)) == [1]


def test_a_closed_consumer_does_not_join_again(store: FakeStore, clock: FakeClock) -> None:
    reader = member(store)
    reader.poll(0)
    reader.close()
    assert reader.poll(0) == []
    group = GroupObjects(store, "g", clock).read_group()
    assert group is not None
    assert group.members == {}


# Rebalances


def test_a_rebalance_goes_on_where_the_first_owner_was(clock: FakeClock) -> None:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, partitions=2, clock=clock)
    first, second = member(store), member(store)
    found: list[int] = []
    for n in range(40):
        send(store, n, partition=n % 2)
        for reader in (first, second) if n > 10 else (first,):
            found += numbers(reader.poll(0))
        clock.advance(0.25)
    for reader in (first, second):
        found += drain(reader)
        assert len(reader.position()) == 1
    assert found.count(39) == 1
    assert sorted(found) == list(range(40)), "a handover loses and repeats nothing"


def test_latest_does_not_move_after_a_rebalance(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    first = member(store, start="latest")
    assert first.poll(0) == []
    send(store, 2)
    clock.advance(30)  # dead, before it read or committed anything
    assert drain_for(member(store, start="latest"), clock) == [2]


def test_a_topic_that_was_created_again_begins_at_its_beginning(store: FakeStore, clock: FakeClock) -> None:
    for n in range(5):
        send(store, n)
    with member(store, start="latest") as reader:
        reader.poll(0)
    before = committed(store)[0]
    delete_topic(store, "t", clock=clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    send(store, 10)
    send(store, 11)
    with member(store, start="latest") as reader:
        assert drain(reader) == [10, 11]
    assert committed(store)[0] > before
    assert drain(member(store, start="latest")) == []


def test_a_member_that_knows_fewer_partitions_gets_none_of_the_others(store: FakeStore, clock: FakeClock) -> None:
    early = member(store)
    early.poll(0)
    delete_topic(store, "t", clock=clock)
    create_topic(store, "t", SCHEMA, partitions=3, clock=clock)
    late = member(store)
    for _ in range(20):
        late.poll(0)
        early._group.update()  # type: ignore[union-attr]
        clock.advance(0.25)
    assert {number for _, number in early.position()} <= {0}
    assert {number for _, number in late.position()} >= {1, 2}


def test_a_fenced_member_gives_nothing_out_and_joins_again(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    zombie, other = member(store), member(store)
    assert numbers(zombie.poll(0)) == [1]
    assert drain_for(other, clock) == [1]
    send(store, 2)
    with pytest.raises(MemberFenced, match="no heartbeat"):
        zombie.commit()
    assert zombie.poll(0) == [], "it is in the group again, without a partition"
    assert numbers(other.poll(0)) == [2]


def test_who_is_removed_during_a_read_gives_nothing_out(
    store: FakeStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie, other = member(store), member(store)
    zombie.poll(0)
    send(store, 1)
    honest = Consumer._look
    theirs: list[int] = []

    def slow(self: Consumer, parts: Any) -> list[Batch]:
        batches = honest(self, parts)
        if self is zombie and batches:
            theirs.extend(drain_for(other, clock))
        return batches

    monkeypatch.setattr(Consumer, "_look", slow)
    assert zombie.poll(0) == []
    assert theirs == [1]


def test_an_error_of_the_store_before_messages_are_given_out_loses_none(
    store: FakeStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = member(store)
    reader.poll(0)
    send(store, 1)
    honest = Consumer._look

    def slow(self: Consumer, parts: Any) -> list[Batch]:
        batches = honest(self, parts)
        if batches:
            clock.advance(5)  # so long that it asks whether it is alive
            store.swaps = [Put(StoreUnavailable("no answer"))]
        return batches

    monkeypatch.setattr(Consumer, "_look", slow)
    with pytest.raises(StoreUnavailable):
        reader.poll(0)
    assert reader.position() == {("t", 0): Offset(1)}
    beat(clock)
    assert numbers(reader.poll(0)) == [1]
    assert committed(store)[0] < Offset(2)


def test_a_claim_that_fails_leaves_nothing_to_read(clock: FakeClock) -> None:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, partitions=2, clock=clock)
    send(store, 1, partition=0)
    reader = member(store)
    store.swaps = [Put("created"), Put("created"), Put(StoreUnavailable("no answer"), applied=False)]
    with pytest.raises(StoreUnavailable):
        reader.poll(0)
    assert reader.position() == {}
    clock.advance(0.2)
    assert drain(reader) == [1]
    assert len(reader.position()) == 2


@pytest.mark.parametrize("applied", [True, False])
def test_a_claim_that_is_repeated_does_not_move_latest(store: FakeStore, clock: FakeClock, applied: bool) -> None:
    reader = member(store, start="latest")
    store.swaps = [Put("created"), Put("created"), Put(StoreUnavailable("no answer"), applied=applied)]
    with pytest.raises(StoreUnavailable):
        reader.poll(0)
    send(store, 1)
    clock.advance(0.2)
    assert drain(reader) == [1]


def test_a_static_consumer_that_was_replaced_says_so(store: FakeStore, clock: FakeClock) -> None:
    first = member(store, instance="one")
    first.poll(0)
    second = member(store, instance="one")
    second.poll(0)
    clock.advance(WATCH_S)
    with pytest.raises(MemberFenced, match="another member joined as 'one'"):
        first.poll(0)
    first.close()
    assert second.poll(0) == []
    assert len(second.position()) == 1


def test_who_does_not_poll_for_long_is_not_kept_alive(store: FakeStore, clock: FakeClock) -> None:
    reader = member(store, max_poll_interval_s=20)
    reader.poll(0)
    assert reader._group is not None
    pulse = Pulse(reader._group.membership, 20, clock)
    had = store.requests["PUT"]
    for _ in range(5):
        beat(clock)
        pulse.beat()
    assert store.requests["PUT"] == had + 5
    for _ in range(5):
        beat(clock)
        clock.advance(5)
        pulse.beat()
    assert store.requests["PUT"] == had + 5


def test_an_error_of_the_heartbeats_is_for_the_next_poll(store: FakeStore, clock: FakeClock) -> None:
    reader = member(store)
    reader.poll(0)
    assert reader._group is not None
    pulse = Pulse(reader._group.membership, 20, clock)
    beat(clock)
    store.swaps = [Put(StoreUnavailable("no answer"))]
    assert pulse.beat() <= 1.0
    assert pulse.beat() > 0
    assert reader.poll(0) == []


# Costs and usage


def test_what_one_idle_member_asks(store: FakeStore, clock: FakeClock) -> None:
    def idle(reader: Consumer) -> Counter[str]:
        """What a minute of polls asks, after the first one."""
        for _ in range(2):
            store.requests.clear()
            until = clock.monotonic() + 60
            while clock.monotonic() < until:
                reader.poll(1.0)
        return Counter(store.requests)

    alone = idle(member(store, group=None, idle_poll_max_s=60.0))
    asked = idle(member(store, idle_poll_max_s=60.0))
    asked.subtract(alone)
    assert 18 <= asked["PUT"] <= 21, "one heartbeat each 3 s"
    assert 55 <= asked["GET"] <= 65, "one look at the group each second"
    assert asked["LIST"] == 0
    assert set(asked) <= {"GET", "PUT", "LIST"}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"partitions": [0]}, "either group or partitions"),
        ({"group": None, "instance": "one"}, "give the group, too"),
        ({"group": "a/b"}, "name of a group"),
        ({"strategy": "round-robin"}, "round-robin"),
    ],
)
def test_what_cannot_work_is_refused(store: FakeStore, more: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        member(store, **more)


@pytest.mark.parametrize("act", [Consumer.commit, Consumer.committed], ids=["commit", "committed"])
def test_only_members_commit(store: FakeStore, act: Callable[[Consumer], object]) -> None:
    with pytest.raises(UsageError, match="group="):
        act(member(store, group=None))


def test_a_commit_before_the_first_poll_writes_nothing(store: FakeStore) -> None:
    reader = member(store)
    before = dict(store.objects)
    reader.commit()
    assert store.objects == before
    assert reader.committed() == {}


def test_a_commit_of_a_partition_of_others_is_refused(store: FakeStore) -> None:
    reader = member(store)
    reader.poll(0)
    with pytest.raises(MemberFenced, match="t/5 at 1:0"):
        reader.commit({("t", 5): Offset(1)})
