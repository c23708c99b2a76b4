"""The table of attacks says what the recorded runs wrote, and nothing else."""

from __future__ import annotations

from typing import Any

from tests.proof.page import PATH, table, with_table
from tests.proof.results import read

MUTANTS: dict[str, Any] = {
    "command": "python -m tests.mutants",
    "seconds": 130.0,
    "counts": {"mutants": 1200, "caught": 1199},
    "failures": ["one survived", "and another"],
    "date": "2026-11-21",
    "machine": {"cores": 2},
}


def test_the_page_has_the_recorded_results() -> None:
    assert with_table(PATH.read_text(), read()) == PATH.read_text(), "run: python -m tests.proof.page"


def test_what_was_found_is_shown_and_what_did_not_run_too() -> None:
    rows = table({"mutants": MUTANTS}).splitlines()
    assert [row for row in rows if "mutants" in row] == [
        "| [Mutants](mutants.md): do the attacks notice a missing safeguard? | 1,200 safeguards taken away, 1,199 "
        "noticed (2026-11-21, 2 cores, 2 min) | 2: one survived | `python -m tests.mutants` |"
    ]
    assert sum("not recorded yet" in row for row in rows) == 4
