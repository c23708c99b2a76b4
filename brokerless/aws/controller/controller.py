"""Keep the job of each pipeline as its last deployment asks for: running, in the right version, once.

Invariants, whatever is lost, repeated, late or done at the same time: (1) a pipeline never has two live runs that the
controller started; (2) when faults end, the runs become what was asked for; (3) after a deletion nothing runs.

CloudFormation, events and a schedule all call ``Controller.reconcile``. It reads the pipeline's state, asks the service
for its runs, lets ``decide`` compare, and takes at most one step: it stops runs that should not be, or starts one if
none is alive. A start is stored by compare-and-set before it is asked for, and until its outcome is known no other
start is made. ``docs/adr/0007-stream-controller.md`` has the reasons.

Standard library only. Services, states, time and reporting are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from brokerless.aws.controller.decisions import State, Stop, decide, locations, not_started, recent, refused, started
from brokerless.aws.controller.services import (
    AnswerLost,
    JobLocation,
    JobService,
    Run,
    RunsOn,
    ServiceBusy,
    Start,
    StartRefused,
)
from brokerless.aws.controller.states import PipelineState, PipelineStates
from brokerless.errors import BrokerlessError, ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokerless.aws.controller.desired import DesiredPipeline
    from brokerless.clock import Clock

_SAVES: Final = 8


class DeployFailed(BrokerlessError):
    """The deployment has failed, and CloudFormation must roll it back."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of CloudFormation.

    Attributes:
        owner: the custom resource: its stack's id and its logical id.
        id: the id of this request; a repeated request has the same.
        delete: whether to stop and delete the pipeline.
        previous: the location before an update. The stored state has it too, unless it was lost.
    """

    desired: DesiredPipeline
    owner: str
    id: str
    delete: bool = False
    previous: JobLocation | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a pipeline after one call.

    Attributes:
        run_id: the id of the pipeline's run; empty if there is none.
        running: whether a run of the desired version is RUNNING; None if none is desired or the answer is unknown.
        failures: the number of failures in the last hour.
        restarts: the number of restarts that this call made or found.
        run_failures: the number of failed runs that this call found.
        gave_up: whether the controller has stopped restarting until a deployment or a reset.
        reason: the reason of the status, in a sentence.
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


class Controller:
    """Reconciles pipelines. Several controllers may work at the same time, in one or more processes.

    Args:
        states: the stored states.
        services: the services by name.
        clock: time, randomness and sleeping.
        report: receives the status after each call for a pipeline.
    """

    def __init__(
        self,
        *,
        states: PipelineStates,
        services: Mapping[RunsOn, JobService],
        clock: Clock,
        report: Callable[[Status], None],
    ) -> None:
        self._states = states
        self._services = services
        self._clock = clock
        self._report = report

    def request(self, request: Request) -> None:
        """Store a request of CloudFormation, which ``is_done`` and ``reconcile`` carry out. A repeated one is ignored.

        Raises:
            ConfigError: the pipeline belongs to another custom resource.
            StoreError: the request could not be stored, or the outcome is unknown.
        """
        pipeline = request.desired.pipeline
        for attempt in range(_SAVES):
            stored = self._states.load(pipeline)
            old = None if stored is None else stored.record
            new = self._requested(old, request)
            if new == old or self._states.save(new, revision=None if stored is None else stored.revision):
                return
            self._clock.backoff(attempt)
        raise StoreError(
            f"Pipeline {pipeline!r}: other calls changed its state {_SAVES} times during this one. Deploy again."
        )

    def is_done(self, request: Request) -> bool:
        """Take one step of a request, and return whether the request is done.

        Raises:
            DeployFailed: the request cannot be done; the text has the reason.
            StoreError: the outcome is unknown; call again.
        """
        record, status = self._reconcile(request.desired.pipeline)
        if record is None or status is None:
            self.request(request)  # the state was lost
            return False
        if request.delete:
            # Also if the pipeline was created again meanwhile, by this resource or another one.
            return record.deleted or not record.deleting or record.owner != request.owner
        if record.deploy_id != request.id:
            raise DeployFailed(f"Pipeline {record.desired.pipeline!r}: a later deployment has replaced this one.")
        if record.gave_up and record.wants_run:
            raise DeployFailed(record.gave_up)
        if status.state == ("RUNNING" if record.wants_run else "STOPPED") and (record.settled or not record.wants_run):
            return True
        waited_s = (self._clock.time_us() - record.deploy_at_us) / 1e6
        if waited_s > record.desired.deploy_timeout_s:
            last = f" Its last failure: {record.failures[-1].message}" if record.failures else ""
            raise DeployFailed(
                f"Pipeline {record.desired.pipeline!r} is still {status.state} after {waited_s:.0f} s: "
                f"{status.reason}{last}"
            )
        return False

    def reset(self, pipeline: str) -> Status | None:
        """Delete the failures of a pipeline, so that it starts again; None if the pipeline does not exist.

        Raises:
            StoreError: the state could not be read or written.
        """
        self._change(
            pipeline,
            lambda record: replace(record, gave_up="", failures=(), deploy_failures=0, not_before_us=0),
        )
        return self.reconcile(pipeline)

    def reconcile(self, pipeline: str) -> Status | None:
        """Compare the desired pipeline with its runs, take at most one step, and report; None if it does not exist.

        Raises:
            StoreError: the state could not be read or written.
        """
        return self._reconcile(pipeline)[1]

    def reconcile_all(self) -> tuple[Status, ...]:
        """Reconcile each pipeline, even if some fail.

        Raises:
            ExceptionGroup: the errors of all pipelines that failed, after the last one.
        """
        return self._each(self._states.pipelines())

    def reconcile_at(self, location: JobLocation) -> tuple[Status, ...]:
        """Reconcile the pipelines that have or had runs at a location.

        Raises:
            ExceptionGroup: the errors of all pipelines that failed, after the last one.
        """
        concerned = []
        for pipeline in self._states.pipelines():
            stored = self._states.load(pipeline)
            if stored is not None and location in locations(stored.record):
                concerned.append(pipeline)
        return self._each(tuple(concerned))

    def _each(self, pipelines: tuple[str, ...]) -> tuple[Status, ...]:
        found: list[Status] = []
        errors: list[Exception] = []
        for pipeline in pipelines:
            try:
                status = self.reconcile(pipeline)
            except Exception as error:
                # One pipeline's damaged state or unexpected response must not stop the others from being reconciled.
                error.add_note(f"while reconciling pipeline {pipeline!r}")
                errors.append(error)
            else:
                found += [] if status is None else [status]
        if errors:
            raise ExceptionGroup(f"{len(errors)} of {len(pipelines)} pipelines could not be reconciled", errors)
        return tuple(found)

    def _reconcile(self, pipeline: str) -> tuple[PipelineState | None, Status | None]:
        stored = self._states.load(pipeline)
        if stored is None:
            return None, None
        before = stored.record
        try:
            runs = () if before.deleted else self._runs(before)
        except ServiceBusy as error:
            return before, self._report_status(before, before, "UNKNOWN", str(error), running=None)
        decision = decide(before, runs, now_us=self._clock.time_us())
        record, state, reason = decision.record, decision.state, decision.reason
        if record != before and not self._states.save(record, revision=stored.revision):
            reason = "Another call is working on this pipeline now."
            return before, self._report_status(before, before, "UNKNOWN", reason, running=None)
        if isinstance(decision.action, Stop):
            try:
                stop = decision.action
                self._services[stop.location.runs_on].stop(stop.location, stop.run_ids, grace_s=stop.grace_s)
            except ServiceBusy as error:
                reason = str(error)
        elif isinstance(decision.action, Start):
            record, state, reason = self._start(record, decision.action)
        return record, self._report_status(before, record, state, reason, running=decision.running)

    def _runs(self, record: PipelineState) -> tuple[Run, ...]:
        found: list[Run] = []
        for location in locations(record):
            known = record.run.id if record.run is not None and record.run.location == location else ""
            found += self._services[location.runs_on].runs(location, pipeline=record.desired.pipeline, known=known)
        return tuple(found)

    def _start(self, record: PipelineState, start: Start) -> tuple[PipelineState, State, str]:
        def change(make: Callable[[PipelineState], PipelineState]) -> PipelineState:
            return self._change(start.pipeline, make) or record

        try:
            run_id = self._services[start.location.runs_on].start(start)
        except ServiceBusy as error:
            return change(lambda old: not_started(old, start.label)), "WAITING", str(error)
        except StartRefused as error:
            text, now_us = str(error), self._clock.time_us()
            record = change(lambda old: refused(old, start.label, text, now_us))
            return record, "GAVE_UP" if record.gave_up else "WAITING", text
        except AnswerLost as error:
            return record, "STARTING", str(error)
        now_us = self._clock.time_us()
        return change(lambda old: started(old, start.label, run_id, now_us)), "STARTING", f"Started run {run_id}."

    def _change(self, pipeline: str, make: Callable[[PipelineState], PipelineState]) -> PipelineState | None:
        """Change the stored state, whatever it is now."""
        for attempt in range(_SAVES):
            stored = self._states.load(pipeline)
            if stored is None:
                return None
            new = make(stored.record)
            if new == stored.record or self._states.save(new, revision=stored.revision):
                return new
            self._clock.backoff(attempt)
        raise StoreError(f"Pipeline {pipeline!r}: other calls changed its state {_SAVES} times during this one.")

    def _requested(self, old: PipelineState | None, request: Request) -> PipelineState:
        now_us, desired = self._clock.time_us(), request.desired
        if old is None or old.deleted:
            lineage = self._clock.uuid()[:8] if old is None else old.lineage
            attempt = 0 if old is None else old.attempt
            old = PipelineState(desired=desired, owner=request.owner, lineage=lineage, attempt=attempt)
        if old.deploy_id == request.id or (request.delete and old.owner != request.owner):
            return old
        if old.owner != request.owner:
            raise ConfigError(
                f"Pipeline {desired.pipeline!r} belongs to {old.owner}, not to {request.owner}. Delete it there first, "
                "or choose another name."
            )
        drain = dict.fromkeys((*old.drain, old.desired.location, request.previous or desired.location))
        drain.pop(desired.location, None)
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

    def _report_status(
        self, before: PipelineState, after: PipelineState, state: State, reason: str, *, running: bool | None
    ) -> Status:
        desired = after.desired
        status = Status(
            pipeline=desired.pipeline,
            state=state,
            version=desired.version,
            code_hash=desired.code_hash,
            config_hash=desired.config_hash,
            run_id="" if after.run is None else after.run.id,
            running=running if after.wants_run else None,
            failures=len(recent(after, self._clock.time_us())),
            restarts=after.restarts - before.restarts,
            run_failures=after.run_failures - before.run_failures,
            gave_up=bool(after.gave_up),
            reason=reason,
        )
        if not before.deleted:
            self._report(status)
        return status
