"""Lost, repeated, disordered, invented: found among many millions of messages with a bit for each.

Messages of a producer are numbered without gaps, and a message belongs either into the output or among the dead
letters. One bitmap a producer over both finds a message that is in both of them, too.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from tests.soak.load import Sent, is_bad

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

OUTPUT, DEAD_LETTERS = 0, 1
COUNTS: Final = ("rows", "dead_letters", "duplicated", "disordered", "misplaced", "unknown", "damaged")
_EXAMPLES: Final = 5
_TOLERANCE_MS: Final = 0.002  # of a date in microseconds, as epoch milliseconds in a float


class Seen:
    """What a reader saw so far.

    Args:
        totals: how many messages each producer sends in the run.
    """

    def __init__(self, totals: Sequence[int]) -> None:
        self.totals = list(totals)
        self._bits = [np.zeros((total + 7) // 8, np.uint8) for total in totals]
        self._highest = np.full((2, len(totals)), -1, np.int64)
        self.counts = dict.fromkeys(COUNTS, 0)
        self.examples: list[str] = []

    def take(self, outlet: int, producers: np.ndarray, numbers: np.ndarray, damaged: np.ndarray | None = None) -> None:
        """Messages in the order of one outlet's log.

        Args:
            outlet: ``OUTPUT`` or ``DEAD_LETTERS``.
            producers: who sent each.
            numbers: its number there.
            damaged: which have other contents than they were sent with; None for none.
        """
        self.counts["rows"] += len(numbers)
        self.counts["dead_letters"] += len(numbers) if outlet == DEAD_LETTERS else 0
        if damaged is not None:
            self._note("damaged", producers[damaged], numbers[damaged])
        known = (producers >= 0) & (producers < len(self.totals)) & (numbers >= 0)
        known &= numbers < np.take(self.totals, producers, mode="clip")
        self._note("unknown", producers[~known], numbers[~known])
        astray = known & (is_bad(numbers) != (outlet == DEAD_LETTERS))
        self._note("misplaced", producers[astray], numbers[astray])
        for producer in range(len(self.totals)):
            self._take(outlet, producer, numbers[known & (producers == producer)])

    def _take(self, outlet: int, producer: int, numbers: np.ndarray) -> None:
        if not len(numbers):
            return
        bits = self._bits[producer]
        again = (bits[numbers >> 3] >> (numbers & 7).astype(np.uint8)) & 1 == 1
        fresh = numbers[~again]
        repeated = numbers[again]
        if np.any(np.diff(fresh) <= 0):
            firsts = np.sort(np.unique(fresh, return_index=True)[1])
            repeated = np.append(repeated, np.delete(fresh, firsts))
            fresh = fresh[firsts]
        self._note("duplicated", producer, repeated)
        if not len(fresh):
            return
        before = np.maximum.accumulate(np.append(self._highest[outlet, producer], fresh))
        self._note("disordered", producer, fresh[fresh < before[:-1]])
        self._highest[outlet, producer] = before[-1]
        fresh = np.sort(fresh)
        place = fresh >> 3
        starts = np.flatnonzero(np.append(True, place[1:] != place[:-1]))
        bits[place[starts]] |= np.bitwise_or.reduceat(np.left_shift(1, fresh & 7).astype(np.uint8), starts)

    def _note(self, what: str, producers: np.ndarray | int, numbers: np.ndarray) -> None:
        self.counts[what] += len(numbers)
        for producer, number in zip(np.broadcast_to(producers, len(numbers)), numbers, strict=True):
            if len(self.examples) >= _EXAMPLES * len(COUNTS):
                return
            self.examples.append(f"{what}: message {number} of producer {producer}")

    def is_there(self, producer: int) -> np.ndarray:
        """Of each of a producer's messages, whether it was seen."""
        there: np.ndarray = np.unpackbits(self._bits[producer], bitorder="little")[: self.totals[producer]] == 1
        return there

    def save(self, path: Path, positions: Mapping[str, int]) -> None:
        """Replaces the file in one step, so that a reader that is killed finds either this state or the one before.

        Args:
            path: of the file.
            positions: the next commit to read of each topic, which belongs to exactly this state.
        """
        made = io.BytesIO()
        np.savez(
            made,
            **{f"bits{n}": bits for n, bits in enumerate(self._bits)},
            highest=self._highest,
            counts=np.array([self.counts[name] for name in COUNTS]),
            examples=np.array(self.examples, dtype=np.str_),
            topics=np.array(list(positions), dtype=np.str_),
            versions=np.array(list(positions.values()), np.int64),
        )
        unfinished = path.with_suffix(".tmp")
        unfinished.write_bytes(made.getbuffer())
        unfinished.replace(path)

    @classmethod
    def load(cls, path: Path, totals: Sequence[int]) -> tuple[Seen, dict[str, int]]:
        """What ``save`` wrote, positions included; nothing seen and no positions if it never did."""
        seen = cls(totals)
        if not path.exists():
            return seen, {}
        with np.load(path) as file:
            seen._bits = [file[f"bits{n}"] for n in range(len(totals))]
            seen._highest = file["highest"]
            seen.counts = dict(zip(COUNTS, file["counts"].tolist(), strict=True))
            seen.examples = file["examples"].tolist()
            return seen, dict(zip(file["topics"].tolist(), file["versions"].tolist(), strict=True))


