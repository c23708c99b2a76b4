"""The demo: runs a server, topics, the pipeline, the example's producer and a reader, and reports latencies.

First the pipeline is started; then a reader follows its output into ``results.csv``; only then the producer sends. So a
message's latency is measured from the producer's call to the reader, without the start of Spark. Each run has its own
root below the bucket's ``demo/``: a second run shows its own messages and removes no others.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from arro3.core import DataType

from brokerless.bucket import create_bucket
from brokerless.clock import SYSTEM, Clock
from brokerless.columns.records import TIMESTAMP
from brokerless.errors import BrokerlessError, PipelineError
from brokerless.examples.timezone.messages import (
    NEW_YORK,
    PARIS,
    UNIFIED,
    ZoneMessage,
    input_schema,
    unified_schema,
    zone_messages,
)
from brokerless.export.topic import export_topic
from brokerless.local import background, minio
from brokerless.local.jobs import start_job, stop_job
from brokerless.local.server import start_embedded
from brokerless.maintenance.maintainer import Maintainer
from brokerless.producer.producer import Producer
from brokerless.schema import PRODUCED_AT, dead_letters
from brokerless.settings import Settings
from brokerless.store import open_store
from brokerless.topics import create_dead_letters, create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from brokerless.consumer import Batch

DEFAULT_BASE: Final = "s3://brokerless/demo"

# Spark takes about 15 s to start on two busy cores; the rest is for slow disks and the first run without caches.
_START_TIMEOUT_S: Final = 120.0
_READ_TIMEOUT_S: Final = 60.0


class Watcher(Protocol):
    """The receiver of a demo's progress messages."""

    def step(self, text: str) -> None:
        """Handle the start of a new step."""

    def note(self, text: str) -> None:
        """Handle an event within the current step."""


@dataclass(frozen=True, slots=True)
class DemoServer:
    """The server and the settings of a demo run.

    Attributes:
        settings: the settings of this run, with its own root.
        again: shell commands that start the server again; empty if it is still running.
    """

    settings: Settings
    again: str


