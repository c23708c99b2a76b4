"""A peer for tests of the harness: messages go through files, and things go wrong on request."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import messages
from benchmarks.peers.base import Peer, PeerError
from benchmarks.spec import Spec

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    import pyarrow as pa


class FileSender:
    def __init__(self, path: Path, fault: str) -> None:
        self._path, self._fault = path, fault
        self._sends = 0

    def open(self) -> None:
        self._path.touch()

    def send(self, rows: pa.Table) -> int:
        who, which = messages.ids(rows.column("message").combine_chunks())
        self._sends += 1
        if self._sends == 2:
            if self._fault == "loss":
                who, which = who[1:], which[1:]
            elif self._fault == "late":
                time.sleep(1.5)
        with self._path.open("ab") as file:
            file.write(np.stack([who, which]).T.astype(np.int64).tobytes())
        return len(rows)

    def close(self) -> int:
        return 0


class FileReceiver:
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def open(self) -> None:
        self._at = dict.fromkeys(self._paths, 0)

    def poll(self, max_wait_s: float) -> list[tuple[np.ndarray, np.ndarray]]:
        found = []
        for path in self._paths:
            with path.open("rb") as file:
                file.seek(self._at[path])
                data = file.read()
            data = data[: len(data) // 16 * 16]
            self._at[path] += len(data)
            if data:
                pairs = np.frombuffer(data, np.int64).reshape(-1, 2)
                found.append((pairs[:, 0], pairs[:, 1]))
        if not found:
            time.sleep(0.005)
        return found

    def close(self) -> None:
        return


class FilePeer(Peer):
    name = "files"
    label = "files"
    hops = (1,)
    fault = ""

    @classmethod
    def prepare(cls, cache: Path) -> str | None:
        return "it is not to be had" if cls.fault == "missing" else None

    def start(self, stack: ExitStack) -> None:
        if self.fault == "start":
            raise PeerError("it did not start")
        self._paths = [self.site.folder / f"{n}.bin" for n in range(self.spec.producers)]
        for path in self._paths:
            path.touch()

    def sender(self, producer: int) -> FileSender:
        return FileSender(self._paths[producer], self.fault if producer == 0 else "")

    def receiver(self) -> FileReceiver:
        return FileReceiver(self._paths)


def faulty(fault: str) -> type[FilePeer]:
    """The peer with one fault."""
    return type("FaultyPeer", (FilePeer,), {"fault": fault})


SPEC = Spec("files", rate=2_000, hops=1, seconds=2.0, warm_up_s=0.5, commit_ms=50, backend="embedded")
