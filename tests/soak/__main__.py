"""``python -m tests.soak --minutes 30 --rate 50000 --minio``: everything runs, everything is struck; 1 if it shows."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from brokerless.errors import ConfigError
from tests.proof.results import Attack, write
from tests.soak.options import Options, Outcome
from tests.soak.run import Soak


def main(argv: list[str]) -> int:
    """Runs one soak and says what it found."""
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything that was started ends, too
    folder = args.folder or Path(tempfile.mkdtemp(prefix="brokerless-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    options = Options(
        seconds=args.minutes * 60,
        rate=args.rate,
        seed=args.seed,
        server="minio" if args.minio else "embedded",
        producers=args.producers,
        retention_s=args.retention,
        drain_s=args.drain,
        catch_up_s=args.catch_up,
        engine=args.engine,
    )
    _say(f"seed {args.seed}, files in {folder}")
    with contextlib.ExitStack() as stack:
        outcome = Soak(options, folder, stack, _say).run()
    _report(outcome)
    if args.record:
        attack = Attack(
            name="soak",
            # Without what only says where things go: that may be a folder of this machine.
            command=f"python -m tests.soak --minutes {args.minutes:g} --rate {args.rate} --seed {args.seed}"
            + (" --minio" if args.minio else "")
            + (" --engine micro-batch" if args.engine == "micro-batch" else ""),
            seconds=outcome.seconds,
            counts=outcome.counts,
            failures=outcome.failures,
            seeds=(args.seed, args.seed),
            details=outcome.details,
        )
        _say(f"written to {write(attack)}")
    if outcome.failures:
        _say(f"FAILED with seed {args.seed}; the files are in {folder}")
        return 1
    if args.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long messages are sent (default 30)")
    parser.add_argument("--rate", type=int, default=50_000, help="messages a second, together (default 50000)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults and their order (default 1)")
    parser.add_argument("--minio", action="store_true", help="MinIO instead of the embedded server")
    parser.add_argument("--engine", choices=["realtime", "micro-batch"], default="realtime", help="of the pipeline")
    parser.add_argument("--producers", type=int, default=2, metavar="N", help="processes that send (default 2)")
    parser.add_argument("--retention", type=float, default=300.0, metavar="S", help="of the logs (default 300 s)")
    parser.add_argument("--drain", type=float, default=300.0, metavar="S", help="to see everything (default 300 s)")
    parser.add_argument("--catch-up", type=float, default=120.0, metavar="S", help="between faults, at most (120 s)")
    parser.add_argument("--folder", type=Path, help="for all files; kept (default: a temporary one, kept on failure)")
    parser.add_argument("--record", action="store_true", help="write docs/proof/soak.json")
    return parser


def _report(outcome: Outcome) -> None:
    for name, count in outcome.counts.items():
        _say(f"{name:>22}: {count:,}")
    for detail in outcome.details:
        if "at_s" not in detail:
            _say("  " + "  ".join(f"{name} {value}" for name, value in detail.items()))
    for failure in outcome.failures:
        _say(f"FAILURE: {failure}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ConfigError as error:  # no MinIO binary, a port that is taken
        sys.exit(str(error))
