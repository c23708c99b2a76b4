"""Plays one cell: brings the request of its step to a halt, does the harm, and shows that it was done."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Final

from brokerless.store import RETRY_TIMEOUT_S
from brokerless.testing import Gate, Held, LostAnswer, Reset, Rule, Script, StaleAbsence
from tests.grid.cells import BELOW, FATAL, PIPELINES, REQUEST_FAULTS
from tests.grid.world import GridError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.grid.cells import Cell
    from tests.grid.world import Incarnation, World

FENCED: Final = {"producer": "ProducerFenced", "pipeline": "PipelineFenced", "realtime": "PipelineFenced"}
_STILL_TOLD: Final = {"producer": 1, "pipeline": 2, "realtime": 2}
"""Turns that a zombie may report: of the commit before its successor came. A pipeline may owe one from before that."""

_BELOW: Final = {"worker": "pyspark.worker", "planner": "python_streaming_source_runner", "jvm": "SparkSubmit"}
"""What the command of these processes of a pipeline says."""

_ORPHANED_S: Final = 10.0
"""How long a pipeline may outlive its JVM: it must say what happened, so that its supervisor starts it anew."""


def strike(world: World, cell: Cell) -> None:
    """Plays the cell and waits until every role makes progress again.

    Raises:
        GridError: nothing was struck, the harm was not what it should be, or somebody did not recover from it.
    """
    victim = _victim(world, cell)
    if cell.fault in REQUEST_FAULTS:
        _strike_request(world, cell, victim)
    else:
        gate = Gate()
        applied = cell.side == "after"
        victim.proxy.add(Rule(Held(gate, applied=applied), op=cell.step.op, key=cell.step.key))
        try:
            world.wait(f"a request for {cell}", lambda: gate.wait_reached(0), within_s=world.plan.moment_s)
            _PLAYS[cell.role if cell.role in _PLAYS else cell.fault](world, cell, victim, gate)
        finally:
            gate.drop()
    world.settle()


def rules_of(cell: Cell) -> list[Rule]:
    """What the proxy is told, for a fault of a request. The first rule strikes the cell's own step."""
    fault, step = REQUEST_FAULTS[cell.fault][cell.side], cell.step
    if isinstance(fault, StaleAbsence):
        # Who is not told that an entry was written looks for it, and does not find it.
        return [Rule(LostAnswer(), op=step.op, key=step.key), Rule(fault, op="GET", key=step.key)]
    return [Rule(fault, op=step.op, key=step.key)]


def _victim(world: World, cell: Cell) -> Incarnation:
    role = cell.step.by or BELOW.get(cell.role, cell.role)
    if not cell.step.at_start:
        return world.current[role]
    before = world.current[role]
    before.kill()
    victim = world.start(role)
    world.forget(before)
    return victim


def _strike_request(world: World, cell: Cell, victim: Incarnation) -> None:
    rules = rules_of(cell)
    proxy = victim.proxy
    seen = len(proxy.log())

    def is_struck() -> bool:
        nonlocal seen
        lines = [line for line in proxy.log()[seen:] if line.fault == rules[0].fault]
        if lines and cell.side == "after" and not any(line.applied for line in lines):
            # The server had refused what was struck: a rival was faster, or nothing is there yet.
            seen = len(proxy.log())
            proxy.play(Script(rules))
            return False
        return bool(lines) and not proxy.pending()

    proxy.play(Script(rules))
    world.wait(f"a request for {cell}", is_struck, within_s=world.plan.moment_s)
    proxy.clear()
    world.counts["faults of requests"] += 1
    if victim.role in PIPELINES and cell.fault in FATAL:  # or the next cell would wait for requests of the dying
        world.wait(f"a successor of {victim}", lambda: world.current[victim.role] is not victim)


def _kill(world: World, cell: Cell, victim: Incarnation, gate: Gate) -> None:
    victim.kill()
    if victim.process.returncode != -signal.SIGKILL:
        raise GridError(f"{victim} was not killed, but ended with {victim.process.returncode}: {victim.error()}")
    world.counts["kills"] += 1
    if cell.side != "late":
        gate.drop()
    successor = world.start(victim.role)
    if cell.side == "late":
        world.wait_progress(successor)
        gate.open()
    world.forget(victim)


