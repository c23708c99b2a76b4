"""Dead letters: what a redrive sends, whatever interrupts it, and what a purge removes."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from brokerless.client import Client
from brokerless.consumer import Consumer
from brokerless.dlq import DeadLetters
from brokerless.dlq import letters as letters_module
from brokerless.errors import (
    ConfigError,
    MessageError,
    OffsetOutOfRange,
    SchemaError,
    StoreUnavailable,
    TopicNotFound,
)
from brokerless.ingest.batches import create_ingest_dead_letters
from brokerless.log.log import DeltaLog
from brokerless.maintenance.maintainer import Maintainer
from brokerless.offsets import Offset
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.topics import create_dead_letters, create_topic, delete_topic
from tests.support.fakes import FakeClock, FakeStore

if TYPE_CHECKING:
    from brokerless.store import Outcome, Tag

CLICKS = Schema.parse("user string, n long, at timestamp, raw binary, price decimal(10,2)")
VIEWS = Schema.parse("user string, page string")
AT = "2026-11-21T09:00:00+00:00"


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    return filled(FakeStore(clock))


def filled(store: FakeStore) -> FakeStore:
    """Five dead letters of two topics, in two commits."""
    create_topic(store, "clicks", CLICKS, partitions=2, clock=store.clock)
    create_topic(store, "views", VIEWS, clock=store.clock)
    create_topic(store, "clean", CLICKS, clock=store.clock)
    create_dead_letters(store, "clean", [CLICKS, VIEWS], clock=store.clock)
    with Producer("clean.dead_letters", store=store, clock=store.clock) as producer:
        producer.send([click(0), click(1), view(2)])
        producer.send([click(3), click(4, "n is too large: 4")])
    return store


def click(n: int, reason: str = "no zone") -> dict[str, Any]:
    row = {"user": f"u{n}", "n": n, "at": AT, "raw": b"\x00\xff", "price": "1.50", "page": None}
    return {**row, "_reason": reason, "_topic": "clicks", "_partition": n % 2, "_offset": f"7:{n}"}


def view(n: int) -> dict[str, Any]:
    row = dict.fromkeys(["n", "at", "raw", "price"]) | {"user": f"u{n}", "page": "/"}
    return {**row, "_reason": "no zone", "_topic": "views", "_partition": 0, "_offset": f"7:{n}"}


def dead(store: FakeStore) -> DeadLetters:
    return DeadLetters(store, "clean", clock=store.clock)


def received(store: FakeStore) -> list[str]:
    """The users in clicks and views, with their partitions, in the order of each."""
    found = []
    for topic in ("clicks", "views"):
        with Consumer(topic, start="beginning", store=store, clock=store.clock) as consumer:
            while batches := consumer.poll(0):
                for batch in batches:
                    found += [f"{topic}/{batch.partition} {user}" for user in batch.data.column("user").to_pylist()]
    return sorted(found)


ALL = ["clicks/0 u0", "clicks/0 u4", "clicks/1 u1", "clicks/1 u3", "views/0 u2"]


def test_reasons_are_counted_the_most_frequent_first(store: FakeStore) -> None:
    assert dead(store).reasons() == {"no zone": 4, "n is too large: 4": 1}
    assert dead(store).reasons(start=Offset(2)) == {"no zone": 1, "n is too large: 4": 1}
    assert dead(store).reasons(until=Offset(1, 2)) == {"no zone": 2}


def test_messages_are_chosen_by_reason_position_and_number(store: FakeStore) -> None:
    def positions(**which: Any) -> list[str]:
        return [str(one.position) for one in dead(store).messages(**which)]

    assert positions() == ["1:0", "1:1", "1:2", "2:0", "2:1"]
    assert positions(reason="too large") == ["2:1"]
    assert positions(start=Offset(1, 1), until=Offset(2, 1)) == ["1:1", "1:2", "2:0"]
    assert positions(limit=2) == ["1:0", "1:1"]
    assert positions(limit=0) == []
    one = next(dead(store).messages())
    assert one.row["user"] == "u0"
    assert json.loads(one.json)["_offset"] == "7:0"
    assert json.loads(one.json)["_position"] == "1:0"


def test_a_redrive_sends_the_original_columns_back_once(store: FakeStore) -> None:
    done = dead(store).redrive()
    assert (done.messages, done.topics, done.finished) == (5, {"clicks": 4, "views": 1}, 0)
    assert received(store) == ALL
    with Consumer("clicks", start="beginning", partitions=[0], store=store, clock=store.clock) as consumer:
        (batch,) = consumer.poll(0)
    assert batch.data.column_names == [*CLICKS.names, "_produced_at"]
    assert batch.data.column("raw").to_pylist() == [b"\x00\xff"] * 2
    assert dead(store).redrive().messages == 0
    assert list(dead(store).messages()) == []
    assert dead(store).reasons() == {}
    assert [one.redriven for one in dead(store).messages(redriven=True)] == [True] * 5
    assert received(store) == ALL


def test_parts_are_redriven_in_any_order_and_once(store: FakeStore) -> None:
    assert dead(store).redrive(reason="too large").messages == 1
    assert received(store) == ["clicks/0 u4"]
    assert dead(store).redrive(start=Offset(1, 1), limit=1).messages == 1
    assert received(store) == ["clicks/0 u4", "clicks/1 u1"]
    assert dead(store).redrive(until=Offset(1, 2)).messages == 1
    assert dead(store).redrive().messages == 2
    assert received(store) == ALL


def test_whole_commits_are_recorded_as_one_range(store: FakeStore) -> None:
    dead(store).redrive()
    (path,) = (path for path in store.objects if path.startswith("_brokerless/redrives/"))
    assert json.loads(store.objects[path]) == {"number": 1, "sent": [["1:0", "3:0"]]}


def test_what_fails_again_is_a_new_dead_letter(store: FakeStore) -> None:
    dead(store).redrive()
    with Producer("clean.dead_letters", store=store, clock=store.clock) as producer:
        producer.send([click(3)])
    assert dead(store).reasons() == {"no zone": 1}
    assert dead(store).redrive().topics == {"clicks": 1}
    assert Counter(received(store))["clicks/1 u3"] == 2


def test_many_are_sent_in_several_plans(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters_module, "_PLAN_ROWS", 3)
    assert dead(store).redrive().messages == 5
    (path,) = (path for path in store.objects if path.startswith("_brokerless/redrives/"))
    assert json.loads(store.objects[path])["number"] == 2
    assert received(store) == ALL


def test_a_dry_run_changes_nothing(store: FakeStore) -> None:
    before = dict(store.objects)
    assert dead(store).redrive(dry_run=True).topics == {"clicks": 4, "views": 1}
    assert dead(store).purge(dry_run=True).messages == 5
    assert store.objects == before


class Killed(BaseException):
    """The process ends here."""


class KillingStore(FakeStore):
    """Ends the process at one of its writes, before or after it took effect."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.left = -1
        self.applied = False

    def write(self) -> bool:
        self.left -= 1
        if self.left == 0 and not self.applied:
            raise Killed
        return self.left == 0

    def put(self, path: str, data: bytes, *, within_s: float | None = None) -> None:
        last = self.write()
        super().put(path, data, within_s=within_s)
        if last:
            raise Killed

    def put_if_absent(self, path: str, data: bytes, *, within_s: float | None = None) -> Outcome:
        last = self.write()
        outcome = super().put_if_absent(path, data, within_s=within_s)
        if last:
            raise Killed
        return outcome

    def swap(
        self, path: str, data: bytes, tag: Tag | None, *, within_s: float | None = None
    ) -> tuple[Outcome, Tag | None]:
        last = self.write()
        outcome = super().swap(path, data, tag, within_s=within_s)
        if last:
            raise Killed
        return outcome


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("edited", [False, True])
def test_a_redrive_that_is_killed_at_any_write_loses_and_repeats_nothing(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, applied: bool, edited: bool
) -> None:
    monkeypatch.setattr(letters_module, "_PLAN_ROWS", 3)
    writes = 0
    while True:
        writes += 1
        store = KillingStore(clock)
        filled(store)
        lines = None
        if edited:
            lines = [one.json.replace(': "u', ': "edited-u') for one in dead(store).messages()]
        store.left, store.applied = writes, applied
        try:
            dead(store).redrive(edited=lines)
            break
        except Killed:
            store.left = -1
        done = dead(store).redrive(edited=lines)
        found = received(store)
        expected = [name.replace(" u", " edited-u") for name in ALL] if edited else ALL
        assert found == expected, f"killed at write {writes}"
        assert done.messages + done.finished <= 5
        assert dead(store).reasons() == {}
        assert dead(store).redrive().messages == 0
        (path,) = (path for path in store.objects if path.startswith("_brokerless/redrives/"))
        assert "edited-u" not in store.objects[path].decode()
    assert writes > (8 if edited else 10)  # plans, objects, entries and the end were all reached


