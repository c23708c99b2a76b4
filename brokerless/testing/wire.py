"""HTTP/1.1 on a socket, as little as a proxy needs: heads are passed on byte for byte, because signatures cover them.

Python's own server and client would parse and rebuild each header; besides being three times slower, they change what
S3 clients have signed and cannot break an answer in the middle.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

Framing = int | Literal["chunked", "close"]
"""The end of a body: after a number of bytes, with its last chunk, or with the connection."""

_PIECE_BYTES: Final = 256 * 1024
_HEAD_BYTES: Final = 64 * 1024


class ProtocolError(ConnectionError):
    """The peer sent something that is not HTTP/1.1, or closed in the middle of a message."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first line and the headers of a request or an answer.

    Attributes:
        raw: as received, with the blank line.
        words: the three parts of the first line.
        fields: headers by lower-case name; of repeated ones the last.
    """

    raw: bytes
    words: tuple[bytes, bytes, bytes]
    fields: dict[bytes, bytes]

    @property
    def status(self) -> int:
        """An answer's status."""
        return int(self.words[1])

    @property
    def keeps_open(self) -> bool:
        """Whether the sender will use the connection again."""
        connection = self.fields.get(b"connection", b"").lower()
        if b"HTTP/1.0" in {self.words[0], self.words[2]}:
            return connection == b"keep-alive"
        return connection != b"close"

    def request_framing(self) -> Framing:
        """Return how the body of this request ends."""
        return self._framing(0)

    def answer_framing(self, method: bytes) -> Framing:
        """Return how the body of this answer to a request with ``method`` ends."""
        if method == b"HEAD" or self.status < 200 or self.status in {204, 304}:
            return 0
        return self._framing("close")

    def replacing(self, name: bytes, value: bytes) -> Head:
        """Return the same head with another value of a header, which is added if it is missing."""
        first, *rest = self.raw[:-4].split(b"\r\n")
        others = [line for line in rest if line.partition(b":")[0].lower() != name.lower()]
        raw = b"\r\n".join([first, *others, name + b": " + value]) + b"\r\n\r\n"
        return Head(raw, self.words, {**self.fields, name.lower(): value})

    def without(self, name: bytes) -> Head:
        """Return the same head without a header."""
        lines = [line for line in self.raw[:-4].split(b"\r\n") if line.partition(b":")[0].lower() != name.lower()]
        return Head(b"\r\n".join(lines) + b"\r\n\r\n", self.words, {k: v for k, v in self.fields.items() if k != name})

    def _framing(self, otherwise: Framing) -> Framing:
        if b"chunked" in self.fields.get(b"transfer-encoding", b"").lower():
            return "chunked"
        length = self.fields.get(b"content-length")
        if length is None:
            return otherwise
        if not length.isdigit():
            raise ProtocolError(f"Content-Length is {length!r}, which is not a number.")
        return int(length)


class Wire:
    """A connected socket with a buffer of bytes that were read ahead."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self._buffer = bytearray()

    def send(self, data: bytes) -> None:
        """Send all data."""
        self.socket.sendall(data)

    def head(self) -> Head | None:
        """Read the next head; None if the peer closed the connection before it.

        Raises:
            ProtocolError: not HTTP/1.1, too long, or closed in the middle.
        """
        searched = 0
        while (end := self._buffer.find(b"\r\n\r\n", searched)) < 0:
            searched = max(0, len(self._buffer) - 3)
            if len(self._buffer) > _HEAD_BYTES:
                raise ProtocolError(f"A head of more than {_HEAD_BYTES} bytes.")
            if not self._fill():
                if self._buffer:
                    raise ProtocolError("The connection was closed within a head.")
                return None
        return _parse(self._take(end + 4))

    def pieces(self, framing: Framing) -> Iterator[bytes]:
        """Read the body in pieces as they arrive, with the frames of chunks if it has any.

        Raises:
            ProtocolError: it was cut off.
        """
        if framing == "chunked":
            yield from self._chunked()
            return
        if framing == "close":
            while self._buffer or self._fill():
                yield self._take(len(self._buffer))
            return
        left = framing
        while left:
            self._need(1)
            piece = self._take(min(left, len(self._buffer)))
            left -= len(piece)
            yield piece

    def body(self, framing: Framing) -> bytes:
        """Read the whole body, without the frames of chunks."""
        raw = b"".join(self.pieces(framing))
        return _unchunked(raw) if framing == "chunked" else raw

    def is_idle(self) -> bool:
        """Whether the peer has neither sent anything nor closed."""
        if self._buffer:
            return False
        try:
            self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def reset(self) -> None:
        """Close with a TCP RST, so that the peer sees a broken connection."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _chunked(self) -> Iterator[bytes]:
        while True:
            line = self._line()
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:
                raise ProtocolError(f"A chunk's size is {line!r}, which is not a number.") from None
            if size == 0:
                break
            yield line
            yield from self.pieces(size + 2)
        trailer = [line]
        while trailer[-1] != b"\r\n":
            trailer.append(self._line())
        yield b"".join(trailer)

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._need(len(self._buffer) + 1)
        return self._take(end + 2)

    def _need(self, size: int) -> None:
        while len(self._buffer) < size:
            if not self._fill():
                raise ProtocolError("The connection was closed within a body.")

    def _fill(self) -> bool:
        data = self.socket.recv(_PIECE_BYTES)
        self._buffer += data
        return bool(data)

    def _take(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data


def _parse(raw: bytes) -> Head:
    first, *lines = raw[:-4].split(b"\r\n")
    words = first.split(b" ", 2)
    if len(words) == 2:
        words.append(b"")  # an answer without a reason
    if len(words) != 3 or not (words[0].startswith(b"HTTP/1.") or words[2].startswith(b"HTTP/1.")):
        raise ProtocolError(f"Not HTTP/1.1: {first[:100]!r}.")
    fields = {}
    for line in lines:
        name, _, value = line.partition(b":")
        fields[name.lower()] = value.strip()
    return Head(raw, (words[0], words[1], words[2]), fields)


def _unchunked(raw: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        end = raw.index(b"\r\n", at)
        size = int(raw[at:end].split(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(raw[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
