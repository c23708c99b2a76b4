"""``brokerless topics alter|forget``: change a topic's columns and what it keeps."""

from __future__ import annotations

import getpass
import sys
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, connect, examples, help_of
from brokerless.cli.output import Progress, print_json, print_table, say
from brokerless.clock import duration_s
from brokerless.errors import ConfigError
from brokerless.schema import FIXED_COLUMNS, Schema

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic's name.", show_default=False)]
RetentionOption = Annotated[
    str | None,
    typer.Option(
        "--retention",
        metavar="TIME",
        help="Messages go when they are older, such as 12h or 7d; 'until-read': when every group has read them; "
        "'forever': never.",
        show_default=False,
    ),
]
RetentionBytesOption = Annotated[
    str | None,
    typer.Option(
        "--retention-bytes",
        metavar="SIZE",
        help="The oldest messages go when a partition is larger, such as 50GB; 0: never.",
        show_default=False,
    ),
]
CompactByOption = Annotated[
    str | None,
    typer.Option(
        "--compact-by",
        metavar="COLUMN",
        help="Only the latest message for each value of this column stays in the table; a message with nothing else "
        "deletes the value. An empty text switches it off.",
        show_default=False,
    ),
]
AddOption = Annotated[
    list[str] | None,
    typer.Option(
        "--add",
        metavar="COLUMNS",
        help='More columns, such as "ref string, price decimal(10,2)"; may be repeated.',
        show_default=False,
    ),
]
DropOption = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="COLUMN", help="Refused: says what to do instead.", hidden=True),
]
RenameOption = Annotated[
    list[str] | None,
    typer.Option("--rename", metavar="OLD=NEW", help="Refused: says what to do instead.", hidden=True),
]
_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def register(topics: typer.Typer) -> None:
    """Add the verbs to ``brokerless topics``."""
    topics.command(
        name="alter",
        help=help_of(alter),
        epilog=examples(
            'brokerless topics alter clicks --add "ref string"',
            "brokerless topics alter clicks --retention 7d --retention-bytes 50GB",
            "brokerless topics alter jobs --retention until-read",
            "brokerless topics alter users --compact-by user",
        ),
    )(alter)
    topics.command(
        name="forget",
        help=help_of(forget),
        epilog=examples(
            "brokerless topics forget clicks --where \"user = 'u194'\" --dry-run",
            "brokerless topics forget clicks --where \"user = 'u194'\" --yes",
        ),
    )(forget)


def alter(
    ctx: typer.Context,
    *,
    name: Name,
    retention: RetentionOption = None,
    retention_bytes: RetentionBytesOption = None,
    compact_by: CompactByOption = None,
    add: AddOption = None,
    drop: DropOption = None,
    rename: RenameOption = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add columns to a topic, or change how long it keeps its messages.

    Producers, pipelines and readers go on. Messages from before have no value in a new column; a pipeline reads it
    after its next start. 'brokerless maintain' removes what is beyond the limits.
    """
    options = common(ctx, profile, root, as_json)
    if drop or rename:
        raise ConfigError(f"A column cannot be dropped or renamed. {FIXED_COLUMNS}")
    settings = options.settings()
    from brokerless.alter import add_columns, alter_topic, describe_limits, limits_of
    from brokerless.topics import describe_topic

    store = connect(settings)
    limits = limits_of(
        describe_topic(store, name).schema,
        **retention_of(retention),
        retention_bytes=None if retention_bytes is None else size_of(retention_bytes),
        compact_by=compact_by,
    )
    if not limits and not add:
        raise ConfigError("There is nothing to change; give --add, --retention, --retention-bytes or --compact-by.")
    if add:
        topic = add_columns(store, name, Schema.parse(", ".join(add)))
    if limits:
        topic = alter_topic(store, name, limits)
    if options.as_json:
        print_json({"topic": name, "limits": topic.limits, "schema": str(topic.schema)})
    elif limits:
        say(f"Topic {name}: {describe_limits(topic.limits)}.")
    else:
        say(f"Topic {name}: {topic.schema}.")


def forget(
    ctx: typer.Context,
    *,
    name: Name,
    where: Annotated[
        str,
        typer.Option(
            "--where", metavar="CONDITION", help="Which messages: COLUMN = VALUE [and ...].", show_default=False
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the messages.")] = False,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="NAME", help="Who asks, for the audit line in the log.", show_default="your name"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove messages that must not stay, such as a user's who asks to be forgotten.

    The other messages stay, with their offsets, and no reader gets them again. Other engines do not see the removed
    ones any more; 'brokerless maintain' removes the objects that held them after its grace time (an hour).
    """
    options = common(ctx, profile, root, as_json)
    settings = options.settings()
    from brokerless.maintenance.erasure import erase_messages

    store = connect(settings)
    if not dry_run and not yes:
        if options.as_json or not sys.stdin.isatty():
            raise ConfigError("Removing messages needs confirmation, and there is no terminal: give --yes.")
        typer.confirm(f"Remove the messages of {name} with {where}?", abort=True, err=True)
    with Progress("Reading", unit="objects") as progress:
        found = erase_messages(
            store,
            name,
            where,
            dry_run=dry_run,
            by=by or getpass.getuser(),
            on_object=lambda done, _: progress.update(done),
        )
    if options.as_json:
        print_json([asdict(one) for one in found])
        return
    print_table(
        ("partition", "messages", "objects", "commit"),
        [(one.partition, one.messages, one.objects, "-" if one.version is None else one.version) for one in found],
    )
    total = sum(one.messages for one in found)
    if dry_run or not total:
        say(f"{total} messages of {name} would be removed.")
    else:
        say(
            f"{total} messages of {name} were removed from the table. Readers of the log no longer find them once "
            "'brokerless maintain' has run, an hour from now or later."
        )


def retention_of(text: str | None) -> dict[str, Any]:
    """Return the limits that ``--retention`` means.

    Raises:
        ConfigError: it means none.
    """
    if text is None:
        return {}
    if text == "until-read":
        return {"retention_s": 0.0, "until_read": True}
    if text == "forever":
        return {"retention_s": 0.0, "until_read": False}
    try:
        return {"retention_s": duration_s(text), "until_read": False}
    except ValueError as error:
        raise ConfigError(f"--retention: {error}; or until-read, or forever.") from None


def size_of(text: str) -> int:
    """Return the bytes that a size such as ``50GB`` means.

    Raises:
        ConfigError: it is no size.
    """
    number = text.strip().rstrip("kKmMgGtTbB")
    unit = text.strip()[len(number) :].upper()
    try:
        return int(float(number) * _UNITS[unit])
    except (ValueError, KeyError):
        raise ConfigError(f"--retention-bytes: {text!r} is not a size; write 500MB or 50GB.") from None
