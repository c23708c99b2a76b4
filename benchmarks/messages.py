"""The example's messages in bulk, with ids and intended send times, built without a loop per row.

A message's ``date`` is its intended send time in microseconds, in its source's zone; its ``message`` is
``<producer>-<number>`` with fixed widths, so that a reader finds the number by slicing bytes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

ID_DIGITS: Final = 12
_DATE_WIDTH: Final = len("2024-08-23 04:52:13.066217 -0400")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def build(producer: int, first: int, intended_us: np.ndarray, zone: str, payload_bytes: int = 0) -> pa.Table:
    """Return messages ``first``, ``first + 1``, ... with these intended send times (microseconds since the epoch)."""
    n = len(intended_us)
    seconds, inside = np.unique(intended_us // 1_000_000, return_inverse=True)
    zoned = [(_EPOCH + timedelta(seconds=int(s))).astimezone(ZoneInfo(zone)) for s in seconds]
    templates = np.array(
        [list(t.strftime("%Y-%m-%d %H:%M:%S.000000 %z").encode()) for t in zoned], dtype=np.uint8
    ).reshape(-1, _DATE_WIDTH)  # fmt: skip
    dates = templates[inside]
    _digits(dates, 20, 6, intended_us % 1_000_000)
    prefix = f"{producer:02d}-".encode()
    messages = np.full((n, len(prefix) + ID_DIGITS + payload_bytes), ord("."), dtype=np.uint8)
    messages[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    _digits(messages, len(prefix), ID_DIGITS, np.arange(first, first + n))
    produced = pa.array(intended_us, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"date": _strings(dates), "message": _strings(messages), "_produced_at": produced})


def ids(messages: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the producers and numbers in a column of messages of one width."""
    if not len(messages):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    offsets = np.frombuffer(messages.buffers()[1], np.int32)[messages.offset : messages.offset + len(messages) + 1]
    text = np.frombuffer(messages.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].reshape(len(messages), -1)
    return _number(text, 0, 2), _number(text, 3, ID_DIGITS)


def _digits(text: np.ndarray, at: int, width: int, values: np.ndarray) -> None:
    rest = values.astype(np.int64)
    for column in range(at + width - 1, at - 1, -1):
        text[:, column] = ord("0") + rest % 10
        rest //= 10


def _number(text: np.ndarray, at: int, width: int) -> np.ndarray:
    value = np.zeros(len(text), np.int64)
    for column in range(at, at + width):
        value = value * 10 + (text[:, column] - ord("0"))
    return value


def _strings(text: np.ndarray) -> pa.Array:
    n, width = text.shape
    offsets = np.arange(0, (n + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text)))
