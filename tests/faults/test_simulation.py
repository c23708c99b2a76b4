"""Seeds of the simulation, proof that it is deterministic and that it bites, and what it has found."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from brokerless.consumer import Consumer
from brokerless.errors import (
    BrokerlessError,
    ConfigError,
    DeliveryFailed,
    LogIncomplete,
    PipelineError,
    StoreUnavailable,
    TopicDeleted,
)
from brokerless.log.commit import REMOVAL_VALID_S, REMOVALS, UPLOAD_VALID_S
from brokerless.log.log import RECHECK_S, DeltaLog
from brokerless.maintenance.maintainer import GRACE_S, Maintainer
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.spark import outputs
from brokerless.topics import create_topic, delete_topic
from tests.sim import bucket, run
from tests.sim.machine import simulated
from tests.sim.run import run_seed
from tests.support.checkpoints import write_checkpoint
from tests.support.fakes import FakeClock, FakeStore, Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.sim.run import Result
    from tests.sim.world import World

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
BLOCK = 40
SCHEMA = Schema.parse("n long")


def first_failure(seeds: range) -> Result | None:
    with simulated() as host:
        return next((found for seed in seeds if (found := run_seed(host, seed)).failures), None)


@pytest.mark.parametrize("first", range(0, 5 * BLOCK, BLOCK))
def test_every_guarantee_holds_whatever_the_seed(first: int) -> None:
    found = first_failure(range(first, first + BLOCK))
    assert found is None, found.text()


@pytest.mark.parametrize("first", range(run.GROUPS, run.GROUPS + 3 * BLOCK, BLOCK))
def test_a_group_reads_everything_and_commits_only_that(first: int) -> None:
    found = first_failure(range(first, first + BLOCK))
    assert found is None, found.text()


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    with simulated() as host:
        results = [run_seed(host, seed, trace=True) for seed in (5, 17, 5)]
    assert results[0].trace == results[2].trace
    assert results[0].digest != results[1].digest
    command = [sys.executable, "-m", "tests.sim", "--seed", "5"]
    other = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert f"seed 5, trace {results[0].digest}" in other.stdout


def without_rivals(_log: DeltaLog, *_: object) -> None:
    """Entries of others are not looked at for txns."""


def test_what_a_missing_safeguard_does_can_be_seen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each safeguard's turn to be missing is in tests.mutants.
    monkeypatch.setattr(DeltaLog, "_check_rival", without_rivals)
    found = first_failure(range(200))
    assert found is not None
    assert f"python -m tests.sim --seed {found.seed} --trace" in found.text()
    assert any("VERDICT" in line for line in found.trace)


# What the simulation has found


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    return store


class SlowStore(FakeStore):
    """Answers no DELETE of data objects, and applies it later."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.on_its_way: list[str] = []

    def delete(self, paths: Sequence[str]) -> None:
        if not any("/part-" in path for path in paths):
            super().delete(paths)
            return
        self.on_its_way += paths
        raise StoreUnavailable("no answer")

    def land(self) -> None:
        super().delete(self.on_its_way)
        self.on_its_way.clear()


class RefusingStore(FakeStore):
    """Takes each object once."""

    error: type[BrokerlessError]

    def put(self, path: str, data: bytes, *, within_s: float | None = None) -> None:
        if path in self.objects:
            raise self.error("no more")
        super().put(path, data)


def objects(store: FakeStore) -> list[str]:
    return [path for path in store.objects if path.startswith("t/part-")]


@pytest.mark.parametrize("error", [StoreUnavailable, ConfigError])  # it failed, or credentials are over
def test_a_commit_whose_object_cannot_be_put_again_is_not_reported_as_failed(
    clock: FakeClock, error: type[BrokerlessError]
) -> None:
    store = RefusingStore(clock)
    store.error = error
    create_topic(store, "t", SCHEMA, clock=clock)
    producer = Producer("t", store=store, clock=clock)
    store.puts = [Put("created", before=lambda: clock.advance(UPLOAD_VALID_S + 1))]
    with pytest.raises(DeliveryFailed, match="may or may not appear later") as failure:
        producer.send({"n": [1]})
    assert failure.value.unknown
    entry = DeltaLog(store, "t", clock=clock).read(1)
    assert entry is not None
    assert failure.value.__cause__.commit_id == entry.commit_id  # type: ignore[union-attr]


def test_an_unknown_commit_that_comes_late_has_its_object(clock: FakeClock, store: FakeStore) -> None:
    def sleep_until_it_is_swept() -> None:
        clock.advance(UPLOAD_VALID_S + 1)
        store.delete(objects(store))

    store.puts = [Put("unknown", applied=False, before=sleep_until_it_is_swept)]
    with pytest.raises(DeliveryFailed, match="may or may not appear later"):
        Producer("t", store=store, clock=clock, delivery_timeout_s=1.0).send({"n": [1]})
    assert store.land_late_puts() == ["created"]
    assert len(objects(store)) == 1


