"""Parse log entries and checkpoints of any Delta table completely; ``log.entries`` parses what this kit needs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from brokerless.columns.records import decode
from brokerless.log.entries import ACTIONS_KEY, NOTHING_NEW_KEY, metadata_of, protocol_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokerless.log.entries import Metadata, Protocol


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that an entry or a checkpoint adds."""

    path: str
    size: int
    rows: int | None
    data_change: bool
    vector: str  # the deletion vector's id; the same path with another id is another file


@dataclass(slots=True)
class Actions:
    """The actions of an entry of any Delta table."""

    timestamp_ms: int | None = None
    engine: str = ""
    operation: str = ""
    drops_rows: bool = False
    nothing_new: bool = False
    adds: list[DataFile] = field(default_factory=list)
    removes: list[tuple[str, str]] = field(default_factory=list)
    txns: list[tuple[str, int]] = field(default_factory=list)
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    _expected: int | None = None

    @classmethod
    def parse(cls, data: bytes) -> Actions:
        """Parse an entry.

        Raises:
            Exception: of many kinds, if the data is not an entry.
        """
        found = cls()
        count = 0
        for line in data.split(b"\n"):
            if line.strip():
                count += 1
                for kind, action in json.loads(line).items():
                    found._add(kind, action)
        if not count or found._expected not in (None, count):
            expected = "" if found._expected is None else f" of {found._expected}"
            raise ValueError(f"it is cut or empty: {len(data)} bytes have {count} actions{expected}")
        return found

    @property
    def rewritten(self) -> bool:
        """Whether the entry deletes or updates rows in place, or restores old ones, as ``Entry.rewritten``."""
        adds_rows = any(file.data_change for file in self.adds)
        return adds_rows and not self.nothing_new and (self.drops_rows or self.operation == "RESTORE")

    @property
    def added_and_removed(self) -> list[str]:
        """The files that the entry both adds and removes, so that the result depends on the reader."""
        removed = set(self.removes)
        return [file.path for file in self.adds if (file.path, file.vector) in removed]

    def _add(self, kind: str, action: Mapping[str, Any]) -> None:
        if kind == "add":
            self.adds.append(_file(action))
        elif kind == "remove":
            self.removes.append((unquote(action["path"]), _vector(action)))
            self.drops_rows |= bool(action.get("dataChange", True))
        elif kind == "txn":
            self.txns.append((str(action["appId"]), int(action["version"])))
        elif kind == "metaData":
            self.metadata = metadata_of(action)
        elif kind == "protocol":
            self.protocol = protocol_of(action)
        elif kind == "commitInfo":
            stamp = action.get("timestamp")
            self.timestamp_ms = None if stamp is None else int(stamp)
            self.engine = str(action.get("engineInfo") or "")
            self.operation = str(action.get("operation") or "")
            self.nothing_new = action.get(NOTHING_NEW_KEY) is True
            count = action.get(ACTIONS_KEY)
            self._expected = None if count is None else int(count)


def _file(action: Mapping[str, Any]) -> DataFile:
    stats = json.loads(action.get("stats") or "{}") or {}
    rows = stats.get("numRecords")
    return DataFile(
        unquote(action["path"]),
        int(action["size"]),
        None if rows is None else int(rows),
        bool(action["dataChange"]),
        _vector(action),
    )


def files_of(checkpoint: bytes) -> list[DataFile]:
    """Return the files that a checkpoint in Parquet lists."""
    rows = decode(checkpoint)
    if "add" not in rows.column_names:
        return []
    return [_file({**row, "dataChange": True}) for row in rows.column("add").to_pylist() if row is not None]


def _vector(action: Mapping[str, Any]) -> str:
    vector = action.get("deletionVector") or {}
    return "".join(str(vector.get(name, "")) for name in ("storageType", "pathOrInlineDv", "offset"))
