"""Generate ``docs/metrics.md`` from the metrics' definitions and the list prices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokerless.aws.cloudwatch import PERIOD_S
from brokerless.cost.bill import SECONDS_PER_MONTH
from brokerless.cost.prices import published
from brokerless.examples.timezone.messages import NEW_YORK, PARIS
from brokerless.metrics import GROUP_METRICS, LAG_MESSAGES, LAG_SECONDS, METRICS, billed
from brokerless.metrics.prometheus import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from brokerless.metrics import Alarm, Metric

PAGE: Final = "docs/metrics.md"

# The example: its input topics, and its pipeline with a canary.
TOPICS: Final = (NEW_YORK, PARIS)
PIPELINES: Final = 1

_INTRO: Final = """\
# Metrics

What is measured, by whom, and when somebody should look. This page is made from `brokerless/metrics/catalogue.py` and
the list prices: `python -m tools.pages metrics`, and a test compares them. Dashboard and alarms are made from
the same definitions.

A stage's metrics are in the CloudWatch namespace `Brokerless/<stage>`. Each has one dimension, `Topic`, `Pipeline` or
`Stage`, because each combination of values is billed as a metric of its own. Pipelines send once a minute; functions
write metrics to their log, from which CloudWatch reads them.

Latencies of messages are counted in buckets a tenth apart and sent as values with counts, so CloudWatch's percentiles
are those of all messages, at most a tenth too high. Averages of percentiles appear nowhere.

A pipeline that cannot reach CloudWatch continues. It stores the metrics of a quarter of an hour, sends them later with
their original time, and logs a warning once a minute.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([_INTRO, *_metrics(), "", *_groups(), "", *_alarms(), "", *_bill(), ""])


def generate(repository: Path) -> dict[str, bytes]:
    """Return the page by its path in the repository."""
    return {PAGE: page().encode()}


def _metrics() -> Iterator[str]:
    yield "## All metrics"
    yield ""
    yield "| metric | unit | of each | from | what it is | on the dashboard |"
    yield "|---|---|---|---|---|---|"
    for metric in METRICS:
        shown = f"{metric.row}: {', '.join(metric.statistics)}"
        unit = "USD" if metric.unit == "None" else metric.unit
        yield f"| `{metric.name}` | {unit} | {metric.dimension} | {metric.emitter} | {_code(metric.help)} | {shown} |"


def _groups() -> Iterator[str]:
    yield "## Consumer groups"
    yield ""
    yield "`brokerless lag --prometheus PORT` serves these for Prometheus, with the labels `group`, `topic` and"
    yield f"`partition`; of a pipeline it serves `{name_of(LAG_MESSAGES)}` and `{name_of(LAG_SECONDS)}`, with the label"
    yield "`pipeline`."
    yield ""
    yield "| metric | unit | what it is |"
    yield "|---|---|---|"
    for metric in GROUP_METRICS:
        yield f"| `{name_of(metric)}` | {metric.unit} | {_code(metric.help)} |"


def _code(text: str) -> str:
    return text.replace("``", "`")


def _alarms() -> Iterator[str]:
    yield "## Alarms"
    yield ""
    yield "Names are `<stage>-<topic or pipeline>-<metric>`. A *critical* alarm goes to the SNS topic"
    yield "`brokerless-<stage>-page`, a *warning* to `brokerless-<stage>-morning`."
    yield ""
    yield "| alarm | condition | severity | what it means |"
    yield "|---|---|---|---|"
    for metric in METRICS:
        if (alarm := metric.alarm) is not None:
            link = f"[{metric.name}](runbook.md#{metric.name.lower()})"
            who = "critical" if alarm.critical else "warning"
            yield f"| {link} | {_condition(metric, alarm)} | {who} | {alarm.why} |"


def _condition(metric: Metric, alarm: Alarm) -> str:
    if alarm.below is not None:
        bound = f"below {alarm.below:g}"
    else:
        bound = "above the pipeline's objective" if alarm.above == "objective" else f"above {alarm.above:g}"
    parts = [f"{alarm.statistic} of {alarm.minutes} minutes {bound}"]
    if alarm.missing:
        parts.append("or no data")
    if alarm.backlog is not None:
        parts.append(f"while the minimum of `{alarm.backlog.name}` is above 0 and does not fall")
    if alarm.canary and metric.emitter != "canary":
        parts.append("(pipelines with a canary)")
    return " ".join(parts)


def _bill() -> Iterator[str]:
    count = billed(topics=len(TOPICS), pipelines=PIPELINES, canaries=PIPELINES)
    requests = PIPELINES * SECONDS_PER_MONTH / PERIOD_S
    prices = published()
    rows = [
        ("metrics", f"{count.metrics}", prices["cloudwatch-metric"].of(count.metrics)),
        ("alarms", f"{count.alarms}", prices["cloudwatch-alarm"].of(count.alarms)),
        ("composite alarms", f"{count.composites}", prices["cloudwatch-composite-alarm"].of(count.composites)),
        ("dashboard", "1", prices["cloudwatch-dashboard"].of(1)),
        ("requests that send metrics", f"{requests:,.0f}", prices["cloudwatch-request"].of(requests)),
    ]
    another = billed(topics=len(TOPICS) + 1, pipelines=PIPELINES, canaries=PIPELINES)
    more = prices["cloudwatch-metric"].of(another.metrics - count.metrics)
    more += prices["cloudwatch-alarm"].of(another.alarms - count.alarms)
    yield "## Cost of monitoring"
    yield ""
    yield (
        f"The example, a stage with {len(TOPICS)} topics and {PIPELINES} pipeline, by list prices of "
        f"{prices.region} of\n{prices.as_of:%Y-%m-%d}, without free tiers:"
    )
    yield ""
    yield "| what | how many | USD a month |"
    yield "|---|---:|---:|"
    for name, number, usd in rows:
        yield f"| {name} | {number} | {usd:.2f} |"
    yield f"| together | | {sum(usd for _, _, usd in rows):.2f} |"
    yield ""
    yield (
        f"Another topic adds {more:.2f} USD. Not included: e-mails, and the log lines of functions that contain "
        "metrics,\nwhich are part of the cost of logs."
    )
