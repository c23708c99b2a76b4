"""One world: an S3 server, the tables, and every role as a process behind a fault proxy of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

from brokerless.bucket import create_bucket
from brokerless.examples.timezone.messages import INPUT_SCHEMA, UNIFIED_SCHEMA
from brokerless.local.minio import start_minio
from brokerless.local.server import LocalServer, start_embedded
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.settings import Settings
from brokerless.store import open_store
from brokerless.testing import FaultProxy
from brokerless.testing.history import History, RecordingProducer
from brokerless.topics import create_dead_letters, create_topic
from tests.grid.cells import OUTPUTS, PIPELINES, TOPIC
from tests.grid.roles import BAD_EVERY, BREAK, TURN_S, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from brokerless.clock import Clock
    from tests.grid.cells import Role

REPO: Final = Path(__file__).parents[2]
WITNESS: Final = "witness"
BYSTANDER: Final = "bystander"
"""Two that nothing happens to: a reader whose history tells what was there, and a producer whose commits come between
those of the one that is struck."""

PARTITIONS: Final = 2
_TICK_S: Final = 0.02
_END_S: Final = 20.0
_ERROR: Final = re.compile(r"^(\w*(?:Error|Fenced|OutOfRange|Denied|Unavailable|Deleted|NotFound|Unknown)): .*$", re.M)


class GridError(Exception):
    """What the grid found, or a cell that did nothing: a failure of the run, in one line."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a world is like.

    Attributes:
        pipelines: which of them run, if Spark is there.
        struck: the roles, beside the pipelines, that cells can strike.
        rate: messages per second, of both producers together.
        retention_s: of log entries and of orphans. Far longer than anything here is away.
        patience_s: for a role to make progress; a machine may be slow.
        moment_s: for the request of a cell to come.
        pause_s: how long processes are paused and networks cut.
        sabotage: a safeguard to take away from every role (``roles.BREAK``).
    """

    spark: bool = True
    pipelines: tuple[Role, ...] = PIPELINES
    minio: bool = False
    struck: tuple[Role, ...] = ("consumer", "producer", "maintenance")
    rate: float = 100.0
    retention_s: float = 90.0
    patience_s: float = 180.0
    moment_s: float = 120.0
    pause_s: float = 2.0
    sabotage: str = ""

    @property
    def roles(self) -> tuple[str, ...]:
        """Everything that is started, in this order."""
        spark = self.pipelines if self.spark else ()
        return (*spark, WITNESS, BYSTANDER, *self.struck)

    @property
    def topics(self) -> list[str]:
        """Everything that is written to: the input, and what each pipeline makes of it."""
        outputs = [OUTPUTS[role] for role in self.pipelines] if self.spark else []
        return [TOPIC, *(topic for output in outputs for topic in (output, f"{output}.dead_letters"))]


class Incarnation:
    """A role's process with its proxy, and what it said so far."""

    def __init__(
        self, role: str, number: int, command: list[str], settings: Settings, folder: Path, env: dict[str, str]
    ):
        self.role, self.number = role, number
        self.turns = 0
        self.last_error = ""
        self.rows: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.proxy = FaultProxy(cast("str", settings.endpoint))
        self._stderr = folder / f"{role}-{number}.stderr"
        settings = self.proxy.through(dataclasses.replace(settings, state_dir=folder / f"{role}-{number}.state"))
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **env, **settings.to_environ()},
                cwd=REPO,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def __str__(self) -> str:
        return f"{self.role} {self.number}"

    @property
    def is_running(self) -> bool:
        """Whether its process is there; a paused one is, too."""
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """To its process and all below it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """All of it at once, as when the machine goes away."""
        self.signal(signal.SIGKILL)
        self.process.wait(_END_S)

    def children(self, word: str) -> list[int]:
        """Processes below it that have the word in their command, but for those that only start others of the kind."""
        shown = subprocess.run(
            ["ps", "-eo", "pid=,ppid=,sess=,args="], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        rows = [line.split(None, 3) for line in shown]
        # By the session: Spark's daemons make process groups of their own.
        mine = [(int(pid), int(ppid)) for pid, ppid, sid, args in rows if int(sid) == self.process.pid and word in args]
        parents = {ppid for _, ppid in mine}
        return [pid for pid, _ in mine if pid not in parents]

    def error(self) -> str:
        """The named error that ended it, as it said it; empty if there was none."""
        found = [match[0] for match in _ERROR.finditer(self._stderr.read_text(errors="replace"))]
        return found[-1] if found else ""

    def end(self) -> int | None:
        """Asks it to end after its turn; its exit code, or None if it had to be killed."""
        self.signal(signal.SIGTERM)
        try:
            code = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            code = None
        self.close()
        return code

    def close(self) -> None:
        """Leaves nothing behind."""
        self.kill()
        self.proxy.stop()
        self._follower.join(_END_S)

    def _follow(self) -> None:
        for line in self.process.stdout or ():
            with contextlib.suppress(ValueError):  # a killed process may leave half a line
                self._take(json.loads(line))

    def _take(self, said: dict[str, Any]) -> None:
        if said["event"] == "error":
            self.last_error = said["error"]
        elif said["event"] == "progress":
            if isinstance(said.get("rows"), dict):
                self.rows = said["rows"]
            for name in ("removed", "checkpoints"):
                self.counts[name] += said.get(name, 0)
            # A pipeline reports each second, also when a batch is stuck or its worker has just been killed.
            self.turns += said.get("rows") != 0


@dataclass
class World:
    """Everything of one run; use it as a context manager."""

    plan: Plan
    folder: Path
    clock: Clock
    current: dict[str, Incarnation] = field(default_factory=dict)
    started: Counter[str] = field(default_factory=Counter)
    ended: list[Incarnation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    server: LocalServer = field(init=False)
    settings: Settings = field(init=False)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.server = self._start_server(None)
            self.settings = Settings(
                profile="minio" if self.plan.minio else "embedded",
                root="s3://brokerless/grid",
                endpoint=self.server.endpoint,
                access_key=self.server.access_key,
                secret_key=self.server.secret_key,
            )
            self._create_tables()
            for role in self.plan.roles:
                self.start(role)
                if role in PIPELINES:  # alone: Spark's start is half a minute of work on a small machine
                    self.wait(f"the first rows of {role}", lambda one=self.current[role]: one.turns > 0)  # type: ignore[misc]
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for incarnation in (*self.current.values(), *self.ended):
            incarnation.close()
        if hasattr(self, "server"):
            self.signal_server(signal.SIGCONT)
            self.server.stop()

    # Roles

    def start(self, role: str) -> Incarnation:
        """A new incarnation; the one before it, if it still runs, is left alone."""
        if (before := self.current.get(role)) is not None:
            self.ended.append(before)
        self.started[role] += 1
        number = self.started[role]
        kind = {WITNESS: "consumer", BYSTANDER: "producer"}.get(role, role)
        command = [sys.executable, "-m", "tests.grid.roles", kind, "--name", role]
        command += [
            "--history",
            str(self.folder / f"{role}-{number}.jsonl"),
            "--state",
            str(self.folder / f"{role}.json"),
        ]
        command += ["--rows", str(max(1, round(self.plan.rate * TURN_S / 2))), "--topics", ",".join(self.plan.topics)]
        command += ["--retention-s", str(self.plan.retention_s)]
        env = {BREAK: self.plan.sabotage}
        self.current[role] = Incarnation(role, number, command, self.settings, self.folder, env)
        return self.current[role]

    def forget(self, incarnation: Incarnation) -> None:
        """It is dead; its proxy is not needed any more."""
        incarnation.close()
        self.ended.remove(incarnation)

    def supervise(self) -> None:
        """Starts again what ended by an error that a service manager would start again: a pipeline, whatever it met.

        Raises:
            GridError: another role ended, which has no reason to; or one was fenced by nobody.
        """
        for role, incarnation in list(self.current.items()):
            if incarnation.is_running:
                continue
            why = incarnation.error() or f"exit code {incarnation.process.returncode}"
            if role not in PIPELINES or "Fenced" in why or "OutOfRange" in why:
                raise GridError(f"{incarnation} ended by itself: {why[:300]}")
            self.counts[f"{role} restarts"] += 1
            self.start(role)
            self.forget(incarnation)

    def wait(self, what: str, is_there: Callable[[], bool], *, within_s: float | None = None) -> None:
        """Waits for something, looking after the roles meanwhile.

        Raises:
            GridError: it did not come in time (the plan's patience).
        """
        within_s = self.plan.patience_s if within_s is None else within_s
        deadline = self.clock.monotonic() + within_s
        while not is_there():
            self.supervise()
            if self.clock.monotonic() > deadline:
                errors = [f"{one}: {one.last_error[:200]}" for one in self.current.values() if one.last_error]
                raise GridError(f"{what} did not come within {within_s:g} s; last errors: {errors or 'none'}")
            self.clock.sleep(_TICK_S)

    def wait_progress(self, incarnation: Incarnation) -> None:
        """Waits until it has done something that it had not when this was called."""
        before = incarnation.turns
        self.wait(f"progress of {incarnation}", lambda: incarnation.turns > before)

    def settle(self) -> None:
        """A quiet time, in which every role makes progress."""
        before = {role: (one.number, one.turns) for role, one in self.current.items()}

        def moved(role: str) -> bool:
            number, turns = before[role]
            one = self.current[role]
            return one.turns > (turns if one.number == number else 0)

        for role in before:
            self.wait(f"progress of {role}", lambda role=role: moved(role))  # type: ignore[misc]

    # The server

    def signal_server(self, number: int) -> None:
        """To the server's process."""
        if self.server.pid is not None:
            os.kill(self.server.pid, number)

    def restart_server(self) -> None:
        """Kills it and starts it on the same port and folder."""
        port = int(self.server.endpoint.rpartition(":")[2])
        self.signal_server(signal.SIGKILL)
        self.server.stop()
        self.server = self._start_server(port)

    def _start_server(self, port: int | None) -> LocalServer:
        folder = self.folder / "s3"
        if self.plan.minio:
            return start_minio(folder, access_key="grid", secret_key="grid-secret", port=port)
        return start_embedded(folder, port=port)

    def _create_tables(self) -> None:
        create_bucket(self.settings)
        store = open_store(self.settings)
        schema = Schema.parse(INPUT_SCHEMA)
        create_topic(store, TOPIC, schema, partitions=PARTITIONS)
        if self.plan.spark:
            for role in self.plan.pipelines:
                create_topic(store, OUTPUTS[role], Schema.parse(UNIFIED_SCHEMA))
                create_dead_letters(store, OUTPUTS[role], [schema])
            with History(self.folder / "first.jsonl") as history:
                first = RecordingProducer(Producer(TOPIC, settings=self.settings), history, id_column="message")
                with first:
                    first.send(rows_of("first", 0, BAD_EVERY))
