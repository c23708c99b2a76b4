"""Compute a bill in USD from requests, bytes and hours on AWS.

A month has 730 hours. A GB is 2**30 bytes, as AWS bills it. Every item of a bill says how it was computed.

Nobody's bill holds the programs that produce and read, since those run whatever carries the messages; nor taxes,
discounts, free tiers, encryption keys, logs, or data transfer between availability zones. The last is in favour of
Kafka: S3 is reached from every zone at no charge, brokers in another zone at 0.01 USD a GB each way.

Prices come from ``brokerless.cost.prices``, each with its source and date; other ones are given as arguments.

Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import parse_qsl

from brokerless.cost.prices import Prices, published, tiered

if TYPE_CHECKING:
    from collections.abc import Mapping

PRICES: Final = published()
"""The list that comes with the package; what is below takes it unless it is given another one."""

AS_OF: Final = PRICES.as_of
REGION: Final = PRICES.region

HOURS_PER_MONTH: Final = 730
SECONDS_PER_MONTH: Final = HOURS_PER_MONTH * 3600
GB: Final = 2**30

_RETENTION_DAYS: Final = 7.0
_REPLICAS: Final = 3

RequestKind = Literal["PUT", "LIST", "GET", "GET 404", "DELETE"]
"""``PUT`` with COPY and POST; ``LIST`` costs the same, and is apart because a reader that lists is dear; ``GET`` with
HEAD; ``GET 404`` asked for what is not there (yet), which is what polling does; ``DELETE`` is free."""

WRITES: Final = ("PUT", "LIST")
READS: Final = ("GET", "GET 404")
FREE: Final = ("DELETE",)

_NOT_FOUND: Final = 404
# A GET of a bucket is a listing if it asks for one of these, or for nothing in particular.
_LISTINGS: Final = {"list-type", "versions", "uploads", "uploadId"}
_LIST_PARAMETERS: Final = {"prefix", "delimiter", "marker", "max-keys", "encoding-type"}


def request_kind(method: str, path: str, status: int) -> RequestKind:
    """Return the kind under which S3 bills a request. Failed requests cost the same: a lost conditional PUT, a 404.

    Args:
        method: the HTTP method.
        path: with its query, path-style: ``/bucket/key?query``.
        status: the HTTP status of the answer.

    A bulk delete (``POST /bucket?delete``) counts as ``PUT``: only requests by the method DELETE are listed as free.
    """
    if method == "DELETE":
        return "DELETE"
    if method not in {"GET", "HEAD", "OPTIONS"}:
        return "PUT"
    if method == "GET" and _is_listing(path):
        return "LIST"
    return "GET 404" if status == _NOT_FOUND else "GET"


def _is_listing(path: str) -> bool:
    name, _, query = path.partition("?")
    asked = {name for name, _ in parse_qsl(query, keep_blank_values=True)}
    is_bucket = "/" not in name.strip("/")
    return bool(asked & _LISTINGS) or (is_bucket and asked <= _LIST_PARAMETERS)


@dataclass(frozen=True, slots=True)
class S3Prices:
    """One storage class.

    Attributes:
        write_usd_per_1000: for 1,000 PUT, COPY, POST or LIST.
        read_usd_per_1000: for 1,000 GET or HEAD, found or not.
        storage_usd_per_gb_month: pairs of (up to so many GB, price of the GB between there and the pair before).
        upload_usd_per_gb, retrieval_usd_per_gb: for the bytes of bodies, where they cost.
    """

    name: str
    write_usd_per_1000: float
    read_usd_per_1000: float
    storage_usd_per_gb_month: tuple[tuple[float, float], ...]
    upload_usd_per_gb: float = 0.0
    retrieval_usd_per_gb: float = 0.0


StorageClass = Literal["standard", "express"]


def s3_prices(storage_class: StorageClass, prices: Prices = PRICES) -> S3Prices:
    """Return the prices of a storage class: Standard, or Express One Zone, which also charges for bytes."""
    row = f"s3-{storage_class}"
    write, read = prices[f"{row}-write"], prices[f"{row}-read"]
    express = storage_class == "express"
    return S3Prices(
        name="S3 Express One Zone" if express else "S3 Standard",
        write_usd_per_1000=1000 / write.per * write.usd,
        read_usd_per_1000=1000 / read.per * read.usd,
        storage_usd_per_gb_month=prices[f"{row}-storage"].tiers,
        upload_usd_per_gb=prices.usd("s3-express-upload") if express else 0.0,
        retrieval_usd_per_gb=prices.usd("s3-express-retrieval") if express else 0.0,
    )


S3_STANDARD: Final = s3_prices("standard")


def requests_usd(counts: Mapping[str, float], s3: S3Prices = S3_STANDARD) -> float:
    """Return the cost of requests by kind: ``counts`` of ``RequestKind``.

    A reader that asks for the next log entry 10 times a second sends 10 x 2,628,000 = 26.28 M GET a month, for 0.0004
    USD a thousand: 10.51 USD. Every 10 ms, 262.8 M and 105.12 USD. The same by LIST costs 12.5 times as much.

    Raises:
        ValueError: a kind that has no price.
    """
    if unknown := sorted(set(counts) - {*WRITES, *READS, *FREE}):
        raise ValueError(
            f"No price for requests of kind {', '.join(unknown)}; known: {', '.join((*WRITES, *READS, *FREE))}."
        )
    written, read = _sum(counts, WRITES), _sum(counts, READS)
    return (written * s3.write_usd_per_1000 + read * s3.read_usd_per_1000) / 1000


def storage_usd_per_month(stored_bytes: float, s3: S3Prices = S3_STANDARD) -> float:
    """Return the cost of bytes for a month. 100 TB (102,400 GB) in Standard: 51,200 x (0.023 + 0.022) = 2,304."""
    return tiered(stored_bytes / GB, s3.storage_usd_per_gb_month)


@dataclass(frozen=True, slots=True)
class Compute:
    """Something that runs all the time.

    Attributes:
        name: what, and how much of it.
        usd_per_hour: for all of it.
    """

    name: str
    usd_per_hour: float

    @property
    def usd_per_month(self) -> float:
        """The cost of a month without pauses."""
        return self.usd_per_hour * HOURS_PER_MONTH


GLUE_DPU_PER_WORKER: Final = {"G.025X": 0.25, "G.1X": 1.0, "G.2X": 2.0}
GLUE_WORKER_SIZE: Final = {"G.025X": (2, 4), "G.1X": (4, 16), "G.2X": (8, 32)}
"""vCPU and GB of memory."""


def glue(worker_type: str = "G.025X", workers: int = 2, version: str = "6.0", *, prices: Prices = PRICES) -> Compute:
    """A Glue streaming job: workers x DPU x price of the DPU-hour; the driver is one of the workers, so 2 at least."""
    dpu = workers * GLUE_DPU_PER_WORKER[worker_type]
    return Compute(f"Glue {version}, {workers} x {worker_type}", dpu * prices.usd(f"glue-{version}"))


def emr_serverless(vcpus: float, memory_gb: float, *, arm: bool = True, prices: Prices = PRICES) -> Compute:
    """An EMR Serverless streaming job of driver and executors together, disks of up to 20 GB included."""
    row = f"emr-serverless-{'arm' if arm else 'x86'}"
    name = f"EMR Serverless {'ARM' if arm else 'x86'}, {vcpus:g} vCPU and {memory_gb:g} GB"
    return Compute(name, vcpus * prices.usd(f"{row}-vcpu") + memory_gb * prices.usd(f"{row}-memory"))


def brokers(broker: str = "kafka.m7g.large", count: int = 3, *, prices: Prices = PRICES) -> Compute:
    """MSK's provisioned brokers without their storage.

    MSK takes at least one in each of 2 or 3 zones; replication by 3, acknowledged by 2, needs 3.
    """
    if count < 2:
        raise ValueError(f"MSK has no cluster of {count} broker; it takes at least 2, one in each of 2 zones.")
    return Compute(f"MSK, {count} x {broker}", count * prices.usd(f"msk-{broker}"))


PIPELINE: Final = glue("G.025X", 2)
"""The smallest streaming job that Glue runs: 2 x 0.25 DPU x 0.308 USD x 730 h = 112.42 USD a month."""


def lambda_usd(invocations: float, gb_seconds: float, *, arm: bool = True, prices: Prices = PRICES) -> float:
    """Return a function's cost: ten environments of 1,769 MB that always run (45.4 M GB-s) cost 605 USD on ARM."""
    return prices["lambda-request"].of(invocations) + prices[f"lambda-{'arm' if arm else 'x86'}"].of(gb_seconds)


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a bill: its name, USD a month, and the arithmetic in words."""

    name: str
    usd_per_month: float
    how: str


@dataclass(frozen=True, slots=True)
class Bill:
    """The bill of a month, item by item."""

    items: tuple[Item, ...]

    @property
    def usd_per_month(self) -> float:
        """The sum of the items."""
        return math.fsum(item.usd_per_month for item in self.items)

    def usd_per_million(self, rate: float) -> float:
        """Return the cost of a million messages at ``rate`` a second all month: at 1,000/s they are 2,628 million."""
        if rate <= 0:
            raise ValueError(f"A rate of {rate} messages/s has no price per message; give a rate above 0.")
        return self.usd_per_month / (rate * SECONDS_PER_MONTH / 1e6)

    def to_dict(self) -> dict[str, float]:
        """The cost of each item, in USD a month."""
        return {item.name: item.usd_per_month for item in self.items}


def streaming_bill(
    *, requests_per_s: Mapping[str, float], stored_bytes_per_s: float, compute: Compute | None = None
) -> Bill:
    """Return the bill of a stream whose topics are tables in S3 Standard, retained for 7 days.

    With 20 PUT and 30 GET a second, 1 MB/s stored, and a pipeline on 2 x G.025X::

        requests   20 x 2,628,000 x 0.005 / 1,000 + 30 x 2,628,000 x 0.0004 / 1,000 = 262.80 + 31.54 = 294.34
        storage    1,000,000 x 7 x 86,400 / 2**30 = 563.3 GB x 0.023                                  =  12.95
        compute    0.5 DPU x 0.308 x 730                                                              = 112.42

    Args:
        requests_per_s: by ``RequestKind``: of producers, pipeline, readers and maintenance together.
        stored_bytes_per_s: the bytes of a second that stay in S3: all topics, data and log.
        compute: the workers of the pipeline between two hops (``PIPELINE``); None with one hop, where readers read what
            producers wrote.
    """
    return Bill((*_s3(requests_per_s, stored_bytes_per_s), *running("pipeline", compute)))


def kafka_bill(
    *,
    stored_bytes_per_s: float,
    retention_days: float = _RETENTION_DAYS,
    compute: Compute | None = None,
    requests_per_s: Mapping[str, float] | None = None,
    s3_bytes_per_s: float = 0.0,
    prices: Prices = PRICES,
) -> Bill:
    """Return the bill of a stream through MSK's provisioned brokers, with a pipeline to Kafka or to a table in S3.

    With 1 MB/s in the topics, one hop::

        brokers    3 x 0.204 x 730                                                     = 446.76
        storage    1,000,000 x 7 x 86,400 / 2**30 = 563.3 GB x 3 replicas x 0.10       = 168.98

    The brokers are the smallest cluster that survives a zone without losing writes, whatever the rate, and their disks
    are exactly full: both are in favour of Kafka.

    Args:
        stored_bytes_per_s: the growth of one replica of all topics in a second.
        retention_days: how long messages stay in Kafka; in S3 they stay for 7 days.
        compute: the workers of the pipeline between two hops; None with one hop.
        requests_per_s: to S3, by ``RequestKind``, if the pipeline's output or checkpoint is there; None if not.
        s3_bytes_per_s: the bytes of a second that stay in S3.
        prices: of brokers and disks.
    """
    on_disk = stored_bytes_per_s * retention_days * 86_400 * _REPLICAS
    return Bill((
        *running("brokers", brokers(prices=prices)),
        priced("broker storage", on_disk, prices.usd("msk-storage")),
        *running("pipeline", compute),
        *(_s3(requests_per_s, s3_bytes_per_s) if requests_per_s is not None else ()),
    ))  # fmt: skip


def _s3(requests_per_s: Mapping[str, float], bytes_per_s: float) -> list[Item]:
    s3 = S3_STANDARD
    month = {kind: per_s * SECONDS_PER_MONTH for kind, per_s in requests_per_s.items()}
    retained = bytes_per_s * _RETENTION_DAYS * 86_400
    asked = (
        f"{_sum(month, WRITES) / 1e6:,.1f} M PUT and LIST x {s3.write_usd_per_1000 * 1000:g} USD/M + "
        f"{_sum(month, READS) / 1e6:,.1f} M GET x {s3.read_usd_per_1000 * 1000:g} USD/M ({s3.name})"
    )
    stored_usd = storage_usd_per_month(retained, s3)
    each = stored_usd * GB / retained if retained else s3.storage_usd_per_gb_month[0][1]  # the mean over the tiers
    return [
        Item("requests", requests_usd(month, s3), asked),
        Item("storage", stored_usd, f"{retained / GB:,.1f} GB ({_RETENTION_DAYS:g} days) x {each:.3g} USD ({s3.name})"),
    ]


def priced(name: str, size_bytes: float, usd_per_gb: float) -> Item:
    """Return an item for the bytes of a month, at a price by the GB."""
    return Item(name, size_bytes / GB * usd_per_gb, f"{size_bytes / GB:,.1f} GB x {usd_per_gb:g} USD")


def running(name: str, compute: Compute | None) -> list[Item]:
    """Return machines that run all month as one item; no item if there are none."""
    if compute is None:
        return []
    how = f"{compute.name}: {compute.usd_per_hour:g} USD/h x {HOURS_PER_MONTH} h"
    return [Item(name, compute.usd_per_month, how)]


def _sum(counts: Mapping[str, float], kinds: tuple[str, ...]) -> float:
    return sum(counts.get(kind, 0) for kind in kinds)
