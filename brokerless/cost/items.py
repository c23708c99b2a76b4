"""Compute the items of a bill that several estimates share. Standard library only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from brokerless.cost import bill as cost
from brokerless.cost.bill import SECONDS_PER_MONTH, Compute, Item

if TYPE_CHECKING:
    from brokerless.cost.prices import Prices
    from brokerless.cost.workload import Workload

SQS_BATCH: Final = 10
SQS_CHUNK_BYTES: Final = 64 * 1024
SQS_BATCH_BYTES: Final = 2**20
SQS_IDLE_RECEIVES_PER_S: Final = 0.25
"""The receives of an idle queue: five pollers of Lambda that wait 20 s each."""

KINESIS_RECORD_BYTES: Final = 2**20
KINESIS_ROUNDING_BYTES: Final = 1024


def compute(workload: Workload, prices: Prices) -> Compute | None:
    """Return the workers of the pipeline; None if Glue and EMR Serverless have no part in it."""
    workers = workload.worker_count
    if workload.engine == "glue":
        return cost.glue(workload.worker_type, workers, prices=prices)
    if workload.engine == "emr-serverless":
        vcpus, memory_gb = cost.GLUE_WORKER_SIZE[workload.worker_type]
        return cost.emr_serverless(workers * vcpus, workers * memory_gb, prices=prices)
    return None


def pipeline_items(workload: Workload, prices: Prices) -> list[Item]:
    """Return the items of the pipeline's workers."""
    return cost.running("pipeline", compute(workload, prices))


def copies_out(workload: Workload) -> int:
    """Return how often each byte is read: by the pipeline, and by each reader."""
    return workload.hops - 1 + workload.readers


def kinesis_bytes_per_s(workload: Workload) -> float:
    """Return the mean rate that on-demand streams bill over the month: whole KB for each record."""
    records, size = kinesis_records(workload)
    return records / SECONDS_PER_MONTH * math.ceil(size / KINESIS_ROUNDING_BYTES) * KINESIS_ROUNDING_BYTES


def kinesis_records(workload: Workload) -> tuple[float, float]:
    """Return the number of Kinesis records a month, and the size of each in bytes."""
    together = max(1.0, workload.messages_per_commit) if workload.packed else 1.0
    fitting = max(1.0, KINESIS_RECORD_BYTES / workload.message_bytes)
    messages = min(together, fitting)
    return workload.messages_per_month / messages, messages * workload.message_bytes


def queue_items(what: str, workload: Workload, queues: int, copies: int, prices: Prices) -> list[Item]:
    """Return the items of queues that each message passes ``copies`` times: sent, received and deleted in batches."""
    if not queues:
        return []
    batch = max(1.0, min(SQS_BATCH, SQS_BATCH_BYTES // workload.message_bytes, workload.messages_per_commit))
    chunks = max(1, math.ceil(batch * workload.message_bytes / SQS_CHUNK_BYTES))
    moved = workload.messages_per_month * copies / batch * (2 * chunks + 1)
    waiting = queues * SQS_IDLE_RECEIVES_PER_S * SECONDS_PER_MONTH
    how = f"{millions_text(moved)} requests, {batch:g} messages a batch sent, received, deleted"
    usd = prices["sqs-request"].of(moved + waiting)
    return [Item(f"queues: {what}", usd, f"{how}; {millions_text(waiting)} empty ones")]


def function_item(
    name: str, invocations: float, each_s: float, memory_gb: float, prices: Prices, *, more_s: float = 0.0
) -> Item:
    """Return the item of a Lambda function: runs of ``each_s`` seconds, and ``more_s`` seconds in total."""
    usd = cost.lambda_usd(invocations, (invocations * each_s + more_s) * memory_gb, prices=prices)
    more = f" + {millions_text(more_s)} s" if more_s else ""
    return Item(name, usd, f"Lambda: {millions_text(invocations)} runs x {each_s:g} s{more}, {memory_gb:g} GB")


def request_item(name: str, counts: dict[str, float], s3: cost.S3Prices) -> Item:
    """Return the item of S3 requests."""
    write, read = s3.write_usd_per_1000 * 1000, s3.read_usd_per_1000 * 1000
    parts = [
        f"{millions_text(n)} {kind} x {write if kind in cost.WRITES else read:g} USD/M" for kind, n in counts.items()
    ]
    return Item(name, cost.requests_usd(counts, s3), f"{' + '.join(parts)} ({s3.name})")


def hours_item(name: str, what: str, count: float, row: str, prices: Prices) -> Item:
    """Return the item of something that is billed by the hour."""
    return cost.running(name, Compute(what, count * prices.usd(row)))[0]


def gb_item(name: str, size_bytes: float, row: str, prices: Prices) -> Item:
    """Return the item of something that is billed by the GB."""
    return cost.priced(name, size_bytes, prices.usd(row))


def millions_item(name: str, count: float, row: str, prices: Prices) -> Item:
    """Return the item of something that is billed by the million."""
    price = prices[row]
    return Item(name, price.of(count), f"{millions_text(count)} x {price.usd / price.per * 1e6:g} USD/M")


def millions_text(count: float) -> str:
    """Return a count as text, in millions if it is large."""
    return f"{count / 1e6:,.1f} M" if count >= 1e5 else f"{count:,.0f}"
