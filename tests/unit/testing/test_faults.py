"""Rules, scripts and chaos: which request meets which fault, without any network."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from brokerless.errors import ConfigError
from brokerless.testing import (
    Chaos,
    Conflict,
    Corrupted,
    Fault,
    Latency,
    LostAnswer,
    LostRequest,
    Quiet,
    Rule,
    Script,
    ServerError,
    SlowDown,
    StaleAbsence,
    Stalled,
    Truncated,
)
from brokerless.testing.injector import Injector, Request
from brokerless.testing.s3 import request_of
from brokerless.testing.wire import Head
from tests.support.fakes import START_US, FakeClock

if TYPE_CHECKING:
    from brokerless.testing.faults import Op

ENTRY = "t/_delta_log/00000000000000000001.json"


def injector(*plans: Script | Chaos, clock: FakeClock | None = None) -> Injector:
    made = Injector(clock or FakeClock())
    made.play(plans)
    return made


def struck(found: Injector, op: Op, key: str) -> str | None:
    shot = found.draw(Request(op, (key,)))
    return None if shot is None else shot.fault.kind


# Rules


@pytest.mark.parametrize(
    ("pattern", "key", "fits"),
    [
        ("*", "", True),
        ("*.parquet", "p/t/a.parquet", True),
        ("*.parquet", "p/t/a.json", False),
        ("_delta_log/*1.json", f"prefix/{ENTRY}", True),
        ("t/_delta_log/*", ENTRY, True),
        ("t/_delta_log/*", f"prefix/{ENTRY}", True),
        ("t/_delta_log/*", "not_t/_delta_log/0.json", False),
        ("t/*", "T/a", False),
    ],
)
def test_a_glob_fits_from_any_folder_of_the_key(pattern: str, key: str, fits: bool) -> None:
    assert Rule(SlowDown(), key=pattern).fits("PUT", [key]) is fits


def test_a_rule_for_put_is_for_conditional_ones_too_but_not_the_reverse() -> None:
    assert Rule(SlowDown(), op="PUT").fits("CONDITIONAL_PUT", ["k"])
    assert not Rule(SlowDown(), op="CONDITIONAL_PUT").fits("PUT", ["k"])


def test_a_deletion_of_many_is_struck_if_any_of_them_fits() -> None:
    assert Rule(SlowDown(), op="DELETE", key="b").fits("DELETE", ["a", "b"])
    assert not Rule(SlowDown(), op="DELETE", key="b").fits("DELETE", ["a", "c"])


@pytest.mark.parametrize(("fault", "op"), [(Conflict(), "PUT"), (Truncated(), "HEAD"), (StaleAbsence(), "LIST")])
def test_a_fault_leaves_alone_what_it_cannot_happen_to(fault: Fault, op: Op) -> None:
    assert not Rule(fault).fits(op, ["k"])


def test_after_and_times_count_requests() -> None:
    found = injector(Script([Rule(SlowDown(), op="PUT", after=1, times=2)]))
    assert [struck(found, "PUT", "k") for _ in range(5)] == [None, "SlowDown", "SlowDown", None, None]
    assert found.pending() == ()


def test_rules_for_the_same_key_strike_one_after_the_other() -> None:
    found = injector(Script([Rule(SlowDown(), key="k"), Rule(LostAnswer(), key="k")]))
    assert [struck(found, "PUT", key) for key in ("k", "other", "k", "k")] == ["SlowDown", None, "LostAnswer", None]


def test_added_rules_stand_behind_those_that_are_there() -> None:
    found = injector(Script([Rule(SlowDown())]))
    found.add([Rule(LostAnswer())])
    assert [rule.fault for rule in found.pending()] == [SlowDown(), LostAnswer()]
    assert [struck(found, "GET", "k") for _ in range(3)] == ["SlowDown", "LostAnswer", None]


def test_what_had_nothing_to_do_is_given_back() -> None:
    found = injector(Script([Rule(Truncated(), op="GET")]))
    shot = found.draw(Request("GET", ("k",)))
    assert shot is not None
    found.give_back(shot)
    assert struck(found, "GET", "k") == "Truncated"
    assert struck(found, "GET", "k") is None


def test_playing_again_begins_anew() -> None:
    script = Script([Rule(SlowDown(), times=None, probability=0.5)], seed=3)
    found = injector(script)
    first = [struck(found, "PUT", "k") for _ in range(20)]
    found.play([script])
    assert [struck(found, "PUT", "k") for _ in range(20)] == first


def test_stale_absence_needs_a_recent_write() -> None:
    clock = FakeClock()
    found = injector(Script([Rule(StaleAbsence(within_s=2), times=None)]), clock=clock)
    assert struck(found, "GET", "k") is None
    found.answer(Request("PUT", ("k",)), "PUT", 200)
    assert struck(found, "GET", "k") == struck(found, "HEAD", "k") == "StaleAbsence"
    assert struck(found, "GET", "other") is None
    clock.advance(2)
    assert struck(found, "GET", "k") is None


# Determinism

HALF = Chaos(seed=7, rates={SlowDown(): 0.25, LostAnswer(): 0.25}, in_a_row=100)


def drawn(plan: Script | Chaos, keys: list[str], op: Op = "PUT") -> dict[str, list[str | None]]:
    found = injector(plan)
    result: dict[str, list[str | None]] = {key: [] for key in keys}
    for key in keys:
        result[key].append(struck(found, op, key))
    return result


PLANS = [HALF, Script([Rule(SlowDown(), times=None, probability=0.5)], seed=7)]


@pytest.mark.parametrize("plan", PLANS)
def test_what_a_key_meets_does_not_depend_on_other_keys(plan: Script | Chaos) -> None:
    one_by_one = drawn(plan, ["a"] * 40 + ["b"] * 40)
    in_turn = drawn(plan, ["b", "a"] * 40)
    assert one_by_one == in_turn
    assert one_by_one["a"] != one_by_one["b"]


@pytest.mark.parametrize("plan", PLANS)
def test_another_seed_draws_otherwise(plan: Script | Chaos) -> None:
    other = dataclasses.replace(plan, seed=8)
    assert drawn(plan, ["a"] * 40) != drawn(other, ["a"] * 40)


def test_uuids_in_keys_do_not_count() -> None:
    one = "0f8fad5b-d9cb-469f-a165-70867728950e"
    other = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
    seen = [injector(HALF) for _ in range(2)]
    first = [struck(seen[0], "PUT", f"{one}/t/{n}.parquet") for n in range(40)]
    again = [struck(seen[1], "PUT", f"{other}/t/{n}.parquet") for n in range(40)]
    assert first == again
    found = injector(HALF)
    mixed = [struck(found, "PUT", f"t/{uuid}.parquet") for uuid in (one, other) * 20]
    assert mixed == drawn(HALF, ["t/*.parquet"] * 40)["t/*.parquet"]


def test_the_sequence_of_a_seed_stays_what_it_is() -> None:
    """Users write seeds down; a change of the drawing breaks their runs."""
    assert [kind and kind[0] for kind in drawn(HALF, ["a"] * 16)["a"]] == [
        None,
        "L",
        None,
        None,
        None,
        None,
        None,
        "L",
        None,
        None,
        "S",
        None,
        "L",
        None,
        "L",
        "S",
    ]


# Chaos


def test_rates_are_met() -> None:
    found = injector(Chaos(seed=1, rates={SlowDown(): 0.1, LostAnswer(): 0.2}, in_a_row=1000))
    kinds = Counter(struck(found, "PUT", "k") for _ in range(5000))
    assert 0.08 < kinds["SlowDown"] / 5000 < 0.12
    assert 0.17 < kinds["LostAnswer"] / 5000 < 0.23


def test_who_tries_again_gets_through() -> None:
    found = injector(Chaos(seed=1, rates={SlowDown(): 1.0}, in_a_row=3))
    assert [struck(found, "PUT", "k") is None for _ in range(8)] == [False, False, False, True] * 2


def test_a_fault_that_cannot_happen_leaves_its_share_to_nothing() -> None:
    found = injector(Chaos(seed=1, rates={Corrupted(): 0.5, SlowDown(): 0.5}, in_a_row=1000))
    kinds = Counter(struck(found, "PUT", "k") for _ in range(400))
    assert set(kinds) == {"SlowDown", None}
    assert 150 < kinds["SlowDown"] < 250


def test_chaos_keeps_to_its_kind_and_keys() -> None:
    found = injector(Chaos(seed=1, rates={SlowDown(): 1.0}, op="GET", key="*.json"))
    assert struck(found, "GET", "a.json") == "SlowDown"
    assert struck(found, "GET", "a.parquet") is None
    assert struck(found, "HEAD", "a.json") is None


def test_quiet_times_are_without_faults() -> None:
    clock = FakeClock()
    found = injector(Chaos(seed=1, rates={SlowDown(): 1.0}, quiet=Quiet(storm_s=10, calm_s=5)), clock=clock)
    for at, expected in [(0, "SlowDown"), (9, "SlowDown"), (10, None), (14, None), (15, "SlowDown"), (26, None)]:
        clock.now_us = START_US + at * 1_000_000
        assert struck(found, "PUT", f"k{at}") == expected


def test_rules_come_before_chaos() -> None:
    found = injector(Script([Rule(LostRequest())]), Chaos(seed=1, rates={SlowDown(): 1.0}))
    assert [struck(found, "PUT", "k") for _ in range(2)] == ["LostRequest", "SlowDown"]


# The log


def test_a_line_of_the_log_says_what_when_where_and_whether_it_was_applied() -> None:
    found = injector(Script([Rule(SlowDown())]))
    request = Request("PUT", ("t/a",))
    shot = found.draw(request)
    assert shot is not None
    found.record(request, shot, applied=True, upstream=200)
    (line,) = found.log()
    assert (line.number, line.at_us, line.fault) == (1, 1_800_000_000_000_000, SlowDown())
    assert (line.op, line.key, line.applied, line.upstream) == ("PUT", "t/a", True, 200)
    assert found.log(after=1) == ()
    assert found.faults == {"SlowDown": 1}
    assert found.requests == {"PUT": 1}


# Requests


@pytest.mark.parametrize(
    ("line", "fields", "op", "key"),
    [
        ("PUT /b/t/a%20b", {}, "PUT", "t/a b"),
        ("PUT /b/k", {b"if-none-match": b"*"}, "CONDITIONAL_PUT", "k"),
        ("PUT /b/k", {b"if-match": b'"e"'}, "CONDITIONAL_PUT", "k"),
        ("GET /b/k?x-id=GetObject", {b"if-match": b'"e"'}, "GET", "k"),
        ("HEAD /b/k", {}, "HEAD", "k"),
        ("DELETE /b/k", {}, "DELETE", "k"),
        ("GET /b?list-type=2&prefix=t%2F", {}, "LIST", "t/"),
        ("GET /b/", {}, "LIST", ""),
        ("GET /b?location", {}, "OTHER", ""),
        ("GET /b?location=", {}, "OTHER", ""),
        ("GET /", {}, "OTHER", ""),
        ("PUT /b", {}, "OTHER", ""),
        ("HEAD /b", {}, "OTHER", ""),
        ("GET /b/k?tagging", {}, "OTHER", "k"),
        ("POST /b/k?uploads", {}, "MULTIPART", "k"),
        ("PUT /b/k?partNumber=1&uploadId=u", {}, "MULTIPART", "k"),
        ("DELETE /b/k?uploadId=u", {}, "MULTIPART", "k"),
        ("POST /b?delete", {}, "DELETE", ""),
    ],
)
def test_requests_are_told_apart(line: str, fields: dict[bytes, bytes], op: Op, key: str) -> None:
    method, target = line.split(" ", 1)
    request = request_of(Head(b"", (method.encode(), target.encode(), b"HTTP/1.1"), fields), target)
    assert (request.op, request.key) == (op, key)


# Values


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stalled(limit_s=0),
        lambda: Truncated(part=1.0),
        lambda: Latency(seconds=-1),
        lambda: StaleAbsence(within_s=0),
        lambda: Quiet(0, 1),
        lambda: ServerError(status=200),
        lambda: Rule(SlowDown(), after=-1),
        lambda: Rule(SlowDown(), probability=0),
        lambda: Rule("SlowDown"),  # type: ignore[arg-type]
        lambda: Chaos(1, {SlowDown(): 0.6, LostAnswer(): 0.6}),
        lambda: Chaos(1, {Corrupted(): 0.1}, op="PUT"),
        lambda: Chaos(1, {SlowDown(): 0.1}, in_a_row=0),
    ],
)
def test_values_that_cannot_work_are_refused_at_once(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]
