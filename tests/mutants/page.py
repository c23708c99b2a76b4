"""``docs/mutants.md``: the list, with what a recorded run saw."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tests.mutants.mutant import ROOT, Sim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.mutants.mutant import Mutant

PATH: Final = ROOT / "docs" / "mutants.md"

_INTRODUCTION: Final = """\
# Safeguards, one taken away at a time

<!-- Made by `python -m tests.mutants --page` from tests/mutants and docs/proof/mutants.json. -->

Tests that pass show little as long as nobody has seen them fail. Here each safeguard that keeps the
[guarantees](guarantees.md) is taken out of a copy of the package, alone, and an attack must notice: the
[deterministic simulation](adr/0008-simulation.md), with seeds of which one must fail, or a named test. A safeguard that
nothing misses ends the run with exit code 1. First everything must pass with no safeguard missing, and at the end so
must the very seeds that caught something.

```sh
.venv/bin/python -m tests.mutants --list
.venv/bin/python -m tests.mutants --only "*positions*"
.venv/bin/python -m tests.mutants
```

A safeguard can have a second one behind it that saves the messages when the first is gone. Then no seed fails, and a
test looks at the first one alone.
"""


def page(groups: Mapping[str, Sequence[Mutant]], recorded: Mapping[str, Any] | None) -> str:
    """The page's text.

    Args:
        groups: mutants by heading.
        recorded: the result of the last recorded run, as ``tests.proof.results`` keeps it; None before the first.
    """
    seen = {each["name"]: each["caught_by"] for each in recorded["details"]} if recorded else {}
    parts = [_INTRODUCTION, _summary(recorded)]
    for heading, mutants in groups.items():
        rows = [f"| {_cell(m.name)} | {_cell(m.without)} | {_caught(m, seen.get(m.name))} |" for m in mutants]
        parts.append(
            "\n".join([f"\n## {heading}\n", "| safeguard | without it | caught by |", "|---|---|---|", *rows, ""])
        )
    return "".join(parts)


def _summary(recorded: Mapping[str, Any] | None) -> str:
    if recorded is None:
        return "\nNo run is recorded yet.\n"
    counts = recorded["counts"]
    return (
        f"\nThe run of {recorded['date']} (commit {recorded['commit']}): {counts['mutants']:.0f} safeguards taken "
        f"away, {counts['caught']:.0f} noticed,\n{counts['by simulation']:.0f} of them by the simulation; "
        f"{recorded['seconds']:.0f} s on {recorded['machine']['cores']} cores.\n"
    )


def _caught(mutant: Mutant, by: str | None) -> str:
    if by is None:
        return f"not run yet: {_cell(str(mutant.caught_by))}"
    if not by:
        return "nothing"
    if isinstance(mutant.caught_by, Sim) and (seed := re.match(r"seed (\d+)", by)):
        last = mutant.caught_by.first + mutant.caught_by.seeds - 1
        return f"simulation, seed {seed[1]} of {mutant.caught_by.first} to {last}"
    return f"`{_cell(by.rpartition('::')[2].partition('[')[0])}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
