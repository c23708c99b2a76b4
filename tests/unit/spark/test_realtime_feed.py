"""What a real-time pipeline reads, in which order, and what it does with what it cannot read."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from brokerless.clock import SYSTEM
from brokerless.errors import StoreError, StoreUnavailable
from brokerless.log.log import DeltaLog
from brokerless.producer.producer import Producer
from brokerless.schema import Schema, partition_table
from brokerless.spark.inputs import open_inputs
from brokerless.spark.messages import METADATA, columns_of
from brokerless.spark.realtime import feed as feed_module
from brokerless.spark.realtime.feed import Feed, Piece
from brokerless.topics import create_topic
from tests.support.fakes import FakeStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokerless.spark.progress import Position

ONE, OTHER = (partition_table("in", number) for number in range(2))


@pytest.fixture
def store() -> FakeStore:
    """With a topic of two partitions."""
    store = FakeStore(SYSTEM)  # type: ignore[arg-type]
    create_topic(store, "in", Schema.parse("n long"), partitions=2)
    return store


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "IDLE_S", 0.05)


def send(store: FakeStore, count: int, *, partition: int = 0) -> None:
    """So many commits of two messages each."""
    with Producer("in", store=store, partition=partition) as producer:
        for number in range(count):
            producer.send({"n": [2 * number, 2 * number + 1]})


def damage(store: FakeStore, table: str, version: int) -> None:
    """Makes the one object of a commit unreadable."""
    entry = DeltaLog(store, table).read(version)
    assert entry is not None
    [add] = entry.messages
    store.objects[f"{table}/{add.path}"] = b"nothing"


class Reading:
    """A feed, and what a test lets it think is committed."""

    def __init__(
        self, store: FakeStore, *, until: bool = True, ahead: Position | None = None, skipped: str = "-"
    ) -> None:
        options = {"topics": "in", "metadata": "true"} | ({"until": "now"} if until else {})
        inputs = open_inputs(store, options)
        inputs.ahead = ahead or {}
        self.committed = dict(inputs.at)
        self.feed = Feed(
            store,
            inputs,
            columns_of(store, options)[: -len(METADATA)],
            skipped=frozenset({skipped}),
            committed=lambda: self.committed,
        )
        while self.feed.look() == 0:
            pass

    def pieces(self, max_wait_s: float = 0.3) -> Iterator[Piece]:
        """What comes, until nothing does."""
        while piece := self.feed.next(max_wait_s):
            yield piece

    def versions(self) -> list[tuple[str, int]]:
        """Which commits come, until nothing does."""
        return [(piece.table, piece.version) for piece in self.pieces() if piece.rows is not None]


def test_tables_take_turns_each_in_its_order(store: FakeStore) -> None:
    send(store, 3)
    send(store, 5, partition=1)
    reading = Reading(store)
    assert reading.feed.waiting() == 16
    found = list(reading.pieces())
    for table in (ONE, OTHER):
        versions = [piece.version for piece in found if piece.table == table]
        assert versions == sorted(versions)
    with_rows = [piece for piece in found if piece.rows is not None]
    assert [piece.table for piece in with_rows[:6]] in ([ONE, OTHER] * 3, [OTHER, ONE] * 3)
    assert all(piece.last for piece in found)
    first = with_rows[0].rows
    assert first is not None
    assert first["_version"].to_pylist() == [with_rows[0].version] * 2
    assert first["_index"].to_pylist() == [0, 1]
    assert reading.feed.waiting() == 0
    reading.feed.close()


def test_messages_that_were_fetched_and_not_given_are_waiting(store: FakeStore) -> None:
    send(store, 5)
    reading = Reading(store)
    while (piece := reading.feed.next(0.3)) and piece.rows is None:
        pass
    assert reading.feed.waiting() == 8
    reading.feed.close()


def test_nothing_behind_the_dead_letters_is_read_before_the_output_has_come_as_far(store: FakeStore) -> None:
    send(store, 3)
    send(store, 2, partition=1)
    first = DeltaLog(store, ONE).state.version - 2
    reading = Reading(store, ahead={ONE: first})
    assert reading.versions() == [(ONE, first)]
    reading.committed |= {ONE: first - 1}
    assert reading.versions() == []
    reading.committed |= {ONE: first}
    rest = reading.versions()
    assert [version for table, version in rest if table == ONE] == [first + 1, first + 2]
    assert len(rest) == 4
    reading.feed.close()


def test_a_run_with_an_end_reads_nothing_behind_it_and_is_over_when_it_is_committed(store: FakeStore) -> None:
    send(store, 2)
    reading = Reading(store)
    end = DeltaLog(store, ONE).state.version
    send(store, 2)
    while reading.feed.look() == 0:
        pass
    assert reading.versions()[-1] == (ONE, end)
    assert not reading.feed.is_over()
    reading.committed |= {ONE: end, OTHER: DeltaLog(store, OTHER).state.version}
    assert reading.feed.is_over()
    reading.feed.close()
    endless = Reading(store, until=False)
    endless.committed = reading.committed
    assert not endless.feed.is_over()
    endless.feed.close()


def test_what_cannot_be_read_holds_back_what_is_behind_it_and_then_is_raised(store: FakeStore) -> None:
    send(store, 3)
    send(store, 3, partition=1)
    end = DeltaLog(store, ONE).state.version
    damage(store, ONE, end - 1)
    reading = Reading(store)
    found = []
    with pytest.raises(StoreError, match=f"Offset {end - 1}:0 of '{ONE}' cannot be read"):
        for piece in reading.pieces():
            found.append((piece.table, piece.version))
    assert [version for table, version in found if table == ONE][-1] == end - 2
    assert len([table for table, _ in found if table == OTHER]) >= 3
    reading.feed.close()
    without = Reading(store, skipped=f"{ONE}@{end - 1}:0")
    assert [version for table, version in without.versions() if table == ONE] == [end - 2, end]
    assert without.feed.waiting() == 0
    without.feed.close()


def test_what_cannot_be_read_is_raised_in_the_end_although_others_never_pause(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "HOLD_S", 0.0)
    send(store, 1)
    send(store, 20, partition=1)
    damage(store, ONE, DeltaLog(store, ONE).state.version)
    reading = Reading(store)
    given = 0
    with pytest.raises(StoreError):
        for _ in reading.pieces():
            given += 1
    assert given < 10
    reading.feed.close()


def test_a_store_that_does_not_answer_ends_it_at_once(store: FakeStore) -> None:
    send(store, 2)
    reading = Reading(store)

    def broken(path: str) -> None:
        raise StoreUnavailable(f"{path} cannot be had")

    store.on_get = broken
    with pytest.raises(StoreUnavailable):
        list(reading.pieces())
    reading.feed.close()


def test_no_more_is_fetched_ahead_than_fits(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "AHEAD_BYTES", 2_000)
    send(store, 30)
    reading = Reading(store)
    got: list[str] = []
    lock = threading.Lock()

    def note(path: str) -> None:
        with lock:
            got.append(path)

    store.on_get = note
    while (piece := reading.feed.next(0.3)) and piece.rows is None:
        pass
    size = max(len(data) for path, data in store.objects.items() if path.endswith(".parquet"))
    assert 0 < len(got) <= 2_000 // size + 4
    assert len(reading.versions()) == 29
    reading.feed.close()
