"""Compute the items of a deployed stage of brokerless. Standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokerless import metrics
from brokerless.cost import bill as cost
from brokerless.cost.bill import GB, HOURS_PER_MONTH, SECONDS_PER_MONTH, Item
from brokerless.cost.items import (
    copies_out,
    function_item,
    gb_item,
    hours_item,
    kinesis_bytes_per_s,
    millions_text,
    pipeline_items,
    queue_items,
    request_item,
)
from brokerless.cost.workload import CANARY_EVERY_S

if TYPE_CHECKING:
    from brokerless.cost.prices import Prices
    from brokerless.cost.workload import Workload

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


def stage_items(workload: Workload, prices: Prices) -> list[Item]:
    """Return requests, storage, the workers of the pipeline, and everything else that a deployed stage has."""
    s3 = cost.s3_prices(workload.storage_class, prices)
    return [
        *_requests(workload, s3),
        *_stored(workload, s3),
        *pipeline_items(workload, prices),
        *_ingest(workload, prices),
        *_functions(workload, s3, prices),
        *(_cloudwatch(workload, prices) if workload.monitoring else ()),
        _logs(workload, prices),
        *(_kms(workload, prices) if workload.kms else ()),
    ]


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
    if workload.source == "library":
        return []
    invocations = workload.commits_in_per_s * workload.active * SECONDS_PER_MONTH
    items = [
        function_item(
            "ingest", invocations, INGEST_S, INGEST_GB, prices, more_s=workload.messages_per_month * MESSAGE_S
        )
    ]
    if workload.source == "sqs":
        items += queue_items("source", workload, workload.topics, 1, prices)
    if workload.source == "kinesis":
        month = kinesis_bytes_per_s(workload) * SECONDS_PER_MONTH
        topics = workload.topics
        items.append(hours_item("source: streams", f"{topics} streams", topics, "kinesis-on-demand-stream", prices))
        items.append(gb_item("source: data in", month, "kinesis-on-demand-in", prices))
        items.append(gb_item("source: data out", month, "kinesis-on-demand-out", prices))
    return items


def _functions(workload: Workload, s3: cost.S3Prices, prices: Prices) -> list[Item]:
    runs = SECONDS_PER_MONTH / MAINTENANCE_EVERY_S
    tables = workload.input_tables + 2 * workload.output_tables  # dead letters, too
    pages = HOURS_PER_MONTH / workload.clean_up_every_h * max(tables, workload.stored_objects / LIST_PAGE)
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
    if workload.source != "library":
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
