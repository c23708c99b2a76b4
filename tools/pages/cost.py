"""Generate ``docs/cost.md`` and its plot; one long file, because it is one document from top to bottom.

Every figure on the page is computed here, so that a new price changes it everywhere.
"""

from __future__ import annotations

import io
import math
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.plots import _NO_DATES, _STYLE
from benchmarks.session import load_all
from brokerless.cost import items, stage, workload
from brokerless.cost.bill import PRICES, SECONDS_PER_MONTH, requests_usd
from brokerless.cost.estimate import NOBODYS, crossings, estimate
from brokerless.cost.workload import Workload
from tools.pages.benchmark import markdown_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.result import Result

PAGE: Final = "docs/cost.md"
IMAGE: Final = "docs/img/cost"

RATES: Final = (10, 1_000, 10_000, 100_000)
LOWEST, HIGHEST = 1.0, 1e6
SLOW: Final = 1.0
"""Commits per second of a producer that does not need low latency."""

DIAL: Final = (("20ms", 0.02), ("100ms", 0.1), ("1s", 1.0))
"""Commit intervals as text and in seconds."""

DEFAULT: Final = Workload()
THRIFTY: Final = replace(DEFAULT, commits_per_s=SLOW)
EXPRESS: Final = replace(DEFAULT, storage_class="express")
SINGLE: Final = replace(DEFAULT, packed=False)

LINES: Final[tuple[tuple[str, str, Workload, str, Any], ...]] = (
    ("brokerless, 10 commits/s", "brokerless", DEFAULT, "#0072B2", "-"),
    ("brokerless, 1 commit/s", "brokerless", THRIFTY, "#0072B2", "--"),
    ("brokerless, 10 commits/s, S3 Express", "brokerless", EXPRESS, "#56B4E9", "-"),
    ("MSK, 3 x kafka.m7g.large", "msk", DEFAULT, "#222222", "-"),
    ("MSK Serverless", "msk-serverless", DEFAULT, "#222222", "--"),
    ("Kinesis on-demand", "kinesis-on-demand", DEFAULT, "#D55E00", "-"),
    ("Kinesis on-demand, a record a message", "kinesis-on-demand", SINGLE, "#D55E00", ":"),
    ("Kinesis provisioned", "kinesis-provisioned", DEFAULT, "#009E73", "-"),
    ("Kinesis provisioned, a record a message", "kinesis-provisioned", SINGLE, "#009E73", ":"),
    ("SQS and Lambda", "sqs", DEFAULT, "#CC79A7", "-"),
)
"""Label, alternative, workload but for its rate, colour and dashes of what is in the tables and the plot."""


def generate(repository: Path) -> dict[str, bytes]:
    """Return the page and its plot by their paths in the repository."""
    runs = [run for session in load_all(repository / "benchmarks" / "results") for run in session.runs]
    plots = {f"{IMAGE}.{kind}": content for kind, content in plot().items()}
    return {PAGE: page(runs).encode(), **plots}


def usd(alternative: str, work: Workload) -> float:
    """Return the cost of a month."""
    return estimate(alternative, work).bill.usd_per_month


def page(runs: Sequence[Result]) -> str:
    """Return the text of ``docs/cost.md``."""
    parts = [
        _introduction(),
        _tables(),
        _cheaper(),
        _knobs(),
        _dial(runs),
        _model(),
        _measured(runs),
        _assumptions(),
        _prices(),
    ]
    return "\n".join(parts)


def plot() -> dict[str, bytes]:
    """Return the plot of USD per month against messages per second, both logarithmic, by file type."""
    with mpl.rc_context():
        mpl.rcdefaults()  # ignore the user's own configuration
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=(9.0, 6.4), layout="constrained")
        ax = figure.subplots()
        rates = [10 ** (n / 20) for n in range(round(20 * math.log10(HIGHEST)) + 1)]
        for label, alternative, work, colour, dashes in LINES:
            costs = [usd(alternative, replace(work, messages_per_s=rate)) for rate in rates]
            ax.plot(rates, costs, label=label, color=colour, ls=dashes, lw=2.8 if alternative == "brokerless" else 1.5)
        ax.set(xscale="log", yscale="log", ylim=(10, 2e5), xlim=(LOWEST, HIGHEST))
        ax.set_xlabel("messages a second, of 200 bytes")
        ax.set_ylabel("USD a month")
        ax.set_title("Cost by rate: two hops, one producer, one reader, 7 days")
        ax.xaxis.set_major_locator(FixedLocator([10**n for n in range(7)]))
        ax.yaxis.set_major_locator(FixedLocator([10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000]))
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"${x:,.0f}"))
        figure.legend(loc="outside lower center", ncols=2, fontsize=9, handlelength=2.8)
        files = {}
        for kind, metadata in _NO_DATES.items():
            out = io.BytesIO()
            figure.savefig(out, format=kind, dpi=144, metadata=metadata)
            files[kind] = out.getvalue()
    return files


