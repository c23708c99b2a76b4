"""A pipeline as processes under load: each half of it killed, asked to stop, and taken over by the other engine."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest

from brokerless.bucket import create_bucket
from brokerless.local.jobs import start_job
from brokerless.local.server import start_embedded
from brokerless.producer.producer import Producer
from brokerless.settings import Settings
from tests.support.pipelines import BAD, GOOD, OUTPUT, create, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.timeout(300)]

TOPICS: Final = ("timezone1", "timezone2")
BAD_EVERY: Final = 97
ROWS: Final = 20
EVERY_S: Final = 0.05
"""A send of so many rows to each topic, so often: 800 rows a second."""

ORPHANED_S: Final = 10.0
"""How long Python may go on without its JVM, and the JVM without its Python."""


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
    """The example's job in a process group of its own; its JSON lines as they come, and what it says of errors."""

    def __init__(self, settings: Settings, engine: str = "realtime") -> None:
        arguments = ["--json", "--engine", engine]
        self.process = start_job("timezone-etl", settings, arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.said: list[str] = []
        self._followers = [threading.Thread(target=work, daemon=True) for work in (self._follow, self._listen)]
        for follower in self._followers:
            follower.start()

    def _follow(self) -> None:
        for line in self.process.stdout or ():
            with contextlib.suppress(ValueError):  # the line that it was writing when it was killed
                self.events.put(json.loads(line))

    def _listen(self) -> None:
        self.said += self.process.stderr or ()

    def wait_for(self, event: str, *, rows: int = 0) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while True:
            found = self.events.get(timeout=max(0.1, deadline - time.monotonic()))
            if found["event"] == event and found.get("rows", 0) >= rows:
                return found

    def jvm(self) -> psutil.Process:
        found = [one for one in psutil.Process(self.process.pid).children(recursive=True) if one.name() == "java"]
        assert len(found) == 1, found
        return found[0]

    def last_words(self) -> str:
        """The last line on standard error, once it has ended."""
        for follower in self._followers:
            follower.join(10)
        return self.said[-1] if self.said else ""

    def kill(self) -> None:
        """All of it at once, as when the machine goes away."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


class Load:
    """Sends numbered messages to both topics, one in 97 malformed, until it is told to stop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self.total = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            producers = [stack.enter_context(Producer(topic, settings=self._settings)) for topic in TOPICS]
            while not self._stop.wait(EVERY_S):
                for producer in producers:
                    numbers = range(self.total, self.total + ROWS)
                    dates = [BAD if is_bad(number) else GOOD for number in numbers]
                    producer.send({"date": dates, "message": [str(number) for number in numbers]})
                    self.total += ROWS

    def stop(self) -> int:
        """Returns how many messages were sent; all of them were acknowledged, or the producers would have raised."""
        self._stop.set()
        self._thread.join()
        return self.total


def is_bad(number: int) -> bool:
    return number % BAD_EVERY == BAD_EVERY - 1


def numbers_in(settings: Settings, topic: str) -> list[int]:
    """The messages in a topic, in log order."""
    return [int(row["message"]) for row in rows_of(settings, topic)]


def topic_of(number: int) -> int:
    return number // ROWS % len(TOPICS)


def assert_exact(settings: Settings, total: int) -> None:
    """Each message is there once, where it belongs, and each topic's are in order."""
    good, bad = numbers_in(settings, OUTPUT), numbers_in(settings, f"{OUTPUT}.dead_letters")
    assert len(good) + len(bad) == total
    for numbers, expected in ((good, False), (bad, True)):
        for topic in range(len(TOPICS)):
            mine = [number for number in numbers if topic_of(number) == topic]
            assert mine == [n for n in range(total) if topic_of(n) == topic and is_bad(n) == expected]


def assert_whole_sends(settings: Settings) -> None:
    """Of each topic a beginning without a gap, which ends with a send: what was read was committed."""
    numbers = numbers_in(settings, OUTPUT) + numbers_in(settings, f"{OUTPUT}.dead_letters")
    for topic in range(len(TOPICS)):
        mine = sorted(number for number in numbers if topic_of(number) == topic)
        assert len(mine) % ROWS == 0
        assert mine == [n for n in range(mine[-1] + 1) if topic_of(n) == topic]


def finish(job: Job, settings: Settings, total: int) -> None:
    """Waits until everything is delivered, and a little longer for what is there twice; then ends the job."""
    deadline = time.monotonic() + 60
    while len(numbers_in(settings, OUTPUT)) + len(numbers_in(settings, f"{OUTPUT}.dead_letters")) < total:
        assert time.monotonic() < deadline, "the pipeline did not catch up"
        assert job.process.poll() is None, job.last_words()
        time.sleep(0.5)
    time.sleep(0.5)
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(10) == 0


def test_killed_and_stopped_under_load(settings: Settings) -> None:
    load = Load(settings)
    jobs: list[Job] = []

    def start(engine: str = "realtime") -> tuple[Job, psutil.Process]:
        jobs.append(Job(settings, engine))
        assert jobs[-1].wait_for("started")["engine"] == engine
        jobs[-1].wait_for("progress", rows=1)
        return jobs[-1], jobs[-1].jvm()

    try:
        job, jvm = start()
        job.process.kill()
        job.process.wait(10)
        # It may not hold the machine's memory for ever; whether it writes is the last assertion's.
        jvm.wait(ORPHANED_S)

        job, jvm = start()
        jvm.kill()
        assert job.process.wait(ORPHANED_S) == 1
        assert job.last_words().startswith("PipelineError: "), "".join(job.said[-40:])

        job, jvm = start()
        before = len(numbers_in(settings, OUTPUT))
        job.process.send_signal(signal.SIGTERM)
        assert job.process.wait(10) == 0
        assert job.wait_for("stopped")["rows"] > 0
        jvm.wait(ORPHANED_S)
        assert len(numbers_in(settings, OUTPUT)) >= before
        assert_whole_sends(settings)

        job, jvm = start("micro-batch")  # which goes on where the other engine was
        total = load.stop()
        finish(job, settings, total)
        jvm.wait(ORPHANED_S)
    finally:
        load.stop()
        for job in jobs:
            job.kill()
    assert_exact(settings, total)
