"""Virtual time, processes and the scheduler: one seed decides who runs when, and nothing else does.

The code under test is synchronous, so each simulated process is a thread; a baton makes sure that exactly one runs.
Whoever asks the store or sleeps puts itself into the queue of events and hands the baton to whoever is due first. Time
moves only from event to event, so hours pass in milliseconds. All randomness is drawn from one generator, by the one
thread that runs: the same seed gives the same trace.
"""

from __future__ import annotations

import itertools
import random
import threading
import traceback
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NoReturn

from brokerless.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.bucket import Connection

START_US: Final = 1_800_000_000_000_000
STEPS: Final = 25_000
"""No seed needs so many; who gets there goes round in circles."""

SECOND: Final = 1_000_000


class Killed(BaseException):
    """The process ends here, as by ``kill -9``: no handler of the code under test may catch it."""


@dataclass(slots=True)
class Trace:
    """What happened, in order; text is made only when somebody reads it."""

    events: list[tuple[int, str, str, str, str]] = field(default_factory=list)

    def add(self, at_us: int, who: str, what: str, where: str = "", result: str = "") -> None:
        """Takes note of one event."""
        self.events.append((at_us, who, what, where, result))

    def lines(self) -> list[str]:
        """One line an event: seconds since the start, process, operation, object, result."""
        return [
            f"{(at - START_US) / 1e6:12.6f} {who:<14} {what:<14} {where}{f'  -> {result}' if result else ''}"
            for at, who, what, where, result in self.events
        ]

    def digest(self) -> str:
        """The same for the same trace."""
        return blake2b("\n".join(self.lines()).encode(), digest_size=8).hexdigest()


class ProcessClock(Clock):
    """A process's own clocks, which are set, jump and stand still without the others."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world.rng)
        self._world = world
        self._process = process
        self.wall_offset_us = 0
        self.stood_still_us = 0

    def time_us(self) -> int:
        return self._world.now_us + self.wall_offset_us

    def monotonic(self) -> float:
        return (self._world.now_us - self.stood_still_us) / 1e6

    def sleep(self, seconds: float) -> None:
        self._process.wait(int(seconds * 1e6) + 1)


class Process:
    """One incarnation of a program. Its thread runs only while it holds the baton."""

    def __init__(self, world: World, name: str, body: Callable[[Process], None]) -> None:
        self.world = world
        self.name = name
        self.clock = ProcessClock(world, self)
        self.body = body
        self.dead = False
        self.killed = False
        self.paused_us = 0
        self.clock_was_set = False
        self.looked_us: dict[str, int] = {}
        """When it last asked for an entry of each table's log."""
        self.listed_us: dict[str, tuple[int, int]] = {}
        """When it last listed each table's log, by the world and by its own running time."""
        self.sent_us: dict[bytes, tuple[int, int]] = {}
        """When it sent each entry for the first time, likewise."""
        self.ages_us: dict[str, int] = {}
        """How old each object was when it last listed it."""
        self.entries: dict[str, bytes] = {}
        """Each entry that it was given, as it was the last time."""
        self.opened_us: int | None = None
        """When it had opened the topic that it writes to."""
        self.on_pause: Callable[[int], None] | None = None
        self.worker: _Worker | None = None
        self.connection: Connection | None = None

    def wait(self, us: int) -> None:
        """Lets the others run for this long."""
        world = self.world
        if self.dead or world.over:
            raise Killed
        world.steps += 1
        if world.steps > world.most_steps:
            world.fail(f"nothing ended after {world.most_steps} steps; {self.name} was the last to run")
            world.over = True
            raise Killed
        heappush(world.queue, (world.now_us + us, next(world.ties), self))
        worker = world.next_worker()
        if worker is not self.worker:
            worker.baton.release()
            self.worker.baton.acquire()  # type: ignore[union-attr]
        world.current = self
        if self.dead or world.over:
            raise Killed

    @property
    def times_us(self) -> tuple[int, int]:
        """Now, by the world and by the time that this process ran."""
        return self.world.now_us, self.world.now_us - self.paused_us

    def pause(self, us: int, *, suspended: bool) -> None:
        """Stands still, as by SIGSTOP, or with its machine: then its monotonic clock does, too."""
        self.wait(us)
        self.paused_us += us
        if suspended:
            self.clock.stood_still_us += us

    def die(self) -> NoReturn:
        """Ends this process now."""
        self.dead = self.killed = True
        raise Killed


class World:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_us = START_US
        self.steps = 0
        self.most_steps = STEPS
        self.over = False
        self.queue: list[tuple[int, int, Process | Callable[[], None]]] = []
        self.ties = itertools.count()
        self.trace = Trace()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.current: Process | None = None
        self._names: Counter[str] = Counter()
        self._main = _Worker()

    def fail(self, text: str) -> None:
        """Records that something happened which never may."""
        self.failures.append(text)
        self.over = self.over or len(self.failures) > 100  # a program that fails at its start is started for ever
        self.trace.add(self.now_us, "VERDICT", text)

    def at(self, us: int, action: Callable[[], None]) -> None:
        """Does something in so many microseconds, in nobody's thread."""
        heappush(self.queue, (self.now_us + us, next(self.ties), action))

    def spawn(self, name: str, body: Callable[[Process], None], *, after_us: int = 0) -> Process:
        """Starts a process; its name gets the number of the incarnation."""
        self._names[name] += 1
        process = Process(self, f"{name}.{self._names[name]}", body)
        process.clock.wall_offset_us = self.rng.randrange(-60, 60) * SECOND
        heappush(self.queue, (self.now_us + after_us, next(self.ties), process))
        return process

    def run(self) -> None:
        """Until every process has ended and nothing is on its way any more."""
        worker = self.next_worker()
        if worker is not self._main:
            worker.baton.release()
            self._main.baton.acquire()

    def next_worker(self) -> _Worker:
        """The thread of the process that is due next; what is nobody's happens on the way."""
        while self.queue:
            at, _, what = heappop(self.queue)
            self.now_us = max(self.now_us, at)
            if isinstance(what, Process):
                if what.worker is None:
                    what.worker = _hire(what)
                return what.worker
            what()
        return self._main


class _Worker:
    """A thread that lends itself to one process after another: starting threads is slow."""

    def __init__(self) -> None:
        self.baton = threading.Lock()
        self.baton.acquire()
        self.process: Process | None = None

    def loop(self) -> None:
        while True:
            self.baton.acquire()
            process = self.process
            if process is None:
                return
            world = process.world
            world.current = process
            try:
                if not world.over:
                    process.body(process)
            except Killed:
                pass
            except BaseException as error:
                world.fail(f"{process.name} met {type(error).__name__}: {error}\n{traceback.format_exc(limit=-8)}")
            process.dead = True
            self.process = None
            following = world.next_worker()
            _idle.append(self)
            following.baton.release()


_idle: list[_Worker] = []


def _hire(process: Process) -> _Worker:
    if _idle:
        worker = _idle.pop()
    else:
        worker = _Worker()
        threading.Thread(target=worker.loop, name="simulated", daemon=True).start()
    worker.process = process
    return worker
