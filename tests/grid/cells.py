"""What can be struck: roles, the steps of their work, and the faults that make sense there. Pure.

A *cell* is (role, fault, step, side). The side says where the request is when the fault comes:

=======  ==============================================================================================
before   it has not left its process, or never reaches the server
late     it is on its way, and reaches the server only after the successor of its process has begun
after    the server has applied it, and the answer is on its way back
=======  ==============================================================================================

Left out on purpose, because no store does it or the documented limits say so: refusals (403, expired credentials) of
what was applied, flipped bits in log entries, and a consumer's zombie (it writes nothing, so nobody has to fence it).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Literal, get_args

from brokerless.testing import (
    Answer,
    ClockSkew,
    Conflict,
    Corrupted,
    Denied,
    Expired,
    Fault,
    Latency,
    LostAnswer,
    LostRequest,
    Op,
    PreconditionFailed,
    Reset,
    ServerError,
    SlowDown,
    StaleAbsence,
    Stalled,
    Truncated,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Role = Literal[
    "producer", "consumer", "maintenance", "server", "pipeline", "worker", "planner", "realtime", "jvm"
]  # fmt: skip
"""``pipeline`` runs in micro-batches; ``worker`` and ``planner`` are the Python processes below its driver that read
objects and follow logs. ``realtime`` is the same pipeline in real-time mode, where one Python process reads, uploads
and commits, and ``jvm`` the one below it that transforms the rows."""

Side = Literal["before", "late", "after"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)
PIPELINES: Final[tuple[Role, ...]] = ("pipeline", "realtime")
BELOW: Final[dict[Role, Role]] = {"worker": "pipeline", "planner": "pipeline", "jvm": "realtime"}
"""Processes of a pipeline that bear no name of their own, and whose they are."""

SPARK: Final[frozenset[Role]] = frozenset({*PIPELINES, *BELOW})

TOPIC: Final = "timezone1"
OUTPUT: Final = "timezone_unified"
OUTPUTS: Final[dict[Role, str]] = {"pipeline": OUTPUT, "realtime": "timezone_realtime"}


@dataclass(frozen=True, slots=True)
class Step:
    """A kind of request in a role's work.

    Attributes:
        key: a glob as in ``Rule``.
        at_start: only a new incarnation sends it, so one is started to be struck.
        by: whose request it is, where that is not the role that is struck: the server's.
        settles: only once the run is as old as the log retention.
    """

    name: str
    op: Op
    key: str
    at_start: bool = False
    by: Role | None = None
    settles: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """One attack. ``fault`` is a name from ``PROCESS_FAULTS`` or ``REQUEST_FAULTS``."""

    role: Role
    fault: str
    step: Step
    side: Side

    def __str__(self) -> str:
        return f"{self.role}/{self.fault}/{self.step.name}:{self.side}"

    @property
    def pipeline(self) -> Role | None:
        """The pipeline without which it cannot be played."""
        role = self.step.by or BELOW.get(self.role, self.role)
        return role if role in PIPELINES else None

    @property
    def needs_spark(self) -> bool:
        """Whether it can be played only where a pipeline runs."""
        return self.pipeline is not None

    @property
    def restarts_spark(self) -> bool:
        """Whether the pipeline has to be started anew, which takes many times longer than all else."""
        ends = {"kill", "zombie", *FATAL} if self.role in PIPELINES else {"kill"}
        return self.role in SPARK and (self.step.at_start or self.fault in ends)


_ENTRY: Final = "_delta_log/*.json"
_COMMIT: Final[Op] = "CONDITIONAL_PUT"


def _steps_of(output: str) -> tuple[Step, ...]:
    """The steps of a pipeline's work."""
    letters = f"{output}.dead_letters"
    return (
        Step("letters-object", "PUT", f"{letters}/part-*"),
        Step("letters-entry", _COMMIT, f"{letters}/{_ENTRY}"),
        Step("output-object", "PUT", f"{output}/part-*"),
        Step("output-entry", _COMMIT, f"{output}/{_ENTRY}"),
        Step("input-entry", "GET", f"{TOPIC}*/{_ENTRY}"),
        Step("input-object", "GET", f"{TOPIC}*/part-*"),
        Step("claim", _COMMIT, f"{output}*/{_ENTRY}", at_start=True),
    )


