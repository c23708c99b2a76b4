"""Decide which fault a request gets, and record it.

What is deterministic: whether a request is struck, and all that is drawn for it (a tail's length, the bit that flips),
depends on the seed, the rule, the request's kind and key, and on how many requests of this kind and key came before it.
It does not depend on the time, nor on requests for other keys, so threads that work on different keys cannot disturb
each other. UUIDs within keys, and the checksums behind them, do not count: objects with random names are one key here,
or no run could be repeated.

What is not: ``after`` and ``times`` count in the order of arrival over all keys that a rule fits, and requests for one
key that are sent at the same time arrive in any order. ``Quiet`` and ``StaleAbsence`` look at the clock.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from brokerless.testing.faults import (
    Chaos,
    Fault,
    Op,
    Plan,
    Rule,
    Script,
    StaleAbsence,
    can_meet,
    covers,
    fits_key,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerless.clock import Clock

_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}(?:\.[0-9a-f]{8}(?=\.))?")
_REMEMBERED: Final = 100_000
"""Requests, log lines and written keys in memory; a proxy may run for days."""


@dataclass(frozen=True, slots=True)
class Request:
    """The part of a request that a plan uses: its kind and its objects (several for one deletion of many)."""

    op: Op
    keys: tuple[str, ...]

    @property
    def key(self) -> str:
        """The first object's key, or the prefix of a LIST."""
        return self.keys[0] if self.keys else ""


@dataclass(frozen=True, slots=True)
class Shot:
    """A fault for one request. ``draw`` is a number from 0 to 1 that the fault may use; ``rule`` its index or None."""

    fault: Fault
    draw: float
    rule: int | None


@dataclass(frozen=True, slots=True)
class Injected:
    """A line of the log.

    Attributes:
        number: of the injection, from 1.
        at_us: when, microseconds since the epoch.
        fault: what the request met.
        op, key: the request.
        applied: whether the server carried the request out; None while that is open (the request is yet to be sent).
        upstream: the status that the server answered with, or None if it was not asked.
    """

    number: int
    at_us: int
    fault: Fault
    op: Op
    key: str
    applied: bool | None
    upstream: int | None


@dataclass(slots=True)
class _Active:
    """A rule and how often it fitted and struck."""

    rule: Rule
    seed: int
    position: int
    fitted: int = 0
    struck: int = 0

    @property
    def is_used_up(self) -> bool:
        return self.rule.times is not None and self.struck >= self.rule.times