def _introduction() -> str:
    work = DEFAULT
    return f"""\
# What it costs

<!-- Generated by `python -m tools.pages cost` from the prices and the model. Changes by hand are lost. -->

What a month of a stream costs with brokerless, and what it would cost with something else, by list prices of
{PRICES.region}, {PRICES.as_of}. All of it is calculated; nothing on this page is from an invoice.

```sh
brokerless cost
brokerless cost --messages-per-s 10000 --commits-per-s 1 --readers 3 --details
```

The command takes your workload and shows each item with its arithmetic; [all its options](cli.md#cost). Unless a line
says otherwise, this page has {work.message_bytes} bytes a message, one topic with one partition, one producer with up
to {work.commits_per_s:g} commits a second (the default of `linger_s`), a pipeline on Glue, one reader of its output,
{work.retention_days:g} days of retention, and all that a deployed stage has: functions, alarms, dashboard, logs, a key.
"""


def _tables() -> str:
    idle = [replace(work, messages_per_s=0) for _, _, work, _, _ in LINES]
    monthly = [
        [
            label,
            _usd(usd(alternative, none)),
            *(_usd(usd(alternative, replace(work, messages_per_s=rate))) for rate in RATES),
        ]
        for (label, alternative, work, _, _), none in zip(LINES, idle, strict=True)
    ]
    each = [
        [label, *(_each(alternative, replace(work, messages_per_s=rate)) for rate in RATES)]
        for label, alternative, work, _, _ in LINES
    ]
    return f"""\
## At four rates

USD a month at so many messages a second:

{markdown_table(["", "idle", *(f"{rate:,}" for rate in RATES)], monthly)}
USD per million messages:

{markdown_table(["", *(f"{rate:,}" for rate in RATES)], each)}
![USD a month by messages a second](img/cost.svg)

In no figure: {"; ".join(NOBODYS)}.

In those of brokerless only: alarms, metrics, dashboard, logs, key, canary. In favour of the others, too: MSK has three
small brokers whatever the rate, exactly full disks and no traffic between zones; Kinesis provisioned keeps messages for
a day only and has no shard to spare; SQS keeps nothing that was read, and has no order.

Confluent Cloud and Kafka on one's own are not computed. What others claimed, for one workload each:

{_claims()}"""


def _claims() -> str:
    lines = [f"- {claim.name}: {claim.said} ({claim.source}, {claim.as_of})." for claim in PRICES.claims]
    works = {claim.messages_per_s: replace(DEFAULT, messages_per_s=claim.messages_per_s) for claim in PRICES.claims}
    lines += [
        f"- brokerless at {rate:,.0f} messages/s of {work.message_bytes} bytes, as computed here: "
        f"{_usd(usd('brokerless', work))}."
        for rate, work in works.items()
    ]
    return "\n".join(lines) + "\n"