def test_the_wall_clock_may_be_set_back_while_an_object_waits(clock: FakeClock, store: FakeStore) -> None:
    monotonic = clock.monotonic

    def sleep_and_set_back() -> None:
        clock.monotonic = lambda: monotonic() + UPLOAD_VALID_S + 1  # type: ignore[method-assign]
        store.delete(objects(store))

    store.puts = [Put("created", before=sleep_and_set_back)]
    Producer("t", store=store, clock=clock).send({"n": [1]})
    assert len(objects(store)) == 1


@pytest.mark.parametrize("writer", ["producer", "pipeline"])
def test_an_object_is_put_back_behind_a_removal_that_is_under_way(clock: FakeClock, writer: str) -> None:
    store = SlowStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    there: list[int] = []

    def sleep_until_it_is_being_removed() -> None:
        clock.advance(GRACE_S)
        (report,) = Maintainer(["t"], store=store, clock=clock).run_once()
        assert report.skipped == ("orphans: no answer",)
        FakeStore.delete(store, store.on_its_way)  # it may come twice: now, and after the object was put back
        clock.on_sleep = land
        clock.slept.clear()

    def land() -> None:
        there.append(len(objects(store)))
        store.land()
        store.put(f"t/{REMOVALS}/{clock.uuid()}", b"")  # who marks now sees the entry

    if writer == "producer":
        store.puts = [Put("created", before=sleep_until_it_is_being_removed)]
        Producer("t", store=store, clock=clock).send({"n": [1]})
    else:
        output, uploaded = batch(store, clock)
        store.puts = [Put("created", before=sleep_until_it_is_being_removed)]
        output.commit(uploaded, {"in": 1}, {"in": "x"})
    store.land()
    assert len(objects(store)) == 1
    assert there[0] == 1  # readers need it at once
    # Nobody took the first mark away. It counts for so long.
    assert REMOVAL_VALID_S <= sum(clock.slept) < REMOVAL_VALID_S + 60


def test_times_do_not_go_back_behind_a_checkpoint(clock: FakeClock, store: FakeStore) -> None:
    first = DeltaLog(store, "t", clock=clock).append([], {"a": 1})
    write_checkpoint(DeltaLog(store, "t", clock=clock))
    clock.advance(-300)
    assert DeltaLog(store, "t", clock=clock).append([], {"a": 2}).timestamp_ms == first.timestamp_ms


