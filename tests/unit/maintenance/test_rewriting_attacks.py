"""Retention, merging and erasure beside each other, beside sleepers, and after what others have done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokerless.columns import records
from brokerless.consumer import Consumer
from brokerless.errors import ConfigError
from brokerless.log.entries import START_TXN
from brokerless.log.rewrite import Rewrite, RewriteConflict
from brokerless.maintenance import compaction
from brokerless.maintenance.erasure import erase_messages
from brokerless.maintenance.maintainer import SETTLE_S, Maintainer
from brokerless.offsets import Offset
from brokerless.producer.producer import Producer
from brokerless.topics import create_topic, delete_topic
from brokerless.verify.table import verify_topic
from tests.support.checkpoints import write_checkpoint
from tests.support.fakes import FakeClock, FakeStore
from tests.unit.maintenance.test_rewriting import (
    DAY,
    HOUR,
    SCHEMA,
    consumed,
    limit,
    log_of,
    maintain,
    reader,
    send,
    table_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

WEEK = 7 * DAY


class Intruder(FakeStore):
    """A store in which something else happens right before or after one of the PUTs."""

    before: Callable[[str], None] | None = None
    after: Callable[[str], None] | None = None

    def _between(self, path: str, put: Callable[[], Any]) -> Any:
        if (hook := self.before) is not None:
            hook(path)
        done = put()
        if (hook := self.after) is not None:
            hook(path)
        return done

    def put(self, path: str, data: bytes, *, within_s: float | None = None) -> None:
        self._between(path, lambda: FakeStore.put(self, path, data))

    def put_if_absent(self, path: str, data: bytes, *, within_s: float | None = None) -> Any:
        return self._between(path, lambda: FakeStore.put_if_absent(self, path, data))

    def swap(self, path: str, data: bytes, tag: Any, *, within_s: float | None = None) -> Any:
        return self._between(path, lambda: FakeStore.swap(self, path, data, tag))


@pytest.fixture
def store(clock: FakeClock) -> Intruder:
    store = Intruder(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    return store


def once(store: Intruder, part: str, act: Callable[[], object], when: str = "after") -> None:
    """Do something at the first PUT of a path with this part."""

    def hook(path: str) -> None:
        if part in path:
            setattr(store, when, None)
            act()

    setattr(store, when, hook)


def sleep_while_another_maintains(store: Intruder, clock: FakeClock) -> None:
    clock.advance(2 * HOUR)
    Maintainer(["t"], store=store, clock=clock, checkpoint_every=10**9).run_once()


def forget_entries(store: FakeStore) -> None:
    """Let log clean-up go past all entries."""
    store.clock.advance(WEEK + 1)
    write_checkpoint(log_of(store))
    store.clock.advance(SETTLE_S)


def test_a_merge_that_sleeps_before_its_entry_leaves_its_object(store: Intruder, clock: FakeClock) -> None:
    for n in range(10):
        send(store, n)
    clock.advance(compaction.SETTLED_S + 1)
    once(store, "part-merged", lambda: sleep_while_another_maintains(store, clock))
    assert maintain(store, merge_every=10).objects_merged == 10
    assert table_rows(store) == list(range(10))


def test_an_erasure_that_sleeps_before_its_entry_leaves_its_object(store: Intruder, clock: FakeClock) -> None:
    send(store, 1, 2)
    once(store, "t/part-", lambda: sleep_while_another_maintains(store, clock))
    erase_messages(store, "t", "n = 1", clock=clock)
    assert table_rows(store) == [2]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("where", ["_erased", "t/part-", "_delta_log"])
def test_two_who_erase_at_once_both_succeed(store: Intruder, clock: FakeClock, where: str, when: str) -> None:
    send(store, 1, 2, 3)
    once(store, where, lambda: erase_messages(store, "t", "n = 1", clock=clock), when)
    erase_messages(store, "t", "n = 2", clock=clock)
    assert table_rows(store) == [3]
    clock.advance(2 * HOUR)
    maintain(store)
    assert consumed(reader(store)) == [(Offset(1, 2), 3)]


@pytest.mark.parametrize("where", ["part-merged", "_delta_log"])
def test_who_erases_beside_a_merge_erases_from_its_object_too(store: Intruder, clock: FakeClock, where: str) -> None:
    for n in range(10):
        send(store, n)
    clock.advance(compaction.SETTLED_S + 1)
    once(store, where, lambda: erase_messages(store, "t", "n = 3", clock=clock), "before")
    Maintainer(["t"], store=store, clock=clock, merge_every=5, checkpoint_every=10**9).run_once()
    assert table_rows(store) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_crash_between_two_requests_of_an_erasure_is_mended_by_the_next(store: Intruder, clock: FakeClock) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    send(store, 1, 2)
    for part in ("_erased", "t/part-", "_delta_log"):
        once(store, part, kill, "before")
        with pytest.raises(Killed):
            erase_messages(store, "t", "n = 1", clock=clock)
        assert table_rows(store) == [1, 2]
    assert consumed(reader(store)) == [(Offset(1), 1), (Offset(1, 1), 2)]
    (done,) = erase_messages(store, "t", "n = 1", clock=clock)
    assert (done.messages, table_rows(store)) == (1, [2])
    clock.advance(2 * HOUR)
    maintain(store)
    assert consumed(reader(store)) == [(Offset(1, 1), 2)]


def test_two_maintainers_merge_once(store: Intruder, clock: FakeClock) -> None:
    for n in range(10):
        send(store, n)
    clock.advance(compaction.SETTLED_S + 1)
    once(store, "part-merged", lambda: maintain(store, merge_every=10))
    (report,) = Maintainer(["t"], store=store, clock=clock, merge_every=10, checkpoint_every=10**9).run_once()
    assert "has removed" in report.skipped[0]
    assert table_rows(store) == list(range(10))


def test_messages_are_erased_from_objects_whose_tombstones_are_forgotten(store: Intruder, clock: FakeClock) -> None:
    limit(store, retention_s=365 * DAY)
    for n in range(10):
        send(store, n)
    clock.advance(compaction.SETTLED_S + 1)
    maintain(store, merge_every=10)
    clock.advance(2 * WEEK)
    write_checkpoint(log_of(store), forget_tombstones=True)
    erase_messages(store, "t", "n = 3", clock=clock)
    clock.advance(2 * HOUR)
    maintain(store)
    assert [n for _, n in consumed(reader(store))] == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_verification_takes_an_erasure_and_a_compaction_for_what_they_are(store: Intruder, clock: FakeClock) -> None:
    limit(store, compact_by="user")
    for n in range(10):
        send(store, n, n + 100)
    erase_messages(store, "t", "n = 3", clock=clock)
    clock.advance(compaction.SETTLED_S + 1)
    assert maintain(store, merge_every=5).objects_merged == 10
    (report,) = verify_topic(store, "t", clock=clock)
    assert report.findings == ()


@pytest.mark.parametrize("limits", [{"retention_s": DAY}, {"retention_bytes": 1}])
@pytest.mark.parametrize("merged", [True, False])
def test_files_whose_entries_are_gone_leave_by_retention(
    store: Intruder, clock: FakeClock, limits: dict[str, Any], merged: bool
) -> None:
    for n in range(10):
        send(store, n)
    if merged:
        clock.advance(compaction.SETTLED_S + 1)
        maintain(store, merge_every=10)
    forget_entries(store)
    maintain(store, merge_every=10**9)
    send(store, 10)
    assert table_rows(store) == list(range(11))
    limit(store, **limits)
    maintain(store)
    assert set(table_rows(store)) == ({10} if "retention_s" in limits else set())


def test_files_whose_entries_are_gone_stay_until_they_are_old(store: Intruder, clock: FakeClock) -> None:
    send(store, 1)
    clock.advance(10 * DAY)
    send(store, 2)
    forget_entries(store)
    maintain(store)
    send(store, 3)
    limit(store, retention_s=12 * DAY)
    maintain(store)
    assert table_rows(store) == [2, 3]
    clock.advance(12 * DAY + HOUR)
    maintain(store)
    assert table_rows(store) == []


def test_merging_goes_on_where_entries_are_gone(store: Intruder, clock: FakeClock) -> None:
    for turn in range(4):
        for n in range(6):
            send(store, 10 * turn + n)
        forget_entries(store)
        maintain(store, merge_every=10)
    files = log_of(store).load(with_files=True).files
    assert len(files) == 1
    assert len(table_rows(store)) == 24


def test_objects_that_fill_a_large_one_are_merged_though_they_are_few(
    store: Intruder, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(30):
        send(store, n)
    size = max(add.size for add in log_of(store).load(with_files=True).files.values())
    monkeypatch.setattr(compaction, "TARGET_BYTES", 10 * size)
    clock.advance(compaction.SETTLED_S + 1)
    assert maintain(store, merge_every=20).objects_merged >= 20
    assert table_rows(store) == list(range(30))


def test_messages_without_a_key_stay_in_a_compacted_topic(store: Intruder, clock: FakeClock) -> None:
    limit(store, compact_by="user")
    for n in range(5):
        Producer("t", store=store, clock=clock).send([{"user": None, "n": n}])
        send(store, 10 + n, user="u")
    clock.advance(compaction.SETTLED_S + 1)
    maintain(store, merge_every=5)
    assert table_rows(store) == [0, 1, 2, 3, 4, 14]


def test_a_rewrite_under_a_freed_name_is_no_rewrite(store: Intruder, clock: FakeClock) -> None:
    send(store, 1)
    log = log_of(store)
    state = log.load(with_files=True)

    def others_go_on() -> None:
        for n in range(5):
            send(store, n)
        forget_entries(store)
        maintain(store)

    once(store, f"_delta_log/{2:020d}.json", others_go_on, "before")
    with pytest.raises(RewriteConflict, match="slept"):
        log.rewrite(Rewrite("DELETE", state.version, tuple(state.files)))
    assert 1 in table_rows(store)


def test_a_topic_that_is_created_again_begins_at_its_own_beginning(store: Intruder, clock: FakeClock) -> None:
    limit(store, retention_s=DAY)
    for n in range(5):
        send(store, n)
    clock.advance(2 * DAY)
    maintain(store)
    assert log_of(store).txn(START_TXN) == 7
    delete_topic(store, "t", clock=clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    send(store, 6)
    log = log_of(store)
    assert log.txn(START_TXN) is None
    assert log.earliest() == log.state.metadata.first_version + 1
    assert [n for _, n in consumed(reader(store))] == [6]


def test_what_was_left_by_erasure_goes_with_the_topic(store: Intruder, clock: FakeClock) -> None:
    send(store, 1, 2)
    erase_messages(store, "t", "n = 1", clock=clock)
    delete_topic(store, "t", clock=clock)
    clock.advance(2 * HOUR)
    maintain(store)
    clock.advance(2 * HOUR)
    maintain(store)
    assert not [path for path in store.objects if path.endswith(".parquet")]


def test_a_limit_that_is_no_number_is_reported(store: Intruder, clock: FakeClock) -> None:
    send(store, 1)
    log = log_of(store)
    state = log.refresh()
    from dataclasses import replace

    broken = replace(state.metadata, configuration={**state.metadata.configuration, "brokerless.retentionMs": "7 days"})
    log.rewrite(Rewrite("SET TBLPROPERTIES", state.version, metadata=broken))
    (report,) = Maintainer(["t"], store=store, clock=clock).run_once()
    assert "not a number" in report.skipped[0]


def test_only_topics_are_erased_from(store: Intruder, clock: FakeClock) -> None:
    with pytest.raises(ConfigError, match="no column"):
        erase_messages(store, "t", "who = 'a'", clock=clock)


def test_a_limit_may_be_changed_and_taken_away(store: Intruder, clock: FakeClock) -> None:
    limit(store, retention_s=DAY)
    send(store, 1)
    clock.advance(2 * DAY)
    limit(store, retention_s=0)
    assert maintain(store).entries_expired == 0
    limit(store, retention_s=3 * DAY)
    assert maintain(store).entries_expired == 0
    limit(store, retention_s=DAY, until_read=True)
    assert maintain(store).entries_expired > 0
    assert table_rows(store) == []


def test_rows_that_are_left_of_an_object_have_their_offsets_in_a_pipeline(store: Intruder, clock: FakeClock) -> None:
    pa = pytest.importorskip("pyarrow")
    from brokerless.schema import PRODUCED_AT, Column
    from brokerless.spark.messages import load_object, with_metadata

    send(store, 1, 2, 3)
    (name,) = log_of(store).load(with_files=True).files
    erase_messages(store, "t", "n = 2", clock=clock)
    store.delete([f"t/{name}"])
    loaded = load_object(store, [*SCHEMA.columns, Column(PRODUCED_AT, "timestamp")], f"t/{name}")
    assert isinstance(loaded, records.Table)
    rows = with_metadata(pa.table(loaded), "t", 1, 10)
    assert rows.column("_index").to_pylist() == [10, 12]
    assert rows.column_names == ["user", "n", PRODUCED_AT, "_topic", "_partition", "_version", "_index"]


def test_a_slow_reader_finds_what_is_left_when_the_object_goes_between_two_polls(
    store: Intruder, clock: FakeClock
) -> None:
    for n in range(4):
        send(store, 10 * n, 10 * n + 1)
    slow = Consumer("t", start="beginning", batch_bytes=1, store=store, clock=clock)
    (first,) = slow.poll(0)
    erase_messages(store, "t", "n in (10, 21)", clock=clock)
    clock.advance(2 * HOUR)
    assert maintain(store).objects_removed == 2
    assert first.data.column("n").to_pylist() == [0, 1]
    assert [n for _, n in consumed(slow)] == [11, 20, 30, 31]
