"""Frames on the two sockets of a lane; ``java/brokerless/realtime/Bridge.java`` has the other end and the format.

In, to the JVM: the rows' schema, then chunks of rows, each with its number. Out: the transformed rows, with a mark for
each chunk after the last row that was made of it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    import socket
    from io import BufferedReader

_IN: Final = struct.Struct("<B3xIQ")
_OUT: Final = struct.Struct("<B3xIIIQ")
_MARK: Final = struct.Struct("<QQ")
_BUFFER: Final = 2**20


@dataclass(frozen=True, slots=True)
class Out:
    """A frame from the JVM: transformed rows, and marks as for ``Packer.deliver``."""

    rows: pa.RecordBatch | None
    marks: list[tuple[int, int]]


def schema_frame(schema: pa.Schema) -> list[bytes | pa.Buffer]:
    """Return the first frame, with the schema of all chunks."""
    return [_IN.pack(ord("S"), 0, 0), schema.serialize()]


def chunk_frame(number: int, rows: pa.RecordBatch) -> list[bytes | pa.Buffer]:
    """Return the frame of a chunk, which has at least one row."""
    return [_IN.pack(ord("B"), rows.num_rows, number), rows.serialize()]


def send(connection: socket.socket, frame: list[bytes | pa.Buffer]) -> None:
    """Send all of a frame."""
    for part in frame:
        connection.sendall(part)


def widen(connection: socket.socket) -> None:
    """Enlarge a socket's buffers to a frame or two, so that neither side waits for each part of the other."""
    import socket

    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER)


class Frames:
    """A reader of the frames that a lane returns."""

    def __init__(self, stream: BufferedReader[Any]) -> None:
        self._stream = stream
        self._schema: pa.Schema | None = None

    def read(self) -> Out | None:
        """Return the next frame; None if the lane has ended.

        Raises:
            EOFError: it ended within a frame.
        """
        while head := self._stream.read(_OUT.size):
            if len(head) < _OUT.size:
                raise EOFError
            kind, count, rows, _, length = _OUT.unpack(head)
            marks = [_MARK.unpack(self._exactly(_MARK.size)) for _ in range(count)]
            payload = pa.py_buffer(self._exactly(length))
            if kind == ord("S"):
                self._schema = pa.ipc.read_schema(payload)
                continue
            return Out(pa.ipc.read_record_batch(payload, self._schema) if rows else None, marks)
        return None

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            got = self._stream.readinto(view[done:])
            if not got:
                raise EOFError
            done += got
        return data
