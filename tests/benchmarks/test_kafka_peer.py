"""The Kafka peers: values and acknowledgements without a broker, and whole runs with one."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from benchmarks.peers import kafka_clients, kafka_job, load
from benchmarks.peers.base import Site
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.kafka_clients import KafkaReceiver, ids, values
from benchmarks.peers.kafka_job import SEPARATOR, figures
from benchmarks.spec import OUTPUT, ZONES, Spec
from brokerless.log.log import DeltaLog
from brokerless.store import open_store

if TYPE_CHECKING:
    from brokerless.settings import Settings

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brokerless" / "benchmarks"
BEGIN = 1_724_403_133.066217


@pytest.mark.parametrize("payload", [0, 7])
def test_a_value_is_date_tab_message_and_its_ids_are_found(payload: int) -> None:
    rows = Spec("kafka", 1_000, payload_bytes=payload).build(1, BEGIN, 998, 1_003)
    found = values(rows)
    assert found == [
        f"{row['date']}\t{row['message']}".encode() for row in rows.select(["date", "message"]).to_pylist()
    ]
    producers, numbers = ids(found, payload)
    assert producers.tolist() == [1] * 5
    assert numbers.tolist() == [998, 999, 1_000, 1_001, 1_002]


def test_values_of_slices_and_chunks_are_those_of_their_rows() -> None:
    rows = Spec("kafka", 1_000).build(0, BEGIN, 0, 10)
    whole = values(rows)
    assert values(rows.slice(3, 4)) == whole[3:7]
    assert values(pa.concat_tables([rows.slice(6), rows.slice(0, 2)])) == whole[6:] + whole[:2]
    assert values(rows.slice(0, 0)) == []


def test_values_of_different_widths_are_refused() -> None:
    rows = pa.table({"date": ["d", "d"], "message": ["short", "longer"]})
    with pytest.raises(ValueError, match="7 to 8 bytes"):
        values(rows)


def test_ids_are_found_behind_fields_of_any_width() -> None:
    found = [b"1.724403133066E12\t00-000000000007", b"1.7E12\t01-000000000008", b"\t00-123456789012"]
    producers, numbers = ids(found, 0)
    assert producers.tolist() == [0, 1, 0]
    assert numbers.tolist() == [7, 8, 123_456_789_012]


@pytest.mark.parametrize("bad", [None, b"", b"00-000000000007", b"1.7E12 00-000000000007", b"x"])
def test_a_value_of_another_form_is_refused(bad: bytes | None) -> None:
    with pytest.raises(ValueError, match="must be a field, a tab and a message"):
        ids([b"1.7E12\t00-000000000006", bad], 0)


class _Message:
    def __init__(self, value: bytes) -> None:
        self._value = value

    def value(self) -> bytes:
        return self._value

    def error(self) -> None:
        return None


class _Consumer:
    def __init__(self, found: list[_Message]) -> None:
        self._found = found

    def poll(self, _: float) -> _Message | None:
        return self._found.pop(0) if self._found else None

    def consume(self, _: int, *, timeout: float) -> list[_Message]:
        assert timeout == 0, "it would wait until its list is full"
        taken, self._found = self._found, []
        return taken


def _receiver(spec: Spec, texts: list[str]) -> KafkaReceiver:
    receiver = KafkaReceiver("nowhere", {OUTPUT: [0]}, spec)
    receiver._ck = type("ck", (), {"Message": _Message})
    receiver._consumer = _Consumer([_Message(text.encode()) for text in texts])
    return receiver


def test_the_receiver_refuses_a_timestamp_that_is_not_on_schedule() -> None:
    spec = Spec("kafka", 1_000, hops=2)
    right = [f"{(BEGIN + n * 2 / 1_000) * 1000!r}\t00-{n:012d}" for n in range(3)]
    ((producers, numbers),) = _receiver(spec, right).poll(1)
    assert (producers.tolist(), numbers.tolist()) == ([0] * 3, [0, 1, 2])
    late = [*right[:2], f"{(BEGIN + 1) * 1000!r}\t00-{2:012d}"]
    with pytest.raises(ValueError, match="message 2 of producer 0"):
        _receiver(spec, late).poll(1)


def test_batches_are_averaged_after_the_first_half() -> None:
    batches = [{"triggerExecution": ms, "walCommit": 1, "commitOffsets": 2} for ms in (900, 900, 10, 20)]
    found = figures(batches)
    assert (found["batches"], found["batch_ms"], found["checkpoint_ms"]) == (4, 15.0, 3.0)
    assert figures([]) == {"batches": 0}


def test_only_the_real_time_peer_asks_for_real_time_mode(
    embedded_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: dict[str, list[str]] = {}
    for name in ("kafka", "kafka-realtime", "kafka-delta"):
        peer = load(name)(Spec(name, 1_000, partitions=3), Site(embedded_settings, tmp_path, CACHE))
        assert isinstance(peer, Kafka)
        peer._bootstrap, peer._events = "nowhere:1", {}
        monkeypatch.setattr(
            peer, "_start_child", lambda _, role, command, environ, name=name: _Job(started, name, command)
        )
        monkeypatch.setattr(peer, "_wait", lambda *_: None)
        with ExitStack() as stack:
            peer._start_job(stack, [])
    assert [name for name, command in started.items() if "--realtime" in command] == ["kafka-realtime"]
    command = started["kafka-realtime"]
    assert json.loads(command[command.index("--inputs") + 1]) == {topic: [0, 1, 2] for topic in ZONES}


class _Job:
    def __init__(self, started: dict[str, list[str]], name: str, command: list[str]) -> None:
        started[name] = command

    def follow(self, events: object) -> None:
        return


def test_real_time_mode_is_refused_for_delta(capsys: pytest.CaptureFixture[str]) -> None:
    needed = ["--bootstrap=b", "--inputs={}", "--output=o", "--checkpoint=c"]
    with pytest.raises(SystemExit) as refused:
        kafka_job.main([*needed, "--sink=delta", "--realtime"])
    assert refused.value.code == 2
    assert "writes to Kafka only" in capsys.readouterr().err


def test_running_tasks_are_those_of_all_stages_that_are_still_there() -> None:
    stages = {1: SimpleNamespace(numActiveTasks=2), 2: None, 5: SimpleNamespace(numActiveTasks=1)}
    tracker = SimpleNamespace(getActiveStageIds=lambda: list(stages), getStageInfo=stages.get)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    assert kafka_job._running_tasks(spark) == 3


def test_job_and_clients_share_the_separator() -> None:
    assert SEPARATOR.encode() == kafka_clients.SEPARATOR


def _lives(process: psutil.Process) -> bool:
    """An orphan that has ended stays a zombie until the system's first process looks."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.timeout(300)  # three servers start, on a machine that may be busy
