"""What the producers of a soak send, and what they note about it.

Everything about a message follows from its producer and its number: when it is due, its columns, whether it is
malformed. So a producer that was killed needs no memory of its own: its last sequence in the log is the number of the
last message that is there, and it goes on behind it.
"""

from __future__ import annotations

import json
import os
import struct
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.peers.checks import TOLERANCE_MS
from benchmarks.spec import Spec

if TYPE_CHECKING:
    from pathlib import Path

BAD_EVERY: Final = 1000
MALFORMED: Final = "no date at all"
_SENT, _ACKNOWLEDGED = 0, 1
_RECORD: Final = struct.Struct("<4q")
_PLAN: Final = "plan.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """The load of one run, the same in all its processes.

    Attributes:
        rate: messages a second, over all producers.
        seconds: how long messages become due.
        producers: how many; producer p sends to one topic only, so that its order can be checked.
        seed: of all that is drawn.
        begin: when message 0 is due, in seconds since the epoch.
        retention_s: of the log, in maintenance.
    """

    rate: int
    seconds: float
    producers: int
    seed: int
    begin: float
    retention_s: float

    @property
    def spec(self) -> Spec:
        """The schedule, as benchmarks know it."""
        return Spec("brokerless", self.rate, seconds=self.seconds, warm_up_s=0.0, producers=self.producers)

    def save(self, folder: Path) -> None:
        """Puts it where ``load`` finds it."""
        (folder / _PLAN).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """What ``save`` wrote."""
        return cls(**json.loads((folder / _PLAN).read_text()))


def is_bad(numbers: np.ndarray) -> np.ndarray:
    """Which messages are malformed, and so belong among the dead letters."""
    bad: np.ndarray = numbers % BAD_EVERY == BAD_EVERY - 1
    return bad


def rows(spec: Spec, begin: float, producer: int, first: int, end: int) -> pa.Table:
    """A producer's messages ``first`` to ``end - 1``, malformed ones included."""
    table = spec.build(producer, begin, first, end)
    bad = is_bad(np.arange(first, end))
    if not bad.any():
        return table
    return table.set_column(0, "date", pc.if_else(pa.array(bad), MALFORMED, table["date"]))


def due_ms(spec: Spec, begin: float, numbers: np.ndarray) -> np.ndarray:
    """The ``timestamp`` that the pipeline must find for these messages of any producer, in epoch milliseconds."""
    intended_s = numbers * spec.producers / spec.rate
    milliseconds: np.ndarray = np.rint((begin + intended_s) * 1e6) / 1000
    return milliseconds


def is_damaged(timestamps_ms: np.ndarray, expected_ms: np.ndarray) -> np.ndarray:
    """Which parsed dates are not what was sent; null is NaN, and so damaged."""
    right: np.ndarray = np.abs(timestamps_ms - expected_ms) <= TOLERANCE_MS
    return ~right


class Journal:
    """What a producer sends, noted before, and what is acknowledged, noted after. Survives ``kill -9``.

    One write a record, to the end of the file: two incarnations of a producer can use it at once.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def sent(self, first: int, end: int) -> None:
        """Messages ``first`` to ``end - 1`` are about to be sent."""
        os.write(self._file, _RECORD.pack(_SENT, first, end, time.time_ns()))

    def acknowledged(self, first: int, end: int) -> None:
        """They are acknowledged."""
        os.write(self._file, _RECORD.pack(_ACKNOWLEDGED, first, end, time.time_ns()))


@dataclass(frozen=True, slots=True)
class Sent:
    """What is in a journal: ranges as rows of ``(first, end)``, merged and in order."""

    sent: np.ndarray
    acknowledged: np.ndarray

    @property
    def count(self) -> int:
        """How many messages were acknowledged."""
        return int((self.acknowledged[:, 1] - self.acknowledged[:, 0]).sum())


def read_journal(path: Path) -> Sent:
    """What a producer noted so far; nothing if it has not begun."""
    data = path.read_bytes() if path.exists() else b""
    records = np.frombuffer(data[: len(data) // _RECORD.size * _RECORD.size], "<i8").reshape(-1, 4)
    return Sent(*(merged(records[records[:, 0] == kind, 1:3]) for kind in (_SENT, _ACKNOWLEDGED)))


def merged(ranges: np.ndarray) -> np.ndarray:
    """The same numbers in as few ranges as possible."""
    if not len(ranges):
        return np.empty((0, 2), np.int64)
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])
    begins = np.append(True, ranges[1:, 0] > reach[:-1])
    ends = np.append(np.flatnonzero(begins)[1:] - 1, len(ranges) - 1)
    return np.stack([ranges[begins, 0], reach[ends]], axis=1)
