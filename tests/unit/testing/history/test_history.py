"""Histories: what is recorded, what survives a kill, and what the wrappers say about real producers and consumers."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from brokerless.consumer import Consumer
from brokerless.errors import CommitUnknown, ConfigError, DeliveryFailed, ProducerFenced, StoreUnavailable
from brokerless.log.log import DEADLINE_S
from brokerless.offsets import Ack, Offset
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.testing.history import Event, History, RecordingConsumer, RecordingProducer, check, read_history
from brokerless.topics import create_topic
from tests.support.fakes import START_US, FakeClock, FakeStore, Put

REPO = Path(__file__).parents[3]


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", Schema.parse("id string, n long"), partitions=2, clock=clock)
    return store


@pytest.fixture
def history(clock: FakeClock) -> History:
    return History(clock=clock)


def recording(store: FakeStore, history: History, **more: Any) -> RecordingProducer:
    wrapped = {"id_column": "id", "name": "p", "clock": store.clock} | {
        k: more.pop(k) for k in ("id_column", "name") if k in more
    }
    producer = Producer("t", store=store, clock=store.clock, linger_s=0, **more)
    return RecordingProducer(producer, history, producer_id=more.get("producer_id"), **wrapped)


def rows(*ids: str) -> list[dict[str, Any]]:
    return [{"id": one, "n": number} for number, one in enumerate(ids)]


def recorded_by(history: History) -> list[tuple[Any, ...]]:
    """The events without times and names."""
    return [(e.op, e.type, list(e.ids), [tuple(a) for a in e.acks]) for e in history.events]


# The file


def test_events_come_back_as_they_were(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "h.jsonl"
    with History(path, clock=clock) as history:
        history.record("p", "send", "invoke", call=1, topic="t", ids=["é\u2028", "b"], queued=True, producer="x")
        clock.advance(1)
        history.record("p", "send", "ok", call=1, topic="t", acks=[[0, 3, 0, 2]], producer="x")
        history.assign("r", topic="t", partition=0, offset=Offset(3), group="g")
    first, second, third = read_history(path).events
    assert first == Event(START_US, "p", "send", "invoke", 1, "t", ids=["é\u2028", "b"], queued=True, producer="x")
    assert (second.at_us, second.acks) == (START_US + 1_000_000, [[0, 3, 0, 2]])
    assert (third.op, third.offset, third.group, third.partition) == ("assign", [3, 0], "g", 0)
    lines = path.read_bytes().split(b"\n")
    assert [json.loads(line)["op"] for line in lines[:-1]] == ["send", "send", "assign"]
    assert "error" not in json.loads(lines[0])  # what has its default is left out


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_torn_last_line_is_left_out_and_reported(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "h.jsonl"
    with History(path) as history:
        for partition in range(3):
            history.release("r", topic="t", partition=partition, group="g")
    path.write_bytes(path.read_bytes()[:-cut])
    recorded = read_history(path)
    assert [event.partition for event in recorded.events] == [0, 1]
    assert recorded.torn == (str(path),)


def test_who_goes_on_with_a_file_cuts_the_torn_line_off(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    for partition in range(2):
        with History(path) as history:
            history.release("r", topic="t", partition=partition, group="g")
        with path.open("ab") as file:
            file.write(b'{"at_us":1,' + b'"process":"' + b"x" * 100_000)
    with History(path) as history:
        history.release("r", topic="t", partition=2, group="g")
    recorded = read_history(path)
    assert [event.partition for event in recorded.events] == [0, 1, 2]
    assert recorded.torn == ()


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        "{}",
        '{"at_us":1,"process":"p","op":"jump","type":"ok"}',
        '{"at_us":1,"process":"p","op":"poll","type":"okay"}',
        '{"at_us":1,"process":"p","op":"poll","type":"ok","more":1}',
        '{"at_us":"1","process":"p","op":"poll","type":"ok"}',
        '{"at_us":1,"process":7,"op":"poll","type":"ok"}',
        '{"at_us":1,"process":"p","op":"poll","type":"ok","ids":[["a"]],"offset":[1,0]}',
        '{"at_us":1,"process":"p","op":"poll","type":"ok","ids":["a"]}',
        '{"at_us":1,"process":"p","op":"poll","type":"ok","offset":[1]}',
        '{"at_us":1,"process":"p","op":"poll","type":"ok","offset":["1",0]}',
        '{"at_us":1,"process":"p","op":"send","type":"ok","acks":[[0,1,2]]}',
        '{"at_us":1,"process":"p","op":"poll","type":"ok"},{"at_us":1,"process":"p","op":"poll","type":"ok"}',
    ],
)
def test_a_line_that_is_no_event_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "h.jsonl"
    good = '{"at_us":1,"process":"p","op":"poll","type":"ok"}\n'
    path.write_text(good + line + "\n" + good)
    with pytest.raises(ConfigError, match="line 2 is not an event"):
        read_history(path)


def test_files_that_are_not_there_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nix\.jsonl cannot be read"):
        read_history(tmp_path / "nix.jsonl")
    with pytest.raises(ConfigError, match="cannot be written"):
        History(tmp_path / "no" / "folder.jsonl")


def test_several_files_are_merged_by_time(tmp_path: Path, clock: FakeClock) -> None:
    histories = [History(tmp_path / name, clock=clock) for name in ("a", "b")]
    for number in range(6):
        clock.advance(0.001)
        histories[number % 2].release("r", topic="t", partition=number, group="g")
    recorded = read_history(tmp_path / "b", tmp_path / "a")
    assert [event.partition for event in recorded.events] == list(range(6))


def test_times_in_a_history_never_go_back(clock: FakeClock, history: History) -> None:
    for seconds in (0, -60, 70):
        clock.advance(seconds)
        history.release("r", topic="t", partition=0, group="g")
    assert [event.at_us - START_US for event in history.events] == [0, 0, 10_000_000]


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    history = History(path)

    def write(thread: int) -> None:
        for call in range(200):
            history.record(f"p{thread}", "send", "invoke", call=call, topic="t", ids=["x" * 50])

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = read_history(path).events
    assert len(events) == 800
    for thread in range(4):
        assert [e.call for e in events if e.process == f"p{thread}"] == list(range(200))


WRITER = """
import itertools, sys
from brokerless.testing.history import History
history = History(sys.argv[1])
for call in itertools.count():
    history.record("p", "send", "invoke", call=call, topic="t", ids=["x" * 2000])
    if call == 100:
        print("enough", flush=True)
