"""Bills against arithmetic done by hand: a month has 730 h, 2,628,000 s."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import typing
import zipfile
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from brokerless import consumer, metrics
from brokerless.cost import bill as cost
from brokerless.cost import workload
from brokerless.cost.bill import (
    PIPELINE,
    Bill,
    Item,
    brokers,
    emr_serverless,
    glue,
    kafka_bill,
    lambda_usd,
    request_kind,
    requests_usd,
    storage_usd_per_month,
    streaming_bill,
)
from brokerless.cost.estimate import ALTERNATIVES, Estimate, claims, crossings, estimate, estimates
from brokerless.cost.prices import Price, Prices, load, parse, published
from brokerless.cost.workload import Workload, polls_per_s
from brokerless.errors import ConfigError
from brokerless.groups import membership
from brokerless.log import tail
from brokerless.maintenance import maintainer as maintenance
from brokerless.producer import producer
from tools.pages import cost as cost_page

MONTH_S = 2_628_000
MONTH_DAYS = 730 / 24
PACKAGE = Path(cost.__file__).parents[1]


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
    assert {kind: requests_usd({kind: 1_000_000}, cost.s3_prices("express")) for kind in kinds} == pytest.approx(
        {"PUT": 1.13, "LIST": 1.13, "GET": 0.03, "GET 404": 0.03, "DELETE": 0.0}
    )


def test_a_kind_without_a_price_is_no_free_request() -> None:
    with pytest.raises(ValueError, match="kind get, put; known: PUT, LIST, GET, GET 404, DELETE"):
        requests_usd({"put": 1, "get": 1})


def test_polling_ten_times_a_second() -> None:
    # 10 a second are 26.28 M a month; by LIST they cost 26.28 x 5
    assert requests_usd({"GET 404": 10 * MONTH_S}) == pytest.approx(10.512)
    assert requests_usd({"LIST": 10 * MONTH_S}) == pytest.approx(131.4)


def test_storage_is_billed_by_tier() -> None:
    gb, tb = 2**30, 2**40
    assert storage_usd_per_month(1000 * gb) == pytest.approx(23.0)
    assert storage_usd_per_month(50 * tb) == pytest.approx(1_177.6)  # 51,200 x 0.023
    assert storage_usd_per_month(100 * tb) == pytest.approx(2_304.0)  # + 51,200 x 0.022
    assert storage_usd_per_month(600 * tb) == pytest.approx(13_465.6)  # 1,177.6 + 460,800 x 0.022 + 102,400 x 0.021
    assert storage_usd_per_month(1000 * gb, cost.s3_prices("express")) == pytest.approx(110.0)
    assert storage_usd_per_month(0) == 0


def test_compute() -> None:
    assert PIPELINE.usd_per_month == pytest.approx(112.42)  # 0.5 DPU x 0.308 x 730
    assert glue("G.025X", 2, "5.1").usd_per_month == pytest.approx(160.6)
    assert glue("G.1X", 2).usd_per_month == pytest.approx(449.68)
    assert glue("G.1X", 2, "5.1").usd_per_month == pytest.approx(642.4)
    # driver 2 vCPU and 4 GB, executor 4 and 8: (6 x 0.042094 + 12 x 0.004628) x 730
    assert emr_serverless(6, 12).usd_per_month == pytest.approx(224.913)
    assert emr_serverless(6, 12, arm=False).usd_per_month == pytest.approx(281.11281)
    assert brokers().usd_per_month == pytest.approx(446.76)
    assert brokers("kafka.t3.small", 2).usd_per_month == pytest.approx(66.576)
    assert lambda_usd(3_000_000, 1000) == pytest.approx(0.6133334)
    assert lambda_usd(0, 10 * 1769 / 1024 * MONTH_S) == pytest.approx(605.33, abs=0.01)
    assert lambda_usd(0, 1000, arm=False) == pytest.approx(0.0166667)


def test_a_cluster_of_one_broker_is_not_sold() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        brokers(count=1)


def test_a_stream_of_two_hops() -> None:
    requests = {"PUT": 12, "LIST": 8, "GET": 20, "GET 404": 10, "DELETE": 50}
    bill = streaming_bill(requests_per_s=requests, stored_bytes_per_s=2**20, compute=PIPELINE)
    # 20 x 2.628 M x 5 + 30 x 2.628 M x 0.4; 604,800 MB = 590.625 GB x 0.023; 0.154 x 730
    assert bill.to_dict() == pytest.approx({"requests": 294.336, "storage": 13.584375, "pipeline": 112.42})
    assert bill.usd_per_month == pytest.approx(420.340375)
    assert bill.usd_per_million(10_000) == pytest.approx(0.0159947)  # 26,280 million messages
    assert [item.how for item in bill.items] == [
        "52.6 M PUT and LIST x 5 USD/M + 78.8 M GET x 0.4 USD/M (S3 Standard)",
        "590.6 GB (7 days) x 0.023 USD (S3 Standard)",
        "Glue 6.0, 2 x G.025X: 0.154 USD/h x 730 h",
    ]


def test_kafka() -> None:
    one_hop = kafka_bill(stored_bytes_per_s=2**20)
    # 590.625 GB x 3 x 0.10
    assert one_hop.to_dict() == pytest.approx({"brokers": 446.76, "broker storage": 177.1875})
    to_delta = kafka_bill(
        stored_bytes_per_s=2**20, compute=PIPELINE, requests_per_s={"PUT": 2}, s3_bytes_per_s=2**20, retention_days=14
    )
    assert to_delta.to_dict() == pytest.approx(
        {"brokers": 446.76, "broker storage": 354.375, "pipeline": 112.42, "requests": 26.28, "storage": 13.584375}
    )


def test_no_rate_has_no_price_per_message() -> None:
    bill = Bill((Item("compute", 10.0, ""),))
    assert bill.usd_per_million(1) == pytest.approx(3.805175)  # 10 / 2.628
    with pytest.raises(ValueError, match="above 0"):
        bill.usd_per_million(0)


# Prices


def price_file(folder: Path, **parts: Any) -> Path:
    """The published list, but for these parts; a row that is None is left out."""
    data = published().to_dict()
    rows = {**data["prices"], **parts.pop("prices", {})}
    data |= {"prices": {name: row for name, row in rows.items() if row is not None}, **parts}
    path = folder / "prices.json"
    path.write_text(json.dumps(data))
    return path


def row(**parts: Any) -> dict[str, Any]:
    return {"usd": 1.0, "unit": "thing", "source": "me", "as_of": "2026-11", **parts}


def test_the_published_list_has_a_day_a_region_and_a_source_for_each_row() -> None:
    prices = published()
    assert (cost.AS_OF, cost.REGION) == (prices.as_of, prices.region) == (date(2026, 10, 2), "us-east-1")
    for price in prices.rows.values():
        assert price.source
        assert price.as_of[:2] == "20"
        assert price.as_of <= prices.as_of.isoformat()


class Watched(dict[str, Price]):
    """Rows that remember which of them were asked for."""

    def __init__(self, rows: typing.Mapping[str, Price]) -> None:
        super().__init__(rows)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Price:
        self.asked.add(name)
        return super().__getitem__(name)


def test_no_row_is_there_for_nothing() -> None:
    rows = Watched(published().rows)
    prices = replace(published(), rows=rows)
    for work in (
        Workload(source="sqs", retention_days=30),
        Workload(source="kinesis", engine="emr-serverless", storage_class="express"),
    ):
        estimates(work, prices)
    # What only the benchmark's callers choose.
    glue(version="5.1", prices=prices)
    emr_serverless(1, 1, arm=False, prices=prices)
    lambda_usd(1, 1, arm=False, prices=prices)
    for broker in ("kafka.t3.small", "kafka.m5.large"):
        brokers(broker, prices=prices)
    assert set(rows) - rows.asked == set()


def test_a_price_is_for_so_many_units_and_by_tier() -> None:
    assert Price("x", ((math.inf, 2.0),), 1000, "GET", "", "2026").of(4_000) == pytest.approx(8)
    assert Price("x", ((10.0, 2.0), (math.inf, 1.0)), 1, "GB", "", "2026").of(15) == pytest.approx(25)  # 10 x 2 + 5 x 1


def test_a_price_says_what_it_is() -> None:
    rows = published().rows
    assert rows["lambda-arm"].usd_text() == "0.0000133334"
    assert rows["s3-standard-storage"].usd_text() == "0.023 up to 51,200; 0.022 up to 512,000; 0.021 beyond"
    assert (rows["s3-standard-read"].for_text(), rows["kms-key"].for_text()) == ("1,000 x GET or HEAD", "key-month")


def test_a_list_that_was_printed_can_be_read() -> None:
    assert parse(json.dumps(published().to_dict()), "here", published()) == published()


def test_another_list_replaces_the_prices(tmp_path: Path) -> None:
    prices = load(price_file(tmp_path, region="eu-west-1", prices={"kms-key": row(usd=7)}))
    assert (prices.region, prices.usd("kms-key")) == ("eu-west-1", 7)
    assert prices.usd("glue-6.0") == 0.308


def test_a_part_of_a_list_needs_a_word(tmp_path: Path) -> None:
    path = tmp_path / "part.json"
    text = {"as_of": "2026-11-01", "region": "us-east-1", "prices": {"glue-6.0": row(usd=0.2)}}
    path.write_text(json.dumps(text))
    with pytest.raises(ConfigError, match=r"has no row 's3-standard-write', .*\"others\": \"as published\""):
        load(path)
    path.write_text(json.dumps({**text, "others": "as published"}))
    prices = load(path)
    assert (prices.usd("glue-6.0"), prices.usd("glue-5.1")) == (0.2, 0.44)
    assert glue(prices=prices).usd_per_hour == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"prices": {"kms-key": None}}, "it has no row 'kms-key'"),
        ({"prices": {"kms-kye": row()}}, "row 'kms-kye' is unknown; did you mean 'kms-key'?"),
        ({"prices": {"kms-key": row(usd=-1)}}, "row 'kms-key' has the price -1, which must be a number of USD"),
        ({"prices": {"kms-key": row(usd="1")}}, "row 'kms-key' has the price '1'"),
        ({"prices": {"kms-key": row(usd=True)}}, "row 'kms-key' has the price True"),
        ({"prices": {"kms-key": row(usd=math.nan)}}, "row 'kms-key' has the price nan"),
        (
            {"prices": {"kms-key": row(usd=[[10, 2]])}},
            "row 'kms-key' has tiers up to [10], which must rise and end with",
        ),
        ({"prices": {"kms-key": row(usd=[[9, 2], [3, 2], [None, 1]])}}, "row 'kms-key' has tiers up to [9, 3, None]"),
        ({"prices": {"kms-key": row(usd=[[None, -2]])}}, "row 'kms-key' has the price -2"),
        ({"prices": {"kms-key": row(usd=[3])}}, "row 'kms-key' has the price [3], which must be a number or a list"),
        ({"prices": {"kms-key": row(usd=[])}}, "row 'kms-key' has the price []"),
        ({"prices": {"kms-key": row(per=0)}}, "row 'kms-key' is for 0 units"),
        ({"prices": {"kms-key": row(as_of="soon")}}, "row 'kms-key' is as of 'soon'"),
        ({"prices": {"kms-key": row(source="")}}, "row 'kms-key' has the source ''"),
        ({"prices": {"kms-key": row(price=1)}}, "row 'kms-key' has the unknown part 'price'"),
        ({"prices": {"kms-key": {"usd": 1}}}, "row 'kms-key' has no 'unit'; row 'kms-key' has no 'source'"),
        ({"prices": {"kms-key": 1}}, "row 'kms-key' is 1, not an object"),
        ({"as_of": "2026-13-01"}, "'as_of' is '2026-13-01'"),
        ({"region": ""}, "'region' is ''"),
        ({"claims": [{"name": "x"}]}, "the claim {'name': 'x'} must have as_of, "),
        ({"claims": {}}, "'claims' is not a list"),
        ({"region_": "x"}, "'region_' is not a part of a price file; did you mean 'region'?"),
    ],
)
def test_a_list_that_cannot_be_used_says_why(tmp_path: Path, bad: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(price_file(tmp_path, **bad))
    assert said in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(price_file(tmp_path, prices={"kms-key": row(usd=-1), "glue-6.0": None}))
    assert "'kms-key'" in str(caught.value)
    assert "'glue-6.0'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not a price file"),
        ("[]", "it needs 'prices'"),
        ('{"region": "a", "region": "b"}', "'region' is there twice"),
        ('{"prices": {"kms-key": {}, "kms-key": {}}}', "'kms-key' is there twice"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json cannot be read"):
        load(tmp_path / "none.json")


def test_a_row_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"no price 'glue-6'; did you mean 'glue-6\.0'"):
        published().usd("glue-6")


def test_prices_can_be_read_from_a_zip_without_other_packages(tmp_path: Path) -> None:
    archive = tmp_path / "library.zip"
    with zipfile.ZipFile(archive, "w") as library:
        library.writestr("brokerless/__init__.py", "")
        library.write(PACKAGE / "errors.py", "brokerless/errors.py")
        for path in (*PACKAGE.glob("cost/*"), *PACKAGE.glob("metrics/*")):
            library.write(path, f"brokerless/{path.relative_to(PACKAGE)}")
    code = "from brokerless.cost.estimate import *; print(estimate('brokerless', Workload()).bill.usd_per_month)"
    # Isolated and without site-packages: only the standard library and the zip are there.
    done = subprocess.run(
        [sys.executable, "-ISc", f"import sys; sys.path.insert(0, {str(archive)!r}); {code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(estimate("brokerless", Workload()).bill.usd_per_month)


# Workload


def test_the_model_has_the_librarys_constants() -> None:
    for name in ("POLL_S", "FLOWING_S", "EARLY", "RETENTION_CHECK_S"):
        assert getattr(workload, name) == getattr(tail, name)
    produced = producer.Producer.__init__.__kwdefaults__
    consumed = consumer.Consumer.__init__.__kwdefaults__
    assert produced["linger_s"] == workload.LINGER_S
    assert produced["batch_rows"] == workload.BATCH_ROWS
    assert produced["batch_bytes"] == workload.BATCH_BYTES
    assert consumed["idle_poll_max_s"] == workload.IDLE_POLL_S
    assert maintenance.GARBAGE_EVERY_S == workload.CLEAN_UP_EVERY_H * 3600


@pytest.mark.spark
def test_the_model_has_the_sources_constant() -> None:
    inputs = pytest.importorskip("brokerless.spark.inputs")
    assert inputs.IDLE_POLL_MAX_S == workload.PIPELINE_IDLE_POLL_S


@pytest.mark.parametrize(
    ("work", "commits"),
    [
        (Workload(), (10, 6.5)),
        (Workload(producers=3), (30, 6.5)),
        (Workload(commits_per_s=2), (2, 2)),
        (Workload(messages_per_s=4), (4, 4)),  # no commit without a message
        (Workload(messages_per_s=0), (0, 0)),
        (Workload(engine="none"), (10, 0)),
        (Workload(engine="none", commit_interval_s=1), (10, 0)),
        (Workload(commit_interval_s=1), (10, 1)),
        (Workload(commits_per_s=50, commit_interval_s=0.02), (50, 6.5)),  # Glue runs micro-batches
        (Workload(engine="own"), (10, 10)),
        (Workload(commits_per_s=50, engine="own"), (50, 10)),
        (Workload(commits_per_s=50, engine="own", commit_interval_s=0.02), (50, 50)),
        (Workload(engine="own", commit_interval_s=0.02), (10, 10)),  # no more often than its input
        (Workload(messages_per_s=1000, message_bytes=2**20), (62.5, 6.5)),  # 1,000 MiB/s in commits of 16 MiB
        (Workload(messages_per_s=5e6, message_bytes=1), (50, 6.5)),  # of 100,000 messages
    ],
)
def test_commits(work: Workload, commits: tuple[float, float]) -> None:
    assert (work.commits_in_per_s, work.commits_out_per_s) == pytest.approx(commits)


@pytest.mark.parametrize(
    ("commits_per_s", "idle_max_s", "polls"),
    [
        (0, 0.25, 4.2),  # and a look at the checkpoint each 5 s
        (0, 0.01, 100.2),
        (10, 0.25, 30),  # waits 72 ms, asks at 72, 82, 92
        (10, 0.01, 90),  # waits 10 ms, asks nine times
        (1, 0.25, 75),  # waits 0.25 s at most
        (1000, 0.25, 1000),  # once each
    ],
)
def test_polls(commits_per_s: float, idle_max_s: float, polls: float) -> None:
    assert polls_per_s(commits_per_s, idle_max_s) == pytest.approx(polls)


def test_polls_become_rarer_when_nothing_comes() -> None:
    # 0.25 to 1.00 s each 10 ms: 76; at 1.01 20 ms, then 40, 80, 160, 250 ms up to 10 s
    assert polls_per_s(0.1, 0.25) * 10 == pytest.approx(76 + 5 + 34 + 2, abs=2)


def test_without_a_rhythm_there_is_no_waiting() -> None:
    assert polls_per_s(10, 0.25, shortest_gap=0) == pytest.approx(100)
    alone, together = Workload(canary=False), Workload(producers=2, commits_per_s=5, canary=False)
    assert alone.polls_per_month[0] == pytest.approx(30 * MONTH_S)
    assert together.polls_per_month[0] == pytest.approx(100 * MONTH_S)


def test_each_partition_is_polled() -> None:
    idle = Workload(messages_per_s=0, topics=2, partitions=3, readers=4, canary=False)
    assert idle.polls_per_month == pytest.approx((6 * 4.2 * MONTH_S, 4 * 4.2 * MONTH_S))
    alone = replace(idle, engine="none")
    assert alone.polls_per_month == pytest.approx((0, 4 * 6 * 4.2 * MONTH_S))


def test_hours_without_messages_have_no_commits_but_polls() -> None:
    third = Workload(hours_per_day=8, canary=False)
    assert third.commits_per_month == pytest.approx((10 * MONTH_S / 3, 6.5 * MONTH_S / 3))
    assert third.polls_per_month[0] == pytest.approx((30 / 3 + 4.2 * 2 / 3) * MONTH_S)
    assert third.messages_per_month == pytest.approx(1000 * MONTH_S / 3)


def test_reading_is_two_gets_a_commit() -> None:
    assert Workload(readers=3, canary=False).gets_per_month == pytest.approx((20 * MONTH_S, 3 * 13 * MONTH_S))
    alone = Workload(readers=3, engine="none")
    assert alone.gets_per_month == pytest.approx((0, 3 * 20 * MONTH_S))


def test_the_canary_commits_each_minute_in_both_topics() -> None:
    assert Workload(messages_per_s=0).commits_per_month == pytest.approx((43_800, 43_800))
    assert Workload(messages_per_s=0, engine="none").commits_per_month == (0, 0)


def test_storage_is_messages_and_what_each_commit_needs() -> None:
    work = Workload(messages_per_s=1000, message_bytes=100, retention_days=2, canary=False)
    # 100,000 B/s x 2 days x 2 topics; 16.5 commits/s x 1,350 B
    assert work.stored_bytes == pytest.approx(100_000 * 2 * 86_400 * 2 + 16.5 * 1350 * 2 * 86_400)
    assert work.stored_objects == pytest.approx(16.5 * 2 * 86_400)


@pytest.mark.parametrize(
    ("work", "workers"),
    [
        (Workload(messages_per_s=0), 2),
        (Workload(messages_per_s=75_000), 2),
        (Workload(messages_per_s=75_001), 3),
        (Workload(messages_per_s=300_000, worker_type="G.1X"), 3),  # 4 vCPU each
        (Workload(workers=7), 7),
    ],
)
def test_workers(work: Workload, workers: int) -> None:
    assert work.worker_count == workers


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"messages_per_s": -1}, "messages_per_s must be 0 to 1,000,000,000"),
        ({"messages_per_s": math.nan}, "got nan"),
        ({"message_bytes": 0}, "message_bytes must be 1 to"),
        ({"hours_per_day": 25}, "hours_per_day must be 0 to 24"),
        ({"topics": 0}, "got 0"),
        ({"commits_per_s": 0}, "got 0"),
        ({"idle_poll_s": 0.001}, "idle_poll_s must be 0.01"),
        ({"commit_interval_s": 0}, "commit_interval_s must be 0.001 to 86,400"),
        ({"workers": 1}, "workers must be 2"),
        ({"worker_type": "G.9X"}, "worker_type must be one of G.025X, G.1X, G.2X, got 'G.9X'"),
        ({"engine": "spark"}, "engine must be one of glue, emr-serverless, own, none, got 'spark'"),
        ({"retention_days": -1}, "got -1"),
        ({"readers": -1}, "got -1"),
        ({"clean_up_every_h": 0}, "got 0"),
    ],
)
def test_a_workload_that_cannot_be(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Workload(**bad)
    assert said in str(caught.value)


# Estimates

BARE = Workload(canary=False, monitoring=False, kms=False)


def items(made: Estimate) -> dict[str, float]:
    assert len({item.name for item in made.bill.items}) == len(made.bill.items)
    return made.bill.to_dict()


def test_members_of_groups_cost_heartbeats_and_looks() -> None:
    assert (workload.GROUP_HEARTBEAT_S, workload.GROUP_WATCH_S, workload.GROUP_WATCHED) == (
        membership.HEARTBEAT_S,
        membership.WATCH_S,
        membership._WATCHED,
    )
    found = items(estimate("brokerless", replace(BARE, group_members=3)))
    puts, gets = MONTH_S / 3, MONTH_S + 2 * MONTH_S / 3
    assert found["members of groups"] == pytest.approx(3 * (puts * 5 + gets * 0.4) / 1e6)
    assert "members of groups" not in items(estimate("brokerless", BARE))


def test_brokerless_by_item() -> None:
    found = items(estimate("brokerless", BARE))
    month_m = MONTH_S / 1e6
    assert found["producers' commits"] == pytest.approx(20 * month_m * 5)  # 262.80
    assert found["pipeline's commits"] == pytest.approx(13 * month_m * 5)
    assert found["pipeline's reading"] == pytest.approx(20 * month_m * 0.4)
    assert found["pipeline's polling"] == pytest.approx(30 * month_m * 0.4)
    assert found["readers' reading"] == pytest.approx(13 * month_m * 0.4)
    assert found["storage"] == pytest.approx(BARE.stored_bytes / 2**30 * 0.023)
    assert found["pipeline"] == pytest.approx(112.42)
    # once a day each 1,000 objects are listed
    pages = 730 / 24 * 16.5 * 86_400 * 7 / 1000
    assert found["maintenance"] == pytest.approx(lambda_usd(8760, (8760 * 5 + pages * 0.05) * 2))
    assert found["controller"] == pytest.approx(lambda_usd(8760, 8760 * 0.5))
    # 3 tables each five minutes: 2 PUT, 2 LIST and 50 GET
    requests = {"PUT": 3 * 2 * 8760, "LIST": 3 * 2 * 8760 + pages, "GET": 3 * 50 * 8760}
    assert found["maintenance's requests"] == pytest.approx(requests_usd(requests))
    # 2 workers x 1 kB/s, 2 x 8,760 invocations x 1 kB; retained for 30 days
    gb = (2000 * MONTH_S + 2 * 8760 * 1000) / 2**30
    assert found["logs"] == pytest.approx(gb * 0.5 + gb / MONTH_DAYS * 30 * 0.03)
    assert len(found) == 12


def test_monitoring_key_and_canary_are_items_of_their_own() -> None:
    found = items(estimate("brokerless", replace(BARE, monitoring=True, kms=True, canary=True)))
    count = metrics.billed(topics=1, pipelines=1, canaries=1)
    assert found["metrics"] == pytest.approx(count.metrics * 0.30)
    assert found["alarms"] == pytest.approx(count.alarms * 0.10 + count.composites * 0.50)
    assert found["dashboard"] == 3
    assert found["sending metrics"] == pytest.approx(43_800 * 0.01 / 1000)
    # 43,800 runs of 2 s and 0.5 GB; 200 GET each
    assert found["canary"] == pytest.approx(lambda_usd(43_800, 43_800))
    assert found["canary's polling"] == pytest.approx(43_800 * 200 * 0.4 / 1e6)
    # 1 % of 2 x 16.5 PUT, 20 + 13 GET, and the canary's 4 PUT and 4 GET a minute
    objects = (33 + 33) * MONTH_S + 43_800 * 8
    assert found["key"] == pytest.approx(1 + objects * 0.01 * 0.03 / 10_000)


def test_alarms_are_those_of_what_there_is() -> None:
    with_all = items(estimate("brokerless", Workload(topics=3)))
    count = metrics.billed(topics=3, pipelines=1, canaries=1)
    assert with_all["metrics"] == pytest.approx(count.metrics * 0.30)
    without = items(estimate("brokerless", Workload(engine="none")))
    assert without["metrics"] == pytest.approx(metrics.billed(topics=1, pipelines=0, canaries=0).metrics * 0.30)
    assert without["sending metrics"] == 0


def test_idle_is_polling_and_what_runs() -> None:
    found = items(estimate("brokerless", replace(BARE, messages_per_s=0)))
    assert found["producers' commits"] == 0
    assert found["pipeline's polling"] == pytest.approx(4.2 * MONTH_S * 0.4 / 1e6)
    assert found["pipeline"] == pytest.approx(112.42)
    for made in estimates(Workload(messages_per_s=0)):
        assert made.usd_per_million(Workload(messages_per_s=0)) is None
        assert made.bill.usd_per_month > 0


def test_without_a_pipeline_there_is_no_controller_either() -> None:
    found = items(estimate("brokerless", replace(BARE, engine="none")))
    assert not {"pipeline", "pipeline's commits", "controller"} & set(found)


def test_a_machine_of_ones_own_is_in_no_bill_and_is_said_to_be_missing() -> None:
    work = replace(BARE, engine="own", commits_per_s=50, commit_interval_s=0.02)
    for made in estimates(work):
        assert ("the machine that runs the pipeline" in made.excludes) == (made.key != "sqs")
        assert "pipeline" not in items(made)
    found = items(estimate("brokerless", work))
    assert found["pipeline's commits"] == pytest.approx(2 * 50 * MONTH_S * 5 / 1e6)
    assert "controller" not in found  # nothing of Glue's or EMR's is to be kept running


def test_the_default_interval_is_the_real_time_engines() -> None:
    engine = Path(workload.__file__).parents[1] / "spark" / "realtime" / "engine.py"  # which imports pyspark
    assert f"COMMIT_INTERVAL_S: Final = {workload.REALTIME_COMMIT_S}\n" in engine.read_text()


def test_a_source_is_a_function_and_what_stands_before_it() -> None:
    url = items(estimate("brokerless", replace(BARE, source="url")))
    # 10 runs/s of 0.15 s and 1 GB, and 20 us a message
    assert url["ingest"] == pytest.approx(lambda_usd(10 * MONTH_S, (10 * 0.15 + 1000 * 20e-6) * MONTH_S))
    queue = items(estimate("brokerless", replace(BARE, source="sqs")))
    assert queue["queues: source"] == pytest.approx((300 + 0.25) * MONTH_S * 0.4 / 1e6)
    stream = items(estimate("brokerless", replace(BARE, source="kinesis")))
    # 10 records/s of 100 messages, 20,000 B, that count as 20 KB
    assert stream["source: data in"] == pytest.approx(10 * 20 * 1024 * MONTH_S / 2**30 * 0.08)
    assert stream["source: data out"] == pytest.approx(stream["source: data in"] / 2)
    assert stream["source: streams"] == pytest.approx(0.04 * 730)
    assert "ingest" not in items(estimate("brokerless", BARE))


def test_express_charges_for_requests_less_and_for_bytes_too() -> None:
    found = items(estimate("brokerless", replace(BARE, storage_class="express", readers=2)))
    assert found["producers' commits"] == pytest.approx(20 * MONTH_S * 1.13 / 1e6)
    gb = 200_000 * MONTH_S / 2**30
    assert found["upload"] == pytest.approx(2 * gb * 0.0032)
    assert found["retrieval"] == pytest.approx(3 * gb * 0.0006)  # pipeline and two readers


def test_emr_serverless_has_workers_of_the_same_size() -> None:
    found = items(estimate("brokerless", replace(BARE, engine="emr-serverless", worker_type="G.1X")))
    assert found["pipeline"] == pytest.approx((8 * 0.042094 + 32 * 0.004628) * 730)


def test_msk() -> None:
    retained = 200_000 * 7 * 86_400 / 2**30
    found = items(estimate("msk", BARE))
    assert found == pytest.approx({"brokers": 446.76, "broker storage": retained * 2 * 3 * 0.1, "pipeline": 112.42})


def test_msk_serverless() -> None:
    gb = 200_000 * MONTH_S / 2**30
    found = items(estimate("msk-serverless", replace(BARE, topics=2, partitions=3, readers=2)))
    assert found["partitions"] == pytest.approx(7 * 0.0015 * 730)
    assert found["data in"] == pytest.approx(2 * gb * 0.10)
    assert found["data out"] == pytest.approx(3 * gb * 0.05)


def test_kinesis_on_demand() -> None:
    # 10 records/s of 20,000 B count as 20 KB each
    a_second = 10 * 20 * 1024 / 2**30
    found = items(estimate("kinesis-on-demand", replace(BARE, retention_days=10)))
    assert found == pytest.approx(
        {
            "streams": 2 * 0.04 * 730,
            "data in": 2 * a_second * MONTH_S * 0.08,
            "data out": 2 * a_second * MONTH_S * 0.04,
            "retained for 2 to 7 days": 2 * a_second * 6 * 86_400 * 0.10,
            "retained for longer": 2 * a_second * 3 * 86_400 * 0.023,
            "pipeline": 112.42,
        }
    )
    single = items(estimate("kinesis-on-demand", replace(BARE, packed=False)))
    assert single["data in"] == pytest.approx(2 * 1000 * 1024 * MONTH_S / 2**30 * 0.08)  # 200 B count as 1 KB


def test_kinesis_provisioned() -> None:
    found = items(estimate("kinesis-provisioned", BARE))
    assert found["shards"] == pytest.approx(2 * 0.015 * 730)
    assert found["records"] == pytest.approx(2 * 10 * MONTH_S * 0.014 / 1e6)  # 20,000 B fit into one unit
    single = items(estimate("kinesis-provisioned", replace(BARE, messages_per_s=2500, packed=False)))
    assert single["shards"] == pytest.approx(6 * 0.015 * 730)  # 3 for 2,500 records/s, twice
    # 10 MiB/s out of the second stream for each of 3 readers, 2 MiB/s a shard
    many = items(estimate("kinesis-provisioned", replace(BARE, message_bytes=2**20 // 100, readers=3)))
    assert many["shards"] == pytest.approx((10 + 15) * 0.015 * 730)


def test_sqs() -> None:
    found = items(estimate("sqs", replace(BARE, readers=2)))
    assert found["queues: topics"] == pytest.approx((300 + 0.25) * MONTH_S * 0.4 / 1e6)
    assert found["queues: output"] == pytest.approx((600 + 0.5) * MONTH_S * 0.4 / 1e6)
    assert found["consumer"] == pytest.approx(lambda_usd(10 * MONTH_S, (10 * 0.02 + 0.02) * MONTH_S * 0.5))
    slow = items(estimate("sqs", replace(BARE, messages_per_s=20)))
    assert slow["queues: topics"] == pytest.approx((30 + 0.25) * MONTH_S * 0.4 / 1e6)  # two messages a batch
    large = items(estimate("sqs", replace(BARE, message_bytes=100_000)))
    # 10 messages are 1,000,000 B: 16 chunks to send, 16 to receive, 1 to delete
    assert large["queues: topics"] == pytest.approx((100 * 33 + 0.25) * MONTH_S * 0.4 / 1e6)
    assert set(items(estimate("sqs", replace(BARE, engine="none")))) == {"queues: topics"}
    # Nobody's bill holds the readers, but each needs a copy of its own.
    copies = items(estimate("sqs", replace(BARE, engine="none", readers=3)))
    assert copies["queues: further readers"] == pytest.approx(2 * copies["queues: topics"])


def test_every_alternative_says_how_and_what_it_leaves_out() -> None:
    found = estimates(Workload())
    assert [made.key for made in found] == list(ALTERNATIVES)
    for made in found:
        assert made.excludes
        assert all(item.how for item in made.bill.items)
        assert made.usd_per_million(Workload()) == pytest.approx(made.bill.usd_per_month / (1000 * MONTH_S / 1e6))


def test_other_prices_reach_every_estimate() -> None:
    def doubled(price: Price) -> Price:
        return replace(price, tiers=tuple((end, 2 * usd) for end, usd in price.tiers))

    prices = Prices(cost.AS_OF, "x", {name: doubled(price) for name, price in published().rows.items()})
    for work in (
        Workload(source="kinesis", storage_class="express", retention_days=30),
        Workload(source="sqs", engine="emr-serverless"),
    ):
        for before, after in zip(estimates(work), estimates(work, prices), strict=True):
            for one, other in zip(before.bill.items, after.bill.items, strict=True):
                assert other.usd_per_month == pytest.approx(2 * one.usd_per_month), (before.key, one.name)


def test_claims_are_quoted_only_for_what_they_were_made_for() -> None:
    about = Workload(messages_per_s=50_000)
    assert [claim.name for claim in claims(about)] == ["Confluent Cloud", "Kafka, self-managed"]
    assert claims(replace(about, messages_per_s=46_000))
    for other in ({"messages_per_s": 40_000}, {"message_bytes": 5000}, {"hours_per_day": 8}, {"messages_per_s": 0}):
        assert not claims(replace(about, **other))  # type: ignore[arg-type]


def test_crossings() -> None:
    assert crossings(lambda x: x - 30, 1, 1000) == pytest.approx([30], rel=1e-3)
    assert crossings(lambda x: (x - 5) * (200 - x), 1, 1000) == pytest.approx([5, 200], rel=1e-3)
    assert crossings(lambda x: x, 1, 1000) == []


def test_a_break_even_is_where_both_cost_the_same() -> None:
    def difference(rate: float) -> float:
        work = Workload(messages_per_s=rate)
        return estimate("brokerless", work).bill.usd_per_month - estimate("msk", work).bill.usd_per_month

    low, high = crossings(difference, 1, 1e6)
    assert low < 10 < 1000 < high
    assert abs(difference(high)) < 2
    assert difference(high / 1.1) > 0 > difference(high * 1.1)


# The page


def test_the_model_is_not_below_what_was_measured() -> None:
    """In dollars; the page shows both, request by request."""
    said = (PACKAGE.parent / cost_page.PAGE).read_text()
    least = float(said.split("By price the model has\n")[1].split(" ")[0])
    assert least >= 1
