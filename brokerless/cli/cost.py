"""``brokerless cost``: estimate the monthly bill of a workload, and compare it with alternatives."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, examples, help_of
from brokerless.cli.output import print_json, print_table
from brokerless.clock import duration_s
from brokerless.cost.bill import StorageClass  # likewise
from brokerless.cost.workload import BATCHES_PER_S, EXECUTOR_MESSAGES_PER_S, Engine, Source, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerless.cost.estimate import Estimate
    from brokerless.cost.prices import Claim, Prices

_DEFAULT: Final = Workload()
_MESSAGES: Final = "Messages"
_TABLES: Final = "Producers, readers, storage"
_STAGE: Final = "What is deployed"
_OUTPUT: Final = "Prices and output"


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command(
        help=help_of(cost),
        epilog=examples(
            "brokerless cost",
            "brokerless cost --messages-per-s 10000 --message-bytes 500 --commits-per-s 1",
            "brokerless cost --messages-per-s 0   (the cost while idle)",
            "brokerless cost --messages-per-s 200 --hours-per-day 8 --source url --engine emr-serverless",
            "brokerless cost --engine own --commits-per-s 50 --commit-interval 20ms   (fast real-time mode)",
            "brokerless cost --engine none --readers 3 --idle-poll-s 0.01   (no pipeline, readers that poll often)",
            "brokerless cost --storage-class express --details",
            "brokerless cost --show-prices --json | tee prices.json",
            "brokerless cost --price-file prices.json --json",
        ),
    )(cost)


def cost(
    ctx: typer.Context,
    *,
    messages_per_s: Annotated[
        float,
        typer.Option(
            "--messages-per-s",
            metavar="N",
            help="Messages per second while producers send; 0 is idle.",
            rich_help_panel=_MESSAGES,
        ),
    ] = _DEFAULT.messages_per_s,
    message_bytes: Annotated[
        int, typer.Option("--message-bytes", metavar="BYTES", help="Size of a message.", rich_help_panel=_MESSAGES)
    ] = _DEFAULT.message_bytes,
    hours_per_day: Annotated[
        float,
        typer.Option(
            "--hours-per-day",
            metavar="HOURS",
            help="Hours per day in which producers send. Pipelines and readers run all day.",
            rich_help_panel=_MESSAGES,
        ),
    ] = _DEFAULT.hours_per_day,
    topics: Annotated[
        int, typer.Option("--topics", metavar="N", help="Topics that producers write to.", rich_help_panel=_TABLES)
    ] = _DEFAULT.topics,
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="N", help="Partitions of each such topic.", rich_help_panel=_TABLES)
    ] = _DEFAULT.partitions,
    producers: Annotated[
        int,
        typer.Option("--producers", metavar="N", help="Producers, each with its own commits.", rich_help_panel=_TABLES),
    ] = _DEFAULT.producers,
    commits_per_s: Annotated[
        float,
        typer.Option(
            "--commits-per-s",
            metavar="N",
            help="Most commits per second of each producer: 1 / linger_s. A commit is two PUTs; the pipeline commits "
            "as often, limited by --commit-interval.",
            rich_help_panel=_TABLES,
        ),
    ] = _DEFAULT.commits_per_s,
    source: Annotated[
        Source,
        typer.Option(
            "--source",
            help="The source of messages: producers with the library, or the ingest function with one run per commit.",
            rich_help_panel=_TABLES,
        ),
    ] = _DEFAULT.source,
    readers: Annotated[
        int, typer.Option("--readers", metavar="N", help="Readers of the output.", rich_help_panel=_TABLES)
    ] = _DEFAULT.readers,
    idle_poll_s: Annotated[
        float,
        typer.Option(
            "--idle-poll-s",
            metavar="SECONDS",
            help="The longest time between two polls of a reader; with 0.01 it polls every 10 ms, also when idle.",
            rich_help_panel=_TABLES,
        ),
    ] = _DEFAULT.idle_poll_s,
    retention_days: Annotated[
        float,
        typer.Option(
            "--retention-days", metavar="DAYS", help="How long messages are retained.", rich_help_panel=_TABLES
        ),
    ] = _DEFAULT.retention_days,
    storage_class: Annotated[
        StorageClass, typer.Option("--storage-class", help="S3 Standard or Express One Zone.", rich_help_panel=_TABLES)
    ] = _DEFAULT.storage_class,
    engine: Annotated[
        Engine,
        typer.Option(
            "--engine",
            help="What runs the pipeline; own: your own machine, which is not in the bill; none: no pipeline, readers "
            "read the topics.",
            rich_help_panel=_STAGE,
        ),
    ] = _DEFAULT.engine,
    commit_interval: Annotated[
        str | None,
        typer.Option(
            "--commit-interval",
            metavar="TIME",
            help="Shortest time between two commits of the pipeline, such as 20ms or 1s. Default: 100ms in real-time "
            f"mode (own); Glue and EMR Serverless run micro-batches, up to {BATCHES_PER_S:g} per second.",
            show_default=False,
            rich_help_panel=_STAGE,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            help="Workers of the pipeline, including the driver. Default: as many as the messages need, with "
            f"{EXECUTOR_MESSAGES_PER_S:,} per second for each 2 vCPU besides the driver.",
            show_default=False,
            rich_help_panel=_STAGE,
        ),
    ] = None,
    worker_type: Annotated[
        str,
        typer.Option(
            "--worker-type",
            metavar="TYPE",
            help="G.025X (2 vCPU, 4 GB), G.1X (4, 16) or G.2X (8, 32); the same sizes on EMR Serverless.",
            rich_help_panel=_STAGE,
        ),
    ] = _DEFAULT.worker_type,
    kms: Annotated[
        bool,
        typer.Option(
            "--kms/--no-kms", help="Include encryption with the bucket's own KMS key.", rich_help_panel=_STAGE
        ),
    ] = _DEFAULT.kms,
    monitoring: Annotated[
        bool,
        typer.Option(
            "--monitoring/--no-monitoring", help="Include metrics, alarms and a dashboard.", rich_help_panel=_STAGE
        ),
    ] = _DEFAULT.monitoring,
    canary: Annotated[
        bool,
        typer.Option(
            "--canary/--no-canary",
            help="Include a canary, which measures one message per minute.",
            rich_help_panel=_STAGE,
        ),
    ] = _DEFAULT.canary,
    clean_up_every_h: Annotated[
        float,
        typer.Option(
            "--clean-up-every-h",
            metavar="HOURS",
            help="Hours between two searches of maintenance for orphaned objects, which list all objects.",
            rich_help_panel=_STAGE,
        ),
    ] = _DEFAULT.clean_up_every_h,
    packed: Annotated[
        bool,
        typer.Option(
            "--packed/--single",
            help="For Kinesis: one record per commit, or one per message.",
            rich_help_panel=_STAGE,
        ),
    ] = _DEFAULT.packed,
    price_file: Annotated[
        Path | None,
        typer.Option(
            "--price-file",
            metavar="FILE",
            help="A file with other prices, in the format of --show-prices --json. To change only some prices, add "
            '"others": "as published" to it.',
            show_default=False,
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    show_prices: Annotated[
        bool, typer.Option("--show-prices", help="Print the prices with their sources.", rich_help_panel=_OUTPUT)
    ] = False,
    details: Annotated[
        bool, typer.Option("--details", help="Show the items of each alternative, too.", rich_help_panel=_OUTPUT)
    ] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate a month's bill, beside Kafka on MSK, Kinesis and SQS.

    The estimate uses list prices and counts requests: a commit is two PUTs, a poll is one GET. It sends no request to
    AWS. docs/cost.md describes the model, and says when the alternatives are cheaper.
    """
    as_json = common(ctx, profile, root, as_json).as_json
    from brokerless.cost.estimate import claims, estimates
    from brokerless.cost.prices import load, published

    prices = load(price_file) if price_file else published()
    if show_prices:
        _show_prices(prices, as_json=as_json)
        return
    workload = Workload(
        messages_per_s=messages_per_s,
        message_bytes=message_bytes,
        hours_per_day=hours_per_day,
        topics=topics,
        partitions=partitions,
        producers=producers,
        commits_per_s=commits_per_s,
        source=source,
        readers=readers,
        idle_poll_s=idle_poll_s,
        retention_days=retention_days,
        engine=engine,
        commit_interval_s=_seconds(commit_interval),
        workers=workers,
        worker_type=worker_type,
        storage_class=storage_class,
        kms=kms,
        monitoring=monitoring,
        canary=canary,
        clean_up_every_h=clean_up_every_h,
        packed=packed,
    )
    found, said = estimates(workload, prices), claims(workload, prices)
    if as_json:
        print_json(_document(workload, prices, found, said))
    else:
        _show(workload, prices, found, said, details=details)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--commit-interval") from None