class Injector:
    """Holds the plans, decides, counts and records. Safe for several threads.

    Args:
        clock: the time, for the log, for ``Quiet`` and for ``StaleAbsence``.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rules: list[_Active] = []
        self._chaos: Chaos | None = None
        self._seed = 0
        self._began = clock.monotonic()
        self._turns: Counter[tuple[object, ...]] = Counter()
        self._in_a_row: Counter[str] = Counter()
        self._seen: deque[Request] = deque(maxlen=_REMEMBERED)
        self._log: deque[Injected] = deque(maxlen=_REMEMBERED)
        self._written: OrderedDict[str, float] = OrderedDict()
        self._number = 0
        self.requests: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    def play(self, plans: Sequence[Plan]) -> None:
        """Replace all plans. Rules come before chaos; counts and draws begin again, the log continues."""
        with self._lock:
            self._rules, self._chaos, self._seed = [], None, 0
            self._turns.clear()
            self._in_a_row.clear()
            self._began = self._clock.monotonic()
            for plan in plans:
                if isinstance(plan, Script):
                    self._seed = plan.seed
                    self._add(plan.rules)
                else:
                    self._chaos = plan

    def add(self, rules: Sequence[Rule]) -> None:
        """Add rules after the existing ones."""
        with self._lock:
            self._add(rules)

    def pending(self) -> tuple[Rule, ...]:
        """The rules that have not struck as often as they should."""
        with self._lock:
            return tuple(a.rule for a in self._rules if a.rule.times is not None and not a.is_used_up)

    def draw(self, request: Request) -> Shot | None:
        """Return the fault for this request, or None."""
        with self._lock:
            self.requests[request.op] += 1
            self._seen.append(request)
            stream = _UUID.sub("*", request.key)
            for active in self._rules:
                if not active.is_used_up and active.rule.fits(request.op, request.keys):
                    shot = self._strike(active, request, stream)
                    if shot is not None:
                        return shot
            return None if self._chaos is None else self._draw(self._chaos, request, stream)

    def give_back(self, shot: Shot) -> None:
        """Undo a ``draw`` whose fault could not be applied to the server's answer."""
        with self._lock:
            for active in self._rules:
                if active.position == shot.rule:
                    active.struck -= 1

    def record(self, request: Request, shot: Shot, *, applied: bool | None, upstream: int | None) -> None:
        """Write the log, before the client can see the fault."""
        with self._lock:
            self._number += 1
            at_us = self._clock.time_us()
            line = Injected(self._number, at_us, shot.fault, request.op, request.key, applied, upstream)
            self.faults[shot.fault.kind] += 1
            self._log.append(line)

    def log(self, after: int = 0) -> tuple[Injected, ...]:
        """Return the injections with a higher number, of the last hundred thousand."""
        with self._lock:
            return tuple(line for line in self._log if line.number > after)

    def count(self, op: Op | None, key: str) -> int:
        """Return how many of the last hundred thousand requests had this kind and a matching key."""
        with self._lock:
            return sum(covers(op, request.op) and fits_key(key, request.keys) for request in self._seen)

    def answer(self, request: Request, billed: str, status: int) -> None:
        """Count an answer of the server under the kind that S3 bills, and remember a key that it has just written."""
        with self._lock:
            self.answered[billed] += 1
            if not (200 <= status < 300 and request.op in {"PUT", "CONDITIONAL_PUT"}):
                return
            self._written[request.key] = self._clock.monotonic()
            self._written.move_to_end(request.key)
            if len(self._written) > _REMEMBERED:
                self._written.popitem(last=False)

    def _add(self, rules: Sequence[Rule]) -> None:
        first = len(self._rules)
        self._rules += [_Active(rule, self._seed, position) for position, rule in enumerate(rules, start=first)]

    def _strike(self, active: _Active, request: Request, stream: str) -> Shot | None:
        rule = active.rule
        if not self._is_possible(rule.fault, request):
            return None
        active.fitted += 1
        if active.fitted <= rule.after:
            return None
        turn = self._turn(active.position, request.op, stream)
        if _uniform(active.seed, active.position, request.op, stream, turn, "strike") >= rule.probability:
            return None
        active.struck += 1
        return Shot(
            rule.fault, _uniform(active.seed, active.position, request.op, stream, turn, "draw"), active.position
        )

    def _draw(self, chaos: Chaos, request: Request, stream: str) -> Shot | None:
        if not (covers(chaos.op, request.op) and fits_key(chaos.key, request.keys)):
            return None
        turn = self._turn("chaos", request.op, stream)
        left = _uniform(chaos.seed, "chaos", request.op, stream, turn, "strike")
        row = f"{request.op} {stream}"
        for fault, rate in chaos.rates.items():
            left -= rate if can_meet(fault, request.op) else 0.0
            if left < 0:
                if (
                    self._in_a_row[row] >= chaos.in_a_row
                    or self._is_quiet(chaos)
                    or not self._is_possible(fault, request)
                ):
                    break
                self._in_a_row[row] += 1
                return Shot(fault, _uniform(chaos.seed, "chaos", request.op, stream, turn, "draw"), None)
        self._in_a_row.pop(row, None)
        return None

    def _turn(self, *what: object) -> int:
        self._turns[what] += 1
        return self._turns[what]

    def _is_possible(self, fault: Fault, request: Request) -> bool:
        if not isinstance(fault, StaleAbsence):
            return True
        at = self._written.get(request.key)
        return at is not None and self._clock.monotonic() - at < fault.within_s

    def _is_quiet(self, chaos: Chaos) -> bool:
        if chaos.quiet is None:
            return False
        period = chaos.quiet.storm_s + chaos.quiet.calm_s
        return (self._clock.monotonic() - self._began) % period >= chaos.quiet.storm_s


def _uniform(*parts: object) -> float:
    """Return a number from 0 (included) to 1 (excluded) that depends only on the parts, in any process and version."""
    digest = blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53
