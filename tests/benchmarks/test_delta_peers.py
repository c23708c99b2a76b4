"""The Delta peers: what arrives is what was sent, dates are checked, and nothing is left running."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
import uuid
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import obstore
import psutil
import pyarrow as pa
import pytest

from benchmarks.peers import delta_spark, load
from benchmarks.peers.base import Peer, PeerError, Site
from benchmarks.peers.checks import TimestampCheck
from benchmarks.peers.child import Child
from benchmarks.peers.delta_rs import DeltaRs, LogReceiver, _added, _open_store, storage_options
from benchmarks.peers.delta_spark import StockDeltaSpark, figures
from benchmarks.spec import OUTPUT, Spec

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.peers.delta_spark_job import Job
    from brokerless.settings import Settings

BEGIN = 1_795_000_000.123456


@pytest.fixture
def site(embedded_settings: Settings, tmp_path: Path) -> Site:
    settings = dataclasses.replace(embedded_settings, root=f"{embedded_settings.root}/{uuid.uuid4().hex}")
    return Site(settings, tmp_path, tmp_path / "cache")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def spec_of(peer: str, **values: object) -> Spec:
    return Spec(peer, **{"rate": 1000, "seconds": 0.5, "warm_up_s": 0.0, **values})  # type: ignore[arg-type]


# --- timestamps


def timestamps_ms(rows: pa.Table) -> np.ndarray:
    dates = rows.column("date").to_pylist()
    return np.array([datetime.strptime(d, "%Y-%m-%d %H:%M:%S.%f %z").timestamp() * 1000 for d in dates])


@pytest.mark.parametrize("pacing", ["smooth", "bursty"])
@pytest.mark.parametrize("rate", [1000, 70_001])
def test_dates_on_schedule_pass(pacing: str, rate: int) -> None:
    spec = spec_of("delta-rs", rate=rate, pacing=pacing, seconds=60.0, producers=3)
    check = TimestampCheck(spec)
    for first in (0, 5_000, 15_000):
        for producer in range(3):
            rows = spec.build(producer, BEGIN, first, first + 700)
            check.check(np.full(700, producer), np.arange(first, first + 700), timestamps_ms(rows))


@pytest.mark.parametrize("row", [0, 99])
@pytest.mark.parametrize("error_ms", [0.01, -0.01, 1.0, float("nan")])
def test_a_wrong_date_at_either_end_of_a_call_is_found(row: int, error_ms: float) -> None:
    spec = spec_of("delta-rs")
    check = TimestampCheck(spec)
    numbers = np.arange(200)
    right = BEGIN * 1000 + spec.intended(0, 200) * 1000
    check.check(np.zeros(100, int), numbers[:100], right[:100])
    wrong = right[100:].copy()
    wrong[row] += error_ms
    with pytest.raises(ValueError, match=rf"message {100 + row} of producer 0 is"):
        check.check(np.zeros(100, int), numbers[100:], wrong)


def test_a_null_in_the_very_first_row_is_found() -> None:
    with pytest.raises(ValueError, match="is nan ms"):
        TimestampCheck(spec_of("delta-rs")).check(np.array([0]), np.array([0]), np.array([np.nan]))


def test_a_zone_whose_offset_was_lost_is_found() -> None:
    spec = spec_of("delta-rs")
    check = TimestampCheck(spec)
    check.check(np.array([0]), np.array([0]), np.array([BEGIN * 1000]))
    with pytest.raises(ValueError, match="Producer 1 began 3600 s after producer 0"):
        check.check(np.array([1]), np.array([0]), np.array([(BEGIN + 3600) * 1000]))


def test_no_rows_are_no_error() -> None:
    TimestampCheck(spec_of("delta-rs")).check(np.empty(0, int), np.empty(0, int), np.empty(0))


# --- delta-rs


def drive(peer: Peer, drain_s: float = 20.0) -> dict[int, np.ndarray]:
    """Sends on schedule and reads beside it; returns each producer's numbers in order of delivery."""
    spec = peer.spec
    receiver, senders = peer.receiver(), [peer.sender(p) for p in range(spec.producers)]
    receiver.open()
    for sender in senders:
        sender.open()
    begin = time.time()
    total = sum(spec.count(p) for p in range(spec.producers))
    done, acknowledged, seen = [0] * spec.producers, 0, 0
    arrived: list[tuple[np.ndarray, np.ndarray]] = []
    while seen < total and time.time() < begin + spec.seconds + drain_s:
        for producer, sender in enumerate(senders):
            due = spec.due(time.time() - begin, producer)
            if due > done[producer]:
                acknowledged += sender.send(spec.build(producer, begin, done[producer], due))
                done[producer] = due
        found = receiver.poll(spec.commit_ms / 1000)
        arrived += found
        seen += sum(len(numbers) for _, numbers in found)
        peer.check()
    arrived += receiver.poll(0.5)  # what came twice
    acknowledged += sum(sender.close() for sender in senders)
    receiver.close()
    assert acknowledged == total
    who = np.concatenate([np.empty(0, int), *(w for w, _ in arrived)])
    numbers = np.concatenate([np.empty(0, int), *(n for _, n in arrived)])
    return {producer: numbers[who == producer] for producer in range(spec.producers)}


