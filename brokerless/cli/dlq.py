"""``brokerless dlq list|show|redrive|purge``: dead letters, and what to do with them."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path  # noqa: TC003  # typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, connect, examples, help_of
from brokerless.cli.output import print_json, print_table, printable, say
from brokerless.errors import ConfigError
from brokerless.offsets import parse_start

if TYPE_CHECKING:
    from brokerless.cli.app import Common
    from brokerless.dlq import DeadLetters
    from brokerless.offsets import Start

_POSITION = "a position in the dead letters: beginning, latest, an offset such as 12:3, or a time with a UTC offset."

Output = Annotated[
    str,
    typer.Argument(
        metavar="OUTPUT",
        help="The pipeline's output topic, or the topic that messages were to be ingested into.",
        show_default=False,
    ),
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only those whose reason contains this text.")
]
FromOption = Annotated[str, typer.Option("--from", metavar="POSITION", help=f"Where to begin: {_POSITION}")]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="POSITION", help="Where to stop before, likewise; default: the end.")
]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most so many.")]
AllOption = Annotated[bool, typer.Option("--all", help="Those that were redriven, too.")]

dlq = typer.Typer(
    no_args_is_help=True,
    help="Dead letters: what a pipeline could not process, or ingestion refused.",
    rich_markup_mode="rich",
)


def register(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    dlq.command(
        name="list",
        help=help_of(list_),
        epilog=examples("brokerless dlq list clean", "brokerless dlq list clean --all --json"),
    )(list_)
    dlq.command(
        name="show",
        help=help_of(show),
        epilog=examples(
            "brokerless dlq show clean --limit 10",
            "brokerless dlq show clean --reason zone --json   (save the output in dead.jsonl)",
        ),
    )(show)
    dlq.command(
        name="redrive",
        help=help_of(redrive),
        epilog=examples(
            "brokerless dlq redrive clean --dry-run",
            "brokerless dlq redrive clean --reason zone --until 2026-11-21T09:00:00+00:00",
            "brokerless dlq redrive clean --file dead.jsonl   (lines of show --json, edited)",
        ),
    )(redrive)
    dlq.command(
        name="purge",
        help=help_of(purge),
        epilog=examples("brokerless dlq purge clean --dry-run", "brokerless dlq purge clean --until 40:0 --yes"),
    )(purge)
    app.add_typer(dlq, name="dlq")


def _open(options: Common, output: str) -> DeadLetters:
    from brokerless.dlq import DeadLetters

    return DeadLetters(connect(options.settings()), output)


def _until(text: str | None) -> Start | None:
    return None if text is None else parse_start(text)


def list_(
    ctx: typer.Context,
    *,
    output: Output,
    start: FromOption = "beginning",
    until: UntilOption = None,
    redriven: AllOption = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count dead letters by reason, the most frequent first."""
    options = common(ctx, profile, root, as_json)
    found = _open(options, output).reasons(start=parse_start(start), until=_until(until), redriven=redriven)
    if options.as_json:
        print_json([{"reason": reason, "messages": count} for reason, count in found.items()])
    elif found:
        print_table(("messages", "reason"), [(count, reason) for reason, count in found.items()])
    say(f"{sum(found.values()):,} dead letters of {output}{'' if redriven else ' to redrive'}.")


def show(
    ctx: typer.Context,
    *,
    output: Output,
    reason: ReasonOption = None,
    start: FromOption = "beginning",
    until: UntilOption = None,
    limit: LimitOption = None,
    redriven: AllOption = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show dead letters: their columns, the reason, and the topic, partition and offset that they came from.

    With --json a line is a row that can be edited and redriven with --file. Its _position is the dead letter's own
    offset, by which it is sent once; the other names that begin with _ are for information.
    """
    options = common(ctx, profile, root, as_json)
    found = _open(options, output).messages(
        reason=reason, start=parse_start(start), until=_until(until), limit=limit, redriven=redriven
    )
    for one in found:
        if options.as_json:
            print(one.json)
            continue
        where = f"{one.row['_topic']}/{one.row.get('_partition', 0)} {one.row.get('_offset', '')}".rstrip()
        print(f"{one.position}  {printable(where)}  {printable(one.reason)}{'  (redriven)' if one.redriven else ''}")
        values = {name: value for name, value in one.row.items() if value is not None and name[0] != "_"}
        values |= {name: one.row[name] for name in ("_body",) if one.row.get(name) is not None}
        print("    " + printable("  ".join(f"{name}={value}" for name, value in values.items())))


def redrive(
    ctx: typer.Context,
    *,
    output: Output,
    reason: ReasonOption = None,
    start: FromOption = "beginning",
    until: UntilOption = None,
    limit: LimitOption = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Send these rows, and no others: edited lines of 'dlq show --json'."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, and send nothing.")] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters back into the topics that they came from, each exactly once, to be processed again.

    Correct the pipeline first, or the rows in a file. What was redriven is not offered again; what fails again is a new
    dead letter. After a crash run the same command again: it sends what is missing.
    """
    options = common(ctx, profile, root, as_json)
    if file is not None and (reason is not None or start != "beginning" or until is not None or limit is not None):
        raise ConfigError("--file says which dead letters are sent; leave out --reason, --from, --until and --limit.")
    lines: list[str] | None = None
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"Cannot read {file} ({getattr(error, 'strerror', None) or error}); name a file of JSON lines."
            ) from None
    done = _open(options, output).redrive(
        reason=reason,
        start=parse_start(start),
        until=_until(until),
        limit=limit,
        edited=lines,
        source=str(file),
        dry_run=dry_run,
    )
    if options.as_json:
        print_json({"output": output, "dry_run": dry_run, **asdict(done)})
        return
    if done.finished:
        say(f"{done.finished:,} dead letters that an interrupted redrive had left were sent first.")
    if done.already:
        say(f"{done.already:,} rows were left out: they had been redriven before.")
    if done.topics:
        print_table(("topic", "messages"), sorted(done.topics.items()))
    say(f"{done.messages:,} dead letters of {output} {'would be' if dry_run else 'were'} sent again.")


def purge(
    ctx: typer.Context,
    *,
    output: Output,
    until: Annotated[str, typer.Option("--until", metavar="POSITION", help=f"Where to stop before: {_POSITION}")] = (
        "latest"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove dead letters from the first one up to a position.

    Commits are removed as a whole: the one that holds the position stays. Other engines do not see the dead letters any
    more; 'brokerless maintain' removes their objects when the topic's retention is over.
    """
    options = common(ctx, profile, root, as_json)
    dead_letters = _open(options, output)
    begin = parse_start(until)
    found = dead_letters.purge(until=begin, dry_run=True)
    if not dry_run:
        if not yes:
            if options.as_json or not sys.stdin.isatty():
                raise ConfigError("Removing dead letters needs confirmation, and there is no terminal: give --yes.")
            question = f"Remove {found.messages:,} dead letters of {output}, {found.not_redriven:,} not redriven?"
            typer.confirm(question, abort=True, err=True)
        found = dead_letters.purge(until=found.until)  # what came while you were asked stays
    shown: dict[str, Any] = {**asdict(found), "until": str(found.until)}
    if options.as_json:
        print_json({"output": output, "dry_run": dry_run, **shown})
        return
    say(
        f"{found.messages:,} dead letters of {output} {'would be' if dry_run else 'were'} removed, "
        f"{found.not_redriven:,} of them not redriven; the first that stays is at {found.until}."
    )
