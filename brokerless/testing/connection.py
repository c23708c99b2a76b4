"""One client's connection to a fault proxy, and the proxy's to the server for it: what each fault does to a request."""

from __future__ import annotations

import contextlib
import select
import socket
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from math import log1p
from typing import TYPE_CHECKING, Final

from brokerless.cost.bill import request_kind
from brokerless.testing.faults import (
    Answer,
    ClockSkew,
    Corrupted,
    Held,
    Latency,
    LostAnswer,
    LostRequest,
    Reset,
    StaleAbsence,
    Stalled,
    Truncated,
)
from brokerless.testing.injector import Request, Shot
from brokerless.testing.s3 import error_xml, keys_of, request_of
from brokerless.testing.wire import Head, Wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokerless.testing.proxy import FaultProxy

_CONTINUE_S: Final = 1.0  # a server that does not know "Expect: 100-continue" says nothing; then the body is sent
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection:
    """A client's connection with its own connection to the server."""

    def __init__(self, proxy: FaultProxy, accepted: socket.socket) -> None:
        self._proxy = proxy
        self._injector = proxy.injector
        self._client = Wire(accepted)
        self._upstream: Wire | None = None

    def serve(self) -> None:
        """Handle requests until either side closes or a fault breaks the connection."""
        try:
            while (head := self._client.head()) is not None:
                target = head.words[1].decode("latin-1")
                if not (self._exchange(head, target) and head.keeps_open):
                    break
        except OSError:
            pass  # one side broke the connection, so the other must see a broken one, too
        finally:
            self.abort()
            self._client.socket.close()
            self._drop_upstream()

    def abort(self) -> None:
        """Interrupt all reads and writes; other threads call it too."""
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
            request, body = Request("DELETE", keys_of(whole)), [whole]
        shot = self._injector.draw(request)
        if shot is None:
            return self._pass_on(head, request, self._ask(head, body, request))
        fault = shot.fault
        if isinstance(fault, Latency | Held | ClockSkew):
            return self._delay(head, body, request, shot)
        if isinstance(fault, Truncated | Corrupted):
            return self._damage(head, body, request, shot)
        return self._refuse(head, body, request, shot)

    def _delay(self, head: Head, body: Iterable[bytes], request: Request, shot: Shot) -> bool:
        """Apply a fault that changes a time: of the request, or in the answer."""
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
        """Wait for the time of the fault.

        Raises:
            ConnectionResetError: the gate was dropped.
        """
        if isinstance(shot.fault, Latency):
            self._proxy.pause(_delay_s(shot.fault, shot.draw))
        elif isinstance(shot.fault, Held) and not shot.fault.gate.enter():
            raise ConnectionResetError("The test dropped what waited at the gate.")

    def _damage(self, head: Head, body: Iterable[bytes], request: Request, shot: Shot) -> bool:
        """Apply a fault that changes an answer's body, or undo its draw if there is no such body."""
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
        """Apply a fault that withholds the server's answer from the client."""
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
            raise TypeError(f"The proxy does not know the fault {fault!r}; use those of brokerless.testing.faults.")
        return False

    # Towards the server

    def _ask(self, head: Head, body: Iterable[bytes], request: Request) -> Head:
        """Send the request and return the head of the server's answer; its body is not read yet."""
        if self._upstream is not None and not self._upstream.is_idle():
            self._drop_upstream()  # the server closed it while nothing was on its way
        if self._upstream is None:
            self._upstream = self._proxy.connect()
        if self._proxy.stopped.is_set():
            raise ConnectionResetError("The proxy was stopped before the request was sent.")
        answer = self._transmit(self._upstream, head, body)
        method, target, _ = head.words
        billed = request_kind(method.decode("latin-1"), target.decode("latin-1"), answer.status)
        self._injector.answer(request, billed, answer.status)
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
            raise ConnectionResetError("The server closed the connection instead of answering.")
        return answer

    def _from_server(self) -> Wire:
        if self._upstream is None:
            raise ConnectionResetError("The server closed the connection within its answer.")
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
        """Send an answer in the form of S3."""
        return self._send(head, status, "application/xml", error_xml(code, head.words[1].decode("latin-1")))

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
        """Return the request's body in one piece, and its head without the headers of chunks, which are not signed."""
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


def _waits_with_answer(fault: Held | Latency) -> bool:
    return fault.applied if isinstance(fault, Held) else fault.where == "answer"


def _delay_s(fault: Latency, draw: float) -> float:
    return fault.seconds - fault.tail_s * log1p(-draw)


def _flipped(content: bytes, draw: float) -> bytes:
    """Return the content with one bit changed."""
    position, bit = divmod(int(draw * len(content) * 8), 8)
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    return bytes(changed)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Injected"
