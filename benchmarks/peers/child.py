"""A process of a peer in its own group; its standard error, and output other than events, goes to a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from benchmarks.peers.base import PeerError
from brokerless.local.jobs import stop_job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path


class Child:
    """A process and its log. The stack ends it."""

    def __init__(self, stack: ExitStack, role: str, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._role, self._log, self._stopped = role, log, False
        stack.callback(self._kill)

    @classmethod
    def start(
        cls,
        stack: ExitStack,
        role: str,
        command: Sequence[str],
        folder: Path,
        environ: Mapping[str, str],
        *,
        cwd: Path | None = None,
    ) -> Child:
        """Start a command whose log is in this folder, with these variables besides those of this process."""
        log = folder / f"{role}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**os.environ, **environ},
                stdin=subprocess.PIPE,  # closed when this process ends, even if it is killed: the job watches it
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                process_group=0,
            )
        return cls(stack, role, process, log)

    def follow(self, on_event: Callable[[dict[str, Any]], None]) -> threading.Thread:
        """Pass on the JSON lines of standard output, in a thread that lasts until its end."""
        thread = threading.Thread(target=self._follow, args=(on_event,), daemon=True)
        thread.start()
        return thread

    def _follow(self, on_event: Callable[[dict[str, Any]], None]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                on_event(json.loads(line))
            else:
                with self._log.open("a") as file:
                    file.write(line)

    def tail(self) -> str:
        """Return the end of the log."""
        return self._log.read_text(errors="replace")[-3000:]

    def check(self) -> None:
        """Raise ``PeerError`` if the process has ended."""
        if self.process.poll() is not None:
            raise PeerError(f"The {self._role} ended with {self.process.returncode}: {self.tail()}")

    def end(self, grace_s: float = 20.0) -> None:
        """End the process in order.

        Raises:
            PeerError: the process ended in another way.
        """
        code = self._stop(grace_s)
        if code not in (0, 128 + signal.SIGTERM):  # a JVM's exit code includes the signal that ended it
            raise PeerError(f"The {self._role} ended with {code}: {self.tail()}")

    def _kill(self) -> None:
        if not self._stopped:  # the system may have reused its pid
            self._stop(1.0)

    def _stop(self, grace_s: float) -> int:
        code = stop_job(self.process, grace_s=grace_s)
        self._stopped = True
        if self.process.stdin is not None:
            self.process.stdin.close()
        return code
