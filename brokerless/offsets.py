"""Places in a topic: offsets, the start of a reader, acknowledgements.

An offset is ``(version, index)``: the commit, and the row's position within that commit's added files, in log order.
It is printed ``12:3``. Offsets order the messages of one partition; between partitions they mean nothing.
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
    """One message's place in its partition."""

    version: int
    index: int = 0

    def __str__(self) -> str:
        return f"{self.version}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Offset:
        """Reads ``12:3``.

        Raises:
            ConfigError: the text is not an offset.
        """
        match = _OFFSET.fullmatch(text)
        if match is None:
            raise ConfigError(f"{text!r} is not an offset; write VERSION:INDEX, for example 12:3.")
        return cls(int(match[1]), int(match[2]))


Start = Literal["beginning", "latest"] | Offset | datetime
"""Where a reader begins: the oldest retained message, only new ones, an offset (included), or an instant."""


def parse_start(text: str) -> Start:
    """Reads ``beginning``, ``latest``, an offset ``12:3`` or an ISO 8601 time with a UTC offset.

    Raises:
        ConfigError: none of these, or a time without an offset (which instant it means would be a guess).
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
            f"{text!r} is no place to start; use beginning, latest, an offset such as 12:3, "
            "or a time such as 2026-11-21T09:00:00+00:00."
        ) from None
    if instant.tzinfo is None:
        # Not the text with an offset behind it, which for a date alone is no time.
        in_utc = instant.replace(tzinfo=UTC).isoformat()
        raise ConfigError(f"The time {text!r} has no UTC offset; write {in_utc} or the offset you mean.")
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise ConfigError(
            f"The time {text!r} is, in UTC, outside the years 1 to 9999; start at the beginning or latest."
        ) from None


@dataclass(frozen=True, slots=True)
class SavedPosition:
    """Where a reader of one topic goes on, and in which tables: an offset means nothing in another table.

    Attributes:
        next: the offset to go on from, by partition.
        table_ids: of the table that each of these offsets belongs to, by partition.
    """

    topic: str
    next: Mapping[int, Offset]
    table_ids: Mapping[int, str]

    def to_dict(self) -> dict[str, Any]:
        """What ``parse`` reads, for JSON."""
        return {
            "topic": self.topic,
            "next": {str(number): str(offset) for number, offset in sorted(self.next.items())},
            "table_ids": {str(number): table_id for number, table_id in sorted(self.table_ids.items())},
        }

    @classmethod
    def parse(cls, text: str, *, source: str) -> SavedPosition:
        """Reads the JSON of a position, whatever else is in it.

        Args:
            text: the JSON.
            source: what to call it in errors.

        Raises:
            ConfigError: it is not a position.
        """
        try:
            saved = json.loads(text)
            following = {int(number): Offset.parse(offset) for number, offset in saved["next"].items()}
            table_ids = {int(number): str(table_id) for number, table_id in saved["table_ids"].items()}
            return cls(str(saved["topic"]), following, table_ids)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError):
            raise ConfigError(
                f"{source} does not hold a position; write what 'brokerless export ... --json' prints into it, which "
                "has topic, next and table_ids."
            ) from None


@dataclass(frozen=True, slots=True)
class Ack:
    """A promise: these messages are committed, at these offsets of this partition.

    Attributes:
        version: the commit that holds them.
        first_index: the first message's index in that commit; the others follow it.
        rows: how many messages.
        duplicate: True if an earlier attempt had committed them already and nothing was written now. The offsets of
            such messages are not known if log clean-up has removed their entry; ``version`` is -1 then.
    """

    topic: str
    partition: int
    version: int
    first_index: int
    rows: int
    duplicate: bool = False

    @property
    def first(self) -> Offset:
        """The first message's offset."""
        return Offset(self.version, self.first_index)

    @property
    def last(self) -> Offset:
        """The last message's offset."""
        return Offset(self.version, self.first_index + self.rows - 1)