@dataclass(frozen=True, slots=True)
class Row:
    """One message as the reader received it.

    Attributes:
        latency_s: the time from the producer's call until the reader received the message, on one clock.
    """

    message: str
    topic: str
    date: str
    timestamp: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a demo."""

    rows: tuple[Row, ...]
    p50_s: float
    p99_s: float
    results: Path


@contextlib.contextmanager
def demo_server(
    profile: Literal["embedded", "minio"],
    *,
    state_dir: Path,
    environ: Mapping[str, str] = os.environ,
    base: str | None = None,
    keep: bool = False,
    clock: Clock = SYSTEM,
) -> Iterator[DemoServer]:
    """Provide an S3 server for a demo, and stop it at the end if it was started here.

    A server that 'brokerless up' started is used, because two servers must not use the same data.

    Args:
        profile: ``embedded``, or ``minio``: an endpoint of the environment, a binary, or docker compose.
        state_dir: the folder for the server's data.
        environ: the variables in which the profile ``minio`` looks for endpoint, credentials and binary.
        base: the root below which the run gets its own root; ``s3://brokerless/demo`` if None.
        keep: do not stop the server.
        clock: gives the run its name.

    Raises:
        ConfigError: no server can be started.
    """
    with contextlib.ExitStack() as stack:
        running = background.status(state_dir)
        given = bool(environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL"))
        access_key = environ.get(minio.ACCESS_KEY_ENV) or environ.get("AWS_ACCESS_KEY_ID") or "brokerless"
        secret_key = environ.get(minio.SECRET_KEY_ENV) or environ.get("AWS_SECRET_ACCESS_KEY") or "brokerless"
        again = ""
        if profile == "minio" and given:
            found = minio.minio_server(environ, state_dir / "minio")
            endpoint, access_key, secret_key = found.endpoint, found.access_key, found.secret_key
        elif running is not None and running.kind == profile:
            endpoint = running.endpoint
        elif keep and (profile == "embedded" or minio.find_minio(environ) is not None):
            endpoint = background.up(state_dir, kind=profile, environ=environ).endpoint
        else:
            if profile == "embedded":
                started = start_embedded(state_dir / "s3")
                again = "brokerless up && "
            else:
                started = minio.minio_server(environ, state_dir / "minio")
                again = (
                    f"export {minio.ACCESS_KEY_ENV}=... {minio.SECRET_KEY_ENV}=... && brokerless up --minio && "
                    if started.pid is not None
                    else "# the container's data stays in its volume; --keep does not stop the server #  "
                )
            if not keep:
                stack.callback(started.stop)
            endpoint, access_key, secret_key = started.endpoint, started.access_key, started.secret_key
        now = datetime.fromtimestamp(clock.time_us() // 1_000_000, UTC)
        settings = Settings(
            profile=profile,
            root=f"{(base or DEFAULT_BASE).rstrip('/')}/{now:%Y%m%d-%H%M%S}",
            endpoint=endpoint,
            access_key=access_key,
            secret_key=secret_key,
            state_dir=state_dir,
        )
        yield DemoServer(settings, "" if keep else again)


def run_demo(
    settings: Settings,
    *,
    results: Path,
    watcher: Watcher,
    messages: int = 10,
    interval_s: float = 0.5,
    clock: Clock = SYSTEM,
) -> Report:
    """Run the example from the producer to the results file, and stop all its processes at the end or on an error.

    Args:
        settings: the settings; the root must be new.
        results: the file for the output, in the format of ``export``.
        watcher: receives progress messages.
        messages: the number of messages to send.
        interval_s: the pause between two messages.
        clock: time and sleeping.

    Raises:
        ConfigError: Java, Spark or the time-zone database is missing.
        PipelineError: the pipeline did not start, or ended.
        BrokerlessError: a message was lost or duplicated.
    """
    watcher.step("Creating the topics timezone1, timezone2 and timezone_unified")
    create_bucket(settings)
    store = open_store(settings)
    for topic in (NEW_YORK, PARIS):
        create_topic(store, topic, input_schema(), clock=clock)
    create_topic(store, UNIFIED, unified_schema(), clock=clock)
    create_dead_letters(store, UNIFIED, [input_schema()], clock=clock)

    # Imported here because it loads Spark's package: the command line must start without it.
    from brokerless.spark.classes import archive_path, ensure_archive

    with contextlib.ExitStack() as stack:
        if not archive_path().is_file():
            watcher.step("Preparing Spark's class archive (once); later starts take half the time")
            ensure_archive()
        watcher.step("Starting the pipeline timezone-etl (Spark takes some seconds)")
        pipeline = stack.enter_context(_Pipeline(settings))
        pipeline.wait_started()

        arrivals: list[Row] = []
        sent: dict[str, ZoneMessage] = {}

        def arrived(batches: Sequence[Batch]) -> None:
            now_us = clock.time_us()
            for batch in batches:
                arrivals.extend(_rows(batch, sent, now_us))
            watcher.note(f"{len(arrivals)} of {messages} messages read from {UNIFIED}")

        stop = threading.Event()
        readers = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="demo-reader"))
        stack.callback(stop.set)  # before the pool is closed, because closing waits for its thread
        reading = readers.submit(
            export_topic,
            UNIFIED,
            results,
            store=store,
            expect=messages,
            timeout_s=_READ_TIMEOUT_S + messages * interval_s,
            stop=stop,
            on_batches=arrived,
            clock=clock,
        )

        watcher.step(f"Sending {messages} messages, one every {interval_s:g} s, and streaming {UNIFIED} to {results}")
        with contextlib.ExitStack() as producers:
            to = {
                topic: producers.enter_context(Producer(topic, store=store, settings=settings, clock=clock))
                for topic in (NEW_YORK, PARIS)
            }
            for number, message in enumerate(zone_messages(messages, clock=clock)):
                sent[message.message] = message
                to[message.topic].send([message.row()])
                watcher.note(f"message {message.message} to {message.topic}: {message.date}")
                if number + 1 < messages:
                    clock.sleep(interval_s)
                pipeline.check()
        while not wait([reading], 0.2).done:
            pipeline.check()
        reading.result()

        watcher.step("Maintaining the tables: checkpoints, clean-up")
        # Such new tables need no checkpoint yet; it is forced so that the demo shows one.
        topics = [NEW_YORK, PARIS, UNIFIED, dead_letters(UNIFIED)]
        Maintainer(topics, settings=settings, checkpoint_every=1).run_once()
        watcher.step("Stopping the pipeline")
    return _report(arrivals, messages, results)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` of the values do not exceed (nearest rank); NaN if empty."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan


def _rows(batch: Batch, sent: Mapping[str, ZoneMessage], now_us: int) -> Iterator[Row]:
    timestamps, messages = (batch.data.column(name).to_pylist() for name in ("timestamp", "message"))
    produced = batch.data.column(PRODUCED_AT).cast(TIMESTAMP).cast(DataType.int64()).to_pylist()
    for timestamp, message, at_us in zip(timestamps, messages, produced, strict=True):
        source = sent.get(message)
        if source is None:
            raise BrokerlessError(f"The message {message!r} was read from {UNIFIED} and was never sent.")
        yield Row(message, source.topic, source.date, timestamp, (now_us - at_us) / 1e6)


def _report(rows: Sequence[Row], messages: int, results: Path) -> Report:
    numbers = sorted(int(row.message) for row in rows)
    if numbers != list(range(messages)):
        raise BrokerlessError(f"The messages 0 to {messages - 1} were sent; {numbers} were read.")
    latencies = [row.latency_s for row in rows]
    return Report(tuple(rows), percentile(latencies, 50), percentile(latencies, 99), results)


class _Pipeline:
    """The pipeline's process; its standard error goes to a file, for error messages."""

    def __init__(self, settings: Settings) -> None:
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        self._log = settings.state_dir / "demo-pipeline.log"
        # The child may resolve a relative path differently.
        settings = replace(settings, state_dir=settings.state_dir.absolute())
        with self._log.open("w") as log:
            self._process = start_job("timezone-etl", settings, ["--json"], stdout=subprocess.PIPE, stderr=log)
        self._started = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="demo-pipeline", daemon=True)

    def __enter__(self) -> _Pipeline:
        self._listener.start()
        return self

    def __exit__(self, *error: object) -> None:
        stop_job(self._process)
        self._listener.join(5.0)

    def wait_started(self) -> None:
        """Wait until the query runs."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._started.wait(0.1):
            self.check()
            if time.monotonic() > deadline:
                raise PipelineError(
                    f"The pipeline did not start within {_START_TIMEOUT_S:.0f} s; its output is in {self._log}."
                )

    def check(self) -> None:
        """Raise if the pipeline has ended."""
        code = self._process.poll()
        if code is not None:
            last = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()][-3:]
            raise PipelineError(
                f"The pipeline ended with exit code {code}: {' | '.join(last) or 'no output'}. "
                f"Its complete output is in {self._log}."
            )

    def _listen(self) -> None:
        # Read until the end, because a full pipe would block the pipeline.
        for line in self._process.stdout or ():
            with contextlib.suppress(ValueError):
                said: Any = json.loads(line)
                if isinstance(said, dict) and said.get("event") == "started":
                    self._started.set()