def test_a_producer_that_was_opened_on_a_deleted_topic_writes_nothing_into_the_new_one(
    clock: FakeClock, store: FakeStore
) -> None:
    producer = Producer("t", store=store, clock=clock)
    delete_topic(store, "t", clock=clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    with pytest.raises(TopicDeleted, match=r"t was deleted"):
        producer.send({"n": [1]})
    assert DeltaLog(store, "t", clock=clock).head() == 2


def test_such_a_producer_does_not_take_over_the_new_topic_either(clock: FakeClock, store: FakeStore) -> None:
    producer = Producer("t", store=store, clock=clock, producer_id="p")
    delete_topic(store, "t", clock=clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    for take_over_or_read in (producer.claim, producer.last_sequence):
        with pytest.raises(TopicDeleted):
            take_over_or_read()
    assert DeltaLog(store, "t", clock=clock).head() == 2


def test_what_a_writer_wrote_into_a_removed_folder_proves_nothing(clock: FakeClock, store: FakeStore) -> None:
    producer = Producer("t", store=store, clock=clock)
    producer.send({"n": [1]})
    store.objects.clear()  # by hand; and it commits as often as it looks
    with pytest.raises(DeliveryFailed, match="not acknowledged; they are not in the log"):
        for n in range(5):
            clock.advance(0.4)
            producer.send({"n": [n]})


def test_a_reader_does_not_begin_behind_a_first_entry_that_is_missing(clock: FakeClock, store: FakeStore) -> None:
    for n in range(3):
        Producer("t", store=store, clock=clock).send({"n": [n]})
    lost = store.objects.pop("t/_delta_log/00000000000000000001.json")
    with pytest.raises(LogIncomplete, match="Entry 1 of the log"):
        Consumer("t", start="beginning", store=store, clock=clock)
    store.objects["t/_delta_log/00000000000000000001.json"] = lost
    assert Consumer("t", start="beginning", store=store, clock=clock).poll(0)[0].version == 1


def test_clean_up_does_not_remove_the_only_witnesses_of_a_missing_entry(clock: FakeClock, store: FakeStore) -> None:
    for n in range(6):
        Producer("t", store=store, clock=clock).send({"n": [n]})
    write_checkpoint(DeltaLog(store, "t", clock=clock))
    clock.advance(8 * 86400)
    lost = store.objects.pop("t/_delta_log/00000000000000000003.json")
    (report,) = Maintainer(["t"], store=store, clock=clock).run_once(collect_garbage=False)
    assert "Entry 3 of the log" in report.skipped[0]
    assert report.entries_removed == 0
    store.objects["t/_delta_log/00000000000000000003.json"] = lost
    assert Maintainer(["t"], store=store, clock=clock).run_once(collect_garbage=False)[0].entries_removed == 6


def test_a_poll_does_not_say_that_nothing_came_when_the_store_failed_behind_a_claim(
    clock: FakeClock, store: FakeStore
) -> None:
    Producer("t", store=store, clock=clock, producer_id="p").send({"n": [1]})

    def fail(path: str) -> None:
        if path.endswith("02.json"):
            raise StoreUnavailable("no answer")

    consumer = Consumer("t", start="beginning", store=store, clock=clock)
    consumer.seek("beginning")  # without what its opening has read
    store.on_get = fail
    with pytest.raises(StoreUnavailable):
        consumer.poll(0)
    store.on_get = None
    clock.advance(60)
    assert consumer.poll(0)[0].version == 2


def test_a_producer_is_not_fenced_by_an_entry_that_is_missing(clock: FakeClock, store: FakeStore) -> None:
    producer = Producer("t", store=store, clock=clock, producer_id="p")
    producer.claim()
    clock.advance(RECHECK_S + 1)
    producer.send({"n": [1]}, sequence=1)
    claim = store.objects.pop("t/_delta_log/00000000000000000001.json")
    clock.advance(RECHECK_S + 1)
    for n in (2, 3):  # the first reads the log anew
        with pytest.raises(DeliveryFailed, match="Entry 1 of the log"):
            producer.send({"n": [n]}, sequence=n)
    store.objects["t/_delta_log/00000000000000000001.json"] = claim
    assert not producer.send({"n": [2]}, sequence=2)[0].duplicate


def test_a_suspended_machine_cannot_lose_what_it_commits_because_of_the_stores_own_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def suspensions(world: World, maintained: bool) -> run.Weather:
        weather = drawn(world, maintained)
        return replace(weather, odds={"suspend": 0.05} if maintained else {}, requests=600)

    drawn = run._weather
    monkeypatch.setattr(run, "_weather", suspensions)
    with simulated() as host:
        stood_still = [seed for seed in range(40, 200) if run_seed(host, seed).counts["fault: suspend"]]
        assert not any(run_seed(host, seed).failures for seed in stood_still)
        # A store that takes requests of any age would let them in.
        monkeypatch.setattr(bucket, "SKEW_US", 10**15)
        assert any(run_seed(host, seed).failures for seed in stood_still)


def batch(store: FakeStore, clock: FakeClock) -> tuple[outputs.OutputLog, outputs.UploadedFiles]:
    output = outputs.OutputLog(store, "t", SCHEMA, "pipe", clock=clock)
    output.claim()
    uploaded = outputs.UploadedFiles()
    output.upload(pa.table({"n": [1]}), uploaded)
    return output, uploaded


def test_a_pipeline_that_slept_within_its_commit_puts_its_objects_again(clock: FakeClock, store: FakeStore) -> None:
    def sleep_until_it_is_swept() -> None:
        clock.advance(outputs.COMMIT_WITHIN_MS / 1000 + 1)
        store.delete(objects(store))

    output, uploaded = batch(store, clock)
    store.puts = [Put("created", before=sleep_until_it_is_swept)]
    output.commit(uploaded, {"in": 1}, {"in": "x"})
    assert objects(store) == [f"t/{uploaded.adds[0].path}"]


def test_a_pipeline_says_when_an_executors_object_was_swept_while_it_slept(clock: FakeClock, store: FakeStore) -> None:
    def sleep_until_it_is_swept() -> None:
        clock.advance(outputs.COMMIT_WITHIN_MS / 1000 + 1)
        store.delete(objects(store))

    output, uploaded = batch(store, clock)
    uploaded.data.clear()  # as if an executor had uploaded it
    store.puts = [Put("created", before=sleep_until_it_is_swept)]
    with pytest.raises(PipelineError, match=rf"t/{uploaded.adds[0].path} waited for the commit"):
        output.commit(uploaded, {"in": 1}, {"in": "x"})


def test_a_pipeline_that_slept_within_a_commit_without_rows_is_not_fenced_by_itself(
    clock: FakeClock, store: FakeStore
) -> None:
    def checkpoint_behind_it(path: str) -> None:
        if path.endswith("02.json"):
            store.on_get = None
            write_checkpoint(DeltaLog(store, "t", clock=clock))
            for version in (0, 1):  # by which it would know its place
                del store.objects[f"t/_delta_log/{version:020d}.json"]

    def sleep() -> None:
        clock.advance(120)
        store.on_get = checkpoint_behind_it

    output, _ = batch(store, clock)
    store.puts = [Put("exists", before=sleep)]
    output.commit(outputs.UploadedFiles(), {"in": 1}, {"in": "x"})
    assert DeltaLog(store, "t", clock=clock).txn("pipe:in:0:x") == 1
