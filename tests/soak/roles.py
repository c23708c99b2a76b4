"""A process that plays a role, is struck, and starts anew whenever it ends before it is done."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import psutil

from brokerless.local.processes import end_group
from tests.soak.memory import Sample

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path
    from typing import IO

ZOMBIE_S: Final = 45.0
"""How long a process that was replaced while it stood still may take to notice."""
_ORPHANS_S: Final = 1.0
_AGAIN_S: Final = 0.5
_ERROR: Final = re.compile(r"[A-Z]\w+: ")
_EACH_TIME: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:\.[0-9a-f]{8})?|\d+")


class Usage:
    """What a role takes, over all processes that played it: memory as samples, processor seconds as a sum.

    What a process uses after its last sample is not in the sum, so it is a little low.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.cpu_s = 0.0
        self._used_s: dict[psutil.Process, float] = {}

    def sample(self, pid: int, at_s: float, incarnation: int, age_s: float) -> None:
        """Looks at a process and all its children."""
        size = 0
        used_s: dict[psutil.Process, float] = {}
        with contextlib.suppress(psutil.Error):
            one = psutil.Process(pid)
            for process in [one, *one.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    size += process.memory_info().rss
                    times = process.cpu_times()
                    used_s[process] = times.user + times.system
        self.cpu_s += sum(max(0.0, s - self._used_s.get(process, 0.0)) for process, s in used_s.items())
        self._used_s = used_s
        if size:
            self.samples.append(Sample(at_s, incarnation, age_s, size / 2**20))


class Role:
    """One role and the process that plays it now. Safe to use from the thread that strikes and the one that watches.

    Args:
        name: of the role.
        start: starts a process, given its number from 1 and the file for what it writes to standard error.
        folder: for that file.
        on_event: gets every JSON line that a process writes.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[int, IO[bytes]], subprocess.Popen[str]],
        folder: Path,
        on_event: Callable[[dict[str, Any]], None],
    ) -> None:
        self.name = name
        self.usage = Usage()
        self.exits: list[str] = []
        self.incarnation = 0
        self.is_done = False
        self._start = start
        self._log = folder / f"{name}.log"
        self._on_event = on_event
        self._lock = threading.RLock()
        self._killed = False
        self._begin()

    def _begin(self) -> None:
        self.incarnation += 1
        self.born_s = time.monotonic()
        self._killed = False
        self._ended_s: float | None = None
        with self._log.open("ab") as log:
            self._log_from = log.tell()
            self.process = self._start(self.incarnation, log)
        threading.Thread(target=self._follow, args=(self.process,), daemon=True).start()

    def _follow(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            with contextlib.suppress(ValueError):  # the line that it was writing when it was killed
                self._on_event(json.loads(line))

    # What watches

    def tend(self) -> None:
        """Starts the role anew if its process has ended before it was done."""
        with self._lock:
            code = self.process.poll()
            if code is None or self.is_done:
                return
            if self._ended_s is None:
                self._ended_s = time.monotonic()
                end_tree(_Tree(self.process))
                if code == 0:
                    self.is_done = True
                elif not self._killed:
                    self.exits.append(f"{self._last_words()} (exit code {code})")
            elif time.monotonic() - self._ended_s >= _AGAIN_S:
                self._begin()

    def _last_words(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._log_from)
            return last_words(log.read().decode("utf-8", "replace"))

    def sample(self, at_s: float) -> None:
        """Looks at memory and processor time, of the process and its children."""
        with self._lock:
            pid, incarnation, age_s = self.process.pid, self.incarnation, time.monotonic() - self.born_s
        self.usage.sample(pid, at_s, incarnation, age_s)

    # What strikes

    def kill(self) -> None:
        """All of its processes at once, as when a machine goes away."""
        with self._lock:
            self._killed = True
            end_tree(_Tree(self.process))

    def kill_part(self, seed: int, is_part: Callable[[psutil.Process], bool]) -> bool:
        """One of its processes for which ``is_part`` holds; whether there was one."""
        with self._lock:
            tree = _Tree(self.process)
        parts = []
        for process in sorted(tree.members, key=lambda one: one.pid):
            with contextlib.suppress(psutil.Error):
                parts += [process] if is_part(process) else []
        if not parts:
            return False
        with contextlib.suppress(psutil.Error):
            parts[seed % len(parts)].kill()
        return True

    def pause(self, seconds: float, sleep: Callable[[float], object]) -> None:
        """Lets all of its processes stand still."""
        with self._lock:
            tree = _Tree(self.process)
        tree.signal(signal.SIGSTOP)
        try:
            sleep(seconds)
        finally:
            tree.signal(signal.SIGCONT)

    def replace(self, seconds: float, sleep: Callable[[float], object]) -> str:
        """Lets it stand still, starts a successor, and wakes it up again: a zombie, which has to end by itself.

        Returns:
            The last line that the zombie wrote; says so if it had to be ended.
        """
        with self._lock:
            old, tree, log_from = self.process, _Tree(self.process), self._log_from
            tree.signal(signal.SIGSTOP)
            self._begin()
        try:
            sleep(seconds)
        finally:
            tree.signal(signal.SIGCONT)
        deadline = time.monotonic() + ZOMBIE_S
        while old.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        ended = old.poll() is not None
        end_tree(tree)
        with self._log.open("rb") as log:
            log.seek(log_from)
            said = log.read().decode("utf-8", "replace")
        # Its successor writes into the same file.
        fenced = "".join(line + "\n" for line in said.splitlines() if "Fenced: " in line)
        return last_words(fenced or said) if ended else f"did not end within {ZOMBIE_S:.0f} s"

    def stop(self, grace_s: float = 15.0) -> None:
        """Ends it, politely first."""
        with self._lock:
            self.is_done = True
            tree = _Tree(self.process)
            if self.process.poll() is None:
                self.process.terminate()
                with contextlib.suppress(Exception):
                    self.process.wait(grace_s)
            end_tree(tree)


def last_words(said: str) -> str:
    """The last line that names an error, without what differs each time; the last line of all if none does."""
    lines = said.splitlines()
    named = [line for line in lines if _ERROR.match(line)] or lines[-1:]
    return _EACH_TIME.sub("*", named[-1])[:200] if named else ""


class _Tree:
    """A process that was started here and all that it has started, as they are now."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.members: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            if process.poll() is None:
                one = psutil.Process(process.pid)
                self.members = [one, *one.children(recursive=True)]

    def signal(self, number: int) -> None:
        """Sends it to all, the parent first."""
        for member in self.members:
            with contextlib.suppress(psutil.Error):
                member.send_signal(number)


def end_tree(tree: _Tree) -> None:
    """Kills what is left of it, and waits."""
    for member in tree.members:
        with contextlib.suppress(psutil.Error):
            member.kill()
    # A child whose parent was killed first is nobody's child any more, but still in the group.
    with contextlib.suppress(Exception):
        tree.process.wait(10)
    end_group(tree.process, grace_s=0.0 if tree.members else _ORPHANS_S)
