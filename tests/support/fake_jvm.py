"""The other end of a bridge without Spark: lanes that speak its frames, and do what no JVM should."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_IN = struct.Struct("<B3xIQ")
_OUT = struct.Struct("<B3xIIIQ")
_MARK = struct.Struct("<QQ")


@dataclass(slots=True)
class FakeJvm:
    """As ``java/brokerless/realtime/Bridge.java``, a thread a lane.

    Attributes:
        options: of the bridge's listener.
        lanes: how many.
        transform: what becomes of a chunk's rows.
        frame_rows: a frame goes out with so many rows, or when nothing more waits to come in.
        delay_s: how long each lane takes for a chunk.
        dies_at: the chunk whose mark is in a frame that is not sent whole, and how much of it is: its first bytes, none
            of it, or none and the chunk's number changed in all of it (``wrong``).
        holds: lanes whose frames go out only once ``gate`` is set.
    """

    options: Mapping[str, str]
    lanes: int
    transform: Callable[[pa.RecordBatch], pa.RecordBatch]
    frame_rows: int = 16_384
    delay_s: Mapping[int, float] = field(default_factory=dict)
    dies_at: tuple[int, str] | None = None
    holds: frozenset[int] = frozenset()
    gate: threading.Event = field(default_factory=threading.Event)
    chunks: dict[int, list[int]] = field(default_factory=dict)
    """The numbers of the chunks that each lane was given."""
    _threads: list[threading.Thread] = field(default_factory=list)
    _sockets: list[socket.socket] = field(default_factory=list)

    def start(self) -> FakeJvm:
        """Connects all lanes."""
        for lane in range(self.lanes):
            back, into = self._connect("out", lane), self._connect("in", lane)
            self.chunks[lane] = []
            self._threads.append(threading.Thread(target=self._lane, args=(lane, into, back), daemon=True))
            self._threads[-1].start()
        return self

    def join(self, timeout_s: float = 5.0) -> bool:
        """Whether all lanes ended in time."""
        self.gate.set()
        for thread in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    def _connect(self, side: str, lane: int) -> socket.socket:
        address = self.options[side]
        if address.startswith("/"):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(address)
        else:
            host, _, port = address.rpartition(":")
            connection = socket.create_connection((host, int(port)))
        connection.sendall(bytes.fromhex(self.options["token"]) + lane.to_bytes(4, "little"))
        return connection

    def _lane(self, lane: int, into: socket.socket, back: socket.socket) -> None:
        with into, back:
            try:
                self._run(lane, into, back)
            except (OSError, EOFError):
                for connection in (into, back):  # the bridge ended, or this lane died
                    connection.close()

    def _run(self, lane: int, into: socket.socket, back: socket.socket) -> None:
        schema, told = None, False
        made: list[pa.RecordBatch] = []
        marks: list[tuple[int, int]] = []
        while True:
            if marks and not select.select([into], [], [], 0)[0]:
                self._send(lane, back, made, marks)
            kind, _, number = _IN.unpack(_exactly(into, _IN.size))
            message = pa.ipc.read_message(pa.PythonFile(_Exact(into), "r"))
            if kind == ord("S"):
                schema = pa.ipc.read_schema(message)
                continue
            self.chunks[lane].append(number)
            time.sleep(self.delay_s.get(lane, 0.0))
            rows = self.transform(pa.ipc.read_record_batch(message, schema))
            if not told:
                data = rows.schema.serialize()
                back.sendall(_OUT.pack(ord("S"), 0, 0, 0, len(data)) + data.to_pybytes())
                told = True
            for begin in range(0, rows.num_rows, self.frame_rows):
                made.append(rows.slice(begin, self.frame_rows))
                if sum(part.num_rows for part in made) >= self.frame_rows:
                    self._send(lane, back, made, marks)
            marks.append((number, sum(part.num_rows for part in made)))

    def _send(self, lane: int, back: socket.socket, made: list[pa.RecordBatch], marks: list[tuple[int, int]]) -> None:
        rows = pa.Table.from_batches(made).combine_chunks().to_batches()[0] if made else None
        data = rows.serialize().to_pybytes() if rows is not None else b""
        if lane in self.holds:
            self.gate.wait()
        dies, how = self.dies_at or (-1, "")
        last = any(number == dies for number, _ in marks)
        told = [(number + 1000 if last and how == "wrong" else number, end) for number, end in marks]
        head = _OUT.pack(ord("B"), len(marks), rows.num_rows if rows is not None else 0, 0, len(data))
        frame = head + b"".join(_MARK.pack(*mark) for mark in told) + data
        if last and how != "wrong":
            back.sendall(frame[: len(frame) * 2 // 3] if how == "within a frame" else b"")
            raise EOFError
        back.sendall(frame)
        made.clear()
        marks.clear()


class _Exact:
    """A socket as a file of which no more is read than is asked for: Arrow's messages say how long they are."""

    closed = False

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def read(self, size: int) -> bytes:
        """So many bytes."""
        return _exactly(self._connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not (got := connection.recv(size - len(data))):
            raise EOFError
        data += got
    return bytes(data)
