"""Offsets of messages, start positions of readers, and acknowledgements.

An offset is ``(version, index)``: the commit, and the row's position within that commit's added files, in log order.
It is printed as ``12:3``. Offsets order the messages of one partition; between partitions they are not comparable.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

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


Start = Literal["beginning", "latest"] | Offset | datetime
"""The position at which a reader begins: the oldest retained message, new messages, an offset (included) or a time."""


def parse_start(text: str) -> Start:
    """Parse ``beginning``, ``latest``, an offset such as ``12:3``, or an ISO 8601 time with a UTC offset.

    Raises:
        ConfigError: the text is none of these, or a time without a UTC offset.
    """
    if text == "beginning":
        return "beginning"
    if text == "latest":
        return "latest"
    if _OFFSET.fullmatch(text):
        return Offset.parse(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a start position; use beginning, latest, an offset such as 12:3, "
            "or a time such as 2026-11-21T09:00:00+00:00."
        ) from None
    if instant.tzinfo is None:
        # Not the text with "+00:00" appended: for a date alone, that would not be a valid time.
        in_utc = instant.replace(tzinfo=UTC).isoformat()
        raise ConfigError(f"The time {text!r} has no UTC offset; write {in_utc} or another UTC offset.")
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise ConfigError(
            f"The time {text!r} is outside the years 1 to 9999 in UTC; use beginning or latest."
        ) from None


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
