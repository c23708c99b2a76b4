"""What a table's log says, replayed: the state that entries and checkpoints add up to. Nothing here writes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from brokerless.columns import records
from brokerless.errors import StoreError
from brokerless.log.entries import Add, Entry, Metadata, Protocol, metadata_of, protocol_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerless.store import Store

_LOG_FILE: Final = re.compile(r"(\d{20})\.(json|checkpoint\..*)", re.ASCII)
_PART: Final = re.compile(r"\.checkpoint\.(\d{10})\.(\d{10})\.parquet\Z")  # part o of p


@dataclass(slots=True)
class TableState:
    """What a writer must know of a table: everything that entries up to ``version`` say, but for its files."""

    version: int
    metadata: Metadata
    protocol: Protocol
    txns: dict[str, int]
    timestamp_ms: int = 0
    files: dict[str, Add] = field(default_factory=dict)
    """Live files; filled only when asked for."""
    tombstones: dict[str, int] = field(default_factory=dict)
    """Removed files and when (epoch milliseconds), as far as the log still knows them; filled with ``files``."""
    digest: int | None = None
    """Of the last entry (``Entry.digest``); None if only a checkpoint tells of it."""
    total: int | None = None
    """How many messages the table ever had (``Entry.total``); None if that is not known."""
    damage: StoreError | None = None
    """Why the state may lack something: the first entry that is missing or cannot be read. Good for reading only."""


def replayed(state: TableState | None, entry: Entry, *, uri: str, with_files: bool) -> TableState:
    """The state after an entry, without any check of whether this kit can handle it. ``state`` itself is changed.

    Raises:
        StoreError: the first entry has no metadata.
    """
    metadata = entry.metadata or (state.metadata if state else None)
    protocol = entry.protocol or (state.protocol if state else None)
    if metadata is None or protocol is None:
        raise StoreError(f"{uri}: entry {entry.version} comes before any metadata; the log is damaged.")
    if state is None:
        state = TableState(entry.version, metadata, protocol, {}, total=0 if entry.version == 0 else None)
    state.total = entry.total_after(state.total if state.metadata.id == metadata.id else 0)
    state.version, state.metadata, state.protocol = entry.version, metadata, protocol
    state.timestamp_ms, state.digest = max(state.timestamp_ms, entry.timestamp_ms), entry.digest
    state.txns.update(entry.txns)
    if with_files:
        state.files.update({add.path: add for add in entry.adds})
        for path in entry.removes:
            state.files.pop(path, None)
            state.tombstones[path] = entry.timestamp_ms
        for add in entry.adds:
            state.tombstones.pop(add.path, None)
    return state


def checkpoint_hint(store: Store, table: str) -> int | None:
    """The version that ``_last_checkpoint`` names, or None without it."""
    try:
        version = json.loads(store.get(f"{table}/_delta_log/_last_checkpoint"))["version"]
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return version if isinstance(version, int) and 0 <= version < 2**63 else None


@dataclass(frozen=True, slots=True)
class Listed:
    """The versions of entries and of checkpoints that a listing of a log shows, ascending."""

    entries: tuple[int, ...]
    checkpoints: tuple[int, ...]


PAGE: Final = 1000
"""What one LIST answers."""


def listed(store: Store, table: str, *, after: str | None = None, most: int | None = None) -> Listed:
    """What the log's folder holds behind the name ``after``, or all of it. A LIST for each thousand objects.

    Args:
        store: of the table.
        table: its folder.
        after: a path in the log's folder.
        most: so many objects are enough. Object stores list by name, which is by version; a local folder comes in any
            order, so there it is always all of them.
    """
    entries: set[int] = set()
    checkpoints: set[int] = set()
    found = store.list(f"{table}/_delta_log", after=after)
    for info in found if most is None or store.uri.startswith("file:") else islice(found, most):
        name = info.path.rpartition("/")[2]
        if (match := _LOG_FILE.fullmatch(name)) is not None:
            (entries if match[2] == "json" else checkpoints).add(int(match[1]))
    return Listed(tuple(sorted(entries)), tuple(sorted(checkpoints)))


def read_checkpoint(store: Store, table: str, version: int, *, with_files: bool) -> TableState | None:
    """The state in a classic checkpoint, of one part or several (protocol, "Checkpoints"); None if it is not there.

    Raises:
        StoreError: it is damaged, of version 2, or removed meanwhile.
    """
    prefix = f"{table}/_delta_log/{version:020d}.checkpoint"
    try:
        parts = [store.get(f"{prefix}.parquet")]
    except FileNotFoundError:
        names = [i.path for i in store.list(f"{table}/_delta_log") if i.path.startswith(prefix)]
        try:
            parts = [store.get(name) for name in _whole(names)]
        except FileNotFoundError as error:
            raise StoreError(
                f"{store.uri}/{error} was listed and was not there: clean-up has just removed it. Try again."
            ) from None
    if not parts:
        return None
    state = _CheckpointRows()
    try:
        for data in parts:
            rows = records.decode(data)
            for kind in ("metaData", "protocol", "txn", *(("add", "remove") if with_files else ())):
                # By chunks: most rows of a column are null, and a list of them all may be larger than the checkpoint.
                for chunk in rows.column(kind).chunks if kind in rows.column_names else ():
                    for row in chunk.to_pylist():
                        if row is not None:
                            state.take(kind, row)
        metadata, protocol = metadata_of(state.single["metaData"]), protocol_of(state.single["protocol"])
    except KeyError as error:
        raise StoreError(
            f"{store.uri}/{table}: checkpoint {version} lacks {error}; it is damaged or of version 2."
        ) from None
    except (ValueError, TypeError, AttributeError, StoreError) as error:
        raise StoreError(
            f"{store.uri}/{table}: checkpoint {version} cannot be read ({str(error)[:300]}); it is damaged."
        ) from None
    return TableState(version, metadata, protocol, state.txns, files=state.files, tombstones=state.tombstones)


def _whole(names: Sequence[str]) -> list[str]:
    """The parts of one checkpoint, if they are all there: its writer may have died between two of them."""
    parts = [(name, match) for name in sorted(names) if (match := _PART.search(name))]
    if not parts:
        return list(names)  # of version 2: named by a UUID
    for total in {match[2] for _, match in parts}:
        found = [name for name, match in parts if match[2] == total]
        if len(found) == int(total):
            return found
    return []


@dataclass(slots=True)
class _CheckpointRows:
    """What the rows of a checkpoint add up to."""

    single: dict[str, Any] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)
    files: dict[str, Add] = field(default_factory=dict)
    tombstones: dict[str, int] = field(default_factory=dict)

    def take(self, kind: str, row: dict[str, Any]) -> None:
        if kind == "txn":
            # Not as they come: a null here would be met much later, by a writer that compares it.
            self.txns[_text(row["appId"])] = int(row["version"])
        elif kind == "add":
            path = unquote(_text(row["path"]))
            self.files[path] = Add(path, int(row["size"]), None, int(row["modificationTime"] or 0))
        elif kind == "remove":
            self.tombstones[unquote(_text(row["path"]))] = int(row.get("deletionTimestamp") or 0)
        else:
            self.single[kind] = row


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
