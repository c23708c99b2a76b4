"""The example's producer: which messages go where, and how they are dated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from brokerless.clock import Clock
from brokerless.errors import ConfigError
from brokerless.examples.timezone import messages as example
from brokerless.examples.timezone.messages import NEW_YORK, PARIS, ZoneMessage, zone_messages

NEW_YORK_BELOW_40 = [2, 9, 10, 12, 13, 15, 17, 18, 21, 25, 29, 30, 31, 33, 36, 38, 39]


class Standing(Clock):
    """A clock that stands still at an instant."""

    def __init__(self, instant: datetime) -> None:
        super().__init__()
        self.us = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    def time_us(self) -> int:
        return self.us


def at(*fields: int) -> Standing:
    return Standing(datetime(*fields, tzinfo=UTC))  # type: ignore[arg-type, misc]


def test_seed_0_gives_the_measured_sequence_and_others_do_not():
    messages = list(zone_messages(40))
    assert [m.message for m in messages] == [str(i) for i in range(40)]
    assert [i for i, m in enumerate(messages) if m.topic == NEW_YORK] == NEW_YORK_BELOW_40
    assert [m.topic for m in zone_messages(40, seed=1)] != [m.topic for m in messages]


def test_dates_are_the_zones_own_with_six_digits_and_an_offset_without_colon():
    messages = list(zone_messages(3, clock=at(2024, 8, 23, 8, 52, 13, 66217)))
    assert messages[0] == ZoneMessage(PARIS, "2024-08-23 10:52:13.066217 +0200", "0")
    assert messages[2] == ZoneMessage(NEW_YORK, "2024-08-23 04:52:13.066217 -0400", "2")
    assert messages[2].row() == {"date": "2024-08-23 04:52:13.066217 -0400", "message": "2"}


@pytest.mark.parametrize(
    ("instant", "date"),
    [
        # The hour that New York has twice in autumn, and the offset that tells them apart.
        ((2024, 11, 3, 5, 30, 0, 1), "2024-11-03 01:30:00.000001 -0400"),
        ((2024, 11, 3, 6, 30, 0, 1), "2024-11-03 01:30:00.000001 -0500"),
        # Winter.
        ((2024, 1, 1, 0, 0, 0, 999999), "2023-12-31 19:00:00.999999 -0500"),
    ],
)
def test_dates_across_the_clock_changes(instant, date):
    assert [m.date for m in zone_messages(3, clock=at(*instant)) if m.topic == NEW_YORK] == [date]


def test_microseconds_survive():
    """A float of epoch seconds would round them away."""
    for micros in (1, 499999, 500001, 999999):
        (message,) = zone_messages(1, clock=at(2026, 11, 21, 9, 0, 0, micros))
        assert message.date.endswith(f".{micros:06d} +0100")


def test_each_message_is_dated_when_it_is_taken():
    clock = at(2024, 8, 23, 8, 0, 0, 0)
    messages = zone_messages(2, clock=clock)
    first = next(messages)
    clock.us += 1_000_000
    assert (first.date[:19], next(messages).date[:19]) == ("2024-08-23 10:00:00", "2024-08-23 10:00:01")


def test_a_machine_without_a_time_zone_database_is_told_what_to_install(monkeypatch):
    def missing(name: str) -> None:
        raise example.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(example, "ZoneInfo", missing)
    with pytest.raises(ConfigError, match=r"America/New_York.*pip install tzdata"):
        next(zone_messages(1))