@pytest.mark.parametrize(
    ("producers", "partitions", "tables"),
    [
        (1, 1, {"timezone1"}),
        (2, 1, {"timezone1", "timezone2"}),
        # Two each to one table: they meet at each version.
        (4, 1, {"timezone1", "timezone2"}),
        (4, 2, {"timezone1", "timezone1.1", "timezone2", "timezone2.1"}),
    ],
)
def test_delta_rs_delivers_all_in_order(
    site: Site, stack: ExitStack, producers: int, partitions: int, tables: set[str]
) -> None:
    spec = spec_of("delta-rs", hops=1, producers=producers, partitions=partitions, payload_bytes=20)
    peer = DeltaRs(spec, site)
    peer.start(stack)
    for producer, numbers in drive(peer).items():
        np.testing.assert_array_equal(numbers, np.arange(spec.count(producer)))
    assert set(peer.finish().tables) == tables


def test_a_log_entry_is_read_as_the_protocol_says() -> None:
    lines = [
        {"commitInfo": {"operation": "WRITE"}},
        {"add": {"path": "part%20one.parquet", "dataChange": True}},
        {"add": {"path": "compacted.parquet", "dataChange": False}},
        {"remove": {"path": "old.parquet", "dataChange": True}},
    ]
    assert list(_added("\n".join(map(json.dumps, lines)).encode())) == ["part one.parquet"]


def test_the_reader_passes_on_what_stopped_it(site: Site, stack: ExitStack) -> None:
    receiver = LogReceiver(site.settings, ["broken"], spec_of("delta-rs", hops=1))
    obstore.put(_open_store(site.settings), f"broken/_delta_log/{0:020d}.json", b"no json")
    receiver.open()
    stack.callback(receiver.close)
    with pytest.raises(json.JSONDecodeError):
        receiver.poll(10)


def test_the_reader_of_an_output_checks_its_timestamps(site: Site, stack: ExitStack) -> None:
    from deltalake import write_deltalake

    spec = spec_of("delta-spark-stock")
    message = spec.build(0, BEGIN, 0, 3).column("message")
    right = (BEGIN + spec.intended(0, 3)) * 1000
    receiver = LogReceiver(site.settings, [OUTPUT], spec)
    receiver.open()
    stack.callback(receiver.close)
    where, options = f"{site.settings.root}/{OUTPUT}", storage_options(site.settings)
    write_deltalake(where, pa.table({"timestamp": right, "message": message}), storage_options=options)
    [(_, numbers)] = receiver.poll(10)
    assert list(numbers) == [0, 1, 2]
    wrong = pa.table({"timestamp": right + 0.1, "message": message})
    write_deltalake(where, wrong, mode="append", storage_options=options)
    with pytest.raises(ValueError, match="The timestamp of message"):
        receiver.poll(10)


# --- delta-spark


def fake_job(monkeypatch: pytest.MonkeyPatch, program: str) -> list[subprocess.Popen[str]]:
    """Start a few lines of Python instead of the Spark job."""
    started: list[subprocess.Popen[str]] = []

    def start(stack: ExitStack, job: Job, folder: Path, environ: object) -> Child:
        child = Child.start(stack, "Spark job", [sys.executable, "-c", program], folder, {})
        started.append(child.process)
        return child

    monkeypatch.setattr(delta_spark, "_start_job", start)
    return started


def alive_in_group(group: int) -> list[psutil.Process]:
    """Its processes; those that are killed but not yet reaped by init do not count."""
    found = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_a_job_that_does_not_start_is_told_with_its_last_words(
    site: Site, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_job(monkeypatch, "import sys; sys.exit('no such jar')")
    with pytest.raises(PeerError, match=r"ended with 1: no such jar"):
        StockDeltaSpark(spec_of("delta-spark-stock"), site).start(stack)


def test_a_job_ends_with_the_stack_and_so_do_its_children(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    child = "import subprocess; subprocess.Popen(['sleep', '60']);"
    started = fake_job(
        monkeypatch, f'{child} print(\'{{"event": "started"}}\', flush=True); import time; time.sleep(60)'
    )
    with pytest.raises(RuntimeError, match="the harness"), ExitStack() as stack:
        peer = StockDeltaSpark(spec_of("delta-spark-stock"), site)
        peer.start(stack)
        peer.check()
        assert len(alive_in_group(peer.processes()["pipeline"])) == 2
        raise RuntimeError("the harness failed")
    [job] = started
    assert job.returncode is not None
    assert not alive_in_group(job.pid)


def test_figures_are_of_the_second_half() -> None:
    batches = [
        {"event": "batch", "at_s": float(at), "rows": rows, "ms": {"triggerExecution": ms, "addBatch": ms / 2}}
        for at, rows, ms in [(0, 1, 9000), (9, 1, 1000), (10, 100, 400), (11, 300, 600)]
    ]
    assert figures(batches) == {
        "batch_ms": 500.0,
        "batches": 4,
        "batches_per_s": 1.25,  # two from 10.0 to 11.6 s
        "rows_per_batch": 200,
        "phases_ms": {"addBatch": 250.0},
    }
    assert figures([]) == {}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["delta-spark-stock", "delta-spark-tuned"])
def test_delta_spark_delivers_each_message_once(site: Site, stack: ExitStack, name: str) -> None:
    kind = load(name)
    reason = kind.prepare(site.cache)
    assert reason is None
    peer = kind(spec_of(name, seconds=3.0), site)
    peer.start(stack)
    # Each once; their order is not kept by Delta's source.
    for producer, numbers in drive(peer, drain_s=120).items():
        np.testing.assert_array_equal(np.sort(numbers), np.arange(peer.spec.count(producer)))
    stats = peer.finish()
    assert set(stats.tables) == {"timezone1", "timezone2", OUTPUT}
    assert stats.figures["batch_ms"] > 0
