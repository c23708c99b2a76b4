"""Retention, merging, compaction by key and erasure: what other engines see, and what no reader of the log notices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerless.alter import alter_topic, limits_of
from brokerless.columns import records
from brokerless.columns.select import Condition
from brokerless.consumer import Consumer
from brokerless.errors import ConfigError, OffsetOutOfRange
from brokerless.log.log import DeltaLog
from brokerless.log.rewrite import Rewrite, RewriteConflict
from brokerless.maintenance import compaction
from brokerless.maintenance.erasure import erase_messages
from brokerless.maintenance.maintainer import SETTLE_S, Maintainer
from brokerless.offsets import Offset
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.topics import create_topic
from tests.support.checkpoints import write_checkpoint
from tests.support.fakes import FakeClock, FakeStore

SCHEMA = Schema.parse("user string, n long")
HOUR, DAY = 3600, 86400


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    return store


def limit(store: FakeStore, **limits: Any) -> None:
    alter_topic(store, "t", limits_of(SCHEMA, **limits), clock=store.clock)


def maintain(store: FakeStore, **more: Any) -> Any:
    maintainer = Maintainer(["t"], store=store, clock=store.clock, **{"checkpoint_every": 10**9, **more})
    (report,) = maintainer.run_once()
    assert report.skipped == ()
    return report


def send(store: FakeStore, *numbers: int, user: str = "u") -> None:
    Producer("t", store=store, clock=store.clock).send([{"user": user, "n": n} for n in numbers])


def log_of(store: FakeStore) -> DeltaLog:
    return DeltaLog(store, "t", clock=store.clock)


def table_rows(store: FakeStore) -> list[int]:
    """What another engine reads: the live files."""
    files = log_of(store).load(with_files=True).files
    tables = [records.load(store, f"t/{path}") for path in files]
    return sorted(n for table in tables for n in table.column("n").to_pylist())


def consumed(consumer: Consumer) -> list[tuple[Offset, int]]:
    found = []
    while batches := consumer.poll(0):
        for batch in batches:
            rows = batch.data.column("n").to_pylist()
            found += [(Offset(batch.version, batch.first_index + row), n) for row, n in enumerate(rows)]
    return found


def reader(store: FakeStore, start: Any = "beginning") -> Consumer:
    return Consumer("t", start=start, store=store, clock=store.clock)


def test_old_messages_leave_the_table_then_the_log_then_the_bucket(store: FakeStore, clock: FakeClock) -> None:
    limit(store, retention_s=DAY)
    live = reader(store, "latest")
    for n in range(3):
        send(store, n)
    clock.advance(DAY + 1)
    send(store, 3, 4)
    assert maintain(store).entries_expired == 4  # the three, and the one that set the limit
    assert table_rows(store) == [3, 4]
    assert [n for _, n in consumed(live)] == [0, 1, 2, 3, 4]  # who is under way finds what it has not read yet
    with pytest.raises(OffsetOutOfRange) as refused:
        reader(store, Offset(2))
    assert refused.value.earliest == Offset(5)
    assert [n for _, n in consumed(reader(store))] == [3, 4]
    write_checkpoint(log_of(store))
    clock.advance(SETTLE_S)
    assert maintain(store).entries_removed == 5
    assert [n for _, n in consumed(reader(store))] == [3, 4]
    objects = {path for path in store.objects if path.endswith(".parquet") and "_log" not in path}
    clock.advance(2 * HOUR)
    assert maintain(store).objects_removed == 3
    assert len(objects & store.objects.keys()) == 1
    assert [n for _, n in consumed(reader(store))] == [3, 4]


def test_a_long_retention_keeps_entries_longer_than_the_maintainer_would(store: FakeStore, clock: FakeClock) -> None:
    limit(store, retention_s=30 * DAY)
    send(store, 1)
    clock.advance(20 * DAY)
    send(store, 2)
    write_checkpoint(log_of(store))
    clock.advance(HOUR)
    assert maintain(store).entries_removed == 0
    assert [n for _, n in consumed(reader(store))] == [1, 2]


def test_a_partition_is_not_larger_than_its_limit(store: FakeStore, clock: FakeClock) -> None:
    for n in range(6):
        send(store, n)
    one = next(iter(log_of(store).load(with_files=True).files.values())).size
    limit(store, retention_bytes=3 * one + one // 2)
    assert maintain(store).entries_expired == 3
    assert table_rows(store) == [3, 4, 5]
    assert maintain(store).entries_expired == 0


def test_messages_go_once_every_group_has_read_them(store: FakeStore, clock: FakeClock) -> None:
    limit(store, until_read=True)
    for n in range(4):
        send(store, n)
    assert maintain(store).entries_expired == 0  # nobody has read anything
    for group in ("fast", "slow"):
        with Consumer("t", group=group, start="beginning", auto_commit=False, store=store, clock=clock) as consumer:
            batches = []
            while len(batches) < 4:
                batches += consumer.poll(1)
            batches[3 if group == "fast" else 1].commit()
    assert maintain(store).entries_expired == 3  # up to what the slow one has committed, and the limit's own entry
    assert table_rows(store) == [2, 3]


def test_small_objects_are_merged_and_no_reader_notices(store: FakeStore, clock: FakeClock) -> None:
    live = reader(store)
    for n in range(30):
        send(store, n, 100 + n)
        if n == 10:
            before = consumed(live)
    offsets = [*before, *consumed(live)]
    clock.advance(compaction.SETTLED_S + 1)
    send(store, 99)  # too young
    report = maintain(store, merge_every=10)
    assert report.objects_merged == 30
    assert len(log_of(store).load(with_files=True).files) == 2
    assert table_rows(store) == sorted([n for _, n in offsets] + [99])
    assert consumed(live) == [(Offset(31), 99)]
    assert consumed(reader(store))[:-1] == offsets
    assert consumed(reader(store, Offset(5, 1)))[0] == offsets[9]
    assert maintain(store, merge_every=10).objects_merged == 0


def test_merged_objects_that_are_still_small_are_merged_again(store: FakeStore, clock: FakeClock) -> None:
    for turn in range(8):
        for n in range(10):
            send(store, 10 * turn + n)
        clock.advance(compaction.SETTLED_S + 1)
        maintain(store, merge_every=10)
    maintain(store, merge_every=10)
    assert len(log_of(store).load(with_files=True).files) == 1
    assert table_rows(store) == list(range(80))


def test_the_latest_message_of_each_key_stays(store: FakeStore, clock: FakeClock) -> None:
    limit(store, compact_by="user")
    live = reader(store)
    for n in range(20):
        send(store, n, user=f"u{n % 3}")
    Producer("t", store=store, clock=clock).send([{"user": "u1", "n": None}])  # deletes u1
    assert len(consumed(live)) == 21
    clock.advance(compaction.SETTLED_S + 1)
    maintain(store, merge_every=10)
    files = log_of(store).load(with_files=True).files
    (table,) = [records.load(store, f"t/{path}") for path in files]
    assert table.column("user").to_pylist() == ["u2", "u0", "u1"]
    assert table.column("n").to_pylist() == [17, 18, None]
    assert consumed(live) == []
    assert len(consumed(reader(store))) == 21  # the log has all of them, for as long as its entries stay


def test_erased_messages_leave_the_table_and_the_others_are_not_read_again(store: FakeStore, clock: FakeClock) -> None:
    live = reader(store)
    send(store, 1, 2, user="a")
    send(store, 3, user="b")
    Producer("t", store=store, clock=clock).send([{"user": "a", "n": 4}, {"user": "b", "n": 5}])
    assert len(consumed(live)) == 5
    (trial,) = erase_messages(store, "t", "user = 'a'", dry_run=True, clock=clock)
    assert (trial.messages, trial.objects, trial.version) == (3, 2, None)
    (done,) = erase_messages(store, "t", "user = 'a'", by="privacy@example.com", clock=clock)
    assert (done.messages, done.objects, done.version) == (3, 2, 4)
    assert table_rows(store) == [3, 5]
    audit = json.loads(store.objects["t/_delta_log/" + f"{4:020d}.json"].splitlines()[0])["commitInfo"]
    assert audit["erased"] == {"messages": 3, "objects": 2, "by": "privacy@example.com"}
    send(store, 6, user="a")
    assert [n for _, n in consumed(live)] == [6]
    # The objects go after the grace time; from then on nobody finds the messages, and the offsets of the others stay.
    clock.advance(2 * HOUR)
    assert maintain(store).objects_removed == 2
    assert maintain(store).objects_removed == 0
    assert consumed(reader(store)) == [(Offset(2), 3), (Offset(3, 1), 5), (Offset(5), 6)]
    assert consumed(reader(store, Offset(3, 1))) == [(Offset(3, 1), 5), (Offset(5), 6)]


def test_erased_messages_are_also_those_of_merged_objects(store: FakeStore, clock: FakeClock) -> None:
    for n in range(12):
        Producer("t", store=store, clock=clock).send([{"user": user, "n": 10 * n + i} for i, user in enumerate("abc")])
    clock.advance(compaction.SETTLED_S + 1)
    assert maintain(store, merge_every=10).objects_merged == 12
    (done,) = erase_messages(store, "t", "user = 'b'", clock=clock)
    assert (done.messages, done.objects) == (12, 13)
    erase_messages(store, "t", "user = 'c' and n = 2", clock=clock)
    clock.advance(2 * HOUR)
    maintain(store)
    left = [(n, i) for n in range(12) for i in (0, 2) if (n, i) != (0, 2)]
    assert table_rows(store) == sorted(10 * n + i for n, i in left)
    assert consumed(reader(store)) == [(Offset(n + 1, i), 10 * n + i) for n, i in left]


def test_who_removed_a_file_first_wins(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    log = log_of(store)
    state = log.load(with_files=True)
    change = Rewrite("DELETE", state.version, tuple(state.files))
    erase_messages(store, "t", "n = 1", clock=clock)
    with pytest.raises(RewriteConflict, match="has removed"):
        log.rewrite(change)
    assert log_of(store).head() == 2


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("n = 2", [2]),
        ("n <> 2", [1, 3, 4]),
        ("n>=2 and user = 'a'", [2]),
        ("user in ('b', 'c')", [3]),
        ("user is null", [4]),
        ("user IS NOT NULL AND n < 3", [1, 2]),
        ("user = 'it''s'", []),
    ],
)
def test_conditions(text: str, rows: list[int]) -> None:
    messages = [{"user": "a", "n": 1}, {"user": "a", "n": 2}, {"user": "b", "n": 3}, {"user": None, "n": 4}]
    table = records.to_table(messages, SCHEMA, topic="t", produced_at_us=0)
    met = Condition.parse(text, SCHEMA).holds(table)
    assert [row["n"] for row, one in zip(messages, met, strict=True) if one] == rows


@pytest.mark.parametrize("text", ["", "n", "n = ", "n = 'x'", "x = 1", "n = 1 or n = 2", "user = a'b", "n = 1 and"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Condition.parse(text, SCHEMA)


def test_what_erasure_writes_again_does_not_become_the_latest(store: FakeStore, clock: FakeClock) -> None:
    limit(store, compact_by="user")
    Producer("t", store=store, clock=clock).send([{"user": "a", "n": 1}, {"user": "b", "n": 1}])
    send(store, 2, user="a")
    erase_messages(store, "t", "user = 'b'", clock=clock)
    clock.advance(compaction.SETTLED_S + 1)
    assert maintain(store, merge_every=1).objects_merged == 2
    assert table_rows(store) == [2]
