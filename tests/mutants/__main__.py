"""``python -m tests.mutants``: takes each safeguard away and says what noticed; 1 if nothing did."""

from __future__ import annotations

import argparse
import os
import sys
import time
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from tests.mutants.catalogue import GROUPS, MUTANTS
from tests.mutants.mutant import ROOT
from tests.mutants.page import PATH, page
from tests.mutants.suite import NoAnswerError, UnsoundError, attack
from tests.proof import results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.mutants.mutant import Mutant
    from tests.mutants.suite import Verdict


def main(arguments: Sequence[str] | None = None, *, mutants: Sequence[Mutant] = MUTANTS) -> int:
    """Runs the suite as the arguments say: 0 if all were caught, 1 if one was not, 2 if that cannot be said."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="GLOB", default="*", help="those whose name matches")
    parser.add_argument("--list", action="store_true", help="say which there are, and run nothing")
    parser.add_argument("--page", action="store_true", help="write docs/mutants.md, and run nothing")
    parser.add_argument("--record", action="store_true", help="keep the result in docs/proof/mutants.json")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="default: one a core")
    args = parser.parse_args(arguments)
    if args.page:
        PATH.write_text(page(GROUPS, results.read().get("mutants")))
        return 0
    some = [mutant for mutant in mutants if fnmatch(mutant.guard.lower(), args.only.lower())]
    if args.list:
        _say("\n".join(f"{mutant.guard} ({mutant.path().relative_to(ROOT)})" for mutant in some))
        return 0
    if args.record and args.only != "*":
        parser.error("--record keeps a run of all mutants; leave --only out")
    begun = time.monotonic()
    try:
        verdicts = attack(some, processes=args.processes, say=lambda verdict: _say(str(verdict)))
    except (UnsoundError, NoAnswerError) as error:
        _say(str(error))
        return 2
    seconds = time.monotonic() - begun
    bad = [verdict for verdict in verdicts if not verdict.caught]
    _say(f"\n{len(verdicts)} safeguards taken away in {seconds:.0f} s, {len(bad)} unnoticed")
    for verdict in bad:
        _say(f"  {verdict}")
    if args.record:
        _record(verdicts, seconds, processes=args.processes)
    return 1 if bad else 0


def _record(verdicts: Sequence[Verdict], seconds: float, *, processes: int) -> None:
    caught = [verdict for verdict in verdicts if verdict.caught]
    results.write(
        results.Attack(
            name="mutants",
            command="python -m tests.mutants",
            seconds=seconds,
            counts={"mutants": len(verdicts), "caught": len(caught), "processes": processes},
            failures=[str(verdict) for verdict in verdicts if not verdict.caught],
            details=[
                {
                    "name": verdict.mutant.guard,
                    "caught_by": verdict.by if verdict.caught else "",
                    "seconds": round(verdict.seconds, 1),
                }
                for verdict in verdicts
            ],
        )
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
