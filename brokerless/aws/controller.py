"""Keeps each pipeline's job as its last deployment wants it: running, the right version, once.

Invariants, whatever is lost, repeated, late or done at the same time:

1. Never two live runs of a pipeline that the controller started.
2. If faults cease, what runs becomes what is wanted.
3. After a deletion is done, nothing runs.

A lost record breaks none of them, unless a start without answer or a run too young to be listed is lost with it.

**The loop.** CloudFormation, events and a schedule all end in ``Controller.reconcile``. It reads the pipeline's record,
asks the service which runs there are, lets ``decide`` compare, and takes at most one step: stop runs that should not
be, or start one if none is alive. Events only say when to look, never what is there: they get lost, doubled and late.

**Why no second run.** A start is written into the record, by compare-and-set, before it is asked for; of two
invocations one gets to ask. Until the answer is known the record says so, and no other start is made: the same one is
asked for again (EMR Serverless knows it by its token; a Glue job refuses a second run at once), or, if it is not wanted
any more, it is waited for until it cannot arrive any more (``DOUBT_S``). The same doubt holds when Glue ends a run as
EXPIRED: it starts the successor by itself.

**What ends by itself is started again**, also what a person stopped: to stop a pipeline, deploy it as STOPPED. Too many
failures within an hour, and the controller gives up. It stays so until a deployment or a ``reset``: a quiet hour proves
nothing when nothing runs, and starting again on its own would turn one page of an outage into one each hour.

**A deployment** is done when a run of its version has been RUNNING for a while, and fails with the run's own error
after a few failed ones. CloudFormation then sends the old properties, and the old version starts like any other.

Standard library only. Services, records, time and reporting are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from brokerless.aws.engines import AnswerLost, Engine, EngineBusy, EngineName, Place, Run, Start, StartRefused
from brokerless.aws.pipeline_records import Desired, Failure, Pending, Record, Records, RunRef
from brokerless.errors import BrokerlessError, ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokerless.clock import Clock

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
_SAVES: Final = 8
_MESSAGE: Final = 1000


class DeployFailed(BrokerlessError):
    """The deployment cannot be done; CloudFormation is to roll it back."""


@dataclass(frozen=True, slots=True)
class Request:
    """What CloudFormation asks for.

    Attributes:
        owner: the custom resource: its stack's id and its logical id.
        id: of this request; the same if it is sent again.
        delete: whether to stop the pipeline and forget it.
        previous: where the pipeline was before an update. The record knows, too, unless it was lost.
    """

    desired: Desired
    owner: str
    id: str
    delete: bool = False
    previous: Place | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """What one call found and did.

    Attributes:
        run_id: of the pipeline's run; empty if there is none.
        running: whether a run of the wanted version is RUNNING; None if nothing is wanted or nobody knows.
        failures: in the last hour.
        restarts: that this call, and no other, made or found.
        run_failures: likewise.
        gave_up: whether restarting has ended until a deployment or a reset.
        reason: why it is so, in a sentence.
    """

    pipeline: str
    state: State
    version: str
    code_hash: str
    config_hash: str
    run_id: str
    running: bool | None
    failures: int
    restarts: int
    run_failures: int
    gave_up: bool
    reason: str


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
            record = _started(record, pending.label, answer.id, now_us)
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
    failures = (*_recent(record, now_us), Failure(now_us, run_id, message[:_MESSAGE]))[-_KEPT_FAILURES:]
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


def _started(record: Record, label: str, run_id: str, now_us: int) -> Record:
    answered = _answered(record, label)
    if answered is None or record.pending is None:
        return record
    run = RunRef(run_id, record.pending.place, record.pending.version, since_us=now_us)
    return replace(answered, run=run, restarts=record.restarts + bool(record.replaces), replaces="")


def _not_started(record: Record, label: str) -> Record:
    return _answered(record, label) or record


def _refused(record: Record, label: str, message: str, now_us: int) -> Record:
    answered = _answered(record, label)
    return record if answered is None else _failed(answered, "", message, now_us)


def _recent(record: Record, now_us: int) -> tuple[Failure, ...]:
    return tuple(failure for failure in record.failures if now_us - failure.at_us < _us(HOUR_S))


def _us(seconds: float) -> int:
    return int(seconds * 1e6)


class Controller:
    """Reconciles pipelines. Any number may work at the same time, in this process or in others.

    Args:
        records: what is remembered.
        engines: the services by name.
        clock: time, randomness and sleeping.
        report: gets the status after each look at a pipeline.
    """

    def __init__(
        self,
        *,
        records: Records,
        engines: Mapping[EngineName, Engine],
        clock: Clock,
        report: Callable[[Status], None],
    ) -> None:
        self._records = records
        self._engines = engines
        self._clock = clock
        self._report = report

    def request(self, request: Request) -> None:
        """Takes note of what CloudFormation wants; ``is_done`` and ``reconcile`` do it. The same request again is none.

        Raises:
            ConfigError: the pipeline belongs to another custom resource.
            StoreError: it could not be noted, or nobody knows whether it was.
        """
        pipeline = request.desired.pipeline
        for attempt in range(_SAVES):
            stored = self._records.load(pipeline)
            old = None if stored is None else stored.record
            new = self._requested(old, request)
            if new == old or self._records.save(new, revision=None if stored is None else stored.revision):
                return
            self._clock.backoff(attempt)
        msg = f"Pipeline {pipeline!r}: its record changed {_SAVES} times while it was to be written. Deploy again."
        raise StoreError(msg)

    def is_done(self, request: Request) -> bool:
        """Takes a step towards what CloudFormation wants, and says whether it is there.

        Raises:
            DeployFailed: it will not get there, with the reason.
            StoreError: nothing is known; ask again.
        """
        record, status = self._reconcile(request.desired.pipeline)
        if record is None or status is None:
            self.request(request)  # the record was lost
            return False
        if request.delete:
            # Also if the pipeline was created anew meanwhile, by this resource or another one.
            return record.deleted or not record.deleting or record.owner != request.owner
        if record.deploy_id != request.id:
            msg = f"Pipeline {record.desired.pipeline!r}: another deployment came after this one."
            raise DeployFailed(msg)
        if record.gave_up and record.wants_run:
            raise DeployFailed(record.gave_up)
        if status.state == ("RUNNING" if record.wants_run else "STOPPED") and (record.settled or not record.wants_run):
            return True
        waited_s = (self._clock.time_us() - record.deploy_at_us) / 1e6
        if waited_s > record.desired.deploy_timeout_s:
            last = f" Its last failure: {record.failures[-1].message}" if record.failures else ""
            msg = (
                f"Pipeline {record.desired.pipeline!r} is {status.state} after {waited_s:.0f} s, not what was wanted: "
                f"{status.reason}{last}"
            )
            raise DeployFailed(msg)
        return False

    def reset(self, pipeline: str) -> Status | None:
        """Forgets the failures, so that a pipeline that was given up starts again; None if there is no such one.

        Raises:
            StoreError: it could not be noted.
        """
        self._change(
            pipeline,
            lambda record: replace(record, gave_up="", failures=(), deploy_failures=0, not_before_us=0),
        )
        return self.reconcile(pipeline)

    def reconcile(self, pipeline: str) -> Status | None:
        """Compares what is wanted with what is, takes at most one step and reports; None if there is no such pipeline.

        Raises:
            StoreError: the record could not be read or written.
        """
        return self._reconcile(pipeline)[1]

    def reconcile_all(self) -> tuple[Status, ...]:
        """Reconciles each pipeline, although some fail.

        Raises:
            ExceptionGroup: after all had their turn, with what was raised.
        """
        return self._each(self._records.pipelines())

    def reconcile_at(self, place: Place) -> tuple[Status, ...]:
        """Reconciles the pipelines that have or had runs at a place: something happened there.

        Raises:
            ExceptionGroup: after all had their turn, with what was raised.
        """
        concerned = []
        for pipeline in self._records.pipelines():
            stored = self._records.load(pipeline)
            if stored is not None and place in _places(stored.record):
                concerned.append(pipeline)
        return self._each(tuple(concerned))

    def _each(self, pipelines: tuple[str, ...]) -> tuple[Status, ...]:
        found: list[Status] = []
        errors: list[Exception] = []
        for pipeline in pipelines:
            try:
                status = self.reconcile(pipeline)
            except Exception as error:
                # One pipeline's broken record or unexpected answer must not keep the others from being kept alive.
                error.add_note(f"while reconciling pipeline {pipeline!r}")
                errors.append(error)
            else:
                found += [] if status is None else [status]
        if errors:
            msg = f"{len(errors)} of {len(pipelines)} pipelines could not be reconciled"
            raise ExceptionGroup(msg, errors)
        return tuple(found)

    def _reconcile(self, pipeline: str) -> tuple[Record | None, Status | None]:
        stored = self._records.load(pipeline)
        if stored is None:
            return None, None
        before = stored.record
        try:
            runs = () if before.deleted else self._runs(before)
        except EngineBusy as error:
            return before, self._tell(before, before, "UNKNOWN", str(error), running=None)
        decision = decide(before, runs, now_us=self._clock.time_us())
        record, state, reason = decision.record, decision.state, decision.reason
        if record != before and not self._records.save(record, revision=stored.revision):
            reason = "Another call works on this pipeline at the moment."
            return before, self._tell(before, before, "UNKNOWN", reason, running=None)
        if isinstance(decision.action, Stop):
            try:
                stop = decision.action
                self._engines[stop.place.engine].stop(stop.place, stop.run_ids, grace_s=stop.grace_s)
            except EngineBusy as error:
                reason = str(error)
        elif isinstance(decision.action, Start):
            record, state, reason = self._start(record, decision.action)
        return record, self._tell(before, record, state, reason, running=decision.running)

    def _runs(self, record: Record) -> tuple[Run, ...]:
        found: list[Run] = []
        for place in _places(record):
            known = record.run.id if record.run is not None and record.run.place == place else ""
            found += self._engines[place.engine].runs(place, pipeline=record.desired.pipeline, known=known)
        return tuple(found)

    def _start(self, record: Record, start: Start) -> tuple[Record, State, str]:
        def change(make: Callable[[Record], Record]) -> Record:
            return self._change(start.pipeline, make) or record

        try:
            run_id = self._engines[start.place.engine].start(start)
        except EngineBusy as error:
            return change(lambda old: _not_started(old, start.label)), "WAITING", str(error)
        except StartRefused as error:
            text, now_us = str(error), self._clock.time_us()
            record = change(lambda old: _refused(old, start.label, text, now_us))
            return record, "GAVE_UP" if record.gave_up else "WAITING", text
        except AnswerLost as error:
            return record, "STARTING", str(error)
        now_us = self._clock.time_us()
        return change(lambda old: _started(old, start.label, run_id, now_us)), "STARTING", f"Started run {run_id}."

    def _change(self, pipeline: str, make: Callable[[Record], Record]) -> Record | None:
        """Changes the record, whatever it is by now."""
        for attempt in range(_SAVES):
            stored = self._records.load(pipeline)
            if stored is None:
                return None
            new = make(stored.record)
            if new == stored.record or self._records.save(new, revision=stored.revision):
                return new
            self._clock.backoff(attempt)
        msg = f"Pipeline {pipeline!r}: its record changed {_SAVES} times while it was to be written."
        raise StoreError(msg)

    def _requested(self, old: Record | None, request: Request) -> Record:
        now_us, desired = self._clock.time_us(), request.desired
        if old is None or old.deleted:
            lineage = self._clock.uuid()[:8] if old is None else old.lineage
            attempt = 0 if old is None else old.attempt
            old = Record(desired=desired, owner=request.owner, lineage=lineage, attempt=attempt)
        if old.deploy_id == request.id or (request.delete and old.owner != request.owner):
            return old
        if old.owner != request.owner:
            msg = (
                f"Pipeline {desired.pipeline!r} belongs to {old.owner}, not to {request.owner}. Delete it there first, "
                "or choose another name."
            )
            raise ConfigError(msg)
        drain = dict.fromkeys((*old.drain, old.desired.place, request.previous or desired.place))
        drain.pop(desired.place, None)
        return replace(
            old,
            desired=desired,
            deploy_id=request.id,
            deploy_at_us=now_us,
            deploy_failures=0,
            settled=False,
            deleting=request.delete,
            replaces="",
            failures=(),
            gave_up="",
            not_before_us=0,
            drain=tuple(drain),
        )

    def _tell(self, before: Record, after: Record, state: State, reason: str, *, running: bool | None) -> Status:
        desired = after.desired
        status = Status(
            pipeline=desired.pipeline,
            state=state,
            version=desired.version,
            code_hash=desired.code_hash,
            config_hash=desired.config_hash,
            run_id="" if after.run is None else after.run.id,
            running=running if after.wants_run else None,
            failures=len(_recent(after, self._clock.time_us())),
            restarts=after.restarts - before.restarts,
            run_failures=after.run_failures - before.run_failures,
            gave_up=bool(after.gave_up),
            reason=reason,
        )
        if not before.deleted:
            self._report(status)
        return status


def _places(record: Record) -> tuple[Place, ...]:
    return (record.desired.place, *record.drain)
