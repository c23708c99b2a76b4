"""Positions of ordered sources against a store in memory: every redelivery, each message once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from brokerless.columns.records import decode
from brokerless.errors import CommitUnknown, ConfigError, LogDamaged, MessageError, NotCommitted, TopicDeleted
from brokerless.ingest.positions import MAX_POSITION, SourcePosition, Written, position_of, txns_of, write_once
from brokerless.log.log import DeltaLog
from brokerless.schema import Schema
from brokerless.topics import create_topic, delete_topic
from tests.support.fakes import FakeClock, FakeStore, Put

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA = Schema.parse("n long")
SHARD = "kinesis/stream/shard-0"


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    return store


@pytest.fixture
def log(store: FakeStore, clock: FakeClock) -> DeltaLog:
    return DeltaLog(store, "t", clock=clock)


def again(log: DeltaLog) -> DeltaLog:
    return DeltaLog(log.store, log.table, clock=log._clock)


def rows(numbers: Iterable[int], source: str = SHARD) -> list[SourcePosition]:
    """Messages whose number is their position."""
    return [SourcePosition(source, n) for n in numbers]


def write(log: DeltaLog, positions: list[SourcePosition]) -> Written:
    messages = [{"n": row.position % 2**32} for row in positions]
    return write_once(log, messages, positions, schema=SCHEMA, topic="t", timeout_s=5, clock=log._clock)


def read(log: DeltaLog) -> list[int]:
    return [
        n
        for entry in log.read_from(0)
        for a in entry.messages
        for n in decode(log.store.get(f"t/{a.path}")).column("n").to_pylist()
    ]


@pytest.mark.parametrize("position", [0, 1, 2**63 - 1, 2**63, 2**126 - 1, 2**126, 2**186 + 12345, MAX_POSITION])
def test_a_position_of_189_bits_survives(log: DeltaLog, position: int) -> None:
    write(log, rows([position]))
    assert position_of(again(log), SHARD) == position
    assert all(0 <= part < 2**63 for part in txns_of(SHARD, position).values())


@pytest.mark.parametrize("carry", [2**63, 2**126])
def test_a_carry_sets_lower_parts_back(log: DeltaLog, carry: int) -> None:
    for position in (carry - 1, carry, carry + 1):
        assert write(log, rows([position])).rows == 1
    assert write(log, rows([carry - 1, carry])) == Written(0, 2, 0)
    assert position_of(again(log), SHARD) == carry + 1


def test_a_source_that_was_never_read(log: DeltaLog) -> None:
    assert position_of(log, SHARD) is None
    assert set(txns_of(SHARD, None).values()) == {-1}


@pytest.mark.parametrize("seed", range(10))
def test_a_batch_that_comes_again_with_other_boundaries_is_written_once(log: DeltaLog, seed: int) -> None:
    # A shard of 60 messages; each delivery begins at or before the first message that is not acknowledged.
    rng = random.Random(seed)
    acknowledged = 0
    while acknowledged < 60:
        begin = rng.randrange(acknowledged + 1)
        end = min(60, begin + rng.randrange(1, 20))
        handle = log if rng.random() < 0.5 else again(log)
        write(handle, rows(range(begin, end)))
        if end > acknowledged and rng.random() < 0.7:  # otherwise the function dies before it answers
            acknowledged = end
    assert read(log) == list(range(60))


def test_warm_it_costs_two_requests_and_a_repetition_two_to_be_sure(log: DeltaLog, store: FakeStore) -> None:
    write(log, rows([1]))
    store.requests.clear()
    assert write(log, rows([2, 3])) == Written(2, 0, 0)
    assert store.requests == {"PUT": 2}
    store.requests.clear()
    assert write(log, rows([1, 2, 3])) == Written(0, 3, 0)
    assert store.requests.keys() == {"GET"}
    assert store.requests.total() <= 2


@pytest.mark.parametrize("again_from", [0, 3])
def test_nothing_is_skipped_of_a_topic_that_is_gone(log: DeltaLog, store: FakeStore, again_from: int) -> None:
    write(log, rows(range(6)))
    delete_topic(store, "t", clock=store.clock)
    with pytest.raises(TopicDeleted):
        write(log, rows(range(again_from, 6)))
    create_topic(store, "t", SCHEMA, clock=store.clock)
    with pytest.raises(TopicDeleted):
        write(log, rows(range(again_from, 6)))
    assert write(again(log), rows(range(again_from, 6))) == Written(6 - again_from, 0, 0)


def test_nothing_is_skipped_by_a_log_with_a_damaged_entry(log: DeltaLog, store: FakeStore) -> None:
    for n in range(4):
        write(log, rows([n]))
    store.objects[log.entry_path(2)] = b""
    for first in (2, 4):
        with pytest.raises(LogDamaged):
            write(again(log), rows(range(first, first + 2)))


def test_several_sources_go_into_one_commit_and_each_has_its_own_place(log: DeltaLog) -> None:
    write(log, rows([5], "kafka/c/t/0") + rows([1, 2], "kafka/c/t/1"))
    assert log.state.version == 1
    written = write(log, rows([4, 5, 6], "kafka/c/t/0") + rows([1, 2], "kafka/c/t/1") + rows([9], "kafka/c/t/2"))
    assert written == Written(2, 4, 0)
    assert read(log) == [5, 1, 2, 6, 9]
    entry = log.read(2)
    assert entry is not None
    assert {name.rpartition("#")[0] for name in entry.txns} == {"kafka/c/t/0", "kafka/c/t/2"}


def test_rows_of_a_source_are_written_in_its_order_and_a_position_once(log: DeltaLog) -> None:
    assert write(log, rows([3, 1, 2, 2])) == Written(3, 1, 0)
    assert read(log) == [1, 2, 3]


def test_of_two_functions_with_the_same_batch_one_writes_it(log: DeltaLog, store: FakeStore) -> None:
    rival = again(log)
    assert position_of(rival, SHARD) is None
    write(log, rows([1, 2]))
    store.requests.clear()
    assert write(rival, rows([1, 2, 3])) == Written(1, 2, 1)
    assert read(log) == [1, 2, 3]
    assert not store.requests["DELETE"], "writers remove nothing; the object of the try that lost is maintenance's"


def test_functions_with_other_sources_do_not_hinder_each_other(log: DeltaLog) -> None:
    rival = again(log)
    assert position_of(rival, "kafka/c/t/1") is None
    write(log, rows([1]))
    assert write(rival, rows([1], "kafka/c/t/1")) == Written(1, 0, 1)
    assert read(log) == [1, 1]


@pytest.mark.parametrize("landed", [True, False])
def test_an_unknown_outcome_is_found_out_by_the_repetition(log: DeltaLog, store: FakeStore, landed: bool) -> None:
    store.puts = [Put("unknown", applied=False) for _ in range(1000)]
    with pytest.raises(CommitUnknown):
        write(log, rows([1, 2]))
    store.puts.clear()
    if landed:
        store.land_late_puts()
    write(log, rows([1, 2, 3]))
    assert read(log) == [1, 2, 3]


def test_it_gives_up_when_somebody_always_comes_first(log: DeltaLog, store: FakeStore) -> None:
    place = 0

    def win() -> None:
        nonlocal place
        place += 1
        script, store.puts = store.puts, []
        write(again(log), rows([place]))
        store.puts = script

    store.puts = [Put("exists", before=win) for _ in range(50)]
    with pytest.raises(NotCommitted, match=r"kinesis/stream/shard-0 10 times.*nothing was written"):
        write(log, rows([1000]))
    assert 1000 not in read(log)


def test_a_row_that_does_not_fit_moves_nothing(log: DeltaLog) -> None:
    with pytest.raises(MessageError):
        write_once(log, [{"n": "x"}], rows([1]), schema=SCHEMA, topic="t", timeout_s=5, clock=log._clock)
    assert position_of(again(log), SHARD) is None


@pytest.mark.parametrize(("source", "position"), [("shard", 1), (SHARD, -1), (SHARD, 2**189)])
def test_what_cannot_be_a_place(source: str, position: int) -> None:
    with pytest.raises(ConfigError):
        SourcePosition(source, position)
