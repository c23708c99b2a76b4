"""Offsets of messages, start positions of readers, and acknowledgements.

An offset is ``(version, index)``: the commit, and the row's position within that commit's added files, in log order.
It is printed as ``12:3``. Offsets order the messages of one partition; between partitions they are not comparable.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_OFFSET: Final = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """The position of one message in its partition."""

    version: int
    index: int = 0

    def __str__(self) -> str:
        return f"{self.version}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Offset:
        """Parse an offset such as ``12:3``.

        Raises:
            ConfigError: the text is not an offset.
        """
        match = _OFFSET.fullmatch(text)
        if match is None:
            raise ConfigError(f"{text!r} is not an offset; write VERSION:INDEX, for example 12:3.")
        return cls(int(match[1]), int(match[2]))


Start = str | Offset | datetime
"""A position at which a reader begins or ends: an offset, a time with a zone, or text (``parse_start``)."""

START_HELP: Final = (
    "beginning (or earliest), latest, an offset such as 12:3 (for all partitions), a time with a UTC offset such as "
    "2026-11-21T09:00:00+00:00, a date (midnight UTC), today, yesterday, or how long ago: 30m, 1h, 7d"
)
"""What ``parse_start`` accepts, for the help of commands."""

_AGO: Final = re.compile(r"([0-9]{1,9})([smhdw])")
_SHIFT: Final = re.compile(r"[+-][0-9]{1,18}")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DAYS: Final = {"today": 0, "yesterday": 1}


@dataclass(frozen=True, slots=True)
class Shift:
    """A position relative to the committed one: so many messages later, or earlier if negative."""

    messages: int


def parse_start(text: str, clock: Clock = SYSTEM) -> Literal["beginning", "latest"] | Offset | datetime:
    """Parse a position, in Python as in the shell.

    Accepted are ``beginning`` or ``earliest``, ``latest``, an offset such as ``12:3``, an ISO 8601 time with a UTC
    offset, a date (midnight UTC), ``today``, ``yesterday``, or how long ago: ``90s``, ``30m``, ``1h``, ``7d``, ``2w``.

    Raises:
        ConfigError: the text is none of these, or a time without a UTC offset.
    """
    if text in ("beginning", "earliest"):
        return "beginning"
    if text == "latest":
        return "latest"
    if _OFFSET.fullmatch(text):
        return Offset.parse(text)
    now = datetime.fromtimestamp(clock.time_us() / 1e6, UTC)
    try:
        if ago := _AGO.fullmatch(text):
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        if text in _DAYS:
            return datetime.combine(now.date() - timedelta(days=_DAYS[text]), time(), UTC)
        instant = _instant(text)
        return instant.astimezone(UTC)
    except OverflowError:
        raise ConfigError(
            f"The time {text!r} is outside the years 1 to 9999 in UTC; use beginning or latest."
        ) from None


def _instant(text: str) -> datetime:
    with contextlib.suppress(ValueError):
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text[:100]!r} is not a position; use {START_HELP}.") from None
    if instant.tzinfo is None:
        in_utc = instant.replace(tzinfo=UTC).isoformat()
        raise ConfigError(f"The time {text!r} has no UTC offset; write {in_utc} or another UTC offset.")
    return instant


def parse_reset(text: str, clock: Clock = SYSTEM) -> Start | Shift:
    """Parse where a group is reset to: a position (``parse_start``), or ``+100`` and ``-100`` messages.

    Raises:
        ConfigError: the text is neither.
    """
    return Shift(int(text)) if _SHIFT.fullmatch(text) else parse_start(text, clock)


@dataclass(frozen=True, slots=True)
class SavedPosition:
    """The position from which a reader of one topic continues, with the ids of the tables that it refers to.

    Attributes:
        next: the offset to continue from, by partition.
        table_ids: the id of the table that each offset belongs to, by partition.
    """

    topic: str
    next: Mapping[int, Offset]
    table_ids: Mapping[int, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the position as a dictionary for JSON; ``parse`` reads it."""
        return {
            "topic": self.topic,
            "next": {str(number): str(offset) for number, offset in sorted(self.next.items())},
            "table_ids": {str(number): table_id for number, table_id in sorted(self.table_ids.items())},
        }

    @classmethod
    def parse(cls, text: str, *, source: str) -> SavedPosition:
        """Parse a position from JSON; unknown keys are ignored.

        Args:
            text: the JSON.
            source: the name of the input in errors.

        Raises:
            ConfigError: the text is not a position.
        """
        try:
            saved = json.loads(text)
            following = {int(number): Offset.parse(offset) for number, offset in saved["next"].items()}
            table_ids = {int(number): str(table_id) for number, table_id in saved["table_ids"].items()}
            return cls(str(saved["topic"]), following, table_ids)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError):
            raise ConfigError(
                f"{source} must hold a position with topic, next and table_ids; save the output of "
                "'brokerless export ... --json' in it."
            ) from None


@dataclass(frozen=True, slots=True)
class Ack:
    """An acknowledgement: these messages are committed, at these offsets of this partition.

    Attributes:
        version: the version of the commit that holds them.
        first_index: the first message's index in that commit; the others follow it.
        rows: the number of messages.
        duplicate: True if an earlier attempt had already committed them and nothing was written now. If log clean-up
            has removed that entry, the offsets are unknown and ``version`` is -1.
    """

    topic: str
    partition: int
    version: int
    first_index: int
    rows: int
    duplicate: bool = False

    @property
    def first(self) -> Offset:
        """Return the first message's offset."""
        return Offset(self.version, self.first_index)

    @property
    def last(self) -> Offset:
        """Return the last message's offset."""
        return Offset(self.version, self.first_index + self.rows - 1)
