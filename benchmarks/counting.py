"""Counts S3 requests by role: a proxy in front of an S3 server, with one port per role.

The proxy changes nothing, not even the ``Host`` header, so that signatures stay valid: the client signed the proxy's
address, and the server checks that header. Each client connection has its own connection to the server, and both
directions are independent, so that ``Expect: 100-continue`` and early answers work.

A request is counted when its answer begins; one without an answer is not counted. The proxy needs processor time and
some tenths of a millisecond per request: counts come from a separate pass, never from one whose latency is reported.
"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import re
import signal
import sys
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from urllib.parse import urlsplit

from brokerless.cost.bill import request_kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from multiprocessing.connection import Connection
    from types import TracebackType

HOST: Final = "127.0.0.1"
_BLOCK_BYTES: Final = 2**18
_ANSWER_S: Final = 10.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[^\r]*\bchunked\b", re.IGNORECASE)
_GONE: Final = (OSError, EOFError, asyncio.LimitOverrunError, ValueError, IndexError)
"""Errors that end a connection: the other side has closed it, or does not send HTTP."""


@dataclass(slots=True)
class Traffic:
    """The traffic of one role: requests by ``brokerless.cost.bill.RequestKind``, and the bytes of bodies."""

    requests: Counter[str] = field(default_factory=Counter)
    uploaded_bytes: int = 0
    retrieved_bytes: int = 0


class CountingProxy:
    """The proxy in a process of its own; a context manager."""

    def __init__(self, endpoint: str, roles: Sequence[str]) -> None:
        """Prepare the proxy; the process starts with the context.

        Args:
            endpoint: URL of the S3 server, ``http://host:port``.
            roles: names of the senders of requests; each gets its own endpoint.

        Raises:
            ValueError: the endpoint is not a plain HTTP URL.
        """
        server = urlsplit(endpoint)
        if server.scheme != "http" or not server.hostname:
            raise ValueError(f"The endpoint must be a plain http:// URL to count its requests, got {endpoint!r}.")
        self._server = (server.hostname, server.port or 80)
        self._roles = tuple(roles)
        self._ports: dict[str, int] = {}

    def __enter__(self) -> Self:
        spawn = mp.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_run, args=(self._server, self._roles, theirs), daemon=True)
        self._process.start()
        theirs.close()  # so that this process notices the proxy's end
        try:
            self._ports = self._receive()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pipe.close()  # it ends when the pipe is closed
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @property
    def pid(self) -> int | None:
        """Return the id of the proxy's process, whose processor time belongs to no role."""
        return self._process.pid

    def endpoint(self, role: str) -> str:
        """Return the URL that this role uses as its S3 endpoint."""
        return f"http://{HOST}:{self._ports[role]}"

    def traffic(self) -> dict[str, Traffic]:
        """Return the traffic by role since the start or the last ``reset``."""
        return self._ask("traffic")

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of requests by role and kind since the start or the last ``reset``."""
        return {role: dict(one.requests) for role, one in self.traffic().items()}

    def reset(self) -> None:
        """Set all counts to zero."""
        self._ask("reset")

    def _ask(self, question: Literal["traffic", "reset"]) -> Any:
        self._pipe.send(question)
        return self._receive()

    def _receive(self) -> Any:
        if self._pipe.poll(_ANSWER_S):
            with suppress(EOFError):
                return self._pipe.recv()
        raise RuntimeError(f"The counting proxy gives no answer (exit code {self._process.exitcode}).")


def _run(server: tuple[str, int], roles: Sequence[str], pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent process ends this one
    asyncio.run(_Forwarder(server, roles).run(pipe))


class _Forwarder:
    def __init__(self, server: tuple[str, int], roles: Sequence[str]) -> None:
        self._server = server
        self._traffic = {role: Traffic() for role in roles}

    async def run(self, pipe: Connection) -> None:
        listeners = {
            role: await asyncio.start_server(partial(self._accept, role), HOST, limit=_BLOCK_BYTES, backlog=512)
            for role in self._traffic
        }
        pipe.send({role: listener.sockets[0].getsockname()[1] for role, listener in listeners.items()})
        done = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._answer, pipe, done)
        await done.wait()

    def _answer(self, pipe: Connection, done: asyncio.Event) -> None:
        try:
            question = pipe.recv()
            if question == "reset":
                for role in self._traffic:
                    self._traffic[role] = Traffic()
            pipe.send(self._traffic)
        except (OSError, EOFError):
            done.set()

    async def _accept(self, role: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        asked: deque[tuple[str, str]] = deque()
        with suppress(*_GONE, asyncio.CancelledError):  # cancelled at the end, which asyncio would report as an error
            answers, server = await asyncio.open_connection(*self._server, limit=_BLOCK_BYTES)
            requests = asyncio.create_task(self._forward_requests(role, source, server, asked))
            try:
                await self._forward_answers(role, answers, sink, asked)
            finally:
                requests.cancel()
                server.close()
        sink.close()

    async def _forward_requests(
        self, role: str, source: asyncio.StreamReader, server: asyncio.StreamWriter, asked: deque[tuple[str, str]]
    ) -> None:
        try:
            while True:
                head = await source.readuntil(b"\r\n\r\n")
                method, path, _ = head.split(b" ", 2)
                asked.append((method.decode(), path.decode()))
                server.write(head)
                async for size in _forward_body(source, server, head, without_length=0):
                    self._traffic[role].uploaded_bytes += size
        except _GONE:
            server.close()  # this ends the other direction, too

    async def _forward_answers(
        self, role: str, answers: asyncio.StreamReader, sink: asyncio.StreamWriter, asked: deque[tuple[str, str]]
    ) -> None:
        while True:
            head = await answers.readuntil(b"\r\n\r\n")
            sink.write(head)
            status = int(head.split(b" ", 2)[1])
            if status < 200:  # "100 Continue": the answer follows
                continue
            method, path = asked.popleft()
            self._traffic[role].requests[request_kind(method, path, status)] += 1
            # The length in the head of such an answer is that of a body that is not sent.
            if method != "HEAD" and status not in {204, 304}:
                async for size in _forward_body(answers, sink, head, without_length=sys.maxsize):
                    self._traffic[role].retrieved_bytes += size


async def _forward_body(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, head: bytes, *, without_length: int
) -> AsyncIterator[int]:
    """Forward the body block by block, and yield each block's length before it is sent.

    ``without_length`` is the length if the head has none: a request then has no body, and an answer's body lasts until
    the connection ends.
    """
    found = _LENGTH.search(head)
    if _CHUNKED.search(head):
        size = -1
        while size:
            line = await source.readuntil(b"\r\n")
            sink.write(line)
            size = int(line.split(b";")[0], 16)
            async for block in _forward_bytes(source, sink, size):
                yield block
            while (line := await source.readuntil(b"\r\n")) != b"\r\n":  # trailers, after the last chunk
                sink.write(line)
            sink.write(line)
    else:
        async for block in _forward_bytes(source, sink, int(found[1]) if found else without_length):
            yield block
    await sink.drain()


async def _forward_bytes(source: asyncio.StreamReader, sink: asyncio.StreamWriter, size: int) -> AsyncIterator[int]:
    while size:
        block = await source.read(min(size, _BLOCK_BYTES))
        if not block:
            raise EOFError
        yield len(block)
        sink.write(block)
        await sink.drain()  # a slow receiver slows down the sender, so that this process's memory is bounded
        size -= len(block)