def _show(
    workload: Workload, prices: Prices, found: Sequence[Estimate], said: Sequence[Claim], *, details: bool
) -> None:
    print(f"List prices of {prices.region}, {prices.as_of}, for a month of 730 hours; calculated, not billed.\n")
    for estimate in found if details else found[:1]:
        rows = [(item.name, _usd(item.usd_per_month), item.how) for item in estimate.bill.items]
        total = ("together", _usd(estimate.bill.usd_per_month), "")
        print_table(("item", "USD a month", "how"), [*rows, total], title=f"{estimate.name}: {_traffic(workload)}")
    ranked = sorted(found, key=lambda estimate: estimate.bill.usd_per_month)
    print_table(
        ("alternative", "USD a month", "USD per million messages"),
        [(e.name, _usd(e.bill.usd_per_month), _per_million(e.usd_per_million(workload))) for e in ranked],
        title="Cheapest first",
    )
    from brokerless.cost.estimate import NOBODYS

    print("Not included:")
    for estimate in ranked:
        print(f"- {estimate.name}: {'; '.join(estimate.excludes)}.")
    print(f"- All: {'; '.join(NOBODYS)}.")
    for claim in said:
        print(
            f"Claims of other vendors, not computed here: {claim.name}, {claim.said} ({claim.source}, {claim.as_of})."
        )


