"""Runs attacks in processes of their own, and notices whatever can happen to one. Knows nothing about kinds.

Each attack is announced before it begins. So a process that dies or falls silent is known by the input that did it; it
is replaced, and the others go on. Inside, the memory that one attack may take is limited, and its peak is measured.
"""

from __future__ import annotations

import os
import random
import resource
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.malformed.kinds import Kind, World, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT: Final = Path(__file__).parents[2]
OPEN_LIMIT_S: Final = 180.0  # to import, and to start a server or Spark on a machine that others use too
_END_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Job:
    """One attack: of this kind, with the input that this seed and number generate."""

    kind: str
    seed: int
    number: int

    @property
    def rng(self) -> random.Random:
        return random.Random(f"{self.kind}:{self.seed}:{self.number}")

    @property
    def replay(self) -> str:
        return f"python -m tests.malformed --kind {self.kind} --seed {self.seed} --number {self.number}"


@dataclass(slots=True)
class Result:
    """What became of attacks, by kind.

    Attributes:
        inputs: how many malformed inputs there were.
        outcomes: what became of them.
        failures: what may not be, each with the command that repeats it.
        peak: the most memory that an attack took, in bytes.
        slowest_s: how long the longest one took.
    """

    inputs: Counter[str] = field(default_factory=Counter)
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    peak: Counter[str] = field(default_factory=Counter)
    slowest_s: dict[str, float] = field(default_factory=dict)

    def fail(self, job: Job, what: str) -> None:
        self.failures.append(f"{job.kind} {job.number}: {what}\n    Replay: {job.replay}")

    def add(self, job: Job, report: dict[str, Any]) -> None:
        self.inputs[job.kind] += report["inputs"]
        self.outcomes.setdefault(job.kind, Counter()).update(report["outcomes"])
        self.peak[job.kind] = max(self.peak[job.kind], report["peak"])
        self.slowest_s[job.kind] = max(self.slowest_s.get(job.kind, 0.0), report["seconds"])
        if report["failure"] is not None:
            self.fail(job, report["failure"])


def run(jobs: Iterable[Job], *, processes: int = 2, on_progress: Callable[[Result], None] | None = None) -> Result:
    """All attacks, each process with one at a time."""
    result = Result()
    waiting = iter(jobs)
    workers: list[_Worker] = []
    try:
        with Listener(authkey=os.urandom(16)) as listener:
            for _ in range(processes):
                if (job := next(waiting, None)) is not None:
                    workers.append(_Worker(listener, job))
            while workers:
                for worker in _ready(workers):
                    done = worker.take(result)
                    if not done:
                        continue
                    if on_progress is not None:
                        on_progress(result)
                    if (job := next(waiting, None)) is None:
                        workers.remove(worker)
                        worker.end()
                    else:
                        worker.begin(job, listener)
    finally:
        for worker in workers:
            worker.kill()
    return result


def _ready(workers: list[_Worker]) -> Iterator[_Worker]:
    left_s = max(0.0, min(worker.deadline for worker in workers) - time.monotonic())
    spoke = wait([worker.connection for worker in workers], timeout=left_s)
    for worker in list(workers):
        if worker.connection in spoke or time.monotonic() > worker.deadline:
            yield worker


class _Worker:
    """A process, and the attack that it is at."""

    def __init__(self, listener: Listener, job: Job) -> None:
        self.job = job
        self.deadline = 0.0
        self._start(listener)
        self.begin(job, listener)

    def begin(self, job: Job, listener: Listener) -> None:
        self.job = job
        if self._process.poll() is not None:
            self._start(listener)
        self.deadline = time.monotonic() + OPEN_LIMIT_S
        self.connection.send(job)

    def take(self, result: Result) -> bool:
        """Hears what the process has to say; True if the attack is over, one way or the other."""
        if not self.connection.poll():
            self.kill()
            result.fail(self.job, "it hangs: there was no end in time")
            return True
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            code = self._process.wait(_END_S)
            died = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self.kill()
            result.fail(self.job, f"the process died ({died}): a crash, or memory without a bound")
            return True
        if isinstance(message, float):
            self.deadline = time.monotonic() + message
            return False
        result.add(self.job, message)
        return True

    def end(self) -> None:
        """Lets the process close what it has opened."""
        self.connection.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends the process, and those that it has started: they are one group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.connection.close()

    def _start(self, listener: Listener) -> None:
        command = [sys.executable, "-m", "tests.malformed.worker", str(listener.address)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        assert self._process.stdin is not None
        self._process.stdin.write(listener._authkey.hex().encode())  # type: ignore[attr-defined]
        self._process.stdin.close()
        self.connection: Connection = listener.accept()


def work(address: str, authkey: bytes) -> None:
    """What a process does: one attack after the other, until nobody asks any more."""
    worlds: dict[str, tuple[Kind, World]] = {}
    with Client(address, authkey=authkey) as connection, ExitStack() as stack:
        while True:
            try:
                job: Job = connection.recv()
            except EOFError:
                return
            if job.kind not in worlds:
                kind = kind_of(job.kind)
                worlds[job.kind] = kind, World(place=stack.enter_context(kind.place()))
            kind, world = worlds[job.kind]
            connection.send(kind.limit_s)
            connection.send(report_of(kind, world, job))


def report_of(kind: Kind, world: World, job: Job) -> dict[str, Any]:
    """Makes one attack in this process."""
    bad = kind.generate(job.rng)
    world.outcomes.clear()
    begun = time.monotonic()
    before = _reset_peak()
    failure: str | None = None
    try:
        if kind.memory is not None:
            _limit_memory(kind.memory)
        failure = kind.attack(bad, world)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        failure = f"it crashes with {_shown(error)}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return {
        "inputs": kind.inputs,
        "outcomes": dict(world.outcomes),
        "failure": failure,
        "peak": max(0, _status("VmHWM") - before),
        "seconds": time.monotonic() - begun,
    }


def _shown(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/brokerless/" in frame.filename or "/lambdas/" in frame.filename] or frames
    at = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__}{at}: {ascii(str(error))[:300]}"


def _reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _limit_memory(more: int) -> None:
    limit = _status("VmSize") + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _status(name: str) -> int:
    """A figure of this process, in bytes; 0 where the system does not say."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def command_line() -> str:
    """The command that was given, to be shown beside its result; repeating it changes no file."""
    return shlex.join(["python", "-m", "tests.malformed", *(word for word in sys.argv[1:] if word != "--record")])
