"""``brokerless doctor``: check what brokerless needs, and say how to fix what is missing."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, environment, examples, help_of
from brokerless.cli.output import print_json, printable

if TYPE_CHECKING:
    from brokerless.local.doctor import Check


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command(
        help=help_of(doctor),
        epilog=examples("brokerless doctor", "brokerless doctor --profile aws --root s3://bucket/prefix"),
    )(doctor)


def doctor(
    ctx: typer.Context, *, profile: ProfileOption = None, root: RootOption = None, as_json: JsonOption = False
) -> None:
    """Check Java, Python, packages, ports, disk, credentials, bucket, clock, store and logs; exit 1 if something fails.

    The check of conditional PUT creates the small object _brokerless/_probe twice; the second attempt must fail, and
    the object stays. The check of logs looks for missing entries after the last checkpoint of each log, with one GET
    and one to ten LISTs per log.
    """
    options = common(ctx, profile, root, as_json)
    from brokerless.local.doctor import diagnose

    is_live = sys.stderr.isatty() and not options.as_json
    checks: list[Check] = []
    for check in diagnose(environment(), profile=options.profile, root=options.root):
        if is_live:
            print(f"\r\033[Kchecked: {check.name}", end="", file=sys.stderr, flush=True)
        checks.append(check)
    if is_live:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if options.as_json:
        print_json([dataclasses.asdict(check) for check in checks])
    else:
        _show(checks)
    if any(check.verdict == "fail" for check in checks):
        raise typer.Exit(1)


def _show(checks: list[Check]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}
    table = Table("check", "result", "detail", "fix", box=SIMPLE_HEAD, pad_edge=False)
    for check in checks:
        verdict = Text(check.verdict, style=colours[check.verdict])
        table.add_row(check.name, verdict, Text(printable(check.detail)), Text(printable(check.fix)))
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)
