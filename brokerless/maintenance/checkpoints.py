"""Write checkpoints with delta-rs, from a local copy of the log that this kit has read and checked.

delta-rs alone reads each entry twice more from the store, at half a millisecond an entry, and takes an entry that was
cut at the end of a line for one with fewer files. So it gets a table of two objects on the local disk: the last
checkpoint as version 0, and everything after it as version 1. The content of a checkpoint does not depend on its
version; the true version is in the name with which it is uploaded. ``docs/maintenance.md`` has the reasons.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from brokerless.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from brokerless.store import ObjectInfo, Store

_HINT: Final = "_last_checkpoint"
_PART: Final = re.compile(r"(\d{20})\.(checkpoint\..*)", re.ASCII)
_ENTRY: Final = re.compile(r"(\d{20})\.json", re.ASCII)
_IDENTITY: Final = {
    "add": ("file", "path"),
    "remove": ("file", "path"),
    "txn": ("txn", "appId"),
    "domainMetadata": ("domainMetadata", "domain"),
    "metaData": ("metaData", ""),
    "protocol": ("protocol", ""),
    "commitInfo": ("commitInfo", ""),
}
"""Which actions replace each other, so that only the last one counts (protocol, "Action Reconciliation"). A checkpoint
has no other kinds."""


class LogCopy:
    """A store for ``DeltaLog.load`` that makes a local copy of what is read of one table's log.

    Use as a context manager: ``DeltaLog(copy, table).load()``, then ``write_checkpoint`` with the version of the state.
    """

    def __init__(self, store: Store, table: str) -> None:
        self.uri = store.uri
        self._store = store
        self._log = f"{table}/_delta_log/"
        self._folder = tempfile.TemporaryDirectory(prefix="brokerless-checkpoint-")
        self._read = Path(self._folder.name) / "read"
        self._read.mkdir()

    def __enter__(self) -> LogCopy:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def get(self, path: str, *, within_s: float | None = None) -> bytes:
        """Read an object, as ``Store.get``."""
        name = path.removeprefix(self._log)
        if name == _HINT:
            # Each attempt of a load begins here; what an earlier attempt read may be of a deleted table.
            for copied in self._read.iterdir():
                copied.unlink()
        data = self._store.get(path, within_s=within_s)
        if _PART.fullmatch(name) or _ENTRY.fullmatch(name):
            try:
                (self._read / name).write_bytes(data)
            except OSError as error:
                raise StoreError(f"The log could not be copied to {self._read}: {error}") from error
        return data

    def exists(self, path: str, *, within_s: float | None = None) -> bool:
        """Whether an object exists, as ``Store.exists``."""
        return self._store.exists(path, within_s=within_s)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """List objects, as ``Store.list``."""
        return self._store.list(prefix, after=after)

    def write_checkpoint(self, version: int) -> None:
        """Write the checkpoint of the table as it was read, then the hint that names it.

        Args:
            version: the version of the state that the load returned.

        Raises:
            ImportError: deltalake is not installed.
            StoreError: delta-rs could not read the table, or the store refused the objects.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        table = Path(self._folder.name) / "table"
        log = table / "_delta_log"
        try:
            log.mkdir(parents=True)
            base = self._move_checkpoint(log)
            entries = [self._read / f"{number:020d}.json" for number in range(base + 1, version + 1)]
            local = 0 if base < 0 else 1
            (log / f"{local:020d}.json").write_bytes(merged(entry.read_bytes() for entry in entries))
            DeltaTable(str(table)).create_checkpoint()
            hint = json.loads((log / _HINT).read_bytes())
            # One object, so that readers find all of it or nothing.
            data = (log / f"{local:020d}.checkpoint.parquet").read_bytes()
        except (DeltaError, OSError) as error:
            raise StoreError(str(error).splitlines()[0][:300]) from error
        self._store.put(f"{self._log}{version:020d}.checkpoint.parquet", data)
        self._store.put(f"{self._log}{_HINT}", json.dumps({**hint, "version": version}).encode())

    def _move_checkpoint(self, log: Path) -> int:
        """Move the checkpoint that was read to local version 0, and return its true version; -1 if there is none."""
        base = -1
        for path in sorted(self._read.iterdir()):
            if (match := _PART.fullmatch(path.name)) is not None:
                base = int(match[1])
                path.rename(log / f"{0:020d}.{match[2]}")
        return base


def merged(entries: Iterable[bytes]) -> bytes:
    """Return one entry with the result of these entries, oldest first. They are complete and well-formed."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for data in entries:
        for line in filter(bytes.strip, data.split(b"\n")):
            for kind, action in json.loads(line).items():
                if kind in _IDENTITY:
                    group, key = _IDENTITY[kind]
                    name = action[key] if key else ""
                    latest[group, unquote(name) if group == "file" else name] = {kind: action}
    return b"".join(json.dumps(action).encode() + b"\n" for action in latest.values())
