"""The state of the inspection of one table, which its steps share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from brokerless.log.entries import ENGINE_KEY, PARTITIONS_KEY
from brokerless.verify.report import TableFinding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from brokerless.clock import Clock
    from brokerless.log.entries import Metadata, Protocol
    from brokerless.store import ObjectInfo, Store
    from brokerless.verify.actions import Actions, DataFile
    from brokerless.verify.report import Kind

    Watch = Callable[[str, int], None]

ENTRY: Final = re.compile(r"(\d{20})\.json")
WINDOW: Final = 64  # entries or objects that are requested in parallel
_NAMED: Final = 5  # the number of versions or paths in a text


@dataclass(slots=True)
class State:
    """The state of the table after the entries so far."""

    complete: bool  # from the beginning, or from a checkpoint, without a gap
    files: dict[str, DataFile] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    txns: dict[str, int] = field(default_factory=dict)
    metadata: Metadata | None = None
    protocol: Protocol | None = None


class Inspection:
    """The inspection of one table: what was found so far."""

    def __init__(self, store: Store, table: str, *, full: bool, watch: Watch, clock: Clock) -> None:
        self.table = table
        self._store, self._table, self._full, self._watch, self._clock = store, table, full, watch, clock
        self._uri = f"{store.uri}/{table}"
        self._findings: list[TableFinding] = []
        self._notes: list[str] = []
        self._state = State(complete=False)
        self._engines: dict[str, list[int]] = {}
        self._head: int | None = None
        self.last_ms: int | None = None
        self._clock_back: list[int] = []
        self._vectors = self._entries = self._compared = 0
        self._rewrites: list[tuple[int, Actions]] = []
        self._same_columns = False  # whether the columns are those of the beginning
        self._lacks = False  # whether it was said that protocol or metadata are missing
        self._has_begun = False  # whether the state was complete at any time

    @property
    def metadata(self) -> Metadata | None:
        """The table's metadata at the end of its log."""
        return self._state.metadata

    @property
    def deleted(self) -> bool:
        """Whether the log ends with the tombstone of a topic."""
        return self._state.metadata is not None and self._state.metadata.deleted

    def _find(self, kind: Kind, text: str, *, version: int | None = None, path: str | None = None) -> None:
        self._findings.append(TableFinding(kind, text, version, path))

    def _list(self) -> tuple[set[str], dict[str, ObjectInfo]]:
        log: set[str] = set()
        objects: dict[str, ObjectInfo] = {}
        skip = len(self._table) + 1
        for count, info in enumerate(self._store.list(self._table), start=1):
            path = info.path[skip:]
            if path.startswith("_delta_log/"):
                log.add(path.removeprefix("_delta_log/"))
            else:
                objects[path] = info
            self._watch("Listing objects", count)
        return log, objects

    def _is_topic(self) -> bool:
        """Whether only this kit's writers may write the table."""
        metadata = self._state.metadata
        if metadata is None or metadata.configuration.get(ENGINE_KEY) == "delta":
            return False
        return PARTITIONS_KEY in metadata.configuration

    def _partitions(self) -> int | None:
        metadata = self._state.metadata
        count = metadata.configuration.get(PARTITIONS_KEY, "") if metadata else ""
        return int(count) if count.isdecimal() else None


def many(count: int, one: str, several: str = "") -> str:
    """Return a count with its noun."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def span(first: int, last: int) -> str:
    """Return a range of entries as the subject of a sentence."""
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"


def some(values: Sequence[object]) -> str:
    """Return the first values as text, and the number of the others."""
    more = f" and {len(values) - _NAMED:,} more" if len(values) > _NAMED else ""
    return ", ".join(map(str, values[:_NAMED])) + more


def short(error: Exception) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