def _cheaper() -> str:
    rows = []
    for label, alternative, work, _, _ in LINES:
        if alternative == "brokerless":
            continue
        cells = [_where(alternative, replace(mine, packed=work.packed)) for mine in (DEFAULT, THRIFTY, EXPRESS)]
        rows.append([label, *cells])
    many = {rate: _break_even_commits("msk", replace(DEFAULT, messages_per_s=rate)) for rate in (1_000, 10_000)}
    fast = replace(THRIFTY, idle_poll_s=workload.POLL_S)
    each = usd("brokerless", replace(fast, readers=2)) - usd("brokerless", fast)
    readers = _from_how_many("msk", lambda n: replace(fast, readers=n))
    partitions = {rate: _break_even_partitions("msk", replace(THRIFTY, messages_per_s=rate)) for rate in many}
    idle = replace(DEFAULT, messages_per_s=0)
    low = replace(DEFAULT, messages_per_s=10)
    return f"""\
## Where brokerless is cheaper, and where it is not

Between {LOWEST:g} and {HIGHEST:,.0f} messages a second, brokerless is cheaper than

{markdown_table(["", "with 10 commits/s", "with 1 commit/s", "with 10 commits/s, S3 Express"], rows)}
So it is not the cheapest way to move messages everywhere:

- **Kinesis provisioned** is the cheapest of all where producers pack messages into large records and nobody needs them
  for longer than a day: shards and records cost little, and reading costs nothing. It leaves no tables behind.
- **SQS at low rates.** At 10 messages a second it costs {_usd(usd("sqs", low))}, brokerless
  {_usd(usd("brokerless", low))}; while idle {_usd(usd("sqs", idle))} and {_usd(usd("brokerless", idle))}: a queue that
  waits costs next to nothing, a pipeline that waits as much as one that works.
- **Many small commits.** A commit costs the same for one message and for 100,000. MSK is cheaper from
  {many[1_000]} commits a second, all producers together, at 1,000 messages a second; from {many[10_000]} at 10,000.
- **Fast polling by many readers.** A reader that asks each 10 ms, always, costs {_usd(each)} a month; at 1,000 messages
  and one commit a second, MSK is cheaper from {readers} such readers.
- **Short retention on MSK.** At high rates most of its bill is disks: seven days, three times. With one day, and 10
  commits a second, brokerless is cheaper only at rates {_where("msk", replace(DEFAULT, retention_days=1))}. MSK's
  tiered storage, whose price is not in the list, works the same way.
- **Many partitions.** Everyone who reads a partition asks for its next commit, whether there is one or not. With one
  commit a second in all, MSK is cheaper from {partitions[1_000]} partitions at 1,000 messages a second, and from
  {partitions[10_000]} at 10,000.
- **High sustained rates on S3 Express**, which charges for each byte that goes in and comes out; S3 Standard does not.
"""


def _knobs() -> str:
    work = replace(DEFAULT, messages_per_s=1_000)
    changes = [
        ("as it is", work),
        ("`--commits-per-s 1` (`linger_s=1`)", replace(work, commits_per_s=1)),
        ("`--commits-per-s 0.1` (`linger_s=10`)", replace(work, commits_per_s=0.1)),
        ("`--storage-class express`", replace(work, storage_class="express")),
        ("`--engine none`: readers read what producers wrote", replace(work, engine="none")),
        ("`--engine emr-serverless`", replace(work, engine="emr-serverless")),
        ("`--producers 10`", replace(work, producers=10)),
        ("`--readers 10`", replace(work, readers=10)),
        ("`--partitions 10`", replace(work, partitions=10)),
        ("`--source url`: each commit a run of the ingest function", replace(work, source="url")),
        ("`--idle-poll-s 0.01`, idle", replace(work, messages_per_s=0, idle_poll_s=0.01)),
        ("idle", replace(work, messages_per_s=0)),
        ("`--clean-up-every-h 0.25`: orphans looked for each quarter of an hour", replace(work, clean_up_every_h=0.25)),
        ("`--no-kms --no-monitoring --no-canary`", replace(work, kms=False, monitoring=False, canary=False)),
    ]
    rows = [[what, _usd(usd("brokerless", changed))] for what, changed in changes]
    return f"""\
## What changes the bill

brokerless at 1,000 messages a second, one thing changed at a time:

{markdown_table(["", "USD a month"], rows)}"""