def test_a_purge_sends_first_what_an_interrupted_redrive_has_left(clock: FakeClock) -> None:
    store = KillingStore(clock)
    filled(store)
    store.left, store.applied = 1, True  # the plan is noted
    with pytest.raises(Killed):
        dead(store).redrive()
    store.left = -1
    assert dead(store).purge().not_redriven == 0
    assert received(store) == ALL


@pytest.mark.parametrize("plan_rows", [3, 50_000])
def test_two_redrives_at_the_same_time_send_each_message_once(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch, plan_rows: int
) -> None:
    monkeypatch.setattr(letters_module, "_PLAN_ROWS", plan_rows)
    send = DeadLetters._send
    other: list[int] = []

    def overtaken(self: DeadLetters, *args: Any) -> int:
        if not other:
            other.append(0)
            done = dead(store).redrive()  # sends our plan, and what is left after it
            other[:] = [done.finished, done.messages]
        return send(self, *args)

    monkeypatch.setattr(DeadLetters, "_send", overtaken)
    if plan_rows == 3:
        with pytest.raises(StoreUnavailable, match="Another redrive"):
            dead(store).redrive()
        assert other == [3, 2]
    else:
        dead(store).redrive()  # the same plan: nothing is left to do
        assert other == [5, 0]
    assert received(store) == ALL


