"""Watching real processes: each burns processor time when it is told to, and says itself how much it used."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Self

import psutil
import pytest

from benchmarks.watch import Watch, table_figures
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.settings import Settings
from brokerless.store import open_store
from brokerless.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

TOLERANCE_S = 0.06  # the system counts in ticks of 10 ms, for user and kernel mode of each process

WORKER = """
import os, signal, subprocess, sys, time

BURN = "import time\\nwhile time.process_time() < {}: pass"
held = child = None


def answer(verb, *words):
    global held, child
    if verb == "burn":
        until = time.process_time() + float(words[0])
        while time.process_time() < until:
            pass
    elif verb == "run":  # a child that ends, and is waited for
        subprocess.run([sys.executable, "-S", "-c", BURN.format(words[0])])
    elif verb == "ignore":  # from now on nobody waits for children
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    elif verb == "hold":
        held = b"x" * (int(words[0]) * 2**20)
    elif verb == "nest":  # a child that takes orders itself
        command = [words[0] if words else sys.executable, "-S", __file__]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        child.stdout.readline()
        return child.pid
    elif verb in {"tell", "order"}:
        child.stdin.write(" ".join(words) + "\\n")
        child.stdin.flush()
        if verb == "tell":
            return child.stdout.readline().strip()
    elif verb == "end":  # the nested one
        child.stdin.close()
        child.wait()
    return sum(os.times()[:4])


print("ready", flush=True)
for line in sys.stdin:
    print(answer(*line.split()), flush=True)