@pytest.mark.parametrize(
    ("name", "hops"),
    [("kafka", 1), ("kafka", 2), ("kafka-defaults", 2), ("kafka-realtime", 2), ("kafka-delta", 2)],
)
def test_every_message_arrives_once_in_order(
    name: str, hops: int, embedded_settings: Settings, tmp_path: Path
) -> None:  # fmt: skip
    peer_class = load(name)
    reason = peer_class.prepare(CACHE)
    if reason:
        pytest.skip(reason)
    spec = Spec(name, 2_000, hops=hops, seconds=3.0, partitions=2, producers=3)  # type: ignore[arg-type]
    settings = replace(embedded_settings, root=f"{embedded_settings.root}/{name}-{hops}")
    peer = peer_class(spec, Site(settings, tmp_path, CACHE))
    with ExitStack() as stack:
        peer.start(stack)
        pids = peer.processes()
        assert set(pids) == ({"broker"} if hops == 1 else {"broker", "pipeline"})
        family = [p for pid in pids.values() for p in (psutil.Process(pid), *psutil.Process(pid).children(True))]
        receiver = peer.receiver()
        receiver.open()
        stack.callback(receiver.close)
        senders = [peer.sender(producer) for producer in range(spec.producers)]
        for sender in senders:
            sender.open()
        begin = time.time()
        done, acknowledged = [0] * spec.producers, 0
        arrived: list[tuple[np.ndarray, np.ndarray]] = []
        deadline = time.monotonic() + 90
        while sum(map(len, (n for _, n in arrived))) < spec.rate * spec.seconds and time.monotonic() < deadline:
            for producer, sender in enumerate(senders):
                due = spec.due(time.time() - begin, producer)
                if due > done[producer]:
                    acknowledged += sender.send(spec.build(producer, begin, done[producer], due))
                    done[producer] = due
            arrived += receiver.poll(peer.tick_ms / 1000)
        acknowledged += sum(sender.close() for sender in senders)
        arrived += receiver.poll(1.0)  # duplicates
        peer.check()
        stats = peer.finish()
    assert acknowledged == sum(done) == spec.rate * spec.seconds
    for producer in range(spec.producers):
        numbers = np.concatenate([number[who == producer] for who, number in arrived])
        assert np.array_equal(numbers, np.arange(spec.count(producer))), f"producer {producer}"
    assert stats.figures["broker_log_bytes"] > spec.rate * spec.seconds * 4, "compressed, but they are there"
    if name == "kafka-realtime":
        assert stats.figures["batches"] == 0, "one batch, which did not end"
    elif hops == 2:
        assert stats.figures["batch_ms"] > 0
    if name == "kafka-delta":
        assert list(stats.tables) == [OUTPUT]
        assert DeltaLog(open_store(settings), OUTPUT).head() > 0
    assert not [process for process in family if _lives(process)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_dead_broker_is_reported_and_acknowledges_nothing(embedded_settings: Settings, tmp_path: Path) -> None:
    from benchmarks.peers.base import PeerError

    peer_class = load("kafka")
    reason = peer_class.prepare(CACHE)
    if reason:
        pytest.skip(reason)
    peer = peer_class(Spec("kafka", 100, hops=1), Site(embedded_settings, tmp_path, CACHE))
    with ExitStack() as stack:
        peer.start(stack)
        sender = peer.sender(0)
        sender.open()
        pid = peer.processes()["broker"]
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # leaves the exit code to the peer
        with pytest.raises(PeerError, match="broker ended with -9"):
            peer.check()
        assert sender.send(peer.spec.build(0, time.time(), 0, 10)) == 0, "nobody acknowledged them"
