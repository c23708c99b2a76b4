"""Entries of a Delta log: parsing and building ``_delta_log/<version>.json``, one action a line. No I/O.

The source of the formats and rules is the Delta transaction log protocol (PROTOCOL.md of delta-io/delta), sections
"Actions" and "Requirements for Writers".
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from brokerless.errors import LogDamaged, UnsupportedTable
from brokerless.schema import MAX_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DELETED_KEY: Final = "brokerless.deleted"
FIRST_VERSION_KEY: Final = "brokerless.firstVersion"
PARTITIONS_KEY: Final = "brokerless.partitions"
ENGINE_KEY: Final = "brokerless.engine"

ACTIONS_KEY: Final = "actions"
"""In ``commitInfo``, the first line: how many actions the entry holds. One that was cut at the end of a line would
otherwise read as a commit with fewer files."""

TABLE_KEY: Final = "tableId"
"""In ``commitInfo``: the table that the writer had opened. A table that was removed and made again by hand has another,
and its entries must not be taken for those that follow in the old one."""

START_TXN: Final = "brokerless.start"
"""The application id whose version is the first entry that retention has left. A txn, because every checkpoint keeps
it, and no writer of another engine is disturbed as by a change of the metadata."""

RETENTION_KEY: Final = "brokerless.retentionMs"
RETENTION_BYTES_KEY: Final = "brokerless.retentionBytes"
RETENTION_READ_KEY: Final = "brokerless.retentionUntilRead"
COMPACT_BY_KEY: Final = "brokerless.compactBy"
RETENTION_KEYS: Final = (RETENTION_KEY, RETENTION_BYTES_KEY, RETENTION_READ_KEY)
LIMIT_KEYS: Final = (*RETENTION_KEYS, COMPACT_BY_KEY)
"""What a topic need not keep, as properties of its tables; ``brokerless.alter`` has their meaning."""

NOTHING_NEW_KEY: Final = "noNewMessages"
"""In ``commitInfo``: the files that the entry adds hold only messages that were delivered before. So retention,
compaction by key and erasure change the rows of the table, and no reader of the log sees a message again."""

TOTAL_KEY: Final = "totalMessages"
"""In ``commitInfo``: how many messages the table ever had with this entry; absent if its writer does not know."""

WRITER_DIGITS: Final = 8

# Out of the table (absolute, ".."), or no key that the store's client takes (".", empty parts, control characters).
_UNSAFE_PATH: Final = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)|[\x00-\x1f\x7f]")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")

# Features that a table of reader version 3 / writer version 7 may list and that ask nothing of an appender.
_HARMLESS: Final = frozenset({"appendOnly", "invariants"})
# What a writer version below 7 stands for (protocol, "Writer Version Requirements").
_WRITER_VERSIONS: Final = {
    3: "checkConstraints",
    4: "changeDataFeed, generatedColumns",
    5: "columnMapping",
    6: "identityColumns",
}


@dataclass(frozen=True, slots=True)
class Add:
    """A data file that a commit adds. ``path`` is decoded and relative to the table."""

    path: str
    size: int
    rows: int | None
    modified_ms: int
    data_change: bool = True


@dataclass(frozen=True, slots=True)
class Metadata:
    """A table's ``metaData`` action."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    created_ms: int | None = None

    @property
    def deleted(self) -> bool:
        """True if this is the tombstone of a deleted topic."""
        return self.configuration.get(DELETED_KEY) == "true"

    @property
    def first_version(self) -> int:
        """The entry with which this table id begins: 0, or later if the topic was deleted and created again."""
        return int(self.configuration.get(FIRST_VERSION_KEY, "0"))


