"""``brokerless verify``: find problems in a topic's tables, or in a recorded history."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import urlsplit

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, connect, examples, help_of
from brokerless.cli.output import Progress, print_json, printable, say
from brokerless.errors import ConfigError
from brokerless.schema import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from brokerless.cli.app import Common
    from brokerless.settings import Settings
    from brokerless.verify.report import TableReport

_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command(
        help=help_of(verify),
        epilog=examples(
            "brokerless verify clicks",
            "brokerless verify clicks --full --json",
            "brokerless verify s3://lake/tables/orders   (any Delta table)",
            "brokerless verify --compare clean clean_v2 --key id",
            "brokerless verify --history producer.jsonl --history reader.jsonl",
        ),
    )(verify)


def verify(
    ctx: typer.Context,
    *,
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="A topic, or the URL of a Delta table.", show_default=False),
    ] = None,
    history: Annotated[
        list[Path] | None,
        typer.Option(
            "--history",
            metavar="FILE",
            help="Check a recorded history (see docs/verify.md) instead of the tables; may be given several times.",
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Read every live object and every checkpoint; this downloads the whole table."),
    ] = False,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="TOPIC TOPIC",
            help="Compare the rows of two topics instead, such as a pipeline's output and a replay of it.",
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="COLUMN", help="With --compare: a column of the rows' key; can be repeated."),
    ] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a topic's tables, or a recorded history of sent and received messages; exit 1 if there are problems.

    With --compare it is a problem if the rows of two topics differ, whatever their order; _produced_at and columns that
    only one of them has are left out. Memory stays bounded: topics that are equal are read once, others again.

    The command only reads: the log, a listing of the objects, the last checkpoint and a sample of the objects. At the
    end it shows the number of requests. With a history, TARGET selects one topic.
    """
    options = common(ctx, profile, root, as_json)
    if key and not compare:
        raise ConfigError("--key is for --compare; give two topics with --compare.")
    if compare:
        ok = _compare(*compare, key or (), options)
    elif history:
        ok = _judge(history, target, options)
    elif target is None:
        raise ConfigError("Name a topic or the URL of a table, or give a history with --history.")
    else:
        ok = _inspect(target, options, full=full)
    if not ok:
        raise typer.Exit(1)


def _judge(paths: Sequence[Path], topic: str | None, options: Common) -> bool:
    from brokerless.testing.history import check, read_history

    if topic is not None:
        check_name(topic)
    recorded = read_history(*paths)
    events = recorded.events
    if topic is not None:
        # Events of other topics are emptied, not removed, because event numbers are line numbers.
        events = [event if event.topic == topic else event._replace(op="poll", type="invoke") for event in events]
    verdict = check(events)
    for path in recorded.torn:
        say(f"The last line of {path} is incomplete and was ignored: its process was killed while writing.")
    if options.as_json:
        print_json({**verdict.to_json(), "torn": list(recorded.torn)})
    else:
        print("\n".join(printable(line) for line in verdict.text().splitlines()))
    return verdict.ok


def _compare(first: str, second: str, key: Sequence[str], options: Common) -> bool:
    from brokerless.verify.compare import compare_topics

    store = connect(options.settings())
    with Progress("Comparing", unit="rows") as progress:
        found = compare_topics(store, first, second, key=key, on_rows=progress.update)
    if options.as_json:
        print_json({"ok": found.ok, **dataclasses.asdict(found)})
        return found.ok
    print(f"{first}: {found.rows[0]:,} rows; {second}: {found.rows[1]:,} rows; compared: {', '.join(found.columns)}.")
    if found.ok:
        print("The rows are the same.")
        return True
    print(f"Only in {first}: {found.only_first:,}; only in {second}: {found.only_second:,}.")
    if key:
        print(f"Keys with different rows: {found.differing:,}.")
    for example in found.examples:
        print("  " + printable(example))
    return False


def _inspect(target: str, options: Common, *, full: bool) -> bool:
    settings, table = _location(target, options)
    from brokerless.verify.table import verify_topic

    store = connect(settings)
    before = store.requests.copy()
    with _Watch() as watch:
        reports = verify_topic(store, table, full=full, watch=watch)
    requests = dict(store.requests - before)
    ok = all(report.ok for report in reports)
    if options.as_json:
        tables = [report.to_json() for report in reports]
        print_json({"ok": ok, "tables": tables, "requests": requests, "usd": _usd(requests, settings)})
        return ok
    for report in reports:
        _show(report)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(requests.items()))
    usd = _usd(requests, settings)
    price = "" if usd is None else f", {usd:.6f} USD at the list prices of S3 Standard"
    say(f"{sum(requests.values()):,} requests ({kinds}){price}.")
    return ok


def _location(target: str, options: Common) -> tuple[Settings, str]:
    if "://" not in target:
        return options.settings(), check_name(target)
    from brokerless.settings import Settings, shown_url

    parent, _, table = target.rstrip("/").rpartition("/")
    # A table's name must not contain these: the text after them may be a signature, and errors show the table.
    if not table or not urlsplit(target).path.strip("/") or re.search("[?#]", target):
        raise ConfigError(f"{shown_url(target)!r} is not the URL of a table; write s3://bucket/path/table.")
    if options.root is not None:
        raise ConfigError(f"{shown_url(target)!r} already contains the root; omit --root.")
    return Settings.load(profile=options.profile, root=parent), table


def _usd(requests: Mapping[str, int], settings: Settings) -> float | None:
    if not settings.root.startswith("s3://"):
        return None
    from brokerless.cost.bill import requests_usd

    return requests_usd(requests)


def _show(report: TableReport) -> None:
    looked = (
        f"entries {report.entries:,}, live files {report.files:,}, rows {report.rows:,}, "
        f"files read {report.files_read:,}, checkpoints compared {report.checkpoints:,}"
    )
    print(printable(f"{report.table}: {'ok' if report.ok else f'{len(report.findings):,} found'} ({looked})"))
    for finding in report.findings[:_SHOWN]:
        print(printable(f"  {finding.kind}: {finding.text}"))
    if len(report.findings) > _SHOWN:
        print(f"  ... and {len(report.findings) - _SHOWN:,} more; --json has all of them")
    for note in report.notes:
        print(printable(f"  note: {note}"))


class _Watch:
    """A progress line for each step of the check."""

    def __init__(self) -> None:
        self._what = ""
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.__exit__(kind, error, trace)

    def __call__(self, what: str, count: int) -> Any:
        if what != self._what or self._progress is None:
            self.__exit__(None, None, None)
            self._what, self._progress = what, Progress(what, unit="done").__enter__()
        self._progress.update(count)
