"""``brokerless produce``."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, connect, examples, help_of
from brokerless.cli.output import Progress, print_json, print_table, say
from brokerless.cli.reading import TopicName
from brokerless.errors import BrokerlessError, ConfigError, DeliveryFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from arro3.core import Table

    from brokerless.offsets import Ack
    from brokerless.producer.producer import Producer


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command(
        help=help_of(produce),
        epilog=examples(
            'echo \'{"date": "2024-08-23 04:52:13.066217 -0400", "message": "0"}\' | brokerless produce timezone1',
            "brokerless produce clicks --file clicks.jsonl --key user",
        ),
    )(produce)


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
