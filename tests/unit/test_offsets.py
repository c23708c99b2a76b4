"""Places in a topic, printed and read back."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerless.errors import ConfigError
from brokerless.offsets import Ack, Offset, SavedPosition, Shift, parse_reset, parse_start
from tests.support.fakes import FakeClock

NUMBERS = st.integers(min_value=0, max_value=10**18 - 1)


@given(NUMBERS, NUMBERS)
def test_parse_is_the_inverse_of_str(version: int, index: int) -> None:
    offset = Offset(version, index)
    assert Offset.parse(str(offset)) == offset
    assert parse_start(str(offset)) == offset


@given(st.tuples(NUMBERS, NUMBERS), st.tuples(NUMBERS, NUMBERS))
def test_offsets_are_ordered_as_their_messages(a: tuple[int, int], b: tuple[int, int]) -> None:
    assert (Offset(*a) < Offset(*b)) == (a < b)


@pytest.mark.parametrize(
    "text", ["", "12", "12:", ":3", "-1:0", "1:2:3", "1 :2", "x:y", "1" * 19 + ":0", "\uff11:\uff12"]
)
def test_text_that_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not an offset"):
        Offset.parse(text)


def test_starts() -> None:
    assert parse_start("beginning") == "beginning"
    assert parse_start("latest") == "latest"
    assert parse_start("2026-03-29T03:30:00+02:00") == datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    assert parse_start("2026-03-29T01:30:00Z") == datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    assert parse_start("earliest") == "beginning"
    assert parse_start("2026-11-20") == parse_start("20261120") == datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("1h", timedelta(hours=1)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(weeks=2)),
    ],
)
def test_how_long_ago_is_a_start(text: str, ago: timedelta, clock: FakeClock) -> None:
    now = datetime.fromtimestamp(clock.time_us() / 1e6, UTC)
    assert parse_start(text, clock) == now - ago


def test_today_and_yesterday_begin_at_midnight_in_utc(clock: FakeClock) -> None:
    clock.now_us = int(datetime(2026, 3, 1, 23, 59, tzinfo=UTC).timestamp() * 1e6)
    assert parse_start("today", clock) == datetime(2026, 3, 1, tzinfo=UTC)
    assert parse_start("yesterday", clock) == datetime(2026, 2, 28, tzinfo=UTC)


def test_a_reset_may_be_relative() -> None:
    assert parse_reset("+100") == Shift(100)
    assert parse_reset("-100") == Shift(-100)
    assert parse_reset("12:3") == Offset(12, 3)
    with pytest.raises(ConfigError, match="not a position"):
        parse_reset("100")


@given(st.datetimes(timezones=st.just(timezone(timedelta(hours=5, minutes=45)))))
def test_any_instant_with_an_offset_is_a_start(instant: datetime) -> None:
    try:
        expected = instant.astimezone(UTC)
    except OverflowError:
        return  # year 1, minus the offset
    assert parse_start(instant.isoformat()) == expected


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("2026-03-29T01:30:00", "no UTC offset"),
        ("soon", "not a position"),
        ("", "not a position"),
        ("1y", "not a position"),
        ("-1h", "not a position"),
        ("999999999w", "outside the years"),
    ],
)
def test_what_is_no_start_is_refused(text: str, because: str) -> None:
    with pytest.raises(ConfigError, match=because):
        parse_start(text)


@pytest.mark.parametrize("text", ["2026-11-21T00", "20261121T0900", "2026-W47-6T09:00", "2026-11-21 09:00"])
def test_the_hint_for_a_time_without_an_offset_works(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_start(text)
    suggested = re.search(r"write (\S+) or", str(refused.value))
    assert suggested is not None
    assert parse_start(suggested[1]) == datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_saved_position_reads_back() -> None:
    position = SavedPosition("t", {0: Offset(12, 3), 10: Offset(4)}, {0: "a", 10: "b"})
    assert SavedPosition.parse(json.dumps({**position.to_dict(), "messages": 7}), source="p.json") == position


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"topic": "t", "next": {"0": "1"}, "table_ids": {}}', '{"topic": "t", "next": {"0": "1:0"}}'],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"p\.json must hold a position .*export"):
        SavedPosition.parse(text, source="p.json")


def test_acknowledgement_knows_its_first_and_last_message() -> None:
    ack = Ack("t", 0, version=7, first_index=2, rows=3)
    assert (ack.first, ack.last) == (Offset(7, 2), Offset(7, 4))


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_start_that_utc_has_no_year_for_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="outside the years 1 to 9999"):
        parse_start(text)
