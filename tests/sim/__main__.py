"""``python -m tests.sim --seeds 10000``, or ``--seed 4711 --trace`` to see one again.

Seeds from 1,000,000 on are worlds with a consumer group.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from tests.proof import results
from tests.sim.machine import simulated
from tests.sim.run import Result, run_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 25


def main() -> int:
    """Runs seeds and says what they had and what they found; 1 if something."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many seeds (default 1000)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first of them (default 0)")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="print what happened in it")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--stop-at", type=int, default=10, metavar="N", help="stop after so many failures")
    parser.add_argument("--record", action="store_true", help="keep the result in docs/proof")
    args = parser.parse_args()
    if args.seed is not None:
        with simulated() as host:
            return _show(run_seed(host, args.seed, trace=True), trace=args.trace)
    attack = _many(args.first, args.seeds, processes=args.processes, stop_at=args.stop_at)
    if args.record:
        _say(f"kept in {results.write(attack)}")
    return 1 if attack.failures else 0


def _show(result: Result, *, trace: bool) -> int:
    if trace:
        _say("\n".join(result.trace))
    _say(f"seed {result.seed}, trace {result.digest}")
    for name, count in sorted(result.counts.items()):
        _say(f"  {name}: {count}")
    if result.failures:
        _say(result.text())
    return 1 if result.failures else 0


def _many(first: int, seeds: int, *, processes: int, stop_at: int) -> results.Attack:
    begun = time.monotonic()
    counts: Counter[str] = Counter()
    had: Counter[str] = Counter()
    failed: list[Result] = []
    done = 0
    chunks = [range(start, min(start + _CHUNK, first + seeds)) for start in range(first, first + seeds, _CHUNK)]
    for chunk in _results(chunks, processes):
        for result in chunk:
            done += 1
            counts += result.counts
            had.update(name for name, count in result.counts.items() if count)
            if result.failures:
                failed.append(result)
                _say(f"FAILED after {done} seeds: {result.text()}\n")
        if len(failed) >= stop_at:
            break
    took_s = time.monotonic() - begun
    _say(f"{done} seeds in {took_s:.1f} s ({done / took_s:.0f}/s, {processes} processes), {len(failed)} failed")
    for name, count in sorted(counts.items()):
        _say(f"  {name + ':':<45} {count:>10}   in {had[name]} seeds")
    return results.Attack(
        "simulation",
        f"python -m tests.sim --first {first} --seeds {seeds}",
        took_s,
        {"seeds": done, "processes": processes, **dict(sorted(counts.items()))},
        [result.text() for result in failed],
        seeds=(first, first + seeds - 1),
    )


def _results(chunks: list[range], processes: int) -> Iterator[list[Result]]:
    if processes == 1:
        yield from map(_chunk, chunks)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(_chunk, chunks)


def _chunk(seeds: range) -> list[Result]:
    with simulated() as host:
        return [run_seed(host, seed) for seed in seeds]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
