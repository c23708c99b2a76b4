"""``brokerless demo``."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from brokerless.cli.app import (
    JsonOption,
    ProfileOption,
    RootOption,
    common,
    environment,
    examples,
    help_of,
)
from brokerless.cli.output import print_json, print_table, say
from brokerless.cli.server import state_dir
from brokerless.cli.signals import handling
from brokerless.errors import ConfigError

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from rich.status import Status

    from brokerless.examples.timezone.demo import DemoServer, Report


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command(
        help=help_of(demo),
        epilog=examples(
            "brokerless demo", "brokerless demo --profile minio", "brokerless demo --messages 40 --interval 0.1"
        ),
    )(demo)


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
    with handling(_leave, signal.SIGTERM), _Steps() as steps:
        steps.step(f"Starting the S3 server ({chosen})")
        with demo_server(
            "minio" if chosen == "minio" else "embedded",
            state_dir=state_dir(),
            environ=environ,
            base=options.root,
            keep=keep,
        ) as server:
            steps.note(f"{chosen} at {server.settings.endpoint}, topics in {server.settings.root}")
            shown = run_demo(server.settings, results=results, watcher=steps, messages=messages, interval_s=interval)
    seconds = time.monotonic() - begun
    if options.as_json:
        print_json(_demo_as_dict(shown, server, seconds))
    else:
        _show_demo(shown, server, seconds)


def _show_demo(shown: Report, server: DemoServer, seconds: float) -> None:
    from brokerless.export.text import plain_decimal

    print_table(
        ("message", "from", "date", "timestamp (ms)", "latency (s)"),
        [(r.message, r.topic, r.date, plain_decimal(r.timestamp), f"{r.latency_s:.3f}") for r in shown.rows],
        title=f"timezone_unified, as in {shown.results}",
    )
    print(f"End-to-end latency: p50 {shown.p50_s:.3f} s, p99 {shown.p99_s:.3f} s of {len(shown.rows)} messages.")
    print(f"The tables are in {server.settings.root} ({_disk(server)}). Look at them with:")
    print(f"  {_look(server)}")
    say(f"Done in {seconds:.1f} s.")


def _look(server: DemoServer) -> str:
    flag = "--profile minio " if server.settings.profile == "minio" else ""
    return f"{server.again}brokerless {flag}tail timezone_unified --from beginning --once --root {server.settings.root}"


def _disk(server: DemoServer) -> str:
    folder = "s3" if server.settings.profile == "embedded" else "minio"
    here = server.settings.state_dir / folder
    return f"objects under {here}" if here.is_dir() else f"on {server.settings.endpoint}"


def _demo_as_dict(shown: Report, server: DemoServer, seconds: float) -> dict[str, Any]:
    return {
        "root": server.settings.root,
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
        "look": _look(server),
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
        timed = f"[{time.monotonic() - self._begun:5.1f} s] {text}"
        if self._status is None:
            say(timed)
        else:
            # By way of the spinner's console, which moves the spinner out of the way.
            self._status.console.print(timed, markup=False)


def _leave(number: int, frame: FrameType | None) -> None:
    """End the command as an error does, so that what it started is stopped."""
    raise SystemExit(128 + number)