@dataclass(frozen=True, slots=True)
class Protocol:
    """A table's ``protocol`` action."""

    reader: int
    writer: int
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One commit.

    Attributes:
        timestamp_ms: the committing writer's clock; writers of this kit never let it go back within a table.
        commit_id: ``commitInfo.txnId``; None if the writer gave none.
        adds: in log order, rewrites (``dataChange`` false) included.
        removes: decoded paths.
        txns: application id -> version.
        rewritten: whether it deletes or updates rows in place, or restores old ones: some of the rows that it adds
            were delivered before, and nothing tells which.
        table_id: the table that its writer meant; None if the writer gave none.
        digest: of its bytes: whether an entry is still the same one.
        nothing_new: whether what it adds was all delivered before (``NOTHING_NEW_KEY``).
        total: how many messages the table ever had with this entry; None if its writer did not know.
    """

    version: int
    timestamp_ms: int
    commit_id: str | None
    operation: str
    adds: tuple[Add, ...]
    removes: tuple[str, ...]
    txns: Mapping[str, int]
    metadata: Metadata | None
    protocol: Protocol | None
    rewritten: bool = False
    table_id: str | None = None
    digest: int = 0
    nothing_new: bool = False
    total: int | None = None

    @property
    def writer(self) -> str | None:
        """Which handle of a log wrote it: the commit ids of one handle begin alike."""
        return None if self.commit_id is None else self.commit_id[:WRITER_DIGITS]

    @property
    def messages(self) -> tuple[Add, ...]:
        """The added files that hold new messages: rewrites left out, one path once."""
        if self.nothing_new:
            return ()
        return tuple({add.path: add for add in self.adds if add.data_change}.values())

    @property
    def rows(self) -> int | None:
        """How many messages it adds; None if a writer did not say."""
        return rows_in(self.messages)

    def total_after(self, before: int | None) -> int | None:
        """How many messages the table ever had with this entry, if it had so many before; None if that is not known."""
        if self.total is not None:
            return self.total
        return None if before is None or self.rows is None else before + self.rows


def parse_entry(version: int, data: bytes, *, table: str) -> Entry:
    """Reads an entry.

    Raises:
        LogDamaged: bytes that are no log entry: none at all, cut (entries of this kit say how many actions they hold),
            or a foreign file.
        UnsupportedTable: deletion vectors, or data files outside the table's folder.
    """
    timestamp, commit_id, operation, table_id, total = 0, None, "", None, None
    count = 0
    expected: int | None = None
    drops_rows = nothing_new = False
    adds: list[Add] = []
    removes: list[str] = []
    txns: dict[str, int] = {}
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    try:
        # Not splitlines(): it also cuts at U+2028 and the like, which JSON text may hold as they are.
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            count += 1
            for kind, action in json.loads(line).items():
                if kind == "add":
                    adds.append(_add(action, table))
                elif kind == "remove":
                    removes.append(unquote(action["path"]))
                    drops_rows |= bool(action.get("dataChange", True))
                elif kind == "txn":
                    txns[str(action["appId"])] = _int64(action["version"])
                elif kind == "metaData":
                    metadata = metadata_of(action)
                elif kind == "protocol":
                    protocol = protocol_of(action)
                elif kind == "commitInfo":
                    timestamp = _int64(action.get("timestamp") or 0)
                    commit_id = None if action.get("txnId") is None else str(action["txnId"])
                    operation = str(action.get("operation", ""))
                    table_id = None if action.get(TABLE_KEY) is None else str(action[TABLE_KEY])
                    nothing_new = action.get(NOTHING_NEW_KEY) is True
                    total = None if (said := action.get(TOTAL_KEY)) is None else _int64(said, least=0)
                    expected = None if (known := action.get(ACTIONS_KEY)) is None else _int64(known)
        if not count or expected not in (None, count):
            raise ValueError(f"{len(data)} bytes hold {count} actions{'' if expected is None else f' of {expected}'}")
    except UnsupportedTable:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise LogDamaged(
            f"Entry {version} of the log of {table} cannot be read ({type(error).__name__}: {str(error)[:200]}); "
            "it is truncated or was not written by a Delta writer. Look at it before anything writes to the table.",
            version=version,
        ) from error
    adds_rows = any(add.data_change for add in adds)
    return Entry(
        version,
        timestamp,
        commit_id,
        operation,
        tuple(adds),
        tuple(removes),
        txns,
        metadata,
        protocol,
        rewritten=adds_rows and not nothing_new and (drops_rows or operation == "RESTORE"),
        nothing_new=nothing_new,
        table_id=table_id,
        digest=digest_of(data),
        total=total,
    )


def rows_in(files: Iterable[Add]) -> int | None:
    """Return how many rows these files have; None if a writer did not say."""
    rows = 0
    for file in files:
        if file.rows is None:
            return None
        rows += file.rows
    return rows


def digest_of(data: bytes) -> int:
    """A checksum of an entry's bytes, by which a handle knows the entry again."""
    return zlib.crc32(data)


def is_inside(path: str) -> bool:
    """Whether a decoded path of an ``add``, which whoever wrote the entry chose, stays in the table's folder."""
    return "://" not in path and not _UNSAFE_PATH.search(path)


def _add(action: Mapping[str, Any], table: str) -> Add:
    path = unquote(action["path"])
    if not is_inside(path):
        raise UnsupportedTable(f"Table {table} refers to the file {path!r} outside of itself (a shallow clone?).")
    if action.get("deletionVector"):
        raise UnsupportedTable(f"Table {table} uses the Delta feature deletionVectors, which the log does not read.")
    stats = action.get("stats")
    rows = json.loads(stats).get("numRecords") if stats else None
    return Add(
        path,
        _int64(action["size"], least=0),
        None if rows is None else _int64(rows, least=0),
        _int64(action.get("modificationTime") or 0),
        bool(action["dataChange"]),
    )


def _int64(value: Any, *, least: int = -(2**63)) -> int:
    """A number as the format has it; Python and JSON know larger ones, which nobody else could read after us."""
    number = int(value)
    if not least <= number < 2**63:
        raise ValueError(f"the number {str(value)[:40]} is out of range")
    return number


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list | tuple | None) or not all(isinstance(value, str) for value in values or ()):
        raise ValueError("a list of names is none")
    return tuple(values or ())


