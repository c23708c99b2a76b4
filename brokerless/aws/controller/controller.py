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
any more, it is waited for until it cannot arrive any more (``decisions.DOUBT_S``). The same doubt holds when Glue ends
a run as EXPIRED: it starts the successor by itself.

**What ends by itself is started again**, also what a person stopped: to stop a pipeline, deploy it as STOPPED. Too many
failures within an hour, and the controller gives up. It stays so until a deployment or a ``reset``: a quiet hour proves
nothing when nothing runs, and starting again on its own would turn one page of an outage into one each hour.

**A deployment** is done when a run of its version has been RUNNING for a while, and fails with the run's own error
after a few failed ones. CloudFormation then sends the old properties, and the old version starts like any other.

Standard library only. Services, records, time and reporting are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from brokerless.aws.controller.decisions import State, Stop, decide, not_started, places, recent, refused, started
from brokerless.aws.controller.engines import (
    AnswerLost,
    Engine,
    EngineBusy,
    EngineName,
    Place,
    Run,
    Start,
    StartRefused,
)
from brokerless.aws.controller.records import Desired, Record, Records
from brokerless.errors import BrokerlessError, ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokerless.clock import Clock

_SAVES: Final = 8


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
        raise StoreError(
            f"Pipeline {pipeline!r}: its record changed {_SAVES} times while it was to be written. Deploy again."
        )

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
            raise DeployFailed(f"Pipeline {record.desired.pipeline!r}: another deployment came after this one.")
        if record.gave_up and record.wants_run:
            raise DeployFailed(record.gave_up)
        if status.state == ("RUNNING" if record.wants_run else "STOPPED") and (record.settled or not record.wants_run):
            return True
        waited_s = (self._clock.time_us() - record.deploy_at_us) / 1e6
        if waited_s > record.desired.deploy_timeout_s:
            last = f" Its last failure: {record.failures[-1].message}" if record.failures else ""
            raise DeployFailed(
                f"Pipeline {record.desired.pipeline!r} is {status.state} after {waited_s:.0f} s, not what was wanted: "
                f"{status.reason}{last}"
            )
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
            if stored is not None and place in places(stored.record):
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
            raise ExceptionGroup(f"{len(errors)} of {len(pipelines)} pipelines could not be reconciled", errors)
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
        for place in places(record):
            known = record.run.id if record.run is not None and record.run.place == place else ""
            found += self._engines[place.engine].runs(place, pipeline=record.desired.pipeline, known=known)
        return tuple(found)

    def _start(self, record: Record, start: Start) -> tuple[Record, State, str]:
        def change(make: Callable[[Record], Record]) -> Record:
            return self._change(start.pipeline, make) or record

        try:
            run_id = self._engines[start.place.engine].start(start)
        except EngineBusy as error:
            return change(lambda old: not_started(old, start.label)), "WAITING", str(error)
        except StartRefused as error:
            text, now_us = str(error), self._clock.time_us()
            record = change(lambda old: refused(old, start.label, text, now_us))
            return record, "GAVE_UP" if record.gave_up else "WAITING", text
        except AnswerLost as error:
            return record, "STARTING", str(error)
        now_us = self._clock.time_us()
        return change(lambda old: started(old, start.label, run_id, now_us)), "STARTING", f"Started run {run_id}."

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
        raise StoreError(f"Pipeline {pipeline!r}: its record changed {_SAVES} times while it was to be written.")

    def _requested(self, old: Record | None, request: Request) -> Record:
        now_us, desired = self._clock.time_us(), request.desired
        if old is None or old.deleted:
            lineage = self._clock.uuid()[:8] if old is None else old.lineage
            attempt = 0 if old is None else old.attempt
            old = Record(desired=desired, owner=request.owner, lineage=lineage, attempt=attempt)
        if old.deploy_id == request.id or (request.delete and old.owner != request.owner):
            return old
        if old.owner != request.owner:
            raise ConfigError(
                f"Pipeline {desired.pipeline!r} belongs to {old.owner}, not to {request.owner}. Delete it there first, "
                "or choose another name."
            )
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
            failures=len(recent(after, self._clock.time_us())),
            restarts=after.restarts - before.restarts,
            run_failures=after.run_failures - before.run_failures,
            gave_up=bool(after.gave_up),
            reason=reason,
        )
        if not before.deleted:
            self._report(status)
        return status
