"""The benchmark: compare brokerless with its alternatives on this machine, with a check of every message.

    python -m benchmarks --peers brokerless,kafka --range-start 10000 --range-end 70000 --range-step 30000

The options of Pathway's published benchmark have the same names, meanings and defaults here. Load is open-loop: each
message has an intended send time, from which its latency is measured. Each message has an id, so that loss, duplicates
and disorder are found. The exit code is 0 only if every run was clean.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from benchmarks import measure
from benchmarks.peers import PEERS, load
from benchmarks.run import Outcome, run
from benchmarks.session import Session, file_system
from benchmarks.spec import MAX_PRODUCERS, Backend, Pacing, Spec
from brokerless.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.result import Result

OVERHEAD_S: Final = 35.0
"""Seconds of a run in addition to its sending: servers and Spark start, the rest is read."""

_CLEAR: Final = "\r\033[K"

RESULTS: Final = Path(__file__).parent / "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark with these arguments, and return the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    specs = list(plan(args, parser))
    # A signal must end the servers and Spark, too: as an exception, it closes the contexts that started them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    command = "python -m benchmarks " + shlex.join(sys.argv[1:] if argv is None else argv)
    session = Session.begin(args.name, args.title, command)
    if args.data_dir:
        session.notes.append(data_note(args.data_dir))
    progress = _Progress(specs, quiet=args.json)
    counted: dict[Spec, Outcome] = {}
    for number, (spec, repeat) in enumerate(specs):
        progress.run = number
        try:
            outcome = run(spec, args.cache, progress.say, data_dir=args.data_dir)
        except ConfigError as error:  # without MinIO or Java, no run is possible
            parser.error(str(error))
        outcome.result.repeat = repeat
        if args.count_seconds and outcome.result.stored_bytes is not None:
            if spec not in counted:
                short = replace(spec, seconds=args.count_seconds, warm_up_s=0.0)
                counted[spec] = run(short, args.cache, progress.say, count=True, data_dir=args.data_dir)
            outcome.add_requests(counted[spec])
        outcome.add_bill(spec)
        session.runs.append(outcome.result)
        _csv(outcome, spec, args.csv)
        session.save(args.out)  # after each run, so that later errors do not lose its results
        progress.done(outcome.result)
    progress.close()
    if args.json:
        print(json.dumps(session.to_json()))
    else:
        print(f"Results: {session.path(args.out)}. Report: python -m tools.pages benchmark")
    return 0 if all(r.clean or r.skipped for r in session.runs) else 1


def plan(args: argparse.Namespace, parser: argparse.ArgumentParser) -> Iterator[tuple[Spec, int]]:
    """Yield the runs in order, each with the number of its repetition."""
    if args.seconds_to_stream <= args.warm_up:
        parser.error(f"--seconds-to-stream {args.seconds_to_stream:g} leaves nothing after --warm-up {args.warm_up:g}")
    if (args.rates and min(args.rates) < 1) or not set(args.hops) <= {1, 2}:
        parser.error("--rates must be 1 or more; --hops must be 1, 2 or both")
    if not 1 <= args.range_start <= (args.range_end or args.range_start) <= 10_000_000 or args.range_step < 1:
        parser.error("--range-start, --range-end and --range-step must be positive, and the end not below the start")
    if not 1 <= args.producers <= MAX_PRODUCERS or args.partitions < 1 or args.repeat < 1:
        parser.error(f"--producers must be 1 to {MAX_PRODUCERS}; --partitions and --repeat must be 1 or more")
    if args.data_dir and not os.access(args.data_dir, os.W_OK | os.X_OK):
        parser.error(f"--data-dir must be a writable folder, got {args.data_dir}")
    rates = args.rates or range(args.range_start, (args.range_end or args.range_start) + 1, args.range_step)
    kinds = {name: load(name) for name in args.peers}
    runs = [
        (repeat, rate, hops, peer)
        for repeat in range(1, args.repeat + 1)
        for rate in rates
        for hops in args.hops
        for peer in args.peers
        if hops in kinds[peer].hops
    ]
    if not args.interleave:
        runs.sort(key=lambda r: (args.peers.index(r[3]), r[2], r[1], r[0]))
    for repeat, rate, hops, peer in runs:
        yield (
            Spec(
                peer=peer,
                rate=rate,
                hops=hops,
                pacing=args.pacing,
                seconds=args.seconds_to_stream,
                warm_up_s=args.warm_up,
                commit_ms=args.autocommit_duration_ms,
                payload_bytes=args.payload_bytes,
                partitions=args.partitions,
                producers=args.producers,
                backend=args.s3_backend,
            ),
            repeat,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=(__doc__ or "").split("\n\n", 1)[0],
        epilog=(__doc__ or "").rsplit("\n\n", 1)[1],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--range-start", type=int, default=10_000, help="messages per second of the first run")
    add("--range-end", type=int, help="messages per second of the last run, inclusive (default: --range-start)")
    add("--range-step", type=int, default=10_000, help="difference between the rates of two runs")
    add("--rates", type=numbers, metavar="N,N", help="a list of rates instead of a range")
    add("--seconds-to-stream", type=float, default=300.0, help="duration of sending, including the warm-up")
    add("--s3-backend", choices=get_args(Backend), default="minio", help="the object store")
    add(
        "--autocommit-duration-ms",
        type=int,
        default=1000,
        help="time between two commits of a producer, and of a pipeline in real-time mode; micro-batches commit as "
        "fast as they can, and brokers receive messages one by one",
    )
    add(
        "--peers",
        type=_peers,
        default=["brokerless"],
        metavar="NAME,NAME",
        help=f"a list of {', '.join(PEERS)}; or all",
    )
    add("--pacing", choices=get_args(Pacing), default="smooth", help="bursty: 10,000 messages at once, as published")
    add("--hops", type=numbers, default=[2], metavar="1|2|1,2", help="1: producer to reader; 2: through Spark")
    add("--payload-bytes", type=int, default=0, help="bytes added to each message of 48 bytes")
    add("--partitions", type=int, default=1, help="partitions of each of the two input topics")
    add("--producers", type=int, default=2, help="number of sending processes")
    add("--warm-up", type=float, default=30.0, help="seconds at the start that are not measured")
    add("--repeat", type=int, default=1, help="number of repetitions of each run")
    add(
        "--interleave",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let peers take turns, so that noise affects all",
    )
    add("--count-seconds", type=float, default=15.0, help="seconds of the pass that counts S3 requests; 0 omits it")
    add("--name", default="latest", help="name of the results file")
    add("--title", default="A run of the benchmark", help="title of its table in the report")
    add("--out", type=Path, default=RESULTS, help="folder of the results file")
    add("--csv", type=Path, default=Path("benchmark-results"), help="folder for a RATE.csv in the published format")
    add("--cache", type=Path, default=default_cache(), help="folder for files that peers download on first use")
    add("--data-dir", type=Path, help="folder for the data of local stores and brokers (/dev/shm: no disk)")
    add("--json", action="store_true", help="print the results as one JSON object on standard output, without progress")
    return parser


def data_note(folder: Path) -> str:
    """Return a note about the storage of a run's data."""
    kind = file_system(folder)
    memory = ", which is memory: no disk takes part" if kind == "tmpfs" else ""
    return f"Data on {kind}: local stores and brokers kept theirs there{memory}."


