"""Bills against arithmetic done by hand: a month has 730 h, 2,628,000 s."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from brokerless import cost
from brokerless.cost import (
    BROKERS,
    PIPELINE,
    S3_EXPRESS,
    Bill,
    Compute,
    Item,
    brokers,
    emr_serverless,
    glue,
    idle_usd_per_hour,
    kafka_bill,
    kafka_serverless_bill,
    lambda_usd,
    polling,
    request_kind,
    requests_usd,
    storage_usd_per_month,
    streaming_bill,
)

MONTH_S = 2_628_000


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("PUT", "/bucket/topic/_delta_log/00000000000000000001.json", 200, "PUT"),
        ("PUT", "/bucket/topic/_delta_log/00000000000000000001.json", 412, "PUT"),  # lost a race, paid for
        ("PUT", "/bucket", 200, "PUT"),
        ("POST", "/bucket/key?uploads", 200, "PUT"),
        ("POST", "/bucket?delete", 200, "PUT"),
        ("GET", "/bucket/key", 200, "GET"),
        ("GET", "/bucket/key", 206, "GET"),
        ("GET", "/bucket/key", 304, "GET"),
        ("GET", "/bucket/key?versionId=x", 200, "GET"),
        ("GET", "/bucket/prefix/", 200, "GET"),  # an object whose name ends in a slash
        ("GET", "/bucket/key", 404, "GET 404"),
        ("HEAD", "/bucket/key", 200, "GET"),
        ("HEAD", "/bucket/key", 404, "GET 404"),
        ("HEAD", "/bucket", 200, "GET"),
        ("GET", "/bucket?list-type=2&prefix=topic%2F", 200, "LIST"),
        ("GET", "/bucket/?list-type=2", 404, "LIST"),
        ("GET", "/bucket?prefix=a&delimiter=%2F", 200, "LIST"),  # the first version of the listing
        ("GET", "/bucket", 200, "LIST"),
        ("GET", "/bucket/?prefix=", 200, "LIST"),
        ("GET", "/", 200, "LIST"),
        ("GET", "/bucket?uploads=", 200, "LIST"),
        ("GET", "/bucket/key?uploadId=1", 200, "LIST"),
        ("GET", "/bucket?location", 200, "GET"),
        ("DELETE", "/bucket/key", 204, "DELETE"),
        ("DELETE", "/bucket/key", 404, "DELETE"),
    ],
)
def test_a_request_is_billed_as(method: str, path: str, status: int, kind: str) -> None:
    assert request_kind(method, path, status) == kind


def test_each_kind_has_a_price() -> None:
    kinds = typing.get_args(cost.RequestKind)
    assert set(kinds) == {*cost.WRITES, *cost.READS, *cost.FREE}
    assert {kind: requests_usd({kind: 1_000_000}) for kind in kinds} == pytest.approx(
        {"PUT": 5.0, "LIST": 5.0, "GET": 0.40, "GET 404": 0.40, "DELETE": 0.0}
    )
    assert {kind: requests_usd({kind: 1_000_000}, S3_EXPRESS) for kind in kinds} == pytest.approx(
        {"PUT": 1.13, "LIST": 1.13, "GET": 0.03, "GET 404": 0.03, "DELETE": 0.0}
    )


def test_a_kind_without_a_price_is_no_free_request() -> None:
    with pytest.raises(ValueError, match="kind get, put; known: PUT, LIST, GET, GET 404, DELETE"):
        requests_usd({"put": 1, "get": 1})


def test_polling() -> None:
    # 10 a second are 26.28 M a month; by LIST they cost 26.28 x 5
    assert requests_usd({"GET 404": 10 * MONTH_S}) == pytest.approx(10.512)
    assert requests_usd({"LIST": 10 * MONTH_S}) == pytest.approx(131.4)
    every_10_ms = polling(1, 0.010)
    assert every_10_ms["GET 404"] * MONTH_S == pytest.approx(262_800_000)
    assert streaming_bill(requests_per_s=every_10_ms, stored_bytes_per_s=0).usd_per_month == pytest.approx(105.12)
    assert polling(3, 0.1) == pytest.approx({"GET 404": 30.0})


def test_two_puts_a_second_to_two_tables() -> None:
    bill = streaming_bill(requests_per_s={"PUT": 4}, stored_bytes_per_s=0)
    assert bill.usd_per_month == pytest.approx(52.56)  # 10.512 M x 5
    express = streaming_bill(requests_per_s={"PUT": 4}, stored_bytes_per_s=0, s3=S3_EXPRESS)
    assert express.usd_per_month == pytest.approx(11.87856)  # 10.512 M x 1.13


def test_storage_is_billed_by_tier() -> None:
    gb, tb = 2**30, 2**40
    assert storage_usd_per_month(1000 * gb) == pytest.approx(23.0)
    assert storage_usd_per_month(50 * tb) == pytest.approx(1_177.6)  # 51,200 x 0.023
    assert storage_usd_per_month(100 * tb) == pytest.approx(2_304.0)  # + 51,200 x 0.022
    assert storage_usd_per_month(600 * tb) == pytest.approx(13_465.6)  # 1,177.6 + 460,800 x 0.022 + 102,400 x 0.021
    assert storage_usd_per_month(1000 * gb, S3_EXPRESS) == pytest.approx(110.0)
    assert storage_usd_per_month(0) == 0


def test_compute() -> None:
    assert PIPELINE.usd_per_month == pytest.approx(112.42)  # 0.5 DPU x 0.308 x 730
    assert glue("G.025X", 2, "5.1").usd_per_month == pytest.approx(160.6)
    assert glue("G.1X", 2).usd_per_month == pytest.approx(449.68)
    assert glue("G.1X", 2, "5.1").usd_per_month == pytest.approx(642.4)
    # driver 2 vCPU and 4 GB, executor 4 and 8: (6 x 0.042094 + 12 x 0.004628) x 730
    assert emr_serverless(6, 12).usd_per_month == pytest.approx(224.913)
    assert emr_serverless(6, 12, arm=False).usd_per_month == pytest.approx(281.11281)
    assert BROKERS.usd_per_month == pytest.approx(446.76)
    assert brokers("kafka.t3.small", 2).usd_per_month == pytest.approx(66.576)
    assert lambda_usd(3_000_000, 1000) == pytest.approx(0.6133334)
    assert lambda_usd(0, 10 * 1769 / 1024 * MONTH_S) == pytest.approx(605.33, abs=0.01)
    assert lambda_usd(0, 1000, arm=False) == pytest.approx(0.0166667)


def test_a_cluster_of_one_broker_is_not_sold() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        brokers(count=1)


def test_a_stream_of_two_hops() -> None:
    bill = streaming_bill(
        requests_per_s={"PUT": 12, "LIST": 8, "GET": 20, "GET 404": 10, "DELETE": 50},
        stored_bytes_per_s=2**20,
        retention_days=7,
        compute=PIPELINE,
        uploaded_bytes_per_s=2**20,  # free in Standard
    )
    # 20 x 2.628 M x 5 + 30 x 2.628 M x 0.4; 604,800 MB = 590.625 GB x 0.023; 0.154 x 730
    assert bill.to_dict() == pytest.approx({"requests": 294.336, "storage": 13.584375, "pipeline": 112.42})
    assert bill.usd_per_month == pytest.approx(420.340375)
    assert bill.usd_per_hour == pytest.approx(0.575808733)
    assert bill.usd_per_million(10_000) == pytest.approx(0.0159947)  # 26,280 million messages
    assert [item.how for item in bill.items] == [
        "52.6 M PUT and LIST x 5 USD/M + 78.8 M GET x 0.4 USD/M (S3 Standard)",
        "590.6 GB (7 days) x 0.023 USD (S3 Standard)",
        "Glue 6.0, 2 x G.025X: 0.154 USD/h x 730 h",
    ]


def test_one_hop_needs_no_pipeline_and_retention_costs() -> None:
    one_day = streaming_bill(requests_per_s={}, stored_bytes_per_s=2**30, retention_days=1)
    assert one_day.to_dict() == pytest.approx({"requests": 0, "storage": 51_200 * 0.023 + (86_400 - 51_200) * 0.022})


def test_express_one_zone_charges_for_bytes_too() -> None:
    bill = streaming_bill(
        requests_per_s={"PUT": 10},
        stored_bytes_per_s=2**20,
        uploaded_bytes_per_s=2**20,
        retrieved_bytes_per_s=2**21,
        s3=S3_EXPRESS,
    )
    # 26.28 M x 1.13; 590.625 GB x 0.11; 2,566.40625 GB x 0.0032; 5,132.8125 GB x 0.0006
    assert bill.to_dict() == pytest.approx(
        {"requests": 29.6964, "storage": 64.96875, "upload": 8.2125, "retrieval": 3.0796875}
    )


def test_kafka() -> None:
    one_hop = kafka_bill(stored_bytes_per_s=2**20)
    # 590.625 GB x 3 x 0.10
    assert one_hop.to_dict() == pytest.approx({"brokers": 446.76, "broker storage": 177.1875})
    to_delta = kafka_bill(
        stored_bytes_per_s=2**20, compute=PIPELINE, requests_per_s={"PUT": 2}, s3_bytes_per_s=2**20, retention_days=14
    )
    assert to_delta.to_dict() == pytest.approx(
        {"brokers": 446.76, "broker storage": 354.375, "pipeline": 112.42, "requests": 26.28, "storage": 27.16875}
    )


def test_kafka_serverless() -> None:
    bill = kafka_serverless_bill(in_bytes_per_s=2**20, out_bytes_per_s=2**21, partitions=4, compute=PIPELINE)
    # 0.75 x 730; 4 x 0.0015 x 730; 2,566.40625 GB x 0.10; twice as many x 0.05; 590.625 x 0.10
    assert bill.to_dict() == pytest.approx(
        {
            "cluster": 547.5,
            "partitions": 4.38,
            "data in": 256.640625,
            "data out": 256.640625,
            "broker storage": 59.0625,
            "pipeline": 112.42,
        }
    )


def test_an_idle_hour() -> None:
    # 2 pollers x 10 x 3,600 = 72,000 GET = 0.0288; + 0.154
    assert idle_usd_per_hour(requests_per_s=polling(2, 0.1), compute=PIPELINE) == pytest.approx(0.1828)
    assert idle_usd_per_hour(compute=PIPELINE, cluster=BROKERS) == pytest.approx(0.766)
    assert idle_usd_per_hour() == 0


def test_no_rate_has_no_price_per_message() -> None:
    bill = Bill((Item("compute", 10.0, ""),))
    assert bill.usd_per_million(1) == pytest.approx(3.805175)  # 10 / 2.628
    with pytest.raises(ValueError, match="above 0"):
        bill.usd_per_million(0)


def test_values_do_not_change() -> None:
    for value in (PIPELINE, cost.S3_STANDARD, Item("a", 1.0, ""), Bill(())):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)
    assert dataclasses.replace(PIPELINE, usd_per_hour=1.0) == Compute(PIPELINE.name, 1.0)
