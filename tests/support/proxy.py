"""An HTTP proxy before an S3 server that loses, delays and falsifies answers, request by request, as scripted."""

from __future__ import annotations

import contextlib
import http.client
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from types import TracebackType

WAIT_S = 30.0


@dataclass
class Fault:
    """What to do with the next request of this method whose path ends like this.

    Attributes:
        apply: forward the request to the server, whatever the client is told.
        answer: a status to answer with; ``drop`` closes the connection without an answer; ``pass`` forwards the
            server's own answer; ``cut`` sends half of it.
        hold: waits for ``release`` before anything else.
    """

    method: str
    suffix: str
    answer: int | Literal["drop", "pass", "cut"]
    apply: bool = True
    hold: bool = False
    release: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Forwards to ``endpoint``; each of ``faults`` is used once, in order, by the first request that it fits."""

    def __init__(self, endpoint: str) -> None:
        self.faults: list[Fault] = []
        self.seen: list[tuple[str, str]] = []
        self._target = urlsplit(endpoint).netloc
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fault in self.faults:
            fault.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(WAIT_S)

    def count(self, method: str, suffix: str) -> int:
        return sum(m == method and path.endswith(suffix) for m, path in self.seen)

    def _take(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.seen.append((method, path))
            for fault in self.faults:
                if fault.method == method and path.endswith(fault.suffix):
                    self.faults.remove(fault)
                    return fault
        return None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = urlsplit(self.path).path
                fault = proxy._take(self.command, path)
                if fault is not None:
                    fault.reached.set()
                    if fault.hold:
                        fault.release.wait(WAIT_S)
                status, headers, content = 0, [], b""
                if fault is None or fault.apply:
                    # The Host header stays as the client sent it: its signature covers it.
                    upstream = http.client.HTTPConnection(proxy._target, timeout=WAIT_S)
                    upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        upstream.putheader(name, value)
                    upstream.endheaders(body or None)
                    answer = upstream.getresponse()
                    status, headers, content = answer.status, answer.getheaders(), answer.read()
                    upstream.close()
                if fault is None or fault.answer in {"pass", "cut"}:
                    self.answer(status, headers, content, cut=fault is not None and fault.answer == "cut")
                elif fault.answer == "drop":
                    self.close_connection = True
                else:
                    self.answer(int(fault.answer), [], b"<Error><Code>Scripted</Code></Error>")

            def answer(self, status: int, headers: list[tuple[str, str]], content: bytes, *, cut: bool = False) -> None:
                with contextlib.suppress(OSError):  # the client may have given up
                    self.send_response_only(status)
                    length = str(len(content))
                    for name, value in headers:
                        if name.lower() == "content-length":
                            length = value  # of a HEAD: the length of what is not sent
                        elif name.lower() not in {"transfer-encoding", "connection"}:
                            self.send_header(name, value)
                    self.send_header("Content-Length", length)
                    self.end_headers()
                    self.wfile.write(content[: len(content) // 2] if cut else content)
                    self.wfile.flush()
                if cut:
                    self.close_connection = True

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
