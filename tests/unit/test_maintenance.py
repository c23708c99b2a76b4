"""Maintenance against a store in memory: what goes, what stays, and when."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from brokerless.admin import create_topic, delete_topic
from brokerless.consumer import Consumer
from brokerless.entries import Add, build_entry
from brokerless.errors import ConfigError, StoreUnavailable, TopicNotFound
from brokerless.log import DeltaLog
from brokerless.maintenance import SETTLE_S, SWEEP_EVERY_S, Maintainer, storage_options
from brokerless.producer import Producer
from brokerless.settings import Settings
from brokerless.topics import Schema
from brokerless.upload import REMOVAL_VALID_S, REMOVALS
from tests.support.checkpoints import write_checkpoint
from tests.support.fakes import FakeClock, FakeStore

SCHEMA = Schema.parse("n long")
HOUR, DAY = 3600, 86400


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    return store


def maintainer(store: FakeStore, **more: Any) -> Maintainer:
    return Maintainer(store=store, clock=store.clock, checkpoint_every=10**9, **{"topics": ["t"], **more})


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


@pytest.mark.parametrize("short", [{"log_retention_s": HOUR - 1}, {"grace_s": 60}, {"checkpoint_every": 0}])
def test_times_that_are_not_safe_are_refused(store: FakeStore, short: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Maintainer(["t"], store=store, **short)  # type: ignore[arg-type]
    if "checkpoint_every" not in short:
        Maintainer(["t"], store=store, unsafe_no_minimum=True, **short)  # type: ignore[arg-type]


def test_an_orphan_goes_after_the_grace_time_and_live_files_never(store: FakeStore, clock: FakeClock) -> None:
    send(store, 1)
    live = data(store)
    store.put("t/part-orphan.parquet", b"1234567")
    store.put("t/notes.txt", b"not ours")
    store.put("t/_hidden/x.parquet", b"not ours")
    clock.advance(HOUR - 1)
    assert maintainer(store).run_once()[0].objects_removed == 0
    clock.advance(1)
    assert maintainer(store).run_once(sweep=False)[0].objects_removed == 0
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
    maintainer(store).run_once(sweep=False)
    assert marks(store) == ["t/_removals/left"]
    maintainer(store).run_once()
    assert marks(store) == []


def test_a_removal_that_cannot_look_at_the_log_leaves_no_mark(store: FakeStore, clock: FakeClock) -> None:
    store.put("t/orphan.parquet", b"x")
    clock.advance(2 * HOUR)

    def fail(path: str) -> None:
        if marks(store):
            msg = "no answer"
            raise StoreUnavailable(msg)

    store.on_get = fail
    (report,) = maintainer(store).run_once()
    assert report.skipped == ("orphans: no answer",)
    assert marks(store) == []
    assert "orphan.parquet" in data(store)


def test_objects_are_found_wherever_their_names_sort(store: FakeStore, clock: FakeClock) -> None:
    names = {"0.parquet", "Z.parquet", "a/b.parquet", "z.parquet", "^.parquet"}
    for name in names:
        store.put(f"t/{name}", b"x")
    clock.advance(HOUR)
    store.requests.clear()
    assert maintainer(store).run_once()[0].objects_removed == len(names)


def test_a_commit_just_before_the_deletion_saves_its_file(store: FakeStore, clock: FakeClock) -> None:
    store.put("t/late.parquet", b"x")
    clock.advance(2 * HOUR)
    send(store, 1)

    def commit_late(path: str) -> None:
        # It asks for this entry for the topic, for its head, for its files, and once more right before it deletes.
        if path.endswith("02.json"):
            seen.append(path)
        if len(seen) == 4:
            store.on_get = None
            under_way.extend(marks(store))
            commit(store, [Add("late.parquet", 1, 1, 1)], [])

    seen: list[str] = []
    under_way: list[str] = []
    store.on_get = commit_late
    (report,) = maintainer(store).run_once()
    assert len(seen) == 4
    assert len(under_way) == 1  # before this last look, for who commits after it
    assert marks(store) == []
    assert report.objects_removed == 0
    assert "late.parquet" in data(store)


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

    def without_tombstones(self: DeltaLog, *, with_files: bool = False) -> Any:
        found = real(self, with_files=with_files)
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
    store.put("t/orphan.parquet", b"x")
    clock.advance(DAY)
    (report,) = maintainer(store).run_once()
    assert "columnMapping" in report.skipped[-1]
    assert "orphan.parquet" in data(store)


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
    store.put("t/orphan-1.parquet", b"x")
    clock.advance(2 * HOUR)
    stop = threading.Event()
    runs = maintainer(store).watch(0, stop)
    assert next(runs)[0].objects_removed == 1
    store.put("t/orphan-2.parquet", b"x")
    clock.advance(SWEEP_EVERY_S - 1)
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


def test_a_store_that_delta_rs_cannot_open_is_said(store: FakeStore) -> None:
    send(store, 1)
    (report,) = Maintainer(["t"], store=store, clock=store.clock, checkpoint_every=1).run_once()
    assert report.skipped[0].startswith("checkpoint: ")


def test_storage_options() -> None:
    settings = Settings(profile="minio", root="s3://b", endpoint="http://h:1", access_key="a", secret_key="b")
    options = storage_options(settings)
    assert (options["AWS_ALLOW_HTTP"], options["AWS_ENDPOINT_URL"]) == ("true", "http://h:1")
    assert "AWS_SESSION_TOKEN" not in options
    cloud = storage_options(Settings(profile="aws", root="s3://b"))
    assert not {"AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AWS_ACCESS_KEY_ID"} & set(cloud)
    assert storage_options(Settings(profile="aws", root="file:///x")) == {}