def _dial(runs: Iterable[Result]) -> str:
    rows = []
    measured = [
        run
        for run in runs
        if (run.peer, run.hops, run.rate, run.payload_bytes) == ("brokerless", 2, 10_000, 0)
        and run.figures.get("engine") == "realtime"
    ]
    for text, interval_s in DIAL:
        work = replace(
            DEFAULT, messages_per_s=1_000, engine="own", commits_per_s=1 / interval_s, commit_interval_s=interval_s,
            canary=False,
        )  # fmt: skip
        produced, piped = work.commits_per_month
        pipeline = {"PUT": 2 * piped, "GET": work.gets_per_month[0], "GET 404": work.polls_per_month[0]}
        reader = {"GET": work.gets_per_month[1], "GET 404": work.polls_per_month[1]}
        producer = {"PUT": 2 * produced}
        puts = producer["PUT"] + pipeline["PUT"]
        gets = sum(pipeline[kind] + reader[kind] for kind in reader)
        each = [requests_usd(counts) for counts in (producer, pipeline, reader)]
        cells = [f"{count / 1e6:,.0f} million" for count in (puts, gets)]
        found = [run for run in measured if run.commit_ms == interval_s * 1000 and run.p50_s and run.p99_s]
        latency = [f"{median(values):.2f}" if values else "-" for values in (
            [run.p50_s for run in found if run.p50_s], [run.p99_s for run in found if run.p99_s])]  # fmt: skip
        rows.append([f"`{text}`", *latency, f"{work.commits_out_per_s:g}", *cells, *(_usd(amount) for amount in each),
                     _usd(math.fsum(each))])  # fmt: skip
    batches = replace(DEFAULT, messages_per_s=1_000, commits_per_s=50, canary=False).commits_per_month[1]
    header = ["interval", "p50 s", "p99 s", "commits/s", "PUTs", "GETs", "producer", "pipeline", "reader", "together"]
    return f"""\
## What a shorter commit interval costs

`--commit-interval` of a pipeline is the least time between two of its commits, and each commit costs requests: of the
pipeline, and of all who read it. Here the one producer has the same interval (`linger_s`, `--commits-per-s`), because
a pipeline commits no more often than its input. A month of one partition and one reader, requests only, in USD:

{markdown_table(header, rows)}
```sh
brokerless cost --engine own --commits-per-s 50 --commit-interval 20ms
```

p50 and p99 are what was measured from producer to reader over two hops on a local MinIO, at 10,000 messages a second
([benchmark](benchmark.md)); S3 takes longer to answer.

The rows are for a pipeline in real-time mode on a machine of your own (`--engine own`, which leaves the machine out of
the bill). It is taken to keep the interval; whether the answers of S3 are fast enough for 20 ms was not tried. Glue and
EMR Serverless run micro-batches, at most {workload.BATCHES_PER_S:g} a second whatever is asked for: a pipeline's own
commits cost at most {_usd(requests_usd({"PUT": 2 * batches}))} there. With one commit a second there are more GETs than
with ten, because readers ask each 10 ms from a quarter of a second after a commit on. Where fewer messages come than
commits may, each message has a commit.
"""


def _model() -> str:
    flowing, slow = workload.polls_per_s(10, 0.25), workload.polls_per_s(1, 0.25)
    none, pipeline = workload.polls_per_s(0, 0.25), workload.polls_per_s(0, workload.PIPELINE_IDLE_POLL_S)
    return f"""\
## The model

- A **commit** is two PUTs: an object with the rows, and the log's entry. A producer commits `--commits-per-s` times a
  second, less often if it has fewer messages, more often if one commit would hold over
  {workload.BATCH_ROWS:,} messages or {workload.BATCH_BYTES / 2**20:g} MiB.
- A **pipeline** commits as often as its input, but no more often than `--commit-interval` lets it, which in real-time
  mode is {workload.REALTIME_COMMIT_S * 1000:g} ms by default. Micro-batches commit {workload.BATCHES_PER_S:g} times a
  second at most.
- **Reading** a commit is two GETs: entry and object. A pipeline reads what producers commit, each reader what the
  pipeline commits.
- **Polling** is a GET for an entry that is not there yet. After a commit a reader waits for four fifths of the shortest
  of the last gaps, `--idle-poll-s` at most, then asks each 10 ms; after a second the wait doubles up to
  `--idle-poll-s`. For each partition that makes {flowing:.0f} requests a second at ten commits a second, {slow:.0f} at
  one, {none:.1f} at none; a pipeline sends {pipeline:.1f} at none. With several producers of one partition no rhythm is
  counted on.
- **Storage** is the messages as they are, in the input and in the output, and
  {workload.COMMIT_OVERHEAD_BYTES:,} bytes a commit, for `--retention-days`. Nothing is taken to be compressed.
  Maintenance removes log entries and orphans, not messages: to keep messages for so long is up to you.
- **Ingest** through a function (`--source`) is one run a commit. SQS and Kinesis as sources have their own price.
- **Maintenance** runs each {stage.MAINTENANCE_EVERY_S / 60:g} minutes. Each `--clean-up-every-h`, a day by
  default, it lists all objects to find orphans, {stage.LIST_PAGE:,} a request.
- Messages come for `--hours-per-day`; what runs or polls does so all day. A month has 730 hours, a GB 2**30 bytes.
- **Kinesis**: a producer's messages of one commit make one record (`--single`: one each); on-demand bills whole KB.
- **SQS**: sent, received and deleted in batches of what one commit would hold, ten at most; a Lambda function takes the
  pipeline's place.

Where it is wrong it should be wrong against brokerless: nothing is compressed, no poll takes time, no commit is late.
"""


