"""What to do next about a pipeline's runs: pure functions of its record, of what the services say, and of the time.

What must hold, and why, is said in ``controller``, which does what is decided here. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from brokerless.aws.controller.engines import Place, Run, Start
from brokerless.aws.controller.records import Failure, Pending, Record, RunRef

State = Literal["STARTING", "RUNNING", "STOPPING", "STOPPED", "WAITING", "GAVE_UP", "DELETED", "UNKNOWN"]
"""WAITING: nothing runs, and for the reason given nothing may be started yet. UNKNOWN: the service did not say."""

CALL_S: Final = 60.0
"""A start without answer is not asked for again sooner: the call of whoever asked is over by then, many times over
(``engines.client_config``)."""

DOUBT_S: Final = 360.0
"""After so long a start without answer cannot arrive any more. AWS refuses a request whose signature is older than five
minutes; one more for the run to become visible in lists."""

SUCCESSOR_S: Final = 600.0
"""How long Glue may take to start the successor of a run that it ended as EXPIRED. Longer than a run takes to start,
and less than the quarter of an hour after which the alarm on a pipeline that does not run goes off."""

HOUR_S: Final = 3600.0

_PAUSE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 600.0
_KEPT_FAILURES: Final = 100
_MESSAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask these runs to end."""

    place: Place
    run_ids: tuple[str, ...]
    grace_s: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What to remember, and then to do.

    Attributes:
        running: whether the run that is kept is RUNNING.
    """

    record: Record
    state: State
    reason: str
    action: Start | Stop | None = None
    running: bool = False


def decide(record: Record, runs: tuple[Run, ...], *, now_us: int) -> Decision:
    """The next step, from what is remembered and what the services say. Pure.

    Args:
        record: of the pipeline.
        runs: all live ones at its places, and the recorded one even if it has ended.
        now_us: microseconds since the epoch.
    """
    if record.deleted:
        return Decision(record, "DELETED", "The pipeline was deleted.")
    record = _account(record, runs, now_us)
    alive = [run for run in _with_unseen(record, runs, now_us) if run.alive]
    # Of two the newer one is kept: by its epoch in the output's log it has fenced the older one, which ends anyway.
    kept = max((run for run in alive if _wanted(record, run)), key=lambda run: (run.started_us, run.id), default=None)
    unwanted = [run for run in alive if run is not kept]
    record = _keep(record, kept, now_us)
    if not record.in_doubt(now_us):
        record = replace(record, drain=tuple(p for p in record.drain if any(run.place == p for run in alive)))
    if unwanted:
        running = kept is not None and kept.phase == "running"
        return replace(_stop(record, unwanted), running=running)
    if kept is not None:
        return _watch(record, kept)
    return _rest_or_start(record, now_us)


def _wanted(record: Record, run: Run) -> bool:
    return record.wants_run and run.version == record.desired.version and run.place == record.desired.place


def _with_unseen(record: Record, runs: tuple[Run, ...], now_us: int) -> tuple[Run, ...]:
    """The runs, and the recorded one although it is not among them: lists lag behind starts.

    When it has been missing for long it counts as ended: its job or application was deleted.
    """
    ref = record.run
    if ref is None or any(run.id == ref.id for run in runs):
        return runs
    young = now_us < ref.since_us + _us(DOUBT_S)
    unseen = Run(
        id=ref.id,
        place=ref.place,
        version=ref.version,
        phase="starting" if young else "ended",
        outcome="" if young else "stopped",
        state="NOT FOUND",
        started_us=ref.since_us,
    )
    return (*runs, unseen)


def _account(record: Record, runs: tuple[Run, ...], now_us: int) -> Record:
    """Finds the answer to an open start among the runs, and takes note if the pipeline's run has ended or expired."""
    record = _expect_successor(record, runs, now_us)
    pending = record.pending
    if pending is not None:
        answer = next((run for run in runs if (run.version, run.label) == (pending.version, pending.label)), None)
        if answer is not None:
            record = started(record, pending.label, answer.id, now_us)
    if record.run is None:
        return record
    run_id = record.run.id
    run = next(run for run in _with_unseen(record, runs, now_us) if run.id == run_id)
    return record if run.alive else _ended(record, run, now_us)


