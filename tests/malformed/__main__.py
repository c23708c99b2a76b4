"""``python -m tests.malformed --inputs 10000``: attacks of every kind, and what came of them.

``--kind parquet --seed 1 --number 17`` repeats one of them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.malformed.kinds import KINDS, kind_of
from tests.malformed.runner import Job, Result, command_line, run
from tests.proof.results import Attack, write


def main() -> int:
    """Makes the attacks; 1 if one of them found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.malformed", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, metavar="N", help="of all kinds together (10000)")
    parser.add_argument("--seed", type=int, default=1, metavar="SEED", help="of the inputs (1)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this one; several are possible")
    parser.add_argument("--number", type=int, metavar="I", help="only this input of the kind")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--record", action="store_true", help="write docs/proof/malformed.json")
    args = parser.parse_args()
    kinds = tuple(args.kind or KINDS)
    begun = time.monotonic()
    result = run(
        jobs_of(kinds, inputs=args.inputs, seed=args.seed, number=args.number),
        processes=args.processes if args.number is None else 1,
        on_progress=Progress(),
    )
    seconds = time.monotonic() - begun
    _say(table(result, kinds))
    _say(f"{result.inputs.total()} malformed inputs in {seconds:.0f} s, {len(result.failures)} failures")
    if args.record:
        _say(f"Written: {write(attack_of(result, kinds, seed=args.seed, seconds=seconds))}")
    return 1 if result.failures else 0


def jobs_of(kinds: tuple[str, ...], *, inputs: int, seed: int, number: int | None = None) -> list[Job]:
    """The attacks that have this many inputs, as many of each kind."""
    jobs: list[Job] = []
    for kind in kinds:
        count = -(-inputs // len(kinds) // kind_of(kind).inputs)
        jobs += [Job(kind, seed, n) for n in (range(count) if number is None else [number])]
    return jobs


def table(result: Result, kinds: tuple[str, ...]) -> str:
    """What became of the inputs, a line for each kind and outcome."""
    lines = [f"{'kind':<12} {'outcome':<24} {'inputs':>7}"]
    for kind in kinds:
        for outcome, count in sorted(result.outcomes.get(kind, {}).items()):
            lines.append(f"{kind:<12} {outcome:<24} {count:>7}")
        peak, slowest_s = result.peak[kind] // 2**20, result.slowest_s.get(kind, 0.0)
        lines.append(f"{kind:<12} {'total':<24} {result.inputs[kind]:>7}   peak {peak} MiB, slowest {slowest_s:.1f} s")
    return "\n".join(lines)


def attack_of(result: Result, kinds: tuple[str, ...], *, seed: int, seconds: float) -> Attack:
    """The result as docs/proof keeps it."""
    counts: dict[str, float] = {"inputs": result.inputs.total(), "failures": len(result.failures)}
    for kind in kinds:
        counts[kind] = result.inputs[kind]
    for outcome in sorted({name for counter in result.outcomes.values() for name in counter}):
        counts[f"outcome {outcome}"] = sum(counter[outcome] for counter in result.outcomes.values())
    details = [
        {
            "kind": kind,
            "inputs": result.inputs[kind],
            "outcomes": dict(sorted(result.outcomes.get(kind, {}).items())),
            "peak_bytes": result.peak[kind],
            "slowest_s": round(result.slowest_s.get(kind, 0.0), 2),
        }
        for kind in kinds
    ]
    return Attack("malformed", command_line(), seconds, counts, result.failures, (seed, seed), details)


class Progress:
    """A line now and then, and each failure when it is found."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 5
        self._shown = 0

    def __call__(self, result: Result) -> None:
        for failure in result.failures[self._shown :]:
            _say(f"FAILED {failure}")
        self._shown = len(result.failures)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 5
            _say(f"{result.inputs.total()} inputs, {len(result.failures)} failures")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