STEPS: Final[dict[Role, tuple[Step, ...]]] = {
    "producer": (
        Step("object", "PUT", f"{TOPIC}*/part-*"),
        Step("entry", _COMMIT, f"{TOPIC}*/{_ENTRY}"),
        Step("rival", "GET", f"{TOPIC}*/{_ENTRY}"),
        Step("claim", _COMMIT, f"{TOPIC}*/{_ENTRY}", at_start=True),
        Step("open", "GET", f"{TOPIC}/_delta_log/*", at_start=True),
    ),
    "consumer": (
        Step("entry", "GET", f"{TOPIC}*/{_ENTRY}"),
        Step("object", "GET", f"{TOPIC}*/part-*"),
        Step("open", "GET", f"{TOPIC}/_delta_log/*", at_start=True),
    ),
    "maintenance": (
        Step("checkpoint", "PUT", "_delta_log/*.checkpoint.parquet"),
        Step("hint", "PUT", "_delta_log/_last_checkpoint"),
        Step("list", "LIST", "*"),
        Step("remove-entry", "DELETE", f"*/{_ENTRY}", settles=True),
        Step("remove-object", "DELETE", "part-*", settles=True),
    ),
    "server": (
        Step("producer.object", "PUT", f"{TOPIC}*/part-*", by="producer"),
        Step("producer.entry", _COMMIT, f"{TOPIC}*/{_ENTRY}", by="producer"),
        Step("consumer.object", "GET", f"{TOPIC}*/part-*", by="consumer"),
        Step("maintenance.checkpoint", "PUT", "_delta_log/*.checkpoint.parquet", by="maintenance"),
        Step("maintenance.hint", "PUT", "_delta_log/_last_checkpoint", by="maintenance"),
        Step("maintenance.remove-entry", "DELETE", f"*/{_ENTRY}", by="maintenance", settles=True),
        *(Step(f"{role}.entry", _COMMIT, f"{output}/{_ENTRY}", by=role) for role, output in OUTPUTS.items()),
    ),
    "pipeline": _steps_of(OUTPUTS["pipeline"]),
    "realtime": _steps_of(OUTPUTS["realtime"]),
    "worker": (Step("input-object", "GET", f"{TOPIC}*/part-*"),),
    "planner": (Step("input-entry", "GET", f"{TOPIC}*/{_ENTRY}"),),
    "jvm": (
        Step("input-object", "GET", f"{TOPIC}*/part-*"),
        Step("output-entry", _COMMIT, f"{OUTPUTS['realtime']}/{_ENTRY}"),
    ),
}

_PROCESS_FAULTS: Final[dict[str, frozenset[Role]]] = {
    "kill": frozenset(ROLES),
    "pause": frozenset(ROLES),
    "zombie": frozenset({"producer", *PIPELINES}),
    "cut": frozenset({"producer", "consumer", "maintenance", *PIPELINES}),
}
"""Faults of a process or of its network, and who can meet them."""

REQUEST_FAULTS: Final[dict[str, dict[Side, Fault]]] = {
    "lost-request": {"before": LostRequest()},
    "lost-answer": {"after": LostAnswer()},
    "reset": {"before": Reset(), "after": Reset(applied=True)},
    "stalled": {"before": Stalled(1.5), "after": Stalled(1.5, applied=True)},
    "answer": {"before": Answer(507, "Odd"), "after": Answer(507, "Odd", applied=True)},
    "server-error": {"before": ServerError(), "after": ServerError(502, applied=True)},
    "slow-down": {"before": SlowDown(), "after": SlowDown(applied=True)},
    "conflict": {"before": Conflict(), "after": Conflict(applied=True)},
    "precondition-failed": {"before": PreconditionFailed(), "after": PreconditionFailed(applied=True)},
    "denied": {"before": Denied()},
    "expired": {"before": Expired()},
    "latency": {"before": Latency(1.5), "after": Latency(1.5, where="answer")},
    "truncated": {"after": Truncated()},
    "corrupted": {"after": Corrupted()},
    "stale-absence": {"after": StaleAbsence(within_s=10.0)},
    "clock-skew": {"after": ClockSkew(3600.0)},
}
"""Faults of one request, by the side on which they strike it."""