def _expect_successor(record: Record, runs: tuple[Run, ...], now_us: int) -> Record:
    """Waits for what Glue starts itself, if the newest run has expired, whoever knew of that run."""
    newest = max(runs, key=lambda run: run.started_us, default=None)
    if newest is None or newest.outcome != "expired" or newest.id == record.expired:
        return record
    return replace(record, expired=newest.id, successor_until_us=now_us + _us(SUCCESSOR_S))


def _ended(record: Record, run: Run, now_us: int) -> Record:
    asked = run.id in record.stopping
    record = replace(record, run=None, stopping=tuple(each for each in record.stopping if each != run.id))
    if asked or not _wanted(record, run):
        return record
    record = replace(record, replaces=run.id)
    if run.outcome in ("stopped", "expired"):
        return record
    # A streaming job has no good end of its own: one that finishes at once would be started for ever.
    return _failed(record, run.id, f"Run {run.id} ended as {run.state}: {run.error or 'without a message'}", now_us)


def _failed(record: Record, run_id: str, message: str, now_us: int) -> Record:
    """Takes note of a failure, and gives up if it was one too many."""
    failures = (*recent(record, now_us), Failure(now_us, run_id, message[:_MESSAGE]))[-_KEPT_FAILURES:]
    # The first restart is immediate, because most failures are single ones. The pauses after it spread the failures
    # that are allowed in an hour over a quarter of one, so that a short outage of S3 does not use them up.
    pause_s = 0.0 if len(failures) == 1 else min(_LONGEST_PAUSE_S, _PAUSE_S * 2.0 ** (len(failures) - 2))
    since_deploy = record.deploy_failures + (not record.settled)
    desired, gave_up = record.desired, ""
    if not record.settled and since_deploy >= desired.max_start_failures:
        gave_up = f"{since_deploy} runs failed since the deployment, before one was stable"
    elif len(failures) >= desired.max_failures_per_hour:
        gave_up = f"{len(failures)} runs failed within an hour"
    if gave_up:
        gave_up = (
            f"Pipeline {desired.pipeline!r} is down: {gave_up}. The last: {message[:_MESSAGE]}. "
            "Deploy a version that works, or reset the pipeline."
        )
    return replace(
        record,
        failures=failures,
        run_failures=record.run_failures + 1,
        deploy_failures=since_deploy,
        not_before_us=now_us + _us(pause_s),
        gave_up=gave_up,
    )


def _keep(record: Record, kept: Run | None, now_us: int) -> Record:
    """Adopts the run that is kept, whoever started it, and notes since when it is RUNNING."""
    if kept is None:
        return record
    ref = record.run
    if ref is None or ref.id != kept.id:
        ref = RunRef(kept.id, kept.place, kept.version, since_us=now_us)
        record = replace(record, replaces="")
    running_since_us = (ref.running_since_us or now_us) if kept.phase == "running" else 0
    settled = running_since_us > 0 and now_us - running_since_us >= _us(record.desired.settle_s)
    stopping = record.stopping
    if kept.phase != "stopping":
        # Wanted again before the request to stop it got through: its end will be one of its own.
        stopping = tuple(each for each in stopping if each != kept.id)
    return replace(
        record,
        run=replace(ref, running_since_us=running_since_us),
        settled=record.settled or settled,
        stopping=stopping,
    )


def _stop(record: Record, unwanted: list[Run]) -> Decision:
    names = ", ".join(f"{run.id} ({run.state})" for run in unwanted)
    ask = [run for run in unwanted if run.phase != "stopping"]
    if not ask:
        return Decision(record, "STOPPING", f"Waits for {names} to end.")
    place = ask[0].place
    ids = tuple(run.id for run in ask if run.place == place)
    record = replace(record, stopping=tuple(dict.fromkeys((*record.stopping, *ids))))
    return Decision(record, "STOPPING", f"Stops {names}.", Stop(place, ids, record.desired.grace_s))


def _watch(record: Record, kept: Run) -> Decision:
    text = f"Run {kept.id} is {kept.state}" + (f": {kept.error}" if kept.error else ".")
    states: dict[str, State] = {"running": "RUNNING", "stopping": "STOPPING"}
    return Decision(record, states.get(kept.phase, "STARTING"), text, running=kept.phase == "running")