def _show_prices(prices: Prices, *, as_json: bool) -> None:
    if as_json:
        print_json(prices.to_dict())
        return
    print_table(
        ("price", "USD", "for", "source", "as of"),
        [(row.name, row.usd_text(), row.for_text(), row.source, row.as_of) for row in prices.rows.values()],
        title=f"List prices of {prices.region}, {prices.as_of}",
    )


def _document(workload: Workload, prices: Prices, found: Sequence[Estimate], said: Sequence[Claim]) -> dict[str, Any]:
    from brokerless.cost.estimate import NOBODYS

    return {
        "prices": {"as_of": prices.as_of.isoformat(), "region": prices.region},
        "workload": {**asdict(workload), "workers": workload.worker_count},
        "estimates": [
            {
                "key": estimate.key,
                "name": estimate.name,
                "usd_per_month": round(estimate.bill.usd_per_month, 2),
                "usd_per_million_messages": _rounded(estimate.usd_per_million(workload)),
                "items": [
                    {"name": item.name, "usd_per_month": round(item.usd_per_month, 4), "how": item.how}
                    for item in estimate.bill.items
                ],
                "excludes": list(estimate.excludes),
            }
            for estimate in found
        ],
        "excluded_everywhere": list(NOBODYS),
        "claims_of_others": [asdict(claim) for claim in said],
    }


def _traffic(workload: Workload) -> str:
    if not workload.messages_per_month:
        return "idle, no messages"
    day = "" if workload.hours_per_day == 24 else f" for {workload.hours_per_day:g} hours a day"
    return (
        f"{workload.messages_per_s:,g} messages/s of {workload.message_bytes:,} bytes{day}, "
        f"{workload.commits_in_per_s:,.3g} commits/s"
    )


def _usd(usd: float) -> str:
    return f"{usd:,.2f}"


def _per_million(usd: float | None) -> str:
    return "-" if usd is None else f"{usd:,.3g}" if usd < 100 else f"{usd:,.0f}"


def _rounded(usd: float | None) -> float | None:
    return None if usd is None else round(usd, 6)
