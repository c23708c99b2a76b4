"""``brokerless maintain``."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

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
from brokerless.cli.output import print_json, print_table, say
from brokerless.cli.signals import stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerless.maintenance.step import Report as MaintenanceReport


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command(
        help=help_of(maintain),
        epilog=examples(
            "brokerless maintain",
            "brokerless maintain timezone1 timezone2",
            "brokerless maintain --watch --interval 60",
        ),
    )(maintain)


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
    """Maintain topics: checkpoints, retention, merging of small objects, removal of what nobody needs.

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
            (
                "table",
                "checkpoint",
                "commits expired",
                "merged",
                "entries removed",
                "objects removed",
                "MB freed",
                "not done",
            ),
            [
                (
                    r.table,
                    "-" if r.checkpoint is None else r.checkpoint,
                    r.entries_expired,
                    r.objects_merged,
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
