"""``brokerless run``, ``demo`` and ``maintain``."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from brokerless.cli.app import (
    JsonOption,
    ProfileOption,
    RootOption,
    common,
    connect,
    environment,
    examples,
    help_of,
)
from brokerless.cli.messages import stop_on_signals
from brokerless.cli.output import print_json, print_table, say
from brokerless.cli.server import state_dir
from brokerless.errors import ConfigError
from brokerless.spark.conf import Engine  # typer reads the annotations

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence
    from types import FrameType, TracebackType

    from rich.status import Status

    from brokerless.examples.timezone.demo import DemoServer, Report
    from brokerless.maintenance.step import Report as MaintenanceReport


def register(app: typer.Typer) -> None:
    """Adds the verbs to the command."""
    app.command(
        help=help_of(run),
        epilog=examples(
            "brokerless run by_section.py",
            "brokerless run by_section.py --once",
            "brokerless run by_section.py --commit-interval 20ms",
            "brokerless run by_section.py --output clean_v2 --from beginning --until now   (a replay, beside)",
            "brokerless run by_section.py --versions clicks/0=12:15   (what becomes of these commits)",
            "brokerless run timezone-etl   (the example)",
            "brokerless run timezone-etl --engine delta --output unified_by_delta",
        ),
    )(run)
    app.command(
        help=help_of(demo),
        epilog=examples(
            "brokerless demo", "brokerless demo --profile minio", "brokerless demo --messages 40 --interval 0.1"
        ),
    )(demo)
    app.command(
        help=help_of(maintain),
        epilog=examples(
            "brokerless maintain",
            "brokerless maintain timezone1 timezone2",
            "brokerless maintain --watch --interval 60",
        ),
    )(maintain)


def run(
    ctx: typer.Context,
    *,
    pipeline: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE",
            help="A Python file that defines one Pipeline, or the name of the example, timezone-etl.",
            show_default=False,
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Process what is there, then exit.")] = False,
    engine: Annotated[
        Engine,
        typer.Option(
            "--engine",
            help="realtime, micro-batch, auto (realtime where the transform allows it), or delta: stock delta-spark, "
            "for stateful SQL and comparison.",
        ),
    ] = "auto",
    commit_interval: Annotated[
        str | None,
        typer.Option(
            "--commit-interval",
            metavar="TIME",
            help="Least time between two commits, as 20ms or 1s: shorter is faster, and costs more requests. Default: "
            "100ms; for batches, as fast as they can.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="TOPIC", help="Another output topic; the delta engine needs one of its own."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--start", "--from", metavar="WHERE", help="Without progress: beginning, latest or a time."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="WHERE",
            help="Process what was committed before, then exit: now, a past time, or with one partition an offset "
            "such as 12:0.",
        ),
    ] = None,
    versions: Annotated[
        list[str] | None,
        typer.Option(
            "--versions",
            metavar="TOPIC/PARTITION=FIRST:LAST",
            help="Print what the transform makes of exactly these commits, as JSON lines, and write nothing; can be "
            "repeated.",
        ),
    ] = None,
    accept_new_input: Annotated[
        bool,
        typer.Option("--accept-new-input", help="Begin anew with an input that was removed and made again by hand."),
    ] = False,
    accept_rewrites: Annotated[
        bool,
        typer.Option("--accept-rewrites", help="Deliver again what another engine's delete or update has kept."),
    ] = False,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            "--skip",
            metavar="TABLE@VERSION:INDEX",
            help="Go on without a lost object; can be repeated.",
        ),
    ] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a pipeline on this machine, in its own process, until Ctrl-C.

    The file is the one that spark-submit, Glue and EMR Serverless run. Its inputs must be there; its output is created
    with the transform's columns if it is missing, and so is the topic for what the transform marks with dead_letter. A
    restart goes on exactly where it stopped. SIGTERM and Ctrl-C finish what is on its way; the pipeline's exit code
    is passed on.
    """
    options = common(ctx, profile, root, as_json)
    settings = options.settings()
    from brokerless.local.jobs import check_job, end_group, job_script, start_job
    from brokerless.spark.files import load_pipeline
    from brokerless.topics import describe_topic

    inputs = load_pipeline(job_script(pipeline)).inputs
    store = connect(settings, create=True)
    for topic in inputs:
        describe_topic(store, topic)  # a missing one is reported at once, not after Spark's start
    check_job(pipeline)
    arguments = ["--engine", engine, "--create-output"]
    arguments += ["--output", output] if output else []
    arguments += ["--start", start] if start else []
    arguments += ["--versions", ",".join(versions)] if versions else []
    arguments += ["--until", until] if until else []
    arguments += ["--commit-interval", commit_interval] if commit_interval else []
    arguments += ["--once"] if once else []
    arguments += ["--accept-new-input"] if accept_new_input else []
    arguments += ["--accept-rewrites"] if accept_rewrites else []
    arguments += ["--skip", ",".join(skip)] if skip else []
    arguments += ["--json"] if options.as_json else []
    with _forwarding() as forward:
        process = start_job(pipeline, settings, arguments)
        forward(process)
        code = process.wait()
        end_group(process)
    raise typer.Exit(code if code >= 0 else 128 - code)


