"""A quick, honest measurement of the example pipeline: topic -> Spark -> output table -> reader, on this machine.

    python -m benchmarks.quick --rate 10000 --seconds 30 --profile minio

Load is open-loop: each message has an intended send time, latency counts from there, and a sender that falls behind
is reported. Producer, pipeline and reader are processes of their own; maintenance runs beside them. Each message has
an id, so that the verdict sees loss, duplicates and order. The exit code is 0 only if the verdict is clean.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from benchmarks import messages
from brokerless.admin import create_topic
from brokerless.consumer import Consumer
from brokerless.producer import Producer
from brokerless.settings import Settings
from brokerless.spark.classes import ensure_archive
from brokerless.store import create_bucket, open_store
from brokerless.topics import Schema

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Event

ZONES: Final = {"timezone1": "America/New_York", "timezone2": "Europe/Paris"}
OUTPUT: Final = "timezone_unified"
LATE_S: Final = 0.5  # a sender that is further behind its schedule than this spoils the measurement
DRAIN_S: Final = 30.0
ECHO_S: Final = 2.0  # how long the reader goes on after the last message, to see duplicates


@dataclass(frozen=True, slots=True)
class Result:
    """One run. Seconds; latency from the intended send time to the reader, after the warm-up."""

    rate: int
    seconds: float
    profile: str
    commit_ms: int
    sent: int
    acknowledged: int
    seen: int
    lost: int
    duplicated: int
    out_of_order: int
    p50_s: float
    p75_s: float
    p85_s: float
    p95_s: float
    p99_s: float
    p999_s: float
    max_s: float
    measured: int
    max_late_s: float
    send_ms: float
    batch_ms: float
    compute_ms: float
    commit_out_ms: float
    batches_per_s: float
    clean: bool


def main(argv: list[str] | None = None) -> int:
    """Runs one measurement; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quick", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rate", type=int, default=10_000, help="messages a second, over both topics")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to send, warm-up included")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds at the start that do not count")
    parser.add_argument("--profile", choices=["embedded", "minio"], default="embedded")
    parser.add_argument("--commit-ms", type=int, default=100, help="time between the commits of a producer")
    parser.add_argument("--payload-bytes", type=int, default=0, help="added to each message")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    args = parser.parse_args(argv)
    if args.seconds <= args.warm_up + 1:
        parser.error(f"--seconds {args.seconds} leaves nothing to measure after --warm-up {args.warm_up}")
    result = run(args)
    print(json.dumps(asdict(result)) if args.json else _text(result))
    return 0 if result.clean else 1


def run(args: argparse.Namespace) -> Result:
    """One measurement from an empty root to the verdict."""
    with ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brokerless-bench-")))
        settings = _server(stack, args.profile, state)
        _say(f"store: {settings.endpoint}, root {settings.root}")
        create_bucket(settings)
        store = open_store(settings)
        for topic in ZONES:
            create_topic(store, topic, Schema.parse("date string, message string"))
        create_topic(store, OUTPUT, Schema.parse("timestamp double, message string"))
        os.environ.update(settings.to_environ())  # for the processes below
        pipeline = _Pipeline(stack, args)
        _maintain(stack, settings)
        spawn = mp.get_context("spawn")
        stop = spawn.Event()
        ready = spawn.Event()
        read_end, write_end = spawn.Pipe(duplex=False)
        reader = spawn.Process(target=_read, args=(settings, args.warm_up, stop, ready, write_end), daemon=True)
        reader.start()
        pipeline.wait_started()
        ready.wait(30)
        begin = time.time() + 1.0
        senders, results = [], []
        for number in range(len(ZONES)):
            mine, theirs = spawn.Pipe(duplex=False)
            sender = spawn.Process(target=_send, args=(settings, number, begin, args, theirs), daemon=True)
            sender.start()
            senders.append(sender)
            results.append(mine)
        sent = [_wait(sender, pipe, args.seconds, pipeline) for sender, pipe in zip(senders, results, strict=True)]
        expected = sum(s["acknowledged"] for s in sent)
        _say(f"sent {expected:,}; waiting for the reader")
        seen = _collect(read_end, stop, expected)
        reader.join(10)
        return _verdict(args, sent, seen, pipeline.stop())


