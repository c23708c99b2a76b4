"""Estimate what a workload costs a month with brokerless and with the alternatives. Standard library only.

Each estimate says how every item was computed and what it excludes. The alternatives are set up in their own favour:
exactly full disks, no cluster larger than the smallest one, none of the alarms and logs that brokerless is charged with
here. Their producers collect messages for as long as those of brokerless do, and send them in as few calls as they can.
All carry the same messages over the same hops; where Spark can read the alternative, the same pipeline runs on the same
workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from brokerless import metrics
from brokerless.cost import bill as cost
from brokerless.cost.bill import GB, HOURS_PER_MONTH, PRICES, SECONDS_PER_MONTH, Bill, Item
from brokerless.cost.items import (
    compute,
    copies_out,
    function_item,
    gb_item,
    hours_item,
    kinesis_bytes_per_s,
    kinesis_records,
    millions_item,
    millions_text,
    pipeline_items,
    queue_items,
    request_item,
)
from brokerless.cost.workload import CANARY_EVERY_S, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokerless.cost.prices import Claim, Prices

FUNCTION_GB: Final = 0.5
"""The memory of functions that mostly wait: controller, canary, the SQS consumer."""

INGEST_GB: Final = 1.0
INGEST_S: Final = 0.15
"""The duration of one invocation that commits: two PUTs one after the other, and the code around them."""

MESSAGE_S: Final = 20e-6
"""The time to parse and encode one message."""

CONTROLLER_EVERY_S: Final = 300.0
CANARY_WAIT_S: Final = 2.0
METRICS_EVERY_S: Final = 60.0
MAINTENANCE_EVERY_S: Final = 300.0
MAINTENANCE_S: Final = 5.0
MAINTENANCE_GB: Final = 2.0
MAINTENANCE_REQUESTS: Final = {"PUT": 2.0, "LIST": 2.0, "GET": 50.0}
"""The requests of one run for one table, without garbage collection."""

LIST_S: Final = 0.05
"""The duration of one page of a listing."""

LIST_PAGE: Final = 1000
INVOCATION_LOG_BYTES: Final = 1000.0
WORKER_LOG_BYTES_PER_S: Final = 1000.0
LOG_RETENTION_DAYS: Final = 30.0

KMS_SHARE: Final = 0.01
"""The share of object requests that reach the key: bucket keys save up to 99 % of them."""

KINESIS_SHARD_IN_BYTES_PER_S: Final = 2**20
KINESIS_SHARD_OUT_BYTES_PER_S: Final = 2 * 2**20
KINESIS_SHARD_RECORDS_PER_S: Final = 1000
KINESIS_UNIT_BYTES: Final = 25 * 1024

CLAIM_TOLERANCE: Final = 0.1
CLAIM_MESSAGE_BYTES: Final = 1000
"""The size of "small messages" in the claims of others."""

_PACKING: Final = {True: ("packing messages into records and unpacking them, which is left to its users",), False: ()}

NOBODYS: Final = ("the programs that produce and read", "people", "taxes, discounts, free tiers")
"""The costs that no estimate includes."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of brokerless or of one alternative.

    Attributes:
        key: a short name: ``brokerless``, ``msk``.
        bill: the items.
        excludes: the costs that it does not include, besides ``NOBODYS``.
    """

    key: str
    name: str
    bill: Bill
    excludes: tuple[str, ...]

    def usd_per_million(self, workload: Workload) -> float | None:
        """Return the cost of a million messages over the month; None if there are no messages."""
        messages = workload.messages_per_month
        return self.bill.usd_per_month / messages * 1e6 if messages else None


def estimates(workload: Workload, prices: Prices = PRICES) -> list[Estimate]:
    """Return the estimate of brokerless, then those of the alternatives."""
    found = [make(workload, prices) for make in ALTERNATIVES.values()]
    if workload.engine != "own":
        return found
    machine = "the machine that runs the pipeline"
    return [made if made.key == "sqs" else replace(made, excludes=(machine, *made.excludes)) for made in found]


def claims(workload: Workload, prices: Prices = PRICES) -> list[Claim]:
    """Return what others published for a workload like this one; it does not hold for another workload."""
    return [
        claim
        for claim in prices.claims
        if abs(workload.messages_per_s / claim.messages_per_s - 1) <= CLAIM_TOLERANCE
        and workload.message_bytes <= CLAIM_MESSAGE_BYTES
        and workload.hours_per_day == 24
    ]


def brokerless(workload: Workload, prices: Prices = PRICES) -> Estimate:
    """Estimate brokerless: requests, storage, the pipeline's workers, and everything that a deployed stage has."""
    s3 = cost.s3_prices(workload.storage_class, prices)
    items = [
        *_requests(workload, s3),
        *_stored(workload, s3),
        *pipeline_items(workload, prices),
        *_ingest(workload, prices),
        *_functions(workload, s3, prices),
        *(_cloudwatch(workload, prices) if workload.monitoring else ()),
        _logs(workload, prices),
        *(_kms(workload, prices) if workload.kms else ()),
    ]
    excludes = ["commits that were lost to another writer of the same partition", "traffic that leaves the region"]
    if workload.storage_class == "express":
        excludes.append("a second zone: Express One Zone keeps all in one")
    return Estimate("brokerless", "brokerless", Bill(tuple(items)), tuple(excludes))