def _measured(runs: Iterable[Result]) -> str:
    rows, ratios = [], []
    # Repeats share the pass that counts requests.
    for run in {(run.peer, run.rate, run.hops, run.commit_ms): run for run in runs}.values():
        by_role = run.figures.get("requests_by_role")
        if run.peer not in {"brokerless", "brokerless-micro-batch"} or not by_role:
            continue
        realtime = run.figures.get("engine") == "realtime"
        work = Workload(
            messages_per_s=run.rate, topics=2, partitions=run.partitions, producers=run.producers,
            commits_per_s=1000 / run.commit_ms, canary=False,
            engine="none" if run.hops == 1 else "own" if realtime else "glue",
            commit_interval_s=run.commit_ms / 1000 if realtime else None,
        )  # fmt: skip
        modelled = _requests_per_s(work)
        counted = {role: by_role[role] for role in modelled}
        ratios.append(_priced(modelled.values()) * run.figures["requests_counted_s"] / _priced(counted.values()))
        for role in ("producer", "pipeline", "reader"):
            if not by_role[role]:
                continue
            seen = {kind: count / run.figures["requests_counted_s"] for kind, count in by_role[role].items()}
            cells = [f"{seen.get(kind, 0):.0f} ({modelled[role][kind]:.0f})" for kind in ("PUT", "GET", "GET 404")]
            rows.append([f"{run.rate:,}", f"{run.hops}", f"{run.commit_ms:g}", role, *cells])
    header = ["messages/s", "hops", "commit ms", "who", "PUT/s", "GET/s", "GET of nothing/s"]
    return f"""\
## The model beside the measurement

Requests a second as [measured](benchmark.md) with two producers, two topics and one reader, and in brackets as the
model has them. They were counted on one small machine by a proxy that made each request slower, so that the pipeline
committed less often there; and fewer commits are more polls of its reader. By price the model has
{min(ratios):.2f} to {max(ratios):.2f} times the requests that were counted.

{markdown_table(header, rows)}"""


def _priced(counts: Iterable[Mapping[str, float]]) -> float:
    return math.fsum(requests_usd(each) for each in counts)


def _requests_per_s(work: Workload) -> dict[str, dict[str, float]]:
    produced, piped = (count / SECONDS_PER_MONTH for count in work.commits_per_month)
    gets, polls = work.gets_per_month, work.polls_per_month
    pipeline, reader = (
        {"GET": got / SECONDS_PER_MONTH, "GET 404": polled / SECONDS_PER_MONTH}
        for got, polled in zip(gets, polls, strict=True)
    )
    return {
        "producer": {"PUT": 2 * produced, "GET": 0, "GET 404": 0},
        "pipeline": {"PUT": 2 * piped, **pipeline},
        "reader": {"PUT": 0, **reader},
    }


