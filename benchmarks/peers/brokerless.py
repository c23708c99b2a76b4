"""The peer brokerless: ``Producer`` and ``Consumer``, and between them the pipeline of ``brokerless run``."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from benchmarks import messages
from benchmarks.peers.base import Peer, PeerError, Stats
from benchmarks.peers.checks import TimestampCheck
from benchmarks.peers.child import Child
from benchmarks.spec import OUTPUT
from brokerless.consumer import Consumer
from brokerless.local.jobs import start_job
from brokerless.local.processes import end_child
from brokerless.producer.producer import Producer
from brokerless.schema import Schema, partition_table
from brokerless.store import open_store
from brokerless.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    import numpy as np

    from benchmarks.spec import Spec
    from brokerless.settings import Settings

START_S: Final = 120.0


class BrokerlessSender:
    """A producer that commits its messages at once, to one partition."""

    def __init__(self, settings: Settings, name: str, topic: str, partition: int) -> None:
        self._settings, self._name, self._topic, self._partition = settings, name, topic, partition

    def open(self) -> None:
        self._producer = Producer(
            self._topic, settings=self._settings, producer_id=self._name, partition=self._partition
        )
        self._producer.claim()  # now, not when the clock runs

    def send(self, rows: pa.Table) -> int:
        return sum(ack.rows for ack in self._producer.send(rows))

    def close(self) -> int:
        self._producer.close()
        return 0


class BrokerlessReceiver:
    """A consumer of all partitions; for a pipeline's output, it checks the parsed timestamps."""

    def __init__(self, settings: Settings, topics: Sequence[str], spec: Spec) -> None:
        self._settings, self._topics = settings, list(topics)
        self._check = TimestampCheck(spec) if spec.hops > 1 else None

    def open(self) -> None:
        self._consumer = Consumer(self._topics, settings=self._settings, start="beginning")

    def poll(self, max_wait_s: float) -> list[tuple[np.ndarray, np.ndarray]]:
        found = []
        for batch in self._consumer.poll(max_wait_s):
            rows = pa.table(batch.data)
            column = rows.column("message").cast(pa.string()).combine_chunks()
            who, which = messages.ids(column if isinstance(column, pa.Array) else column.chunk(0))
            if self._check:
                self._check.check(who, which, rows.column("timestamp").to_numpy())
            found.append((who, which))
        return found

    def close(self) -> None:
        self._consumer.close()


