"""``brokerless groups list|describe|reset|delete``: look at consumer groups, and reset or delete them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, connect, examples, help_of
from brokerless.cli.output import print_json, print_table, printable, say
from brokerless.errors import ConfigError
from brokerless.offsets import START_HELP, parse_reset

if TYPE_CHECKING:
    from brokerless.lag import PartitionLag

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.", show_default=False)]

groups = typer.Typer(
    no_args_is_help=True, help="List, describe, reset and delete consumer groups.", rich_markup_mode="rich"
)


def register(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    groups.command(
        name="list", help=help_of(list_), epilog=examples("brokerless groups list", "brokerless groups list --json")
    )(list_)
    groups.command(name="describe", help=help_of(describe), epilog=examples("brokerless groups describe billing"))(
        describe
    )
    groups.command(
        name="reset",
        help=help_of(reset),
        epilog=examples(
            "brokerless groups reset billing --to earliest --dry-run",
            "brokerless groups reset billing --to 1h",
            "brokerless groups reset billing --to 2026-11-21T09:00:00+00:00 --topic clicks",
            "brokerless groups reset billing --to -100 --topic clicks:3   (partition 3 only)",
        ),
    )(reset)
    groups.command(name="delete", help=help_of(delete), epilog=examples("brokerless groups delete billing --yes"))(
        delete
    )
    app.add_typer(groups, name="groups")


def list_(
    ctx: typer.Context, *, profile: ProfileOption = None, root: RootOption = None, as_json: JsonOption = False
) -> None:
    """List the consumer groups.

    A group is there from the first consumer that joined it until 'brokerless groups delete', also without members.
    """
    options = common(ctx, profile, root, as_json)
    settings = options.settings()
    from brokerless.groups.admin import list_groups

    found = list_groups(connect(settings))
    if options.as_json:
        print_json([one.to_dict() for one in found])
        return
    good = [one for one in found if one.problem is None]
    if good:
        print_table(
            ("group", "topics", "members", "partitions", "strategy"),
            [(one.name, ", ".join(one.topics), one.members, one.partitions, one.strategy) for one in good],
        )
    for one in found:
        if one.problem is not None:
            say(printable(f"{one.name}: {one.problem}"))
    if not found:
        say(f"There are no groups in {settings.root}. The first consumer with a group creates it.")


def describe(
    ctx: typer.Context,
    *,
    name: Name,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a group: its members, and of each partition the owner, the committed offset and the lag.

    A member that was killed is shown until its session has ended.
    """
    options = common(ctx, profile, root, as_json)
    settings = options.settings()
    from brokerless.groups.admin import describe_group

    group = describe_group(connect(settings), name)
    if options.as_json:
        print_json(group.to_dict())
        return
    print_table(
        ("member", "static", "session", "partitions"),
        [
            (
                one.name,
                one.instance or "-",
                f"{one.session_s:g} s",
                ", ".join(f"{topic}:{number}" for topic, number in one.partitions) or "-",
            )
            for one in group.members
        ],
        title=f"{name}: {group.strategy}, generation {group.generation}",
    )
    print_table(
        ("topic", "partition", "owner", "committed", "end", "lag messages", "lag seconds"),
        [
            (one.lag.topic, one.lag.partition, one.owner or "-", one.lag.position or "-", *lag_cells(one.lag))
            for one in group.partitions
        ],
    )


def lag_cells(lag: PartitionLag) -> tuple[str, str, str]:
    """Return the end and the lag of a partition, as cells of a table."""
    messages = "-" if lag.messages is None else f"{lag.messages:,}"
    return str(lag.end or "-"), messages, "-" if lag.seconds is None else f"{lag.seconds:,.1f}"


def reset(
    ctx: typer.Context,
    *,
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="POSITION",
            help=f"The new offsets: {START_HELP}; or +100 or -100: so many messages after or before the committed "
            "offset.",
            show_default=False,
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC[:P]", help="Only this topic, or its partition P; can be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a group's committed offsets, so that its consumers go on elsewhere.

    It is refused while a member is alive. A member that does not send heartbeats is removed when its session has ended;
    the command waits for that.
    """
    options = common(ctx, profile, root, as_json)
    target = parse_reset(to)  # before the first request to the store
    settings = options.settings()
    from brokerless.groups.admin import reset_group

    done = reset_group(connect(settings), name, to=target, topics=topic, dry_run=dry_run, on_wait=say)
    if options.as_json:
        print_json({"group": name, "dry_run": dry_run, "partitions": [one.to_dict() for one in done]})
        return
    print_table(
        ("topic", "partition", "old offset", "new offset", "messages"),
        [(one.topic, one.partition, one.old or "-", one.new, _moved(one.messages)) for one in done],
    )
    say(
        f"Nothing was changed; without --dry-run, group {name} goes on at the new offsets."
        if dry_run
        else f"Group {name} goes on at the new offsets."
    )


def _moved(messages: int | None) -> str:
    if messages is None:
        return "-"
    return f"{messages:,} skipped" if messages > 0 else f"{-messages:,} repeated" if messages else "0"


def delete(
    ctx: typer.Context,
    *,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a group and its committed offsets.

    It is refused while a member is alive. Messages are not affected.
    """
    options = common(ctx, profile, root, as_json)
    settings = options.settings()
    from brokerless.groups.admin import check_exists, delete_group

    store = connect(settings)
    check_exists(store, name)
    if not yes:
        if options.as_json or not sys.stdin.isatty():
            raise ConfigError(f"Deleting group {name!r} needs confirmation, and there is no terminal; give --yes.")
        typer.confirm(f"Delete the group {name} and its offsets?", abort=True, err=True)
    delete_group(store, name, on_wait=say)
    if options.as_json:
        print_json({"deleted": name})
    else:
        say(f"Deleted group {name}.")
