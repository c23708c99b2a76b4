"""The S3 server of a soak, which can be killed and comes back with its objects, and the proxy in front of it."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from benchmarks.counting import CountingProxy
from brokerless.local.minio import start_minio
from brokerless.local.server import LocalServer, start_embedded
from tests.soak.roles import Usage

if TYPE_CHECKING:
    from pathlib import Path

_KEY, _SECRET = "soak-access", "soak-secret-key"
ALL: Final = "all"


class Server:
    """The embedded server or MinIO, always at the same address.

    Raises:
        ConfigError: it does not start.
    """

    def __init__(self, kind: Literal["embedded", "minio"], folder: Path) -> None:
        self.kind: Final = kind
        self.usage = Usage()
        self.incarnation = 0
        self._folder = folder
        self._running = self._start(None)

    def _start(self, port: int | None) -> LocalServer:
        self.incarnation += 1
        self._born_s = time.monotonic()
        if self.kind == "embedded":
            return start_embedded(self._folder, port=port)
        return start_minio(self._folder, access_key=_KEY, secret_key=_SECRET, port=port)

    @property
    def running(self) -> LocalServer:
        """The server as it is now."""
        return self._running

    def restart(self, down_s: float) -> None:
        """Kills it, and starts it again some seconds later."""
        port = urlsplit(self._running.endpoint).port
        if self._running.pid is not None:
            os.kill(self._running.pid, signal.SIGKILL)
        self._running.stop()
        time.sleep(down_s)
        self._running = self._start(port)

    def sample(self, at_s: float) -> None:
        """Looks at its memory; nothing while it is down."""
        if self._running.pid is not None:
            self.usage.sample(self._running.pid, at_s, self.incarnation, time.monotonic() - self._born_s)

    def stop(self) -> None:
        """Ends it. Its objects stay."""
        self._running.stop()


class Proxy(CountingProxy):
    """A fault proxy in a process of its own, for all roles."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream, [ALL])
        self.usage = Usage()
        self._born_s = time.monotonic()

    def sample(self, at_s: float) -> None:
        """Looks at its memory."""
        if self.pid is not None:
            self.usage.sample(self.pid, at_s, 1, time.monotonic() - self._born_s)
