"""Producers against a store in memory: buffers, failures row by row, identity, partitions."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from brokerless.clock import Clock
from brokerless.columns.records import decode, to_table
from brokerless.consumer import Consumer
from brokerless.errors import (
    AccessDenied,
    BrokerlessError,
    BufferFull,
    CommitUnknown,
    ConfigError,
    DeliveryFailed,
    MessageError,
    ProducerFenced,
    SchemaError,
    TopicDeleted,
    TopicNotFound,
    UsageError,
)
from brokerless.log.log import RECHECK_S, DeltaLog
from brokerless.producer.buffer import Call
from brokerless.producer.partitioner import partition_of
from brokerless.producer.producer import Producer
from brokerless.producer.writer import PartitionWriter
from brokerless.schema import Schema
from brokerless.topics import create_topic, delete_topic
from tests.support.fakes import FakeClock, FakeStore, Put

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = Schema.parse("k string, n long")
WAIT_S = 10


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    create_topic(store, "p4", SCHEMA, partitions=4, clock=clock)
    return store


def rows(*numbers: int, key: str | None = None) -> list[dict[str, Any]]:
    return [{"k": key or str(n), "n": n} for n in numbers]


def read(store: FakeStore, topic: str = "t") -> dict[int, list[int]]:
    """The numbers in each partition, in order."""
    found: dict[int, list[int]] = {}
    with Consumer(topic, start="beginning", store=store, clock=FakeClock()) as consumer:
        while batches := consumer.poll(0):
            for batch in batches:
                found.setdefault(batch.partition, []).extend(pa.table(batch.data)["n"].to_pylist())
    return found


def parquet(store: FakeStore) -> set[str]:
    return {path for path in store.objects if path.endswith(".parquet")}


class Gate(FakeStore):
    """Holds conditional PUTs back until it is opened."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Semaphore(0)

    def put_if_absent(self, path: str, data: bytes, *, within_s: float | None = None) -> Any:
        self.waiting.release()
        assert self.open.wait(WAIT_S)
        return super().put_if_absent(path, data)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate(Clock())
    create_topic(gate, "t", SCHEMA)
    gate.waiting = threading.Semaphore(0)  # the topic's own commit has passed
    yield gate
    gate.open.set()


def test_acknowledgements_say_where_the_messages_are(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock)
    (first,) = producer.send(rows(1, 2))
    (second,) = producer.send({"k": ["x"], "n": [3]})
    assert (str(first.first), str(first.last), first.rows) == ("1:0", "1:1", 2)
    assert str(second.first) == "2:0"
    assert read(store) == {0: [1, 2, 3]}


def test_nothing_costs_nothing(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock)
    store.requests.clear()
    assert producer.send([]) == ()
    assert producer.enqueue([]).result(0) == ()
    producer.close()
    assert not store.requests


def test_one_commit_is_one_object_and_one_entry(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock)
    producer.send(rows(1))
    store.requests.clear()
    producer.send(rows(*range(1000)))
    assert store.requests == {"PUT": 2}


@pytest.mark.parametrize(
    ("messages", "error"), [([{"zz": 1}], SchemaError), ([{"n": "x"}], MessageError), ({"n": [1]}, SchemaError)]
)
def test_bad_messages_are_refused_before_anything_is_written(
    store: FakeStore, clock: FakeClock, messages: Any, error: type[Exception]
) -> None:
    with Producer("t", store=store, clock=clock) as producer:
        store.requests.clear()
        for call in (producer.send, producer.enqueue):
            with pytest.raises(error):
                call(messages)
        assert store.requests == {"GET": 4}, "twice: are these still the columns?"


