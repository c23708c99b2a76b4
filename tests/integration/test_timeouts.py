"""What a caller gives as a time is observed, whatever the store does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

GIVEN_S = 1.5
LATE_S = 1.0


@contextlib.contextmanager
def in_time(given_s: float = GIVEN_S) -> Iterator[None]:
    began = time.monotonic()
    yield
    took_s = time.monotonic() - began
    assert took_s <= given_s + LATE_S, f"{took_s:.1f} s"


class Gateway:
    """Passes connections on to a server, until it is silenced: then it accepts, and never answers."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._silent = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        self._silent.set()

    def close(self) -> None:
        for one in [self._server, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self._silent.is_set():
                    sink.sendall(data)