def _send(settings: Settings, number: int, begin: float, args: argparse.Namespace, out: Connection) -> None:
    """One producer process: at each tick, everything whose intended time has come."""
    topic = list(ZONES)[number]
    rate = args.rate / len(ZONES)
    tick = args.commit_ms / 1000
    zone = ZONES[topic]
    total = int(rate * args.seconds)
    done = acknowledged = 0
    late = spent = 0.0
    commits = 0
    with Producer(topic, settings=settings, producer_id=f"bench-{number}") as producer:
        producer.last_sequence()  # opens the log before the clock runs
        # The two producers commit half a tick apart, as independent ones would.
        next_tick = begin + tick * (1 + number / len(ZONES))
        while done < total:
            time.sleep(max(0.0, next_tick - time.time()))
            now = time.time()
            late = max(late, now - next_tick)
            due = min(total, int((now - begin) * rate) + 1)
            if due > done:
                intended = ((begin + np.arange(done, due) / rate) * 1e6).astype(np.int64)
                table = messages.build(number, done, intended, zone, args.payload_bytes)
                started = time.perf_counter()
                acknowledged += sum(ack.rows for ack in producer.send(table))
                spent += time.perf_counter() - started
                commits += 1
                done = due
            next_tick += tick
    out.send(
        {
            "sent": done,
            "acknowledged": acknowledged,
            "late_s": late,
            "send_ms": 1000 * spent / max(commits, 1),
            "begin": begin,
        }
    )


def _read(settings: Settings, warm_up: float, stop: Event, ready: Event, out: Connection) -> None:
    """The reader process: latencies and ids of everything that arrives, as arrays."""
    arrived: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    count = 0
    with Consumer(OUTPUT, settings=settings, start="beginning") as consumer:
        ready.set()
        while not stop.is_set():
            for batch in consumer.poll(0.2):
                now_ms = time.time() * 1000
                rows = pa.table(batch.data)
                column = rows.column("message").combine_chunks()
                who, which = messages.ids(column if isinstance(column, pa.Array) else column.chunk(0))
                arrived.append((now_ms - rows.column("timestamp").to_numpy(), who, which))
                count += len(rows)
            out.send(count)
    out.send(
        {
            "latency_ms": np.concatenate([a for a, _, _ in arrived]),
            "producer": np.concatenate([p for _, p, _ in arrived]),
            "number": np.concatenate([n for _, _, n in arrived]),
        }
    )


def _collect(read_end: Connection, stop: Event, expected: int) -> dict[str, np.ndarray]:
    deadline = time.monotonic() + DRAIN_S
    count = 0
    while count < expected and time.monotonic() < deadline:
        if read_end.poll(1):
            count = read_end.recv()
    echo = time.monotonic() + ECHO_S
    while time.monotonic() < echo:
        if read_end.poll(0.1):
            read_end.recv()
    stop.set()
    while True:
        got = read_end.recv()
        if isinstance(got, dict):
            return got


def _verdict(
    args: argparse.Namespace, sent: list[dict[str, Any]], seen: dict[str, np.ndarray], batches: dict[str, float]
) -> Result:
    lost = duplicated = disordered = 0
    kept = np.zeros(len(seen["number"]), bool)
    for number, one in enumerate(sent):
        mine = seen["producer"] == number
        numbers = seen["number"][mine]
        counts = np.bincount(numbers, minlength=one["sent"])
        lost += int((counts[: one["sent"]] == 0).sum())
        duplicated += int((counts - 1).clip(0).sum())
        disordered += int((np.diff(numbers) < 0).sum())
        kept |= mine & (seen["number"] >= args.warm_up * args.rate / len(ZONES))
    latency = np.sort(seen["latency_ms"][kept]) / 1000

    def percentile(p: float) -> float:
        return round(float(latency[min(len(latency) - 1, int(np.ceil(len(latency) * p / 100)) - 1)]), 4)

    late = max(s["late_s"] for s in sent)
    total, acknowledged = sum(s["sent"] for s in sent), sum(s["acknowledged"] for s in sent)
    clean = not (lost or duplicated or disordered) and acknowledged == total and late <= LATE_S
    return Result(
        rate=args.rate,
        seconds=args.seconds,
        profile=args.profile,
        commit_ms=args.commit_ms,
        sent=total,
        acknowledged=acknowledged,
        seen=len(seen["number"]),
        lost=lost,
        duplicated=duplicated,
        out_of_order=disordered,
        p50_s=percentile(50),
        p75_s=percentile(75),
        p85_s=percentile(85),
        p95_s=percentile(95),
        p99_s=percentile(99),
        p999_s=percentile(99.9),
        max_s=percentile(100),
        measured=len(latency),
        max_late_s=round(late, 4),
        send_ms=round(sum(s["send_ms"] for s in sent) / len(sent), 2),
        batch_ms=round(batches["compute_ms"] + batches["commit_ms"], 1),
        compute_ms=round(batches["compute_ms"], 1),
        commit_out_ms=round(batches["commit_ms"], 1),
        batches_per_s=round(batches["batches_per_s"], 2),
        clean=clean,
    )


