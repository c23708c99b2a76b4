"""Backlog and idle: a short real run of each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from benchmarks import capacity
from benchmarks.measure import Arrivals
from benchmarks.session import load_all
from brokerless.cost import bill as cost

if TYPE_CHECKING:
    from pathlib import Path


def test_cores_are_limited_inside_and_given_back() -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one core cannot be limited")
    with capacity._cores(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_backlog_is_drained_and_every_message_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(capacity, "COMMIT", 1_000)
    arguments = ["--messages", "20000", "--partitions", "2", "--idle-seconds", "0", "--backend", "embedded"]
    assert capacity.main([*arguments, "--out", str(tmp_path)]) == 0
    (session,) = load_all(tmp_path)
    ((row,),) = [table.rows for table in session.tables]
    assert row["verdict"] == "clean"
    assert row["messages"] == 20_000
    assert row["CPU s / million"] > 0
    add = Arrivals.add

    def lose_one(self: Arrivals, at: float, producer: object, number: object) -> None:
        add(self, at, producer[1:], number[1:])  # type: ignore[index]

    monkeypatch.setattr(Arrivals, "add", lose_one)
    assert capacity.main([*arguments, "--out", str(tmp_path)]) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_doing_nothing_costs_requests_and_little_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "SETTLE_S", 3.0)
    row = capacity.idle(5.0, "embedded")
    # Two input partitions each 0.1 s and a reader each 0.25 s: 24 polls a second; and what maintenance lists.
    assert 5 * 3600 < row["requests / hour"] < 60 * 3600
    assert row["$ / hour, requests"] < 60 * 3600 * cost.S3_STANDARD.write_usd_per_1000 / 1000
