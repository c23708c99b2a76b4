"""What arrived of many millions of messages, with a bit for each: repeated, out of order, or never sent.

Messages of a producer are numbered without gaps. Those of several outlets, such as an output and its dead letters, have
one bitmap, so that a message that is in both of them is found, too.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

OUTPUT, DEAD_LETTERS = 0, 1
COUNTS: Final = ("rows", "dead_letters", "duplicated", "disordered", "misplaced", "unknown", "damaged")
EXAMPLES: Final = 5


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

    def add(self, producers: np.ndarray, numbers: np.ndarray, outlet: int = OUTPUT, **wrong: np.ndarray) -> None:
        """Add messages in the order of one outlet's log.

        Args:
            producers: who sent each.
            numbers: its number there.
            outlet: ``OUTPUT`` or ``DEAD_LETTERS``.
            wrong: ``damaged``, ``misplaced``: which messages have other contents, or belong into the other outlet.
        """
        numbers = numbers.astype(np.int64)
        self.counts["rows"] += len(numbers)
        self.counts["dead_letters"] += len(numbers) if outlet == DEAD_LETTERS else 0
        known = (producers >= 0) & (producers < len(self.totals)) & (numbers >= 0)
        known &= numbers < np.take(self.totals, producers, mode="clip")
        self._note("unknown", producers[~known], numbers[~known])
        for what, mask in wrong.items():
            self._note(what, producers[known & mask], numbers[known & mask])
        for producer in range(len(self.totals)):
            self._add(outlet, producer, numbers[known & (producers == producer)])

    def _add(self, outlet: int, producer: int, numbers: np.ndarray) -> None:
        if not len(numbers):
            return
        before = np.maximum.accumulate(np.append(self._highest[outlet, producer], numbers))
        self._note("disordered", producer, numbers[numbers < before[:-1]])
        self._highest[outlet, producer] = before[-1]
        bits = self._bits[producer]
        again = (bits[numbers >> 3] >> (numbers & 7).astype(np.uint8)) & 1 == 1
        fresh, firsts = np.unique(numbers[~again], return_index=True)
        self._note("duplicated", producer, np.append(numbers[again], np.delete(numbers[~again], firsts)))
        if not len(fresh):
            return
        byte = fresh >> 3
        starts = np.flatnonzero(np.append(True, byte[1:] != byte[:-1]))
        bits[byte[starts]] |= np.bitwise_or.reduceat(np.left_shift(1, fresh & 7).astype(np.uint8), starts)

    def _note(self, what: str, producers: np.ndarray | int, numbers: np.ndarray) -> None:
        self.counts[what] += len(numbers)
        for producer, number in zip(np.broadcast_to(producers, len(numbers)), numbers, strict=True):
            if len(self.examples) >= EXAMPLES * len(COUNTS):
                return
            self.examples.append(f"{what}: message {number} of producer {producer}")

    def is_there(self, producer: int) -> np.ndarray:
        """Return whether each of a producer's messages was seen."""
        there: np.ndarray = np.unpackbits(self._bits[producer], bitorder="little")[: self.totals[producer]] == 1
        return there

    def save(self, path: Path, positions: Mapping[str, int]) -> None:
        """Replace the file in one step, so that a reader that is killed finds either this state or the one before.

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
        """Return what ``save`` wrote, positions included; nothing and no positions if it never did."""
        seen = cls(totals)
        if not path.exists():
            return seen, {}
        with np.load(path) as file:
            seen._bits = [file[f"bits{n}"] for n in range(len(totals))]
            seen._highest = file["highest"]
            seen.counts = dict(zip(COUNTS, file["counts"].tolist(), strict=True))
            seen.examples = file["examples"].tolist()
            return seen, dict(zip(file["topics"].tolist(), file["versions"].tolist(), strict=True))
