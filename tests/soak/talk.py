"""How the processes of a soak talk to the one that runs it: a JSON line each, and an end with it."""

from __future__ import annotations

import json
import os
import signal
import threading


def say(event: str, **values: object) -> None:
    """One line on standard output."""
    print(json.dumps({"event": event, **values}), flush=True)


class Stop:
    """Whether to end: asked to by SIGTERM, or left alone by the process that started this one."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._asked = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._asked.set())

    def __bool__(self) -> bool:
        return self._asked.is_set() or os.getppid() != self._parent

    def wait(self, seconds: float) -> None:
        """Sleeps, not beyond the end."""
        self._asked.wait(seconds)