def msk(workload: Workload, prices: Prices = PRICES) -> Estimate:
    """Estimate MSK: three of the smallest brokers of a current type, with replication by three."""
    bill = cost.kafka_bill(
        stored_bytes_per_s=workload.mean_bytes_per_s * workload.hops,
        retention_days=workload.retention_days,
        cluster=cost.brokers(prices=prices),
        compute=compute(workload, prices),
        prices=prices,
    )
    excludes = (
        "larger brokers, which high rates and many partitions need",
        "room on the disks",
        "tiered storage, which would make long retention cheaper",
        "traffic between zones (0.01 USD a GB each way)",
        "logs, alarms, keys",
    )
    return Estimate("msk", "MSK, 3 x kafka.m7g.large", bill, excludes)


def msk_serverless(workload: Workload, prices: Prices = PRICES) -> Estimate:
    """Estimate MSK Serverless, which is billed by traffic."""
    bill = cost.kafka_serverless_bill(
        in_bytes_per_s=workload.mean_bytes_per_s * workload.hops,
        out_bytes_per_s=workload.mean_bytes_per_s * copies_out(workload),
        partitions=workload.input_tables + workload.output_tables,
        retention_days=workload.retention_days,
        compute=compute(workload, prices),
        prices=prices,
    )
    return Estimate("msk-serverless", "MSK Serverless", bill, ("its limits on throughput", "logs, alarms, keys"))


def kinesis_on_demand(workload: Workload, prices: Prices = PRICES) -> Estimate:
    """Estimate Kinesis on-demand, standard. Each record is billed in whole KB."""
    streams = workload.topics + workload.hops - 1
    billed = kinesis_bytes_per_s(workload)
    a_day = billed * workload.hops * 86_400
    extended = a_day * max(0.0, min(workload.retention_days, 7) - 1)
    long = a_day * max(0.0, workload.retention_days - 7)
    items = [
        hours_item("streams", f"{streams} streams", streams, "kinesis-on-demand-stream", prices),
        gb_item("data in", billed * workload.hops * SECONDS_PER_MONTH, "kinesis-on-demand-in", prices),
        gb_item("data out", billed * copies_out(workload) * SECONDS_PER_MONTH, "kinesis-on-demand-out", prices),
        *([gb_item("retained for 2 to 7 days", extended, "kinesis-on-demand-extended", prices)] if extended else []),
        *([gb_item("retained for longer", long, "kinesis-on-demand-long", prices)] if long else []),
        *pipeline_items(workload, prices),
    ]
    excludes = (*_PACKING[workload.packed], "enhanced fan-out", "logs, alarms, keys")
    return Estimate("kinesis-on-demand", "Kinesis on-demand", Bill(tuple(items)), excludes)


def kinesis_provisioned(workload: Workload, prices: Prices = PRICES) -> Estimate:
    """Estimate Kinesis with shards for the rate while messages come, all day."""
    rate, topics = workload.messages_per_s, workload.topics
    first = _shards(workload, rate / topics, readers=1 if workload.hops > 1 else workload.readers) * topics
    second = _shards(workload, rate, readers=workload.readers) if workload.hops > 1 else 0
    records, size = kinesis_records(workload)
    units = records * math.ceil(size / KINESIS_UNIT_BYTES) * workload.hops
    items = [
        hours_item("shards", f"{first + second} shards", first + second, "kinesis-shard", prices),
        millions_item("records", units, "kinesis-put-unit", prices),
        *pipeline_items(workload, prices),
    ]
    excludes = (
        "retention beyond 24 hours",
        "shards for peaks and uneven keys",
        *_PACKING[workload.packed],
        "enhanced fan-out",
        "logs, alarms, keys",
    )
    return Estimate("kinesis-provisioned", "Kinesis provisioned", Bill(tuple(items)), excludes)


