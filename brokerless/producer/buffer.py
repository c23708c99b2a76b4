"""Calls that wait for a producer's sender thread, and how each of them is settled in the end."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from brokerless.errors import BrokerlessError, BufferFull, CommitUnknown, DeliveryFailed, ProducerFenced, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arro3.core import Table

    from brokerless.clock import Clock
    from brokerless.offsets import Ack
    from brokerless.producer.producer import Producer


class Delivery(Future["tuple[Ack, ...]"]):
    """A future that knows whether its outcome was given to a callback."""

    watched = False

    def add_done_callback(self, fn: Callable[[Future[tuple[Ack, ...]]], object]) -> None:
        """Attach a callback, as ``Future.add_done_callback``."""
        self.watched = True
        super().add_done_callback(fn)


@dataclass(slots=True)
class Call:
    """The messages of one ``send`` or ``enqueue``, cut by partition (None: any), with their row numbers."""

    table: Table
    parts: dict[int | None, tuple[Table, Sequence[int]]]
    owner: Producer
    """Held until the call is settled, so that a producer that nobody else holds still sends it."""
    future: Delivery = field(default_factory=Delivery)
    acks: list[Ack] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    errors: list[BrokerlessError] = field(default_factory=list)
    at: float = 0.0
    """When it was taken, on the monotonic clock."""

    def __post_init__(self) -> None:
        # What is buffered cannot be called back; a cancelled future would break the sender when it is settled.
        self.future.set_running_or_notify_cancel()

    @property
    def nbytes(self) -> int:
        """Of Arrow memory."""
        return int(self.table.nbytes)

    def fail(self, error: BrokerlessError, rows: Sequence[int]) -> None:
        """Notes that these rows are not acknowledged, and why."""
        self.errors.append(error)
        self.failed.extend(rows)

    def settle(self, topic: str) -> None:
        """Gives the future its result or its error, from what was noted."""
        final = next((e for e in self.errors if isinstance(e, ProducerFenced | UsageError)), None)
        unknown = any(isinstance(error, CommitUnknown) for error in self.errors)
        if not self.errors:
            self.future.set_result(tuple(self.acks))
        elif final is not None and not self.acks and not unknown:
            self.future.set_exception(final)  # the same for all messages: none of them will ever be in the log
        else:
            failure = DeliveryFailed(
                f"{len(self.failed)} of {self.table.num_rows} messages for {topic!r} are not acknowledged"
                f"{' and may or may not appear later' if unknown else '; they are not in the log'}: {self.errors[0]}",
                acknowledged=self.acks,
                unacknowledged=sorted(self.failed),
                unknown=unknown,
            )
            failure.__cause__ = self.errors[0]
            self.future.set_exception(failure)


class Buffer:
    """Calls that wait for the sender: bounded by bytes, cut into batches by time, rows and bytes."""

    def __init__(self, linger_s: float, batch_rows: int, batch_bytes: int, buffer_bytes: int) -> None:
        self._linger_s, self._rows, self._bytes, self._limit = linger_s, batch_rows, batch_bytes, buffer_bytes
        self._calls: deque[Call] = deque()
        self._held = 0  # bytes waiting or being committed
        self._waiting_rows = self._waiting_bytes = 0
        self._taken_in = self._settled = 0  # calls, ever; they are settled in their order
        self._unsettled: deque[Call] = deque()
        self._flushing = 0
        self.closed = False
        self._change = threading.Condition()

    def put(self, call: Call, max_block_s: float) -> None:
        """Takes a call in; waits so long while there is no room for it.

        Raises:
            BufferFull: there was none in this time.
            BrokerlessError: the buffer is closed.
        """
        with self._change:
            # A call larger than the whole buffer passes when it is alone.
            fits = self._change.wait_for(
                lambda: self.closed or not self._held or self._held + call.nbytes <= self._limit,
                min(max_block_s, threading.TIMEOUT_MAX),
            )
            if self.closed:
                raise BrokerlessError("The producer is closed.")
            if not fits:
                raise BufferFull(
                    f"{self._held} bytes wait to be committed and did not drain within {max_block_s} s; "
                    "send more slowly, or raise buffer_bytes."
                )
            self._calls.append(call)
            self._unsettled.append(call)
            self._held += call.nbytes
            self._waiting_rows += call.table.num_rows
            self._waiting_bytes += call.nbytes
            self._taken_in += 1
            self._change.notify_all()

    def next_batch(self, clock: Clock) -> list[Call]:
        """Wait for the next batch and return it; an empty list when closed and empty."""
        with self._change:
            self._change.wait_for(lambda: self._calls or self.closed)
            if not self._calls:
                return []
            while not (self.closed or self._flushing or self._full()):
                left = self._calls[0].at + self._linger_s - clock.monotonic()
                if left <= 0:
                    break
                self._change.wait(min(left, threading.TIMEOUT_MAX))
            batch: list[Call] = []
            rows = size = 0
            while self._calls:
                call = self._calls[0]
                if batch and (rows + call.table.num_rows > self._rows or size + call.nbytes > self._bytes):
                    break
                batch.append(self._calls.popleft())
                rows, size = rows + call.table.num_rows, size + call.nbytes
            self._waiting_rows -= rows
            self._waiting_bytes -= size
            return batch

    def _full(self) -> bool:
        return self._waiting_rows >= self._rows or self._waiting_bytes >= self._bytes

    def done(self, calls: Sequence[Call]) -> None:
        """Gives back the room of calls that were taken and are settled."""
        with self._change:
            self._held -= sum(call.nbytes for call in calls)
            self._settled += len(calls)
            for _ in calls:
                self._unsettled.popleft()
            self._change.notify_all()

    def flush(self, timeout_s: float | None) -> bool:
        """Waits until every call that is in has been settled; False if that took longer than this."""
        with self._change:
            self._flushing += 1
            wait_s = None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
            until = self._taken_in  # not "until empty": others may go on enqueueing for ever
            self._change.notify_all()
            try:
                return self._change.wait_for(lambda: self._settled >= until, wait_s)
            finally:
                self._flushing -= 1

    def unsettled(self) -> list[Call]:
        """The calls that are in and have neither result nor error yet."""
        with self._change:
            return list(self._unsettled)

    def close(self) -> None:
        """Takes nothing more in; what is in can still be taken."""
        with self._change:
            self.closed = True
            self._change.notify_all()
