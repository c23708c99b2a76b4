"""Safeguards that nothing missed when ``tests.mutants`` took them away, each looked at by itself.

Behind most of them another one stands, so that no seed of the simulation fails without the first.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from brokerless.consumer import Consumer
from brokerless.errors import AccessDenied, TopicDeleted, TopicNotFound, UnsupportedTable
from brokerless.log.entries import ENGINE_KEY, Add, build_entry
from brokerless.log.log import FRESH_S, DeltaLog
from brokerless.maintenance.maintainer import LOG_RETENTION_S, Maintainer
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.spark import outputs
from brokerless.topics import create_topic, delete_topic, describe_topic
from tests.support.checkpoints import clean_up, write_checkpoint
from tests.support.fakes import FakeClock, FakeStore, Put

pytestmark = pytest.mark.faults

SCHEMA = Schema.parse("n long")


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    return store


def log_of(store: FakeStore, clock: FakeClock) -> DeltaLog:
    return DeltaLog(store, "t", clock=clock)


def add(path: str) -> Add:
    return Add(path, 1, 1, 0)


def test_clean_up_while_an_idle_writer_looks_is_noticed(clock: FakeClock, store: FakeStore) -> None:
    idle, busy = log_of(store, clock), log_of(store, clock)
    idle.append([add("f1")])
    for number in range(2, 6):
        busy.append([add(f"f{number}")])

    def overtake(path: str) -> None:
        if path == idle.entry_path(2):
            store.on_get = None
            write_checkpoint(busy)
            clean_up(busy, below=5)

    clock.advance(FRESH_S + 1)
    store.on_get = overtake
    assert idle.append([add("mine")]).version == 6
    assert store.on_get is None
    assert "mine" in log_of(store, clock).load(with_files=True).files


@pytest.mark.parametrize("standing", ["monotonic", "time_us"])
def test_a_writer_was_idle_if_either_clock_says_so(clock: FakeClock, store: FakeStore, standing: str) -> None:
    idle, busy = log_of(store, clock), log_of(store, clock)
    idle.append([add("f1")])
    for number in range(2, 6):
        busy.append([add(f"f{number}")])
    write_checkpoint(busy)
    clean_up(busy, below=5)
    now = getattr(clock, standing)()
    setattr(clock, standing, lambda: now)
    clock.advance(FRESH_S + 1)
    assert idle.append([add("mine")]).version == 6


def test_a_writer_that_slept_through_a_new_creation_and_its_clean_up_stops(clock: FakeClock, store: FakeStore) -> None:
    sleeper = log_of(store, clock)
    sleeper.append([add("old")])
    log_of(store, clock).delete()
    new = log_of(store, clock)
    new.create(schema_string=SCHEMA.to_delta(), configuration={})
    new.append([add("new")])
    write_checkpoint(new)
    clean_up(new, below=4)
    clock.advance(FRESH_S + 1)
    with pytest.raises(TopicDeleted, match="created again"):
        sleeper.append([add("late")])
    assert set(log_of(store, clock).load(with_files=True).files) == {"new"}


def test_a_pipeline_commits_no_object_that_may_have_been_swept(clock: FakeClock, store: FakeStore) -> None:
    output = outputs.OutputLog(store, "t", SCHEMA, "pipe", clock=clock)
    output.claim()
    uploaded = outputs.UploadedFiles()
    output.upload(pa.table({"n": [1]}), uploaded)
    uploaded.data.clear()  # as if an executor had uploaded it
    clock.advance(outputs.COMMIT_WITHIN_MS / 1000 + 1)
    with pytest.raises(outputs.ObjectsTooOldError, match="waited more than 10 minutes"):
        output.commit(uploaded, {"in": 1}, {"in": "x"})
    assert log_of(store, clock).load(with_files=True).files == {}
    assert log_of(store, clock).txn("pipe:in:0:x") is None


def test_the_drivers_own_objects_get_a_name_that_no_sweep_knows(clock: FakeClock, store: FakeStore) -> None:
    output = outputs.OutputLog(store, "t", SCHEMA, "pipe", clock=clock)
    output.claim()
    uploaded = outputs.UploadedFiles()
    output.upload(pa.table({"n": [1]}), uploaded)
    old = uploaded.adds[0].path
    clock.advance(outputs.COMMIT_WITHIN_MS / 1000 + 1)
    output.commit(uploaded, {"in": 1}, {"in": "x"})
    store.delete([f"t/{old}"])  # decided on before the commit, done after it
    (path,) = log_of(store, clock).load(with_files=True).files
    assert store.exists(f"t/{path}")


def test_a_creation_that_crashes_half_way_leaves_no_topic(clock: FakeClock, store: FakeStore) -> None:
    refused = Put(AccessDenied("x"), applied=False)
    store.puts = [Put("created"), Put("exists"), Put("created"), refused]  # two to try the store, two partitions
    with pytest.raises(AccessDenied):
        create_topic(store, "two", SCHEMA, partitions=2, clock=clock)
    logs = [path for path in store.objects if path.startswith("two") and "/_delta_log/" in path]
    assert logs == [f"two.1/_delta_log/{0:020d}.json"]
    with pytest.raises(TopicNotFound, match="half created"):
        describe_topic(store, "two", clock=clock)


def test_a_deletion_that_crashes_half_way_can_be_finished(clock: FakeClock, store: FakeStore) -> None:
    create_topic(store, "two", SCHEMA, partitions=2, clock=clock)
    store.puts = [Put("created"), Put(AccessDenied("x"), applied=False)]
    with pytest.raises(AccessDenied):
        delete_topic(store, "two", clock=clock)
    with pytest.raises(TopicNotFound, match="half deleted"):
        describe_topic(store, "two", clock=clock)
    delete_topic(store, "two", clock=clock)
    for table in ("two", "two.1"):
        assert DeltaLog(store, table, clock=clock).load().metadata.deleted


def test_entries_that_the_hint_leads_to_stay_although_a_later_checkpoint_is_there(
    clock: FakeClock, store: FakeStore
) -> None:
    log = log_of(store, clock)
    hint = "t/_delta_log/_last_checkpoint"
    for number in range(1, 7):
        log.append([add(f"f{number}")])
        if number == 3:
            write_checkpoint(log)
            older = store.get(hint)
    write_checkpoint(log)
    store.put(hint, older)  # a maintainer was killed between a checkpoint and its hint
    clock.advance(LOG_RETENTION_S + 1)
    Maintainer(["t"], store=store, clock=clock, checkpoint_every=100).run_once()
    assert log_of(store, clock).earliest() == 3
    assert log_of(store, clock).state.version == 6


def map_columns(log: DeltaLog) -> None:
    """The next entry, by somebody who uses a feature that the log does not have."""
    state = log.load()
    mapped = replace(state.metadata, configuration={"delta.columnMapping.mode": "name"})
    body = build_entry(commit_id="x", timestamp_ms=1, operation="SET", engine="other", metadata=mapped)
    log.store.put(log.entry_path(state.version + 1), body)


def test_a_table_is_looked_at_when_it_is_opened(clock: FakeClock, store: FakeStore) -> None:
    map_columns(log_of(store, clock))
    with pytest.raises(UnsupportedTable, match="columnMapping"):
        log_of(store, clock).append([add("f")])


def test_a_reader_stops_where_its_table_gets_a_feature_that_it_does_not_read(
    clock: FakeClock, store: FakeStore
) -> None:
    with Consumer("t", store=store, clock=clock, start="beginning") as consumer:
        map_columns(log_of(store, clock))
        with pytest.raises(UnsupportedTable, match="columnMapping"):
            consumer.poll(0)


def test_an_output_of_the_delta_engine_is_not_written_to(clock: FakeClock, store: FakeStore) -> None:
    log = DeltaLog(store, "spark", clock=clock)
    log.create(schema_string=SCHEMA.to_delta(), configuration={ENGINE_KEY: "delta"})
    with pytest.raises(UnsupportedTable, match="output of the delta engine"):
        log.append([add("f")])


def test_a_table_that_was_replaced_without_a_tombstone_stops_its_writers(clock: FakeClock, store: FakeStore) -> None:
    writer = log_of(store, clock)
    other = replace(writer.state.metadata, id="another table")
    body = build_entry(commit_id="x", timestamp_ms=1, operation="REPLACE", engine="other", metadata=other)
    store.put(writer.entry_path(1), body)
    with pytest.raises(TopicDeleted, match="created again"):
        writer.append([add("late")])


def test_rows_without_a_key_that_are_sent_again_go_where_they_went(clock: FakeClock, store: FakeStore) -> None:
    create_topic(store, "keyed", SCHEMA, partitions=4, clock=clock)
    for seed in range(5):  # each restart begins its turns elsewhere
        clock.rng.seed(seed)
        Producer("keyed", store=store, clock=clock, key="n", producer_id="p").send({"n": [None]}, sequence=0)
    assert len([path for path in store.objects if path.endswith(".parquet")]) == 1