def sqs(workload: Workload, prices: Prices = PRICES) -> Estimate:
    """Estimate SQS: a queue for each topic and each reader, and a function instead of the pipeline."""
    items = [*queue_items("topics", workload, workload.topics, 1, prices)]
    if workload.hops > 1:
        items.append(_consumer(workload, prices))
        items += queue_items("output", workload, workload.readers, workload.readers, prices)
    elif workload.readers > 1:
        copies = workload.readers - 1
        items += queue_items("further readers", workload, workload.topics * copies, copies, prices)
    excludes = (
        "order and replay, which it does not have, and retention beyond 14 days",
        "the fan-out to several readers' queues",
        "logs, alarms, keys",
    )
    return Estimate("sqs", "SQS and Lambda", Bill(tuple(items)), excludes)


ALTERNATIVES: Final[dict[str, Callable[[Workload, Prices], Estimate]]] = {
    "brokerless": brokerless,
    "msk": msk,
    "msk-serverless": msk_serverless,
    "kinesis-on-demand": kinesis_on_demand,
    "kinesis-provisioned": kinesis_provisioned,
    "sqs": sqs,
}


def crossings(difference: Callable[[float], float], low: float, high: float) -> list[float]:
    """Return where the sign of a difference changes between two positive bounds, to a thousandth of each value.

    20 points a decade are checked, so two changes that are closer to each other can be missed.
    """
    points = math.ceil(20 * math.log10(high / low))
    grid = [low * (high / low) ** (n / points) for n in range(points + 1)]
    values = [difference(x) for x in grid]
    found = []
    for (left, right), (before, after) in zip(pairwise(grid), pairwise(values), strict=True):
        if (before < 0) != (after < 0):
            found.append(_crossing(difference, left, right, rising=before < 0))
    return found


def _crossing(difference: Callable[[float], float], left: float, right: float, *, rising: bool) -> float:
    while right / left > 1.001:
        middle = math.sqrt(left * right)
        if (difference(middle) < 0) == rising:
            left = middle
        else:
            right = middle
    return math.sqrt(left * right)


def _requests(workload: Workload, s3: cost.S3Prices) -> list[Item]:
    commits_in, commits_out = workload.commits_per_month
    pipeline_gets, reader_gets = workload.gets_per_month
    pipeline_polls, reader_polls = workload.polls_per_month
    items = [request_item("producers' commits", {"PUT": 2 * commits_in}, s3)]
    if workload.hops > 1:
        items.append(request_item("pipeline's commits", {"PUT": 2 * commits_out}, s3))
        items.append(request_item("pipeline's reading", {"GET": pipeline_gets}, s3))
        items.append(request_item("pipeline's polling", {"GET 404": pipeline_polls}, s3))
    items.append(request_item("readers' reading", {"GET": reader_gets}, s3))
    items.append(request_item("readers' polling", {"GET 404": reader_polls}, s3))
    if workload.group_members:
        puts, gets = workload.group_requests_per_month
        items.append(request_item("members of groups", {"PUT": puts, "GET": gets}, s3))
    return items


def _stored(workload: Workload, s3: cost.S3Prices) -> list[Item]:
    stored = workload.stored_bytes
    items = [
        Item(
            "storage",
            cost.storage_usd_per_month(stored, s3),
            f"{stored / GB:,.1f} GB ({workload.retention_days:g} days, {workload.hops} hops, {s3.name})",
        )
    ]
    if workload.storage_class == "express":
        written = workload.mean_bytes_per_s * workload.hops * SECONDS_PER_MONTH
        read = workload.mean_bytes_per_s * copies_out(workload) * SECONDS_PER_MONTH
        items.append(cost.priced("upload", written, s3.upload_usd_per_gb))
        items.append(cost.priced("retrieval", read, s3.retrieval_usd_per_gb))
    return items


def _ingest(workload: Workload, prices: Prices) -> list[Item]:
    if workload.door == "library":
        return []
    invocations = workload.commits_in_per_s * workload.active * SECONDS_PER_MONTH
    items = [
        function_item(
            "ingest", invocations, INGEST_S, INGEST_GB, prices, more_s=workload.messages_per_month * MESSAGE_S
        )
    ]
    if workload.door == "sqs":
        items += queue_items("source", workload, workload.topics, 1, prices)
    if workload.door == "kinesis":
        month = kinesis_bytes_per_s(workload) * SECONDS_PER_MONTH
        topics = workload.topics
        items.append(hours_item("source: streams", f"{topics} streams", topics, "kinesis-on-demand-stream", prices))
        items.append(gb_item("source: data in", month, "kinesis-on-demand-in", prices))
        items.append(gb_item("source: data out", month, "kinesis-on-demand-out", prices))
    return items