def is_damaged(timestamps_ms: np.ndarray, expected_ms: np.ndarray) -> np.ndarray:
    """Which parsed dates are not what was sent; null is NaN, and so damaged."""
    right: np.ndarray = np.abs(timestamps_ms - expected_ms) <= _TOLERANCE_MS
    return ~right


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of all messages.

    Attributes:
        sent: messages that some incarnation of a producer handed over.
        acknowledged: those of them that were acknowledged.
        unacknowledged_seen: those that were not, and are there all the same, which is allowed.
        lost: acknowledged and never seen.
        phantom: seen and never sent.
        counts: the reader's, by ``COUNTS``.
        examples: some of what was found, in words.
    """

    sent: int
    acknowledged: int
    unacknowledged_seen: int
    lost: int
    phantom: int
    counts: dict[str, int]
    examples: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """What may not be, a line each; empty if all is well."""
        found = {"lost": self.lost, "phantom": self.phantom}
        found |= {name: self.counts[name] for name in COUNTS if name not in {"rows", "dead_letters"}}
        lines = [f"{count:,} messages {name}" for name, count in found.items() if count]
        return lines + self.examples if lines else []


def judge(seen: Seen, journals: Sequence[Sent]) -> Verdict:
    """Holds what was seen against what was sent."""
    sent = acknowledged = unsure = lost = phantom = 0
    examples = list(seen.examples)
    for producer, journal in enumerate(journals):
        there = seen.is_there(producer)
        handed, sure = (_mask(ranges, len(there)) for ranges in (journal.sent, journal.acknowledged))
        missing, invented = np.flatnonzero(sure & ~there), np.flatnonzero(there & ~handed)
        sent += int(np.count_nonzero(handed))
        acknowledged += int(np.count_nonzero(sure))
        unsure += int(np.count_nonzero(there & handed & ~sure))
        lost += len(missing)
        phantom += len(invented)
        for name, numbers in (("lost", missing), ("phantom", invented)):
            runs = merged_runs(numbers)
            examples += [f"{name}: messages {a} to {b} of producer {producer}" for a, b in runs[:_EXAMPLES]]
    return Verdict(sent, acknowledged, unsure, lost, phantom, seen.counts, examples)


def merged_runs(numbers: np.ndarray) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, first and last of each."""
    if not len(numbers):
        return []
    breaks = np.flatnonzero(np.diff(numbers) > 1)
    firsts, lasts = np.append(0, breaks + 1), np.append(breaks, len(numbers) - 1)
    return list(zip(numbers[firsts].tolist(), numbers[lasts].tolist(), strict=True))


def _mask(ranges: np.ndarray, length: int) -> np.ndarray:
    mask = np.zeros(length, bool)
    for first, end in ranges:
        mask[first:end] = True
    return mask
