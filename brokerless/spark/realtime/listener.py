"""Where the tasks of a real-time pipeline connect: two sockets for each lane, Unix sockets or TCP.

Tasks on this machine use Unix sockets in a folder of this user only. Tasks of a cluster use TCP to the address at which
Spark's executors reach the driver. Every connection first shows the run's secret, which went to the tasks with Spark's
own messages. The connection is not encrypted, as Spark's own is not by default; where a session encrypts its own, the
pipeline runs in micro-batches instead (``engine``).
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brokerless.spark.realtime import frames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HELLO_S: Final = 5.0
"""How long a connection may take to show the secret."""

_SECRET_BYTES: Final = 32
_HELLO_BYTES: Final = _SECRET_BYTES + 4
_UNKNOWN: Final = 64
"""How many connections may be waiting to show the secret; more are closed at once."""


class Listener:
    """Listens for the lanes of one run.

    Args:
        lanes: how many lanes connect, each with one socket ``in`` (rows to the task) and one ``out``.
        network: the address to listen at, and the one by which tasks reach it; Unix sockets without.

    Raises:
        OSError: the sockets cannot be made.
    """

    def __init__(self, lanes: int, network: tuple[str, str] | None = None) -> None:
        self.lanes = lanes
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._lock = threading.Lock()
        self._free: dict[str, set[int | None]] = {side: set(range(lanes)) for side in ("in", "out")}
        self._missing = {side: set(range(lanes)) for side in ("in", "out")}
        self._changed = threading.Condition(self._lock)
        self._unknown = threading.BoundedSemaphore(_UNKNOWN)
        self._accepted: list[socket.socket] = []
        self._closed = False
        # A socket's path may have about a hundred characters: not in a folder that the user has chosen.
        self.folder = Path(tempfile.mkdtemp(prefix="brokerless-"))  # for this user only
        self._servers: dict[str, socket.socket] = {}
        self.addresses: dict[str, str] = {}
        try:
            for side in self._missing:
                self._servers[side], self.addresses[side] = self._listen(side, network)
        except OSError:
            self.close()
            raise

    @property
    def options(self) -> dict[str, str]:
        """The options of Spark's source by which tasks find this listener. Spark redacts those called ``token``."""
        return {**self.addresses, "token": self._secret.hex(), "lanes": str(self.lanes)}

    def start(self, handlers: Mapping[str, Callable[[socket.socket, int], None]]) -> None:
        """Accepts connections; each lane's is handed to its side's handler once, which must not block."""
        for side, handler in handlers.items():
            threading.Thread(
                target=self._accept, args=(side, handler), name=f"brokerless-accept-{side}", daemon=True
            ).start()

    def wait_connected(self, timeout_s: float) -> bool:
        """Whether all lanes are connected, at the latest after that time."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while any(self._missing.values()) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return not any(self._missing.values())

    def close(self) -> None:
        """Stops listening and closes every connection, which ends the tasks."""
        with self._lock:
            self._closed = True
            sockets = [*self._servers.values(), *self._accepted]
        for one in sockets:
            _close(one)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _listen(self, side: str, network: tuple[str, str] | None) -> tuple[socket.socket, str]:
        if network is None:
            path = str(self.folder / side)
            server = socket.socket(socket.AF_UNIX)
            server.bind(path)
            server.listen(self.lanes)
            return server, path
        bind, host = network
        server = socket.create_server((bind, 0), backlog=self.lanes + _UNKNOWN)
        return server, f"{host}:{server.getsockname()[1]}"

    def _accept(self, side: str, handler: Callable[[socket.socket, int], None]) -> None:
        with contextlib.suppress(OSError):  # closed: by the end of the run, or because all lanes are here
            while True:
                connection, _ = self._servers[side].accept()
                if self._unknown.acquire(blocking=False):
                    threading.Thread(target=self._greet, args=(connection, side, handler), daemon=True).start()
                else:
                    _close(connection)

    def _greet(self, connection: socket.socket, side: str, handler: Callable[[socket.socket, int], None]) -> None:
        try:
            lane = self._lane(connection)
        finally:
            self._unknown.release()
        with self._changed:
            is_expected = not self._closed and lane in self._free[side]
            if is_expected:
                self._free[side].discard(lane)
                self._accepted.append(connection)
        if lane is None or not is_expected:
            _close(connection)
            return
        connection.settimeout(None)
        frames.widen(connection)
        handler(connection, lane)
        with self._changed:
            self._missing[side].discard(lane)
            if not self._missing[side]:
                _close(self._servers[side])
            self._changed.notify_all()

    def _lane(self, connection: socket.socket) -> int | None:
        """The lane that a connection says it is of; None if it does not show the secret in time."""
        deadline, hello = time.monotonic() + HELLO_S, b""
        with contextlib.suppress(OSError):
            while len(hello) < _HELLO_BYTES and (left := deadline - time.monotonic()) > 0:
                connection.settimeout(left)
                if not (more := connection.recv(_HELLO_BYTES - len(hello))):
                    return None
                hello += more
        if len(hello) < _HELLO_BYTES or not hmac.compare_digest(hello[:_SECRET_BYTES], self._secret):
            return None
        return int.from_bytes(hello[_SECRET_BYTES:], "little")


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
