"""The S3 server of a soak, which can be killed and comes back with its objects, and the proxy in front of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from brokerless.errors import ConfigError
from brokerless.local.server import LocalServer, start_embedded, start_minio
from brokerless.testing import FaultProxy, Plan
from tests.soak.roles import Usage

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

_KEY, _SECRET = "soak-access", "soak-secret-key"
_READY_S: Final = 30.0


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


class Proxy:
    """A fault proxy in a process of its own, which plays what it is sent.

    Raises:
        ConfigError: it does not start.
    """

    def __init__(self, upstream: str) -> None:
        self.usage = Usage()
        self._born_s = time.monotonic()
        spawn = multiprocessing.get_context("spawn")
        self._pipe, other = spawn.Pipe()
        self._process = spawn.Process(target=_serve_proxy, args=(upstream, other), daemon=True)
        self._process.start()
        other.close()
        self.endpoint: str = self._receive()

    def play(self, *plans: Plan) -> None:
        """Replaces what it injects; nothing without plans."""
        self._pipe.send(plans)
        self._receive()

    def counters(self) -> dict[str, dict[str, int]]:
        """``requests`` by kind and ``faults`` by fault, since its start."""
        self._pipe.send(None)
        found: dict[str, dict[str, int]] = self._receive()
        return found

    def _receive(self) -> Any:
        if not self._pipe.poll(_READY_S):
            raise ConfigError("The proxy did not answer.")
        try:
            return self._pipe.recv()
        except EOFError:
            raise ConfigError("The proxy ended.") from None

    def sample(self, at_s: float) -> None:
        """Looks at its memory."""
        if self._process.pid is not None:
            self.usage.sample(self._process.pid, at_s, 1, time.monotonic() - self._born_s)

    def stop(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve_proxy(upstream: str, pipe: Connection) -> None:
    """Plays the plans that come, or answers with the counters, until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the soak ends it
    with FaultProxy(upstream) as proxy, contextlib.suppress(EOFError):
        pipe.send(proxy.endpoint)
        while True:
            plans: tuple[Plan, ...] | None = pipe.recv()
            if plans is None:
                pipe.send({"requests": dict(proxy.requests), "faults": dict(proxy.faults)})
            else:
                proxy.play(*plans)
                pipe.send(None)