"""


@pytest.mark.faults
def test_a_kill_loses_nothing_that_was_recorded_before(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    environ = {**os.environ, "PYTHONPATH": str(REPO)}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], env=environ, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "enough\n"
        writer.send_signal(signal.SIGKILL)
    events = read_history(path).events
    assert [event.call for event in events] == list(range(len(events)))
    assert len(events) > 100


# Producers


def test_a_send_is_recorded_with_its_acknowledgements(store: FakeStore, history: History) -> None:
    with recording(store, history, partition=1) as producer:
        producer.send(rows("a", "b"))
    assert recorded_by(history) == [
        ("send", "invoke", ["a", "b"], []),
        ("send", "ok", [], [(1, 1, 0, 2)]),
    ]
    assert producer.process.startswith("p-")


def test_incarnations_have_different_names(store: FakeStore, history: History) -> None:
    assert len({recording(store, history).process for _ in range(3)}) == 3


def test_queued_calls_are_recorded_when_they_are_settled(store: FakeStore, history: History) -> None:
    with recording(store, history, partition=0) as producer:
        futures = [producer.enqueue(rows(one)) for one in "abc"]
        producer.flush(30)
        assert all(future.result(30) for future in futures)
    invoked = [event for event in history.events if event.type == "invoke"]
    assert [list(event.ids) for event in invoked] == [["a"], ["b"], ["c"]]
    assert all(event.queued for event in invoked)
    ended = {event.call: event.acks for event in history.events if event.type == "ok"}
    places = [ended[event.call][0] for event in invoked]
    assert places == sorted(places)
    assert len(set(places)) == 3


def test_a_lost_answer_is_an_unknown_outcome(store: FakeStore, history: History) -> None:
    with recording(store, history, partition=0, delivery_timeout_s=DEADLINE_S) as producer:
        producer.send(rows("a"))
        store.puts = [Put("unknown", applied=False) for _ in range(10_000)]
        with pytest.raises(DeliveryFailed) as caught:
            producer.send(rows("b", "c"))
    assert caught.value.unknown
    assert recorded_by(history)[-1] == ("send", "unknown", ["b", "c"], [])
    assert "CommitUnknown" not in history.events[-2].error
    assert history.events[-1].error.startswith("DeliveryFailed")


def test_of_a_call_over_two_partitions_each_row_has_its_own_outcome(store: FakeStore, history: History) -> None:
    with recording(store, history, key="id") as producer:
        seen: set[int] = set()
        names = iter(f"k{n}" for n in itertools.count())
        pair = []
        while len(pair) < 2:  # two ids that go to different partitions
            name = next(names)
            (ack,) = producer.send(rows(name))
            if ack.partition not in seen:
                seen.add(ack.partition)
                pair.append(name)
        before = len(history.events)

        def refuse(path: str) -> None:
            if path.startswith("t.1/_delta_log"):
                raise StoreUnavailable("no answer")

        store.on_get = refuse
        producer.wrapped._writers[1].log._state = None
        with pytest.raises(DeliveryFailed) as caught:
            producer.send(rows(*pair))
        store.on_get = None
    ok, rest = history.events[before + 1 :]
    assert (ok.type, rest.type) == ("ok", "fail")
    assert [ok.ids, rest.ids] == [[pair[1 - row]] for row in caught.value.unacknowledged] + [
        [pair[row]] for row in caught.value.unacknowledged
    ]
    assert [ack[0] for ack in ok.acks] == [0]


def test_what_is_refused_before_it_is_sent_is_not_recorded(store: FakeStore, history: History) -> None:
    with recording(store, history) as producer:
        with pytest.raises(Exception, match="no column"):
            producer.send([{"nonsense": 1}])
        with pytest.raises(ConfigError, match="Row 1 must have a value in the column 'id'"):
            producer.send([{"id": "a"}, {"n": 1}])
    assert recorded_by(history) == []


def test_a_fenced_call_is_failed_if_it_had_one_partition(store: FakeStore, clock: FakeClock, history: History) -> None:
    create_topic(store, "one", Schema.parse("id string, n long"), clock=clock)
    for topic, outcome in (("one", "fail"), ("t", "unknown")):
        old = RecordingProducer(Producer(topic, store=store, clock=clock, producer_id="x"), history, id_column="id")
        old.wrapped.send(rows("before"), sequence=0)
        with Producer(topic, store=store, clock=clock, producer_id="x") as new:
            new.send(rows("new"), sequence=2)
        with pytest.raises(ProducerFenced):
            old.send(rows("late"), sequence=4)
        assert recorded_by(history)[-1][:2] == ("send", outcome)


def test_an_unexpected_error_leaves_the_outcome_open(
    store: FakeStore, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    with recording(store, history, partition=0) as producer:
        monkeypatch.setattr(producer.wrapped, "send", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.send(rows("a"))
    assert recorded_by(history)[-1][:2] == ("send", "unknown")


def test_a_repeated_sequence_proves_no_offset(store: FakeStore, history: History) -> None:
    with recording(store, history, partition=0, producer_id="x") as producer:
        producer.send(rows("a"), sequence=1)
        producer.send(rows("a"), sequence=1)
    acks = [event.acks[0] for event in history.events if event.type == "ok"]
    assert [ack[1] for ack in acks] == [2, -1]  # entry 1 took the id over
    assert {event.producer for event in history.events} == {"x"}
    assert check(history.events).ok


def test_the_offset_of_an_earlier_attempt_proves_nothing(
    store: FakeStore, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recording(store, history, partition=0) as producer:
        earlier = Ack("t", 0, version=5, first_index=0, rows=1, duplicate=True)
        monkeypatch.setattr(producer.wrapped, "send", lambda *args, **more: (earlier,))
        producer.send(rows("a"))
    assert [tuple(ack) for ack in history.events[-1].acks] == [(0, -1, 0, 1)]


def test_a_resent_row_that_is_known_by_its_hash_is_not_called_acknowledged(store: FakeStore, history: History) -> None:
    for _ in range(2):  # the second row has another time in _produced_at
        with recording(store, history, id_column=None, producer_id="x") as producer:
            producer.send(rows("a"), sequence=0)
            producer.send(rows("b"))
        store.clock.sleep(1)
    assert [event.type for event in history.events] == ["invoke", "ok"] * 2 + ["invoke", "unknown", "invoke", "ok"]
    with RecordingConsumer(Consumer("t", start="beginning", store=store, clock=store.clock), history) as reader:
        reader.poll(0)
    verdict = check(history.events)
    assert (verdict.ok, verdict.counts["seen"], verdict.counts["of_unknown_outcome"]) == (True, 3, 1)


def test_an_id_column_must_be_there(store: FakeStore, history: History) -> None:
    with pytest.raises(ConfigError, match=r"no column 'key'\. It has: id, n"):
        recording(store, history, id_column="key")


# Consumers


def reading(store: FakeStore, history: History, **more: Any) -> RecordingConsumer:
    wrapped = {k: more.pop(k) for k in ("group",) if k in more}
    consumer = Consumer("t", start="beginning", store=store, clock=store.clock, **more)
    return RecordingConsumer(consumer, history, id_column="id", name="r", **wrapped)


def test_what_was_read_is_recorded_with_its_offsets(store: FakeStore, history: History) -> None:
    with Producer("t", store=store, clock=store.clock, partition=0) as producer:
        producer.send(rows("a", "b"))
        producer.send(rows("c"))
    with reading(store, history, partitions=[0]) as consumer:
        while consumer.poll(0):
            pass
        consumer.seek(Offset(1, 1), partition=0)
        consumer.poll(0)
    events = [(e.op, list(e.ids), e.offset and tuple(e.offset), e.next and tuple(e.next)) for e in history.events]
    assert events[:3] == [
        ("assign", [], (1, 0), None),
        ("poll", ["a", "b"], (1, 0), (2, 0)),
        ("poll", ["c"], (2, 0), (3, 0)),
    ]
    assert events[3:5] == [("assign", [], (1, 1), None), ("poll", ["b"], (1, 1), (2, 0))]
    assert check(history.events).ok


def test_a_seek_in_one_partition_is_recorded_for_that_one(store: FakeStore, history: History) -> None:
    with reading(store, history) as consumer:
        before = len(history.events)
        consumer.seek("latest", partition=1)
    assert [(e.op, e.partition) for e in history.events[before:]] == [("assign", 1)]


def test_a_position_that_moves_without_messages_is_recorded(store: FakeStore, history: History) -> None:
    with Producer("t", store=store, clock=store.clock, partition=0, producer_id="x") as producer:
        producer.claim()  # an entry without messages
    with reading(store, history, partitions=[0]) as consumer:
        assert consumer.poll(0) == []
        assert consumer.poll(0) == []
    assert [(e.op, e.next and tuple(e.next)) for e in history.events] == [("assign", None), ("poll", (2, 0))]


def test_iteration_is_recorded_too(store: FakeStore, history: History) -> None:
    with Producer("t", store=store, clock=store.clock, partition=1) as producer:
        producer.send(rows("a"))
    with reading(store, history) as consumer:
        batch = next(iter(consumer))
    assert batch.partition == 1
    assert [list(event.ids) for event in history.events if event.ids] == [["a"]]


def test_a_member_of_a_group_says_when_it_begins_and_ends(store: FakeStore, history: History) -> None:
    consumer = reading(store, history, group="g")
    consumer.close()
    consumer.close()
    assert [(e.op, e.partition, e.group) for e in history.events] == [
        ("assign", 0, "g"),
        ("assign", 1, "g"),
        ("release", 0, "g"),
        ("release", 1, "g"),
    ]


def test_a_poll_that_fails_is_recorded_and_raised(store: FakeStore, history: History) -> None:
    def refuse(path: str) -> None:
        raise StoreUnavailable("no answer")

    with reading(store, history) as consumer:
        store.on_get = refuse
        with pytest.raises(StoreUnavailable):
            consumer.poll(0)
    assert (history.events[-1].op, history.events[-1].type) == ("poll", "fail")
    assert history.events[-1].error == "StoreUnavailable: Topic 't', partition 0, offset 1:0: no answer"


def test_without_a_column_messages_are_known_by_their_rows(store: FakeStore, clock: FakeClock) -> None:
    history = History(clock=clock)
    with recording(store, history, id_column=None, partition=0) as producer:
        producer.send(rows("a", "b"))
        clock.advance(1)
        producer.send(rows("a"))
    consumer = Consumer("t", start="beginning", store=store, clock=clock)
    with RecordingConsumer(consumer, history) as reader:
        while reader.poll(0):
            pass
    verdict = check(history.events)
    assert verdict.ok, verdict.text()
    assert (verdict.counts["messages_acknowledged"], verdict.counts["seen"]) == (3, 3)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (ProducerFenced("x"), "fail"),
        (CommitUnknown("x", table="t", version=1, commit_id="c"), "unknown"),
        (ValueError("x"), "unknown"),
    ],
)
def test_a_groups_commit_is_recorded_with_its_outcome(history: History, error: Exception | None, outcome: str) -> None:
    def commit() -> None:
        with history.commit("r-1", group="g", topic="t", partition=0, offset=Offset(3)):
            if error is not None:
                raise error

    if error is None:
        commit()
    else:
        with pytest.raises(type(error)):
            commit()
    begun, ended = history.events
    assert (begun.type, ended.type, begun.call) == ("invoke", outcome, ended.call)
    assert (ended.op, ended.group, tuple(ended.offset or ())) == ("commit", "g", (3, 0))


# From end to end, in memory


def test_a_message_that_the_store_lost_is_found(store: FakeStore, clock: FakeClock, history: History) -> None:
    with recording(store, history, partition=0) as producer:
        for one in "abc":
            producer.send(rows(one))
    # Somebody puts an entry without a condition over the second one.
    path = f"t/_delta_log/{2:020d}.json"
    store.put(path, b'{"commitInfo":{"timestamp":1,"operation":"WRITE"}}\n')
    with reading(store, history) as consumer:
        while consumer.poll(0):
            pass
    verdict = check(history.events)
    assert verdict.found == {"lost": 1}
    assert "'b' was acknowledged at t/0 2:0" in verdict.text()
