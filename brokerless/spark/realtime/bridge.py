"""The threads between the logs and the lanes: rows to the JVM, transformed rows back, with bounded memory.

One thread looks for commits, one feeds the lanes, one packs and uploads, one commits; each lane has two, for its two
sockets. Each waits for the next one: a slow commit stops the packing, then the lanes, then the feeding, so that memory
stays bounded by ``IN_FLIGHT_BYTES`` and a commit.
"""

from __future__ import annotations

import contextlib
import io
import queue
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from brokerless.errors import BrokerlessError, PipelineError
from brokerless.spark.realtime import frames
from brokerless.spark.realtime.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from brokerless.spark.progress import Position
    from brokerless.spark.realtime.feed import Feed, Piece
    from brokerless.spark.realtime.packer import Committed, Pack, Packer

IN_FLIGHT_BYTES: Final = 96 * 2**20
"""How many bytes of messages may be on their way from the feed to the output's log, soft by one commit."""

CHUNK_ROWS: Final = 32_768
_QUEUED_CHUNKS: Final = 4
_PACKS: Final = 4
_WAIT_S: Final = 0.5
_SETTLE_S: Final = 60.0


class Bridge:
    """The lanes of one run, from its sockets to its end.

    Args:
        lanes: the number of tasks.
        interval_s: the shortest time between two commits; the first one after a pause does not wait.
        application: Spark's application id.
        network: as for ``Listener``.

    Raises:
        OSError: the sockets cannot be made.
    """

    def __init__(
        self, *, lanes: int, interval_s: float, application: str = "", network: tuple[str, str] | None = None
    ) -> None:
        self.lanes = lanes
        self.application = application
        self.error: BrokerlessError | None = None
        self.is_done = False
        self.ended = threading.Event()  # by an error, or because all is done
        self._interval_s = interval_s
        self._begin = threading.Event()
        self._closing = False
        self._chunks: list[queue.Queue[tuple[int, pa.RecordBatch]]] = [
            queue.Queue(_QUEUED_CHUNKS) for _ in range(lanes)
        ]
        self._given = [0] * lanes  # rows to each lane that were not given back
        self._rows_of: dict[int, tuple[int, int]] = {}
        self._uploaded: deque[Pack] = deque()
        self._handing = threading.Condition()
        self._schema: pa.Schema | None = None
        self._draining = False
        self._let_in: Position = {}  # the last commit of each input that goes to the lanes whole
        self._feed: Feed | None = None
        self._packer: Packer
        self._report: Callable[[Committed], None]
        self.listener = Listener(lanes, network)
        self.listener.start(
            {
                "in": lambda connection, lane: self._start(self._send, connection, lane, name=f"brokerless-in-{lane}"),
                "out": lambda connection, lane: self._start(
                    self._receive, connection, lane, name=f"brokerless-out-{lane}"
                ),
            }
        )

    def begin(self, feed: Feed, packer: Packer, schema: pa.Schema, report: Callable[[Committed], None]) -> None:
        """Start to read, which must not be before Spark's plan is known to hold no rows back."""
        self._feed, self._packer, self._schema, self._report = feed, packer, schema, report
        self._start(self._watch, feed, name="brokerless-watch")
        self._start(self._give, feed, name="brokerless-give")
        self._start(self._pack, name="brokerless-pack")
        self._start(self._commit, feed, name="brokerless-commit")
        self._begin.set()

    def end(self) -> None:
        """Let no thread begin anything more; errors are ignored from here on."""
        self._closing = True
        self.ended.set()
        self._begin.set()

    def close(self, *, error: BrokerlessError | None = None) -> None:
        """End all threads and lanes, and with the lanes their tasks."""
        if error is not None and self.error is None:
            self.error = error
        self.end()
        self.listener.close()
        if self._feed is not None:
            self._feed.close()

    def drain(self, timeout_s: float) -> None:
        """Read nothing more, and wait until what was read is committed."""
        self._draining = True
        if self._feed is not None:
            self._settle(timeout_s)

    def _settle(self, timeout_s: float) -> None:
        """Wait until all commits that were read completely are committed; the rest of the others is not read."""
        deadline = time.monotonic() + timeout_s
        while not self.ended.is_set() and time.monotonic() < deadline:
            at = self._packer.committed.at
            if all(at[table] >= version for table, version in dict(self._let_in).items()):
                return
            with self._packer.changed:
                self._packer.changed.wait(0.05)

    def _start(self, work: Callable[..., None], *args: object, name: str) -> None:
        def run() -> None:
            try:
                work(*args)
            except BaseException as error:  # also a panic of a library in Rust
                if not self._closing:
                    if not isinstance(error, BrokerlessError):
                        error = PipelineError(f"{type(error).__name__}: {error}")
                    self.close(error=error)

        threading.Thread(target=run, name=name, daemon=True).start()

    # Sockets

    def _send(self, connection: socket.socket, lane: int) -> None:
        self._begin.wait()
        if self._schema is None:
            return
        chunks = self._chunks[lane]
        try:
            frames.send(connection, frames.schema_frame(self._schema))
            while not self._closing:
                with contextlib.suppress(queue.Empty):
                    frames.send(connection, frames.chunk_frame(*chunks.get(timeout=_WAIT_S)))
        except OSError:
            return  # its other socket ends, too, and there is a reason for it that says more than "broken pipe"

    def _receive(self, connection: socket.socket, lane: int) -> None:
        try:
            with io.BufferedReader(socket.SocketIO(connection, "r"), 2**18) as stream:
                reader = frames.Frames(stream)
                while frame := reader.read():
                    self._packer.deliver(lane, frame.rows, frame.marks)
                    for number, _ in frame.marks:
                        self._given[lane] -= self._rows_of.pop(number)[1]
                    with self._packer.changed:
                        while self._packer.is_full(lane) and not self._closing:
                            self._packer.changed.wait(_WAIT_S)
        except (EOFError, OSError) as error:
            if not self._closing:
                raise PipelineError(f"Spark's task for lane {lane} broke off: {type(error).__name__}.") from error
        # The task's end has a reason that Spark knows better; whoever waits for the query says it.
        self.ended.set()

    # From the logs to the lanes

    def _watch(self, feed: Feed) -> None:
        while not self.ended.is_set():
            due_s = feed.look()
            if self._draining:
                return
            if due_s > 0:
                self.ended.wait(min(due_s, _WAIT_S))

    def _give(self, feed: Feed) -> None:
        while not self._closing and not self._draining:
            with self._packer.changed:
                while self._packer.size > IN_FLIGHT_BYTES and not self._closing:
                    self._packer.changed.wait(_WAIT_S)
            try:
                piece = feed.next(_WAIT_S)
            except BrokerlessError:
                self._settle(_SETTLE_S)  # or each run would end before it has committed what it could read
                raise
            if piece is None:
                if feed.is_over():
                    self.is_done = True
                    self.ended.set()
                    return
                continue
            if piece.last:
                self._let_in[piece.table] = piece.version
            if piece.rows is None:
                self._packer.expect(0, 0, lane=None, table=piece.table, version=piece.version, last=piece.last)
            else:
                self._give_rows(piece.rows, piece)

    def _give_rows(self, table: pa.Table, piece: Piece) -> None:
        chunks = [
            part
            for batch in table.combine_chunks().to_batches()
            for part in (batch.slice(at, CHUNK_ROWS) for at in range(0, batch.num_rows, CHUNK_ROWS))
        ]
        for n, rows in enumerate(chunks):
            last = piece.last and n == len(chunks) - 1
            lane = min(range(self.lanes), key=self._given.__getitem__)
            number = self._packer.expect(
                rows.num_rows, rows.nbytes, lane=lane, table=piece.table, version=piece.version, last=last
            )
            self._rows_of[number] = lane, rows.num_rows
            self._given[lane] += rows.num_rows
            self._put(lane, number, rows)

    def _put(self, lane: int, number: int, rows: pa.RecordBatch) -> None:
        while not self._closing:
            with contextlib.suppress(queue.Full):
                self._chunks[lane].put((number, rows), timeout=_WAIT_S)
                return

    # From the lanes to the output

    def _pack(self) -> None:
        next_at = 0.0
        while not self.ended.is_set():
            with self._packer.changed:
                while not self._packer.is_ready() and not self.ended.is_set():
                    self._packer.changed.wait(_WAIT_S)
            if self.ended.wait(max(0.0, next_at - time.monotonic())):
                return
            if (pack := self._packer.next_pack()) is None:
                with self._packer.changed:
                    self._packer.changed.wait(0.01)
                continue
            next_at = time.monotonic() + self._interval_s
            self._packer.upload(pack)
            with self._handing:
                while len(self._uploaded) >= _PACKS and not self._closing:
                    self._handing.wait(_WAIT_S)
                self._uploaded.append(pack)
                self._handing.notify_all()

    def _commit(self, feed: Feed) -> None:
        while not self._closing:
            with self._handing:
                while not self._uploaded and not self._closing:
                    self._handing.wait(_WAIT_S)
                packs = list(self._uploaded)
                self._uploaded.clear()
                self._handing.notify_all()
            if packs and not self._closing and (committed := self._packer.commit(packs)) is not None:
                self._report(committed)
                feed.wake()
