"""Signals that a verb handles itself, while it runs."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


@contextlib.contextmanager
def handling(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals with ``handler`` within the context; without effect outside the main thread."""
    is_main = threading.current_thread() is threading.main_thread()  # only it may change signal handlers
    before = {number: signal.signal(number, handler) for number in numbers} if is_main else {}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Provide an event that SIGINT and SIGTERM set instead of their usual effect."""
    stop = threading.Event()
    with handling(lambda *_: stop.set(), signal.SIGINT, signal.SIGTERM):
        yield stop