@contextlib.contextmanager
def _forwarding() -> Iterator[Any]:
    """Passes the signals that ask for an end on to a process, also those that came before it was there."""
    target: list[subprocess.Popen[str]] = []
    early: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        # A terminal that closes means an end, too.
        wanted = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        if target:
            target[0].send_signal(wanted)
        else:
            early.append(wanted)

    def forward(process: subprocess.Popen[str]) -> None:
        target.append(process)
        for number in early:
            process.send_signal(number)

    if threading.current_thread() is not threading.main_thread():
        yield forward  # only the main thread may change handlers
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield forward
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def demo(
    ctx: typer.Context,
    *,
    messages: Annotated[int, typer.Option("--messages", metavar="N", min=1, help="How many to send.")] = 10,
    interval: Annotated[
        float, typer.Option("--interval", metavar="S", min=0, help="Seconds between two messages.")
    ] = 0.5,
    results: Annotated[
        Path, typer.Option("--results", metavar="FILE", help="Where the output is streamed to; is replaced.")
    ] = Path("results.csv"),
    keep: Annotated[bool, typer.Option("--keep", help="Leave the S3 server running.")] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the example from end to end: server, topics, pipeline, producer, reader.

    Messages dated in New York and Paris time go into two topics, the pipeline unifies them into a third, and a reader
    streams that to a file. Shows each message with its latency, from the producer's call to the reader. Everything
    that was started is stopped again; the tables stay, each run's below a root of its own.

    The profile embedded brings its own server. The profile minio uses the endpoint in AWS_ENDPOINT_URL, or a minio
    binary on PATH, or docker compose, in that order.
    """
    options = common(ctx, profile, root, as_json)
    environ = environment()
    chosen = options.profile or environ.get("BROKERLESS_PROFILE") or "embedded"
    if chosen not in ("embedded", "minio"):
        raise ConfigError(f"The demo brings its own server, and the profile is {chosen!r}; use embedded or minio.")
    if options.root is not None and not options.root.startswith("s3://"):
        from brokerless.settings import shown_url

        raise ConfigError(f"The demo runs on an S3 server; the root {shown_url(options.root)!r} must begin with s3://.")
    from brokerless.examples.timezone.demo import demo_server, run_demo

    begun = time.monotonic()
    with _terminate_as_exit(), _Steps() as steps:
        steps.step(f"Starting the S3 server ({chosen})")
        with demo_server(
            "minio" if chosen == "minio" else "embedded",
            state_dir=state_dir(),
            environ=environ,
            base=options.root,
            keep=keep,
        ) as place:
            steps.note(f"{chosen} at {place.settings.endpoint}, topics in {place.settings.root}")
            shown = run_demo(place.settings, results=results, watcher=steps, messages=messages, interval_s=interval)
    seconds = time.monotonic() - begun
    if options.as_json:
        print_json(_demo_as_dict(shown, place, seconds))
    else:
        _show_demo(shown, place, seconds)


def _show_demo(shown: Report, place: DemoServer, seconds: float) -> None:
    from brokerless.export.text import plain_decimal

    print_table(
        ("message", "from", "date", "timestamp (ms)", "latency (s)"),
        [(r.message, r.topic, r.date, plain_decimal(r.timestamp), f"{r.latency_s:.3f}") for r in shown.rows],
        title=f"timezone_unified, as in {shown.results}",
    )
    print(f"End-to-end latency: p50 {shown.p50_s:.3f} s, p99 {shown.p99_s:.3f} s of {len(shown.rows)} messages.")
    print(f"The tables are in {place.settings.root} ({_disk(place)}). Look at them with:")
    print(f"  {_look(place)}")
    say(f"Done in {seconds:.1f} s.")


def _look(place: DemoServer) -> str:
    flag = "--profile minio " if place.settings.profile == "minio" else ""
    return f"{place.again}brokerless {flag}tail timezone_unified --from beginning --once --root {place.settings.root}"


def _disk(place: DemoServer) -> str:
    folder = "s3" if place.settings.profile == "embedded" else "minio"
    here = place.settings.state_dir / folder
    return f"objects under {here}" if here.is_dir() else f"on {place.settings.endpoint}"


def _demo_as_dict(shown: Report, place: DemoServer, seconds: float) -> dict[str, Any]:
    return {
        "root": place.settings.root,
        "results": str(shown.results),
        "rows": [
            {
                "message": row.message,
                "topic": row.topic,
                "date": row.date,
                "timestamp": row.timestamp,
                "latency_s": round(row.latency_s, 6),
            }
            for row in shown.rows
        ],
        "p50_s": round(shown.p50_s, 6),
        "p99_s": round(shown.p99_s, 6),
        "seconds": round(seconds, 3),
        "look": _look(place),
    }


class _Steps:
    """The demo's progress on standard error: a spinner on a terminal, timed lines otherwise."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._status: Status | None = None
        self._text = ""

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True, highlight=False).status("")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def step(self, text: str) -> None:
        """A new phase begins."""
        self._text = text
        if self._status is not None:
            self._status.update(f"{text} ...")
        self._line(f"{text} ...")

    def note(self, text: str) -> None:
        """Something happened within the phase."""
        if self._status is not None:
            from rich.markup import escape

            self._status.update(f"{escape(self._text)}: {escape(text)}")
        self._line(f"  {text}")

    def _line(self, text: str) -> None:
        say_it = f"[{time.monotonic() - self._begun:5.1f} s] {text}"
        if self._status is None:
            say(say_it)
        else:
            # By way of the spinner's console, which moves the spinner out of the way.
            self._status.console.print(say_it, markup=False)


