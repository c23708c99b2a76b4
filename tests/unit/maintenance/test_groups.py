"""Objects of members that are in no group go after a day, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokerless.consumer import Consumer
from brokerless.groups.state import FOLDER, group_path
from brokerless.maintenance.groups import MEMBER_GRACE_S
from brokerless.maintenance.maintainer import Maintainer
from brokerless.schema import Schema
from brokerless.topics import create_topic
from tests.support.fakes import FakeClock, FakeStore

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", Schema.parse("n long"), clock=clock)
    return store


def member(store: FakeStore, group: str = "g") -> Consumer:
    consumer = Consumer("t", group=group, store=store, clock=store.clock)
    consumer._end_heartbeats()
    consumer.poll(0)
    return consumer


def members(store: FakeStore) -> list[str]:
    return [path for path in sorted(store.objects) if path.startswith(FOLDER) and "/members/" in path]


def maintain(store: FakeStore, topics: Sequence[str] | None = None) -> list[str]:
    reports = Maintainer(topics, store=store, clock=store.clock).run_once()
    return [f"{one.objects_removed}: {' '.join(one.skipped)}".strip() for one in reports if one.table == FOLDER]


def test_a_member_that_left_goes_after_a_day(store: FakeStore, clock: FakeClock) -> None:
    staying = member(store)
    member(store).close()
    assert len(members(store)) == 2
    clock.advance(MEMBER_GRACE_S)
    assert maintain(store) == []
    clock.advance(1)
    assert maintain(store) == ["1:"]
    assert len(members(store)) == 1
    # Its own, however old it is: nobody has removed it from the group.
    assert maintain(store) == []
    staying.close()


def test_what_a_deleted_group_left_goes_too(store: FakeStore, clock: FakeClock) -> None:
    consumer = member(store)
    store.delete([group_path("g")])
    clock.advance(MEMBER_GRACE_S + 1)
    assert maintain(store) == ["1:"]
    consumer.close()


def test_a_damaged_group_is_reported_and_left_alone(store: FakeStore, clock: FakeClock) -> None:
    first, second = member(store, "bad"), member(store, "good")
    store.put(group_path("bad"), b"{")
    store.delete([group_path("good")])
    clock.advance(MEMBER_GRACE_S + 1)
    (report,) = maintain(store)
    assert report.startswith("1: group bad: ")
    assert len(members(store)) == 1
    for consumer in (first, second):
        consumer.close()


def test_maintenance_of_one_topic_does_not_look_at_groups(store: FakeStore, clock: FakeClock) -> None:
    member(store).close()
    clock.advance(MEMBER_GRACE_S + 1)
    assert maintain(store, ["t"]) == []
    assert len(members(store)) == 1


def test_a_round_looks_once_when_it_is_due(store: FakeStore, clock: FakeClock) -> None:
    member(store).close()
    clock.advance(MEMBER_GRACE_S + 1)
    maintainer = Maintainer(store=store, clock=clock)
    assert FOLDER in [report.table for report in maintainer.run_round()]
    member(store).close()
    clock.advance(60)
    assert FOLDER not in [report.table for report in maintainer.run_round()]
