"""Resources of a run: processor time and memory of process trees by role, and the size of its tables in the store."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import psutil

from brokerless.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from brokerless.settings import Settings

INTERVAL_S: Final = 0.5
_JVM: Final = "java"
_ENTRY: Final = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class Usage:
    """The used resources by role.

    Attributes:
        cpu_s: processor seconds between ``Watch.mark`` and ``Watch.stop``.
        rss_mb: the greatest resident memory of all samples since ``Watch.start``, in 2**20 bytes; shared pages count
            once for each process.
        jvm_s: the part of ``cpu_s`` used by processes with the name ``java``; 0 for a role without one.
    """

    cpu_s: dict[str, float]
    rss_mb: dict[str, float]
    jvm_s: dict[str, float]


@dataclass(slots=True)
class _Seen:
    """A process at the last sample: its own processor seconds, and those of the children that it waited for."""

    role: str
    parent: int
    is_jvm: bool
    own_s: float
    waited_s: float


class Watch:
    """A sampler of process trees from ``start`` to ``stop``.

    A process belongs to the role of its nearest named ancestor, also after that one ends. So a role can be below
    another, and nothing counts twice.

    The time of ended processes counts. What they used after their last sample, and processes too short for any sample,
    count for the process of a role that waits for them; if none does, at most ``interval_s`` of an ended process is
    lost.
    """

    def __init__(self, roles: Mapping[str, int | Sequence[int]], interval_s: float = INTERVAL_S) -> None:
        """Prepare the sampler; ``start`` takes the first sample.

        Args:
            roles: process ids by role, one or several.
            interval_s: time between two samples; a sample takes some milliseconds.

        Raises:
            ValueError: a process does not exist.
        """
        self._roots: dict[psutil.Process, str] = {}
        for role, pids in roles.items():
            for pid in [pids] if isinstance(pids, int) else pids:
                try:
                    self._roots[psutil.Process(pid)] = role
                except psutil.NoSuchProcess:
                    raise ValueError(f"There is no process {pid} to watch as {role!r}.") from None
        self._interval_s = interval_s
        self._seen: dict[psutil.Process, _Seen] = {}
        self._owed_s: dict[int, float] = {}
        self._cpu_s = dict.fromkeys(roles, 0.0)
        self._jvm_s = dict(self._cpu_s)
        self._marked_s, self._marked_jvm_s = dict(self._cpu_s), dict(self._jvm_s)
        self._rss_bytes = dict.fromkeys(roles, 0)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> Self:
        """Begin sampling; without a call of ``mark``, the measured interval begins here."""
        self._sample()
        # Time before the first sample of a process is not measured; children that start later are measured completely.
        self._cpu_s = dict.fromkeys(self._cpu_s, 0.0)
        self._jvm_s = dict.fromkeys(self._jvm_s, 0.0)
        self._thread.start()
        return self

    def mark(self) -> None:
        """Begin the measured interval."""
        self._sample()
        self._marked_s, self._marked_jvm_s = dict(self._cpu_s), dict(self._jvm_s)

    def stop(self) -> Usage:
        """End the measured interval and the sampling."""
        self._stop.set()
        self._thread.join()
        self._sample()
        cpu_s = {role: used - self._marked_s[role] for role, used in self._cpu_s.items()}
        jvm_s = {role: used - self._marked_jvm_s[role] for role, used in self._jvm_s.items()}
        return Usage(cpu_s, {role: size / 2**20 for role, size in self._rss_bytes.items()}, jvm_s)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            now: dict[psutil.Process, _Seen] = {}
            rss_bytes = dict.fromkeys(self._rss_bytes, 0)
            for process, (role, parent) in self._members().items():
                with suppress(psutil.Error):  # it has just ended
                    times = process.cpu_times()
                    waited_s = times.children_user + times.children_system
                    now[process] = _Seen(role, parent, process.name() == _JVM, times.user + times.system, waited_s)
                    rss_bytes[role] += process.memory_info().rss
            self._account(self._seen, now)
            self._seen = now
            for role, size in rss_bytes.items():
                self._rss_bytes[role] = max(self._rss_bytes[role], size)

    def _account(self, before: dict[psutil.Process, _Seen], now: dict[psutil.Process, _Seen]) -> None:
        """Add the time that was used between two samples.

        When a parent waits for a process, the system adds all its seconds to the parent's; the seconds that were
        counted before must not count again there. The parent may have been sampled just before, so what is missing is
        subtracted once more at the next sample, but not later: not every parent waits.
        """
        ended = {process.pid: seen for process, seen in before.items() if process not in now}
        ended_s: defaultdict[int, float] = defaultdict(float)
        for seen in ended.values():
            parent = seen.parent
            while parent in ended:  # it ended with its parent, so the process that waits for the parent gets both
                parent = ended[parent].parent
            ended_s[parent] += seen.own_s + seen.waited_s
        owed_s = {}
        for process, seen in now.items():
            last = before.get(process) or _Seen(seen.role, seen.parent, seen.is_jvm, 0.0, 0.0)
            counted_s = ended_s[process.pid] + self._owed_s.get(process.pid, 0.0)
            waited_s = seen.waited_s - last.waited_s - counted_s
            used_s = seen.own_s - last.own_s + max(0.0, waited_s)
            self._cpu_s[seen.role] += used_s
            if seen.is_jvm:
                self._jvm_s[seen.role] += used_s
            owed_s[process.pid] = min(max(0.0, -waited_s), ended_s[process.pid])
        self._owed_s = owed_s

    def _members(self) -> dict[psutil.Process, tuple[str, int]]:
        """Return the living processes of all roles, with their roles and parents."""
        parents: dict[int, int] = {}
        processes: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                parents[process.pid] = process.ppid()
                processes[process.pid] = process
        known = {process: seen.role for process, seen in self._seen.items()} | self._roots
        roles = {process.pid: role for process, role in known.items() if processes.get(process.pid) == process}
        members = {}
        # Parents first: then a living child was not yet waited for when its parent was read.
        for process in sorted(processes.values(), key=lambda one: (one.create_time(), one.pid)):
            ancestor: int | None = process.pid
            while ancestor is not None and ancestor not in roles:
                ancestor = parents.get(ancestor) if ancestor else None  # process 0 can be its own parent
            if ancestor is not None:
                members[process] = (roles[ancestor], parents[process.pid])
        return members


class TableFigures(NamedTuple):
    """The size of tables in the store.

    Attributes:
        commits: all entries of their logs, including those that maintenance removed.
        objects: Parquet data objects, including those that compaction replaced and that still exist.
        stored_bytes: all bytes below the tables, including logs and checkpoints.
    """

    commits: int
    objects: int
    stored_bytes: int


def table_figures(settings: Settings, tables: Iterable[str]) -> TableFigures:
    """Return the sum of these tables' figures; paths are relative to the root. A missing table counts as nothing."""
    store = open_store(settings)
    commits = objects = stored_bytes = 0
    for table in tables:
        highest = -1
        for info in store.list(table):
            folder, _, name = info.path.removeprefix(f"{table}/").rpartition("/")
            stored_bytes += info.size
            if folder == "_delta_log" and (entry := _ENTRY.fullmatch(name)):
                highest = max(highest, int(entry[1]))
            elif not folder.startswith("_delta_log") and name.endswith(".parquet"):
                objects += 1
        commits += highest + 1
    return TableFigures(commits, objects, stored_bytes)
