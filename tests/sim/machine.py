"""What the code under test takes from its surroundings by itself, replaced for as long as a simulation runs.

Clocks that are not passed in (the Spark source's), thread pools, and delta-rs, which drops tombstones by the machine's
clock: of maintenance only the making of a checkpoint's bytes is replaced, by ``tests.support.checkpoints``. Parsing and
decoding are remembered, because the same bytes are read by many processes and parsing is half of the time.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from brokerless import clock
from brokerless.columns import records
from brokerless.consumer import consumer
from brokerless.groups.subscription import Pulse
from brokerless.log import log
from brokerless.log.entries import parse_entry
from brokerless.log.log import DeltaLog
from brokerless.producer import producer
from brokerless.settings import Settings
from brokerless.spark import inputs, source
from brokerless.spark.realtime import feed, packer
from brokerless.store import open_store
from tests.support.checkpoints import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.sim.bucket import Bucket, Connection
    from tests.sim.world import Process, World


class Host:
    """Knows which process runs, and so whose clock and connection are meant."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.bucket: Bucket | None = None
        self._rng: Any = None

    def begin(self, world: World, bucket: Bucket) -> None:
        """What runs from now on belongs to this world."""
        self.world, self.bucket = world, bucket
        clock.SYSTEM.rng = world.rng

    @property
    def process(self) -> Process:
        """The one that holds the baton."""
        if self.world is None or self.world.current is None:
            raise RuntimeError("Nothing is simulated now.")
        return self.world.current

    def time_us(self) -> int:
        """The running process's wall clock."""
        return self.process.clock.time_us()

    def monotonic(self) -> float:
        """The running process's monotonic clock."""
        return self.process.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Lets the running process sleep."""
        self.process.clock.sleep(seconds)

    def connection(self, _settings: object = None) -> Connection:
        """The running process's."""
        process = self.process
        if process.connection is None:
            raise RuntimeError(f"{process.name} has no connection.")
        return process.connection


class InlinePool:
    """A pool of threads that does everything at once, in an order that the seed chooses."""

    host: Host

    def __init__(self, *_: object, **__: object) -> None:
        """Needs no threads."""

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Does it; an error is the future's, but a kill is the process's."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """The results in order; an error comes up only where its result is asked for."""
        todo = list(enumerate(items))
        self.host.process.world.rng.shuffle(todo)
        done = {number: self.submit(function, item) for number, item in todo}
        return (done[number].result() for number in sorted(done))

    def shutdown(self, **_: object) -> None:
        """Nothing to stop."""


class CheckpointTable:
    """As much of ``deltalake.DeltaTable`` as checkpoints need: of a table in a local folder."""

    def __init__(self, uri: str) -> None:
        folder = Path(uri)
        self._log = DeltaLog(open_store(Settings("local", folder.parent.as_uri())), folder.name)

    def create_checkpoint(self) -> None:
        """Of the table as it is, with the hint."""
        write_checkpoint(self._log)


@contextmanager
def _one_core() -> Iterator[None]:
    """Keeps this thread, and those it starts, on one core: to hand a baton from core to core is slow."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def simulated() -> Iterator[Host]:
    """Within it, the code under test lives in the world that the host is given."""
    host = Host()
    system_rng = clock.SYSTEM.rng

    class Pool(InlinePool):
        pass

    Pool.host = host
    here = SimpleNamespace(monotonic=host.monotonic, sleep=host.sleep)
    decode = lru_cache(maxsize=512)(records.decode)
    parse = lru_cache(maxsize=2048)(parse_entry)
    with ExitStack() as stack:
        stack.enter_context(_one_core())
        for target, name, value in (
            (clock.Clock, "time_us", host.time_us),  # bound to the host, so these get no clock to ask
            (clock.Clock, "monotonic", host.monotonic),
            (clock.Clock, "sleep", host.sleep),
            (log, "_pool", lambda _: Pool()),
            (log, "parse_entry", parse),
            (records, "decode", decode),
            (consumer, "ThreadPoolExecutor", Pool),
            (consumer, "wait", lambda _: None),
            (Pulse, "start", lambda *_: lambda: None),  # heartbeats are sent by polls
            (producer, "ThreadPoolExecutor", Pool),
            (source, "ThreadPoolExecutor", Pool),
            (source, "time", here),
            (feed, "ThreadPoolExecutor", Pool),
            (feed, "read_pool", Pool),
            (feed, "time", here),
            (packer, "PACK_ROWS", 4),
            (packer, "PACK_BYTES", 60),
            (inputs, "time", here),
            (source, "WAIT_S", 0.0),
            (inputs, "WAIT_S", 0.0),
            (source, "store_of", host.connection),
        ):
            stack.enter_context(patch.object(target, name, value))
        stack.enter_context(patch("deltalake.DeltaTable", CheckpointTable))
        try:
            yield host
        finally:
            clock.SYSTEM.rng = system_rng