def test_edited_rows_are_sent_instead_and_once(store: FakeStore) -> None:
    lines = [one.json for one in dead(store).messages(start=Offset(2))]
    rows = [json.loads(line) for line in lines]
    rows[1]["n"] = 40
    del rows[1]["_reason"]
    done = dead(store).redrive(edited=["\n", *(json.dumps(row) for row in rows)])
    assert (done.messages, done.already) == (2, 0)
    with Consumer("clicks", start="beginning", partitions=[0], store=store, clock=store.clock) as consumer:
        (batch,) = consumer.poll(0)
    assert batch.data.column("n").to_pylist() == [40]
    assert batch.data.column("raw").to_pylist() == [b"\x00\xff"]
    again = dead(store).redrive(edited=rows)
    assert (again.messages, again.already) == (0, 2)
    assert dead(store).reasons() == {"no zone": 3}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"n": "many"}, MessageError, "f.jsonl, line 2: .*n"),
        ({"other": 1}, SchemaError, "f.jsonl, line 2: topic 'clicks' has no column 'other'"),
        ({"n": ...}, SchemaError, "f.jsonl, line 2 lacks the column 'n'"),
        ({"_position": ...}, MessageError, "f.jsonl, line 2 has no _position"),
        ({"_position": "2:0"}, MessageError, "f.jsonl, line 2 has the _position of f.jsonl, line 1"),
        ({"_position": "9:0"}, MessageError, "f.jsonl, line 2: there is no dead letter at 9:0"),
    ],
)
def test_one_edited_row_that_does_not_fit_refuses_the_file(
    store: FakeStore, change: dict[str, Any], error: type[Exception], says: str
) -> None:
    rows = [json.loads(one.json) for one in dead(store).messages(start=Offset(2))]
    rows[1] = {key: value for key, value in {**rows[1], **change}.items() if value is not ...}
    with pytest.raises(error, match=says):
        dead(store).redrive(edited=[json.dumps(row) for row in rows], source="f.jsonl")
    assert received(store) == []
    assert dead(store).reasons() == {"no zone": 4, "n is too large: 4": 1}
    with pytest.raises(MessageError, match="line 1 is not JSON"):
        dead(store).redrive(edited=["{"], source="f.jsonl")