def numbers(text: str) -> list[int]:
    """Parse a comma-separated list of numbers."""
    return [int(part) for part in text.split(",")]


def _peers(text: str) -> list[str]:
    names = list(PEERS) if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"unknown peer {unknown[0]!r}; known are {', '.join(PEERS)}")
    return names


def default_cache() -> Path:
    """Return the default folder for files that peers download."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "brokerless" / "bench"


def _csv(outcome: Outcome, spec: Spec, folder: Path) -> None:
    """Write ``RATE.csv``; runs that differ from the published peer and hops get their own folder."""
    if outcome.arrivals is None or not len(outcome.arrivals):
        return
    latencies = measure.latencies(spec, outcome.arrivals, outcome.begin)
    arrived = outcome.begin + latencies.intended_s + latencies.latency_s - outcome.opened
    path = folder / f"{spec.peer}-{spec.hops}-{spec.pacing}" / f"{spec.rate}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(measure.published_csv(latencies.latency_s, arrived, spec.rate, spec.warm_up_s))


class _Progress:
    """Progress with the expected time: a line that is rewritten on a terminal, otherwise one line per run."""

    def __init__(self, specs: Sequence[tuple[Spec, int]], *, quiet: bool) -> None:
        self.run = 0
        self._specs = [spec for spec, _ in specs]
        self._live = sys.stderr.isatty() and not quiet
        self._quiet = quiet

    def say(self, text: str, left_s: float) -> None:
        if not self._live:
            return
        later = sum(spec.seconds + OVERHEAD_S for spec in self._specs[self.run + 1 :])
        line = f"{self._title()}: {text}, {left_s:.0f} s; all in about {(left_s + later) / 60:.0f} min"
        print(f"{_CLEAR}{line}", end="", file=sys.stderr, flush=True)

    def done(self, result: Result) -> None:
        if not self._quiet:
            print(f"{_CLEAR if self._live else ''}{self._title()}: {summary(result)}", file=sys.stderr, flush=True)

    def _title(self) -> str:
        spec = self._specs[self.run]
        hops = "1 hop" if spec.hops == 1 else f"{spec.hops} hops"
        return f"[{self.run + 1}/{len(self._specs)}] {spec.peer} {spec.rate:,}/s {hops}"

    def close(self) -> None:
        if self._live:
            print(_CLEAR, end="", file=sys.stderr, flush=True)


def summary(result: Result) -> str:
    """Return a run in one line."""
    if result.skipped:
        return f"skipped: {result.skipped}"
    if result.p50_s is None:
        return "NOT CLEAN: " + "; ".join(result.problems)
    text = f"p50 {result.p50_s:.3f} s  p99 {result.p99_s:.3f} s  max {result.max_s:.3f} s"
    if result.cpu_s_per_million is not None:
        text += f"  {result.cpu_s_per_million:.1f} CPU s/million"
    if result.requests_per_million is not None:
        text += f"  {result.requests_per_million:,.0f} requests/million"
    return f"{text}  {'clean' if result.clean else 'NOT CLEAN: ' + '; '.join(result.problems)}"


if __name__ == "__main__":
    sys.exit(main())