@pytest.mark.parametrize(
    "arguments",
    [
        {"linger_s": -1},
        {"batch_rows": 0},
        {"buffer_bytes": 0},
        {"delivery_timeout_s": 0},
    ],
)
def test_bad_settings_stop_at_the_start(store: FakeStore, clock: FakeClock, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Producer("t", store=store, clock=clock, **arguments)


def test_unknown_topic_and_key(store: FakeStore, clock: FakeClock) -> None:
    with pytest.raises(TopicNotFound):
        Producer("none", store=store, clock=clock)
    with pytest.raises(SchemaError, match=r"no column 'z'.*it has: k, n"):
        Producer("t", store=store, clock=clock, key="z")


def test_too_many_messages_in_one_call(store: FakeStore, clock: FakeClock) -> None:
    with pytest.raises(UsageError, match="at most"):
        Producer("t", store=store, clock=clock).send(pa.table({"k": pa.nulls(1_000_001), "n": pa.nulls(1_000_001)}))


def test_too_many_bytes_for_the_readers(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerless.producer.producer.MAX_COMMIT_BYTES", 2000)
    with Producer("t", store=gate, batch_bytes=10**9, linger_s=WAIT_S) as producer:
        with pytest.raises(UsageError, match="2000 bytes at a time"):
            producer.send(rows(1, key="x" * 2000))
        futures = [producer.enqueue(rows(n, key="x" * 1500)) for n in range(2)]
        assert [future.result(WAIT_S / 2)[0].version for future in futures[:1]] == [1]  # they do not fit into one


# Failures


def test_unknown_outcome_names_the_rows_and_says_that_they_may_appear(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock, delivery_timeout_s=2)
    store.puts = [Put("unknown", applied=False) for _ in range(100)]
    with pytest.raises(DeliveryFailed, match=r"2 of 2 messages for 't'.*may or may not appear") as caught:
        producer.send(rows(1, 2))
    assert (caught.value.unacknowledged, caught.value.unknown) == ((0, 1), True)
    assert isinstance(caught.value.__cause__, CommitUnknown)
    store.puts.clear()
    store.land_late_puts()
    assert read(store) == {0: [1, 2]}  # its object was not removed


def test_credentials_that_expire_in_doubt_do_not_cost_the_object(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock)
    store.puts = [Put("unknown", applied=False), Put(ConfigError("no credentials"), applied=False)]
    with pytest.raises(DeliveryFailed) as caught:
        producer.send(rows(1))
    assert caught.value.unknown
    store.land_late_puts()
    assert read(store) == {0: [1]}


def test_a_refusal_says_that_nothing_is_in_the_log(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock)
    store.puts = [Put(AccessDenied("no"), applied=False)]
    with pytest.raises(DeliveryFailed, match="they are not in the log") as caught:
        producer.send(rows(1))
    assert not caught.value.unknown
    assert read(store) == {}


def test_rows_of_one_failed_partition_are_named_and_the_others_acknowledged(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("p4", store=store, clock=clock, key="k")
    messages = rows(*range(20))
    lost = partition_of("0", 4)
    DeltaLog(store, "p4" if lost == 0 else f"p4.{lost}", clock=clock).delete()
    with pytest.raises(DeliveryFailed) as caught:
        producer.send(messages)
    expected = tuple(n for n in range(20) if partition_of(str(n), 4) == lost)
    assert caught.value.unacknowledged == expected
    assert sum(ack.rows for ack in caught.value.acknowledged) == 20 - len(expected)


def test_a_deleted_topic_stops_the_producer_which_removes_nothing_itself(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock)
    delete_topic(store, "t", clock=clock)
    store.requests.clear()
    with pytest.raises(TopicDeleted):
        producer.send(rows(1))
    assert not store.requests["DELETE"]


def created_again(store: FakeStore, clock: FakeClock, *, by_hand: bool, columns: str = "n long, k string") -> None:
    if by_hand:
        for path in [path for path in store.objects if path.startswith("t/")]:
            del store.objects[path]
    else:
        delete_topic(store, "t", clock=clock)
    create_topic(store, "t", Schema.parse(columns), clock=clock)


@pytest.mark.parametrize("by_hand", [False, True])
def test_no_duplicate_is_answered_from_memory_of_a_topic_that_is_gone(
    store: FakeStore, clock: FakeClock, by_hand: bool
) -> None:
    producer = Producer("t", producer_id="p", store=store, clock=clock)
    producer.send(rows(1), sequence=0)
    created_again(store, clock, by_hand=by_hand)
    with pytest.raises(TopicDeleted):
        producer.send(rows(1), sequence=0)
    (ack,) = Producer("t", producer_id="p", store=store, clock=clock).send(rows(1), sequence=0)
    assert not ack.duplicate
    assert read(store) == {0: [1]}


def test_no_misfit_is_answered_from_memory_of_columns_that_are_gone(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock)
    created_again(store, clock, by_hand=False, columns="n long, k string, more string")
    with pytest.raises(TopicDeleted):
        producer.send([{"n": 1, "k": "x", "more": "y"}])


def test_a_live_producer_is_not_acknowledged_into_a_table_made_again_by_hand(
    store: FakeStore, clock: FakeClock
) -> None:
    producer = Producer("t", store=store, clock=clock)
    producer.send(rows(1))
    created_again(store, clock, by_hand=True)
    clock.advance(RECHECK_S + 0.1)
    with pytest.raises(TopicDeleted):
        producer.send(rows(2))


def test_ids_from_outside_have_a_name_space_of_their_own(store: FakeStore, clock: FakeClock) -> None:
    own = Producer("t", producer_id="billing", store=store, clock=clock)
    own.send(rows(1), sequence=5)
    for caller in ("http/alice", "http/bob"):
        (ack,) = Producer("t", producer_id="billing", namespace=caller, store=store, clock=clock).send(
            rows(2), sequence=5
        )
        assert not ack.duplicate
    (ack,) = own.send(rows(3), sequence=6)
    assert not ack.duplicate, "fenced by nobody"


def test_a_claim_in_another_thread_does_not_fence_the_producer(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", producer_id="p", store=store, clock=clock)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(producer.claim) if n % 2 else pool.submit(producer.send, rows(n)) for n in range(8)]
        for call in calls:
            call.result()
    assert sorted(read(store)[0]) == [0, 2, 4, 6]


def test_the_last_sequence_is_read_without_a_commit_and_fences_nobody(store: FakeStore, clock: FakeClock) -> None:
    first = Producer("t", store=store, clock=clock, producer_id="p")
    first.send(rows(0), sequence=0)
    second = Producer("t", store=store, clock=clock, producer_id="p")
    puts = store.requests["PUT"]
    assert second.last_sequence() == 0
    assert store.requests["PUT"] == puts
    first.send(rows(1), sequence=1)
    assert (first.last_sequence(), second.last_sequence()) == (1, 1)


def test_a_claim_stops_the_older_producer_at_once_and_only_where_it_writes(store: FakeStore, clock: FakeClock) -> None:
    old = [Producer("p4", store=store, clock=clock, producer_id="p", partition=n) for n in (1, 2)]
    for producer in old:
        producer.send(rows(0), sequence=0)
    young = Producer("p4", store=store, clock=clock, producer_id="p", partition=1)
    young.claim()
    assert young.last_sequence(1) == 0
    with pytest.raises(ProducerFenced):
        old[0].send(rows(1), sequence=1)
    with pytest.raises(ProducerFenced):
        old[0].claim()
    old[1].send(rows(1), sequence=1)
    Producer("p4", store=store, clock=clock, producer_id="p").claim()
    with pytest.raises(ProducerFenced):
        old[1].send(rows(2), sequence=2)


def test_only_an_id_can_be_claimed(store: FakeStore, clock: FakeClock) -> None:
    with pytest.raises(ConfigError, match="producer_id"):
        Producer("t", store=store, clock=clock).claim()


def test_producers_of_one_process_share_entries_and_know_their_rows(store: FakeStore, clock: FakeClock) -> None:
    producers = [Producer("t", store=store, clock=clock) for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        acks = list(pool.map(lambda n: producers[n].send(rows(n, 100 + n))[0], range(20)))
    entries = {entry.version: entry for entry in DeltaLog(store, "t", clock=clock).read_from(1)}
    place = {}
    for version, entry in entries.items():
        found = [n for add in entry.messages for n in decode(store.get(f"t/{add.path}")).column("n").to_pylist()]
        place |= {n: (version, index) for index, n in enumerate(found)}
    for n, ack in enumerate(acks):
        assert (place[n], place[100 + n]) == ((ack.version, ack.first_index), (ack.version, ack.first_index + 1))


def test_a_deadline_bounds_the_wait_for_other_calls_too(store: FakeStore) -> None:
    producer = Producer("t", delivery_timeout_s=0.2, store=store)
    held = threading.Event()
    store.puts = [Put("created", before=lambda: held.wait(30) and None)]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(producer.send, rows(1))
        while store.puts:
            time.sleep(0.001)
        with pytest.raises(DeliveryFailed, match=r"took the 0\.2 s of this one; nothing of it was written"):
            producer.send(rows(2))
        held.set()
        first.result(30)


def test_an_upload_that_waited_too_long_is_uploaded_again(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock)

    def sleep_and_be_swept() -> None:
        clock.advance(2 * 3600)
        store.delete(sorted(parquet(store)))

    store.puts = [Put("created", before=sleep_and_be_swept)]
    producer.send(rows(1))
    assert read(store) == {0: [1]}


# Identity


def test_a_restarted_producer_writes_only_what_is_missing(store: FakeStore, clock: FakeClock) -> None:
    first = Producer("t", store=store, clock=clock, producer_id="p")
    first.send(rows(0), sequence=0)
    (there,) = first.send(rows(1), sequence=1)
    second = Producer("t", store=store, clock=clock, producer_id="p")
    assert second.last_sequence() == 1
    (again,) = second.send(rows(1), sequence=1)
    (new,) = second.send(rows(2), sequence=2)
    assert (there.duplicate, again.duplicate, new.duplicate) == (False, True, False)
    assert read(store) == {0: [0, 1, 2]}


def test_the_older_producer_is_fenced_and_cleans_up(store: FakeStore, clock: FakeClock) -> None:
    old = Producer("t", store=store, clock=clock, producer_id="p")
    old.send(rows(0))
    new = Producer("t", store=store, clock=clock, producer_id="p")
    new.send(rows(1))
    before = parquet(store)
    for _ in range(2):
        with pytest.raises(ProducerFenced, match="'p' took over"):
            old.send(rows(9))
    assert parquet(store) == before
    new.send(rows(2))
    assert read(store) == {0: [0, 1, 2]}


def test_a_fenced_producer_is_told_of_no_message_of_its_successor_that_it_is_its_own(
    store: FakeStore, clock: FakeClock
) -> None:
    old = Producer("t", store=store, clock=clock, producer_id="p")
    old.send(rows(0), sequence=0)
    new = Producer("t", store=store, clock=clock, producer_id="p")
    new.send(rows(1), sequence=1)
    clock.advance(3600)  # so long that the old one catches up with the log before it looks at the sequence
    for _ in range(2):
        with pytest.raises(ProducerFenced):
            old.send(rows(9), sequence=1)
    assert read(store) == {0: [0, 1]}


def test_who_is_fenced_in_one_partition_is_fenced_in_all(store: FakeStore, clock: FakeClock) -> None:
    create_topic(store, "two", Schema.parse("k string, n long"), partitions=2, clock=clock)
    old, new = (Producer("two", store=store, clock=clock, producer_id="p") for _ in range(2))
    for number in range(2):
        old.send(rows(number), sequence=number)  # without a key, sequences take turns between the partitions
    new.send(rows(3), sequence=3)
    with pytest.raises(ProducerFenced):
        old.send(rows(13), sequence=3)
    with pytest.raises(ProducerFenced):
        old.send(rows(12), sequence=2)
    assert read(store, "two") == {0: [0], 1: [1, 3]}


def test_unknown_outcome_then_the_same_sequence_again(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock, producer_id="p", delivery_timeout_s=2)
    producer.send(rows(0), sequence=0)
    store.puts = [Put("unknown", applied=False) for _ in range(100)]
    with pytest.raises(DeliveryFailed):
        producer.send(rows(1), sequence=1)
    store.puts.clear()
    store.land_late_puts()
    (ack,) = producer.send(rows(1), sequence=1)
    assert (ack.duplicate, ack.version) == (True, 3)
    assert read(store) == {0: [0, 1]}


@pytest.mark.parametrize("passed_over", ["failed", "never sent", "without a sequence"])
def test_a_sequence_that_was_passed_over_is_not_taken_for_a_duplicate(
    store: FakeStore, clock: FakeClock, passed_over: str
) -> None:
    producer = Producer("t", store=store, clock=clock, producer_id="p")
    producer.send(rows(0), sequence=0)
    if passed_over == "failed":
        store.puts = [Put(AccessDenied("no"), applied=False)]
        with pytest.raises(DeliveryFailed):
            producer.send(rows(1), sequence=1)
    if passed_over == "without a sequence":
        producer.send(rows(10))
    producer.send(rows(2), sequence=2)
    with pytest.raises(UsageError, match="Sequence 1 of 'p' comes after 2"):
        producer.send(rows(1), sequence=1)
    assert [producer.send(rows(n), sequence=n)[0].duplicate for n in (0, 2)] == [True, True]


def test_an_unknown_outcome_that_was_found_meanwhile_is_a_duplicate(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock, producer_id="p", delivery_timeout_s=1)
    producer.send(rows(0), sequence=0)
    store.puts = [Put("unknown", applied=n == 0) for n in range(100)]
    store.on_get = lambda path: (_ for _ in ()).throw(AccessDenied("no")) if path.endswith("3.json") else None
    with pytest.raises(DeliveryFailed) as caught:
        producer.send(rows(1), sequence=1)
    assert caught.value.unknown
    store.on_get, store.puts = None, [Put(AccessDenied("no"), applied=False)]
    clock.advance(100)  # so that the log is looked at before a PUT
    for _ in range(2):
        assert producer.send(rows(1), sequence=1)[0].duplicate
    assert read(store) == {0: [0, 1]}


def test_an_interrupted_commit_is_no_rivals(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("t", store=store, clock=clock, producer_id="p")
    producer.send(rows(0), sequence=0)
    store.puts = [Put(KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        producer.send(rows(1), sequence=1)
    assert producer.send(rows(1), sequence=1)[0].duplicate
    assert read(store) == {0: [0, 1]}


def test_a_later_call_waits_for_what_an_interrupted_one_left_on_its_way(
    store: FakeStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    waits: list[int] = []

    def write(*_: object) -> tuple[int, bool]:
        threading.Event().wait(0.2)
        ended.append(1)
        return 1, False

    def interrupted(futures: Any) -> Any:
        waits.append(1)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return concurrent.futures.wait(futures)

    producer = Producer("p4", store=store, clock=clock, key="n")
    monkeypatch.setattr(PartitionWriter, "write", write)
    monkeypatch.setattr("brokerless.producer.producer.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.send(rows(*range(40)))
    assert len(ended) == 4


def test_all_partitions_are_written_where_no_thread_starts_any_more(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("p4", store=store, clock=clock, key="n")
    assert producer._pool
    producer._pool.shutdown()  # as the interpreter does it before the exit handlers
    producer.send(rows(*range(40)))
    assert sorted(n for found in read(store, "p4").values() for n in found) == list(range(40))


def test_a_fresh_topic_does_not_remember_the_old_ones_sequences(store: FakeStore, clock: FakeClock) -> None:
    Producer("t", store=store, clock=clock, producer_id="p").send(rows(0), sequence=5)
    delete_topic(store, "t", clock=clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    producer = Producer("t", store=store, clock=clock, producer_id="p")
    assert producer.last_sequence() is None
    (ack,) = producer.send(rows(1), sequence=0)
    assert not ack.duplicate
    assert read(store) == {0: [1]}


def test_sequences_need_an_id(store: FakeStore, clock: FakeClock) -> None:
    with pytest.raises(ConfigError):
        Producer("t", store=store, clock=clock).send(rows(1), sequence=0)
    with pytest.raises(ConfigError):
        Producer("t", store=store, clock=clock, producer_id="p").send(rows(1), sequence=-1)
    assert Producer("t", store=store, clock=clock).last_sequence() is None


# Partitions


def test_keys_go_where_kafka_sends_them_in_order(store: FakeStore, clock: FakeClock) -> None:
    Producer("p4", store=store, clock=clock, key="k").send(rows(*range(50)))
    found = read(store, "p4")
    for partition in range(4):
        assert found[partition] == [n for n in range(50) if partition_of(str(n), 4) == partition]


def test_without_a_key_whole_commits_go_in_turn(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("p4", store=store, clock=clock)
    acks = [producer.send(rows(n))[0] for n in range(8)]
    assert sorted(ack.partition for ack in acks) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_producer_keeps_to_its_partition(store: FakeStore, clock: FakeClock) -> None:
    producer = Producer("p4", store=store, clock=clock, partition=2)
    assert {ack.partition for n in range(5) for ack in producer.send(rows(n))} == {2}


@pytest.mark.parametrize("wrong", [{"partition": 4}, {"partition": -1}, {"partition": 1, "key": "k"}])
def test_a_partition_must_exist_and_excludes_a_key(store: FakeStore, clock: FakeClock, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="partitions 0 to 3"):
        Producer("p4", store=store, clock=clock, **wrong)


@pytest.mark.parametrize("key", ["k", None])
def test_an_exact_resend_cuts_rows_as_the_first_time_null_keys_too(
    store: FakeStore, clock: FakeClock, key: str | None
) -> None:
    messages = [*rows(1, 2, 3), {"k": None, "n": 4}, {"k": None, "n": 5}]
    for seed in range(5):  # each restart begins its turns elsewhere
        clock.rng.seed(seed)
        producer = Producer("p4", store=store, clock=clock, key=key, producer_id="p")
        for sequence in range(3):
            producer.send(messages, sequence=sequence)
    assert sorted(n for numbers in read(store, "p4").values() for n in numbers) == sorted([1, 2, 3, 4, 5] * 3)


def test_a_key_of_another_type_is_refused(store: FakeStore, clock: FakeClock) -> None:
    create_topic(store, "f", Schema.parse("x double"), partitions=2, clock=clock)
    with pytest.raises(SchemaError, match="cannot be a key"):
        Producer("f", store=store, clock=clock, key="x").send([{"x": 1.0}])


# The buffer


def test_calls_are_committed_together_in_order(gate: Gate) -> None:
    with Producer("t", store=gate, linger_s=60) as producer:
        futures = [producer.enqueue(rows(n, n + 1)) for n in range(0, 10, 2)]
        producer.flush(WAIT_S)
        acks = [future.result(0)[0] for future in futures]
    assert {ack.version for ack in acks} == {1}
    assert [ack.first_index for ack in acks] == [0, 2, 4, 6, 8]
    assert read(gate) == {0: list(range(10))}


def test_linger_ends_by_itself(gate: Gate) -> None:
    with Producer("t", store=gate, linger_s=0.01) as producer:
        assert producer.enqueue(rows(1)).result(WAIT_S)[0].version == 1


@pytest.mark.parametrize("limit", [{"batch_rows": 4}, {"batch_bytes": 50}])
def test_a_full_batch_does_not_linger(gate: Gate, limit: dict[str, int]) -> None:
    with Producer("t", store=gate, linger_s=3600, **limit) as producer:
        futures = [producer.enqueue(rows(n, n)) for n in range(2)]
        for future in futures:
            assert future.result(WAIT_S)


def test_batches_are_cut_at_the_row_limit(gate: Gate) -> None:
    gate.open.clear()
    with Producer("t", store=gate, linger_s=0, batch_rows=4) as producer:
        futures = [producer.enqueue(rows(0))]
        assert gate.waiting.acquire(timeout=WAIT_S)
        futures += [producer.enqueue(rows(n, n)) for n in range(1, 5)]
        gate.open.set()
        versions = [future.result(WAIT_S)[0].version for future in futures]
    assert versions == [1, 2, 2, 3, 3]


def test_a_full_buffer_pushes_back_and_drains(gate: Gate) -> None:
    gate.open.clear()
    producer = Producer("t", store=gate, linger_s=0, buffer_bytes=200)
    first = producer.enqueue(rows(*range(100)))  # larger than the buffer, but alone
    with pytest.raises(BufferFull, match="buffer_bytes"):
        producer.enqueue(rows(1), max_block_s=0.01)
    gate.open.set()
    assert first.result(WAIT_S)
    assert producer.enqueue(rows(2), max_block_s=WAIT_S).result(WAIT_S)
    producer.close()
    assert read(gate)[0] == [*range(100), 2]


def test_enqueue_waits_while_the_buffer_is_full(gate: Gate) -> None:
    gate.open.clear()
    producer = Producer("t", store=gate, linger_s=0, buffer_bytes=1)
    producer.enqueue(rows(1))
    done = threading.Event()

    def enqueue() -> None:
        producer.enqueue(rows(2), max_block_s=WAIT_S)
        done.set()

    thread = threading.Thread(target=enqueue)
    thread.start()
    assert not done.wait(0.02)
    gate.open.set()
    assert done.wait(WAIT_S)
    thread.join(WAIT_S)
    producer.close()
    assert read(gate) == {0: [1, 2]}


def test_flush_waits_for_what_was_before_it_only(gate: Gate) -> None:
    producer = Producer("t", store=gate, linger_s=3600)
    producer.enqueue(rows(1))
    producer.flush(WAIT_S)
    gate.open.clear()
    behind = producer.enqueue(rows(2))
    with pytest.raises(TimeoutError):
        producer.flush(0.02)
    gate.open.set()
    producer.flush(WAIT_S)
    assert behind.done()
    producer.close()


def test_flush_ends_though_others_go_on_enqueueing(gate: Gate) -> None:
    producer = Producer("t", store=gate, linger_s=0)
    gate.open.clear()
    first = producer.enqueue(rows(1))
    assert gate.waiting.acquire(timeout=WAIT_S)
    flushed = threading.Event()
    flusher = threading.Thread(target=lambda: (producer.flush(WAIT_S), flushed.set()))
    flusher.start()
    assert not flushed.wait(0.02)
    producer.enqueue(rows(2))
    stuck = threading.Event()

    def second_waits(path: str, data: bytes) -> Any:
        if path.endswith("2.json"):
            assert stuck.wait(WAIT_S)
        return FakeStore.put_if_absent(gate, path, data)

    gate.put_if_absent = second_waits  # type: ignore[method-assign]
    gate.open.set()
    assert first.result(WAIT_S)
    assert flushed.wait(WAIT_S)
    stuck.set()
    flusher.join(WAIT_S)
    producer.close()


def test_close_commits_what_waits_and_later_calls_fail(gate: Gate) -> None:
    producer = Producer("t", store=gate, linger_s=3600)
    future = producer.enqueue(rows(1))
    producer.close()
    producer.close()
    assert future.result(0)[0].version == 1
    for call in (producer.send, producer.enqueue):
        with pytest.raises(BrokerlessError, match="closed"):
            call(rows(2))


def test_errors_reach_the_right_future_and_the_next_call_goes_on(gate: Gate) -> None:
    producer = Producer("t", store=gate, linger_s=0)
    gate.puts = [Put(AccessDenied("no"), applied=False)]
    bad = producer.enqueue(rows(1))
    assert isinstance(bad.exception(WAIT_S), DeliveryFailed)
    assert producer.enqueue(rows(2)).result(WAIT_S)
    producer.close()
    assert read(gate) == {0: [2]}


def test_a_defect_below_does_not_hang_the_callers(gate: Gate) -> None:
    producer = Producer("t", store=gate, linger_s=0)
    gate.puts = [Put(RuntimeError("a defect"), applied=False)]
    assert isinstance(producer.enqueue(rows(1)).exception(WAIT_S), RuntimeError)
    assert producer.enqueue(rows(2)).result(WAIT_S)
    producer.close()


def test_a_callback_that_exits_costs_nobody_an_acknowledgement(gate: Gate) -> None:
    producer = Producer("t", store=gate, linger_s=WAIT_S)
    futures = [producer.enqueue(rows(n)) for n in range(2)]
    futures[0].add_done_callback(lambda _: sys.exit())
    producer.flush(WAIT_S)
    assert [future.result(0)[0].version for future in futures] == [1, 1]
    producer.enqueue(rows(2))
    producer.close()
    assert read(gate) == {0: [0, 1, 2]}


def test_a_callback_may_not_wait_for_itself(gate: Gate) -> None:
    refused: list[BaseException] = []

    def callback(_: object) -> None:
        for wait in (producer.flush, producer.close):
            try:
                wait()
            except UsageError as error:
                refused.append(error)

    producer = Producer("t", store=gate, linger_s=0.1)
    producer.enqueue(rows(1)).add_done_callback(callback)
    producer.flush(WAIT_S)
    producer.close()
    assert len(refused) == 2


@pytest.mark.parametrize("forever", [float("inf"), 1e10])
def test_waits_may_be_endless(gate: Gate, forever: float) -> None:
    producer = Producer("t", store=gate, linger_s=forever, delivery_timeout_s=forever, buffer_bytes=1)
    futures = [producer.enqueue(rows(1))]
    thread = threading.Thread(target=lambda: futures.append(producer.enqueue(rows(2))))  # which has to wait
    thread.start()
    producer.flush(forever)
    thread.join(WAIT_S)
    producer.close()
    assert [future.result(0)[0].rows for future in futures] == [1, 1]


def test_a_buffered_call_cannot_be_cancelled(gate: Gate) -> None:
    gate.open.clear()
    producer = Producer("t", store=gate, linger_s=0)
    future = producer.enqueue(rows(1))
    assert not future.cancel()
    gate.open.set()
    assert future.result(WAIT_S)
    producer.close()


def test_an_unknown_outcome_is_not_hidden_by_another_partitions_refusal(store: FakeStore) -> None:
    table = to_table([{"n": 1}, {"n": 2}], Schema.parse("n long"), topic="t", produced_at_us=0)
    call = Call(table, {}, Producer("t", store=store))
    call.fail(ProducerFenced("another one took over"), [0])
    call.fail(CommitUnknown("nobody can say", table="t.1", version=3, commit_id="c"), [1])
    call.settle("t")
    with pytest.raises(DeliveryFailed) as failed:
        call.future.result()
    assert failed.value.unknown
    assert failed.value.unacknowledged == (0, 1)


@pytest.mark.parametrize("producer_id", ["", "a/b", "x" * 201, "a\udcff", "a\x00", "a\nb"])
def test_a_producer_id_that_the_log_cannot_hold_is_refused(
    producer_id: str, store: FakeStore, clock: FakeClock
) -> None:
    with pytest.raises(ConfigError, match="printable characters and no '/'"):
        Producer("t", store=store, clock=clock, producer_id=producer_id)
