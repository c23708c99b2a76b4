"""The pipeline as a process: killed again and again under load, and asked to stop. Real signals, real Spark."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from brokerless.local.jobs import job_script
from brokerless.local.server import start_embedded
from brokerless.producer.producer import Producer
from brokerless.settings import Settings
from brokerless.store import create_bucket
from tests.support.pipelines import BAD, GOOD, OUTPUT, create, delivered, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.timeout(420)]


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with start_embedded(tmp_path / "s3") as server:
        settings = Settings(
            profile="embedded",
            root="s3://brokerless/faults",
            endpoint=server.endpoint,
            access_key=server.access_key,
            secret_key=server.secret_key,
            state_dir=tmp_path / "state",
        )
        create_bucket(settings)
        create(settings)
        yield settings


class Job:
    """The example's script in a process group of its own; its JSON lines, as they come."""

    def __init__(self, settings: Settings) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(job_script("timezone-etl")), "--json"],
            env={**os.environ, **settings.to_environ()},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        for line in self.process.stdout or ():
            self.events.put(json.loads(line))

    def wait_for(self, event: str, *, rows: int = 0) -> dict[str, Any]:
        deadline = time.monotonic() + 120
        while True:
            found = self.events.get(timeout=max(0.1, deadline - time.monotonic()))
            if found["event"] == event and found.get("rows", 0) >= rows:
                return found

    def kill(self) -> None:
        """All of it at once, as when the machine goes away."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


class Load:
    """Sends numbered messages to both topics, every tenth one malformed, until it is told to stop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self.acknowledged = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            topics = [stack.enter_context(Producer(t, settings=self._settings)) for t in ("timezone1", "timezone2")]
            while not self._stop.wait(0.02):
                for producer in topics:
                    first = self.acknowledged
                    dates = [BAD if (first + i) % 10 == 9 else GOOD for i in range(20)]
                    producer.send({"date": dates, "message": [str(first + i) for i in range(20)]})
                    self.acknowledged += 20

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.acknowledged


@pytest.mark.slow  # the grid kills pipelines, too, and that is what CI runs
def test_killed_again_and_again_under_load(settings: Settings) -> None:
    load = Load(settings)
    try:
        for _ in range(3):
            job = Job(settings)
            # Somewhere inside some batch: batches follow each other without a pause.
            job.wait_for("progress", rows=1)
            job.kill()
    finally:
        total = load.stop()
    job = Job(settings)
    try:
        deadline = time.monotonic() + 120
        while sum(map(len, (rows_of(settings, OUTPUT), rows_of(settings, f"{OUTPUT}.dead_letters")))) < total:
            assert time.monotonic() < deadline, "the pipeline did not catch up"
            job.wait_for("progress")
        job.process.send_signal(signal.SIGTERM)
        job.wait_for("stopped")
        assert job.process.wait(10) == 0
    finally:
        job.kill()
    good, bad = delivered(settings)
    assert good == Counter({str(i): 1 for i in range(total) if i % 10 != 9})
    assert bad == Counter({str(i): 1 for i in range(total) if i % 10 == 9})
    for source in (0, 1):
        mine = [int(row["message"]) for row in rows_of(settings, OUTPUT) if int(row["message"]) // 20 % 2 == source]
        assert mine == sorted(mine)


def test_sigterm_finishes_the_batch_and_leaves_nothing(settings: Settings) -> None:
    load = Load(settings)
    job = Job(settings)
    try:
        job.wait_for("progress", rows=1)
        asked = time.monotonic()
        job.process.send_signal(signal.SIGTERM)
        assert job.process.wait(10) == 0
        assert time.monotonic() - asked < 10
        assert job.wait_for("stopped")["rows"] > 0
        # The JVM and the workers go with it.
        deadline = time.monotonic() + 10
        while _is_there(job.process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not _is_there(job.process.pid)
    finally:
        load.stop()
        job.kill()
    assert max(delivered(settings)[0].values()) == 1


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return any(
        state[0] not in "ZX"
        for _, pgid, state in (
            line.split()[:3]
            for line in subprocess.run(
                ["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True
            ).stdout.splitlines()
        )
        if int(pgid) == group
    )
