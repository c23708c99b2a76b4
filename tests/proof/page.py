"""The table of attacks in docs/guarantees.md, from the results of recorded runs: ``python -m tests.proof.page``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.proof.results import FOLDER, read

PATH: Final = FOLDER.parent / "guarantees.md"
BEGIN: Final = "<!-- proof:begin -->"
END: Final = "<!-- proof:end -->"

Counts = Mapping[str, float]


def _simulation(counts: Counts) -> str:
    return (
        f"{counts['seeds']:,.0f} worlds: {counts['requests']:,.0f} requests, {counts['fault: kill']:,.0f} kills, "
        f"{counts['fault: pause'] + counts['fault: sleep']:,.0f} pauses, {counts['fault: lost']:,.0f} lost and "
        f"{counts['fault: late'] + counts['fault: unheard']:,.0f} late or unheard requests, "
        f"{counts['successors beside a sleeper']:,.0f} successors beside a sleeper"
    )


def _grid(counts: Counts) -> str:
    return (
        f"{counts['cells']:,.0f} cells: {counts.get('kills', 0):,.0f} kills, {counts.get('pauses', 0):,.0f} pauses, "
        f"{counts.get('zombies fenced', 0):,.0f} zombies, {counts.get('cuts', 0):,.0f} cuts of the network, "
        f"{counts.get('faults of requests', 0):,.0f} struck requests; "
        f"{counts['messages acknowledged']:,.0f} messages"
    )


def _soak(counts: Counts) -> str:
    return (
        f"{counts['acknowledged']:,.0f} messages acknowledged and {counts['seen']:,.0f} seen, "
        f"{counts['faults']:,.0f} faults, {counts['requests_struck']:,.0f} of {counts['requests']:,.0f} requests struck"
    )


def _malformed(counts: Counts) -> str:
    return f"{counts['inputs']:,.0f} inputs of seven kinds"


def _mutants(counts: Counts) -> str:
    return f"{counts['mutants']:,.0f} safeguards taken away, {counts['caught']:,.0f} noticed"


_ATTACKS: Final[dict[str, tuple[str, Callable[[Counts], str]]]] = {
    "simulation": ("[Simulation](adr/0008-simulation.md) of all roles, in virtual time", _simulation),
    "grid": ("[Grid](testing.md#the-grid): real processes, struck at each step of their work", _grid),
    "soak": ("Soak: a steady load under rotating faults, with memory watched", _soak),
    "malformed": ("Malformed messages, objects, log entries, checkpoints, requests", _malformed),
    "mutants": ("[Mutants](mutants.md): do the attacks notice a missing safeguard?", _mutants),
}


def table(recorded: Mapping[str, Mapping[str, Any]]) -> str:
    """The table, with a row for each attack; one without a result says so."""
    rows = ["| attack | tried | found | again |", "|---|---|---|---|"]
    for name, (title, tried) in _ATTACKS.items():
        if (result := recorded.get(name)) is None:
            rows.append(f"| {title} | not recorded yet | | |")
            continue
        took = f"{result['seconds'] / 60:.0f} min" if result["seconds"] >= 100 else f"{result['seconds']:.0f} s"
        found = f"{len(result['failures'])}: {result['failures'][0]}" if result["failures"] else "nothing"
        when = f"{result['date']}, {result['machine']['cores']} cores, {took}"
        rows.append(f"| {title} | {tried(result['counts'])} ({when}) | {found} | `{result['command']}` |")
    return "\n".join(rows)


def with_table(text: str, recorded: Mapping[str, Mapping[str, Any]]) -> str:
    """The page's text with the table of these results."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(recorded)}\n{END}{after}"


def main() -> int:
    """Writes the page."""
    PATH.write_text(with_table(PATH.read_text(), read()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
