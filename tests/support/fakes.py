"""A store in memory whose every answer can be scripted, and a clock that moves only by sleeping."""

from __future__ import annotations

import hashlib
import random
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokerless.clock import Clock
from brokerless.store import ObjectInfo, Outcome, Tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

START_US = 1_800_000_000_000_000


class FakeClock(Clock):
    """Time stands still but for ``sleep`` and ``advance``; randomness is seeded."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(random.Random(seed))
        self.now_us = START_US
        self.slept: list[float] = []
        self.on_sleep: Callable[[], None] | None = None

    def time_us(self) -> int:
        return self.now_us

    def monotonic(self) -> float:
        return self.now_us / 1e6

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_us += int(seconds * 1e6)
        if self.on_sleep is not None:
            self.on_sleep()

    def advance(self, seconds: float) -> None:
        self.now_us += int(seconds * 1e6)


@dataclass
class Put:
    """What becomes of one conditional PUT: the answer given, and what is done to the store before and after it."""

    answer: Outcome | BaseException
    applied: bool = True
    before: Callable[[], None] | None = None


class FakeStore:
    """``Store`` in memory. Each entry of ``puts`` scripts one conditional PUT; without script they just work."""

    uri = "memory://fake"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.objects: dict[str, bytes] = {}
        self.modified: dict[str, float] = {}
        self.requests: Counter[str] = Counter()
        self.puts: list[Put] = []
        self.on_get: Callable[[str], None] | None = None
        self.late: list[tuple[str, bytes]] = []  # PUTs that were not applied yet, but may be
        self.swaps: list[Put] = []  # as ``puts``, for ``swap``
        self.late_swaps: list[tuple[str, bytes, Tag | None]] = []
        self._lock = threading.Lock()

    def get(self, path: str, *, within_s: float | None = None) -> bytes:
        self.requests["GET"] += 1
        if self.on_get is not None:
            self.on_get(path)
        try:
            return self.objects[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def put(self, path: str, data: bytes, *, within_s: float | None = None) -> None:
        self.requests["PUT"] += 1
        self._write(path, data)

    def put_if_absent(self, path: str, data: bytes, *, within_s: float | None = None) -> Outcome:
        self.requests["PUT"] += 1
        script = self.puts.pop(0) if self.puts else None
        if script is None:
            return self.create(path, data)
        if script.before is not None:
            script.before()
        if script.applied:
            self.create(path, data)
        else:
            self.late.append((path, data))
        if isinstance(script.answer, BaseException):
            raise script.answer
        return script.answer

    def create(self, path: str, data: bytes) -> Outcome:
        with self._lock:
            if path in self.objects:
                return "exists"
            self._write(path, data)
            return "created"

    def land_late_puts(self) -> list[Outcome]:
        landed = [self.create(path, data) for path, data in self.late]
        self.late.clear()
        return landed

    def get_tagged(self, path: str, *, within_s: float | None = None) -> tuple[bytes, Tag]:
        data = self.get(path)
        return data, tag_of(data)

    def swap(
        self, path: str, data: bytes, tag: Tag | None, *, within_s: float | None = None
    ) -> tuple[Outcome, Tag | None]:
        self.requests["PUT"] += 1
        script = self.swaps.pop(0) if self.swaps else None
        if script is None:
            outcome = self.replace(path, data, tag)
            return outcome, tag_of(data) if outcome == "created" else None
        if script.before is not None:
            script.before()
        if script.applied:
            self.replace(path, data, tag)
        else:
            self.late_swaps.append((path, data, tag))
        if isinstance(script.answer, BaseException):
            raise script.answer
        return script.answer, tag_of(data) if script.answer == "created" else None

    def replace(self, path: str, data: bytes, tag: Tag | None) -> Outcome:
        with self._lock:
            old = self.objects.get(path)
            if tag != (None if old is None else tag_of(old)):
                return "exists"
            self._write(path, data)
            return "created"

    def land_late_swaps(self) -> list[Outcome]:
        landed = [self.replace(*late) for late in self.late_swaps]
        self.late_swaps.clear()
        return landed

    def exists(self, path: str, *, within_s: float | None = None) -> bool:
        self.requests["GET"] += 1
        return path in self.objects

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        self.requests["LIST"] += 1
        for path in sorted(self.objects):
            if path.startswith(prefix + "/") and (after is None or path > after):
                yield ObjectInfo(path, len(self.objects[path]), self.modified[path])

    def folders(self) -> Sequence[str]:
        self.requests["LIST"] += 1
        return sorted({path.split("/")[0] for path in self.objects if "/" in path})

    def delete(self, paths: Sequence[str]) -> None:
        self.requests["DELETE"] += 1
        for path in paths:
            self.objects.pop(path, None)
            self.modified.pop(path, None)

    def _write(self, path: str, data: bytes) -> None:
        self.objects[path] = data
        self.modified[path] = self.clock.time_us() / 1e6


def tag_of(data: bytes) -> Tag:
    """An object's tag, as on S3: a hash of its bytes, so the same bytes have the same tag."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest(), None
