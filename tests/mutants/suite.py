"""The suite: without a mutant the seeds must pass, and then each mutant alone must be caught."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from tests.mutants.mutant import ROOT, MovedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.mutants.mutant import Mutant

CALM_SEEDS: Final = 20
LONGEST_S: Final = 300


class NoAnswerError(Exception):
    """The simulation did not run, so nobody knows whether it would have noticed."""


class UnsoundError(Exception):
    """The simulation fails without any mutant, so what it says about mutants means nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        mutant: which.
        by: the seed that noticed, and what; empty if it survived.
        seconds: wall time until then.
        problem: why nothing can be said about it; empty otherwise.
    """

    mutant: Mutant
    by: str
    seconds: float
    problem: str = ""

    @property
    def caught(self) -> bool:
        """Whether a seed noticed."""
        return bool(self.by) and not self.problem

    def __str__(self) -> str:
        """One line."""
        seeds = self.mutant.seeds
        result = self.problem or (f"caught by {self.by}" if self.by else f"SURVIVED seeds {seeds[0]} to {seeds[-1]}")
        return f"{self.seconds:6.1f} s  {self.mutant.guard}: {result}"


def attack(mutants: Sequence[Mutant], *, processes: int, say: Callable[[Verdict], None]) -> list[Verdict]:
    """Takes each safeguard away, alone, and plays the seeds of which one must fail.

    Args:
        mutants: which.
        processes: how many at once.
        say: gets each verdict as it comes.

    Raises:
        UnsoundError: a seed fails without a mutant.
        NoAnswerError: the simulation could not be run without one.
    """
    _sound(range(CALM_SEEDS))
    cores: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(processes):
        cores.put(number)

    def judge(mutant: Mutant) -> Verdict:
        core = cores.get()
        try:
            verdict = _verdict(mutant, core)
        finally:
            cores.put(core)
        say(verdict)
        return verdict

    with ThreadPoolExecutor(processes) as pool:
        verdicts = list(pool.map(judge, mutants))
    _sound([int(seed[1]) for verdict in verdicts if (seed := re.match(r"seed (\d+):", verdict.by))])
    return verdicts


def play(mutant: Mutant | None, seeds: Sequence[int], core: int = 0) -> str:
    """Plays seeds in a process of its own: the first that fails, and how; empty if none does.

    Raises:
        NoAnswerError: they could not be played.
    """
    request = {"mutant": asdict(mutant) if mutant else None, "seeds": list(seeds), "core": core}
    # Not what a run of the tests that started us has set: coverage, and servers and roots of somebody's own.
    environ = {n: v for n, v in os.environ.items() if not n.startswith(("COV", "BROKERLESS_", "AWS_", "PYTEST_"))}
    command = [sys.executable, "-m", "tests.mutants.inside", json.dumps(request)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=LONGEST_S, check=True
        )
        return str(json.loads(done.stdout))
    except subprocess.CalledProcessError as error:
        raise NoAnswerError(f"The simulation ended with {error.returncode}: {error.stderr[-1500:]}") from error
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise NoAnswerError(f"The simulation did not answer: {error}") from error


def _sound(seeds: Sequence[int]) -> None:
    if failed := play(None, seeds):
        raise UnsoundError(
            f"Without any mutant the simulation fails, too: {failed}. Mend it first; what it says about mutants means "
            "nothing."
        )


def _verdict(mutant: Mutant, core: int) -> Verdict:
    begun = time.monotonic()
    by = problem = ""
    try:
        mutant.applied_to(mutant.path().read_text())
        by = play(mutant, mutant.seeds, core)
    except (MovedError, NoAnswerError) as error:
        problem = str(error)
    return Verdict(mutant, by, time.monotonic() - begun, problem)
