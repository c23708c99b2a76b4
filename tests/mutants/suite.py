"""The suite: the unmutated copy must pass, and then each mutant alone must be caught."""

from __future__ import annotations

import queue
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutants.copies import Copy, NoAnswerError
from tests.mutants.mutant import MovedError, Named, Sim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.mutants.mutant import Mutant

CALM_SEEDS = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        mutant: which.
        by: the seed or test that noticed; empty if it survived.
        seconds: wall time until then.
        problem: why nothing can be said about it; empty otherwise.
    """

    mutant: Mutant
    by: str
    seconds: float
    problem: str = ""

    @property
    def caught(self) -> bool:
        """Whether something noticed."""
        return bool(self.by) and not self.problem

    def __str__(self) -> str:
        """One line."""
        result = self.problem or (f"caught by {self.by}" if self.by else f"SURVIVED {self.mutant.caught_by}")
        return f"{self.seconds:6.1f} s  {self.mutant.name}: {result}"


class UnsoundError(Exception):
    """The attacks fail without any mutant, so what they say about mutants means nothing."""


def attack(
    mutants: Sequence[Mutant], *, processes: int, say: Callable[[Verdict], None], calm_seeds: int = CALM_SEEDS
) -> list[Verdict]:
    """Takes each safeguard away, alone, and runs what must notice.

    Args:
        mutants: which.
        processes: how many at once.
        say: gets each verdict as it comes.
        calm_seeds: of the simulation, with which the unmutated copy begins.

    Raises:
        UnsoundError: an attack fails on the unmutated copy.
        NoAnswerError: the unmutated copy could not be attacked.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as name, ExitStack() as stack:
        folder = Path(name)
        whole = Copy.of_checkout(folder / "whole")
        stack.callback(whole.close)
        _sound(whole, mutants, calm_seeds)
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(processes):
            copy = whole.again(folder / f"copy-{number}", number)
            stack.callback(copy.close)
            copies.put(copy)

        def judge(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                verdict = _verdict(copy, mutant)
            finally:
                copies.put(copy)
            say(verdict)
            return verdict

        with ThreadPoolExecutor(processes) as pool:
            verdicts = list(pool.map(judge, mutants))
        if failed := whole.seeds(
            [int(seed[1]) for verdict in verdicts if (seed := re.match(r"seed (\d+):", verdict.by))]
        ):
            raise UnsoundError(f"The unmutated copy fails, too, with a seed that caught a mutant: {failed}")
    return verdicts


def _sound(whole: Copy, mutants: Sequence[Mutant], calm_seeds: int) -> None:
    catchers = [mutant.caught_by for mutant in mutants]
    ids = dict.fromkeys(name for catcher in catchers if isinstance(catcher, Named) for name in catcher.ids)
    for attacks in ([Named(tuple(ids))] if ids else [], [Sim(0, calm_seeds)] if calm_seeds else []):
        for each in attacks:
            if failed := whole.attack(each):
                raise UnsoundError(
                    f"The unmutated copy fails: {failed}. Mend it first; what it says about mutants means nothing."
                )


def _verdict(copy: Copy, mutant: Mutant) -> Verdict:
    begun = time.monotonic()
    by = problem = ""
    try:
        with copy.without(mutant):
            by = copy.attack(mutant.caught_by)
    except (MovedError, NoAnswerError) as error:
        problem = str(error)
    return Verdict(mutant, by, time.monotonic() - begun, problem)


def chosen(mutants: Sequence[Mutant], pattern: str) -> Iterator[Mutant]:
    """Those whose name or file matches a pattern as of file names, whatever the case."""
    from fnmatch import fnmatch

    for mutant in mutants:
        if any(fnmatch(text.lower(), pattern.lower()) for text in (mutant.name, mutant.file)):
            yield mutant
