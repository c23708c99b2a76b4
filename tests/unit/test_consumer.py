"""Consumers against a store in memory: starts, fairness, repetitions, lossless errors, polling that backs off."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brokerless.columns.records import encode, object_name, to_table
from brokerless.consumer import RAISE_AGAIN_S, Batch, Consumer
from brokerless.consumer.partition import PartitionReader
from brokerless.errors import (
    ConfigError,
    LogIncomplete,
    OffsetOutOfRange,
    StoreError,
    StoreUnavailable,
    TopicDeleted,
    TopicNotFound,
    TopicRewritten,
)
from brokerless.log.entries import Add, build_entry
from brokerless.log.log import DeltaLog
from brokerless.log.tail import REMEMBERED_PATHS, RETENTION_CHECK_S, Tail
from brokerless.offsets import Offset, Start
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.topics import create_topic, delete_topic, describe_topic
from tests.support.checkpoints import clean_up, write_checkpoint
from tests.support.fakes import START_US, FakeClock, FakeStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCHEMA = Schema.parse("n long")


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    return store


def send(store: FakeStore, *numbers: int, topic: str = "t") -> None:
    Producer(topic, store=store, clock=store.clock).send({"n": list(numbers)})


def consumer(
    store: FakeStore, start: Start = "beginning", *, topics: str | Sequence[str] = "t", **more: Any
) -> Consumer:
    return Consumer(topics, start=start, store=store, clock=store.clock, **more)


def numbers(batches: list[Batch]) -> list[int]:
    return [n for batch in batches for n in pa.table(batch.data)["n"].to_pylist()]


def drain(reader: Consumer) -> list[int]:
    found: list[int] = []
    while batches := reader.poll(0):
        found += numbers(batches)
    return found


def append(store: FakeStore, adds: list[Add], *, removes: Sequence[str] = (), operation: str = "WRITE") -> None:
    """An entry as another writer could write it."""
    version = DeltaLog(store, "t", clock=store.clock).head() + 1
    body = build_entry(
        commit_id=f"foreign-{version}",
        timestamp_ms=store.clock.time_us() // 1000,
        operation=operation,
        engine="other",
        adds=adds,
        removes=removes,
    )
    store.put(f"t/_delta_log/{version:020d}.json", body)


def files(store: FakeStore) -> list[str]:
    return [add.path for entry in DeltaLog(store, "t", clock=store.clock).read_from(0) for add in entry.adds]


# Starts


def test_every_kind_of_start(store: FakeStore, clock: FakeClock) -> None:
    for n in range(1, 5):
        clock.advance(10)
        send(store, n * 10, n * 10 + 1)
    second = datetime.fromtimestamp(START_US / 1e6, UTC) + timedelta(seconds=20)
    assert drain(consumer(store, "beginning")) == [10, 11, 20, 21, 30, 31, 40, 41]
    assert drain(consumer(store, "latest")) == []
    assert drain(consumer(store, Offset(0))) == drain(consumer(store, Offset(1))) == drain(consumer(store))
    assert drain(consumer(store, Offset(3, 1))) == [31, 40, 41]
    assert drain(consumer(store, Offset(3, 2))) == [40, 41]
    assert drain(consumer(store, Offset(3, 99))) == [40, 41]
    assert drain(consumer(store, Offset(5))) == []
    assert drain(consumer(store, second)) == [20, 21, 30, 31, 40, 41]
    assert drain(consumer(store, second + timedelta(microseconds=1))) == [30, 31, 40, 41]
    assert drain(consumer(store, "20s")) == [20, 21, 30, 31, 40, 41]
    assert drain(consumer(store, "3:1")) == [31, 40, 41]
    assert drain(consumer(store, "earliest")) == drain(consumer(store))


def test_batches_say_their_offsets(store: FakeStore) -> None:
    send(store, 1, 2, 3)
    send(store, 4)
    reader = consumer(store, Offset(1, 1))
    batches = [*reader.poll(0), *reader.poll(0)]
    assert [(str(batch.first), numbers([batch]), str(batch.next)) for batch in batches] == [
        ("1:1", [2, 3], "2:0"),
        ("2:0", [4], "3:0"),
    ]
    assert reader.position() == {("t", 0): Offset(3)}
    reader.seek(batches[0].next)
    assert drain(reader) == [4]


@pytest.mark.parametrize("start", [Offset(3), Offset(99)])
def test_an_offset_beyond_the_end_is_refused(store: FakeStore, start: Offset) -> None:
    send(store, 1)
    with pytest.raises(OffsetOutOfRange) as caught:
        consumer(store, start)
    assert caught.value.earliest == Offset(1)


def test_an_offset_that_clean_up_removed_is_refused_at_once(store: FakeStore, clock: FakeClock) -> None:
    for n in range(5):
        send(store, n)
    log = DeltaLog(store, "t", clock=clock)
    write_checkpoint(log)
    clean_up(log, below=4)
    for gone in (0, 1, 3):
        with pytest.raises(OffsetOutOfRange) as caught:
            consumer(store, Offset(gone))
        assert caught.value.earliest == Offset(4)
    assert drain(consumer(store, Offset(4))) == [3, 4]
    assert drain(consumer(store, "beginning")) == [3, 4]


def test_a_reader_that_clean_up_overtakes_is_told(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    reader = consumer(store)
    assert drain(reader) == [1]
    for n in range(2, 6):
        send(store, n)
    log = DeltaLog(store, "t", clock=clock)
    write_checkpoint(log)
    clean_up(log, below=4)
    clock.advance(RETENTION_CHECK_S)
    with pytest.raises(OffsetOutOfRange) as caught:
        reader.poll(10)
    assert caught.value.earliest == Offset(4)
    reader.seek(caught.value.earliest)
    assert drain(reader) == [4, 5]


def test_seek_on_a_handle_that_clean_up_has_overtaken(store: FakeStore, clock: FakeClock) -> None:
    reader = consumer(store)
    for n in range(1, 6):
        send(store, n)
    log = DeltaLog(store, "t", clock=clock)
    write_checkpoint(log)
    clean_up(log, below=4)
    clock.advance(7200)
    reader.seek("beginning")
    assert drain(reader) == [4, 5]
    reader.seek("latest")
    assert drain(reader) == []
    assert reader.position() == {("t", 0): Offset(6)}


def test_wrong_topics_and_partitions(store: FakeStore) -> None:
    with pytest.raises(TopicNotFound):
        consumer(store, topics="none")
    with pytest.raises(ConfigError, match="partitions 0 to 0, not 1"):
        consumer(store, partitions=[1])
    for nothing in ({"topics": []}, {"partitions": []}):
        with pytest.raises(ConfigError, match="at least one"):
            consumer(store, **nothing)  # type: ignore[arg-type]


# What is delivered


def test_messages_behind_entries_without_messages_come_at_once(store: FakeStore) -> None:
    for _ in range(3):
        append(store, [])
    send(store, 1)
    assert numbers(consumer(store).poll(0)) == [1]


def test_rewrites_are_not_delivered(store: FakeStore) -> None:
    send(store, 1)
    send(store, 2)
    (first, second) = files(store)
    store.put("t/compacted.parquet", b"never read")
    append(store, [Add("compacted.parquet", 1, 2, 1, data_change=False)], removes=[first, second], operation="OPTIMIZE")
    send(store, 3)
    assert drain(consumer(store)) == [1, 2, 3]


def test_a_file_added_twice_is_delivered_once(store: FakeStore) -> None:
    send(store, 1)
    (path,) = files(store)
    append(store, [Add(path, 1, 1, 1)])
    append(store, [Add(path, 1, 1, 1), Add(path, 1, 1, 1)])
    send(store, 2)
    assert drain(consumer(store)) == [1, 2]


def test_the_memory_for_repetitions_is_bounded(store: FakeStore, clock: FakeClock) -> None:
    tail = Tail(DeltaLog(store, "t", clock=clock), 0, idle_max_s=0.25, clock=clock)
    adds = [Add(f"f{n}", 1, 1, 1) for n in range(REMEMBERED_PATHS + 5)]
    append(store, adds)
    (_, entry) = tail.next_entries(10)
    mark = tail.mark()
    assert len(tail.new_files(entry)) == len(adds)
    assert len(tail.new_files(entry)) == 5  # the oldest are forgotten, the newest not
    tail.rewind(mark)
    assert tail.version == mark[0]
    assert len(tail.new_files(entry)) == len(adds)


def test_partitions_are_merged_fairly(store: FakeStore, clock: FakeClock) -> None:
    create_topic(store, "p", SCHEMA, partitions=3, clock=clock)
    producer = Producer("p", store=store, clock=clock)
    for n in range(30):
        producer.send({"n": [n]})
    clock.advance(10)  # no entry is young any more: only the limit of bytes ends a turn
    reader = consumer(store, topics="p", batch_bytes=1)
    firsts, seen = [], []
    while batches := reader.poll(0):
        assert sorted(batch.partition for batch in batches) == [0, 1, 2]
        firsts.append(batches[0].partition)
        seen += numbers(batches)
    assert sorted(seen) == list(range(30))
    assert {firsts.count(partition) for partition in range(3)} <= {3, 4}


def test_several_topics_and_chosen_partitions(store: FakeStore, clock: FakeClock) -> None:
    create_topic(store, "p", SCHEMA, partitions=2, clock=clock)
    producer = Producer("p", store=store, clock=clock)
    acks = [producer.send({"n": [n]})[0] for n in range(4)]
    send(store, 100)
    assert sorted(drain(consumer(store, topics=["t", "p"]))) == [0, 1, 2, 3, 100]
    wanted = [n for n, ack in enumerate(acks) if ack.partition == 1]
    assert drain(consumer(store, topics="p", partitions=[1])) == wanted


# Errors lose nothing


def test_a_failed_fetch_gives_the_same_messages_again(store: FakeStore, clock: FakeClock) -> None:
    for n in range(5):
        send(store, n)
    clock.advance(10)
    reader = consumer(store, Offset(2, 0))
    victim = f"t/{files(store)[3]}"

    def fail(path: str) -> None:
        if path == victim:
            store.on_get = None
            raise StoreUnavailable("down")

    store.on_get = fail
    assert numbers(reader.poll(0)) == [1, 2]
    assert reader.position() == {("t", 0): Offset(4)}
    assert drain(reader) == [3, 4]


def test_an_interrupt_gives_the_same_messages_again(store: FakeStore, clock: FakeClock) -> None:
    create_topic(store, "p", SCHEMA, partitions=2, clock=clock)
    producer = Producer("p", store=store, clock=clock)
    for n in range(4):
        producer.send({"n": [n]})
    reader = consumer(store, topics="p")

    def interrupt(path: str) -> None:
        if path.endswith(".parquet"):
            store.on_get = None
            raise KeyboardInterrupt

    store.on_get = interrupt
    with pytest.raises(KeyboardInterrupt):
        reader.poll(0)
    assert set(reader.position().values()) == {Offset(1)}
    assert sorted(drain(reader)) == [0, 1, 2, 3]


def test_who_leaves_a_loop_goes_on_after_it(store: FakeStore, clock: FakeClock) -> None:
    for n in range(5):
        send(store, n)
    clock.advance(10)
    reader = consumer(store)
    for batch in reader:
        assert numbers([batch]) == [0]
        break
    assert reader.position() == {("t", 0): Offset(2)}
    for batch in reader:
        assert numbers([batch]) == [1]
        break
    assert drain(reader) == [2, 3, 4]


def test_seek_within_a_loop_counts_at_once(store: FakeStore, clock: FakeClock) -> None:
    for n in range(5):
        send(store, n)
    clock.advance(10)
    reader = consumer(store)
    seen: list[int] = []
    for batch in reader:
        seen += numbers([batch])
        if seen == [0]:
            reader.seek(Offset(5))
        elif len(seen) == 2:
            break
    assert seen == [0, 4]


def test_an_error_does_not_forget_what_was_delivered_before(store: FakeStore) -> None:
    send(store, 1)
    reader = consumer(store)
    assert drain(reader) == [1]
    (path,) = files(store)
    store.put("t/new.parquet", store.get(f"t/{path}"))
    append(store, [Add(path, 1, 1, 1), Add("new.parquet", 1, 1, 1)])

    def fail(where: str) -> None:
        if where.endswith(".parquet"):
            store.on_get = None
            raise StoreUnavailable("down")

    store.on_get = fail
    with pytest.raises(StoreUnavailable):
        reader.poll(0)
    assert drain(reader) == [1], "of the new object only"


def test_one_failing_partition_does_not_cost_the_others_messages(store: FakeStore, clock: FakeClock) -> None:
    create_topic(store, "p", SCHEMA, partitions=2, clock=clock)
    producer = Producer("p", store=store, clock=clock)
    for n in range(4):
        producer.send({"n": [n]})
    reader = consumer(store, topics="p")
    released, ended = threading.Event(), threading.Event()
    real = PartitionReader.next_entries

    def take(part: PartitionReader, max_bytes: int) -> list[Any]:
        if part.number == 0:  # the first whose result is asked for
            raise StoreUnavailable("down")
        try:
            released.wait(0.2)  # a straggler; only a poll that does not wait for it can release it earlier
            return real(part, max_bytes)
        finally:
            ended.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionReader, "next_entries", take)
        with pytest.raises(StoreUnavailable):
            reader.poll(0)
        released.set()
        assert ended.wait(10)
    assert set(reader.position().values()) == {Offset(1)}
    assert sorted(drain(reader)) == [0, 1, 2, 3]


def test_a_file_that_is_gone_is_named(store: FakeStore) -> None:
    send(store, 1)
    store.delete([f"t/{files(store)[0]}"])
    with pytest.raises(StoreError, match=r"t/part-.* is in the log but not in the store"):
        consumer(store).poll(0)


# One damaged place


DAMAGE = ["a lost object", "a damaged object", "a cut entry"]


def damage(store: FakeStore, table: str, version: int, how: str) -> None:
    name = f"{table}/_delta_log/{version:020d}.json"
    if how != "a cut entry":
        log = DeltaLog(store, table, clock=store.clock)
        (add,) = next(log.read_from(version)).adds
        name = f"{table}/{add.path}"
    if how == "a lost object":
        store.delete([name])
    else:
        store.put(name, store.objects[name][:-20])


@pytest.fixture
def put(store: FakeStore, clock: FakeClock) -> Callable[[int], object]:
    """Commits a number to topic ``p``: even ones to partition 0, odd ones to partition 1. 0 to 5 are there."""
    create_topic(store, "p", SCHEMA, partitions=2, clock=clock)
    logs = [DeltaLog(store, table, clock=clock) for table in ("p", "p.1")]

    def put(n: int) -> None:
        data = encode(to_table([{"n": n}], SCHEMA, topic="p", produced_at_us=0))
        log, name = logs[n % 2], object_name(data, str(n))
        store.put(f"{log.table}/{name}", data)
        log.append([Add(name, len(data), 1, 0)])

    for n in range(6):
        put(n)
    return put


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_place_holds_back_only_what_is_behind_it(
    store: FakeStore, clock: FakeClock, put: Callable[[int], object], how: str
) -> None:
    damage(store, "p", 2, how)
    clock.advance(10)
    reader = consumer(store, topics="p")
    seen: list[int] = []
    for _ in range(20):
        with contextlib.suppress(StoreError):
            seen += numbers(reader.poll(0))
    assert sorted(seen) == [0, 1, 3, 5]
    with pytest.raises(StoreError, match=r"Topic 'p', partition 0, offset 2:0: .*seek\(Offset\(3\)\).* and no others"):
        reader.poll(0)
    assert reader.position() == {("p", 0): Offset(2), ("p", 1): Offset(4)}
    reader.seek(Offset(3), partition=0)
    assert drain(reader) == [4]


def test_a_stuck_partition_is_not_silent_while_others_flow(
    store: FakeStore, clock: FakeClock, put: Callable[[int], object]
) -> None:
    damage(store, "p", 1, "a lost object")
    reader = consumer(store, topics="p")
    seen: list[int] = []
    raised_at: list[float] = []
    began = clock.monotonic()
    sent = list(range(6))
    while clock.monotonic() < began + 3 * RAISE_AGAIN_S:
        sent += [n := len(sent), n + 1]
        put(n)
        put(n + 1)
        before = store.requests["GET"]
        try:
            seen += numbers(reader.poll(1.0))
        except StoreError:
            raised_at.append(clock.monotonic())
        clock.advance(0.1)
    gaps = [b - a for a, b in pairwise(raised_at)]
    assert len(raised_at) == 3
    assert min(gaps) >= RAISE_AGAIN_S
    assert seen == [n for n in sent if n % 2]
    assert store.requests["GET"] - before < 10, "what is behind the damaged place is not fetched again and again"


def test_what_comes_with_an_error_is_not_lost(store: FakeStore, clock: FakeClock, put: Callable[[int], object]) -> None:
    reader = consumer(store, topics="p")
    assert sorted(drain(reader)) == list(range(6))
    put(6)
    put(7)
    damage(store, "p", 4, "a lost object")
    assert numbers(reader.poll(0)) == [7]
    put(8)
    put(9)
    with pytest.raises(StoreError, match="offset 4:0"):
        reader.poll(0)
    assert reader.position() == {("p", 0): Offset(4), ("p", 1): Offset(5)}
    assert numbers(reader.poll(0)) == [9]


def test_within_a_commit_the_objects_before_the_damaged_one_are_delivered(store: FakeStore) -> None:
    send(store, 1, 2)
    send(store, 3)
    first, second = files(store)
    append(store, [Add("a.parquet", 1, 2, 1), Add("b.parquet", 1, 1, 1)])
    store.put("t/a.parquet", store.objects[f"t/{first}"])
    reader = consumer(store, Offset(3))
    (batch,) = reader.poll(0)
    assert (numbers([batch]), batch.next, batch.whole) == ([1, 2], Offset(3, 2), False)
    assert reader.position() == {("t", 0): Offset(3, 2)}
    for _ in range(2):
        with pytest.raises(StoreError, match=r"offset 3:2: .*b\.parquet"):
            reader.poll(0)
    store.put("t/b.parquet", store.objects[f"t/{second}"])
    (batch,) = reader.poll(0)
    assert (numbers([batch]), batch.first, batch.next) == ([3], Offset(3, 2), Offset(4))


@pytest.mark.parametrize("start", ["latest", Offset(3), "time"])
def test_a_damaged_old_entry_does_not_keep_a_consumer_from_opening_behind_it(
    store: FakeStore, clock: FakeClock, start: Any
) -> None:
    for n in range(1, 5):
        clock.advance(10)
        send(store, n)
    damage(store, "t", 2, "a cut entry")
    begin = start
    if start == "time":
        begin = datetime.fromtimestamp(START_US / 1e6, UTC) + timedelta(seconds=31)
    reader = consumer(store, begin)
    assert drain(reader) == {"latest": [], "time": [4]}.get(str(start), [3, 4])
    assert describe_topic(store, "t", clock=clock).heads == (4,)


@pytest.mark.parametrize(("after_s", "position"), [(5, 1), (15, 2), (20, 2), (25, 2), (35, 4), (45, 5)])
def test_a_start_by_time_leaves_out_no_damaged_entry_that_may_be_of_it(
    store: FakeStore, clock: FakeClock, after_s: int, position: int
) -> None:
    for n in range(1, 5):
        clock.advance(10)
        send(store, n)
    damage(store, "t", 2, "a cut entry")
    start = datetime.fromtimestamp(START_US / 1e6, UTC) + timedelta(seconds=after_s)
    assert consumer(store, start).position() == {("t", 0): Offset(position)}


@pytest.mark.parametrize("before", [True, False])
def test_a_hole_stops_its_partition_only_and_until_it_is_filled(
    store: FakeStore, clock: FakeClock, put: Callable[[int], object], before: bool
) -> None:
    name = f"p/_delta_log/{2:020d}.json"
    lost = store.objects[name]
    if before:  # the consumer is opened
        store.delete([name])
    clock.advance(10)
    reader = consumer(store, Offset(1), topics="p")
    if not before:
        reader.seek(Offset(1))  # from there on it reads the log, and not what its opening has read
    store.delete([name])
    seen = numbers(reader.poll(0))
    if not before:
        clock.advance(61)  # as often as the log is asked what is behind the absent entry
    for _ in range(3):
        with pytest.raises(LogIncomplete, match=r"offset 2:0: Entry 2 .* is missing, but entry 3 is there"):
            seen += numbers(reader.poll(0)) or numbers(reader.poll(0))
    assert sorted(seen) == [0, 1, 3, 5]
    store.put(name, lost)
    assert drain(reader) == [2, 4]


# Rewrites by other engines


def test_rows_that_another_engine_deleted_or_updated_stop_the_reader(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1, 2)
    send(store, 3)
    old, other = files(store)
    store.put("t/kept.parquet", store.objects[f"t/{other}"])
    append(store, [Add("kept.parquet", 1, 1, 1)], removes=[old], operation="DELETE")
    send(store, 4)
    clock.advance(10)
    reader = consumer(store)
    assert numbers(reader.poll(0)) == [1, 2, 3]
    for _ in range(2):
        with pytest.raises(TopicRewritten, match=r"Entry 3 of memory://fake/t \(DELETE.*--from 4:0"):
            reader.poll(0)
    reader.seek(Offset(4))
    assert drain(reader) == [4]
    assert drain(consumer(store, accept_rewrites=True)) == [1, 2, 3, 3, 4]


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_topic_stops_the_reader(store: FakeStore, clock: FakeClock, again: bool) -> None:
    reader = consumer(store, "latest")
    delete_topic(store, "t", clock=clock)
    if again:
        create_topic(store, "t", SCHEMA, clock=clock)
    with pytest.raises(TopicDeleted):
        reader.poll(0)


# Polling


def test_idle_polls_back_off_and_cost_gets_not_lists(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    reader = consumer(store, idle_poll_max_s=0.25)
    drain(reader)
    clock.advance(10)
    store.requests.clear()
    clock.slept.clear()
    assert reader.poll(60) == []
    assert clock.slept[0] <= 0.02
    assert clock.slept[10] == 0.25
    # 60 s at four a second, the checkpoint hint each 5 s, and the way up to the ceiling; a look for holes each minute.
    assert store.requests["GET"] <= 240 + 12 + 10 + 1
    assert store.requests["LIST"] <= 1


def test_short_polls_back_off_together(store: FakeStore, clock: FakeClock) -> None:
    reader = consumer(store, idle_poll_max_s=1.0)
    clock.advance(10)
    store.requests.clear()
    for _ in range(60):
        assert reader.poll(1.0) == []
    assert store.requests["GET"] <= 2 * 60 + 12 + 10


def test_polls_are_fast_while_messages_flow(store: FakeStore, clock: FakeClock) -> None:
    reader = consumer(store)
    clock.advance(10)
    reader.poll(5)
    clock.on_sleep = lambda: send(store, 1) if len(clock.slept) % 10 == 0 else None
    clock.slept.clear()
    assert reader.poll(5)
    clock.slept.clear()
    assert reader.poll(5)
    assert max(clock.slept) <= 0.01


class FlowingClock(FakeClock):
    """Sleeps in steps of two milliseconds, so that what happens meanwhile happens in its time."""

    def sleep(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.002) or 1):
            super().sleep(0.002)


@pytest.fixture
def flowing() -> FlowingClock:
    return FlowingClock()


@pytest.fixture
def flowing_store(flowing: FlowingClock) -> FakeStore:
    store = FakeStore(flowing)
    create_topic(store, "t", SCHEMA, clock=flowing)
    return store


def follow(reader: Consumer, store: FakeStore, clock: FakeClock, gaps_s: list[float]) -> tuple[int, float]:
    """Reads while messages are sent with these gaps; returns GETs of the reader, and the longest wait of a message."""
    due = [clock.monotonic() + sum(gaps_s[: n + 1]) for n in range(len(gaps_s))]
    waiting: list[float] = []

    def send_due() -> None:
        while due and due[0] <= clock.monotonic():
            before = store.requests["GET"]
            send(store, 1)
            store.requests["GET"] = before
            waiting.append(due.pop(0))

    clock.on_sleep = send_due
    store.requests.clear()
    late_s = 0.0
    seen = 0
    while seen < len(gaps_s):
        for batch in reader.poll(1.0):
            seen += batch.data.num_rows
            late_s = max(late_s, clock.monotonic() - waiting.pop(0))
    return store.requests["GET"], late_s


def test_a_steady_rhythm_costs_few_polls_and_no_latency(flowing_store: FakeStore, flowing: FlowingClock) -> None:
    store, clock = flowing_store, flowing
    reader = consumer(store)
    follow(reader, store, clock, [0.1] * 10)
    gets, late_s = follow(reader, store, clock, [0.1] * 50)
    assert gets <= 50 * 5, "an entry, an object and about two empty looks; without the rhythm there are ten"
    assert late_s <= 0.015


def test_after_a_change_of_rhythm_one_message_waits_and_no_more_than_the_ceiling(
    flowing_store: FakeStore, flowing: FlowingClock
) -> None:
    store, clock = flowing_store, flowing
    reader = consumer(store, idle_poll_max_s=0.25)
    follow(reader, store, clock, [1.0] * 10)
    _, late_s = follow(reader, store, clock, [1.0, 0.02] + [0.02] * 20)
    assert late_s <= 0.26
    _, late_s = follow(reader, store, clock, [0.02] * 20)
    assert late_s <= 0.02


def test_an_entry_stamped_a_day_ahead_does_not_slow_the_reader_of_a_backlog(store: FakeStore, clock: FakeClock) -> None:
    clock.advance(86_400)
    send(store, 0)
    clock.advance(-86_400)
    for n in range(1, 100):
        send(store, n)  # the log's time does not go back
    reader = consumer(store)
    store.requests.clear()
    polls = 0
    seen = 0
    while seen < 100:
        polls += 1
        seen += len(numbers(reader.poll(0)))
    assert polls < 5


@pytest.mark.parametrize("step_s", [0.0, 1000.0])
def test_the_rhythm_of_a_wrong_clock_does_not_slow_the_reader(
    flowing_store: FakeStore, flowing: FlowingClock, step_s: float
) -> None:
    store, clock = flowing_store, flowing
    reader = consumer(store, idle_poll_max_s=0.25)
    ahead_s = 86_400.0
    real = store.put_if_absent

    def stamped(path: str, data: bytes, *, within_s: float | None = None) -> Any:
        nonlocal ahead_s
        ahead_s += step_s
        lines = [json.loads(line) for line in data.splitlines()]
        lines[0]["commitInfo"]["timestamp"] = int(clock.time_us() / 1000 + ahead_s * 1000)
        return real(path, "".join(json.dumps(line) + "\n" for line in lines).encode(), within_s=within_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "put_if_absent", stamped)
        follow(reader, store, clock, [0.1] * 10)
        _, late_s = follow(reader, store, clock, [0.1] * 30)
    assert late_s <= 0.03


def test_close_ends_iteration(store: FakeStore, clock: FakeClock) -> None:
    for n in range(3):
        send(store, n)
    reader = consumer(store)
    seen = []
    for batch in reader:
        seen += numbers([batch])
        if len(seen) == 3:
            clock.on_sleep = reader.close
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("topics", ["t", ["t", "u"]])
def test_a_poll_may_be_closed_at_any_moment(store: FakeStore, clock: FakeClock, topics: Any) -> None:
    create_topic(store, "u", SCHEMA, clock=clock)
    send(store, 1)
    reader = consumer(store, topics=topics)
    real = PartitionReader.next_entries

    def take(part: PartitionReader, max_bytes: int) -> list[Any]:
        reader.close()
        return real(part, max_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionReader, "next_entries", take)
        assert numbers(reader.poll(0)) == [1]
    send(store, 2)
    assert reader.poll(0) == []
    assert reader.position()["t", 0] == Offset(2)


def test_closing_a_loop_keeps_what_was_not_given_out(store: FakeStore, clock: FakeClock) -> None:
    for n in range(3):
        send(store, n)
    clock.advance(10)
    reader = consumer(store)
    for _ in reader:
        reader.close()
    assert reader.position() == {("t", 0): Offset(2)}


@pytest.mark.parametrize(
    ("until", "expected", "position"),
    [
        (Offset(3), [10, 11, 20, 21], Offset(3)),
        (Offset(3, 1), [10, 11, 20, 21, 30], Offset(3, 1)),
        ("3:2", [10, 11, 20, 21, 30, 31], Offset(3, 2)),
        ("1:0", [], Offset(1)),
        ("1:1", [10], Offset(1, 1)),
        ("20s", [10, 11], Offset(2)),
        ("19s", [10, 11, 20, 21], Offset(3)),
        ("latest", [10, 11, 20, 21, 30, 31, 40, 41], Offset(5)),
        ("earliest", [], Offset(1)),
    ],
)
def test_a_bounded_replay_ends_exactly_there(
    store: FakeStore, clock: FakeClock, until: Start, expected: list[int], position: Offset
) -> None:
    for n in range(1, 5):
        clock.advance(10)
        send(store, n * 10, n * 10 + 1)
    reader = consumer(store, until=until)
    send(store, 50)  # not before the end
    began = clock.monotonic()
    iterated = list(consumer(store, until=until)) if until != "latest" else []
    assert [n for n in numbers(iterated) if n < 50] == (expected if iterated else [])
    assert drain(reader) == expected
    assert reader.finished
    assert reader.poll(60) == []
    assert clock.monotonic() == began  # it does not wait
    assert reader.position() == {("t", 0): position}


def test_the_batch_that_the_end_cuts_says_where_to_go_on(store: FakeStore) -> None:
    send(store, 1, 2, 3, 4)
    (batch,) = consumer(store, "1:1", until="1:3").poll(0)
    assert (numbers([batch]), batch.first, batch.next) == ([2, 3], Offset(1, 1), Offset(1, 3))
    assert drain(consumer(store, batch.next)) == [4]


def test_a_damaged_object_behind_the_end_is_not_read(store: FakeStore) -> None:
    send(store, 1)
    send(store, 2)
    store.put(f"t/{files(store)[1]}", b"damaged")
    assert drain(consumer(store, until="2:0")) == [1]


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        ({"until": "9:0"}, OffsetOutOfRange, "does not exist"),
        ({"until": datetime.fromtimestamp(START_US / 1e6 + 5, UTC)}, ConfigError, "still to come"),
        ({"until": "soon"}, ConfigError, "not a position"),
        ({"until": "latest", "group": "g"}, ConfigError, "leave out group or until"),
    ],
)
def test_an_end_that_cannot_be_reached_is_refused(
    store: FakeStore, more: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        consumer(store, **more)


@pytest.mark.parametrize("start", [1, None, datetime(2026, 1, 1)])  # noqa: DTZ001
def test_what_is_no_start_is_refused(store: FakeStore, start: Any) -> None:
    with pytest.raises(ConfigError, match="a time with a zone"):
        consumer(store, start)


def test_a_seek_to_what_is_not_read_is_refused(store: FakeStore) -> None:
    reader = consumer(store)
    for wrong in ({"topic": "u"}, {"partition": 1}):
        with pytest.raises(ConfigError, match="does not read"):
            reader.seek("latest", **wrong)


def test_a_topic_that_is_named_twice_is_read_once(store: FakeStore) -> None:
    send(store, 1)
    assert drain(consumer(store, topics=["t", "t"])) == [1]


def add_object(store: FakeStore, table: pa.Table, name: str) -> None:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    store.put(f"t/{name}", buffer.getvalue())
    append(store, [Add(name, buffer.tell(), table.num_rows, 0)])


def test_an_object_of_others_without_rows_does_not_end_a_poll(store: FakeStore) -> None:
    send(store, 1)
    add_object(store, pa.table({"n": pa.array([], pa.int64())}), "empty.parquet")
    send(store, 2)
    assert drain(consumer(store, batch_bytes=1)) == [1, 2]


def test_objects_of_others_have_the_columns_of_the_topic(store: FakeStore) -> None:
    add_object(store, pa.table({"more": [5, 6], "n": pa.array([1, 2], pa.int32())}), "other.parquet")
    (batch,) = consumer(store).poll(0)
    table = pa.table(batch.data)
    assert table.column_names == ["n", "_produced_at"]
    assert table["n"].type == pa.int64()
    assert table.to_pylist() == [{"n": 1, "_produced_at": None}, {"n": 2, "_produced_at": None}]


@pytest.mark.parametrize("column", [["1", "x"], [1.5, 2.5], [[1], [2]]])
def test_an_object_of_others_with_another_type_is_named_and_the_rest_delivered(store: FakeStore, column: Any) -> None:
    send(store, 1)
    add_object(store, pa.table({"n": column}), "other.parquet")
    send(store, 2)
    reader = consumer(store, batch_bytes=1)
    assert numbers(reader.poll(0)) == [1]
    with pytest.raises(StoreError, match=r"t/other\.parquet has the column 'n' as"):
        reader.poll(0)
    reader.seek(Offset(3))
    assert drain(reader) == [2]