@contextlib.contextmanager
def _terminate_as_exit() -> Iterator[None]:
    """SIGTERM ends the command like an error does: what it started is stopped on the way out."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def maintain(
    ctx: typer.Context,
    *,
    topic: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Which; all below the root otherwise.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="S", min=1, help="With --watch: seconds between two rounds.")
    ] = 60.0,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Maintain topics: checkpoints, log clean-up, removal of objects that no entry names.

    Runs beside producers, pipelines and readers and never in their way. Other Delta tables are left alone unless you
    name them; then their own retention times hold.
    """
    options = common(ctx, profile, root, as_json)
    settings = options.settings()
    from brokerless.maintenance.maintainer import Maintainer

    store = connect(settings)
    if topic:
        from brokerless.topics import describe_topic

        for name in topic:
            describe_topic(store, name)
    maintainer = Maintainer(topic or None, settings=settings, store=store)
    if not watch:
        failed = _show_round(maintainer.run_once(), all_topics=not topic, as_json=options.as_json)
        raise typer.Exit(1 if failed else 0)
    with stop_on_signals() as stop:
        for reports in maintainer.watch(interval, stop):
            _show_round(reports, all_topics=not topic, as_json=options.as_json)
            sys.stdout.flush()


def _show_round(reports: Sequence[MaintenanceReport], *, all_topics: bool, as_json: bool) -> bool:
    """Shows what was done; returns whether something could not be."""
    from brokerless.maintenance.maintainer import NO_TABLE
    from brokerless.maintenance.step import NOT_OURS

    # Below a root there may be folders that are nobody's table, or somebody else's; only who names one wants to hear of
    # it.
    shown = [r for r in reports if not (all_topics and r.skipped in {(NO_TABLE,), (NOT_OURS,)})]
    if as_json:
        print_json([dataclasses.asdict(r) for r in shown])
    elif shown:
        print_table(
            ("table", "checkpoint", "entries removed", "objects removed", "MB freed", "not done"),
            [
                (
                    r.table,
                    "-" if r.checkpoint is None else r.checkpoint,
                    r.entries_removed,
                    r.objects_removed,
                    f"{r.bytes_removed / 1e6:.1f}",
                    "; ".join(r.skipped),
                )
                for r in shown
            ],
        )
    else:
        say("There are no topics to maintain.")
    return any(r.skipped for r in shown)
