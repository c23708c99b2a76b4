"""A bucket with the semantics of S3, and each process's connection to it, on which everything can go wrong.

The bucket is strongly consistent and honours ``If-None-Match: *``. A request takes effect at one instant between its
sending and its answer. What can go wrong, by seed, at each request:

=============  =====================================================================================================
``lost``       the request never arrives; the sender hears nothing
``unheard``    it is applied; the answer is lost
``late``       its sender has given up long since, and then it is applied
``conflict``   409 or 412 to a conditional PUT, whether it was applied, will be, or neither
``refused``    the store denies access (credentials expire)
``kill``       the process dies before the request takes effect, after it, or while it is on its way
``pause``      the process stands still at one of these points, for milliseconds or for hours; others take over
``sleep``      it stands still for hours right before a conditional PUT, and nobody takes over (a laptop is closed)
``clock``      the process's clock is set
``suspend``    its machine is suspended for up to hours, and both of its clocks stand still
=============  =====================================================================================================

A request whose signature is older or younger than fifteen minutes by the store's own clock is refused, as S3 and MinIO
do; then the process's clock is set right, as a machine's synchronisation would.

Two things happen to the objects themselves: an entry that has successors vanishes and comes back (``Hole``), and a
table's folder is removed by hand (``wipe``). Where a writer cannot have noticed yet, by the time within which it must
(``log``), the world is lenient: the entry comes back right before the writer would take its place, and an entry behind
no other is cleaned away by the same hand (``strays``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeVar

from brokerless.errors import AccessDenied, StoreUnavailable
from brokerless.store import ObjectInfo, Outcome, Tag
from tests.sim.world import SECOND, Killed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from brokerless.store import Tag
    from tests.sim.world import Process, World

FAULTS: Final = ("lost", "unheard", "late", "conflict", "refused", "kill", "pause", "sleep", "clock", "suspend")

LATE_US: Final = 300 * SECOND
"""How long a request can be on its way. Half of what an object may wait for its commit, a tenth of any retention."""

CLOCK_US: Final = 600 * SECOND
"""How far a clock is set. Maintenance compares its own with the store's, so an hour would be too much."""

SKEW_US: Final = 900 * SECOND
"""How old a request's signature may be (``RequestTimeTooSkewed``)."""

NOTICED_US: Final = 120 * SECOND
"""After this long a writer has looked for holes once more: ``log.FRESH_S``, and the deadline of a commit twice."""

_T = TypeVar("_T")

_ONCE_S: Final = 10.0  # ``store.REQUEST_TIMEOUT_S``
_RETRIES_S: Final = 30.0  # ``store.RETRY_TIMEOUT_S``


@dataclass(frozen=True, slots=True)
class Written:
    """An object as one request made it."""

    at_us: int
    path: str
    data: bytes
    process: Process | None


@dataclass(frozen=True, slots=True)
class Removed:
    """An object that was removed: when, and by whom.

    Attributes:
        age_us: how old it was when that process last listed it (if it did not, when it was removed).
        looked_us: when that process last looked for an entry in the log of the object's table.
    """

    at_us: int
    age_us: int
    process: Process
    looked_us: int


@dataclass(frozen=True, slots=True)
class Hole:
    """An entry that is missing for a while."""

    since_us: int
    data: bytes


@dataclass(slots=True)
class Weather:
    """How often each fault comes: the probabilities of one request, and how many requests see any at all."""

    odds: dict[str, float]
    requests: int
    long_pauses: bool


