"""Maintenance against a store in memory: what goes, what stays, and when."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from brokerless.consumer import Consumer
from brokerless.errors import ConfigError, StoreUnavailable, TopicNotFound
from brokerless.log.commit import REMOVAL_VALID_S, REMOVALS
from brokerless.log.entries import Add, build_entry
from brokerless.log.log import DeltaLog
from brokerless.maintenance.maintainer import GARBAGE_EVERY_S, SETTLE_S, Maintainer, storage_options
from brokerless.maintenance.step import NOT_OURS
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.settings import Settings
from brokerless.topics import create_topic, delete_topic
from tests.support.checkpoints import write_checkpoint
from tests.support.fakes import FakeClock, FakeStore

SCHEMA = Schema.parse("n long")
HOUR, DAY = 3600, 86400
ORPHAN = f"part-orphan.{0:08x}.snappy.parquet"  # a name as this kit gives it
FOREIGN = "part-00000-c000.snappy.parquet"


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    return store


def maintainer(store: FakeStore, **more: Any) -> Maintainer:
    return Maintainer(store=store, clock=store.clock, **{"topics": ["t"], "checkpoint_every": 10**9, **more})


def send(store: FakeStore, *numbers: int) -> None:
    Producer("t", store=store, clock=store.clock).send({"n": list(numbers)})


def log_of(store: FakeStore) -> DeltaLog:
    return DeltaLog(store, "t", clock=store.clock)


def entries(store: FakeStore) -> list[int]:
    return [int(path[-25:-5]) for path in sorted(store.objects) if path.endswith(".json")]


def data(store: FakeStore) -> set[str]:
    return {path.removeprefix("t/") for path in store.objects if path.endswith(".parquet") and "_log" not in path}


def marks(store: FakeStore) -> list[str]:
    return [path for path in store.objects if path.startswith("t/_removals/")]


def commit(store: FakeStore, adds: list[Add], removes: list[str]) -> None:
    log = log_of(store)
    version = log.head() + 1
    body = build_entry(
        commit_id=f"foreign-{version}",
        timestamp_ms=store.clock.time_us() // 1000,
        operation="OPTIMIZE",
        engine="other",
        adds=adds,
        removes=removes,
    )
    store.put(log.entry_path(version), body)


def test_entries_go_when_they_are_old_and_below_a_settled_checkpoint(store: FakeStore, clock: FakeClock) -> None:
    for n in range(4):
        send(store, n)
    clock.advance(7 * DAY)
    for n in range(4, 8):
        send(store, n)
    assert maintainer(store).run_once()[0].entries_removed == 0  # no checkpoint
    write_checkpoint(log_of(store))
    assert maintainer(store).run_once()[0].entries_removed == 0  # not settled
    clock.advance(SETTLE_S)
    (report,) = maintainer(store).run_once()
    assert (report.entries_removed, report.skipped) == (5, ())
    assert report.bytes_removed > 0
    assert entries(store) == [5, 6, 7, 8]
    assert log_of(store).earliest() == 5
    assert len(log_of(store).load(with_files=True).files) == 8


def test_entries_beyond_the_last_checkpoint_stay_however_old(store: FakeStore, clock: FakeClock) -> None:
    for n in range(3):
        send(store, n)
    write_checkpoint(log_of(store))
    send(store, 3)
    clock.advance(365 * DAY)
    assert maintainer(store).run_once()[0].entries_removed == 3
    assert entries(store) == [3, 4]


def test_on_a_busy_topic_an_older_checkpoint_serves(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    write_checkpoint(log_of(store))
    send(store, 2)
    write_checkpoint(log_of(store))
    clock.advance(2 * HOUR)
    send(store, 3)
    write_checkpoint(log_of(store))  # the hint now names one that has not settled
    (report,) = maintainer(store, log_retention_s=HOUR).run_once()
    assert report.entries_removed == 2
    assert entries(store) == [2, 3]
    assert len(log_of(store).load(with_files=True).files) == 3


@pytest.mark.parametrize("short", [{"log_retention_s": HOUR - 1}, {"grace_s": HOUR - 1}, {"checkpoint_every": 0}])
def test_times_that_are_not_safe_are_refused(store: FakeStore, short: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Maintainer(["t"], store=store, **short)  # type: ignore[arg-type]
    if "checkpoint_every" not in short:
        Maintainer(["t"], store=store, unsafe_no_minimum=True, **short)  # type: ignore[arg-type]


def test_an_orphan_goes_after_the_grace_time_and_live_files_never(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    live = data(store)
    store.put(f"t/{ORPHAN}", b"1234567")
    store.put("t/notes.txt", b"not ours")
    store.put("t/_hidden/x.parquet", b"not ours")
    clock.advance(HOUR - 1)
    assert maintainer(store).run_once()[0].objects_removed == 0
    clock.advance(1)
    assert maintainer(store).run_once(collect_garbage=False)[0].objects_removed == 0
    (report,) = maintainer(store).run_once()
    assert (report.objects_removed, report.bytes_removed) == (1, 7)
    assert data(store) - {"_hidden/x.parquet"} == live
    assert {"t/notes.txt", "t/_hidden/x.parquet"} <= set(store.objects)
    clock.advance(365 * DAY)
    assert maintainer(store).run_once()[0].objects_removed == 0


def test_the_mark_of_a_maintainer_that_was_killed_goes_when_nobody_minds_it(store: FakeStore, clock: FakeClock) -> None:
    store.put(f"t/{REMOVALS}/left", b"")
    clock.advance(REMOVAL_VALID_S - 1)
    maintainer(store).run_once()
    assert marks(store) == ["t/_removals/left"]
    clock.advance(1)
    maintainer(store).run_once(collect_garbage=False)
    assert marks(store) == ["t/_removals/left"]
    maintainer(store).run_once()
    assert marks(store) == []


def test_a_removal_that_cannot_look_at_the_log_leaves_no_mark(store: FakeStore, clock: FakeClock) -> None:
    store.put(f"t/{ORPHAN}", b"x")
    clock.advance(2 * HOUR)

    def fail(path: str) -> None:
        if marks(store):
            raise StoreUnavailable("no answer")

    store.on_get = fail
    (report,) = maintainer(store).run_once()
    assert report.skipped == ("orphans: no answer",)
    assert marks(store) == []
    assert ORPHAN in data(store)


def test_objects_are_found_wherever_their_names_sort(store: FakeStore, clock: FakeClock) -> None:
    names = {"0.parquet", "Z.parquet", "a/b.parquet", "z.parquet", "^.parquet"}
    for name in names:
        store.put(f"t/{name}", b"x")
    clock.advance(HOUR)
    delete_topic(store, "t", clock=clock)
    clock.advance(HOUR)
    assert maintainer(store).run_once()[0].objects_removed == len(names)


def test_a_commit_just_before_the_deletion_saves_its_file(store: FakeStore, clock: FakeClock) -> None:
    store.put(f"t/{ORPHAN}", b"x")
    clock.advance(2 * HOUR)
    send(store, 1)

    def commit_late(path: str) -> None:
        if marks(store) and path.endswith("02.json"):  # the last look, behind the mark for who commits after it
            store.on_get = None
            commit(store, [Add(ORPHAN, 1, 1, 1)], [])

    store.on_get = commit_late
    (report,) = maintainer(store).run_once()
    assert store.on_get is None
    assert marks(store) == []
    assert report.objects_removed == 0
    assert ORPHAN in data(store)


def test_a_removed_file_stays_while_an_entry_that_adds_it_can_be_read(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    (path,) = data(store)
    store.put("t/compacted.parquet", b"x")
    commit(store, [Add("compacted.parquet", 1, 1, 1, data_change=False)], [path])
    clock.advance(30 * DAY)
    assert maintainer(store).run_once()[0].objects_removed == 0  # entry 1 is still there, however old
    assert path in data(store)
    send(store, 2)
    write_checkpoint(log_of(store))
    clock.advance(SETTLE_S)
    clock.advance(7 * DAY)
    send(store, 3)
    (report,) = maintainer(store).run_once()
    assert report.entries_removed == 3
    assert path not in data(store)
    assert "compacted.parquet" in data(store)


def test_an_unknown_file_older_than_tombstones_stays_while_an_entry_may_name_it(
    store: FakeStore, clock: FakeClock
) -> None:
    # A checkpoint by another engine drops tombstones after a week; the log retention here is longer.
    send(store, 1)
    (path,) = data(store)
    commit(store, [], [path])
    clock.advance(8 * DAY)
    log = log_of(store)
    state = log.load(with_files=True)
    assert path in state.tombstones
    write_checkpoint(log)
    real = DeltaLog.load

    def without_tombstones(self: DeltaLog, **more: bool) -> Any:
        found = real(self, **more)
        found.tombstones.clear()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaLog, "load", without_tombstones)
        assert maintainer(store, log_retention_s=30 * DAY).run_once()[0].objects_removed == 0
        clock.advance(30 * DAY)
        send(store, 2)
        write_checkpoint(log_of(store))
        clock.advance(SETTLE_S + 30 * DAY)
        send(store, 3)
        assert maintainer(store, log_retention_s=30 * DAY).run_once()[0].objects_removed == 1


def test_files_of_a_deleted_topic_go_after_the_grace_time_and_its_log_stays(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    send(store, 2)
    clock.advance(DAY)
    delete_topic(store, "t", clock=clock)
    assert maintainer(store).run_once()[0].objects_removed == 0
    clock.advance(HOUR)
    assert maintainer(store, topics=None).run_once()[0].objects_removed == 2
    assert entries(store) == [0, 1, 2, 3]
    assert data(store) == set()
    create_topic(store, "t", SCHEMA, clock=clock)
    send(store, 3)
    assert log_of(store).state.version == 5


def test_files_of_a_topics_earlier_life_go_too(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    delete_topic(store, "t", clock=clock)
    clock.advance(3 * HOUR)
    create_topic(store, "t", SCHEMA, clock=clock)
    send(store, 2)
    assert maintainer(store).run_once()[0].objects_removed == 1
    with Consumer("t", start="beginning", store=store, clock=clock) as reader:
        assert sum(batch.data.num_rows for batch in reader.poll(0)) == 1


def test_folders_that_are_no_topics_are_left_alone(store: FakeStore, clock: FakeClock) -> None:
    store.put("photos/a.parquet", b"x")
    clock.advance(365 * DAY)
    found = {report.table: report for report in maintainer(store, topics=None).run_once()}
    assert found["photos"].skipped == ("no table",)
    assert "photos/a.parquet" in store.objects


def test_tables_with_unknown_features_are_left_alone(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    store.put(log_of(store).entry_path(2), b'{"protocol":{"minReaderVersion":2,"minWriterVersion":5}}\n')
    store.put(f"t/{ORPHAN}", b"x")
    clock.advance(DAY)
    (report,) = maintainer(store).run_once()
    assert "columnMapping" in report.skipped[-1]
    assert ORPHAN in data(store)


def test_a_topic_that_never_was(store: FakeStore) -> None:
    with pytest.raises(TopicNotFound):
        maintainer(store, topics=["none"]).run_once()


def test_a_failing_table_does_not_stop_the_others(store: FakeStore, clock: FakeClock) -> None:
    create_topic(store, "u", SCHEMA, clock=clock)

    def fail(path: str) -> None:
        if path.startswith("t/"):
            raise StoreUnavailable("down")

    store.on_get = fail
    found = {report.table: report.skipped for report in maintainer(store, topics=None).run_once()}
    assert any("down" in text for text in found["t"])
    assert found["u"] == ()


def test_watch_sweeps_now_and_then_and_survives_an_outage(store: FakeStore, clock: FakeClock) -> None:
    store.put(f"t/{ORPHAN}", b"x")
    clock.advance(2 * HOUR)
    stop = threading.Event()
    runs = maintainer(store).watch(0, stop)
    assert next(runs)[0].objects_removed == 1
    store.put(f"t/{ORPHAN}", b"x")
    clock.advance(GARBAGE_EVERY_S - 1)
    assert next(runs)[0].objects_removed == 0

    def fail(path: str) -> None:
        raise StoreUnavailable("down")

    store.on_get = fail
    assert next(runs)[0].skipped == ("down",)
    store.on_get = None
    clock.advance(2 * HOUR)
    assert next(runs)[0].objects_removed == 1
    stop.set()
    assert list(runs) == []


# Absent is not the end


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_of_a_log_with_a_hole_nothing_is_removed(store: FakeStore, clock: FakeClock, missing: int) -> None:
    for n in range(4):
        send(store, n)
    store.delete([log_of(store).entry_path(missing)])
    clock.advance(365 * DAY)
    before = dict(store.objects)
    for topics in (["t"], None):
        (report,) = Maintainer(topics, store=store, clock=clock, checkpoint_every=1).run_once()
        assert len(report.skipped) == 1
        assert f"LogIncomplete: Entry {missing} of the log" in report.skipped[0]
    assert before.items() <= store.objects.items()


def test_of_a_log_with_a_hole_behind_its_checkpoint_nothing_is_cleaned_up(store: FakeStore, clock: FakeClock) -> None:
    for n in range(3):
        send(store, n)
    write_checkpoint(log_of(store))
    for n in range(3):
        send(store, n)
    store.delete([log_of(store).entry_path(4)])
    clock.advance(365 * DAY)
    (report,) = maintainer(store).run_once()
    assert (report.entries_removed, report.objects_removed) == (0, 0)
    assert "LogIncomplete: Entry 4" in report.skipped[0]


def test_a_hole_that_comes_while_the_sweep_goes_on_is_noticed(store: FakeStore, clock: FakeClock) -> None:
    store.put(f"t/{ORPHAN}", b"x")
    clock.advance(2 * HOUR)
    send(store, 1)
    put = store.put

    def commit_two_and_lose_one(path: str, data: bytes) -> None:
        put(path, data)
        if REMOVALS in path:
            commit(store, [], [])
            commit(store, [Add(ORPHAN, 1, 1, 1)], [])
            store.delete([log_of(store).entry_path(2)])

    store.put = commit_two_and_lose_one  # type: ignore[method-assign]
    (report,) = maintainer(store).run_once()
    assert "orphans: LogIncomplete: Entry 2" in report.skipped[0]
    assert ORPHAN in data(store)
    assert marks(store) == []


def test_a_listing_that_missed_an_entry_that_was_just_written_is_no_hole(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    send(store, 2)
    write_checkpoint(log_of(store))
    for n in (3, 4):
        send(store, n)
    real, lists = store.list, []

    def without_one_once(prefix: str, *, after: str | None = None) -> Any:
        lists.append(prefix)
        first = lists.count("t/_delta_log") == 1
        return (i for i in real(prefix, after=after) if not (first and i.path == log_of(store).entry_path(3)))

    store.list = without_one_once  # type: ignore[method-assign]
    assert maintainer(store).run_once()[0].skipped == ()


@pytest.mark.parametrize("keep", [0, 1, -1])
def test_no_checkpoint_stands_for_an_entry_that_was_cut(store: FakeStore, clock: FakeClock, keep: int) -> None:
    for n in range(3):
        send(store, n)
    live = data(store)
    path = log_of(store).entry_path(2)
    store.put(path, b"".join(store.objects[path].splitlines(keepends=True)[:keep]))
    clock.advance(365 * DAY)
    (report,) = maintainer(store, checkpoint_every=1).run_once()
    assert report.checkpoint is None
    assert "cannot be read" in report.skipped[0]
    assert data(store) == live


def test_a_damaged_checkpoint_takes_no_entry_with_it(store: FakeStore, clock: FakeClock) -> None:
    for n in range(3):
        send(store, n)
    log = log_of(store)
    version = write_checkpoint(log)
    path = f"t/_delta_log/{version:020d}.checkpoint.parquet"
    store.put(path, store.objects[path][:-100])
    clock.advance(30 * DAY)
    (report,) = maintainer(store).run_once(collect_garbage=False)
    assert report.entries_removed == 0
    assert "damaged" in report.skipped[0]


def test_one_topic_with_a_damaged_log_does_not_stop_the_others(store: FakeStore, clock: FakeClock) -> None:
    create_topic(store, "u", SCHEMA, partitions=2, clock=clock)
    store.put("t/_delta_log/00000000000000000000.json", b"")
    reports = maintainer(store, topics=["t", "u"]).run_once()
    assert [report.table for report in reports] == ["t", "u", "u.1"]


# Whose time it is


@pytest.mark.parametrize("ahead_s", [-30 * DAY, 30 * DAY])
def test_the_maintainers_clock_decides_nothing(store: FakeStore, clock: FakeClock, ahead_s: int) -> None:
    own = FakeClock()
    own.advance(ahead_s)
    for n in range(3):
        send(store, n)
    write_checkpoint(log_of(store))
    store.put(f"t/{ORPHAN}", b"x")
    store.put(f"t/{REMOVALS}/left", b"")
    create_topic(store, "u", SCHEMA, clock=clock)
    Producer("u", store=store, clock=clock).send({"n": [1]})
    delete_topic(store, "u", clock=clock)
    before = dict(store.objects)

    def run() -> list[int]:
        found = Maintainer(["t", "u"], store=store, clock=own, checkpoint_every=10**9).run_once()
        return [sum(r.entries_removed for r in found), *(r.objects_removed for r in found)]

    clock.advance(HOUR - 1)
    assert run() == [0, 0, 0]
    assert before.items() <= store.objects.items()
    clock.advance(1)
    assert run() == [0, 1, 1]
    clock.advance(7 * DAY)
    assert run() == [3, 0, 0]
    assert marks(store) == []


def test_a_writers_clock_does_not_shorten_the_grace_of_a_deleted_topic(store: FakeStore, clock: FakeClock) -> None:
    behind = FakeClock()
    behind.advance(-DAY)
    Producer("t", store=store, clock=behind).send({"n": [1]})
    clock.advance(2 * HOUR)
    delete_topic(store, "t", clock=behind)
    assert maintainer(store).run_once()[0].objects_removed == 0
    clock.advance(HOUR)
    assert maintainer(store).run_once()[0].objects_removed == 1


def test_a_removal_that_is_stamped_long_ago_does_not_let_readers_miss_their_object(
    store: FakeStore, clock: FakeClock
) -> None:
    send(store, 1)
    (path,) = data(store)
    body = build_entry(commit_id="x", timestamp_ms=1, operation="OPTIMIZE", engine="other", removes=[path])
    store.put(log_of(store).entry_path(2), body)
    clock.advance(2 * HOUR)
    assert maintainer(store).run_once()[0].objects_removed == 0


def test_an_entry_that_a_sleeper_left_under_a_freed_name_is_not_the_oldest(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    write_checkpoint(log_of(store))
    clock.advance(7 * DAY)
    send(store, 2)
    (path,) = data(store) - {add.path for add in log_of(store).read(1).adds}  # type: ignore[union-attr]
    commit(store, [], [path])
    clock.advance(DAY)
    maintainer(store).run_once()
    assert entries(store) == [1, 2, 3]
    now_ms = clock.time_us() // 1000
    store.put(
        log_of(store).entry_path(0), build_entry(commit_id="z", timestamp_ms=now_ms, operation="WRITE", engine="slept")
    )
    assert maintainer(store).run_once()[0].objects_removed == 0
    assert path in data(store)


def test_no_checkpoint_is_written_by_a_clock_that_is_wrong(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    own = FakeClock()
    own.advance(HOUR)
    (report,) = Maintainer(["t"], store=store, clock=own, checkpoint_every=1).run_once()
    assert "by +3600 s" in report.skipped[0]
    own.advance(-HOUR)
    assert Maintainer(["t"], store=store, clock=own, checkpoint_every=1).run_once()[0].checkpoint == 1


# Whose tables


def foreign(store: FakeStore, configuration: dict[str, str]) -> None:
    """A table ``x`` of others: an object that was removed, one that nothing names, and a checkpoint."""
    log = DeltaLog(store, "x", clock=store.clock)
    log.create(schema_string=SCHEMA.to_delta(), configuration=configuration)
    for n, (adds, removes) in enumerate([(["a.parquet"], []), ([], ["a.parquet"]), (["b.parquet"], [])], 1):
        for path in adds:
            store.put(f"x/{path}", b"x")
        body = build_entry(
            commit_id=str(n),
            timestamp_ms=store.clock.time_us() // 1000,
            operation="WRITE",
            engine="other",
            adds=[Add(path, 1, 1, 1) for path in adds],
            removes=removes,
        )
        store.put(log.entry_path(n), body)
    store.put(f"x/{FOREIGN}", b"x")
    store.put(f"x/{ORPHAN}", b"x")
    write_checkpoint(log)


def test_tables_of_others_are_left_alone_unless_they_are_named(store: FakeStore, clock: FakeClock) -> None:
    foreign(store, {})
    before = dict(store.objects)
    clock.advance(365 * DAY)
    report = next(r for r in maintainer(store, topics=None).run_once() if r.table == "x")
    assert report.skipped == (NOT_OURS,)
    assert before.items() <= store.objects.items()


@pytest.mark.parametrize(
    ("configuration", "days"),
    [
        ({}, 30),
        ({"brokerless.engine": "delta"}, 30),
        ({"delta.logRetentionDuration": "interval 3 days"}, 7),
        ({"delta.logRetentionDuration": "interval 90 days"}, 90),
        ({"delta.logRetentionDuration": "1 month"}, None),
        ({"delta.logRetentionDuration": "interval 9 days", "brokerless.partitions": "1"}, 9),
        ({"delta.enableExpiredLogCleanup": "false"}, None),
    ],
)
def test_log_entries_of_other_tables_stay_as_long_as_their_properties_say(
    store: FakeStore, clock: FakeClock, configuration: dict[str, str], days: int | None
) -> None:
    foreign(store, configuration)
    clock.advance((days or 3650) * DAY - 1)
    assert maintainer(store, topics=["x"]).run_once()[0].entries_removed == 0
    clock.advance(1)
    assert maintainer(store, topics=["x"]).run_once()[0].entries_removed == (3 if days else 0)


def test_a_transaction_of_the_delta_engine_has_a_week(store: FakeStore, clock: FakeClock) -> None:
    foreign(store, {"brokerless.engine": "delta"})
    run = maintainer(store, topics=None).run_once
    for _ in range(31):  # the log has moved on: what may be named by a retained entry stays anyway
        clock.advance(DAY)
        run()
    assert entries(store).count(3) == 1
    log = DeltaLog(store, "x", clock=clock)
    store.put(f"x/{ORPHAN}", b"x")
    body = build_entry(commit_id="4", timestamp_ms=clock.time_us() // 1000, operation="WRITE", engine="other")
    store.put(log.entry_path(4), body)
    clock.advance(6 * DAY)
    run()
    assert f"x/{ORPHAN}" in store.objects


def test_what_another_engine_uploads_to_a_topic_stays_until_no_entry_can_name_it(
    store: FakeStore, clock: FakeClock
) -> None:
    store.put(f"t/{FOREIGN}", b"x")
    clock.advance(2 * HOUR)
    send(store, 1)
    clock.advance(6 * DAY)
    assert maintainer(store).run_once()[0].objects_removed == 0
    write_checkpoint(log_of(store))
    send(store, 2)
    clock.advance(30 * DAY)
    assert maintainer(store).run_once()[0].objects_removed == 1
    assert FOREIGN not in data(store)


def test_a_table_inside_of_a_topic_is_not_the_topics(store: FakeStore, clock: FakeClock) -> None:
    store.put("t/inner/_delta_log/00000000000000000000.json", b"{}")
    store.put(f"t/inner/{ORPHAN}", b"x")
    store.put(f"t/{ORPHAN}", b"x")
    clock.advance(HOUR)
    delete_topic(store, "t", clock=clock)
    clock.advance(365 * DAY)
    maintainer(store).run_once()
    assert f"t/inner/{ORPHAN}" in store.objects
    assert f"t/{ORPHAN}" not in store.objects


def test_what_probes_leave_goes(store: FakeStore, clock: FakeClock) -> None:
    path = f"t/_probe-{clock.uuid()}"
    store.put(path, b"probe")
    clock.advance(HOUR)
    assert maintainer(store).run_once()[0].objects_removed == 1
    assert path not in store.objects


def test_storage_options() -> None:
    settings = Settings(profile="minio", root="s3://b", endpoint="http://h:1", access_key="a", secret_key="b")
    options = storage_options(settings)
    assert (options["AWS_ALLOW_HTTP"], options["AWS_ENDPOINT_URL"]) == ("true", "http://h:1")
    assert options["AWS_ENDPOINT_URL_S3"] == "http://h:1"  # a Spark session of the process may have set another one
    assert "AWS_SESSION_TOKEN" not in options
    cloud = storage_options(Settings(profile="aws", root="s3://b"))
    assert not {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ALLOW_HTTP", "AWS_ACCESS_KEY_ID"} & set(cloud)
    assert storage_options(Settings(profile="aws", root="file:///x")) == {}
