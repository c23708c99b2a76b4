"""``brokerless sql``: query topics."""

from __future__ import annotations

import csv
import sys
from typing import Annotated

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, connect, examples, help_of
from brokerless.cli.output import print_table, say


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command(
        help=help_of(sql),
        epilog=examples(
            'brokerless sql "select page, count(*) from clicks group by page"',
            'brokerless sql "select * from clicks order by _produced_at desc limit 5" --json',
            "brokerless sql \"select count(*) from clicks where _produced_at > now() - interval '1 hour'\"",
        ),
    )(sql)


def sql(
    ctx: typer.Context,
    *,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One statement that reads.", show_default=False)],
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Query topics by name, in SQL.

    All partitions of a topic are one table, with the column _produced_at. The SQL is that of DataFusion; names with
    capitals, dots or dashes need double quotes. --json prints one row a line.
    """
    options = common(ctx, profile, root, as_json)
    settings = options.settings()
    from brokerless.columns import records
    from brokerless.query.sql import run_sql

    connect(settings)
    data = run_sql(query, settings=settings)
    if options.as_json:
        for line in records.rows_as_json(data):
            print(line)
        return
    names = data.column_names
    columns = [records.values_of(data.column(number)) for number in range(data.num_columns)]
    rows = [["" if value is None else _text(value) for value in row] for row in zip(*columns, strict=True)]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
        return
    print_table(names, rows)
    say(f"{len(rows)} {'row' if len(rows) == 1 else 'rows'}.")


def _text(value: object) -> str:
    from brokerless.columns import records

    return str(value) if isinstance(value, str | int | float) else records.json_value(value)
