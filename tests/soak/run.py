"""One soak, from an empty bucket to a verdict.

Every process reaches the store through the same proxy, which is a process, too. One thread watches: it starts anew what
has ended, samples memory and tells how it goes. Another one strikes: after each fault it waits for calm, and until what
had piled up has been worked off.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.judge import Seen
from benchmarks.spec import OUTPUT
from benchmarks.watch import table_figures
from brokerless.bucket import create_bucket
from brokerless.local.jobs import start_job
from brokerless.metrics import Histogram
from brokerless.schema import Schema
from brokerless.settings import Settings
from brokerless.spark.classes import ensure_archive
from brokerless.store import open_store
from brokerless.topics import create_topic
from brokerless.verify.table import verify_topic
from tests.soak.faults import Strike, storm, strikes
from tests.soak.judge import judge
from tests.soak.load import Plan, read_journal
from tests.soak.memory import growth
from tests.soak.options import Options, Outcome, middle, rise, some
from tests.soak.reader import STATE, TOPICS
from tests.soak.roles import Role
from tests.soak.servers import ALL, Proxy, Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from pathlib import Path
    from typing import IO

    import psutil

PIPELINE_READY_S: Final = 180.0
SETTLED_S: Final = 3.0
ECHO_S: Final = 5.0
"""How long the reader goes on after everything was seen: what comes now is a duplicate."""

JOIN_S: Final = 60.0
"""How long a fault that is under way at the end may take, that of a zombie being the longest."""

CAUGHT_UP_S: Final = 3.0
"""Messages of so many seconds may be on their way when the next fault strikes."""

ENDING_UNTIL: Final = 0.6
"""The part of a run in which faults end processes."""

_TICK_S: Final = 0.2
_SAMPLE_S: Final = 5.0
_TELL_S: Final = 10.0


class Soak:
    """A run. Ends everything that it started with ``stack``.

    Args:
        options: what.
        folder: for everything; empty.
        stack: ends what is started.
        say: gets a line of progress now and then.
    """

    def __init__(self, options: Options, folder: Path, stack: ExitStack, say: Callable[[str], None]) -> None:
        self._options, self._folder, self._say = options, folder, say
        self._lock = threading.Lock()
        self._reader: Counter[str] = Counter()
        self._upkeep: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._pipeline: Counter[str] = Counter()
        self._failed_sends = 0
        self._all_latency, self._latency = Histogram(), Histogram()
        self._struck: Counter[str] = Counter()
        self._recovered_s: defaultdict[str, list[float]] = defaultdict(list)
        self._zombies: Counter[str] = Counter()
        self._missed: Counter[str] = Counter()  # the process to be killed was not there: the pipeline was starting
        self._failures: list[str] = []
        self._now = "nothing"
        self._told: list[dict[str, Any]] = []
        self._acknowledged = 0
        self._over = threading.Event()

        ensure_archive()
        self._server = Server(options.server, folder / "store")
        stack.callback(self._server.stop)
        running = self._server.running
        self._direct = Settings(
            profile=options.server,
            root="s3://brokerless/soak",
            endpoint=running.endpoint,
            access_key=running.access_key,
            secret_key=running.secret_key,
            state_dir=folder / "state",
        )
        create_bucket(self._direct)
        self._proxy = stack.enter_context(Proxy(running.endpoint))
        self._settings = replace(self._direct, endpoint=self._proxy.endpoint(ALL))
        self._plan = Plan(
            options.rate, options.seconds, options.producers, options.seed, time.time(), options.retention_s
        )
        for topic in self._plan.spec.topics:
            create_topic(open_store(self._direct), topic, Schema.parse("date string, message string"))
        create_topic(open_store(self._direct), OUTPUT, Schema.parse("timestamp double, message string"))
        self._roles: dict[str, Role] = {}
        self._start_all(stack)

    # Processes

    def _start_all(self, stack: ExitStack) -> None:
        self._add(stack, "pipeline", self._start_pipeline)
        self._await_pipeline()
        self._plan = replace(self._plan, begin=time.time() + 2.0)
        self._plan.save(self._folder)
        self._add(stack, "reader", self._starter("reader"))
        self._add(stack, "maintenance", self._starter("upkeep"))
        for number in range(self._plan.producers):
            self._add(stack, f"producer-{number}", self._starter("producer", str(number)))

    def _await_pipeline(self) -> None:
        role, deadline = self._roles["pipeline"], time.monotonic() + PIPELINE_READY_S
        ready = 0.0
        # It says that it has started even if it then ends at once; so it has to live on for a moment.
        while not ready or time.monotonic() < ready + SETTLED_S:
            role.tend()
            is_ready = self._pipeline["started"] >= role.incarnation and role.process.poll() is None
            ready = (ready or time.monotonic()) if is_ready else 0.0
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"The pipeline was not ready after {PIPELINE_READY_S:.0f} s; see {self._folder}/pipeline.log."
                )
            time.sleep(_TICK_S)

    def _add(self, stack: ExitStack, name: str, start: Callable[[int, IO[bytes]], subprocess.Popen[str]]) -> None:
        role = Role(name, start, self._folder, lambda event: self._hear(name, event))
        stack.callback(role.stop, 1.0)
        self._roles[name] = role

    def _starter(self, module: str, *arguments: str) -> Callable[[int, IO[bytes]], subprocess.Popen[str]]:
        def start(incarnation: int, log: IO[bytes]) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, "-m", f"tests.soak.{module}", str(self._folder), *arguments, str(incarnation)],
                env={**os.environ, **self._settings.to_environ()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,
            )

        return start

    def _start_pipeline(self, incarnation: int, log: IO[bytes]) -> subprocess.Popen[str]:
        # Scratch of its own, as on another machine: a zombie and its successor must not meet on the disk.
        shutil.rmtree(self._folder / f"scratch-{incarnation - 2}", ignore_errors=True)
        settings = replace(self._settings, state_dir=self._folder / f"scratch-{incarnation}")
        arguments = ["--json", "--engine", self._options.engine]
        return start_job("timezone-etl", settings, arguments, stdout=subprocess.PIPE, stderr=log)

    def _hear(self, name: str, event: dict[str, Any]) -> None:
        kind = event.pop("event", "")
        with self._lock:
            if name == "reader" and kind == "progress":
                for histogram in (self._latency, self._all_latency):
                    histogram.add_counts(event["latency"])
                del event["latency"]
                self._reader = Counter(event)
            elif name == "pipeline":
                self._pipeline[kind] += 1
                self._pipeline["batches"] += event.get("batches", 0)
            elif name == "maintenance" and kind == "report":
                self._upkeep["checkpoints"] += event.get("checkpoint") is not None
                for what in ("entries_removed", "objects_removed"):
                    self._upkeep[what] += event.get(what, 0)
                self._skipped.update(text.split(":")[0] for text in event["skipped"])
            elif kind == "done":
                self._failed_sends += event["failed_sends"]

    # The run

    def run(self) -> Outcome:
        """Sends, strikes, waits until everything has been seen, and judges."""
        begun = time.monotonic()
        end = self._plan.begin + self._plan.seconds
        striker = threading.Thread(target=self._strike_all, args=(end,), daemon=True)
        striker.start()
        sampled = told = time.monotonic()
        echo: float | None = None
        while echo is None or time.monotonic() < echo:
            time.sleep(_TICK_S)
            for role in self._roles.values():
                role.tend()
            now = time.monotonic()
            if now - sampled >= _SAMPLE_S:
                sampled = now
                self._sample()
            self._acknowledged = sum(journal.count for journal in self._journals())
            if now - told >= _TELL_S:
                self._tell(now - told)
                told = now
            if echo is None and not striker.is_alive() and self._is_complete():
                echo = now + ECHO_S
            if time.time() > end + self._options.drain_s:
                self._failures.append(
                    f"not complete {self._options.drain_s:.0f} s after the end: {self._owed():,} messages still owed"
                )
                break
        self._tell(time.monotonic() - told)
        self._over.set()
        self._proxy.play()
        striker.join(JOIN_S)
        for name in ("reader", "pipeline", "maintenance"):
            self._roles[name].stop()
        return self._judge(time.monotonic() - begun)

    def _journals(self) -> list[Any]:
        return [read_journal(self._folder / f"journal-{n}") for n in range(self._plan.producers)]

    def _seen(self) -> int:
        return self._reader["rows"] - self._reader["duplicated"]

    def _owed(self) -> int:
        """Messages that are due and were not seen yet, whoever keeps them."""
        spec, elapsed_s = self._plan.spec, time.time() - self._plan.begin
        return sum(spec.due(elapsed_s, n) for n in range(spec.producers)) - self._seen()

    def _is_complete(self) -> bool:
        producers = [role for name, role in self._roles.items() if name.startswith("producer")]
        return all(role.is_done for role in producers) and self._seen() >= self._acknowledged

    def _sample(self) -> None:
        at_s = time.time() - self._plan.begin
        for one in (*self._roles.values(), self._server, self._proxy):
            one.sample(at_s)

    def _tell(self, over_s: float) -> None:
        with self._lock:
            latency, self._latency = self._latency, Histogram()
        line = {
            "at_s": round(time.time() - self._plan.begin),
            "acknowledged": self._acknowledged,
            "seen": self._seen(),
            "owed": self._owed(),
            "per_s": round(latency.total / over_s),
            "p50_s": latency.percentile(50),
            "p99_s": latency.percentile(99),
            "fault": self._now,
        }
        self._told.append(line)
        self._say(
            f"{line['at_s']:>5} s  acknowledged {line['acknowledged']:>11,}  seen {line['seen']:>11,}  "
            f"owed {line['owed']:>9,}  {line['per_s']:>7,}/s  "
            f"p50 {latency.percentile(50) or 0:.2f} s  p99 {latency.percentile(99) or 0:.2f} s  {self._now}"
        )

    # Faults

    def _strike_all(self, end: float) -> None:
        self._over.wait(max(0.0, self._plan.begin + self._options.warm_s - time.time()))
        workers = self._options.engine == "micro-batch"
        for strike in strikes(self._options.seed, self._plan.producers, workers=workers):
            if self._over.is_set() or time.time() > end - strike.seconds:
                break
            if strike.is_ending and time.time() > self._plan.begin + ENDING_UNTIL * self._plan.seconds:
                continue
            if strike.act != "storm" and strike.target in self._roles and self._roles[strike.target].is_done:
                continue
            self._now = strike.name
            try:
                self._strike(strike)
            except Exception as error:
                self._failures.append(f"the attack itself failed at {strike.name}: {error!r}")
                break
            self._struck[strike.name] += 1
            self._recover(strike)
        self._now = "nothing"

    def _strike(self, strike: Strike) -> None:
        wait = self._over.wait
        if strike.act == "storm":
            self._proxy.play(storm(strike))
            wait(strike.seconds)
            self._proxy.play()
            return
        if strike.act == "kill server":
            self._server.restart(strike.seconds / 4)
            return
        role = self._roles[strike.target]
        if strike.act == "kill":
            role.kill()
        elif strike.act == "pause":
            role.pause(strike.seconds, wait)
        elif strike.act == "replace":
            said = role.replace(strike.seconds, wait)
            self._zombies[f"{strike.target}: {said.split(':')[0]}"] += 1
            if said.startswith("did not end"):
                self._failures.append(f"the {strike.target} that was replaced {said}")
        else:
            parts: dict[str, Callable[[psutil.Process], bool]] = {
                "kill worker": lambda one: one.name().startswith("python") and one.pid != role.process.pid,
                "kill JVM": lambda one: one.name() == "java",
                "kill driver": lambda one: one.pid == role.process.pid,
            }
            if not role.kill_part(strike.seed, parts[strike.act]):
                self._missed[strike.name] += 1

    def _recover(self, strike: Strike) -> None:
        self._now = f"after {strike.name}"
        begun = time.monotonic()
        self._over.wait(self._options.calm_s)
        while not self._over.is_set():
            took_s = time.monotonic() - begun
            if self._owed() <= self._plan.rate * CAUGHT_UP_S:
                self._recovered_s[strike.name].append(took_s)
                return
            if took_s > self._options.catch_up_s:
                return
            self._over.wait(_TICK_S)

    # The verdict

    def _judge(self, seconds: float) -> Outcome:
        totals = [self._plan.spec.count(n) for n in range(self._plan.producers)]
        seen, _ = Seen.load(self._folder / STATE, totals)
        verdict = judge(seen, self._journals())
        tables = [*self._plan.spec.topics, *TOPICS]
        store = open_store(self._direct)
        reports = [report for table in tables for report in verify_topic(store, table)]
        figures = table_figures(self._direct, tables)
        memory = {name: role.usage for name, role in self._roles.items()}
        memory |= {"proxy": self._proxy.usage, "server": self._server.usage}
        flat = {name: growth(usage.samples) for name, usage in memory.items()}
        failures = [*verdict.failures, *self._failures]
        failures += [f"{r.table}: {f.kind}: {f.text}" for r in reports for f in r.findings]
        failures += [rise(n, g) for n, found in flat.items() if n != "server" for g in found if not g.is_flat]
        counters = self._proxy.counters()[ALL]
        counts: dict[str, float] = {
            "sent": verdict.sent,
            "acknowledged": verdict.acknowledged,
            "seen": verdict.counts["rows"],
            "dead_letters": verdict.counts["dead_letters"],
            "lost": verdict.lost,
            "phantom": verdict.phantom,
            **{name: verdict.counts[name] for name in ("duplicated", "disordered", "misplaced", "unknown", "damaged")},
            "unacknowledged_seen": verdict.unacknowledged_seen,
            "faults": sum(self._struck.values()),
            "requests": sum(counters["requests"].values()),
            "requests_struck": sum(counters["faults"].values()),
            "failed_sends": self._failed_sends,
            "batches": self._pipeline["batches"],
            **self._upkeep,
            "commits": figures.commits,
            "objects": figures.objects,
            "stored_bytes": figures.stored_bytes,
            "cpu_s": round(sum(usage.cpu_s for usage in memory.values()), 1),
        }
        for percent in (50, 99):
            late_s = self._all_latency.percentile(percent)
            counts |= {} if late_s is None else {f"latency_p{percent}_s": late_s}
        details: list[dict[str, Any]] = [
            {
                "fault": name,
                "struck": count,
                "caught_up": len(self._recovered_s[name]),
                "caught_up_after_s": middle(self._recovered_s[name]),
            }
            for name, count in sorted(self._struck.items())
        ]
        details += [{"requests_by_kind": counters["requests"]}, {"requests_struck_by_fault": counters["faults"]}]
        details += [{"zombies": dict(self._zombies)}, {"found_nothing_to_kill": dict(self._missed)}]
        details += [{"maintenance_skipped": dict(self._skipped)}]
        for name, usage in memory.items():
            role = self._roles.get(name)
            details.append(
                {
                    "role": name,
                    "starts": max((sample.incarnation for sample in usage.samples), default=0),
                    "ended_by_itself": dict(Counter(role.exits)) if role else {},
                    "cpu_s": round(usage.cpu_s, 1),
                    "memory": [
                        {"compared": g.compared, "early_mb": round(g.early_mb), "late_mb": round(g.late_mb)}
                        for g in flat[name]
                    ],
                    "mb_over_time": " ".join(f"{s.at_s:.0f}s:{s.mb:.0f}" for s in some(usage.samples, 30)),
                }
            )
        details += some(self._told, 60)
        return Outcome(verdict, seconds, failures, counts, details)
