"""The example's messages: numbered, each with a date in the time zone of a source that a seeded generator chooses."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import ConfigError
from brokerless.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Iterator

NEW_YORK: Final = "timezone1"
PARIS: Final = "timezone2"
UNIFIED: Final = "timezone_unified"

ZONES: Final = {NEW_YORK: "America/New_York", PARIS: "Europe/Paris"}

INPUT_SCHEMA: Final = "date string, message string"
UNIFIED_SCHEMA: Final = "timestamp double, message string"

DATE_FORMAT: Final = "%Y-%m-%d %H:%M:%S.%f %z"


@dataclass(frozen=True, slots=True)
class ZoneMessage:
    """One message of the example, with its topic."""

    topic: str
    date: str
    message: str

    def row(self) -> dict[str, str]:
        """Return the message's columns."""
        return {"date": self.date, "message": self.message}


def zone_messages(count: int, *, seed: int = 0, clock: Clock = SYSTEM) -> Iterator[ZoneMessage]:
    """Yield messages number 0 to ``count - 1``, each with the time at which it is taken from the iterator.

    With seed 0, numbers 2 and 9 of the first ten go to New York and the others to Paris. The choice between the two
    values True and False is part of the contract: comparing a random number with one half gives another sequence.

    Raises:
        ConfigError: this machine has no time-zone database.
    """
    rng = random.Random(seed)  # noqa: S311  # a repeatable example, not a secret
    zones = {topic: _zone(name) for topic, name in ZONES.items()}
    for number in range(count):
        topic = NEW_YORK if rng.choice([True, False]) else PARIS
        yield ZoneMessage(topic, _date(clock.time_us(), zones[topic]), str(number))


def input_schema() -> Schema:
    """Return the columns of both inputs."""
    return Schema.parse(INPUT_SCHEMA)


def unified_schema() -> Schema:
    """Return the columns of the output: epoch milliseconds, and the unchanged message."""
    return Schema.parse(UNIFIED_SCHEMA)


def _date(time_us: int, zone: ZoneInfo) -> str:
    # Not fromtimestamp(time_us / 1e6): a float cannot represent today's date in microseconds.
    seconds, micros = divmod(time_us, 1_000_000)
    instant = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)
    return instant.astimezone(zone).strftime(DATE_FORMAT)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except ZoneInfoNotFoundError:
        raise ConfigError(
            f"This machine has no time-zone database, so {name!r} is unknown. Install one: pip install tzdata."
        ) from None
