"""What a workload costs a month with brokerless, and what it would cost with something else.

Each estimate says how every item was computed and what is not in it. The alternatives are set up in their own favour:
exactly full disks, no cluster larger than the smallest one, none of the alarms and logs that brokerless is charged with
here. Their producers collect messages for as long as those of brokerless do, and send them in as few calls as they can.
All of them carry the same messages over the same hops; where Spark can read the alternative, the same pipeline runs on
the same workers.

Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from brokerless import metrics
from brokerless.cost import bill as cost
from brokerless.cost.bill import GB, HOURS_PER_MONTH, PRICES, SECONDS_PER_MONTH, Bill, Compute, Item
from brokerless.cost.workload import CANARY_EVERY_S, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokerless.cost.prices import Claim, Prices

FUNCTION_GB: Final = 0.5
"""Memory of the functions that wait more than they compute: controller, canary, the SQS consumer."""

INGEST_GB: Final = 1.0
INGEST_S: Final = 0.15
"""One invocation that commits: two PUTs one after the other, and what is around them."""

MESSAGE_S: Final = 20e-6
"""For each message, to parse and encode it."""

CONTROLLER_EVERY_S: Final = 300.0
CANARY_WAIT_S: Final = 2.0
METRICS_EVERY_S: Final = 60.0
MAINTENANCE_EVERY_S: Final = 300.0
MAINTENANCE_S: Final = 5.0
MAINTENANCE_GB: Final = 2.0
MAINTENANCE_REQUESTS: Final = {"PUT": 2.0, "LIST": 2.0, "GET": 50.0}
"""Of one run for one table, without the sweep."""

LIST_S: Final = 0.05
"""One page of a listing."""

LIST_PAGE: Final = 1000
INVOCATION_LOG_BYTES: Final = 1000.0
WORKER_LOG_BYTES_PER_S: Final = 1000.0
LOG_RETENTION_DAYS: Final = 30.0

KMS_SHARE: Final = 0.01
"""Of requests for objects that reach the key: bucket keys save up to 99 % of them."""

SQS_BATCH: Final = 10
SQS_CHUNK_BYTES: Final = 64 * 1024
SQS_BATCH_BYTES: Final = 2**20
SQS_IDLE_RECEIVES_PER_S: Final = 0.25
"""Of a queue: five pollers of Lambda that wait 20 s each."""

KINESIS_SHARD_IN_BYTES_PER_S: Final = 2**20
KINESIS_SHARD_OUT_BYTES_PER_S: Final = 2 * 2**20
KINESIS_SHARD_RECORDS_PER_S: Final = 1000
KINESIS_UNIT_BYTES: Final = 25 * 1024
KINESIS_RECORD_BYTES: Final = 2**20
KINESIS_ROUNDING_BYTES: Final = 1024

CLAIM_TOLERANCE: Final = 0.1
CLAIM_MESSAGE_BYTES: Final = 1000
"""What "small messages" is taken to mean."""

_PACKING: Final = {True: ("packing messages into records and unpacking them, which is left to its users",), False: ()}

NOBODYS: Final = (
    "the programs that produce and read",
    "people",
    "taxes, discounts, free tiers",
)
"""What is in no estimate."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one way costs.

    Attributes:
        key: a short name: ``brokerless``, ``msk``.
        bill: item by item.
        excludes: what it does not include, beside ``NOBODYS``.
    """

    key: str
    name: str
    bill: Bill
    excludes: tuple[str, ...]

    def usd_per_million(self, workload: Workload) -> float | None:
        """Of messages, over the month; None if there are none."""
        messages = workload.messages_per_month
        return self.bill.usd_per_month / messages * 1e6 if messages else None


def estimates(workload: Workload, prices: Prices = PRICES) -> list[Estimate]:
    """Brokerless first, then the alternatives."""
    found = [make(workload, prices) for make in WAYS.values()]
    if workload.engine != "own":
        return found
    machine = "the machine that runs the pipeline"
    return [made if made.key == "sqs" else replace(made, excludes=(machine, *made.excludes)) for made in found]


def claims(workload: Workload, prices: Prices = PRICES) -> list[Claim]:
    """What others published for about this workload; nothing can be said from it about another one."""
    return [
        claim
        for claim in prices.claims
        if abs(workload.messages_per_s / claim.messages_per_s - 1) <= CLAIM_TOLERANCE
        and workload.message_bytes <= CLAIM_MESSAGE_BYTES
        and workload.hours_per_day == 24
    ]


def brokerless(workload: Workload, prices: Prices = PRICES) -> Estimate:
    """This kit: requests and storage, what runs the pipeline, and all that a deployed stage has."""
    s3 = cost.s3_prices(workload.storage_class, prices)
    items = [
        *_requests(workload, s3),
        *_stored(workload, s3),
        *_pipeline(workload, prices),
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
    """Three of MSK's smallest brokers of a current kind, with replication by three."""
    bill = cost.kafka_bill(
        stored_bytes_per_s=workload.mean_bytes_per_s * workload.hops,
        retention_days=workload.retention_days,
        cluster=cost.brokers(prices=prices),
        compute=_compute(workload, prices),
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
    """MSK Serverless, by what passes through."""
    bill = cost.kafka_serverless_bill(
        in_bytes_per_s=workload.mean_bytes_per_s * workload.hops,
        out_bytes_per_s=workload.mean_bytes_per_s * _copies_out(workload),
        partitions=workload.input_tables + workload.output_tables,
        retention_days=workload.retention_days,
        compute=_compute(workload, prices),
        prices=prices,
    )
    return Estimate("msk-serverless", "MSK Serverless", bill, ("its limits on throughput", "logs, alarms, keys"))


def kinesis_on_demand(workload: Workload, prices: Prices = PRICES) -> Estimate:
    """Kinesis on-demand, standard. Each record counts as whole KB."""
    streams = workload.topics + workload.hops - 1
    billed = _kinesis_bytes_per_s(workload)
    a_day = billed * workload.hops * 86_400
    extended = a_day * max(0.0, min(workload.retention_days, 7) - 1)
    long = a_day * max(0.0, workload.retention_days - 7)
    items = [
        _hours("streams", f"{streams} streams", streams, "kinesis-on-demand-stream", prices),
        _gb("data in", billed * workload.hops * SECONDS_PER_MONTH, "kinesis-on-demand-in", prices),
        _gb("data out", billed * _copies_out(workload) * SECONDS_PER_MONTH, "kinesis-on-demand-out", prices),
        *([_gb("kept for 2 to 7 days", extended, "kinesis-on-demand-extended", prices)] if extended else []),
        *([_gb("kept for longer", long, "kinesis-on-demand-long", prices)] if long else []),
        *_pipeline(workload, prices),
    ]
    excludes = (*_PACKING[workload.packed], "enhanced fan-out", "logs, alarms, keys")
    return Estimate("kinesis-on-demand", "Kinesis on-demand", Bill(tuple(items)), excludes)


def kinesis_provisioned(workload: Workload, prices: Prices = PRICES) -> Estimate:
    """Kinesis with shards for the rate while messages come, all day."""
    rate, topics = workload.messages_per_s, workload.topics
    first = _shards(workload, rate / topics, readers=1 if workload.hops > 1 else workload.readers) * topics
    second = _shards(workload, rate, readers=workload.readers) if workload.hops > 1 else 0
    records, size = _records(workload)
    units = records * math.ceil(size / KINESIS_UNIT_BYTES) * workload.hops
    items = [
        _hours("shards", f"{first + second} shards", first + second, "kinesis-shard", prices),
        _millions("records", units, "kinesis-put-unit", prices),
        *_pipeline(workload, prices),
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
    """SQS: a queue for each topic and each reader, and a function in the place of the pipeline."""
    items = [*_queue("topics", workload, workload.topics, 1, prices)]
    if workload.hops > 1:
        items.append(_consumer(workload, prices))
        items += _queue("output", workload, workload.readers, workload.readers, prices)
    elif workload.readers > 1:
        copies = workload.readers - 1
        items += _queue("further readers", workload, workload.topics * copies, copies, prices)
    excludes = (
        "order and replay, which it does not have, and retention beyond 14 days",
        "the fan-out to several readers' queues",
        "logs, alarms, keys",
    )
    return Estimate("sqs", "SQS and Lambda", Bill(tuple(items)), excludes)


WAYS: Final[dict[str, Callable[[Workload, Prices], Estimate]]] = {
    "brokerless": brokerless,
    "msk": msk,
    "msk-serverless": msk_serverless,
    "kinesis-on-demand": kinesis_on_demand,
    "kinesis-provisioned": kinesis_provisioned,
    "sqs": sqs,
}


def crossings(difference: Callable[[float], float], low: float, high: float) -> list[float]:
    """Where the sign of a difference changes between two positive bounds, each to a thousandth of itself.

    Looked for at 20 points a decade, so that two changes closer to each other than that can be missed.
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
    items = [_s3("producers' commits", {"PUT": 2 * commits_in}, s3)]
    if workload.hops > 1:
        items.append(_s3("pipeline's commits", {"PUT": 2 * commits_out}, s3))
        items.append(_s3("pipeline's reading", {"GET": pipeline_gets}, s3))
        items.append(_s3("pipeline's polling", {"GET 404": pipeline_polls}, s3))
    items.append(_s3("readers' reading", {"GET": reader_gets}, s3))
    items.append(_s3("readers' polling", {"GET 404": reader_polls}, s3))
    return items


def _stored(workload: Workload, s3: cost.S3Prices) -> list[Item]:
    kept = workload.stored_bytes
    items = [
        Item(
            "storage",
            cost.storage_usd_per_month(kept, s3),
            f"{kept / GB:,.1f} GB ({workload.retention_days:g} days, {workload.hops} hops, {s3.name})",
        )
    ]
    if workload.storage_class == "express":
        written = workload.mean_bytes_per_s * workload.hops * SECONDS_PER_MONTH
        read = workload.mean_bytes_per_s * _copies_out(workload) * SECONDS_PER_MONTH
        items.append(cost.priced("upload", written, s3.upload_usd_per_gb))
        items.append(cost.priced("retrieval", read, s3.retrieval_usd_per_gb))
    return items


def _compute(workload: Workload, prices: Prices) -> Compute | None:
    workers = workload.worker_count
    if workload.engine == "glue":
        return cost.glue(workload.worker_type, workers, prices=prices)
    if workload.engine == "emr-serverless":
        vcpus, memory_gb = cost.GLUE_WORKER_SIZE[workload.worker_type]
        return cost.emr_serverless(workers * vcpus, workers * memory_gb, prices=prices)
    return None


def _pipeline(workload: Workload, prices: Prices) -> list[Item]:
    return cost.running("pipeline", _compute(workload, prices))


def _ingest(workload: Workload, prices: Prices) -> list[Item]:
    if workload.door == "library":
        return []
    invocations = workload.commits_in_per_s * workload.active * SECONDS_PER_MONTH
    items = [
        _function("ingest", invocations, INGEST_S, INGEST_GB, prices, more_s=workload.messages_per_month * MESSAGE_S)
    ]
    if workload.door == "sqs":
        items += _queue("door", workload, workload.topics, 1, prices)
    if workload.door == "kinesis":
        month = _kinesis_bytes_per_s(workload) * SECONDS_PER_MONTH
        topics = workload.topics
        items.append(_hours("door: streams", f"{topics} streams", topics, "kinesis-on-demand-stream", prices))
        items.append(_gb("door: data in", month, "kinesis-on-demand-in", prices))
        items.append(_gb("door: data out", month, "kinesis-on-demand-out", prices))
    return items


def _functions(workload: Workload, s3: cost.S3Prices, prices: Prices) -> list[Item]:
    runs = SECONDS_PER_MONTH / MAINTENANCE_EVERY_S
    tables = workload.input_tables + 2 * workload.output_tables  # dead letters, too
    pages = HOURS_PER_MONTH / workload.sweep_every_h * max(tables, workload.stored_objects / LIST_PAGE)
    requests = {kind: count * runs * tables for kind, count in MAINTENANCE_REQUESTS.items()}
    requests["LIST"] += pages
    items = [
        _function("maintenance", runs, MAINTENANCE_S, MAINTENANCE_GB, prices, more_s=pages * LIST_S),
        _s3("maintenance's requests", requests, s3),
    ]
    if workload.worker_count:
        asks = SECONDS_PER_MONTH / CONTROLLER_EVERY_S
        items.append(_function("controller", asks, 1.0, FUNCTION_GB, prices))
    if workload.has_canary:
        asks = SECONDS_PER_MONTH / CANARY_EVERY_S
        polls = asks * CANARY_WAIT_S * 100
        items.append(_function("canary", asks, CANARY_WAIT_S, FUNCTION_GB, prices))
        items.append(_s3("canary's polling", {"GET 404": polls}, s3))
    return items


def _cloudwatch(workload: Workload, prices: Prices) -> list[Item]:
    pipelines = workload.hops - 1
    count = metrics.billed(topics=workload.topics, pipelines=pipelines, canaries=int(workload.has_canary))
    calls = pipelines * SECONDS_PER_MONTH / METRICS_EVERY_S
    alarms = prices["cloudwatch-alarm"].of(count.alarms) + prices["cloudwatch-composite-alarm"].of(count.composites)
    first = prices.usd("cloudwatch-metric")
    return [
        Item("metrics", prices["cloudwatch-metric"].of(count.metrics), f"{count.metrics}, the first at {first:g} USD"),
        Item("sending metrics", prices["cloudwatch-request"].of(calls), f"{_m(calls)} calls of the pipeline"),
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
    kept = size / (SECONDS_PER_MONTH / 86_400) * LOG_RETENTION_DAYS
    usd = prices["cloudwatch-logs-in"].of(size / GB) + prices["cloudwatch-logs-storage"].of(kept / GB)
    how = f"{size / GB:,.1f} GB: {_m(invocations)} invocations, {workers} workers; kept for {LOG_RETENTION_DAYS:g} days"
    return Item("logs", usd, how)


def _kms(workload: Workload, prices: Prices) -> list[Item]:
    objects = 2 * sum(workload.commits_per_month) + sum(workload.gets_per_month)
    asked = objects * KMS_SHARE
    usd = prices["kms-key"].of(1) + prices["kms-request"].of(asked)
    return [Item("key", usd, f"1 key, {_m(asked)} requests: {KMS_SHARE:.0%} of those for objects")]


def _copies_out(workload: Workload) -> int:
    """How often each byte is read: by the pipeline, and by each reader."""
    return workload.hops - 1 + workload.readers


def _kinesis_bytes_per_s(workload: Workload) -> float:
    """As on-demand streams bill them, over all the month: whole KB a record."""
    records, size = _records(workload)
    return records / SECONDS_PER_MONTH * math.ceil(size / KINESIS_ROUNDING_BYTES) * KINESIS_ROUNDING_BYTES


def _records(workload: Workload) -> tuple[float, float]:
    """How many Kinesis records carry the messages of a month, and the size of each in bytes."""
    together = max(1.0, workload.messages_per_commit) if workload.packed else 1.0
    fitting = max(1.0, KINESIS_RECORD_BYTES / workload.message_bytes)
    messages = min(together, fitting)
    return workload.messages_per_month / messages, messages * workload.message_bytes


def _shards(workload: Workload, messages_per_s: float, *, readers: int) -> int:
    """Of one stream: for what comes in, for the number of records, and for what all readers together get out."""
    bytes_per_s = messages_per_s * workload.message_bytes
    needed = [bytes_per_s / KINESIS_SHARD_IN_BYTES_PER_S, bytes_per_s * readers / KINESIS_SHARD_OUT_BYTES_PER_S]
    if not workload.packed:
        needed.append(messages_per_s / KINESIS_SHARD_RECORDS_PER_S)
    return max(1, math.ceil(max(needed)))


def _queue(what: str, workload: Workload, queues: int, copies: int, prices: Prices) -> list[Item]:
    """Queues through which each message goes so many times: sent, received and deleted in batches."""
    if not queues:
        return []
    batch = max(1.0, min(SQS_BATCH, SQS_BATCH_BYTES // workload.message_bytes, workload.messages_per_commit))
    chunks = max(1, math.ceil(batch * workload.message_bytes / SQS_CHUNK_BYTES))
    moved = workload.messages_per_month * copies / batch * (2 * chunks + 1)
    waiting = queues * SQS_IDLE_RECEIVES_PER_S * SECONDS_PER_MONTH
    how = f"{_m(moved)} requests, {batch:g} messages a batch sent, received, deleted; {_m(waiting)} empty ones"
    return [Item(f"queues: {what}", prices["sqs-request"].of(moved + waiting), how)]


def _consumer(workload: Workload, prices: Prices) -> Item:
    """A function that does to each batch what the pipeline does: each tenth of a second, or for 1,000 messages."""
    per_s = min(workload.messages_per_s, max(10.0, workload.messages_per_s / 1000))
    invocations = per_s * workload.active * SECONDS_PER_MONTH
    return _function("consumer", invocations, 0.02, FUNCTION_GB, prices, more_s=workload.messages_per_month * MESSAGE_S)


def _function(
    name: str, invocations: float, each_s: float, memory_gb: float, prices: Prices, *, more_s: float = 0.0
) -> Item:
    """Runs of so many seconds each, and seconds that depend on what there is to do in them."""
    usd = cost.lambda_usd(invocations, (invocations * each_s + more_s) * memory_gb, prices=prices)
    more = f" + {_m(more_s)} s" if more_s else ""
    return Item(name, usd, f"Lambda: {_m(invocations)} runs x {each_s:g} s{more}, {memory_gb:g} GB")


def _s3(name: str, counts: dict[str, float], s3: cost.S3Prices) -> Item:
    write, read = s3.write_usd_per_1000 * 1000, s3.read_usd_per_1000 * 1000
    parts = [f"{_m(n)} {kind} x {write if kind in cost.WRITES else read:g} USD/M" for kind, n in counts.items()]
    return Item(name, cost.requests_usd(counts, s3), f"{' + '.join(parts)} ({s3.name})")


def _hours(name: str, what: str, count: float, row: str, prices: Prices) -> Item:
    return cost.running(name, Compute(what, count * prices.usd(row)))[0]


def _gb(name: str, size_bytes: float, row: str, prices: Prices) -> Item:
    return cost.priced(name, size_bytes, prices.usd(row))


def _millions(name: str, count: float, row: str, prices: Prices) -> Item:
    price = prices[row]
    return Item(name, price.of(count), f"{_m(count)} x {price.usd / price.per * 1e6:g} USD/M")


def _m(count: float) -> str:
    """A count in millions, or as it is if that is more readable."""
    return f"{count / 1e6:,.1f} M" if count >= 1e5 else f"{count:,.0f}"