def _assumptions() -> str:
    rows = [
        [
            "messages a second for 2 vCPU of executors",
            f"{workload.EXECUTOR_MESSAGES_PER_S:,}",
            "half of what was measured",
        ],
        ["commits a second of micro-batches, at most", f"{workload.BATCHES_PER_S:g}", "measured at 10,000 messages/s"],
        ["bytes of a commit beside its messages", f"{workload.COMMIT_OVERHEAD_BYTES:,}", "measured"],
        [
            "seconds of an ingest run, and of a message in it",
            f"{stage.INGEST_S:g}, {stage.MESSAGE_S:f}",
            "assumed",
        ],
        [
            "memory of ingest, maintenance, others, GB",
            _slashes("INGEST_GB", "MAINTENANCE_GB", "FUNCTION_GB"),
            "assumed",
        ],
        ["seconds of a maintenance run, of a page that it lists", _slashes("MAINTENANCE_S", "LIST_S"), "assumed"],
        ["seconds until a canary's message has arrived", f"{stage.CANARY_WAIT_S:g}", "assumed"],
        [
            "bytes of log an invocation, a second of a worker",
            _slashes("INVOCATION_LOG_BYTES", "WORKER_LOG_BYTES_PER_S"),
            "assumed",
        ],
        ["requests for objects that reach the key", f"{stage.KMS_SHARE:.0%}", "bucket keys save up to 99 %"],
        ["empty receives a second of a queue", f"{items.SQS_IDLE_RECEIVES_PER_S:g}", "five pollers, 20 s each"],
    ]
    return f"""\
## Assumptions

{markdown_table(["what", "value", "from"], rows)}"""


def _slashes(*names: str) -> str:
    return ", ".join(f"{getattr(stage, name):g}" for name in names)


def _prices() -> str:
    rows = [[f"`{p.name}`", p.usd_text(), p.for_text(), p.source, p.as_of] for p in PRICES.rows.values()]
    return f"""\
## Prices

All are in `brokerless/cost/prices.json`, USD in {PRICES.region}. For another region or a contract, print them, change
them, and give them back:

```sh
brokerless cost --show-prices --json | tee prices.json
brokerless cost --price-file prices.json
```

A file must have all rows, or say `"others": "as published"` to change some. Look up yours before you decide by these.

{markdown_table(["price", "USD", "for", "source", "as of"], rows)}"""


def _where(alternative: str, mine: Workload) -> str:
    """Return the rates at which brokerless is cheaper than the alternative."""

    def difference(rate: float) -> float:
        work = replace(mine, messages_per_s=rate)
        # A storage class or the pace of commits is of brokerless; what the others have is the page's default.
        return usd("brokerless", work) - usd(alternative, replace(work, commits_per_s=DEFAULT.commits_per_s))

    bounds = [LOWEST, *crossings(difference, LOWEST, HIGHEST), HIGHEST]
    won = []
    for low, high in pairwise(bounds):
        if difference(math.sqrt(low * high)) >= 0:
            continue
        if low == LOWEST and high == HIGHEST:
            return "always"
        won.append(
            f"below {_about(high)}" if low == LOWEST
            else f"above {_about(low)}" if high == HIGHEST
            else f"from {_about(low)} to {_about(high)}"
        )  # fmt: skip
    return ", ".join(won) or "never"


def _break_even_commits(alternative: str, work: Workload) -> str:
    """Return the commits a second above which the alternative is cheaper; its cost does not depend on them."""
    other = usd(alternative, work)
    found = crossings(lambda commits: usd("brokerless", replace(work, commits_per_s=commits)) - other, 0.01, 1000)
    return _about(found[0])


def _break_even_partitions(alternative: str, work: Workload) -> int:
    return _from_how_many(alternative, lambda n: replace(work, partitions=n))


def _from_how_many(alternative: str, changed: Callable[[int], Workload]) -> int:
    """Return the number above which the alternative with one is cheaper than brokerless with this number."""
    other = usd(alternative, changed(1))
    return next(n for n in range(1, 10_000) if usd("brokerless", changed(n)) > other)


def _about(value: float) -> str:
    """Format a number with two digits."""
    digits = max(0, 1 - math.floor(math.log10(value)))
    return f"{round(value, 1 - math.floor(math.log10(value))):,.{digits}f}"


def _usd(amount: float) -> str:
    return f"${amount:,.0f}" if amount >= 10 else f"${amount:,.2f}"


def _each(alternative: str, work: Workload) -> str:
    amount = estimate(alternative, work).usd_per_million(work)
    return "-" if amount is None else f"{amount:,.2f}" if amount >= 1 else f"{amount:.2g}"