def metadata_of(action: Mapping[str, Any]) -> Metadata:
    """A ``metaData`` action, from JSON or from a checkpoint's row (where maps may be lists of pairs).

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none.
    """
    configuration = dict(action.get("configuration") or {})
    for name, least, most in ((PARTITIONS_KEY, 1, MAX_PARTITIONS), (FIRST_VERSION_KEY, 0, 2**63 - 1)):
        value = configuration.get(name, str(least))
        if not _NUMBER.fullmatch(value) or not least <= int(value) <= most:
            raise ValueError(f"the table's property {name} is {value[:40]!r}, not a number from {least} to {most}")
    _texts([*configuration, *configuration.values()])
    created = action.get("createdTime")
    return Metadata(
        id=_texts([action["id"]])[0],
        schema_string=_texts([action["schemaString"]])[0],
        partition_columns=_texts(action.get("partitionColumns")),
        configuration=configuration,
        created_ms=None if created is None else _int64(created),
    )


def protocol_of(action: Mapping[str, Any]) -> Protocol:
    """A ``protocol`` action, from JSON or from a checkpoint's row.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none.
    """
    return Protocol(
        _int64(action["minReaderVersion"], least=1),
        _int64(action["minWriterVersion"], least=1),
        _texts(action.get("readerFeatures")),
        _texts(action.get("writerFeatures")),
    )


def check_supported(protocol: Protocol, metadata: Metadata, *, table: str) -> None:
    """Passes if the log can read and append to such a table.

    Raises:
        UnsupportedTable: names the features that it does not support.
    """
    features: set[str] = set()
    if protocol.reader >= 3:
        features |= set(protocol.reader_features) or {f"reader version {protocol.reader}"}
    elif protocol.reader == 2:
        features.add("columnMapping")
    if protocol.reader > 3:
        features.add(f"reader version {protocol.reader}")
    if protocol.writer > 7:
        features.add(f"writer version {protocol.writer}")
    if protocol.writer >= 7:
        features |= set(protocol.writer_features)
    else:
        features |= {_WRITER_VERSIONS[v] for v in range(3, protocol.writer + 1)}
    if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        features.add("columnMapping")
    if metadata.partition_columns:
        features.add(f"partition columns ({', '.join(metadata.partition_columns)})")
    if "delta.invariants" in metadata.schema_string:
        features.add("column invariants")
    if features - _HARMLESS:
        raise UnsupportedTable(
            f"Table {table} uses Delta features that the log does not support: "
            f"{', '.join(sorted(features - _HARMLESS))}. Topics are tables of reader version 1 and writer version 2; "
            "create a new topic and copy the rows."
        )


def build_entry(
    *,
    commit_id: str,
    timestamp_ms: int,
    operation: str,
    engine: str,
    table_id: str | None = None,
    adds: Sequence[Add] = (),
    removes: Sequence[str] = (),
    txns: Mapping[str, int] | None = None,
    metadata: Metadata | None = None,
    protocol: Protocol | None = None,
    removes_rows: bool = True,
    nothing_new: bool = False,
    info_about: Mapping[str, Any] | None = None,
    total: int | None = None,
) -> bytes:
    """The bytes of an entry; ``parse_entry`` reads them back to the same values.

    ``removes_rows`` is the ``dataChange`` of the removed files, and ``info_about`` are more keys of ``commitInfo``.
    """
    info: dict[str, Any] = {
        "timestamp": timestamp_ms,
        "operation": operation,
        "operationParameters": {"mode": "Append", "partitionBy": "[]"} if operation == "WRITE" else {},
        "isBlindAppend": operation == "WRITE",
        "engineInfo": engine,
        "txnId": commit_id,
    }
    if table_id is not None:
        info[TABLE_KEY] = table_id
    if nothing_new:
        info[NOTHING_NEW_KEY] = True
    info |= info_about or {}
    if total is not None:
        info[TOTAL_KEY] = total
    actions: list[dict[str, Any]] = []
    if protocol is not None:
        actions.append({"protocol": {"minReaderVersion": protocol.reader, "minWriterVersion": protocol.writer}})
    if metadata is not None:
        actions.append(
            {
                "metaData": {
                    "id": metadata.id,
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": metadata.schema_string,
                    "partitionColumns": [],
                    "configuration": dict(metadata.configuration),
                    "createdTime": metadata.created_ms,
                }
            }
        )
    for app_id, version in (txns or {}).items():
        actions.append({"txn": {"appId": app_id, "version": version, "lastUpdated": timestamp_ms}})
    for path in removes:
        actions.append({"remove": {"path": quote(path), "deletionTimestamp": timestamp_ms, "dataChange": removes_rows}})
    for add in adds:
        action: dict[str, Any] = {
            "path": quote(add.path),
            "partitionValues": {},
            "size": add.size,
            "modificationTime": add.modified_ms,
            "dataChange": add.data_change,
        }
        if add.rows is not None:
            action["stats"] = json.dumps({"numRecords": add.rows}, separators=(",", ":"))
        actions.append({"add": action})
    info[ACTIONS_KEY] = 1 + len(actions)
    actions.insert(0, {"commitInfo": info})
    return "".join(json.dumps(action, separators=(",", ":"), ensure_ascii=False) + "\n" for action in actions).encode()
