"""Faults between a client and an S3 server as values: a fault, the requests that it affects, and plans of many.

Standard library only. ``Script`` is for tests that say exactly which request meets which fault; ``Chaos`` for runs that
draw faults from a seed.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeVar, get_args

from brokerless.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Op = Literal["PUT", "CONDITIONAL_PUT", "GET", "HEAD", "LIST", "DELETE", "MULTIPART", "OTHER"]
"""``PUT`` is every PUT of an object, ``CONDITIONAL_PUT`` those with ``If-None-Match`` or ``If-Match``; ``DELETE`` also
the deletion of many objects by one request; ``MULTIPART`` every request of a multipart upload; ``OTHER`` the rest, such
as the creation of a bucket."""

_Value = TypeVar("_Value")

OPS: Final[tuple[Op, ...]] = get_args(Op)


@dataclass(frozen=True, slots=True)
class Fault:
    """Base of all faults.

    Attributes:
        ops: the kinds of request that it can meet; a rule without ``op`` leaves the others alone. None: all.
    """

    ops: ClassVar[frozenset[Op] | None] = None

    @property
    def kind(self) -> str:
        """The name of the fault in the log and in the counters."""
        return type(self).__name__

    @property
    def reaches_server(self) -> bool:
        """Whether the server gets the request, whatever answer the client gets."""
        return bool(getattr(self, "applied", True))


@dataclass(frozen=True, slots=True)
class LostRequest(Fault):
    """The connection is closed without an answer; the server never saw the request."""

    applied: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class LostAnswer(Fault):
    """The connection is closed without an answer, after the server has applied the request."""


@dataclass(frozen=True, slots=True)
class Reset(Fault):
    """The connection is reset (TCP RST) instead of answered; the server sees the request only if ``applied``."""

    applied: bool = False


@dataclass(frozen=True, slots=True)
class Stalled(Fault):
    """Nothing is answered for ``limit_s`` seconds, or until the client gives up; then the connection is closed."""

    limit_s: float = 60.0
    applied: bool = False

    def __post_init__(self) -> None:
        _check(self, self.limit_s > 0, "limit_s must be positive")


@dataclass(frozen=True, slots=True)
class Answer(Fault):
    """An error answer with this status and S3 error code; the server sees the request only if ``applied``."""

    status: int
    code: str
    applied: bool = False

    def __post_init__(self) -> None:
        _check(self, 400 <= self.status <= 599, "status must be from 400 to 599")
        _check(self, re.fullmatch(r"\w+", self.code) is not None, "code must be one word")


@dataclass(frozen=True, slots=True)
class ServerError(Answer):
    """500, or another 5xx such as 502 or 503 from a load balancer."""

    status: int = 500
    code: str = "InternalError"


@dataclass(frozen=True, slots=True)
class SlowDown(Answer):
    """503 SlowDown, with which S3 throttles."""

    status: int = 503
    code: str = "SlowDown"


@dataclass(frozen=True, slots=True)
class Conflict(Answer):
    """409 ConditionalRequestConflict: S3's answer to a conditional PUT that met another one."""

    ops = frozenset({"CONDITIONAL_PUT"})
    status: int = 409
    code: str = "ConditionalRequestConflict"


@dataclass(frozen=True, slots=True)
class PreconditionFailed(Answer):
    """412 for a conditional PUT. With ``applied``, the answer to a retry that meets its own first attempt."""

    ops = frozenset({"CONDITIONAL_PUT"})
    status: int = 412
    code: str = "PreconditionFailed"


@dataclass(frozen=True, slots=True)
class Expired(Answer):
    """Expired credentials: 400 ExpiredToken, as S3 answers; other services and servers use 403."""

    status: int = 400
    code: str = "ExpiredToken"


@dataclass(frozen=True, slots=True)
class Denied(Answer):
    """403 AccessDenied: a permission is missing."""

    status: int = 403
    code: str = "AccessDenied"


@dataclass(frozen=True, slots=True)
class Latency(Fault):
    """A delay of ``seconds``, and of a random tail with the mean ``tail_s`` (exponential) on top.

    The request waits on its way to the server (``where="request"``), which gets it even if the client has given up
    meanwhile: a late PUT. Or the answer waits on its way back (``where="answer"``).
    """

    seconds: float = 0.0
    tail_s: float = 0.0
    where: Literal["request", "answer"] = "request"

    def __post_init__(self) -> None:
        _check(self, self.seconds >= 0 and self.tail_s >= 0, "seconds and tail_s must be 0 or more")
        _check(self, self.where in {"request", "answer"}, "where must be 'request' or 'answer'")


@dataclass(frozen=True, slots=True)
class Truncated(Fault):
    """Only this part of a successful answer's body is sent, less than its ``Content-Length``; then it is closed."""

    ops = frozenset({"GET", "LIST"})
    part: float = 0.5

    def __post_init__(self) -> None:
        _check(self, 0 <= self.part < 1, "part must be from 0 up to but not including 1")


@dataclass(frozen=True, slots=True)
class Corrupted(Fault):
    """One bit of a successful GET's body is flipped, at a position drawn from the seed."""

    ops = frozenset({"GET"})


@dataclass(frozen=True, slots=True)
class StaleAbsence(Fault):
    """404 for an object that was written through this proxy less than ``within_s`` seconds ago.

    S3 itself has not done this since 2020; caches and some S3-like stores do.
    """

    ops = frozenset({"GET", "HEAD"})
    within_s: float = 1.0
    applied: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(self, self.within_s > 0, "within_s must be positive")


@dataclass(frozen=True, slots=True)
class ClockSkew(Fault):
    """The ``Date`` of the answer is off by this many seconds: the server's clock is ahead (or behind, if negative)."""

    seconds: float = 3600.0


