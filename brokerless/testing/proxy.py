"""An HTTP proxy in front of an S3 server that injects faults as planned.

Rules that hold for what is passed on:

- Heads and bodies go through byte for byte, ``Host`` included, so what the client signed stays what the server checks.
  Bodies are streamed. An answer is held in memory only if a fault needs all of it.
- Each client connection has one connection to the server of its own, so the proxy adds no queueing and no reordering.
- The proxy never sends a request twice. If the server breaks a connection, so does the proxy.
- A fault is in the log before the client can see it; "applied" there means that the server answered 2xx.

One thread a connection: the fewest hand-overs between a client and its server, hence the least latency.

Control from other processes: ``GET``, ``PUT`` (replace), ``POST`` (add) and ``DELETE`` of ``/_proxy/rules``,
``GET /_proxy/log?after=N`` (JSON lines) and ``GET /_proxy/counters``. No bucket can have that name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import json
import re
import select
import socket
import threading
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from math import log1p
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import parse_qs, unquote, urlsplit

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import ConfigError
from brokerless.testing.faults import (
    Answer,
    ClockSkew,
    Corrupted,
    Held,
    Latency,
    LostAnswer,
    LostRequest,
    Op,
    Plan,
    Reset,
    Rule,
    Script,
    StaleAbsence,
    Stalled,
    Truncated,
    plans_from_json,
)
from brokerless.testing.injector import Injected, Injector, Request, Shot
from brokerless.testing.wire import Head, Wire

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from brokerless.settings import Settings

HOST: Final = "127.0.0.1"
CONTROL: Final = "/_proxy/"

_CONNECT_TIMEOUT_S: Final = 5.0
_CONTINUE_S: Final = 1.0  # a server that does not know "Expect: 100-continue" says nothing; then the body is sent
_TICK_S: Final = 0.05
_GRAIN_S: Final = 1e-6  # of clocks; less than that would be waited for in vain
_JOIN_S: Final = 5.0
_CONTROL_BYTES: Final = 1024 * 1024
_SUBRESOURCES: Final = frozenset(
    {"acl", "cors", "encryption", "lifecycle", "location", "logging", "notification", "object-lock", "policy"}
    | {"replication", "tagging", "versioning", "versions", "website"}
)
_MESSAGES: Final = {
    "AccessDenied": "Access Denied",
    "ConditionalRequestConflict": "A conflicting conditional operation is in progress against this resource.",
    "ExpiredToken": "The provided token has expired.",
    "InternalError": "We encountered an internal error. Please try again.",
    "NoSuchKey": "The specified key does not exist.",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold",
    "SlowDown": "Please reduce your request rate.",
}


class FaultProxy:
    """A proxy on the loopback interface; use it as a context manager.

    Args:
        upstream: URL of an S3 server, such as ``http://127.0.0.1:9000``.
        plans: what to play from the start; nothing by default.
        port: to listen on; a free one if 0.
        clock: time and sleeping, for delays, for the log and for faults that look at the clock.
        on_injected: called with each injection, one at a time, before the client sees the fault.

    Raises:
        ConfigError: the upstream is not an http URL, or the port is taken.
    """

    def __init__(
        self,
        upstream: str,
        *plans: Plan,
        port: int = 0,
        clock: Clock = SYSTEM,
        on_injected: Callable[[Injected], None] | None = None,
    ) -> None:
        self._address = _address(upstream)
        self.upstream: Final = upstream.rstrip("/")
        self.clock: Final = clock
        self.injector: Final = Injector(clock, on_injected=on_injected)
        self.stopped: Final = threading.Event()
        self._lock = threading.Lock()
        self._connections: dict[threading.Thread, _Connection] = {}
        self._gates: list[Held] = []
        self.play(*plans)
        try:
            self._listener = socket.create_server((HOST, port), backlog=512)
        except OSError as error:
            msg = f"Cannot listen on port {port} of {HOST} ({error.strerror or error}). Choose another, or 0 for any."
            raise ConfigError(msg) from None
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
        """Replaces what is played. Counts and draws begin anew, so the same requests meet the same faults again."""
        self._keep_gates(rule for plan in plans if isinstance(plan, Script) for rule in plan.rules)
        self.injector.play(plans)

    def add(self, *rules: Rule) -> None:
        """Adds rules behind those that are there."""
        self._keep_gates(rules)
        self.injector.add(rules)

    def clear(self) -> None:
        """Ends all faults. Requests that are stalled, delayed or held stay so."""
        self.injector.play(())

    def through(self, settings: Settings) -> Settings:
        """The same settings by way of this proxy."""
        return dataclasses.replace(settings, endpoint=self.endpoint)

    # What a test asks

    def log(self) -> tuple[Injected, ...]:
        """What was injected, in the order of injection (the last hundred thousand)."""
        return self.injector.log()

    def pending(self) -> tuple[Rule, ...]:
        """Rules that have not struck as often as they were told to. A good test ends with none."""
        return self.injector.pending()

    def count(self, op: Op | None = None, key: str = "*") -> int:
        """How many requests of this kind and for such keys came (of the last hundred thousand)."""
        return self.injector.count(op, key)

    @property
    def requests(self) -> Counter[str]:
        """Requests by kind, since the start."""
        return self.injector.requests

    @property
    def faults(self) -> Counter[str]:
        """Injections by fault, since the start."""
        return self.injector.faults

    def stop(self) -> None:
        """Stops listening and breaks every connection. Delayed requests that were not sent yet never will be."""
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
        """Waits, in short turns: a stop ends it, and so does ``until``."""
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > _GRAIN_S and not self.stopped.is_set():
            if until is not None and until():
                return
            self.clock.sleep(min(left, _TICK_S))

    def connect(self) -> Wire:
        """A new connection to the server.

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
            connection = _Connection(self, accepted)
            thread = threading.Thread(target=self._serve, args=(connection,), name="fault-proxy-client", daemon=True)
            with self._lock:
                self._connections[thread] = connection
            thread.start()

    def _serve(self, connection: _Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                del self._connections[threading.current_thread()]

    def _keep_gates(self, rules: Iterable[Rule]) -> None:
        self._gates += [rule.fault for rule in rules if isinstance(rule.fault, Held)]


class _Connection:
    """One client's connection and its own to the server."""

    def __init__(self, proxy: FaultProxy, accepted: socket.socket) -> None:
        self._proxy = proxy
        self._injector = proxy.injector
        self._client = Wire(accepted)
        self._upstream: Wire | None = None

    def serve(self) -> None:
        """Handles requests until either side closes or a fault breaks the connection."""
        try:
            while (head := self._client.head()) is not None:
                target = head.words[1].decode("latin-1")
                keep = self._control(head, target) if target.startswith(CONTROL) else self._exchange(head, target)
                if not (keep and head.keeps_open):
                    break
        except OSError:
            pass  # one side broke the connection, so the other must see a broken one, too
        finally:
            self.abort()
            self._client.socket.close()
            self._drop_upstream()

    def abort(self) -> None:
        """Wakes whatever reads or writes; called from other threads, too."""
        for wire in (self._client, self._upstream):
            if wire is not None:
                with contextlib.suppress(OSError):
                    wire.socket.shutdown(socket.SHUT_RDWR)

    # One request. Each method returns whether the connection can be used again.

    def _exchange(self, head: Head, target: str) -> bool:
        request = request_of(head, target)
        body: Iterable[bytes] = self._client.pieces(head.request_framing())
        if request.op == "DELETE" and head.words[0] == b"POST":
            head, whole = self._with_whole_body(head)  # it names the keys, which a plan needs to know
            request, body = Request("DELETE", _keys_of(whole)), [whole]
        shot = self._injector.take(request)
        if shot is None:
            return self._pass_on(head, request, self._ask(head, body, request))
        fault = shot.fault
        if isinstance(fault, Latency | Held | ClockSkew):
            return self._delay(head, body, request, shot)
        if isinstance(fault, Truncated | Corrupted):
            return self._damage(head, body, request, shot)
        return self._refuse(head, body, request, shot)

    def _delay(self, head: Head, body: Iterable[bytes], request: Request, shot: Shot) -> bool:
        """Faults that change when something happens, or when it is said to have happened."""
        fault = shot.fault
        is_late = isinstance(fault, Held | Latency) and not _waits_with_answer(fault)
        if is_late:
            self._injector.record(request, shot, applied=None, upstream=None)
            # The body is taken off the client at once, as a network does: it may be gone when the wait is over.
            if not isinstance(body, list):  # that of a deletion has been
                head, whole = self._with_whole_body(head)
                body = [whole]
            self._wait(shot)
        answer = self._ask(head, body, request)
        if isinstance(fault, Held) and fault.applied and not 200 <= answer.status < 300:
            self._injector.give_back(shot)
        elif isinstance(fault, Held | Latency) and not is_late:
            self._record(request, shot, answer)
            self._wait(shot)
        elif isinstance(fault, ClockSkew):
            self._record(request, shot, answer)
            answer = answer.replacing(b"Date", self._skewed(answer, fault.seconds))
        return self._pass_on(head, request, answer)

    def _wait(self, shot: Shot) -> None:
        """Waits as long as the fault says.

        Raises:
            ConnectionResetError: the gate was dropped.
        """
        if isinstance(shot.fault, Latency):
            self._proxy.pause(_delay_s(shot.fault, shot.draw))
        elif isinstance(shot.fault, Held) and not shot.fault.gate.enter():
            msg = "The test dropped what waited at the gate."
            raise ConnectionResetError(msg)

    def _damage(self, head: Head, body: Iterable[bytes], request: Request, shot: Shot) -> bool:
        """Faults that change an answer's body. Without a body worth changing they are given back."""
        answer = self._ask(head, body, request)
        framing = answer.answer_framing(head.words[0])
        if framing == 0 or not 200 <= answer.status < 300:
            self._injector.give_back(shot)
            return self._pass_on(head, request, answer)
        content = self._from_server().body(framing)
        if not content:
            self._injector.give_back(shot)
        else:
            self._record(request, shot, answer)
        answer = answer.without(b"transfer-encoding").replacing(b"Content-Length", str(len(content)).encode())
        if isinstance(shot.fault, Truncated) and content:
            self._client.send(answer.raw + content[: int(len(content) * shot.fault.part)])
            return False
        self._client.send(answer.raw + (_flipped(content, shot.draw) if content else b""))
        return answer.keeps_open

    def _refuse(self, head: Head, body: Iterable[bytes], request: Request, shot: Shot) -> bool:
        """Faults that keep the server's answer from the client."""
        fault = shot.fault
        answer = None
        if fault.reaches_server:
            answer = self._ask(head, body, request)
            self._from_server().body(answer.answer_framing(head.words[0]))
        else:
            self._continue(head)
            for _ in body:
                pass
        self._record(request, shot, answer)
        if isinstance(fault, Answer):
            return self._answer(head, fault.status, fault.code)
        if isinstance(fault, StaleAbsence):
            return self._answer(head, 404, "NoSuchKey")
        if isinstance(fault, Stalled):
            self._proxy.pause(fault.limit_s, until=lambda: not self._client.is_idle())
        elif isinstance(fault, Reset):
            self._client.reset()
        elif not isinstance(fault, LostAnswer | LostRequest):
            msg = f"The proxy does not know the fault {fault!r}; use those of brokerless.testing.faults."
            raise TypeError(msg)
        return False

    # Towards the server

    def _ask(self, head: Head, body: Iterable[bytes], request: Request) -> Head:
        """Sends the request and returns the head of the server's answer; its body is still to be read."""
        if self._upstream is not None and not self._upstream.is_idle():
            self._drop_upstream()  # the server closed it while nothing was on its way
        if self._upstream is None:
            self._upstream = self._proxy.connect()
        if self._proxy.stopped.is_set():
            msg = "The proxy was stopped before the request was sent."
            raise ConnectionResetError(msg)
        answer = self._transmit(self._upstream, head, body)
        if 200 <= answer.status < 300 and request.op in {"PUT", "CONDITIONAL_PUT"}:
            self._injector.written(request)
        return answer

    def _transmit(self, upstream: Wire, head: Head, body: Iterable[bytes]) -> Head:
        # The head and the first piece of the body travel together: one packet for most requests.
        waiting = head.raw
        if head.fields.get(b"expect", b"").lower() == b"100-continue":
            upstream.send(waiting)
            waiting = b""
            if select.select([upstream.socket], [], [], _CONTINUE_S)[0]:
                answer = self._head_of(upstream)
                if answer.status != HTTPStatus.CONTINUE:
                    return answer.replacing(b"Connection", b"close")  # refused: the body will not come
                self._client.send(answer.raw)
            else:
                self._client.send(_CONTINUE)
        try:
            for piece in body:
                upstream.send(waiting + piece)
                waiting = b""
            if waiting:
                upstream.send(waiting)
        except BrokenPipeError:
            pass  # a server may answer and close before it has read all of a body
        while (answer := self._head_of(upstream)).status < 200:
            pass
        return answer

    def _head_of(self, upstream: Wire) -> Head:
        answer = upstream.head()
        if answer is None:
            msg = "The server closed the connection instead of answering."
            raise ConnectionResetError(msg)
        return answer

    def _from_server(self) -> Wire:
        if self._upstream is None:
            msg = "The server closed the connection within its answer."
            raise ConnectionResetError(msg)
        return self._upstream

    def _drop_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.socket.close()
            self._upstream = None

    # Towards the client

    def _pass_on(self, head: Head, request: Request, answer: Head) -> bool:
        framing = answer.answer_framing(head.words[0])
        waiting = answer.raw
        for piece in self._from_server().pieces(framing):
            self._client.send(waiting + piece)
            waiting = b""
        if waiting:
            self._client.send(waiting)
        return framing != "close" and answer.keeps_open

    def _answer(self, head: Head, status: int, code: str) -> bool:
        """Answers as S3 does."""
        resource = html.escape(urlsplit(head.words[1].decode("latin-1")).path)
        text = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>'
            f"<Message>{_MESSAGES.get(code, 'Injected by the fault proxy.')}</Message>"
            f"<Resource>{resource}</Resource><RequestId>FAULTPROXY</RequestId></Error>"
        )
        return self._send(head, status, "application/xml", text.encode())

    def _send(self, head: Head, status: int, content_type: str, content: bytes) -> bool:
        lines = [
            f"HTTP/1.1 {status} {_reason(status)}",
            f"Date: {formatdate(self._proxy.clock.time_us() / 1e6, usegmt=True)}",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(content)}",
            "x-amz-request-id: FAULTPROXY",
        ]
        raw = "\r\n".join(lines).encode() + b"\r\n\r\n"
        self._client.send(raw if head.words[0] == b"HEAD" else raw + content)
        return True

    def _continue(self, head: Head) -> None:
        if head.fields.get(b"expect", b"").lower() == b"100-continue":
            self._client.send(_CONTINUE)

    def _with_whole_body(self, head: Head) -> tuple[Head, bytes]:
        """The request's body in one piece, and its head without what was about the pieces (no signature covers it)."""
        self._continue(head)
        framing = head.request_framing()
        content = self._client.body(framing)
        if b"expect" in head.fields:
            head = head.without(b"expect")
        if framing == "chunked":
            head = head.without(b"transfer-encoding").replacing(b"Content-Length", str(len(content)).encode())
        return head, content

    def _record(self, request: Request, shot: Shot, answer: Head | None) -> None:
        status = None if answer is None else answer.status
        applied = status is not None and 200 <= status < 300
        self._injector.record(request, shot, applied=applied, upstream=status)

    def _skewed(self, answer: Head, seconds: float) -> bytes:
        now_s = self._proxy.clock.time_us() / 1e6
        given = answer.fields.get(b"date")
        if given is not None:
            with contextlib.suppress(ValueError):
                now_s = parsedate_to_datetime(given.decode("latin-1")).timestamp()
        return formatdate(now_s + seconds, usegmt=True).encode()

    # Control

    def _control(self, head: Head, target: str) -> bool:
        self._continue(head)
        body = bytearray()
        size = 0
        # A body that is too long is read to its end all the same: closing on unread bytes would destroy the answer.
        for piece in self._client.pieces(head.request_framing()):
            size += len(piece)
            body += piece if size <= _CONTROL_BYTES else b""
        if size > _CONTROL_BYTES or b"transfer-encoding" in head.fields:
            message = f"At most {_CONTROL_BYTES} bytes, and not in chunks."
            return self._send(head, 413, "application/json", _json({"error": message}))
        parts = urlsplit(target)
        method, what = head.words[0].decode("latin-1"), parts.path.removeprefix(CONTROL)
        try:
            if what == "log" and method == "GET":
                after = parse_qs(parts.query).get("after", ["0"])[0]
                lines = self._injector.log(int(after) if after.isdigit() else 0)
                text = "".join(line.to_json() + "\n" for line in lines)
                return self._send(head, 200, "application/x-ndjson", text.encode())
            value = self._controlled(method, what, bytes(body))
        except ConfigError as error:
            return self._send(head, 400, "application/json", _json({"error": str(error)}))
        if value is None:
            known = "GET, PUT, POST, DELETE /_proxy/rules; GET /_proxy/log; GET /_proxy/counters"
            message = f"{method} {parts.path} is unknown; there are {known}."
            return self._send(head, 404, "application/json", _json({"error": message}))
        return self._send(head, 200, "application/json", _json(value))

    def _controlled(self, method: str, what: str, body: bytes) -> dict[str, Any] | None:
        if what == "counters" and method == "GET":
            return {"requests": dict(self._injector.requests), "faults": dict(self._injector.faults)}
        if what != "rules" or method not in {"GET", "PUT", "POST", "DELETE"}:
            return None
        if method == "PUT":
            self._injector.play(plans_from_json(body))
        elif method == "POST":
            plans = plans_from_json(body)
            if not all(isinstance(plan, Script) for plan in plans):
                msg = "Only rules can be added; PUT replaces everything, chaos included."
                raise ConfigError(msg)
            self._injector.add([rule for plan in plans if isinstance(plan, Script) for rule in plan.rules])
        elif method == "DELETE":
            self._injector.play(())
        return self._injector.plans()


