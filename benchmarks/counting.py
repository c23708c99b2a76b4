"""A fault proxy for each role in a process of its own: it counts S3 requests, and strikes them in a soak.

A request is counted when its answer begins; one without an answer is not counted. The proxy needs processor time and
some tenths of a millisecond per request: counts come from a separate pass, never from one whose latency is reported.
"""

from __future__ import annotations

import multiprocessing as mp
import signal
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, Self

from brokerless.errors import ConfigError
from brokerless.testing import FaultProxy, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from types import TracebackType

_ANSWER_S: Final = 30.0


class CountingProxy:
    """The proxies and their process; a context manager."""

    def __init__(self, endpoint: str, roles: Sequence[str]) -> None:
        """Prepare the proxies; the process starts with the context.

        Args:
            endpoint: URL of the S3 server, ``http://host:port``.
            roles: names of the senders of requests; each gets its own endpoint.

        Raises:
            ConfigError: the endpoint is not a plain HTTP URL.
        """
        if not endpoint.startswith("http://"):
            raise ConfigError(f"The endpoint must be a plain http:// URL to count its requests, got {endpoint!r}.")
        self._endpoint, self._roles = endpoint, tuple(roles)

    def __enter__(self) -> Self:
        spawn = mp.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(self._endpoint, self._roles, theirs), daemon=True)
        self._process.start()
        theirs.close()  # so that this process notices the proxy's end
        with ExitStack() as stack:
            stack.callback(self.stop)
            self._endpoints: dict[str, str] = self._receive()
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process, which ends when its pipe is closed."""
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @property
    def pid(self) -> int | None:
        """Return the id of the process, whose processor time belongs to no role."""
        return self._process.pid

    def endpoint(self, role: str) -> str:
        """Return the URL that this role uses as its S3 endpoint."""
        return self._endpoints[role]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the answered requests by role and ``RequestKind`` since the start or the last ``reset``."""
        return {role: counters["answered"] for role, counters in self.counters().items()}

    def counters(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return by role ``answered`` as in ``counts``, and since the start ``requests`` by ``Op`` and ``faults``."""
        found: dict[str, dict[str, dict[str, int]]] = self._ask("counters")
        return found

    def reset(self) -> None:
        """Set the counts of answered requests to zero."""
        self._ask("reset")

    def play(self, *plans: Plan) -> None:
        """Replace the faults of all roles; end them if there are no plans."""
        self._ask("play", plans)

    def _ask(self, question: str, plans: Sequence[Plan] = ()) -> Any:
        self._pipe.send((question, plans))
        return self._receive()

    def _receive(self) -> Any:
        if self._pipe.poll(_ANSWER_S):
            with suppress(EOFError):
                return self._pipe.recv()
        raise RuntimeError(f"The counting proxy gives no answer (exit code {self._process.exitcode}).")


def _serve(upstream: str, roles: Sequence[str], pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent process ends this one
    with ExitStack() as stack, suppress(EOFError, OSError):
        proxies = {role: stack.enter_context(FaultProxy(upstream)) for role in roles}
        pipe.send({role: proxy.endpoint for role, proxy in proxies.items()})
        while True:
            question, plans = pipe.recv()
            for proxy in proxies.values():
                if question == "play":
                    proxy.play(*plans)
                elif question == "reset":
                    proxy.answered.clear()
            pipe.send(
                {
                    role: {"answered": dict(p.answered), "requests": dict(p.requests), "faults": dict(p.faults)}
                    for role, p in proxies.items()
                }
            )
