"""``brokerless produce``, ``tail`` and ``export``."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, connect, examples, help_of
from brokerless.cli.output import Progress, print_json, print_table, printable, say
from brokerless.errors import BrokerlessError, ConfigError, DeliveryFailed
from brokerless.offsets import START_HELP, Offset, SavedPosition, parse_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from arro3.core import Table

    from brokerless.consumer import Batch
    from brokerless.offsets import Ack, Start
    from brokerless.producer.producer import Producer

Format = Literal["table", "jsonl", "csv"]

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)]

_FROM_HELP = f"Where to begin: {START_HELP}; or @FILE with the output of export --json, to continue there."
_UNTIL_HELP = "Where to end, exclusively, as for --from: at an offset, or before the first commit at or after a time."
_REWRITES_HELP = "Continue if another engine deleted or updated rows; unchanged rows of the same files are read again."
_CELL = 40  # the widest cell of a streaming table, in characters
_WIDER = 8  # columns grow to multiples of this, so that the header is rarely printed again


def register(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    app.command(
        help=help_of(produce),
        epilog=examples(
            'echo \'{"date": "2024-08-23 04:52:13.066217 -0400", "message": "0"}\' | brokerless produce timezone1',
            "brokerless produce clicks --file clicks.jsonl --key user",
        ),
    )(produce)
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
    app.command(
        help=help_of(export),
        epilog=examples(
            "brokerless export timezone_unified results.csv --expect 10 --timeout 60",
            "brokerless export clicks clicks.parquet --once --json   (save the output in position.json)",
            "brokerless export clicks more.parquet --once --from @position.json",
            "brokerless export clicks day.parquet --from 2026-11-20 --until 2026-11-21",
        ),
    )(export)


def produce(
    ctx: typer.Context,
    *,
    topic: TopicName,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="A file of JSON lines to send; default, and '-': standard input."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="COLUMN", help="The column that selects the partition; default: all partitions in turn."
        ),
    ] = None,
    producer_id: Annotated[
        str | None,
        typer.Option(
            "--producer-id", metavar="ID", help="A stable name; it fences an older producer with the same name."
        ),
    ] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send messages: one JSON object per line, each with all columns of the topic.

    The whole input is checked before the first message is sent: with one invalid line, nothing is written. So the input
    must have an end. Blank lines are skipped; a line may have 8 MiB. At the end the command shows the acknowledged
    offsets; those messages are committed.
    """
    options = common(ctx, profile, root, as_json)
    settings = options.settings()
    from brokerless.cli.lines import Spool
    from brokerless.producer.producer import Producer

    with contextlib.ExitStack() as stack:
        lines, source = _open(file, stack)
        producer = stack.enter_context(
            Producer(topic, settings=settings, store=connect(settings), key=key, producer_id=producer_id)
        )
        with Progress("Checking") as checking:
            spool = stack.enter_context(
                Spool(lines, source=source, topic=topic, schema=producer.schema, on_progress=checking.update)
            )
        acks, failure = _send(producer, spool.tables(), spool.rows)
    _show_acks(topic, acks, as_json=options.as_json)
    if failure is not None:
        done = sum(ack.rows for ack in acks)
        raise DeliveryFailed(
            f"{spool.rows - done} of {spool.rows} messages are not acknowledged: {failure}",
            acknowledged=acks,
            unacknowledged=getattr(failure, "unacknowledged", ()),
            unknown=getattr(failure, "unknown", False),
        ) from failure


def _open(file: Path | None, stack: contextlib.ExitStack) -> tuple[IO[bytes], str]:
    if file is None or str(file) == "-":
        if sys.stdin.isatty():
            say("Reading JSON lines from the keyboard; end with Ctrl-D.")
        return sys.stdin.buffer, "standard input"
    try:
        return stack.enter_context(file.open("rb")), str(file)
    except OSError as error:
        raise ConfigError(f"Cannot read {file} ({error.strerror or error}); name a file of JSON lines.") from None


def _send(producer: Producer, tables: Iterator[Table], total: int) -> tuple[list[Ack], BrokerlessError | None]:
    """Send all tables until the first failure; return the acknowledgements and that failure."""
    acks: list[Ack] = []
    failure: BrokerlessError | None = None
    waiting: list[Future[tuple[Ack, ...]]] = []

    def settle(*, all_of_them: bool) -> None:
        nonlocal failure
        while waiting and (all_of_them or waiting[0].done()):
            try:
                acks.extend(waiting.pop(0).result())
            except BrokerlessError as error:
                acks.extend(getattr(error, "acknowledged", ()))
                failure = failure or error

    with Progress("Sending", total=total) as sending:
        for table in tables:
            settle(all_of_them=False)
            sending.update(sum(ack.rows for ack in acks))
            if failure is not None:
                break
            try:
                waiting.append(producer.enqueue(table))
            except BrokerlessError as error:
                failure = error
                break
        producer.close()
        settle(all_of_them=True)
    return acks, failure


def _show_acks(topic: str, acks: Sequence[Ack], *, as_json: bool) -> None:
    partitions: dict[int, list[Ack]] = {}
    for ack in acks:
        partitions.setdefault(ack.partition, []).append(ack)
    summary: list[dict[str, Any]] = [
        {
            "partition": number,
            "messages": sum(ack.rows for ack in of_it),
            "first": str(min(ack.first for ack in of_it)),
            "last": str(max(ack.last for ack in of_it)),
            "commits": len({ack.version for ack in of_it}),
        }
        for number, of_it in sorted(partitions.items())
    ]
    total = sum(ack.rows for ack in acks)
    if as_json:
        print_json({"topic": topic, "messages": total, "partitions": summary})
        return
    say(f"{total:,} message{'' if total == 1 else 's'} acknowledged by topic {topic}." if total else "0 messages.")
    if summary:
        print_table(
            ("partition", "messages", "first offset", "last offset", "commits"), [tuple(s.values()) for s in summary]
        )


def tail(
    ctx: typer.Context,
    *,
    topic: TopicName,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="POSITION", help=f"{_FROM_HELP} Default: latest; with --once or --until: beginning."
        ),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="POSITION", help=_UNTIL_HELP)] = None,
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
    accept_rewrites: Annotated[bool, typer.Option("--accept-rewrites", help=_REWRITES_HELP)] = False,
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
    begin = _start(start or ("beginning" if once or until else "latest"))
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
        show = _printer(chosen, offsets=offsets)
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


def _start(text: str) -> Start | SavedPosition:
    if not text.startswith("@"):
        return parse_start(text)
    try:
        return SavedPosition.parse(Path(text[1:]).read_text(encoding="utf-8"), source=text[1:])
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"Cannot read the position in {text[1:]} ({getattr(error, 'strerror', None) or error}); name a file with "
            "the output of 'brokerless export ... --json'."
        ) from None


def _printer(form: Format, *, offsets: bool) -> Callable[[Batch, Table], None]:
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
    start: Annotated[str, typer.Option("--from", metavar="POSITION", help=_FROM_HELP)] = "beginning",
    until: Annotated[str | None, typer.Option("--until", metavar="POSITION", help=_UNTIL_HELP)] = None,
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
    accept_rewrites: Annotated[bool, typer.Option("--accept-rewrites", help=_REWRITES_HELP)] = False,
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
    begin = _start(start)
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


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Provide an event that SIGINT and SIGTERM set instead of their usual effect."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may change signal handlers
        return
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
