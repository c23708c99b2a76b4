"""One attack's result as a file, ``docs/proof/<name>.json``; the figures of docs/guarantees.md come from these."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.session import git_commit, machine

FOLDER: Final = Path(__file__).parents[2] / "docs" / "proof"


@dataclass(frozen=True, slots=True)
class Attack:
    """What was tried, how often, and what came of it.

    Attributes:
        name: of the file: ``simulation``, ``grid``, ``soak``, ...
        command: what repeats it, seeds included.
        seconds: wall time.
        counts: what happened, such as ``{"seeds": 10000, "kills": 812}``; numbers only.
        failures: what was found that may not be, each in one line; empty if all is well.
        seeds: of the random choices: the first and the last; None if there are none.
        details: anything else worth keeping, such as one entry a cell.
    """

    name: str
    command: str
    seconds: float
    counts: dict[str, float]
    failures: list[str]
    seeds: tuple[int, int] | None = None
    details: list[dict[str, Any]] = field(default_factory=list)


def write(attack: Attack, *, folder: Path = FOLDER) -> Path:
    """Writes the file, with when and on what it ran, and of which commit."""
    kept = {
        **dataclasses.asdict(attack),
        "seconds": round(attack.seconds, 1),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": git_commit(),
        "machine": machine(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{attack.name}.json"
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return path


def read(*, folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """All results by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
