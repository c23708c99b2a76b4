"""``docs/mutants.md``: the list, with what a recorded run saw."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tests.mutants.mutant import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.mutants.mutant import Mutant

PATH: Final = ROOT / "docs" / "mutants.md"

_INTRODUCTION: Final = """\
# Safeguards, one taken away at a time

<!-- Made by `python -m tests.mutants --page` from tests/mutants and docs/proof/mutants.json. -->

Tests that pass show little as long as nobody has seen them fail. Here each safeguard that keeps the
[guarantees](guarantees.md) is taken away, alone, and the [deterministic simulation](adr/0008-simulation.md) must
notice: one of its seeds must fail. A safeguard that nothing misses ends the run with exit code 1. First the seeds must
pass with no safeguard missing, and at the end so must the very seeds that caught something.

```sh
.venv/bin/python -m tests.mutants --list
.venv/bin/python -m tests.mutants --only "*duplicate*"
.venv/bin/python -m tests.mutants
```

In the source, `# guard: name` stands before each of them; `tests/mutants/catalogue.py` says what stands there instead.
A safeguard with a second one behind it is not in this list: no seed fails without it, so a test looks at it alone.
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
        rows = [f"| {m.guard} | {m.without} | {_caught(m, seen.get(m.guard))} |" for m in mutants]
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
        f"away, {counts['caught']:.0f} noticed;\n{recorded['seconds']:.0f} s on {recorded['machine']['cores']} cores.\n"
    )


def _caught(mutant: Mutant, by: str | None) -> str:
    seeds = f"{mutant.seeds[0]} to {mutant.seeds[-1]}"
    if by is None:
        return f"not run yet: seeds {seeds}"
    if not (seed := re.match(r"seed (\d+)", by)):
        return "nothing"
    return f"seed {seed[1]} of {seeds}"