class Gate:
    """A gate where a held request waits, for tests that act while a request is in flight."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()
        self._dropped = False

    def wait_reached(self, timeout_s: float = 30.0) -> bool:
        """Wait for a request to reach the gate; return False if none did in time."""
        return self._reached.wait(timeout_s)

    def open(self) -> None:
        """Let waiting and later requests pass."""
        self._open.set()

    def drop(self) -> None:
        """Break the connections of waiting and later requests, so that none of them passes."""
        self._dropped = True
        self._open.set()

    def enter(self) -> bool:
        """Mark the gate as reached and wait until it is open; return whether it may be passed."""
        self._reached.set()
        self._open.wait()
        return not self._dropped


@dataclass(frozen=True, slots=True)
class Held(Fault):
    """The request waits at a gate until the test opens it, and then continues as usual. In-process only.

    If ``applied``, the server gets the request at once, and its answer is what waits; one that refuses it passes.
    """

    gate: Gate = field(compare=False, default_factory=Gate)
    applied: bool = False


KINDS: Final[Mapping[str, type[Fault]]] = {
    kind.__name__: kind
    for kind in (
        LostRequest,
        LostAnswer,
        Reset,
        Stalled,
        Answer,
        ServerError,
        SlowDown,
        Conflict,
        PreconditionFailed,
        Expired,
        Denied,
        Latency,
        Truncated,
        Corrupted,
        StaleAbsence,
        ClockSkew,
    )
}
"""The faults that JSON can name."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A fault and the requests that get it.

    Attributes:
        fault: what happens.
        op: only requests of this kind.
        key: only keys that this glob fits, from the start of the key or of any folder in it: ``t/_delta_log/*`` fits
            ``prefix/t/_delta_log/0.json``, too. ``*`` fits any text, slashes included. A LIST has its prefix as key.
        after: spare the first so many of them.
        times: strike so many of them; None for all.
        probability: strike each of the others with this probability only.
    """

    fault: Fault
    op: Op | None = None
    key: str = "*"
    after: int = 0
    times: int | None = 1
    probability: float = 1.0

    def __post_init__(self) -> None:
        _check(self, isinstance(self.fault, Fault), "fault must be a fault, such as SlowDown()")
        _check_op(self.fault, self.op)
        _check(self, self.after >= 0 and (self.times is None or self.times >= 1), "after is 0 or more, times 1 or more")
        _check(self, 0 < self.probability <= 1, "probability must be above 0 and at most 1")

    def fits(self, op: Op, keys: Sequence[str]) -> bool:
        """Whether the rule can affect a request of this kind for any of these objects."""
        return can_meet(self.fault, op) and covers(self.op, op) and fits_key(self.key, keys)


@dataclass(frozen=True, slots=True)
class Script:
    """Rules in order: each request gets the first fault that applies, and does not count for later rules.

    So two rules of one request each, for the same key, strike its first and its second request.
    """

    rules: Sequence[Rule] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))


@dataclass(frozen=True, slots=True)
class Quiet:
    """Times without faults: ``storm_s`` seconds with faults, then ``calm_s`` without, and so on from the start.

    What falls into them depends on the clock, so a run with quiet times can be repeated only about.
    """

    storm_s: float
    calm_s: float

    def __post_init__(self) -> None:
        _check(self, self.storm_s > 0 and self.calm_s > 0, "storm_s and calm_s must be positive")


@dataclass(frozen=True, slots=True)
class Chaos:
    """Faults drawn from a seed.

    Attributes:
        seed: the same seed, and the same sequence of requests for a key, give the same faults for this key.
        rates: which part of the requests meets which fault; together at most 1.
        op: only requests of this kind.
        key: only keys that this glob fits, as in ``Rule``.
        in_a_row: after so many faults in a row the key's next request is spared, so that who tries again gets through.
        quiet: times without faults; None for none.
    """

    seed: int
    rates: Mapping[Fault, float] = field(hash=False)
    op: Op | None = None
    key: str = "*"
    in_a_row: int = 3
    quiet: Quiet | None = None

    def __post_init__(self) -> None:
        for fault in self.rates:
            _check_op(fault, self.op)
        _check(self, all(rate >= 0 for rate in self.rates.values()), "rates must be 0 or more")
        _check(self, sum(self.rates.values()) <= 1 + 1e-9, "the rates together must be at most 1")
        _check(self, self.in_a_row >= 1, "in_a_row must be 1 or more")


Plan = Script | Chaos


def can_meet(fault: Fault, op: Op) -> bool:
    """Whether the fault makes sense for this kind of request."""
    return fault.ops is None or op in fault.ops


def covers(wanted: Op | None, op: Op) -> bool:
    """Whether a rule for ``wanted`` is for requests of the kind ``op``."""
    return wanted is None or wanted == op or (wanted == "PUT" and op == "CONDITIONAL_PUT")


def fits_key(pattern: str, keys: Sequence[str]) -> bool:
    """Whether the glob fits any of the keys, from the key's start or from that of any folder in it."""
    return pattern == "*" or any(_compiled(pattern).match("/" + key) is not None for key in keys)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate("*/" + pattern))


def _check(value: object, is_right: bool, rule: str) -> None:
    if not is_right:
        raise ConfigError(f"{value!r}: {rule}.")


def _check_op(fault: Fault, op: Op | None) -> None:
    if op is None:
        return
    if op not in OPS:
        raise ConfigError(f"Unknown op {op!r}; use one of {', '.join(OPS)}.")
    if fault.ops is not None and not any(covers(op, own) for own in fault.ops):
        raise ConfigError(f"{fault.kind} cannot happen to {op}; it is for {', '.join(sorted(fault.ops))}.")
