"""The sockets to which the tasks of a real-time pipeline connect: two for each lane, Unix sockets or TCP.

Tasks on this machine use Unix sockets in a folder of this user only; those of a cluster use TCP.
Every connection first sends the run's secret, which the tasks get in Spark's own messages. Connections are not
encrypted, as Spark's are not by default; a session that encrypts them runs in micro-batches (``requirements``).
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
"""The longest time in which a connection must send the secret."""

_SECRET_BYTES: Final = 32
_HELLO_BYTES: Final = _SECRET_BYTES + 4
_UNKNOWN: Final = 64
"""The most connections that have not sent the secret yet; more are closed at once."""


class Listener:
    """A listener for the lanes of one run.

    Args:
        lanes: the number of lanes, each with one socket ``in`` (rows to the task) and one ``out``.
        network: the address to listen at, and the one by which tasks reach it; Unix sockets if None.

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
        """Return the options of Spark's source for its tasks; Spark redacts the one named ``token``."""
        return {**self.addresses, "token": self._secret.hex(), "lanes": str(self.lanes)}

    def start(self, handlers: Mapping[str, Callable[[socket.socket, int], None]]) -> None:
        """Accept connections; each lane's is given to its side's handler once, which must not block."""
        for side, handler in handlers.items():
            threading.Thread(
                target=self._accept, args=(side, handler), name=f"brokerless-accept-{side}", daemon=True
            ).start()

    def wait_connected(self, timeout_s: float) -> bool:
        """Return whether all lanes are connected, at the latest after that time."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while any(self._missing.values()) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return not any(self._missing.values())

    def close(self) -> None:
        """Stop listening and close every connection, which ends the tasks."""
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
        """Return the lane that a connection names; None if it does not send the secret in time."""
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
