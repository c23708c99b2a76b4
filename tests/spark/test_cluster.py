"""A user's file on a standalone cluster: executors read and write, and a lost worker loses and repeats nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.store import open_store
from brokerless.topics import create_topic
from tests.support.cli import Cli
from tests.support.cluster import start_cluster
from tests.support.pipelines import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from brokerless.settings import Settings
    from tests.support.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(240)]

REPO = Path(__file__).parents[2]


class Submitted:
    """A pipeline under ``spark-submit``, and what it says."""

    def __init__(self, cluster: Cluster, file: Path, log: Path, *arguments: str) -> None:
        command = [str(Path(sys.executable).with_name("spark-submit")), "--master", cluster.master]
        command += ["--conf", "spark.executor.memory=512m", str(file), "--json", *arguments]
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                command, env=dict(cluster.environ), cwd=log.parent, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self._log, self._file = log, str(file)
        self.events: list[dict[str, Any]] = []
        self._text: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            try:
                self.events.append(json.loads(line))
            except ValueError:  # spark-submit prints what Python says on standard error here, too
                self._text.append(line)

    def log(self) -> str:
        """What it has said beside its events, and the end of what Spark has said."""
        self._reader.join(0.5)
        return "\n".join([*self._text, self._log.read_text()[-2000:]])

    def count(self, event: str) -> int:
        """How many such events have come."""
        return sum(said["event"] == event for said in list(self.events))

    def wait_for(self, event: str, *, count: int = 1) -> dict[str, Any]:
        """Return the last of so many such events, once they have come."""
        deadline = time.monotonic() + 90
        while True:
            found = [said for said in list(self.events) if said["event"] == event]
            if len(found) >= count:
                return found[count - 1]
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, f"{self.events}\n{self.log()}"
            time.sleep(0.05)

    def stop(self) -> int:
        """Ask the driver's Python process to end, and return the exit code."""
        children = psutil.Process(self.process.pid).children()  # the others are Spark's own, which plan batches
        [driver] = [child for child in children if self._file in child.cmdline()]
        driver.terminate()
        code = self.process.wait(60)
        self._reader.join(10)
        return code

    def kill(self) -> None:
        """End it and what it has started, if that is still there."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                process.kill()
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def cluster(settings: Settings, tmp_path: Path) -> Iterator[Cluster]:
    environ = {**os.environ, **settings.to_environ(), "PYTHONPATH": str(REPO), "PYSPARK_PYTHON": sys.executable}
    with start_cluster(tmp_path, environ) as cluster:
        yield cluster


class Clicks:
    """Sends clicks, each of a user of its own; every fifth has no page."""

    def __init__(self, settings: Settings) -> None:
        create_topic(open_store(settings), "clicks", Schema.parse("user string, page string"), partitions=2)
        self._settings = settings
        self.sent = 0

    def send(self, commits: int) -> None:
        with Producer("clicks", settings=self._settings) as producer:
            for _ in range(commits):
                rows = [{"user": f"u{self.sent + n}", "page": f"/docs/{n}" if n else None} for n in range(5)]
                producer.send(rows)
                self.sent += len(rows)

    def delivered(self) -> tuple[Counter[str], Counter[str]]:
        """How often each is in the output and in the dead letters."""
        topics = ("by_section", "by_section.dead_letters")
        good, dead = (Counter(row["user"] for row in rows_of(self._settings, topic)) for topic in topics)
        return good, dead

    def assert_each_once(self) -> None:
        good, dead = self.delivered()
        assert set(good.values()) == set(dead.values()) == {1}
        assert (len(good), len(dead)) == (self.sent * 4 // 5, self.sent // 5)


@pytest.fixture
def clicks(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clicks:
    monkeypatch.chdir(tmp_path)
    assert Cli(settings)("new", "pipeline", "by-section").exit_code == 0
    clicks = Clicks(settings)
    clicks.send(20)
    return clicks


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Submitted]]:
    jobs: list[Submitted] = []

    def start(*arguments: str) -> Submitted:
        log = tmp_path / f"submit-{len(jobs)}.log"
        jobs.append(Submitted(cluster, tmp_path / "by_section.py", log, "--create-output", *arguments))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


def lose_a_worker(cluster: Cluster, clicks: Clicks, job: Submitted) -> None:
    """End one while clicks come and are written."""
    before = job.count("progress")
    load = threading.Thread(target=clicks.send, args=(40,))
    load.start()
    job.wait_for("progress", count=before + 1)
    cluster.workers[0].kill()
    load.join()
    clicks.send(20)


def test_micro_batches_go_on_without_the_worker(
    cluster: Cluster, clicks: Clicks, submit: Callable[..., Submitted]
) -> None:
    job = submit("--engine", "micro-batch", "--executor-rows", "0")  # each batch is written by executors
    assert job.wait_for("progress")["by"] == "executors"
    assert [worker.executors for worker in cluster.workers] == [1, 1]
    lose_a_worker(cluster, clicks, job)
    deadline = time.monotonic() + 90
    while sum(map(len, clicks.delivered())) < clicks.sent:
        assert job.process.poll() is None, job.log()
        assert time.monotonic() < deadline, job.log()
        time.sleep(0.5)
    assert job.stop() == 0
    clicks.assert_each_once()
    stopped = job.events[-1]
    assert (stopped["rows"], stopped["dead_letters"]) == tuple(map(len, clicks.delivered()))


def test_a_real_time_pipeline_ends_and_the_next_run_goes_on(
    cluster: Cluster, clicks: Clicks, submit: Callable[..., Submitted]
) -> None:
    job = submit()
    assert job.wait_for("started")["engine"] == "realtime"
    job.wait_for("progress")
    assert [worker.executors for worker in cluster.workers] == [1, 1]
    lose_a_worker(cluster, clicks, job)
    assert job.process.wait(90) == 1
    assert "PipelineError: " in job.log()
    again = submit("--once")
    assert again.process.wait(90) == 0, again.log()
    clicks.assert_each_once()
