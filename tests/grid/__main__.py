"""``python -m tests.grid``: a part of the grid that the seed chooses, or the cells that are named."""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.session import git_commit
from brokerless.clock import SYSTEM
from brokerless.errors import ConfigError
from brokerless.spark.classes import ensure_archive
from tests.grid.cells import PIPELINES, all_cells, chosen, rota
from tests.grid.roles import BREAK
from tests.grid.run import Result, play_in_worlds
from tests.grid.world import Plan
from tests.proof.results import Attack, read, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.grid.cells import Cell

SECONDS = 240.0


def main(argv: Sequence[str] | None = None) -> int:
    """Plays cells, says what became of each, and returns 1 if anything was found."""
    args = _parser().parse_args(argv)
    before = read().get("grid") if args.resume else None
    known = {detail["cell"] for detail in before["details"]} if before else set()
    cells = [cell for cell in all_cells() if not (args.without_spark and cell.needs_spark) and str(cell) not in known]
    seed = random.SystemRandom().randrange(100_000) if args.seed is None else args.seed
    wanted = chosen(cells, args.cells.split(",")) if args.cells else rota(cells, seed)
    if args.list:
        _say("\n".join(map(str, wanted if args.cells or args.seed is not None else cells)))
        return 0
    if not wanted:
        _say(f"No cell is like {args.cells!r}; --list shows them.")
        return 2
    folder = args.folder or Path(tempfile.mkdtemp(prefix="grid-"))
    if folder.exists() and any(folder.iterdir()):
        _say(f"The folder {folder} is not empty; name another one.")
        return 2
    spark = not args.without_spark and (not args.cells or any(cell.needs_spark for cell in wanted))
    if spark:
        ensure_archive()  # half a minute once, and less at each of the many starts
    needed = {cell.pipeline for cell in wanted}
    plan = Plan(
        spark=spark,
        pipelines=tuple(role for role in PIPELINES if role in needed),
        minio=args.minio,
        rate=args.rate,
        retention_s=args.retention or (90.0 if spark else 20.0),
        sabotage=os.environ.get(BREAK, ""),
    )
    seconds = None if args.all or args.cells else args.seconds
    _say(f"seed {seed}: {len(wanted)} cells{'' if seconds is None else f', as many as begin within {seconds:g} s'}")
    total = Result(folder)
    again: list[list[Cell]] = []
    for world in play_in_worlds(plan, wanted, folder, clock=SYSTEM, seconds=seconds, say=_say):
        total += world
        again += [world.tried] if world.failures and world.tried else []
        if args.record:  # after each world, because all of them take hours
            write(_attack(total, seed, args, before))
    _summarise(total, wanted, seed)
    if total.failures:
        _say(f"The histories are kept in {folder}. To play the same cells again:")
        for tried in again:
            _say(f"  {shlex.join(_command(args, seed, ','.join(map(str, tried))))}")
        return 1
    if args.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.grid", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the cells (with --seed: in its order) and end")
    parser.add_argument("--cells", metavar="GLOBS", help="only these, such as 'producer/kill/entry:after,server/*'")
    parser.add_argument("--all", action="store_true", help="all cells, however long it takes")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="no cell begins later (default %(default)g)")
    parser.add_argument("--seed", type=int, help="of the choice of cells and of their order (default: a new one)")
    parser.add_argument("--rate", type=float, default=100.0, help="messages per second (default %(default)g)")
    parser.add_argument("--retention", type=float, metavar="S", help="log retention (default 90, without Spark 20)")
    parser.add_argument("--minio", action="store_true", help="on MinIO instead of the embedded server")
    parser.add_argument("--without-spark", action="store_true", help="no pipeline, and none of its cells")
    parser.add_argument("--folder", type=Path, help="for histories and data (default: a temporary one)")
    parser.add_argument("--record", action="store_true", help="write docs/proof/grid.json")
    parser.add_argument("--resume", action="store_true", help="leave out what docs/proof/grid.json says was survived")
    return parser


def _command(args: argparse.Namespace, seed: int, cells: str) -> list[str]:
    command = ["python", "-m", "tests.grid", "--seed", str(seed), "--rate", f"{args.rate:g}"]
    command += ["--retention", f"{args.retention:g}"] if args.retention else []
    command += ["--minio"] if args.minio else []
    command += ["--without-spark"] if args.without_spark else []
    return command + (["--cells", cells] if cells else ["--all"] if args.all else ["--seconds", f"{args.seconds:g}"])


def _summarise(result: Result, wanted: Sequence[Cell], seed: int) -> None:
    roles = Counter(cell.role for cell, _ in result.played)
    faults = Counter(cell.fault for cell, _ in result.played)
    _say(f"{len(result.played)} of {len(wanted)} cells in {result.seconds:.0f} s, seed {seed}")
    for title, counts in (("roles", roles), ("faults", faults), ("world", result.counts)):
        _say(f"  {title}: " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()) if count))
    _say("OK" if not result.failures else f"FAILED: {len(result.failures)} found")
    for line in result.failures[:20]:
        _say(f"  {line}")


def _attack(result: Result, seed: int, args: argparse.Namespace, before: dict[str, Any] | None) -> Attack:
    roles = Counter(f"role {cell.role}" for cell, _ in result.played)
    faults = Counter(f"fault {cell.fault}" for cell, _ in result.played)
    counts: Counter[str] = Counter(cells=len(result.played)) + roles + faults + result.counts
    details = [{"cell": str(cell), "seconds": round(took, 1), "commit": git_commit()} for cell, took in result.played]
    seconds = result.seconds
    if before is not None:  # what went before counts on, but for its failures: their cells were played again
        counts.update(before["counts"])
        details = [{"commit": before["commit"], **detail} for detail in before["details"]] + details
        seconds += before["seconds"]
    command = shlex.join(_command(args, seed, args.cells or ""))
    return Attack("grid", command, seconds, dict(counts), result.failures, (seed, seed), details)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no role outlives its world
    try:
        sys.exit(main())
    except ConfigError as error:  # no MinIO binary, a port that is taken
        sys.exit(str(error))
