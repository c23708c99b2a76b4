"""Classic checkpoints without delta-rs: what a test needs of them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from brokerless.log.log import DeltaLog

_SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64()}),
        "add": pa.struct({"path": pa.string(), "size": pa.int64(), "modificationTime": pa.int64()}),
        "remove": pa.struct({"path": pa.string(), "deletionTimestamp": pa.int64()}),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": pa.map_(pa.string(), pa.string()),
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
    }
)


def write_checkpoint(log: DeltaLog, *, forget_tombstones: bool = False) -> int:
    """Writes a checkpoint of the table as it is, with its hint; returns its version."""
    state = log.load(with_files=True)
    if forget_tombstones:
        state.tombstones.clear()
    rows: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": state.protocol.reader, "minWriterVersion": state.protocol.writer}},
        {
            "metaData": {
                "id": state.metadata.id,
                "schemaString": state.metadata.schema_string,
                "partitionColumns": [],
                "configuration": list(state.metadata.configuration.items()),
                "createdTime": state.metadata.created_ms,
            }
        },
        *({"txn": {"appId": app_id, "version": version}} for app_id, version in state.txns.items()),
        *({"add": {"path": a.path, "size": a.size, "modificationTime": a.modified_ms}} for a in state.files.values()),
        *({"remove": {"path": p, "deletionTimestamp": ms}} for p, ms in state.tombstones.items()),
    ]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), buffer)
    folder = f"{log.table}/_delta_log"
    log.store.put(f"{folder}/{state.version:020d}.checkpoint.parquet", buffer.getvalue())
    log.store.put(f"{folder}/_last_checkpoint", json.dumps({"version": state.version, "size": len(rows)}).encode())
    return state.version


def clean_up(log: DeltaLog, below: int) -> None:
    """Removes the entries below a version, as log clean-up does."""
    log.store.delete([log.entry_path(version) for version in range(below)])
