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
    from collections.abc import Iterator

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
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            with contextlib.suppress(ValueError):  # Spark's own lines
                self.events.append(json.loads(line))

    def wait_for(self, event: str, *, count: int = 1) -> dict[str, Any]:
        """Return the last of so many such events, once they have come."""
        deadline = time.monotonic() + 90
        while True:
            found = [said for said in list(self.events) if said["event"] == event]
            if len(found) >= count:
                return found[count - 1]
            assert self.process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < deadline, f"{self.events}\n{self._log.read_text()[-3000:]}"
            time.sleep(0.05)

    def stop(self) -> int:
        """Ask the driver's Python process to end, and return the exit code."""
        children = psutil.Process(self.process.pid).children()  # the others are Spark's own, which plan batches
        [driver] = [child for child in children if self._file in child.cmdline()]
        driver.terminate()
        code = self.process.wait(60)
        self._reader.join(10)
        return code


@pytest.fixture
def cluster(settings: Settings, tmp_path: Path) -> Iterator[Cluster]:
    environ = {**os.environ, **settings.to_environ(), "PYTHONPATH": str(REPO), "PYSPARK_PYTHON": sys.executable}
    with start_cluster(tmp_path, environ) as cluster:
        yield cluster


def test_a_worker_is_lost_and_no_row_is(
    cluster: Cluster, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Cli(settings)("new", "pipeline", "by-section").exit_code == 0
    create_topic(open_store(settings), "clicks", Schema.parse("user string, page string"), partitions=2)
    pages = [f"/docs/{n}" if n % 10 else None for n in range(5)]
    sent = 0
    with Producer("clicks", settings=settings) as producer:

        def send(commits: int) -> None:
            nonlocal sent
            for _ in range(commits):
                producer.send([{"user": f"u{sent + n}", "page": page} for n, page in enumerate(pages)])
                sent += len(pages)

        send(20)
        limits = ["--executor-rows", "0", "--create-output"]  # each batch is written by executors
        job = Submitted(cluster, tmp_path / "by_section.py", tmp_path / "submit.log", *limits)
        try:
            assert job.wait_for("started")["engine"] == "micro-batch"
            assert job.wait_for("progress")["by"] == "executors"
            assert [worker.executors for worker in cluster.workers] == [1, 1]
            before = len([said for said in job.events if said["event"] == "progress"])
            load = threading.Thread(target=send, args=(40,))
            load.start()
            job.wait_for("progress", count=before + 1)
            cluster.workers[0].kill()
            load.join()
            send(20)
            good, dead = _wait_for_all(settings, sent, job)
            assert job.stop() == 0
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in psutil.Process(job.process.pid).children(recursive=True):
                    process.kill()
            job.process.kill()
            job.process.wait(10)
    assert set(good.values()) == set(dead.values()) == {1}
    assert (len(good), len(dead)) == (sent * 4 // 5, sent // 5)
    stopped = job.events[-1]
    assert (stopped["rows"], stopped["dead_letters"]) == (len(good), len(dead))


def _wait_for_all(settings: Settings, sent: int, job: Submitted) -> tuple[Counter[str], Counter[str]]:
    deadline = time.monotonic() + 90
    while True:
        topics = ("by_section", "by_section.dead_letters")
        good, dead = (Counter(row["user"] for row in rows_of(settings, topic)) for topic in topics)
        if len(good) + len(dead) >= sent:
            return good, dead
        assert job.process.poll() is None
        assert time.monotonic() < deadline, f"{len(good)} + {len(dead)} of {sent} rows\n{job.events[-3:]}"
        time.sleep(0.5)
