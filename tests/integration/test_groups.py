"""A consumer group on a real S3 server, with the threads that send its heartbeats."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from brokerless import Consumer, Producer, Schema, create_topic, open_store
from brokerless.errors import MemberFenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokerless.settings import Settings

BEAT_S = 0.2
WAIT_S = 30


@pytest.fixture
def topic(settings: Settings) -> str:
    create_topic(open_store(settings), "t", Schema.parse("n long"), partitions=2)
    return "t"


def member(settings: Settings) -> Consumer:
    return Consumer("t", group="g", start="beginning", settings=settings, heartbeat_s=BEAT_S, auto_commit=False)


def send(settings: Settings, *ids: int) -> None:
    for one in ids:
        with Producer("t", settings=settings, partition=one % 2) as producer:
            producer.send({"n": [one]})


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"


def test_two_members_share_and_one_takes_over_from_the_dead(settings: Settings, topic: str) -> None:
    send(settings, 1, 2, 3, 4)
    found: dict[Consumer, list[int]] = {}

    def poll(*members: Consumer) -> None:
        for one in members:
            for batch in one.poll(0.05):
                found.setdefault(one, []).extend(pa.table(batch.data)["n"].to_pylist())
                batch.commit()

    first, second = member(settings), member(settings)
    until(lambda: poll(first) or len(found.get(first, [])) == 4)
    until(lambda: poll(first, second) or len(first.position()) == len(second.position()) == 1)
    send(settings, 5, 6)
    until(lambda: poll(first, second) or len(found.get(second, [])) == 1)
    # It works for much longer than a session, and its thread keeps it in the group.
    deadline = time.monotonic() + 6 * BEAT_S
    until(lambda: poll(second) or time.monotonic() > deadline)
    assert len(second.position()) == 1
    first._end_heartbeats()  # it is dead
    until(lambda: poll(second) or len(second.position()) == 2)
    send(settings, 7, 8)
    until(lambda: poll(second) or {7, 8} <= set(found[second]))
    (key,) = first.position()
    with pytest.raises(MemberFenced, match="sent no heartbeat"):
        first.commit({key: second.position()[key]})
    assert sorted(found[first] + found[second]) == [1, 2, 3, 4, 5, 6, 7, 8], "each once: all was committed at once"
    second.close()
    first.close()