FATAL: Final[frozenset[str]] = frozenset({"denied", "expired"})
"""A pipeline that meets these ends by their name, and its supervisor starts it again."""


def all_cells() -> list[Cell]:
    """Every cell there is."""
    return [cell for role in ROLES for step in STEPS[role] for cell in _cells_of(role, step)]


def _cells_of(role: Role, step: Step) -> Iterator[Cell]:
    writes = step.op in {"PUT", _COMMIT, "DELETE"}
    for fault, roles in _PROCESS_FAULTS.items():
        if fault == "zombie" and step.at_start:
            continue  # who has not claimed everything yet is no owner: it wakes up as the successor
        if role in roles:
            # A late request of a pause is the one before it; only a writer's late request can do harm.
            sides: list[Side] = ["before", "after"]
            if fault == "kill" and writes and role in {"producer", "maintenance", *PIPELINES}:
                sides.insert(1, "late")
            yield from (Cell(role, fault, step, side) for side in sides)
    if role == "server" or role in BELOW:
        return  # their requests are those of other roles
    for name, by_side in REQUEST_FAULTS.items():
        for side, fault_of_side in by_side.items():
            if _can_meet(name, fault_of_side, step):
                yield Cell(role, name, step, side)


def _can_meet(name: str, fault: Fault, step: Step) -> bool:
    if name == "corrupted":
        return step.op == "GET" and step.key.endswith("part-*")
    if name == "stale-absence":
        return step.op == _COMMIT  # its own entry, whose answer was lost, seems to be absent
    return fault.ops is None or step.op in fault.ops


def chosen(cells: Sequence[Cell], globs: Sequence[str]) -> list[Cell]:
    """The cells that one of the globs fits, in the order of the globs."""
    found: list[Cell] = []
    for glob in globs:
        found += [cell for cell in cells if fnmatchcase(str(cell), glob) and cell not in found]
    return found


DEAR_EVERY: Final = 8
"""One cell of so many may restart Spark: half a minute, in which ten others can be played."""

SETTLED_AFTER: Final = 12
"""So many cells come before the first one that needs a world as old as the log retention."""


def rota(cells: Sequence[Cell], seed: int) -> list[Cell]:
    """All cells in the seed's order: roles take turns, and so do a role's faults, so that any beginning is mixed."""
    rng = random.Random(seed)
    cheap = _mixed([cell for cell in cells if not cell.restarts_spark], rng)
    dear = _mixed([cell for cell in cells if cell.restarts_spark], rng)
    order: list[Cell] = []
    while cheap or dear:
        order += cheap[: DEAR_EVERY - 1]
        order += dear[:1]
        del cheap[: DEAR_EVERY - 1], dear[:1]
    return order


def settled(order: Sequence[Cell]) -> list[Cell]:
    """The same cells for one world: those that need it to be old come after others."""
    early = [cell for cell in order if not cell.step.settles][:SETTLED_AFTER]
    return early + [cell for cell in order if cell not in early]


def _mixed(cells: Sequence[Cell], rng: random.Random) -> list[Cell]:
    queues: list[list[Cell]] = []
    for role in rng.sample(ROLES, len(ROLES)):
        mine = [cell for cell in cells if cell.role == role]
        # Faults of processes get every second turn: in-process tests cannot play them.
        kinds = {cell.fault for cell in mine}
        faults = [[c for c in rng.sample(mine, len(mine)) if c.fault == fault] for fault in sorted(kinds)]
        rng.shuffle(faults)
        process = _in_turns([f for f in faults if f[0].fault in _PROCESS_FAULTS])
        request = _in_turns([f for f in faults if f[0].fault not in _PROCESS_FAULTS])
        queues.append(_in_turns([process, request]))
    return _in_turns(queues)


def _in_turns(queues: Sequence[Sequence[Cell]]) -> list[Cell]:
    longest = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