class Brokerless(Peer):
    """brokerless with defaults: its pipeline chooses its engine itself, and must choose real-time mode."""

    name: ClassVar[str] = "brokerless"
    label: ClassVar[str] = "brokerless"
    hops: ClassVar[tuple[int, ...]] = (1, 2)
    engine: ClassVar[str] = "realtime"
    arguments: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def prepare(cls, cache: Path) -> str | None:
        """Create the archive of Spark's classes, which every later start uses."""
        from brokerless.spark.classes import ensure_archive

        ensure_archive()
        return None

    def start(self, stack: ExitStack) -> None:
        self._processes: dict[str, int] = {}
        self._job: Child | None = None
        self._batches: list[dict[str, Any]] = []
        self._started: dict[str, Any] = {}
        store = open_store(self.site.settings)
        for topic in self.spec.topics:
            create_topic(store, topic, Schema.parse("date string, message string"), partitions=self.spec.partitions)
        if self.spec.hops == 2:
            create_topic(store, OUTPUT, Schema.parse("timestamp double, message string"))
        self._maintain(stack)
        if self.spec.hops == 2:
            self._start_job(stack)

    def _maintain(self, stack: ExitStack) -> None:
        """Run maintenance during the load, as users do: a log without checkpoints grows and is slow to open."""
        child = subprocess.Popen(
            [sys.executable, "-m", "brokerless.cli", "maintain", "--watch", "--interval", "10"],
            env={**os.environ, **self.site.settings_for("maintenance").to_environ()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._processes["maintenance"] = child.pid
        stack.callback(end_child, child, grace_s=10)

    def _start_job(self, stack: ExitStack) -> None:
        log = self.site.folder / "pipeline.log"
        with log.open("w") as file:
            process = start_job(
                "timezone-etl",
                self.site.settings_for("pipeline"),
                self.job_arguments(),
                stdout=subprocess.PIPE,
                stderr=file,
            )
        self._job = Child(stack, "pipeline", process, log)
        self._processes["pipeline"] = process.pid
        started = threading.Event()

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "started":
                self._started = event
                started.set()
            elif event["event"] == "progress" and event["rows"]:
                self._batches.append(event)

        self._job.follow(on_event)
        for _ in range(int(START_S / 0.2)):
            if started.wait(0.2):
                self.check_engine(self._started)
                return
            self.check()
        raise PeerError(f"The pipeline was not ready after {START_S:.0f} s.")

    def job_arguments(self) -> list[str]:
        """Return the arguments of the pipeline's script. In real-time mode it commits as often as the producers do."""
        interval = [f"--commit-interval={self.spec.commit_ms}ms"] if self.engine == "realtime" else []
        return ["--json", "--inputs", ",".join(self.spec.topics), *interval, *self.arguments]

    def check_engine(self, started: Mapping[str, Any]) -> None:
        """Raise unless the pipeline uses this peer's engine: figures of another one would have the wrong label.

        Args:
            started: the message of the pipeline's script when it was ready: ``engine``, and ``reason`` if it chose.

        Raises:
            PeerError: the pipeline uses another engine.
        """
        if started["engine"] != self.engine:
            why = f": {started['reason']}" if started.get("reason") else ""
            raise PeerError(f"The pipeline must run with the engine {self.engine!r}, got {started['engine']!r}{why}.")

    def check(self) -> None:
        if self._job is not None:
            self._job.check()

    def processes(self) -> Mapping[str, int]:
        return self._processes

    def sender(self, producer: int) -> BrokerlessSender:
        spec = self.spec
        return BrokerlessSender(
            self.site.settings_for("producer"), f"bench-{producer}", spec.topic(producer), spec.partition(producer)
        )

    def receiver(self) -> BrokerlessReceiver:
        topics = self.spec.topics if self.spec.hops == 1 else [OUTPUT]
        return BrokerlessReceiver(self.site.settings_for("reader"), topics, self.spec)

    def finish(self) -> Stats:
        topics = self.spec.topics
        tables = [partition_table(topic, n) for topic in topics for n in range(self.spec.partitions)]
        if self._job is None:
            return Stats(tables=tables)
        self._job.end()
        steady = self._batches[len(self._batches) // 2 :]  # the JVM compiles its code in the first half
        batches = sum(e["batches"] for e in steady) or 1
        return Stats(
            figures={
                "engine": self._started["engine"],
                "compute_ms": round(sum(e["compute_ms"] * e["batches"] for e in steady) / batches, 1),
                "commit_ms": round(sum(e["commit_ms"] * e["batches"] for e in steady) / batches, 1),
                "batches_per_s": round(batches / max(len(steady), 1), 2),
            },
            tables=[*tables, OUTPUT],
        )


class BrokerlessMicroBatch(Brokerless):
    """The pipeline in micro-batches, each starting as soon as the one before is committed."""

    name = "brokerless-micro-batch"
    label = "brokerless, micro-batches"
    hops = (2,)
    engine = "micro-batch"
    arguments: ClassVar[tuple[str, ...]] = ("--engine", "micro-batch")


class BrokerlessExecutors(BrokerlessMicroBatch):
    """The pipeline with all batches written by the executors, whatever their size."""

    name = "brokerless-executors"
    label = "brokerless, executors write"
    arguments = (*BrokerlessMicroBatch.arguments, "--executor-rows", "0")