_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def request_of(head: Head, target: str) -> Request:
    """What kind of S3 request it is, and of which object. Path-style addresses, as local servers use them."""
    parts = urlsplit(target)
    method = head.words[0].decode("latin-1")
    query = parse_qs(parts.query, keep_blank_values=True)
    bucket, _, name = unquote(parts.path).lstrip("/").partition("/")
    if method == "POST" and "delete" in query:
        return Request("DELETE", ())
    if not bucket or not name:
        is_list = method == "GET" and bool(bucket) and not _SUBRESOURCES & query.keys()
        return Request("LIST", (query.get("prefix", [""])[0],)) if is_list else Request("OTHER", ())
    op: Op = "OTHER"
    if "uploadId" in query or "uploads" in query:
        op = "MULTIPART"
    elif _SUBRESOURCES & query.keys():
        op = "OTHER"
    elif method == "PUT":
        op = "CONDITIONAL_PUT" if {b"if-none-match", b"if-match"} & head.fields.keys() else "PUT"
    elif method == "GET":
        op = "GET"
    elif method == "HEAD":
        op = "HEAD"
    elif method == "DELETE":
        op = "DELETE"
    return Request(op, (name,))


def _address(upstream: str) -> tuple[str, int]:
    try:
        parts = urlsplit(upstream)
        port = parts.port or 80
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        msg = (
            f"The upstream {upstream!r} must be http://host:port. A server behind TLS would refuse what its clients "
            "have signed for the proxy's address."
        )
        raise ConfigError(msg)
    return parts.hostname, port


def _keys_of(body: bytes) -> tuple[str, ...]:
    """The keys in the body of a deletion of many objects."""
    found = re.findall(r"<Key>(.*?)</Key>", body.decode("utf-8", "replace"), re.DOTALL)
    return tuple(html.unescape(key) for key in found)


def _waits_with_answer(fault: Held | Latency) -> bool:
    return fault.applied if isinstance(fault, Held) else fault.where == "answer"


def _delay_s(fault: Latency, draw: float) -> float:
    return fault.seconds - fault.tail_s * log1p(-draw)


def _flipped(content: bytes, draw: float) -> bytes:
    """The content with one bit changed."""
    place, bit = divmod(int(draw * len(content) * 8), 8)
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    return bytes(changed)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Injected"


def _json(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
