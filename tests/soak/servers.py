"""The S3 server of a soak, which can be killed and comes back with its objects, and the proxy in front of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from brokerless.errors import ConfigError
from brokerless.local.processes import HOST, free_port
from brokerless.local.server import LocalServer, start_embedded, start_minio
from tests.soak.roles import Usage

if TYPE_CHECKING:
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
    """``brokerless proxy`` as a process, and its control.

    Raises:
        ConfigError: it does not answer.
    """

    def __init__(self, upstream: str, folder: Path) -> None:
        self._port = free_port()
        self.endpoint = f"http://{HOST}:{self._port}"
        self.usage = Usage()
        self._born_s = time.monotonic()
        arguments = ["proxy", "--upstream", upstream, "--port", str(self._port), "--json"]
        with (folder / "proxy.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "brokerless.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                process_group=0,
            )
        while True:
            with contextlib.suppress(OSError):
                self.counters()
                return
            if self._process.poll() is not None or time.monotonic() - self._born_s > _READY_S:
                self.stop()
                raise ConfigError(f"The proxy did not answer; see {folder / 'proxy.log'}.")
            time.sleep(0.05)

    def play(self, rules: dict[str, Any]) -> None:
        """Replaces what it injects; nothing if empty."""
        self._ask("PUT" if rules else "DELETE", "rules", json.dumps(rules) if rules else None)

    def counters(self) -> dict[str, dict[str, int]]:
        """``requests`` by kind and ``faults`` by fault, since its start."""
        found: dict[str, dict[str, int]] = self._ask("GET", "counters")
        return found

    def _ask(self, method: str, what: str, body: str | None = None) -> Any:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=10)
        try:
            connection.request(method, f"/_proxy/{what}", body)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ConfigError(f"The proxy refused {method} of {what} with {answer.status}: {text!r}")
        return json.loads(text)

    def sample(self, at_s: float) -> None:
        """Looks at its memory."""
        self.usage.sample(self._process.pid, at_s, 1, time.monotonic() - self._born_s)

    def stop(self) -> None:
        """Ends it."""
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
