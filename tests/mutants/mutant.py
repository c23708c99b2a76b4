"""A safeguard that is taken away: where it stands, what stands there instead, and what must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

SEEDS: Final = 400
"""How many seeds are tried from the first one on. The first that fails ends it, so a caught mutant needs few of them;
the others are there for the day when a changed line of code gives all seeds new traces."""


class MovedError(Exception):
    """The text that a mutant replaces is not there, or more than once."""


@dataclass(frozen=True, slots=True)
class Sim:
    """Seeds of the deterministic simulation, of which one must fail.

    Attributes:
        first: near the first that was seen to fail.
        seeds: how many from there on.
    """

    first: int = 0
    seeds: int = SEEDS

    def __str__(self) -> str:
        """As the page has it."""
        return f"simulation, seeds {self.first} to {self.first + self.seeds - 1}"


@dataclass(frozen=True, slots=True)
class Named:
    """Tests of which one must fail, as pytest names them: a test with parameters stands for all of them."""

    ids: tuple[str, ...]

    def __str__(self) -> str:
        """As the page has it."""
        return ", ".join(name.rpartition("::")[2] for name in self.ids)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One safeguard and its absence.

    Attributes:
        name: the safeguard, in words.
        file: where it stands, relative to the checkout.
        old: its text there, which occurs exactly once.
        new: what stands there without it.
        without: what would happen to a user, in a sentence.
        caught_by: what notices.
    """

    name: str
    file: str
    old: str
    new: str
    without: str
    caught_by: Sim | Named

    def applied_to(self, text: str) -> str:
        """The file's text without the safeguard.

        Raises:
            MovedError: it is not there exactly once.
        """
        if (count := text.count(self.old)) != 1:
            raise MovedError(
                f"The code has moved: update the mutant {self.name!r}. Its text is {count} times in {self.file}, "
                f"not once:\n{self.old}"
            )
        return text.replace(self.old, self.new)


def by_tests(file: str, *names: str) -> Named:
    """The tests of one file; the file without ``tests/`` and its ending."""
    return Named(tuple(f"tests/{file}.py::{name}" for name in names))