class _Pipeline:
    """The job itself, as ``brokerless run timezone-etl --json`` starts it."""

    def __init__(self, stack: ExitStack, args: argparse.Namespace) -> None:
        script = Path(__file__).parent.parent / "glue_jobs" / "timezone_etl.py"
        command = [sys.executable, str(script), "--json"]
        if not ensure_archive():
            _say("without an archive of Spark's classes: the start takes longer")
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by the stack
        stack.callback(self._errors.close)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        stack.callback(self._kill)
        self._started = threading.Event()
        self._lines: list[dict[str, Any]] = []
        threading.Thread(target=self._follow, daemon=True).start()
        _say("starting the pipeline")

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "started":
                self._started.set()
            elif event["event"] == "progress":
                self._lines.append(event)

    def wait_started(self) -> None:
        while not self._started.wait(0.2):
            self.check()

    def check(self) -> None:
        if self.process.poll() is not None:
            self._errors.seek(0)
            msg = f"The pipeline ended with {self.process.returncode}:\n{self._errors.read()[-3000:]}"
            raise SystemExit(msg)

    def stop(self) -> dict[str, float]:
        """Ends the job; the mean batch after the first half of its life (its JIT warms up in the first)."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        steady = [e for e in self._lines if e["rows"]][len(self._lines) // 2 :] or self._lines
        batches = sum(e["batches"] for e in steady)
        return {
            "compute_ms": sum(e["compute_ms"] * e["batches"] for e in steady) / max(batches, 1),
            "commit_ms": sum(e["commit_ms"] * e["batches"] for e in steady) / max(batches, 1),
            "batches_per_s": batches / max(len(steady), 1),
        }

    def _kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def _wait(sender: Any, pipe: Connection, seconds: float, pipeline: _Pipeline) -> dict[str, Any]:
    deadline = time.monotonic() + seconds + 60
    while not pipe.poll(1):
        pipeline.check()
        if sender.exitcode not in (None, 0) or time.monotonic() > deadline:
            msg = f"A producer did not finish (exit code {sender.exitcode})."
            raise SystemExit(msg)
        _say("sending", end="\r")
    got: dict[str, Any] = pipe.recv()
    return got


def _server(stack: ExitStack, profile: str, state: Path) -> Settings:
    from brokerless.local.server import minio_server, start_embedded

    if profile == "minio":
        server = stack.enter_context(minio_server(os.environ, state / "minio"))
    else:
        server = stack.enter_context(start_embedded(state / "s3"))
    return Settings(
        profile=profile,  # type: ignore[arg-type]  # argparse's choices
        root=f"s3://brokerless/bench-{int(time.time())}",
        endpoint=server.endpoint,
        access_key=server.access_key,
        secret_key=server.secret_key,
        state_dir=state,
    )


def _maintain(stack: ExitStack, settings: Settings) -> None:
    """Maintenance beside the load, in a process of its own, as a user would run it."""
    command = [sys.executable, "-m", "brokerless.cli", "maintain", "--watch", "--interval", "10"]
    child = subprocess.Popen(
        command, env={**os.environ, **settings.to_environ()}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def end() -> None:
        child.terminate()
        child.wait(10)

    stack.callback(end)


def _text(r: Result) -> str:
    verdict = "clean" if r.clean else "NOT CLEAN"
    return (
        f"{r.rate:,} msg/s for {r.seconds:g} s on {r.profile}, commit each {r.commit_ms} ms\n"
        f"latency s   p50 {r.p50_s:.3f}  p75 {r.p75_s:.3f}  p85 {r.p85_s:.3f}  p95 {r.p95_s:.3f}  p99 {r.p99_s:.3f}"
        f"  p99.9 {r.p999_s:.3f}  max {r.max_s:.3f}  ({r.measured:,} messages after warm-up)\n"
        f"batch ms    {r.batch_ms:.0f} = compute {r.compute_ms:.0f} + commit {r.commit_out_ms:.0f};"
        f" {r.batches_per_s:.1f} batches/s; producer send {r.send_ms:.1f} ms, at most {r.max_late_s:.3f} s late\n"
        f"verdict     {verdict}: sent {r.sent:,}, acknowledged {r.acknowledged:,}, seen {r.seen:,}, lost {r.lost:,}, "
        f"duplicated {r.duplicated:,}, out of order {r.out_of_order:,}"
    )


def _say(text: str, end: str = "\n") -> None:
    if end == "\n" or sys.stderr.isatty():
        print(text, end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
