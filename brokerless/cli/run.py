"""``brokerless run``."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokerless.cli.app import (
    JsonOption,
    ProfileOption,
    RootOption,
    common,
    connect,
    examples,
    help_of,
)
from brokerless.cli.signals import handling
from brokerless.spark.conf import Engine  # typer reads the annotations

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from types import FrameType


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
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
    from brokerless.local.jobs import check_job, job_script, start_job
    from brokerless.local.processes import end_group
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
    arguments += ["--until", until] if until else []
    arguments += ["--versions", ",".join(versions)] if versions else []
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
    """Pass the signals that ask for an end on to a process, also those that came before it was there."""
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

    with handling(handle, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield forward
