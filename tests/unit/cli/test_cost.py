"""``brokerless cost``: what people and programs get from it, and how it refuses."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from brokerless.cost.estimate import ALTERNATIVES, NOBODYS, estimates
from brokerless.cost.prices import load, published
from brokerless.cost.workload import Workload
from brokerless.settings import Settings
from tests.support.cli import Cli, assert_refused

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A command that could reach nothing, since there is nothing to be reached."""
    monkeypatch.chdir(tmp_path)
    return Cli(Settings("embedded", f"file://{tmp_path}/root", state_dir=tmp_path / "state"))


def test_the_document_is_the_estimate(cli: Cli) -> None:
    said = cli.json("cost", "--messages-per-s", "10000", "--message-bytes", "500", "--commits-per-s", "1")
    work = Workload(messages_per_s=10_000, message_bytes=500, commits_per_s=1)
    for told, made in zip(said["estimates"], estimates(work), strict=True):
        assert told["key"] == made.key
        assert told["usd_per_month"] == pytest.approx(made.bill.usd_per_month, abs=0.005)
        assert told["usd_per_million_messages"] == pytest.approx(made.usd_per_million(work), abs=1e-6)
        assert [item["name"] for item in told["items"]] == [item.name for item in made.bill.items]
        assert sum(item["usd_per_month"] for item in told["items"]) == pytest.approx(told["usd_per_month"], abs=0.01)
        assert all(item["how"] for item in told["items"])
        assert told["excludes"] == list(made.excludes)
    assert [told["key"] for told in said["estimates"]] == list(ALTERNATIVES)
    assert said["prices"] == {"as_of": "2026-10-02", "region": "us-east-1"}
    assert said["excluded_everywhere"] == list(NOBODYS)


def test_each_option_reaches_the_workload(cli: Cli) -> None:
    given = {
        "messages_per_s": 5.5, "message_bytes": 7, "hours_per_day": 8.0, "topics": 2, "partitions": 3, "producers": 4,
        "commits_per_s": 0.5, "source": "kinesis", "readers": 6, "idle_poll_s": 0.02, "retention_days": 9.0,
        "engine": "emr-serverless", "workers": 11, "worker_type": "G.1X", "storage_class": "express",
        "clean_up_every_h": 12.0, "group_members": 5,
    }  # fmt: skip
    options = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    said = cli.json("cost", *options, "--no-kms", "--no-monitoring", "--no-canary", "--single")
    expected = {**given, "commit_interval_s": None, "kms": False, "monitoring": False, "canary": False, "packed": False}
    assert said["workload"] == expected


@pytest.mark.parametrize(("text", "seconds"), [("20ms", 0.02), ("1s", 1.0), ("0.5", 0.5)])
def test_the_commit_interval_is_given_as_to_run(cli: Cli, text: str, seconds: float) -> None:
    workload = cli.json("cost", "--engine", "own", "--commit-interval", text)["workload"]
    assert (workload["commit_interval_s"], workload["workers"]) == (pytest.approx(seconds), 0)


@pytest.mark.parametrize("text", ["fast", "-1s", "20 minutes", ""])
def test_a_commit_interval_that_is_no_time_is_refused(cli: Cli, text: str) -> None:
    refused = cli("cost", f"--commit-interval={text}")
    assert refused.exit_code == 2
    assert "--commit-interval" in refused.stderr
    assert "is not a duration; write 100ms, 1s, 12h or 7d" in " ".join(refused.stderr.split())


def test_the_defaults_are_those_of_the_workload(cli: Cli) -> None:
    workload = cli.json("cost")["workload"]
    assert workload["workers"] == Workload().worker_count
    del workload["workers"]
    assert Workload(**workload) == Workload()


def test_people_get_items_a_comparison_and_what_is_not_in_it(cli: Cli) -> None:
    shown = cli("cost", "--messages-per-s", "50000").stdout
    assert "List prices of us-east-1, 2026-10-02" in shown
    assert re.search(r"producers' commits +262\.\d\d|producers' commits +263\.\d\d", shown)
    assert re.search(r"pipeline +112\.42 +Glue 6\.0, 2 x G\.025X: 0\.154 USD/h x 730 h", shown)
    for made in estimates(Workload()):
        assert f"- {made.name}: {made.excludes[0]}" in shown
    assert "Claims of other vendors, not computed here: Confluent Cloud, roughly 1,800 USD" in shown
    assert "2024-08" in shown


def test_the_cheapest_comes_first(cli: Cli) -> None:
    table = cli("cost").stdout.split("Cheapest first")[1].split("Not included")[0]
    amounts = [float(found.replace(",", "")) for found in re.findall(r" {2,}([\d,]+\.\d\d) ", table)]
    assert len(amounts) == len(ALTERNATIVES)
    assert amounts == sorted(amounts)


def test_claims_are_kept_for_their_own_workload(cli: Cli) -> None:
    assert "Confluent" not in cli("cost").stdout
    assert cli.json("cost")["claims_of_others"] == []
    (confluent, _) = cli.json("cost", "--messages-per-s", "50000")["claims_of_others"]
    assert (confluent["name"], confluent["usd_per_month"], confluent["as_of"]) == ("Confluent Cloud", 1800, "2024-08")


def test_details_show_the_items_of_all(cli: Cli) -> None:
    assert "shards" not in cli("cost").stdout.split("Cheapest first")[0]
    assert re.search(r"shards +21\.90 +2 shards: 0\.03 USD/h x 730 h", cli("cost", "--details").stdout)


def test_idle(cli: Cli) -> None:
    said = cli.json("cost", "--messages-per-s", "0")
    assert {told["usd_per_million_messages"] for told in said["estimates"]} == {None}
    shown = cli("cost", "--messages-per-s", "0").stdout
    assert "brokerless: idle, no messages" in shown
    assert re.search(r"brokerless +1\d\d\.\d\d +- ", shown)


def test_prices_are_shown_with_their_sources(cli: Cli) -> None:
    shown = cli("cost", "--show-prices").stdout
    assert re.search(r"msk-kafka\.m7g\.large +0\.204 +broker-hour +third-party article +2025 ", shown)


def test_prices_that_were_printed_can_be_given_back(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(cli("cost", "--show-prices", "--json").stdout)
    assert load(path) == published()
    data = json.loads(path.read_text())
    data["region"] = "eu-west-1"
    data["prices"]["glue-6.0"]["usd"] = 3.08
    path.write_text(json.dumps(data))
    said = cli.json("cost", "--price-file", str(path))
    (pipeline,) = [item for item in said["estimates"][0]["items"] if item["name"] == "pipeline"]
    assert pipeline["usd_per_month"] == pytest.approx(1124.2)
    assert said["prices"]["region"] == "eu-west-1"
    assert "eu-west-1" in cli("cost", "--price-file", str(path)).stdout


def test_a_price_file_that_cannot_be_used_is_refused(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    data = published().to_dict()
    data["prices"]["kms-key"]["usd"] = -1
    path.write_text(json.dumps(data))
    assert_refused(cli("cost", "--price-file", str(path)), "row 'kms-key' has the price -1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--messages-per-s", "-1"], "messages_per_s must be 0 to"),
        (["--worker-type", "G.9X"], "got 'G.9X'"),
        (["--workers", "1"], "got 1"),
        (["--source", "window"], "window"),
        (["--price-file", "none.json"], "none.json cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(cli: Cli, options: list[str], said: str) -> None:
    assert_refused(cli("cost", *options), said)


def test_the_help_teaches(cli: Cli) -> None:
    shown = cli("cost", "--help").stdout
    assert "Examples:" in shown
    assert "the cost while idle" in shown
