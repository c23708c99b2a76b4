"""Tools for tests of programs that use brokerless: a proxy that injects faults in front of an S3 server.

``pytest_plugins = ["brokerless.testing.plugin"]`` brings it as the fixture ``fault_proxy``. Needs the
standard library only (and pytest, for the plugin).
"""

from __future__ import annotations

from brokerless.testing.faults import (
    Answer,
    Chaos,
    ClockSkew,
    Conflict,
    Corrupted,
    Denied,
    Expired,
    Fault,
    Gate,
    Held,
    Latency,
    LostAnswer,
    LostRequest,
    Op,
    Plan,
    PreconditionFailed,
    Quiet,
    Reset,
    Rule,
    Script,
    ServerError,
    SlowDown,
    StaleAbsence,
    Stalled,
    Truncated,
)
from brokerless.testing.injector import Injected
from brokerless.testing.proxy import FaultProxy

__all__ = [
    "Answer",
    "Chaos",
    "ClockSkew",
    "Conflict",
    "Corrupted",
    "Denied",
    "Expired",
    "Fault",
    "FaultProxy",
    "Gate",
    "Held",
    "Injected",
    "Latency",
    "LostAnswer",
    "LostRequest",
    "Op",
    "Plan",
    "PreconditionFailed",
    "Quiet",
    "Reset",
    "Rule",
    "Script",
    "ServerError",
    "SlowDown",
    "StaleAbsence",
    "Stalled",
    "Truncated",
]
