"""Writing checkpoints. delta-rs turns into Parquet what this kit has read, checked and added up.

delta-rs alone reads each entry twice more from the store (to open the table, and for the checkpoint), at half a
millisecond an entry: on a busy topic that was two thirds of what maintenance costs, and its bursts were the tail of the
latency of everything beside it. And it takes an entry that was cut at the end of a line for one with fewer files. So it
is given a table of two objects on the local disk: the last checkpoint as version 0, and all that came after it as
version 1. What a checkpoint says does not depend on its version; its name does, and it gets the true one when it is
uploaded.
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
    from types import TracebackType

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
"""Which actions stand for the same thing, so that the later one counts (protocol, "Action Reconciliation"). Other kinds
have no place in a checkpoint."""


class LogCopy:
    """A store as ``DeltaLog.load`` reads it, which keeps a local copy of what was read of one table's log.

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def get(self, path: str, *, within_s: float | None = None) -> bytes:
        """As ``Store.get``."""
        name = path.removeprefix(self._log)
        if name == _HINT:
            # Each try of a load begins here; what an earlier one read may be of a table that was there before.
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
        """As ``Store.exists``."""
        return self._store.exists(path, within_s=within_s)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """As ``Store.list``."""
        return self._store.list(prefix, after=after)

    def write_checkpoint(self, version: int) -> None:
        """Writes the checkpoint of the table as it was read, then the hint that names it.

        Args:
            version: of the state that the load returned.

        Raises:
            ImportError: deltalake is not installed.
            StoreError: delta-rs refused the table, or the store the objects.
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
            # One object: nothing that readers could find half of.
            data = (log / f"{local:020d}.checkpoint.parquet").read_bytes()
        except (DeltaError, OSError) as error:
            raise StoreError(str(error).splitlines()[0][:300]) from error
        self._store.put(f"{self._log}{version:020d}.checkpoint.parquet", data)
        self._store.put(f"{self._log}{_HINT}", json.dumps({**hint, "version": version}).encode())

    def _move_checkpoint(self, log: Path) -> int:
        """Makes the checkpoint that was read the local version 0; returns its true version, -1 without one."""
        base = -1
        for path in sorted(self._read.iterdir()):
            if (match := _PART.fullmatch(path.name)) is not None:
                base = int(match[1])
                path.rename(log / f"{0:020d}.{match[2]}")
        return base


def merged(entries: Iterable[bytes]) -> bytes:
    """One entry that says what these say one after the other, oldest first. They are whole and well-formed."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for data in entries:
        for line in filter(bytes.strip, data.split(b"\n")):
            for kind, action in json.loads(line).items():
                if kind in _IDENTITY:
                    group, key = _IDENTITY[kind]
                    name = action[key] if key else ""
                    latest[group, unquote(name) if group == "file" else name] = {kind: action}
    return b"".join(json.dumps(action).encode() + b"\n" for action in latest.values())