class Bucket:
    """The objects, and everything that ever happened to them."""

    uri = "s3://sim"

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.weather = weather
        self.objects: dict[str, bytes] = {}
        self.modified_us: dict[str, int] = {}
        self.names: list[str] = []
        self.entries: list[Written] = []
        """Every log entry that was ever created, in the order of creation."""
        self.data: dict[str, bytes] = {}
        """Every other object's last bytes, removed or not."""
        self.checkpoints: list[Written] = []
        self.removed: dict[str, Removed] = {}
        self.holes: dict[str, Hole] = {}
        self.wiped_us: dict[str, list[int]] = {}
        """When each table's folder was removed by hand."""
        self.strays: dict[str, Written] = {}
        """Entries that were written behind no other, into a folder that had been removed."""
        self.cleaned: list[Written] = []
        """Those that were removed by hand, too."""
        self.skew_us = SKEW_US
        self.under_way = 0
        self.on_write: Callable[[str, bytes, Process | None], None] | None = None
        """Is told of each write."""
        self.requests = 0

    def create(self, path: str, data: bytes, process: Process) -> Outcome:
        if path in self.holes and not self._must_know(self.holes[path], path, data, process):
            self.restore(path)
        if path in self.objects:
            return "exists"
        self.write(path, data, process)
        return "created"

    def swap(self, path: str, data: bytes, tag: Tag | None, process: Process) -> Outcome:
        old = self.objects.get(path)
        if tag != (None if old is None else tag_of(old)):
            return "exists"
        self.write(path, data, process)
        return "created"

    def write(self, path: str, data: bytes, process: Process | None) -> None:
        written = Written(self.world.now_us, path, data, process)
        if "/_delta_log/" not in path:
            self.data[path] = data
        elif path.endswith(".json"):
            if path.partition("/")[0] in self.wiped_us and not self._follows(path):
                self.strays[path] = written
                self.world.at(self.world.rng.randrange(20 * SECOND), lambda: self._clean(written))
            else:
                self.entries.append(written)
        elif path.endswith(".parquet"):
            self.checkpoints.append(written)
        self._place(path, data)
        if self.on_write is not None:
            self.on_write(path, data, process)

    def _place(self, path: str, data: bytes) -> None:
        if path not in self.objects:
            insort(self.names, path)
        self.objects[path] = data
        self.modified_us[path] = self.world.now_us

    def _follows(self, path: str) -> bool:
        """Whether an entry stands in its place, behind the one before it."""
        last = before(path)
        while last in self.strays:
            last = before(last)
        return last is None or last in self.objects

    def _clean(self, stray: Written) -> None:
        """Takes such an entry away, unless the log has come as far meanwhile and goes on behind it."""
        path = stray.path
        if self.strays.get(path) is stray:
            del self.strays[path]
            adopted = path in self.objects and self._follows(path)
            (self.entries if adopted else self.cleaned).append(stray)
            if not adopted:
                self._take_away(path)

    def _take_away(self, path: str) -> None:
        if self.objects.pop(path, None) is not None:
            self.names.pop(bisect_left(self.names, path))

    # By nobody's program

    def vanish(self, path: str) -> None:
        self.world.trace.add(self.world.now_us, "-", "VANISHES", path)
        self.holes[path] = Hole(self.world.now_us, self.objects[path])
        self._take_away(path)

    def restore(self, path: str) -> None:
        hole = self.holes.pop(path, None)
        if hole is not None and path not in self.objects:
            self.world.trace.add(self.world.now_us, "-", "COMES BACK", path)
            self._place(path, hole.data)

    def _must_know(self, hole: Hole, path: str, data: bytes, process: Process) -> bool:
        """Whether this writer has looked for holes since this one is there, or should have."""
        sent_us, sent_ran_us = process.sent_us[data]
        listed_us, listed_ran_us = process.listed_us.get(path.partition("/")[0], (0, 0))
        return sent_us > hole.since_us and (listed_us > hole.since_us or sent_ran_us - listed_ran_us > NOTICED_US)

    def wipe(self, table: str) -> None:
        for path in [path for path in self.names if path.startswith(f"{table}/")]:
            self._take_away(path)
            if path in self.strays:
                self.cleaned.append(self.strays.pop(path))
        self.wiped_us.setdefault(table, []).append(self.world.now_us)
        self.world.trace.add(self.world.now_us, "-", "WIPED", table)

    def delete(self, paths: Sequence[str], process: Process) -> None:
        for path in paths:
            if self.objects.pop(path, None) is not None:
                self.names.pop(bisect_left(self.names, path))
                now_us = self.world.now_us
                looked_us = process.looked_us.get(path.partition("/")[0], 0)
                age_us = process.ages_us.get(path, now_us - self.modified_us[path])
                self.removed[path] = Removed(now_us, age_us, process, looked_us)

    def below(self, prefix: str, after: str | None) -> list[ObjectInfo]:
        begin = bisect_left(self.names, f"{prefix}/")
        if after is not None:
            begin = max(begin, bisect_right(self.names, after))
        end = bisect_left(self.names, f"{prefix}0", lo=min(begin, len(self.names)))
        return [
            ObjectInfo(name, len(self.objects[name]), self.modified_us[name] / 1e6) for name in self.names[begin:end]
        ]


