"""Places in a topic: offsets, the start of a reader, acknowledgements.

An offset is ``(version, index)``: the commit, and the row's position within that commit's added files, in log order.
It is printed ``12:3``. Offsets order the messages of one partition; between partitions they mean nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from brokerless.errors import ConfigError

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
            msg = f"{text!r} is not an offset; write VERSION:INDEX, for example 12:3."
            raise ConfigError(msg)
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
        msg = (
            f"{text!r} is no place to start; use beginning, latest, an offset such as 12:3, "
            "or a time such as 2026-11-21T09:00:00+00:00."
        )
        raise ConfigError(msg) from None
    if instant.tzinfo is None:
        msg = f"The time {text!r} has no UTC offset; write {text}+00:00 or the offset you mean."
        raise ConfigError(msg)
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        msg = f"The time {text!r} is, in UTC, outside the years 1 to 9999; start at the beginning or latest."
        raise ConfigError(msg) from None


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