def _pause(world: World, cell: Cell, victim: Incarnation, gate: Gate) -> None:
    victim.signal(signal.SIGSTOP)
    gate.open()
    world.clock.sleep(world.plan.pause_s)
    victim.signal(signal.SIGCONT)
    world.counts["pauses"] += 1


def _zombie(world: World, cell: Cell, victim: Incarnation, gate: Gate) -> None:
    victim.signal(signal.SIGSTOP)
    stopped = world.clock.monotonic()
    world.wait_progress(world.start(victim.role))
    gate.open()
    turns = victim.turns
    slept_s = world.clock.monotonic() - stopped
    victim.signal(signal.SIGCONT)
    last = turns + _STILL_TOLD[victim.role]
    world.wait(f"the end of {victim}", lambda: not victim.is_running or victim.turns > last)
    if victim.is_running:
        raise GridError(f"{victim} works on beside its successor")
    if slept_s > RETRY_TIMEOUT_S and victim.error().startswith("StoreUnavailable"):
        # Its request had no time left when it woke up, so it did not come as far as the fence.
        world.counts["zombies timed out"] += 1
    elif victim.error().startswith(FENCED[victim.role]):
        world.counts["zombies fenced"] += 1
    else:
        raise GridError(
            f"{victim} woke up after its successor and ended without {FENCED[victim.role]}: {victim.error()!r}"
        )
    world.forget(victim)


def _cut(world: World, cell: Cell, victim: Incarnation, gate: Gate) -> None:
    victim.proxy.add(Rule(Reset(), times=None))
    gate.drop()
    world.clock.sleep(world.plan.pause_s)
    victim.proxy.clear()
    if not victim.proxy.faults["Reset"]:
        raise GridError(f"{victim} sent nothing while its network was cut")
    world.counts["cuts"] += 1


def _strike_server(world: World, cell: Cell, victim: Incarnation, gate: Gate) -> None:
    if cell.fault == "kill":
        world.restart_server()
        world.counts["kills"] += 1
        gate.open()
        return
    world.signal_server(signal.SIGSTOP)
    gate.open()
    world.clock.sleep(world.plan.pause_s)
    world.signal_server(signal.SIGCONT)
    world.counts["pauses"] += 1


def _strike_below(world: World, cell: Cell, victim: Incarnation, gate: Gate) -> None:
    below = victim.children(_BELOW[cell.role])
    if not below:
        raise GridError(f"{victim} has no {cell.role} process")
    for pid in below:
        os.kill(pid, signal.SIGKILL if cell.fault == "kill" else signal.SIGSTOP)
    if cell.fault == "kill":
        gate.drop()
        world.counts["kills"] += 1
        if cell.role == "jvm":
            _check_orphaned(victim)
        return
    gate.open()
    world.clock.sleep(world.plan.pause_s)
    for pid in below:
        os.kill(pid, signal.SIGCONT)
    world.counts["pauses"] += 1


def _check_orphaned(victim: Incarnation) -> None:
    """Without its JVM a pipeline must end soon, and by a name; the world then starts it anew."""
    try:
        code = victim.process.wait(_ORPHANED_S)
    except subprocess.TimeoutExpired:
        raise GridError(f"{victim} still runs {_ORPHANED_S:g} s after its JVM was killed") from None
    if code != 1 or not victim.error().startswith("PipelineError"):
        raise GridError(f"{victim} ended with exit code {code} and {victim.error()!r} after its JVM was killed")


_PLAYS: Final[dict[str, Callable[[World, Cell, Incarnation, Gate], None]]] = {
    "kill": _kill,
    "pause": _pause,
    "zombie": _zombie,
    "cut": _cut,
    "server": _strike_server,
    "worker": _strike_below,
    "planner": _strike_below,
    "jvm": _strike_below,
}
