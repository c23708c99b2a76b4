"""The time that a call was given by its caller, for all requests that are sent on the way, however deep.

A deadline belongs to the thread (or task) that set it; ``carried`` takes it along into the threads of a pool.
"""

from __future__ import annotations

import contextlib
import math
import time
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_P = ParamSpec("_P")
_R = TypeVar("_R")

GRACE_S: Final = 0.5
"""How long after its time a call may still ask what became of its last request."""

_end: ContextVar[float | None] = ContextVar("brokerless_deadline", default=None)


@contextlib.contextmanager
def requests_within(seconds: float | None) -> Iterator[None]:
    """Let no request of the block last longer than so many seconds from now and ``GRACE_S``; None lifts a limit."""
    if _end.get() == math.inf:
        yield
        return
    token = _end.set(None if seconds is None else time.monotonic() + seconds + GRACE_S)
    try:
        yield
    finally:
        _end.reset(token)


@contextlib.contextmanager
def patiently() -> Iterator[None]:
    """Let requests of the block last as long as the store's client retries: for loops that go on in any case."""
    token = _end.set(math.inf)
    try:
        yield
    finally:
        _end.reset(token)


def left_s(within_s: float | None) -> float | None:
    """Return how long a request may take, which of itself may take ``within_s``; zero or less if the time is over."""
    end = _end.get()
    if end is None or end == math.inf:
        return within_s
    left = end - time.monotonic()
    return left if within_s is None else min(left, within_s)


def carried(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function with the deadline of this thread, for another one."""
    end = _end.get()
    if end is None:
        return function

    @wraps(function)
    def run(*args: _P.args, **more: _P.kwargs) -> _R:
        token = _end.set(end)
        try:
            return function(*args, **more)
        finally:
            _end.reset(token)

    return run
