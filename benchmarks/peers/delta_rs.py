"""Delta tables as topics without brokerless: delta-rs appends, and a reader follows the log.

This is the lower limit without an engine: one Parquet file, one log entry and one GET for it. The Delta peers with
Spark use the same senders, and the same reader on another table.

Not idempotent: if the store's answer to a commit is lost, delta-rs may commit the same file twice.
"""

from __future__ import annotations

import importlib.util
import json
import queue
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

from benchmarks import messages
from benchmarks.peers.base import Peer, Stats
from benchmarks.peers.checks import TimestampCheck
from brokerless.maintenance.maintainer import storage_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    import numpy as np
    import pyarrow as pa
    from obstore.store import ObjectStore

    from benchmarks.spec import Spec
    from brokerless.settings import Settings

# As published for Pathway's connector: the wait for a missing log entry, doubled up to the cap.
FIRST_WAIT_S: Final = 0.005
WAIT_CAP_S: Final = 0.1

# Producers that share a table compete for each version; by default delta-rs stops after 15 attempts.
COMMIT_RETRIES: Final = 100


def table_name(topic: str, partition: int) -> str:
    """Return the table of a topic's partition, below the root; the first has the topic's name."""
    return f"{topic}.{partition}" if partition else topic


def create_table(settings: Settings, table: str) -> None:
    """Create an empty input table."""
    import pyarrow as pa
    from deltalake import DeltaTable

    utc = pa.timestamp("us", tz="UTC")
    schema = pa.schema([("date", pa.string()), ("message", pa.string()), ("_produced_at", utc)])
    DeltaTable.create(f"{settings.root}/{table}", schema=schema, storage_options=storage_options(settings))


class DeltaRsSender:
    """A sender with an open table and one commit per call; it writes no checkpoints, which would take time."""

    def __init__(self, settings: Settings, table: str) -> None:
        self._settings, self._table = settings, table

    def open(self) -> None:
        """Read the table's state once."""
        from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties

        options = storage_options(self._settings)
        self._handle = DeltaTable(f"{self._settings.root}/{self._table}", storage_options=options)
        self._properties: dict[str, Any] = {
            "commit_properties": CommitProperties(max_commit_retries=COMMIT_RETRIES),
            "post_commithook_properties": PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
        }

    def send(self, rows: pa.Table) -> int:
        """Commit the rows; all are acknowledged on return."""
        from deltalake import write_deltalake

        write_deltalake(self._handle, rows, mode="append", **self._properties)
        return len(rows)

    def close(self) -> int:
        """Return 0: all messages are acknowledged already."""
        return 0