def _functions(workload: Workload, s3: cost.S3Prices, prices: Prices) -> list[Item]:
    runs = SECONDS_PER_MONTH / MAINTENANCE_EVERY_S
    tables = workload.input_tables + 2 * workload.output_tables  # dead letters, too
    pages = HOURS_PER_MONTH / workload.sweep_every_h * max(tables, workload.stored_objects / LIST_PAGE)
    requests = {kind: count * runs * tables for kind, count in MAINTENANCE_REQUESTS.items()}
    requests["LIST"] += pages
    items = [
        function_item("maintenance", runs, MAINTENANCE_S, MAINTENANCE_GB, prices, more_s=pages * LIST_S),
        request_item("maintenance's requests", requests, s3),
    ]
    if workload.worker_count:
        asks = SECONDS_PER_MONTH / CONTROLLER_EVERY_S
        items.append(function_item("controller", asks, 1.0, FUNCTION_GB, prices))
    if workload.has_canary:
        asks = SECONDS_PER_MONTH / CANARY_EVERY_S
        polls = asks * CANARY_WAIT_S * 100
        items.append(function_item("canary", asks, CANARY_WAIT_S, FUNCTION_GB, prices))
        items.append(request_item("canary's polling", {"GET 404": polls}, s3))
    return items


def _cloudwatch(workload: Workload, prices: Prices) -> list[Item]:
    pipelines = workload.hops - 1
    count = metrics.billed(topics=workload.topics, pipelines=pipelines, canaries=int(workload.has_canary))
    calls = pipelines * SECONDS_PER_MONTH / METRICS_EVERY_S
    alarms = prices["cloudwatch-alarm"].of(count.alarms) + prices["cloudwatch-composite-alarm"].of(count.composites)
    first = prices.usd("cloudwatch-metric")
    return [
        Item("metrics", prices["cloudwatch-metric"].of(count.metrics), f"{count.metrics}, the first at {first:g} USD"),
        Item(
            "sending metrics", prices["cloudwatch-request"].of(calls), f"{millions_text(calls)} calls of the pipeline"
        ),
        Item("alarms", alarms, f"{count.alarms}, and {count.composites} composite"),
        Item("dashboard", prices["cloudwatch-dashboard"].of(1), "1"),
    ]


def _logs(workload: Workload, prices: Prices) -> Item:
    invocations = SECONDS_PER_MONTH / MAINTENANCE_EVERY_S
    if workload.worker_count:
        invocations += SECONDS_PER_MONTH / CONTROLLER_EVERY_S
    if workload.has_canary:
        invocations += SECONDS_PER_MONTH / CANARY_EVERY_S
    if workload.door != "library":
        invocations += workload.commits_in_per_s * workload.active * SECONDS_PER_MONTH
    workers = workload.worker_count
    size = invocations * INVOCATION_LOG_BYTES + workers * WORKER_LOG_BYTES_PER_S * SECONDS_PER_MONTH
    retained = size / (SECONDS_PER_MONTH / 86_400) * LOG_RETENTION_DAYS
    usd = prices["cloudwatch-logs-in"].of(size / GB) + prices["cloudwatch-logs-storage"].of(retained / GB)
    what = f"{millions_text(invocations)} invocations, {workers} workers"
    return Item("logs", usd, f"{size / GB:,.1f} GB: {what}; retained for {LOG_RETENTION_DAYS:g} days")


def _kms(workload: Workload, prices: Prices) -> list[Item]:
    objects = 2 * sum(workload.commits_per_month) + sum(workload.gets_per_month)
    asked = objects * KMS_SHARE
    usd = prices["kms-key"].of(1) + prices["kms-request"].of(asked)
    return [Item("key", usd, f"1 key, {millions_text(asked)} requests: {KMS_SHARE:.0%} of those for objects")]


def _shards(workload: Workload, messages_per_s: float, *, readers: int) -> int:
    """Return the shards of one stream: for the bytes in, the number of records, and the bytes out to all readers."""
    bytes_per_s = messages_per_s * workload.message_bytes
    needed = [bytes_per_s / KINESIS_SHARD_IN_BYTES_PER_S, bytes_per_s * readers / KINESIS_SHARD_OUT_BYTES_PER_S]
    if not workload.packed:
        needed.append(messages_per_s / KINESIS_SHARD_RECORDS_PER_S)
    return max(1, math.ceil(max(needed)))


def _consumer(workload: Workload, prices: Prices) -> Item:
    """Return the item of a function instead of the pipeline: a run each tenth of a second, or for 1,000 messages."""
    per_s = min(workload.messages_per_s, max(10.0, workload.messages_per_s / 1000))
    invocations = per_s * workload.active * SECONDS_PER_MONTH
    return function_item(
        "consumer", invocations, 0.02, FUNCTION_GB, prices, more_s=workload.messages_per_month * MESSAGE_S
    )