def tag_of(data: bytes) -> Tag:
    """An object's tag: like an ETag, the same for the same bytes."""
    return blake2b(data, digest_size=8).hexdigest(), None


def before(path: str) -> str | None:
    """The path of the entry before this one; None if it is the first, or no entry."""
    version = int(path[-25:-5]) if "/_delta_log/" in path and path[-25:-5].isdigit() else 0
    return f"{path[:-25]}{version - 1:020d}.json" if version else None


class Connection:
    """``Store`` for one process."""

    def __init__(self, bucket: Bucket, process: Process) -> None:
        self.uri = bucket.uri
        self.requests: Counter[str] = Counter()
        self._bucket = bucket
        self._process = process

    def get(self, path: str, *, within_s: float | None = None) -> bytes:
        """As ``Store.get``."""
        table, _, name = path.partition("/_delta_log/")

        def look() -> bytes | None:
            data = self._bucket.objects.get(path)
            if name.endswith(".json"):
                self._process.looked_us[table] = self._bucket.world.now_us
                if data is not None:
                    self._process.entries[path] = data
            return data

        found = self._retried("GET", path, look, within_s=within_s)
        if found is None:
            raise FileNotFoundError(path)
        return found

    def exists(self, path: str, *, within_s: float | None = None) -> bool:
        """As ``Store.exists``."""
        return self._retried("HEAD", path, lambda: path in self._bucket.objects)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """As ``Store.list``."""

        def look() -> list[ObjectInfo]:
            found = self._bucket.below(prefix, after)
            self._process.listed_us[prefix.partition("/")[0]] = self._process.times_us
            now_us, modified_us = self._bucket.world.now_us, self._bucket.modified_us
            self._process.ages_us.update((info.path, now_us - modified_us[info.path]) for info in found)
            return found

        yield from self._retried("LIST", prefix, look)

    def folders(self) -> Sequence[str]:
        """As ``Store.folders``."""
        return self._retried("LIST", "", lambda: sorted({p.split("/")[0] for p in self._bucket.names if "/" in p}))

    def put(self, path: str, data: bytes, *, within_s: float | None = None) -> None:
        """As ``Store.put``."""
        self._retried(
            "PUT", path, lambda: self._bucket.write(path, data, self._process), changes=True, within_s=within_s
        )

    def delete(self, paths: Sequence[str]) -> None:
        """As ``Store.delete``."""
        self._retried(
            "DELETE", paths[0], lambda: self._bucket.delete(paths, self._process), changes=True, more=len(paths) - 1
        )

    def put_if_absent(self, path: str, data: bytes, *, within_s: float | None = None) -> Outcome:
        """As ``Store.put_if_absent``: sent once."""
        return self._put_once("CREATE", path, data, lambda: self._bucket.create(path, data, self._process), within_s)

    def get_tagged(self, path: str, *, within_s: float | None = None) -> tuple[bytes, Tag]:
        """As ``Store.get_tagged``."""
        data = self.get(path, within_s=within_s)
        return data, tag_of(data)

    def swap(
        self, path: str, data: bytes, tag: Tag | None, *, within_s: float | None = None
    ) -> tuple[Outcome, Tag | None]:
        """As ``Store.swap``: sent once."""
        outcome = self._put_once(
            "SWAP", path, data, lambda: self._bucket.swap(path, data, tag, self._process), within_s
        )
        return outcome, tag_of(data) if outcome == "created" else None

    def _put_once(
        self, verb: str, path: str, data: bytes, apply: Callable[[], Outcome], within_s: float | None
    ) -> Outcome:
        self.requests["PUT"] += 1
        world, process = self._bucket.world, self._process
        waits = SECOND // 20, int(min(_ONCE_S, within_s or _ONCE_S) * SECOND)

        fault = self._fault(FAULTS)
        process.sent_us.setdefault(data, process.times_us)
        self._check_time(verb, path)
        outcome: Outcome
        if fault == "kill" or fault == "pause":
            outcome = self._stopped(fault, verb, path, apply, changes=True)
        elif fault == "sleep":
            self._trace(verb, path, "asleep before it")
            process.pause(world.rng.randrange(1800 * SECOND, 9000 * SECOND), suspended=world.rng.random() < 0.5)
            self._travel()
            outcome = apply()
            self._trace(verb, path, outcome)
        elif fault == "refused":
            self._travel()
            self._trace(verb, path, "refused")
            raise AccessDenied(f"The store refused PUT {path} (ExpiredToken).")
        elif fault == "lost":
            self._trace(verb, path, "lost: unknown")
            process.wait(self._some(waits))
            outcome = "unknown"
        elif fault == "unheard":
            self._travel()
            outcome = apply()
            self._trace(verb, path, f"{outcome}, unheard: unknown")
            process.wait(self._some(waits))
            outcome = "unknown"
        elif fault == "late":
            self._trace(verb, path, "on its way: unknown")
            self._later(verb, path, apply)
            process.wait(self._some(waits))
            outcome = "unknown"
        elif fault == "conflict":
            # A proxy that sent it twice meets itself; and S3 answers 409 to one of two that come at once.
            kind = world.rng.randrange(3)
            self._travel()
            if kind == 0:
                apply()
            elif kind == 1:
                self._later(verb, path, apply)
            outcome = "exists"
            self._trace(verb, path, ("applied", "on its way", "not applied")[kind] + ": exists")
        else:
            self._travel()
            outcome = apply()
            self._trace(verb, path, outcome)
        if outcome != "created":
            world.counts["unknown answers" if outcome == "unknown" else "conflicts"] += 1
        return outcome

    def _retried(
        self,
        verb: str,
        path: str,
        apply: Callable[[], _T],
        *,
        changes: bool = False,
        more: int = 0,
        within_s: float | None = None,
    ) -> _T:
        self.requests[verb] += 1
        kinds = ("lost", "refused", "kill", "pause", "clock", "suspend")
        fault = self._fault((*kinds, "unheard", "late") if changes else kinds)
        where = f"{path} and {more} more" if more else path
        self._check_time(verb, where)
        if fault == "kill" or fault == "pause":
            result = self._stopped(fault, verb, where, apply, changes=changes)
        elif fault == "refused":
            self._travel()
            self._trace(verb, where, "refused")
            raise AccessDenied(f"The store refused {verb} {path} (ExpiredToken).")
        elif fault in {"lost", "unheard", "late"}:
            if fault == "unheard":
                self._travel()
                apply()
            elif fault == "late":
                self._later(verb, where, apply)
            self._trace(verb, where, f"{fault}: unavailable")
            self._process.wait(int(min(_RETRIES_S, within_s or _RETRIES_S) * SECOND))
            raise StoreUnavailable(f"{verb} {path} failed after retries.")
        else:
            self._travel()
            result = apply()
            self._trace(verb, where, _short(result))
        return result

    def _fault(self, kinds: Sequence[str]) -> str | None:
        bucket = self._bucket
        if self._process.dead or bucket.world.over:
            raise Killed
        bucket.requests += 1
        weather = bucket.weather
        if bucket.requests > weather.requests:
            return None
        left = bucket.world.rng.random()
        for kind in kinds:
            left -= weather.odds.get(kind, 0.0)
            if left < 0:
                bucket.world.counts[f"fault: {kind}"] += 1
                if kind in {"clock", "suspend"}:
                    (self._set_clock if kind == "clock" else self._suspend)()
                    return None
                return kind
        return None

    def _set_clock(self) -> None:
        world, clock = self._bucket.world, self._process.clock
        clock.wall_offset_us = world.rng.randrange(-CLOCK_US, CLOCK_US)
        self._process.clock_was_set = True
        self._trace("CLOCK", "", f"{clock.wall_offset_us / 1e6:+.0f} s")

    def _suspend(self) -> None:
        world, process = self._bucket.world, self._process
        us = world.rng.randrange((1200 if world.rng.random() < 0.3 else 12_000) * SECOND)
        self._trace("SUSPENDED", "", f"{us / 1e6:.1f} s")
        if process.on_pause is not None and world.rng.random() < 0.5:
            process.on_pause(us)
        process.pause(us, suspended=True)
        process.clock.wall_offset_us -= us
        process.clock_was_set = True

    def _check_time(self, verb: str, path: str) -> None:
        """Refuses what was signed at another time than the store's."""
        bucket, clock = self._bucket, self._process.clock
        if abs(clock.wall_offset_us) <= bucket.skew_us:
            return
        self._travel()
        self._trace(verb, path, f"refused, signed {clock.wall_offset_us / 1e6:+.0f} s")
        bucket.world.counts["requests that were signed at a wrong time"] += 1
        clock.wall_offset_us = bucket.world.rng.randrange(-60, 60) * SECOND
        raise AccessDenied(f"The store refused {verb} {path} (RequestTimeTooSkewed).")

    def _stopped(self, fault: str, verb: str, path: str, apply: Callable[[], _T], *, changes: bool) -> _T:
        world, process = self._bucket.world, self._process
        point = world.rng.randrange(3 if changes else 2)
        if point == 2:
            if fault == "pause":
                # The request leaves, then the process stands still: it is applied meanwhile, and answered at last.
                self._trace(verb, path, "paused with the request on its way")
                results: list[_T] = []
                world.at(self._latency(), lambda: results.append(apply()))
                self._pause(least_us=4 * SECOND)
                return results[0]
            self._trace(verb, path, "killed with the request on its way")
            self._later(verb, path, apply)
            process.die()
        if point == 0:
            self._trace(verb, path, f"{fault} before it")
            if fault == "kill":
                process.die()
            self._pause()
        self._travel()
        result = apply()
        self._trace(verb, path, _short(result))
        if point == 1:
            self._trace(verb, path, f"{fault} after it")
            if fault == "kill":
                process.die()
            self._pause()
        return result

    def _pause(self, *, least_us: int = 0) -> None:
        world = self._bucket.world
        upto = (SECOND // 5, 5 * SECOND, 90 * SECOND, 800 * SECOND, 9000 * SECOND)
        us = least_us + world.rng.randrange(upto[world.rng.randrange(5 if self._bucket.weather.long_pauses else 3)])
        suspended = world.rng.random() < 0.3
        self._trace("PAUSE", "", f"{us / 1e6:.1f} s{', machine suspended' if suspended else ''}")
        if self._process.on_pause is not None:
            self._process.on_pause(us)
        self._process.pause(us, suspended=suspended)
        self._trace("RESUME")

    def _later(self, verb: str, path: str, apply: Callable[[], object]) -> None:
        bucket, world, name = self._bucket, self._bucket.world, self._process.name
        bucket.under_way += 1

        def arrive() -> None:
            bucket.under_way -= 1
            result = apply()
            world.counts["late requests that changed something" if result != "exists" else "late and in vain"] += 1
            world.trace.add(world.now_us, name, f"{verb} lands", path, _short(result))

        spans = (SECOND // 20, 2 * SECOND, 40 * SECOND, LATE_US)
        world.at(world.rng.randrange(spans[world.rng.randrange(4)]), arrive)

    def _travel(self) -> None:
        self._process.wait(self._latency())

    def _latency(self) -> int:
        rng = self._bucket.world.rng
        # Mostly some milliseconds, at times seconds.
        return 1000 + int(rng.random() ** 3 * 20_000) + (rng.randrange(3 * SECOND) if rng.random() < 0.02 else 0)

    def _some(self, choices: Sequence[int]) -> int:
        return choices[self._bucket.world.rng.randrange(len(choices))]

    def _trace(self, what: str, where: str = "", result: str = "") -> None:
        world = self._bucket.world
        world.trace.add(world.now_us, self._process.name, what, where, result)


def _short(result: object) -> str:
    if isinstance(result, bytes):
        return f"{len(result)} bytes"
    if isinstance(result, list):
        return f"{len(result)} found"
    return "-" if result is None else str(result)