class LogReceiver:
    """A reader that follows the logs of tables from their first version, each in a thread of its own.

    Rows of a table arrive in the order of its versions, of the files in a version, and of the rows in a file.
    """

    def __init__(self, settings: Settings, tables: Sequence[str], spec: Spec) -> None:
        self._settings, self._tables = settings, list(tables)
        self._check = TimestampCheck(spec) if spec.hops > 1 else None

    def open(self) -> None:
        """Start polling for version 0; tables may be created later."""
        self._arrived: queue.SimpleQueue[pa.Table | Exception] = queue.SimpleQueue()
        self._stop = threading.Event()
        store = _open_store(self._settings)
        self._threads = [
            threading.Thread(target=self._follow, args=(store, table), daemon=True) for table in self._tables
        ]
        for thread in self._threads:
            thread.start()

    def _follow(self, store: ObjectStore, table: str) -> None:
        version, wait_s = 0, FIRST_WAIT_S
        try:
            while not self._stop.is_set():
                try:
                    entry = _get(store, f"{table}/_delta_log/{version:020d}.json")
                except FileNotFoundError:
                    self._stop.wait(wait_s)
                    wait_s = min(2 * wait_s, WAIT_CAP_S)
                    continue
                for path in _added(entry):
                    self._arrived.put(_read(store, f"{table}/{path}"))
                version, wait_s = version + 1, FIRST_WAIT_S
        except Exception as error:  # raised by poll
            self._arrived.put(error)

    def poll(self, max_wait_s: float) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return all messages that the threads have read, or none after the wait; see ``Receiver.poll``.

        Raises:
            ValueError: a parsed timestamp is not the intended one.
            Exception: the error of a thread.
        """
        found = []
        try:
            arrived = self._arrived.get(timeout=max_wait_s)
            while True:
                found.append(self._ids(arrived))
                arrived = self._arrived.get_nowait()
        except queue.Empty:
            return found

    def _ids(self, rows: pa.Table | Exception) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(rows, Exception):
            raise rows
        who, which = messages.ids(_one(rows.column("message")))
        if self._check:
            self._check.check(who, which, rows.column("timestamp").to_numpy())
        return who, which

    def close(self) -> None:
        """End the threads after their running requests."""
        self._stop.set()
        for thread in self._threads:
            thread.join(10)


def _open_store(settings: Settings) -> ObjectStore:
    from obstore.store import S3Store

    config: dict[str, Any] = {
        "region": settings.region,
        # Both names: the client prefers the second, and would take it from the environment.
        "endpoint": settings.endpoint,
        "aws_endpoint_url_s3": settings.endpoint,
        "access_key_id": settings.access_key,
        "secret_access_key": settings.secret_key,
        "session_token": settings.session_token,
    }
    return S3Store(
        settings.bucket,
        prefix=urlsplit(settings.root).path.strip("/"),
        config={key: value for key, value in config.items() if value is not None},
        client_options={"allow_http": (settings.endpoint or "").startswith("http://"), "timeout": "10 seconds"},
    )


def _get(store: ObjectStore, path: str) -> bytes:
    import obstore

    return obstore.get(store, path).bytes().to_bytes()


def _added(entry: bytes) -> Iterator[str]:
    """Yield paths of the files that a log entry adds with new rows, relative to the table."""
    for line in entry.splitlines():
        add = json.loads(line).get("add")
        if add and add["dataChange"]:
            yield unquote(add["path"])


def _read(store: ObjectStore, path: str) -> pa.Table:
    import pyarrow as pa
    from pyarrow import parquet

    return parquet.ParquetFile(pa.BufferReader(_get(store, path))).read()


def _one(column: pa.ChunkedArray) -> pa.StringArray:
    import pyarrow as pa

    # Without a chunk this is an empty array; the file may have another type for strings.
    return pa.concat_arrays([pa.array([], pa.string()), *column.cast(pa.string()).chunks])


class DeltaRs(Peer):
    """The peer delta-rs: producer, table, reader."""

    name: ClassVar[str] = "delta-rs"
    label: ClassVar[str] = "delta-rs, no engine"
    hops: ClassVar[tuple[int, ...]] = (1,)

    @classmethod
    def prepare(cls, cache: Path) -> str | None:
        """Return None if delta-rs is installed, otherwise the reason."""
        return None if importlib.util.find_spec("deltalake") else "deltalake is not installed"

    @property
    def inputs(self) -> list[str]:
        """Return the tables that producers append to: one per partition of each topic."""
        return [table_name(topic, n) for topic in self.spec.topics for n in range(self.spec.partitions)]

    def start(self, stack: ExitStack) -> None:
        """Create the tables."""
        for table in self.inputs:
            create_table(self.site.settings, table)

    def sender(self, producer: int) -> DeltaRsSender:
        """Return a sender that appends to the table of the producer's partition."""
        table = table_name(self.spec.topic(producer), self.spec.partition(producer))
        return DeltaRsSender(self.site.settings_for("producer"), table)

    def receiver(self) -> LogReceiver:
        """Return a reader of all input tables."""
        return LogReceiver(self.site.settings_for("reader"), self.inputs, self.spec)

    def finish(self) -> Stats:
        """Return the tables."""
        return Stats(tables=self.inputs)
