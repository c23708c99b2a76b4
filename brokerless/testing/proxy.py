"""An HTTP proxy in front of an S3 server that injects faults as planned.

Rules that hold for what is passed on:

- Heads and bodies go through byte for byte, ``Host`` included, so what the client signed stays what the server checks.
  Bodies are streamed. An answer is held in memory only if a fault needs all of it.
- Each client connection has one connection to the server of its own, so the proxy adds no queueing and no reordering.
- The proxy never sends a request twice. If the server breaks a connection, so does the proxy.
- A fault is in the log before the client can see it; "applied" there means that the server answered 2xx.

One thread a connection: the fewest hand-overs between a client and its server, hence the least latency.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import ConfigError
from brokerless.settings import shown_url
from brokerless.testing.connection import Connection
from brokerless.testing.faults import Held, Op, Plan, Rule, Script
from brokerless.testing.injector import Injected, Injector
from brokerless.testing.wire import Wire

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from brokerless.settings import Settings

HOST: Final = "127.0.0.1"

_CONNECT_TIMEOUT_S: Final = 5.0
_TICK_S: Final = 0.05
_GRAIN_S: Final = 1e-6  # of clocks; less than that would be waited for in vain
_JOIN_S: Final = 5.0


class FaultProxy:
    """A proxy on the loopback interface; use it as a context manager.

    Args:
        upstream: URL of an S3 server, such as ``http://127.0.0.1:9000``.
        plans: what to play from the start; nothing by default.
        port: to listen on; a free one if 0.
        clock: time and sleeping, for delays, for the log and for faults that look at the clock.

    Raises:
        ConfigError: the upstream is not an http URL, or the port is taken.
    """

    def __init__(
        self,
        upstream: str,
        *plans: Plan,
        port: int = 0,
        clock: Clock = SYSTEM,
    ) -> None:
        self._address = _address(upstream)
        self.upstream: Final = upstream.rstrip("/")
        self.clock: Final = clock
        self.injector: Final = Injector(clock)
        self.stopped: Final = threading.Event()
        self._lock = threading.Lock()
        self._connections: dict[threading.Thread, Connection] = {}
        self._gates: list[Held] = []
        self.play(*plans)
        try:
            self._listener = socket.create_server((HOST, port), backlog=512)
        except OSError as error:
            raise ConfigError(
                f"Cannot listen on port {port} of {HOST} ({error.strerror or error}). Choose another, or 0 for any."
            ) from None
        self.endpoint: Final = f"http://{HOST}:{self._listener.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._accept, name="fault-proxy", daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # What a test says

    def play(self, *plans: Plan) -> None:
        """Replace all rules and chaos. Counts and draws begin again, so the same requests get the same faults again."""
        self._keep_gates(rule for plan in plans if isinstance(plan, Script) for rule in plan.rules)
        self.injector.play(plans)

    def add(self, *rules: Rule) -> None:
        """Add rules after the existing ones."""
        self._keep_gates(rules)
        self.injector.add(rules)

    def clear(self) -> None:
        """End all faults. Requests that are stalled, delayed or held remain so."""
        self.injector.play(())

    def through(self, settings: Settings) -> Settings:
        """Return the same settings with this proxy as endpoint."""
        return dataclasses.replace(settings, endpoint=self.endpoint)

    # What a test asks

    def log(self) -> tuple[Injected, ...]:
        """The injected faults, in their order (the last hundred thousand)."""
        return self.injector.log()

    def pending(self) -> tuple[Rule, ...]:
        """The rules that have not struck as often as they should. A good test ends with none."""
        return self.injector.pending()

    def count(self, op: Op | None = None, key: str = "*") -> int:
        """Return the number of requests of this kind for matching keys (of the last hundred thousand)."""
        return self.injector.count(op, key)

    @property
    def requests(self) -> Counter[str]:
        """Requests by kind, since the start."""
        return self.injector.requests

    @property
    def answered(self) -> Counter[str]:
        """Requests that the server answered, by the kind under which S3 bills them, since the start."""
        return self.injector.answered

    @property
    def faults(self) -> Counter[str]:
        """Injections by fault, since the start."""
        return self.injector.faults

    def stop(self) -> None:
        """Stop listening and break every connection. Delayed requests that were not sent yet are never sent."""
        self.stopped.set()
        for held in self._gates:
            held.gate.open()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept, which close alone does not
        self._listener.close()
        self._acceptor.join(_JOIN_S)
        with self._lock:
            connections = dict(self._connections)
        for connection in connections.values():
            connection.abort()
        for thread in connections:
            thread.join(_JOIN_S)

    # What connections need

    def pause(self, seconds: float, until: Callable[[], bool] | None = None) -> None:
        """Wait in short steps, until a stop or until ``until``."""
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > _GRAIN_S and not self.stopped.is_set():
            if until is not None and until():
                return
            self.clock.sleep(min(left, _TICK_S))

    def connect(self) -> Wire:
        """Open a connection to the server.

        Raises:
            OSError: nobody answers there.
        """
        connection = socket.create_connection(self._address, _CONNECT_TIMEOUT_S)
        connection.settimeout(None)
        return Wire(connection)

    def _accept(self) -> None:
        while not self.stopped.is_set():
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                self.stopped.wait(_TICK_S)  # stopped, or out of file descriptors for a moment
                continue
            connection = Connection(self, accepted)
            thread = threading.Thread(target=self._serve, args=(connection,), name="fault-proxy-client", daemon=True)
            with self._lock:
                self._connections[thread] = connection
            thread.start()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                del self._connections[threading.current_thread()]

    def _keep_gates(self, rules: Iterable[Rule]) -> None:
        self._gates += [rule.fault for rule in rules if isinstance(rule.fault, Held)]


def _address(upstream: str) -> tuple[str, int]:
    try:
        parts = urlsplit(upstream)
        port = parts.port or 80
    except ValueError:
        parts, port = urlsplit(""), 0
    if "@" in upstream:
        raise ConfigError(
            "The upstream holds credentials; give them to the clients instead, who sign their requests with them."
        )
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError(
            f"The upstream {shown_url(upstream)!r} must be http://host:port. A server behind TLS would refuse "
            "what its clients have signed for the proxy's address."
        )
    return parts.hostname, port
