"""A safeguard that is taken away: which, what stands there instead, and what a user would see.

A safeguard is marked in the source by a comment of its own line, ``# guard: its name``, right before its statement.
Several of them may stand above one another. Nothing here repeats lines of the source.
"""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
MARK: Final = "# guard: "

SEEDS: Final = 400
"""How many seeds are tried from the first one on. The first that fails ends it, so a mutant that is caught needs few of
them; the others are there for the day when a changed line of code gives all seeds new traces."""


class MovedError(Exception):
    """The comment that marks a safeguard is missing, is there twice, or has no statement behind it."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One safeguard and its absence.

    Attributes:
        guard: its name, as the comment in the source has it.
        instead: what stands there without it; nothing means ``pass``. A text that ends with a colon replaces the head
            of a statement and keeps its body.
        without: what would happen to a user, in a sentence.
        first: a seed near the first that was seen to fail.
        statements: how many statements are replaced.
    """

    guard: str
    instead: str
    without: str
    first: int = 0
    statements: int = 1

    @property
    def seeds(self) -> range:
        """Seeds of the simulation, of which one must fail."""
        return range(self.first, self.first + SEEDS)

    def path(self) -> Path:
        """The file with the safeguard.

        Raises:
            MovedError: it is not marked exactly once.
        """
        found = [path for path, text in _sources().items() if f"{MARK}{self.guard}\n" in text]
        if len(found) != 1:
            raise MovedError(f"{len(found)} files have the comment '{MARK}{self.guard}', not one.")
        return found[0]

    def applied_to(self, text: str) -> str:
        """The file's text without the safeguard.

        Raises:
            MovedError: it is not marked exactly once, or no statement begins behind the comment.
        """
        lines = text.splitlines(keepends=True)
        marks = [number for number, line in enumerate(lines) if line.strip() == f"{MARK}{self.guard}"]
        if len(marks) != 1:
            raise MovedError(f"The comment '{MARK}{self.guard}' is there {len(marks)} times, not once.")
        begin = next((n for n in range(marks[0], len(lines)) if not lines[n].lstrip().startswith("#")), len(lines))
        block = _block(ast.parse(text), begin + 1)
        if len(block) < self.statements:
            raise MovedError(f"{self.statements} statements should follow '{MARK}{self.guard}', {len(block)} do.")
        end = block[self.statements - 1].end_lineno
        if self.instead.endswith(":"):
            end = block[0].body[0].lineno - 1  # type: ignore[attr-defined]
        indent = lines[begin][: len(lines[begin]) - len(lines[begin].lstrip())]
        lines[begin:end] = [textwrap.indent(f"{self.instead or 'pass'}\n", indent)]
        return "".join(lines)


def guards() -> list[str]:
    """The names of all safeguards that are marked in the source."""
    lines = [line.strip() for text in _sources().values() for line in text.splitlines()]
    return [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]


@cache
def _sources() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted((ROOT / "brokerless").rglob("*.py"))}


def _block(tree: ast.Module, line: int) -> list[ast.stmt]:
    """The statement that begins in a line, and those behind it in the same block; nothing if none begins there."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                for number, statement in enumerate(block):
                    if statement.lineno == line:
                        return block[number:]
    return []
