"""Decide the next step of a pipeline: pure functions of its stored state, the service's runs, and the time.

The invariants are those of ``controller``, which carries out what is decided here. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from brokerless.aws.controller.services import JobLocation, Run, Start
from brokerless.aws.controller.states import Failure, Pending, PipelineState, RunRef

State = Literal["STARTING", "RUNNING", "STOPPING", "STOPPED", "WAITING", "GAVE_UP", "DELETED", "UNKNOWN"]
"""WAITING: nothing runs, and nothing may be started yet. UNKNOWN: the service could not list the runs."""

CALL_S: Final = 60.0
"""The least time between two calls for one start without an answer. The first call has ended long before
(``calls.client_config``)."""

DOUBT_S: Final = 360.0
"""After this time a start without an answer cannot arrive any more. AWS refuses a request whose signature is older than
five minutes; one more minute is for the run to become visible in lists."""

SUCCESSOR_S: Final = 600.0
"""How long Glue may take to start the successor of a run that it ended as EXPIRED: longer than a run takes to start,
and less than the 15 minutes after which the alarm for a pipeline that does not run is raised."""

HOUR_S: Final = 3600.0

_PAUSE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 600.0
_MAX_FAILURES: Final = 100
_MESSAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Stop:
    """A step that asks runs to end."""

    location: JobLocation
    run_ids: tuple[str, ...]
    grace_s: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The new state to store, and the step to take after that.

    Attributes:
        running: whether the accepted run is RUNNING.
    """

    record: PipelineState
    state: State
    reason: str
    action: Start | Stop | None = None
    running: bool = False


def decide(record: PipelineState, runs: tuple[Run, ...], *, now_us: int) -> Decision:
    """Return the next step of a pipeline. Pure.

    Args:
        record: the pipeline's state.
        runs: all live runs at its locations, and the accepted run even if it has ended.
        now_us: microseconds since the epoch.
    """
    if record.deleted:
        return Decision(record, "DELETED", "The pipeline was deleted.")
    record = _account(record, runs, now_us)
    alive = [run for run in _with_unseen(record, runs, now_us) if run.alive]
    # Of two runs the newer one is accepted: by its epoch in the output's log it has fenced the older one.
    accepted = max(
        (run for run in alive if _is_desired(record, run)), key=lambda run: (run.started_us, run.id), default=None
    )
    undesired = [run for run in alive if run is not accepted]
    record = _accept(record, accepted, now_us)
    if not record.in_doubt(now_us):
        record = replace(record, drain=tuple(p for p in record.drain if any(run.location == p for run in alive)))
    if undesired:
        running = accepted is not None and accepted.phase == "running"
        return replace(_stop(record, undesired), running=running)
    if accepted is not None:
        return _watch(record, accepted)
    return _rest_or_start(record, now_us)


def _is_desired(record: PipelineState, run: Run) -> bool:
    return record.wants_run and run.version == record.desired.version and run.location == record.desired.location


def _with_unseen(record: PipelineState, runs: tuple[Run, ...], now_us: int) -> tuple[Run, ...]:
    """Return the runs, and the accepted run even if the service does not list it yet.

    A run that is not listed for long counts as ended: its job or application was deleted.
    """
    ref = record.run
    if ref is None or any(run.id == ref.id for run in runs):
        return runs
    young = now_us < ref.since_us + _us(DOUBT_S)
    unseen = Run(
        id=ref.id,
        location=ref.location,
        version=ref.version,
        phase="starting" if young else "ended",
        outcome="" if young else "stopped",
        state="NOT FOUND",
        started_us=ref.since_us,
    )
    return (*runs, unseen)


def _account(record: PipelineState, runs: tuple[Run, ...], now_us: int) -> PipelineState:
    """Return the state with the outcome of a pending start, and with the end of the accepted run."""
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


def _expect_successor(record: PipelineState, runs: tuple[Run, ...], now_us: int) -> PipelineState:
    """Return the state that waits for Glue's own successor if the newest run has expired."""
    newest = max(runs, key=lambda run: run.started_us, default=None)
    if newest is None or newest.outcome != "expired" or newest.id == record.expired:
        return record
    return replace(record, expired=newest.id, successor_until_us=now_us + _us(SUCCESSOR_S))


def _ended(record: PipelineState, run: Run, now_us: int) -> PipelineState:
    asked = run.id in record.stopping
    record = replace(record, run=None, stopping=tuple(each for each in record.stopping if each != run.id))
    if asked or not _is_desired(record, run):
        return record
    record = replace(record, replaces=run.id)
    if run.outcome in ("stopped", "expired"):
        return record
    # A streaming job must not finish: one that finishes at once would be started for ever.
    return _failed(record, run.id, f"Run {run.id} ended as {run.state}: {run.error or 'without a message'}", now_us)


def _failed(record: PipelineState, run_id: str, message: str, now_us: int) -> PipelineState:
    """Return the state with one more failure, and give up if it is one too many."""
    failures = (*recent(record, now_us), Failure(now_us, run_id, message[:_MESSAGE]))[-_MAX_FAILURES:]
    # The first restart is immediate, because most failures are single ones. The pauses after it spread the failures
    # that are allowed in an hour over 15 minutes, so that a short outage of S3 does not use them up.
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


