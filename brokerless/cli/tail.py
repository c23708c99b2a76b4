"""``brokerless tail``."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, connect, examples, help_of
from brokerless.cli.output import printable
from brokerless.cli.reading import FROM_HELP, REWRITES_HELP, UNTIL_HELP, TopicName, start_of
from brokerless.errors import ConfigError
from brokerless.offsets import Offset, SavedPosition, parse_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arro3.core import Table

    from brokerless.consumer import Batch

Format = Literal["table", "jsonl", "csv"]

_CELL = 40  # the widest cell of a streaming table, in characters
_WIDER = 8  # columns grow to multiples of this, so that the header is rarely printed again


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command(
        help=help_of(tail),
        epilog=examples(
            "brokerless tail timezone_unified",
            "brokerless tail timezone_unified --from beginning --once --format csv",
            "brokerless tail timezone_unified.dead_letters --from beginning --once",
            "brokerless tail clicks --from 2026-11-21T09:00:00+00:00 --offsets --max 10",
            "brokerless tail clicks --from yesterday --until today",
            "brokerless tail clicks --group billing --once   (goes on where the last run ended)",
        ),
    )(tail)


def tail(
    ctx: typer.Context,
    *,
    topic: TopicName,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="POSITION", help=f"{FROM_HELP} Default: latest; with --once or --until: beginning."
        ),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="POSITION", help=UNTIL_HELP)] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="GROUP",
            help="Read as a member of this consumer group, and commit what was shown; --from is for partitions of "
            "which it has committed nothing.",
        ),
    ] = None,
    maximum: Annotated[int | None, typer.Option("--max", metavar="N", min=0, help="Stop after N messages.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop at the current end of the topic.")] = False,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="Default: table on a terminal; jsonl otherwise and with --json."),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", metavar="P", help="Read only this partition.")] = None,
    offsets: Annotated[bool, typer.Option("--offsets", help="Show each message's partition and offset.")] = False,
    accept_rewrites: Annotated[bool, typer.Option("--accept-rewrites", help=REWRITES_HELP)] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show messages as they arrive, until Ctrl-C.

    Reading removes no messages and does not affect other readers, unless they are in the same --group. The csv format
    is that of 'brokerless export', with
    _produced_at and without time and diff.
    """
    options = common(ctx, profile, root, as_json)
    begin = start_of(start or ("beginning" if once or until else "latest"))
    end = None if until is None else parse_start(until)
    settings = options.settings()
    from brokerless.consumer import Consumer
    from brokerless.export.topic import consumer_at, group_batches, minibatches

    store = connect(settings)
    chosen: Format = form or ("jsonl" if options.as_json or not sys.stdout.isatty() else "table")
    partitions = None if partition is None else [partition]
    with contextlib.ExitStack() as stack:
        if group is None:
            opened = consumer_at(
                topic, begin, until=end, store=store, partitions=partitions, accept_rewrites=accept_rewrites
            )
        elif isinstance(begin, SavedPosition):
            raise ConfigError("A group goes on where it has committed; leave out --from @FILE or --group.")
        else:
            opened = Consumer(
                topic,
                start=begin,
                until=end,
                store=store,
                partitions=partitions,
                accept_rewrites=accept_rewrites,
                group=group,
                auto_commit=False,
            )
        consumer = stack.enter_context(opened)
        heads = dict(enumerate(consumer.topics[0].heads)) if once else None
        show = printer(chosen, offsets=offsets)
        left = maximum
        if left == 0:
            return
        for batches in (minibatches if group is None else group_batches)(consumer, heads=heads):
            shown: dict[tuple[str, int], Offset] = {}
            for batch in batches:
                if left == 0:
                    break
                data = batch.data if left is None else batch.data.slice(0, min(left, batch.data.num_rows))
                show(batch, data)
                is_all = data.num_rows == batch.data.num_rows
                after = batch.next if is_all else Offset(batch.version, batch.first_index + data.num_rows)
                shown[batch.topic, batch.partition] = after
                if left is not None:
                    left -= data.num_rows
            sys.stdout.flush()
            if group is not None:
                consumer.commit(shown)
            if left == 0:
                return


def printer(form: Format, *, offsets: bool) -> Callable[[Batch, Table], None]:
    """Return the function that prints a batch, whose rows may be fewer, in this format."""
    from brokerless.export.text import csv_header, csv_lines, json_lines

    header: list[str] = []
    widths: list[int] = []

    def names_of(data: Table) -> list[str]:
        return [*data.column_names, *(["_partition", "_offset"] if offsets else [])]

    def offsets_of(batch: Batch, rows: int) -> list[tuple[str, str]]:
        first = batch.first_index
        return [(str(batch.partition), f"{batch.version}:{i}") for i in range(first, first + rows)]

    def show_jsonl(batch: Batch, data: Table) -> None:
        lines = json_lines(data)
        if offsets:
            lines = [
                f'{line[:-1]}, "_partition": {partition}, "_offset": "{offset}"}}'
                for line, (partition, offset) in zip(lines, offsets_of(batch, data.num_rows), strict=True)
            ]
        sys.stdout.write("".join(line + "\n" for line in lines))

    def show_csv(batch: Batch, data: Table) -> None:
        if not header:
            header.extend(names_of(data))
            print(csv_header(header))
        lines = csv_lines(data)
        if offsets:
            lines = [
                f'{line},"{partition}","{offset}"'
                for line, (partition, offset) in zip(lines, offsets_of(batch, data.num_rows), strict=True)
            ]
        sys.stdout.write("".join(line + "\n" for line in lines))

    def show_table(batch: Batch, data: Table) -> None:
        rows = [[printable(cell) for cell in row] for row in _cells(data)]
        if offsets:
            rows = [[*row, *offset] for row, offset in zip(rows, offsets_of(batch, data.num_rows), strict=True)]
        names = names_of(data)
        needed = [min(_CELL, max(map(len, column))) for column in zip(names, *rows, strict=True)]
        # The width of later messages is unknown, so the columns grow with them.
        if not widths:
            widths.extend(needed)
            print(_line(names, widths))
        elif any(n > w for n, w in zip(needed, widths, strict=True)):
            grown = [min(_CELL, -(-n // _WIDER) * _WIDER) if n > w else w for n, w in zip(needed, widths, strict=True)]
            widths[:] = grown
            print(_line(names, widths))
        for row in rows:
            print(_line(row, widths))

    return {"jsonl": show_jsonl, "csv": show_csv, "table": show_table}[form]


def _cells(data: Table) -> Iterator[list[str]]:
    from brokerless.export.text import as_texts

    return map(list, zip(*(as_texts(data, name) for name in data.column_names), strict=True))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    cut = (c if len(c) <= w else c[: max(w - 1, 0)] + "…" for c, w in zip(cells, widths, strict=True))
    return "  ".join(c.ljust(w) for c, w in zip(cut, widths, strict=True)).rstrip()