def _rest_or_start(record: Record, now_us: int) -> Decision:
    """Nothing is alive, as far as can be seen."""
    in_doubt = record.in_doubt(now_us)
    if not in_doubt and record.pending is not None and not _same(record, record.pending):
        record = replace(record, pending=None)
    if not record.wants_run:
        return _rest(record, in_doubt=in_doubt)
    if record.gave_up:
        return Decision(record, "GAVE_UP", record.gave_up)
    if record.pending is not None and _same(record, record.pending):
        return _start_again(record, record.pending, now_us)
    if in_doubt:
        return Decision(record, "WAITING", "A run may still appear by itself; waits until it cannot.")
    return _start(record, now_us)


def _rest(record: Record, *, in_doubt: bool) -> Decision:
    if in_doubt:
        return Decision(record, "STOPPING", "A run may still appear by itself; waits until it cannot.")
    record = replace(record, pending=None, replaces="")
    if record.deleting:
        return Decision(replace(record, deleted=True), "DELETED", "Nothing runs; deleted.")
    return Decision(record, "STOPPED", "Nothing runs, as it is wanted.")


def _same(record: Record, pending: Pending) -> bool:
    return pending.version == record.desired.version and pending.place == record.desired.place


def _start(record: Record, now_us: int) -> Decision:
    if now_us < record.not_before_us:
        seconds = (record.not_before_us - now_us) / 1e6
        return Decision(record, "WAITING", f"Starts in {seconds:.0f} s, after: {record.failures[-1].message}")
    number = record.attempt + 1
    desired = record.desired
    pending = Pending(f"{record.lineage}-{number}", desired.version, desired.place, now_us)
    record = replace(record, attempt=number, pending=pending, late_until_us=now_us + _us(DOUBT_S))
    return _ask(record, pending, "Starts a run.")


def _start_again(record: Record, pending: Pending, now_us: int) -> Decision:
    if now_us < pending.asked_us + _us(CALL_S):
        return Decision(record, "STARTING", "A run was asked for; waits for the answer, or to see the run.")
    pending = replace(pending, asked_us=now_us, calls=pending.calls + 1)
    record = replace(record, pending=pending, late_until_us=now_us + _us(DOUBT_S))
    return _ask(record, pending, "Asks again for a run whose start was not answered.")


def _ask(record: Record, pending: Pending, reason: str) -> Decision:
    desired = record.desired
    start = Start(desired.pipeline, pending.place, pending.version, pending.label, desired.job)
    return Decision(record, "STARTING", reason, start)


def _answered(record: Record, label: str) -> Record | None:
    """The record without the open start; None if that is another one by now, or none.

    With the only call answered, nothing can arrive by itself any more. After several, an earlier one still might.
    """
    pending = record.pending
    if pending is None or pending.label != label:
        return None
    return replace(record, pending=None, late_until_us=0 if pending.calls == 1 else record.late_until_us)


def started(record: Record, label: str, run_id: str, now_us: int) -> Record:
    """The record once the start with this label is known to have made a run."""
    answered = _answered(record, label)
    if answered is None or record.pending is None:
        return record
    run = RunRef(run_id, record.pending.place, record.pending.version, since_us=now_us)
    return replace(answered, run=run, restarts=record.restarts + bool(record.replaces), replaces="")


def not_started(record: Record, label: str) -> Record:
    """The record once it is known that the start with this label did not happen; another one may be made."""
    return _answered(record, label) or record


def refused(record: Record, label: str, message: str, now_us: int) -> Record:
    """The record once the service has refused the start with this label, which counts as a failed run."""
    answered = _answered(record, label)
    return record if answered is None else _failed(answered, "", message, now_us)


def recent(record: Record, now_us: int) -> tuple[Failure, ...]:
    """The failures of the last hour."""
    return tuple(failure for failure in record.failures if now_us - failure.at_us < _us(HOUR_S))


def _us(seconds: float) -> int:
    return int(seconds * 1e6)


def places(record: Record) -> tuple[Place, ...]:
    """Where the pipeline has runs, or may still have some from before it moved."""
    return (record.desired.place, *record.drain)
