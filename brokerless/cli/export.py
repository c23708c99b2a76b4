"""``brokerless export``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, connect, examples, help_of
from brokerless.cli.output import Progress, print_json, say
from brokerless.cli.reading import FROM_HELP, REWRITES_HELP, UNTIL_HELP, TopicName, start_of
from brokerless.cli.signals import stop_on_signals
from brokerless.offsets import parse_start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerless.consumer import Batch


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command(
        help=help_of(export),
        epilog=examples(
            "brokerless export timezone_unified results.csv --expect 10 --timeout 60",
            "brokerless export clicks clicks.parquet --once --json   (save the output in position.json)",
            "brokerless export clicks more.parquet --once --from @position.json",
            "brokerless export clicks day.parquet --from 2026-11-20 --until 2026-11-21",
        ),
    )(export)


def export(
    ctx: typer.Context,
    *,
    topic: TopicName,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The file to write, ending in .csv, .jsonl or .parquet; an existing one is replaced.",
            show_default=False,
        ),
    ],
    start: Annotated[str, typer.Option("--from", metavar="POSITION", help=FROM_HELP)] = "beginning",
    until: Annotated[str | None, typer.Option("--until", metavar="POSITION", help=UNTIL_HELP)] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop at the current end of the topic.")] = False,
    expect: Annotated[
        int | None,
        typer.Option("--expect", metavar="N", min=0, help="Stop after N messages; exit 1 if there are fewer or more."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="S", min=0, help="Stop after S seconds; with --expect: exit 1."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Do not escape CSV texts that a spreadsheet would run as formulas.")
    ] = False,
    accept_rewrites: Annotated[bool, typer.Option("--accept-rewrites", help=REWRITES_HELP)] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stream a topic into a file until Ctrl-C or a limit (--once, --until, --expect, --timeout).

    The file is complete then.

    CSV is for spreadsheets: all fields are quoted, decimals are plain, and the columns time (the reader's minibatch in
    milliseconds) and diff (1) are added; a text that a spreadsheet would run as a formula gets a leading '. JSON lines
    and Parquet contain the unchanged messages, with _produced_at. CSV and JSON lines can be read while they grow.

    With --json, the command prints the next offset of each partition and the ids of their tables. With --from @FILE,
    the next run continues there; it refuses a topic that was deleted and created again.
    """
    options = common(ctx, profile, root, as_json)
    begin = start_of(start)
    end = None if until is None else parse_start(until)
    settings = options.settings()
    from brokerless.export.topic import export_topic

    store = connect(settings)
    rows = 0
    with Progress(f"Writing {file}", total=expect) as progress, stop_on_signals() as stop:

        def count(batches: Sequence[Batch]) -> None:
            nonlocal rows
            rows += sum(batch.data.num_rows for batch in batches)
            progress.update(rows)

        done = export_topic(
            topic,
            file,
            store=store,
            start=begin,
            until=end,
            once=once,
            expect=expect,
            timeout_s=timeout,
            stop=stop,
            on_batches=count,
            raw=raw,
            accept_rewrites=accept_rewrites,
        )
    if options.as_json:
        print_json({**done.position.to_dict(), "file": str(file), "messages": done.rows})
    else:
        say(f"{done.rows:,} message{'' if done.rows == 1 else 's'} of {topic} in {file}.")