"""


class Worker:
    """A process that takes one order a line; each answer is the seconds that it and those it waited for used."""

    def __init__(self, folder: Path) -> None:
        script = folder / "worker.py"
        script.write_text(WORKER)
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def tell(self, order: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return float(self._answer())

    def used_s(self) -> float:
        return self.tell("used")

    def end(self) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with Worker(tmp_path) as worker:
        yield worker


def near(seconds: float) -> object:
    return pytest.approx(seconds, abs=TOLERANCE_S)


def test_the_busy_role_is_the_busy_one_from_mark_to_stop(worker: Worker, tmp_path: Path) -> None:
    with Worker(tmp_path) as idle:
        worker.tell("burn 0.2")
        watch = Watch({"busy": worker.pid, "idle": idle.pid}, interval_s=0.05).start()
        worker.tell("burn 0.2")
        watch.mark()
        before = worker.used_s()
        after = worker.tell("burn 0.5")
        usage = watch.stop()
        worker.tell("burn 0.2")
    assert after - before > 0.4
    assert usage.cpu_s == {"busy": near(after - before), "idle": near(0)}
    assert all(2 < mb < 60 for mb in usage.rss_mb.values())


def test_a_peak_of_memory_is_kept(worker: Worker) -> None:
    watch = Watch({"a": worker.pid}, interval_s=0.05).start()
    worker.tell("hold 100")
    watch.mark()
    worker.tell("hold 0")
    usage = watch.stop()
    assert 100 < usage.rss_mb["a"] < 200


@pytest.mark.parametrize("interval_s", [0.02, 60.0], ids=["seen often", "never seen"])
def test_children_that_ended_count_once(worker: Worker, interval_s: float) -> None:
    watch = Watch({"a": worker.pid}, interval_s).start()
    before = worker.used_s()
    for _ in range(4):
        after = worker.tell("run 0.15")
    usage = watch.stop()
    assert after - before > 0.5
    assert usage.cpu_s["a"] == near(after - before)


def test_a_child_that_nobody_waits_for_keeps_what_was_seen(worker: Worker) -> None:
    worker.tell("ignore")
    watch = Watch({"a": worker.pid}, interval_s=0.02).start()
    worker.tell("run 0.5")
    assert 0.4 < watch.stop().cpu_s["a"] < 0.7


def test_a_role_below_another_is_not_counted_in_both(worker: Worker) -> None:
    inner = int(worker.tell("nest"))
    watch = Watch({"outer": worker.pid, "inner": inner, "none": []}, interval_s=0.05).start()
    start, start_inner = worker.used_s(), worker.tell("tell used")
    worker.tell("burn 0.2")
    used_inner = worker.tell("tell burn 0.5") - start_inner
    watch.mark()  # a sample: all of it is seen
    end = worker.tell("end")  # the system adds inner's seconds to outer's now
    rest = watch.stop()
    assert used_inner > 0.4
    assert rest.cpu_s == {"outer": near(0), "inner": near(0), "none": 0}

    whole = Watch({"outer": worker.pid}).start()
    assert whole.stop().cpu_s == {"outer": near(0)}  # what it waited for earlier is not of this interval
    assert end - start > used_inner


def test_a_jvm_is_told_from_the_rest_of_its_role(worker: Worker, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.symlink_to(sys.executable)
    worker.tell(f"nest {java}")
    watch = Watch({"a": worker.pid, "b": os.getpid()}, interval_s=0.05).start()
    worker.tell("tell burn 0.2")
    watch.mark()
    before, before_jvm = worker.used_s(), worker.tell("tell used")
    rest = worker.tell("burn 0.2") - before
    jvm = worker.tell("tell run 0.3") - before_jvm  # what a JVM starts and waits for is the JVM's
    usage = watch.stop()
    assert jvm > 0.25
    assert usage.jvm_s == {"a": near(jvm), "b": 0}
    assert usage.cpu_s["a"] == near(jvm + rest)


def test_both_roles_add_up_although_one_ends(worker: Worker) -> None:
    inner = int(worker.tell("nest"))
    watch = Watch({"outer": worker.pid, "inner": inner}, interval_s=0.05).start()
    before = worker.used_s()
    began = worker.tell("tell used")
    worker.tell("burn 0.3")
    used_inner = worker.tell("tell burn 0.4") - began
    total = worker.tell("end") - before - began
    usage = watch.stop()
    assert used_inner / 2 < usage.cpu_s["inner"] < used_inner + TOLERANCE_S  # the rest, after its last sample: outer's
    assert usage.cpu_s["outer"] + usage.cpu_s["inner"] == near(total)


def test_an_orphan_stays_with_its_role(worker: Worker) -> None:
    inner = psutil.Process(int(worker.tell("nest")))
    watch = Watch({"a": worker.pid}, interval_s=0.02).start()
    worker.tell("order burn 0.6")
    worker.process.kill()
    worker.process.wait(10)
    inner.wait(10)  # its orders end
    assert 0.4 < watch.stop().cpu_s["a"] < 0.7


def test_a_role_that_ended_keeps_what_it_used(tmp_path: Path) -> None:
    with Worker(tmp_path) as worker:
        watch = Watch({"a": [worker.pid]}, interval_s=0.02).start()
        before = worker.used_s()
        used = worker.tell("burn 0.3") - before
        watch.mark()
        used_later = worker.tell("burn 0.3") - before - used
    assert used_later / 2 < watch.stop().cpu_s["a"] < used_later + TOLERANCE_S  # the rest came after its last sample


def test_a_process_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with Worker(tmp_path) as worker:
        gone = worker.pid
    with pytest.raises(ValueError, match=f"no process {gone} to watch as 'pipeline'"):
        Watch({"load": os.getpid(), "pipeline": gone})


def test_what_tables_are_made_of(tmp_path: Path) -> None:
    settings = Settings(profile="aws", root=f"file://{tmp_path}/root")
    store = open_store(settings)
    create_topic(store, "t", Schema.parse("a string"), partitions=2)
    create_topic(store, "u", Schema.parse("a string"))
    with Producer("t", settings=settings, partition=1, producer_id="p") as producer:
        for number in range(3):
            producer.send([{"a": str(number)}])
    tables = {name: tmp_path / "root" / name for name in ("t", "t.1", "u")}
    written = {name: sorted(folder.rglob("*.*")) for name, folder in tables.items()}
    entries = sorted((tables["t.1"] / "_delta_log").glob("*.json"))
    data = [path for path in written["t.1"] if path.suffix == ".parquet"]
    assert len(data) == 3
    found = table_figures(settings, ["t.1"])
    assert found == (len(entries), 3, sum(path.stat().st_size for path in written["t.1"]))
    assert table_figures(settings, ["t", "u"]).objects == 0
    both = table_figures(settings, ["t", "t.1", "missing"])
    assert both == (table_figures(settings, ["t"]).commits + len(entries), 3, both.stored_bytes)

    entries[0].unlink()  # as maintenance does, behind a checkpoint
    (tables["t.1"] / "_delta_log" / "00000000000000000002.checkpoint.parquet").write_bytes(b"123")
    (tables["t.1"] / "_delta_log" / "00000000000000000009.00000000000000000010.compacted.json").write_bytes(b"4")
    after = table_figures(settings, ["t.1"])
    assert (after.commits, after.objects) == (len(entries), 3)