def _accept(record: PipelineState, accepted: Run | None, now_us: int) -> PipelineState:
    """Return the state that accepts a run, whoever started it, and has the time since when it is RUNNING."""
    if accepted is None:
        return record
    ref = record.run
    if ref is None or ref.id != accepted.id:
        ref = RunRef(accepted.id, accepted.location, accepted.version, since_us=now_us)
        record = replace(record, replaces="")
    running_since_us = (ref.running_since_us or now_us) if accepted.phase == "running" else 0
    settled = running_since_us > 0 and now_us - running_since_us >= _us(record.desired.settle_s)
    stopping = record.stopping
    if accepted.phase != "stopping":
        # It is desired again before the request to stop it arrived: its end is its own.
        stopping = tuple(each for each in stopping if each != accepted.id)
    return replace(
        record,
        run=replace(ref, running_since_us=running_since_us),
        settled=record.settled or settled,
        stopping=stopping,
    )


def _stop(record: PipelineState, undesired: list[Run]) -> Decision:
    names = ", ".join(f"{run.id} ({run.state})" for run in undesired)
    ask = [run for run in undesired if run.phase != "stopping"]
    if not ask:
        return Decision(record, "STOPPING", f"The controller waits for {names} to end.")
    location = ask[0].location
    ids = tuple(run.id for run in ask if run.location == location)
    record = replace(record, stopping=tuple(dict.fromkeys((*record.stopping, *ids))))
    return Decision(record, "STOPPING", f"The controller stops {names}.", Stop(location, ids, record.desired.grace_s))


def _watch(record: PipelineState, accepted: Run) -> Decision:
    text = f"Run {accepted.id} is {accepted.state}" + (f": {accepted.error}" if accepted.error else ".")
    states: dict[str, State] = {"running": "RUNNING", "stopping": "STOPPING"}
    return Decision(record, states.get(accepted.phase, "STARTING"), text, running=accepted.phase == "running")


def _rest_or_start(record: PipelineState, now_us: int) -> Decision:
    """Return the next step when no run is listed as alive."""
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
        return Decision(record, "WAITING", "A run may still appear by itself; the controller waits until it cannot.")
    return _start(record, now_us)


def _rest(record: PipelineState, *, in_doubt: bool) -> Decision:
    if in_doubt:
        return Decision(record, "STOPPING", "A run may still appear by itself; the controller waits until it cannot.")
    record = replace(record, pending=None, replaces="")
    if record.deleting:
        return Decision(replace(record, deleted=True), "DELETED", "Nothing runs, and the pipeline is deleted.")
    return Decision(record, "STOPPED", "Nothing runs, as desired.")


def _same(record: PipelineState, pending: Pending) -> bool:
    return pending.version == record.desired.version and pending.location == record.desired.location


def _start(record: PipelineState, now_us: int) -> Decision:
    if now_us < record.not_before_us:
        seconds = (record.not_before_us - now_us) / 1e6
        return Decision(
            record, "WAITING", f"The next run starts in {seconds:.0f} s, after: {record.failures[-1].message}"
        )
    number = record.attempt + 1
    desired = record.desired
    pending = Pending(f"{record.lineage}-{number}", desired.version, desired.location, now_us)
    record = replace(record, attempt=number, pending=pending, late_until_us=now_us + _us(DOUBT_S))
    return _ask(record, pending, "The controller starts a run.")


def _start_again(record: PipelineState, pending: Pending, now_us: int) -> Decision:
    if now_us < pending.asked_us + _us(CALL_S):
        return Decision(
            record, "STARTING", "A run was asked for; the controller waits for the answer, or for the run to appear."
        )
    pending = replace(pending, asked_us=now_us, calls=pending.calls + 1)
    record = replace(record, pending=pending, late_until_us=now_us + _us(DOUBT_S))
    return _ask(record, pending, "The controller asks again for a run whose start was not answered.")


def _ask(record: PipelineState, pending: Pending, reason: str) -> Decision:
    desired = record.desired
    start = Start(desired.pipeline, pending.location, pending.version, pending.label, desired.job)
    return Decision(record, "STARTING", reason, start)


def _answered(record: PipelineState, label: str) -> PipelineState | None:
    """Return the state without the pending start; None if another start is pending, or none.

    After a single call nothing can arrive by itself any more. After several calls an earlier one still can.
    """
    pending = record.pending
    if pending is None or pending.label != label:
        return None
    return replace(record, pending=None, late_until_us=0 if pending.calls == 1 else record.late_until_us)


def started(record: PipelineState, label: str, run_id: str, now_us: int) -> PipelineState:
    """Return the state after the start with this label has made a run."""
    answered = _answered(record, label)
    if answered is None or record.pending is None:
        return record
    run = RunRef(run_id, record.pending.location, record.pending.version, since_us=now_us)
    return replace(answered, run=run, restarts=record.restarts + bool(record.replaces), replaces="")


def not_started(record: PipelineState, label: str) -> PipelineState:
    """Return the state after the start with this label has made no run; another one may be made."""
    return _answered(record, label) or record


def refused(record: PipelineState, label: str, message: str, now_us: int) -> PipelineState:
    """Return the state after the service has refused the start with this label, which counts as a failed run."""
    answered = _answered(record, label)
    return record if answered is None else _failed(answered, "", message, now_us)


def recent(record: PipelineState, now_us: int) -> tuple[Failure, ...]:
    """Return the failures of the last hour."""
    return tuple(failure for failure in record.failures if now_us - failure.at_us < _us(HOUR_S))


def _us(seconds: float) -> int:
    return int(seconds * 1e6)


def locations(record: PipelineState) -> tuple[JobLocation, ...]:
    """Return the locations where the pipeline has runs, or may still have some from before it moved."""
    return (record.desired.location, *record.drain)
