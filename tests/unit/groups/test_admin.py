"""Groups from outside: lists, lag, resets, deletions, and the members that stand in their way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from brokerless.client import Client
from brokerless.consumer import Consumer
from brokerless.errors import ConfigError, GroupActive, GroupNotFound, OffsetOutOfRange, TopicNotFound
from brokerless.groups.admin import delete_group, describe_group, list_groups, reset_group
from brokerless.groups.membership import HEARTBEAT_S, SESSION_BEATS
from brokerless.groups.objects import GroupObjects
from brokerless.groups.state import group_path, member_path
from brokerless.offsets import Offset, Shift
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.topics import create_topic, delete_topic
from tests.support.fakes import FakeClock, FakeStore

if TYPE_CHECKING:
    from collections.abc import Callable

SESSION_S = SESSION_BEATS * HEARTBEAT_S
FIRST = Offset(1)


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    """A topic with two partitions, of which partition 0 has commits of 2, 3 and 4 messages at 1:0, 2:0 and 3:0."""
    store = FakeStore(clock)
    create_topic(store, "t", Schema.parse("n long"), partitions=2, clock=clock)
    for count in (2, 3, 4):
        clock.advance(10)
        send(store, count)
    return store


def send(store: FakeStore, count: int, partition: int = 0) -> None:
    with Producer("t", partition=partition, store=store, clock=store.clock) as producer:
        producer.send({"n": list(range(count))})


def member(store: FakeStore, group: str = "g") -> Consumer:
    """A member that has joined and committed where it begins; it lives as long as its consumer is polled."""
    consumer = Consumer("t", start="beginning", group=group, store=store, clock=store.clock, auto_commit=False)
    consumer._end_heartbeats()
    consumer.poll(0)
    return consumer


def left(store: FakeStore, at: Offset = FIRST) -> None:
    """A group without members that goes on at this offset of partition 0."""
    consumer = member(store)
    consumer.commit({("t", 0): at})
    consumer.close()


def offsets(store: FakeStore) -> dict[int, Offset | None]:
    return {one.lag.partition: one.lag.position for one in describe_group(store, "g", clock=store.clock).partitions}


# Lists and descriptions


def test_groups_are_listed_and_a_damaged_one_does_not_hide_the_others(store: FakeStore, clock: FakeClock) -> None:
    assert list_groups(store, clock=clock) == []
    first = member(store, "a")
    left(store)
    store.put(group_path("bad"), b"{")
    found = list_groups(store, clock=clock)
    assert [(one.name, one.members, one.topics) for one in found] == [
        ("a", 1, ("t",)),
        ("bad", 0, ()),
        ("g", 0, ("t",)),
    ]
    assert found[1].problem is not None and "groups delete" in found[1].problem
    first.close()


def test_a_description_has_owners_offsets_and_the_lag(store: FakeStore, clock: FakeClock) -> None:
    consumer = member(store)
    consumer.commit({("t", 0): Offset(2, 1)})
    clock.advance(5)
    group = describe_group(store, "g", clock=clock)
    (about,) = group.members
    assert about.partitions == (("t", 0), ("t", 1))
    assert about.session_s == SESSION_S
    zero, one = group.partitions
    assert (zero.owner, one.owner) == (about.name, about.name)
    assert (zero.lag.position, zero.lag.end, zero.lag.messages) == (Offset(2, 1), Offset(4), 2 + 4)
    assert zero.lag.seconds == 15  # entry 2 came ten seconds before entry 3
    assert (one.lag.messages, one.lag.seconds) == (0, 0)
    json.dumps(group.to_dict())
    consumer.close()


def test_a_description_of_a_group_survives_the_deletion_of_its_topic(store: FakeStore, clock: FakeClock) -> None:
    left(store)
    delete_topic(store, "t", clock=clock)
    assert [one.lag.messages for one in describe_group(store, "g", clock=clock).partitions] == [None, None]


def test_of_a_topic_that_was_created_again_nothing_was_read(store: FakeStore, clock: FakeClock) -> None:
    left(store, Offset(4))
    delete_topic(store, "t", clock=clock)
    create_topic(store, "t", Schema.parse("n long"), partitions=2, clock=clock)
    send(store, 7)
    assert describe_group(store, "g", clock=clock).partitions[0].lag.messages == 7


@pytest.mark.parametrize("call", [describe_group, delete_group, lambda s, n, **k: reset_group(s, n, to="latest", **k)])
def test_an_unknown_group_is_an_error(store: FakeStore, clock: FakeClock, call: Callable[..., object]) -> None:
    with pytest.raises(GroupNotFound, match="'brokerless groups list'"):
        call(store, "nobody", clock=clock)
    assert not [path for path in store.objects if path.startswith("_brokerless/groups")]


# Resets


@pytest.mark.parametrize(
    ("to", "expected", "messages"),
    [
        ("earliest", Offset(1), -3),
        ("beginning", Offset(1), -3),
        ("latest", Offset(4), 6),
        ("2:2", Offset(2, 2), 1),
        ("3:0", Offset(3), 2),
        ("+1", Offset(2, 2), 1),
        ("+2", Offset(3), 2),
        ("+5", Offset(3, 3), 5),
        ("+6", Offset(4), 6),
        ("+600", Offset(4), 6),
        ("-1", Offset(2), -1),
        ("-2", Offset(1, 1), -2),
        ("-3", Offset(1), -3),
        ("-300", Offset(1), -3),
        ("14s", Offset(3), 2),
        (Shift(-2), Offset(1, 1), -2),
        (Offset(1, 1), Offset(1, 1), -2),
    ],
)
def test_a_reset_moves_the_offset_and_counts(
    store: FakeStore, clock: FakeClock, to: str | Shift | Offset, expected: Offset, messages: int
) -> None:
    left(store, Offset(2, 1))
    clock.advance(5)
    dry = reset_group(store, "g", to=to, topics=["t:0"], dry_run=True, clock=clock)
    assert offsets(store)[0] == Offset(2, 1)
    done = reset_group(store, "g", to=to, topics=["t:0"], clock=clock)
    assert dry == done
    assert [(one.old, one.new, one.messages) for one in done] == [(Offset(2, 1), expected, messages)]
    assert offsets(store)[0] == expected


def test_the_next_member_begins_at_the_reset_offset(store: FakeStore, clock: FakeClock) -> None:
    left(store, Offset(4))
    Client("memory://x", store=store, clock=clock).reset_group("g", to="2:1", topics=["t:0"])
    consumer = Consumer("t", group="g", store=store, clock=clock)
    assert [(batch.first, batch.data.num_rows) for batch in consumer.poll(0)] == [(Offset(2, 1), 2), (Offset(3), 4)]
    consumer.close()


def test_a_reset_without_topics_is_of_all_partitions(store: FakeStore, clock: FakeClock) -> None:
    left(store, Offset(2))
    send(store, 1, partition=1)
    reset_group(store, "g", to="latest", clock=clock)
    assert offsets(store) == {0: Offset(4), 1: Offset(2)}


@pytest.mark.parametrize(
    ("to", "topics", "error", "text"),
    [
        ("9:0", ["t:0"], OffsetOutOfRange, "holds 1:0 up to 4:0"),
        ("2:4", ["t:0"], OffsetOutOfRange, "has 3 messages"),
        ("latest", ["t:2"], ConfigError, "partitions 0 to 1, not 2"),
        ("latest", ["other"], TopicNotFound, "'other'"),
        ("soon", None, ConfigError, "not a position"),
    ],
)
def test_a_reset_that_cannot_work_changes_nothing(
    store: FakeStore, clock: FakeClock, to: str, topics: list[str] | None, error: type[Exception], text: str
) -> None:
    left(store, Offset(2))
    before = store.objects[group_path("g")]
    with pytest.raises(error, match=text) as refused:
        reset_group(store, "g", to=to, topics=topics, clock=clock)
    if isinstance(refused.value, OffsetOutOfRange):
        assert refused.value.earliest == Offset(1)
    assert store.objects[group_path("g")] == before


def test_nothing_is_counted_from_where_nothing_was_committed(store: FakeStore, clock: FakeClock) -> None:
    left(store)
    create_topic(store, "u", Schema.parse("n long"), clock=clock)
    with pytest.raises(ConfigError, match="committed nothing"):
        reset_group(store, "g", to="+1", topics=["u"], clock=clock)
    reset_group(store, "g", to="earliest", topics=["u"], clock=clock)  # a topic that the group will read
    assert [one.lag.topic for one in describe_group(store, "g", clock=clock).partitions] == ["t", "t", "u"]


# Members that are alive, and members that are dead


@pytest.mark.parametrize("call", [delete_group, lambda s, n, **k: reset_group(s, n, to="earliest", **k)])
def test_a_member_that_is_alive_refuses(store: FakeStore, clock: FakeClock, call: Callable[..., object]) -> None:
    consumer = member(store)
    consumer.commit({("t", 0): Offset(3)})
    clock.on_sleep = lambda: consumer._group is not None and consumer._group.membership.beat()
    with pytest.raises(GroupActive, match="member-"):
        call(store, "g", clock=clock)
    assert offsets(store)[0] == Offset(3)
    clock.on_sleep = None
    consumer.close()


@pytest.mark.parametrize("call", [delete_group, lambda s, n, **k: reset_group(s, n, to="earliest", **k)])
def test_a_dead_member_is_waited_for_and_fenced(
    store: FakeStore, clock: FakeClock, call: Callable[..., object]
) -> None:
    consumer = member(store)
    consumer.commit({("t", 0): Offset(3)})
    began = clock.monotonic()
    said: list[str] = []
    call(store, "g", on_wait=said.append, clock=clock)
    assert SESSION_S <= clock.monotonic() - began <= SESSION_S + 1
    assert len(said) == 1 and "up to 9 s" in said[0]
    assert consumer._group is not None
    consumer._group.membership.beat()
    assert consumer._group.membership.lost
    consumer.close()


def test_a_reset_keeps_what_a_dead_member_committed_elsewhere(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1, partition=1)
    consumer = member(store)
    consumer.commit({("t", 0): Offset(3), ("t", 1): Offset(2)})
    reset_group(store, "g", to="earliest", topics=["t:0"], clock=clock)
    assert offsets(store) == {0: Offset(1), 1: Offset(2)}
    consumer.close()


def test_a_member_that_joins_while_the_dead_are_removed_refuses(store: FakeStore, clock: FakeClock) -> None:
    dead = member(store)
    joined: list[Consumer] = []
    clock.on_sleep = lambda: None if joined else joined.append(member(store))
    with pytest.raises(GroupActive):
        reset_group(store, "g", to="earliest", clock=clock)
    clock.on_sleep = None
    for consumer in (dead, *joined):
        consumer.close()


# Deletions


def test_a_deleted_group_leaves_nothing(store: FakeStore, clock: FakeClock) -> None:
    left(store, Offset(3))
    delete_group(store, "g", clock=clock)
    assert not [path for path in store.objects if path.startswith("_brokerless/groups")]
    consumer = member(store)
    assert offsets(store)[0] != Offset(3)
    consumer.close()


def test_a_damaged_group_can_be_deleted(store: FakeStore, clock: FakeClock) -> None:
    consumer = member(store)
    store.put(group_path("g"), b"{")
    store.put(member_path("g", "x"), b"nothing")
    delete_group(store, "g", clock=clock)
    assert not [path for path in store.objects if path.startswith("_brokerless/groups")]
    assert GroupObjects(store, "g", clock).read_group() is None
    consumer.close()
