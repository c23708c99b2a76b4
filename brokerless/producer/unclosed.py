"""Producers that nobody closes: what they hold is committed, or it is said what is lost.

Calls hold their producer until they are settled, and its thread holds only its buffer: a producer that was dropped
commits what it has, and then it goes, and its thread with it.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from typing import TYPE_CHECKING, Final
from weakref import WeakSet, finalize

from brokerless.forks import is_copy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerless.clock import Clock
    from brokerless.producer.buffer import Buffer, Call
    from brokerless.producer.producer import Producer

END_S: Final = 10.0
"""How long the end of a program may wait for what was enqueued by producers that were not closed."""

_open: Final[WeakSet[Producer]] = WeakSet()


def watch(producer: Producer, buffer: Buffer, opened_in: int) -> None:
    """Take care of a producer until it is closed (``forget``)."""
    _open.add(producer)
    finalize(producer, close_lost, buffer, opened_in).atexit = False


def forget(producer: Producer) -> None:
    """Leave a producer alone, which is closed."""
    _open.discard(producer)


def close_lost(buffer: Buffer, opened_in: int) -> None:
    """End the thread of a producer that was dropped without ``close``; its calls are settled by then."""
    if not is_copy(opened_in):
        buffer.close()


def run(buffer: Buffer, clock: Clock) -> None:
    """Settle calls until the buffer is closed."""
    while calls := buffer.next_batch(clock):
        calls[0].owner._settle(calls)
        del calls


def warn_unheard(topic: str, calls: Sequence[Call], defect: BaseException | None) -> None:
    """Say what of failed calls is lost without anybody hearing of it: the callers have dropped their futures."""
    rows, why = 0, defect
    for call in calls:
        # Two references to a future that only its call holds: that one, and the argument.
        if not call.future.watched and sys.getrefcount(call.future) <= 2:
            rows += len(call.failed) or call.table.num_rows
            why = why or call.errors[0]
    if rows:
        print(f"brokerless: {rows} messages for topic {topic!r} are not acknowledged: {why}", file=sys.stderr)


@atexit.register
def end_all() -> None:
    """Commit what waits when the program ends without ``close``, and say what is lost."""
    end = time.monotonic() + END_S
    for producer in list(_open):
        with contextlib.suppress(Exception):
            _end(producer, end - time.monotonic())


def _end(producer: Producer, within_s: float) -> None:
    if is_copy(producer._opened_in) or not (calls := producer._buffer.unsettled()):
        return
    producer._buffer.flush(max(0.0, within_s))
    lost = [call for call in calls if not call.future.done() or call.future.exception()]
    if lost:
        error = lost[0].future.exception() if lost[0].future.done() else None
        why = error or f"the store did not take them within {END_S:g} s."
        rows = sum(call.table.num_rows for call in lost)
        print(
            f"brokerless: {rows} messages that were enqueued for topic {producer.topic!r} are not acknowledged: {why} "
            "The program ended without close(); call it, or use the producer in a with statement.",
            file=sys.stderr,
        )
