"""Estimate what a workload costs a month with brokerless and with the alternatives. Standard library only.

Each estimate says how every item was computed and what it excludes. The alternatives are set up in their own favour:
exactly full disks, no cluster larger than the smallest one, none of the alarms and logs that brokerless is charged with
here. Their producers collect messages for as long as those of brokerless do, and send them in as few calls as they can.
All carry the same messages over the same hops; where Spark can read the alternative, the same pipeline runs on the same
workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from brokerless.cost import bill as cost
from brokerless.cost.bill import PRICES, SECONDS_PER_MONTH, Bill, Item
from brokerless.cost.items import (
    compute,
    copies_out,
    function_item,
    gb_item,
    hours_item,
    kinesis_bytes_per_s,
    kinesis_records,
    millions_item,
    pipeline_items,
    queue_items,
)
from brokerless.cost.stage import FUNCTION_GB, MESSAGE_S, stage_items
from brokerless.cost.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokerless.cost.prices import Claim, Prices

KINESIS_SHARD_IN_BYTES_PER_S: Final = 2**20
KINESIS_SHARD_OUT_BYTES_PER_S: Final = 2 * 2**20
KINESIS_SHARD_RECORDS_PER_S: Final = 1000
KINESIS_UNIT_BYTES: Final = 25 * 1024

CLAIM_TOLERANCE: Final = 0.1
CLAIM_MESSAGE_BYTES: Final = 1000
"""The size of "small messages" in the claims of others."""

NOBODYS: Final = ("the programs that produce and read", "people", "taxes, discounts, free tiers")
"""The costs that no estimate includes."""


_MACHINE: Final = "the machine that runs the pipeline"
_ONE_ZONE: Final = "a second zone: Express One Zone keeps all in one"
_PACKING: Final = "packing messages into records and unpacking them, which is left to its users"

_EXCLUDED_IF: Final[dict[str, Callable[[Workload], bool]]] = {
    _MACHINE: lambda workload: workload.engine == "own",
    _ONE_ZONE: lambda workload: workload.storage_class == "express",
    _PACKING: lambda workload: workload.packed,
}
"""The exclusions that do not hold for every workload."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something that can carry a workload.

    Attributes:
        items: computes the items of its bill.
        excludes: the costs that it does not include, besides ``NOBODYS``; those of ``_EXCLUDED_IF`` only sometimes.
    """

    name: str
    items: Callable[[Workload, Prices], list[Item]]
    excludes: tuple[str, ...]


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


def estimate(key: str, workload: Workload, prices: Prices = PRICES) -> Estimate:
    """Return the estimate of one of ``ALTERNATIVES``."""
    found = ALTERNATIVES[key]
    excludes = tuple(text for text in found.excludes if text not in _EXCLUDED_IF or _EXCLUDED_IF[text](workload))
    return Estimate(key, found.name, Bill(tuple(found.items(workload, prices))), excludes)


def estimates(workload: Workload, prices: Prices = PRICES) -> list[Estimate]:
    """Return the estimate of brokerless, then those of the alternatives."""
    return [estimate(key, workload, prices) for key in ALTERNATIVES]


def claims(workload: Workload, prices: Prices = PRICES) -> list[Claim]:
    """Return what others published for a workload like this one; it does not hold for another workload."""
    return [
        claim
        for claim in prices.claims
        if abs(workload.messages_per_s / claim.messages_per_s - 1) <= CLAIM_TOLERANCE
        and workload.message_bytes <= CLAIM_MESSAGE_BYTES
        and workload.hours_per_day == 24
    ]


def _msk(workload: Workload, prices: Prices) -> list[Item]:
    """Return three of the smallest brokers of a current type, with replication by three."""
    bill = cost.kafka_bill(
        stored_bytes_per_s=workload.mean_bytes_per_s * workload.hops,
        retention_days=workload.retention_days,
        compute=compute(workload, prices),
        prices=prices,
    )
    return list(bill.items)


def _msk_serverless(workload: Workload, prices: Prices) -> list[Item]:
    """Return a cluster that is billed by traffic. Stored bytes are charged once, not for each replica."""
    partitions = workload.input_tables + workload.output_tables
    data_in = workload.mean_bytes_per_s * workload.hops
    data_out = workload.mean_bytes_per_s * copies_out(workload)
    return [
        hours_item("cluster", "MSK Serverless", 1, "msk-serverless-cluster", prices),
        hours_item("partitions", f"{partitions} partitions", partitions, "msk-serverless-partition", prices),
        gb_item("data in", data_in * SECONDS_PER_MONTH, "msk-serverless-in", prices),
        gb_item("data out", data_out * SECONDS_PER_MONTH, "msk-serverless-out", prices),
        gb_item("broker storage", data_in * workload.retention_days * 86_400, "msk-storage", prices),
        *pipeline_items(workload, prices),
    ]


def _kinesis_on_demand(workload: Workload, prices: Prices) -> list[Item]:
    """Return on-demand streams, standard. Each record is billed in whole KB."""
    streams = workload.topics + workload.hops - 1
    billed = kinesis_bytes_per_s(workload)
    a_day = billed * workload.hops * 86_400
    extended = a_day * max(0.0, min(workload.retention_days, 7) - 1)
    long = a_day * max(0.0, workload.retention_days - 7)
    return [
        hours_item("streams", f"{streams} streams", streams, "kinesis-on-demand-stream", prices),
        gb_item("data in", billed * workload.hops * SECONDS_PER_MONTH, "kinesis-on-demand-in", prices),
        gb_item("data out", billed * copies_out(workload) * SECONDS_PER_MONTH, "kinesis-on-demand-out", prices),
        *([gb_item("retained for 2 to 7 days", extended, "kinesis-on-demand-extended", prices)] if extended else []),
        *([gb_item("retained for longer", long, "kinesis-on-demand-long", prices)] if long else []),
        *pipeline_items(workload, prices),
    ]


def _kinesis_provisioned(workload: Workload, prices: Prices) -> list[Item]:
    """Return shards for the rate while messages come, all day."""
    rate, topics = workload.messages_per_s, workload.topics
    first = _shards(workload, rate / topics, readers=1 if workload.hops > 1 else workload.readers) * topics
    second = _shards(workload, rate, readers=workload.readers) if workload.hops > 1 else 0
    records, size = kinesis_records(workload)
    units = records * math.ceil(size / KINESIS_UNIT_BYTES) * workload.hops
    return [
        hours_item("shards", f"{first + second} shards", first + second, "kinesis-shard", prices),
        millions_item("records", units, "kinesis-put-unit", prices),
        *pipeline_items(workload, prices),
    ]


def _sqs(workload: Workload, prices: Prices) -> list[Item]:
    """Return a queue for each topic and each reader, and a function instead of the pipeline."""
    items = queue_items("topics", workload, workload.topics, 1, prices)
    if workload.hops > 1:
        items.append(_consumer(workload, prices))
        items += queue_items("output", workload, workload.readers, workload.readers, prices)
    elif workload.readers > 1:
        copies = workload.readers - 1
        items += queue_items("further readers", workload, workload.topics * copies, copies, prices)
    return items


ALTERNATIVES: Final[dict[str, Alternative]] = {
    "brokerless": Alternative(
        "brokerless",
        stage_items,
        (
            _MACHINE,
            "commits that were lost to another writer of the same partition",
            "traffic that leaves the region",
            _ONE_ZONE,
        ),
    ),
    "msk": Alternative(
        "MSK, 3 x kafka.m7g.large",
        _msk,
        (
            _MACHINE,
            "larger brokers, which high rates and many partitions need",
            "room on the disks",
            "tiered storage, which would make long retention cheaper",
            "traffic between zones (0.01 USD a GB each way)",
            "logs, alarms, keys",
        ),
    ),
    "msk-serverless": Alternative(
        "MSK Serverless", _msk_serverless, (_MACHINE, "its limits on throughput", "logs, alarms, keys")
    ),
    "kinesis-on-demand": Alternative(
        "Kinesis on-demand", _kinesis_on_demand, (_MACHINE, _PACKING, "enhanced fan-out", "logs, alarms, keys")
    ),
    "kinesis-provisioned": Alternative(
        "Kinesis provisioned",
        _kinesis_provisioned,
        (
            _MACHINE,
            "retention beyond 24 hours",
            "shards for peaks and uneven keys",
            _PACKING,
            "enhanced fan-out",
            "logs, alarms, keys",
        ),
    ),
    "sqs": Alternative(
        "SQS and Lambda",
        _sqs,
        (
            "order and replay, which it does not have, and retention beyond 14 days",
            "the fan-out to several readers' queues",
            "logs, alarms, keys",
        ),
    ),
}
"""brokerless and what else could carry a workload, by short name."""


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