def test_values_are_not_dropped_where_the_topic_has_lost_the_column(store: FakeStore) -> None:
    delete_topic(store, "views", clock=store.clock)
    create_topic(store, "views", Schema.parse("user string, added long"), clock=store.clock)
    with pytest.raises(SchemaError, match="values in page, which topic 'views' has not"):
        dead(store).redrive()
    assert received(store) == []


def test_a_column_that_the_topic_got_since_is_null(store: FakeStore) -> None:
    delete_topic(store, "views", clock=store.clock)
    create_topic(store, "views", Schema.parse("user string, page string, added long"), clock=store.clock)
    dead(store).redrive()
    assert received(store) == ALL
    with Consumer("views", start="beginning", store=store, clock=store.clock) as consumer:
        (batch,) = consumer.poll(0)
    assert batch.data.column("added").to_pylist() == [None]


def test_messages_of_a_topic_that_is_gone_are_refused_by_its_name(store: FakeStore) -> None:
    delete_topic(store, "views", clock=store.clock)
    with pytest.raises(TopicNotFound, match="came from topic 'views', which is gone"):
        dead(store).redrive()
    assert dead(store).redrive(reason="too large").messages == 1


def test_a_dead_letter_topic_that_was_made_again_starts_over(store: FakeStore) -> None:
    dead(store).redrive()
    delete_topic(store, "clean.dead_letters", clock=store.clock)
    create_dead_letters(store, "clean", [CLICKS, VIEWS], clock=store.clock)
    with Producer("clean.dead_letters", store=store, clock=store.clock) as producer:
        producer.send([click(0), click(1), view(2)])
    assert dead(store).redrive().messages == 3
    assert Counter(received(store))["clicks/0 u0"] == 2


def test_a_purge_removes_whole_commits_up_to_a_position(store: FakeStore) -> None:
    dead(store).redrive(limit=1)
    done = dead(store).purge(until=Offset(2, 1))
    assert (done.messages, done.not_redriven, done.until) == (3, 2, Offset(2))
    assert dead(store).reasons() == {"no zone": 1, "n is too large: 4": 1}
    log = DeltaLog(store, "clean.dead_letters", clock=store.clock)
    assert len(log.load(with_files=True).files) == 1  # what other engines see
    with pytest.raises(OffsetOutOfRange):
        Consumer("clean.dead_letters", start=Offset(1), store=store, clock=store.clock)
    assert dead(store).purge().messages == 2
    assert dead(store).purge().messages == 0
    assert dead(store).reasons() == {}
    (report,) = Maintainer(["clean.dead_letters"], store=store, clock=store.clock).run_once()
    assert report.skipped == ()
    with Producer("clean.dead_letters", store=store, clock=store.clock) as producer:
        producer.send([click(9)])
    assert dead(store).redrive().messages == 1


def test_dead_letters_of_ingestion_are_shown_and_purged_but_not_redriven(store: FakeStore) -> None:
    create_ingest_dead_letters(store, "clicks", clock=store.clock)
    row = {"_body": "{", "_encoding": "utf-8", "_reason": "not JSON", "_topic": "clicks", "_source": "sqs/q"}
    with Producer("clicks.dead_letters", store=store, clock=store.clock) as producer:
        producer.send([{**row, "_source_position": "1"}])
    found = Client("memory://fake", store=store, clock=store.clock).dead_letters("clicks")
    assert found.reasons() == {"not JSON": 1}
    with pytest.raises(ConfigError, match="brokerless produce clicks"):
        found.redrive()
    assert found.purge().messages == 1
    assert found.reasons() == {}


def test_without_a_dead_letter_topic_the_error_says_what_to_name(store: FakeStore) -> None:
    with pytest.raises(TopicNotFound, match="give the pipeline's output"):
        DeadLetters(store, "views", clock=store.clock)
    create_topic(store, "views.dead_letters", VIEWS, clock=store.clock)
    with pytest.raises(ConfigError, match="no column _reason"):
        DeadLetters(store, "views", clock=store.clock)


def test_a_damaged_ledger_stops_a_redrive(store: FakeStore) -> None:
    dead(store).redrive(limit=1)
    (path,) = (path for path in store.objects if path.startswith("_brokerless/redrives/"))
    store.put(path, b'{"number": 1}')
    with pytest.raises(ConfigError, match="not the record of redriven dead letters"):
        dead(store).redrive()
