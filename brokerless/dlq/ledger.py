"""The record of what was redriven: one object for each dead-letter topic, changed by compare-and-swap only.

While messages are on their way it also holds a plan: positions, edited rows and target tables, under a number that
grows. The plan is noted first; then each target partition gets its messages in one commit that carries the number as a
txn. Whoever comes next sends the last plan again before making another, and a partition that has the number takes
nothing. So a crash at any step neither loses nor repeats a message.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from brokerless.columns.records import json_value
from brokerless.errors import ConfigError, StoreUnavailable
from brokerless.offsets import Offset

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from brokerless.store import Store, Tag

LEDGER: Final = "_brokerless/redrives"
"""The folder below the root with the ledgers."""

Range = tuple[Offset, Offset]
"""Positions from the first one up to the second one, which is not included."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is on its way.

    Attributes:
        ranges: the positions of its dead letters.
        edited: rows to send instead of them, by position; empty if the dead letters themselves are sent.
        tables: the ids of the target tables.
    """

    ranges: tuple[Range, ...]
    edited: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was redriven.

    Attributes:
        number: that of the last plan.
        sent: the positions that were redriven, with those of the plan: disjoint, in order.
        plan: what may not have arrived yet.
    """

    number: int = 0
    sent: tuple[Range, ...] = ()
    plan: Plan | None = None

    def has(self, position: Offset) -> bool:
        """Return whether the dead letter at this position was redriven."""
        at = bisect_right(self.sent, position, key=lambda one: one[0]) - 1
        return at >= 0 and position < self.sent[at][1]

    def to_bytes(self) -> bytes:
        """Return the ledger as JSON; ``parse`` reads it."""
        value: dict[str, Any] = {"number": self.number, "sent": _texts(self.sent)}
        if self.plan is not None:
            plan = self.plan
            value["plan"] = {"ranges": _texts(plan.ranges), "edited": plan.edited, "tables": plan.tables}
        return json.dumps(value, default=json_value).encode()

    @classmethod
    def parse(cls, data: bytes, *, path: str) -> Ledger:
        """Parse a ledger.

        Raises:
            ConfigError: it is none.
        """
        try:
            value = json.loads(data)
            plan = value.get("plan")
            if plan is not None:
                plan = Plan(_ranges(plan["ranges"]), dict(plan["edited"]), dict(plan["tables"]))
            return cls(int(value["number"]), _ranges(value["sent"]), plan)
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
            raise ConfigError(
                f"{path} is not the record of redriven dead letters ({type(error).__name__}). Restore it; without it "
                "nobody knows which of them were sent again."
            ) from None


def _texts(ranges: Iterable[Range]) -> list[list[str]]:
    return [[str(first), str(end)] for first, end in ranges]


def _ranges(texts: Iterable[Sequence[str]]) -> tuple[Range, ...]:
    return tuple((Offset.parse(first), Offset.parse(end)) for first, end in texts)


def union(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the same positions as disjoint ranges in order."""
    found: list[Range] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return tuple(found)


class LedgerObject:
    """The ledger of one dead-letter topic in the store."""

    def __init__(self, store: Store, topic: str, table_id: str) -> None:
        self.path = f"{LEDGER}/{topic}/{table_id}.json"
        self._topic = topic
        self._store = store

    def read(self) -> tuple[Ledger, Tag | None]:
        """Return the ledger and its tag; None if there is none yet.

        Raises:
            ConfigError, StoreError: it cannot be read.
        """
        try:
            data, tag = self._store.get_tagged(self.path)
        except FileNotFoundError:
            return Ledger(), None
        return Ledger.parse(data, path=f"{self._store.uri}/{self.path}"), tag

    def write(self, ledger: Ledger, tag: Tag | None) -> Tag | None:
        """Replace the ledger that has this tag; return the new tag.

        Raises:
            StoreUnavailable: somebody else has changed it, or the store gave no clear answer.
        """
        data = ledger.to_bytes()
        outcome, written = self._store.swap(self.path, data, tag)
        if outcome == "created":
            return written
        found, written = self.read()
        # An answer may be lost, and the number makes each plan another one. Bytes: what was read is JSON by now.
        if found.to_bytes() == data:
            return written
        raise StoreUnavailable(
            f"Another redrive of {self._topic!r} is under way, or the store gave no clear answer. Try again: nothing "
            "is lost or sent twice."
        )
