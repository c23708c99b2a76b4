"""Each state meets each event, each race is run, then all at random: never two runs, always there in the end.

The services are simulated with what makes the real ones hard: lists that lag behind, answers that get lost, requests
that arrive late, runs that appear by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerless.aws.controller.controller import Controller, DeployFailed, Request, Status
from brokerless.aws.controller.decisions import CALL_S, DOUBT_S, SUCCESSOR_S
from brokerless.aws.controller.desired import DesiredPipeline
from brokerless.aws.controller.services import AnswerLost, EmrJob, JobLocation, Run, ServiceBusy, Start, StartRefused
from brokerless.aws.controller.states import PipelineState, StoredState
from brokerless.errors import ConfigError, StoreError
from tests.support.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

GLUE = JobLocation("glue", "job")
OTHER = JobLocation("glue", "renamed-job")
EMR = JobLocation("emr-serverless", "00app")
JOB = EmrJob("s3://b/job.py", "arn:aws:iam::123456789012:role/r")
EACH = pytest.mark.parametrize("location", [GLUE, EMR], ids=lambda location: location.runs_on)

Fault = Literal["busy", "refused", "lost", "lost, but started", "lost, but late"]
LATE_S = 290.0
LAG_S = 20.0


@dataclass
class SimulatedRun:
    id: str
    start: Start
    since_us: int
    phase: str = "starting"
    outcome: str = ""
    error: str = ""
    successor_us: int = 0


class Cloud:
    """Both services: what runs, and what goes wrong next."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.all: list[SimulatedRun] = []
        self.calls: list[str] = []
        self.faults: list[Fault] = []
        self.late: list[tuple[int, Start]] = []
        self.deaf = False  # every call but start answers "busy"
        self.lag_s = 0.0  # how long a run is missing from lists
        self.meanwhile: Callable[[], None] | None = None  # happens once, in the middle of the next call
        self.most_alive = 0

    @property
    def alive(self) -> list[SimulatedRun]:
        return [run for run in self.all if run.phase != "ended"]

    @property
    def only(self) -> SimulatedRun:
        (run,) = self.alive
        return run

    def runs(self, location: JobLocation, *, pipeline: str, known: str) -> tuple[Run, ...]:
        self._meanwhile()
        if self.deaf:
            raise ServiceBusy("Rate exceeded")
        return tuple(
            self._seen(run)
            for run in self.all
            if run.start.location == location
            and (run.phase != "ended" or run.id == known or location.runs_on == "glue")
            and (self._age_s(run) >= self.lag_s or (run.id == known and location.runs_on == "emr-serverless"))
        )

    def start(self, start: Start) -> str:
        self.calls.append("start")
        self._meanwhile()
        fault = self.faults.pop(0) if self.faults else None
        if fault == "busy":
            raise ServiceBusy("The quota is exceeded")
        if fault == "refused":
            raise StartRefused("No such script")
        if fault == "lost, but late":
            self.late.append((self.clock.time_us() + int(LATE_S * 1e6), start))
        run = None if fault in ("lost", "lost, but late") else self._launch(start)
        if fault is not None:
            raise AnswerLost("Read timeout")
        assert run is not None
        return run

    def stop(self, location: JobLocation, run_ids: tuple[str, ...], *, grace_s: int) -> None:
        self.calls.append("stop")
        if self.deaf:
            raise ServiceBusy("Rate exceeded")
        for run in self.alive:
            if run.id in run_ids and run.start.location == location:
                run.phase, run.since_us = "stopping", run.since_us

    def pass_time(self, seconds: float) -> None:
        """Time passes, second by second as far as the services are concerned."""
        until_us = self.clock.time_us() + int(seconds * 1e6)
        moments = [due for due, _ in self.late] + [run.successor_us for run in self.all if run.successor_us]
        for moment in sorted({*(m for m in moments if m <= until_us), until_us}):
            self.clock.now_us = max(moment, self.clock.now_us)
            self._arrive()
        for run in self.alive:
            if run.phase == "stopping":
                run.phase, run.outcome = "ended", "stopped"
            elif run.phase == "starting":
                run.phase = "running"

    def end(self, outcome: str, error: str = "") -> None:
        run = self.alive[-1]
        run.phase, run.outcome, run.error = "ended", outcome, error

    def expire(self, after_s: float) -> None:
        """Glue's weekly restart: the successor comes a while after."""
        run = self.alive[-1]
        run.phase, run.outcome = "ended", "expired"
        run.successor_us = self.clock.time_us() + int(after_s * 1e6)

    def _arrive(self) -> None:
        now_us = self.clock.time_us()
        for run in list(self.all):
            if run.successor_us and run.successor_us <= now_us:
                run.successor_us = 0
                self._add(SimulatedRun(f"{run.id}_restart_1", run.start, now_us))
        due = [start for at, start in self.late if at <= now_us]
        self.late = [(at, start) for at, start in self.late if at > now_us]
        for start in due:
            try:
                self._launch(start)
            except ServiceBusy:
                continue

    def _launch(self, start: Start) -> str:
        if start.location.runs_on == "emr-serverless":
            for run in self.all:
                if run.start.token == start.token:
                    return run.id
        elif any(run.start.location == start.location for run in self.alive):
            raise ServiceBusy("ConcurrentRunsExceededException")
        return self._add(SimulatedRun(f"r{len(self.all) + 1}", start, self.clock.time_us() + len(self.all)))

    def _add(self, run: SimulatedRun) -> str:
        self.all.append(run)
        self.most_alive = max(self.most_alive, len(self.alive))
        return run.id

    def _seen(self, run: SimulatedRun) -> Run:
        return Run(
            id=run.id,
            location=run.start.location,
            phase=run.phase,  # type: ignore[arg-type]
            outcome=run.outcome,  # type: ignore[arg-type]
            version=run.start.version,
            label=run.start.label,
            state=run.phase.upper(),
            error=run.error,
            started_us=run.since_us,
        )

    def _age_s(self, run: SimulatedRun) -> float:
        return (self.clock.time_us() - run.since_us) / 1e6

    def _meanwhile(self) -> None:
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            happens()


class MemoryRecords:
    """Compare-and-set in memory, through JSON, with answers that get lost."""

    def __init__(self) -> None:
        self.saved: dict[str, tuple[str, int]] = {}
        self.faults: list[Literal["lost", "lost, but saved"]] = []
        self.saves = 0

    def load(self, pipeline: str) -> StoredState | None:
        if pipeline not in self.saved:
            return None
        text, revision = self.saved[pipeline]
        return StoredState(PipelineState.from_json(text), str(revision))

    def save(self, record: PipelineState, *, revision: str | None) -> bool:
        name = record.desired.pipeline
        now = str(self.saved[name][1]) if name in self.saved else None
        if now != revision:
            return False
        fault = self.faults.pop(0) if self.faults else None
        if fault != "lost":
            self.saves += 1
            self.saved[name] = (record.to_json(), self.saves)
        if fault is not None:
            raise StoreError("Read timeout")
        return True

    def pipelines(self) -> tuple[str, ...]:
        return tuple(self.saved)


class World:
    """A pipeline ``p``, its services, and CloudFormation."""

    def __init__(self, location: JobLocation = GLUE) -> None:
        self.clock = FakeClock()
        self.cloud = Cloud(self.clock)
        self.records = MemoryRecords()
        self.reported: list[Status] = []
        self.controller = Controller(
            states=self.records,
            services={"glue": self.cloud, "emr-serverless": self.cloud},
            clock=self.clock,
            report=self.reported.append,
        )
        self.location = location
        self.requests = 0
        self.last: Request | None = None

    def desired(
        self, version: str = "v1", *, location: JobLocation | None = None, running: bool = True
    ) -> DesiredPipeline:
        location = location or self.location
        job = JOB if location.runs_on == "emr-serverless" else None
        return DesiredPipeline("p", location, version, "c", job=job, running=running)

    def deploy(self, desired: DesiredPipeline | None = None, *, delete: bool = False) -> Request:
        self.requests += 1
        previous = self.last and self.last.desired.location
        desired = desired or (self.last.desired if self.last else self.desired())
        self.last = Request(desired, "stack P", f"request-{self.requests}", delete, previous)
        self.controller.request(self.last)
        return self.last

    def look(self) -> Status:
        status = self.controller.reconcile("p")
        assert status is not None
        return status

    def until(self, state: str, *, step_s: float = 30.0, within_s: float = 3600.0) -> Status:
        """Looks again and again until it is so."""
        status = self.look()
        for _ in range(int(within_s / step_s)):
            if status.state == state:
                return status
            self.cloud.pass_time(step_s)
            status = self.look()
        raise AssertionError(f"not {state} within {within_s} s, but {status}")

    def running(self) -> World:
        """Deployed, RUNNING and settled."""
        request = self.deploy()
        for _ in range(10):
            if self.controller.is_done(request):
                return self
            self.cloud.pass_time(30)
        raise AssertionError("not done")

    def fail(self, times: int) -> World:
        """The run fails, is started again, and so on; the last failure is seen."""
        for left in range(times - 1, -1, -1):
            self.until("RUNNING")
            self.cloud.end("failed", "boom")
            self.look() if left else None
        return self

    @property
    def record(self) -> PipelineState:
        stored = self.records.load("p")
        assert stored is not None
        return stored.record


# --- Each state meets each event, and one look follows.

# Rows: states; columns: events. The cells: the state after one look, or "start" and "stop" for STARTING and STOPPING
# with this call to the service. Without a run no run can end.
TABLE_TEXT = """\
state     |nothing |repeated|deploy v1|deploy v2|deploy none|delete  |reset   |fails|finishes|stopped|expires
noted     |start   |start   |start    |start    |STOPPED    |DELETED |start
starting  |STARTING|STARTING|STARTING |stop     |stop       |stop    |STARTING|start|start   |start  |WAITING
running   |RUNNING |RUNNING |RUNNING  |stop     |stop       |stop    |RUNNING |start|start   |start  |WAITING
replacing |STOPPING|STOPPING|STOPPING |STOPPING |STOPPING   |STOPPING|STOPPING|start|start   |start  |WAITING
off       |STOPPED |STOPPED |start    |start    |STOPPED    |DELETED |STOPPED
pausing   |WAITING |WAITING |start    |start    |STOPPED    |DELETED |start
unanswered|STARTING|STARTING|STARTING |WAITING  |STOPPING   |STOPPING|STARTING
given up  |GAVE_UP |GAVE_UP |start    |start    |STOPPED    |DELETED |start
deleted   |DELETED |DELETED |start    |start    |STOPPED    |DELETED |DELETED
"""
CALLS = {"start": "STARTING start", "stop": "STOPPING stop"}
RUN_EVENTS = {"fails": "failed", "finishes": "finished", "stopped": "stopped", "expires": "expired"}


def read_table() -> dict[str, dict[str, str]]:
    header, *rows = ([cell.strip() for cell in line.split("|")] for line in TABLE_TEXT.splitlines())
    return {
        row[0]: {event: CALLS.get(cell, cell) for event, cell in zip(header[1:], row[1:], strict=False)} for row in rows
    }


TABLE = read_table()


def bring_to(world: World, state: str) -> None:
    if state == "noted":
        world.deploy()
    elif state == "starting":
        world.deploy()
        world.look()
    elif state == "running":
        world.running()
    elif state == "replacing":
        world.running().deploy(world.desired("v2"))
        world.look()
    elif state == "off":
        world.deploy(world.desired(running=False))
        world.look()
    elif state == "pausing":
        world.running().fail(2)
    elif state == "unanswered":
        world.cloud.faults = ["lost"]
        world.deploy()
        world.look()
    elif state == "given up":
        world.running().fail(5)
    elif state == "deleted":
        world.deploy()
        world.deploy(delete=True)
        world.look()


def happen(world: World, event: str) -> None:
    if event == "repeated":
        assert world.last is not None
        world.controller.request(world.last)
    elif event in ("deploy v1", "deploy v2"):
        world.deploy(world.desired(event[-2:]))
    elif event == "deploy none":
        world.deploy(world.desired(running=False))
    elif event == "delete":
        world.deploy(delete=True)
    elif event == "reset":
        world.controller.reset("p")
    elif event in RUN_EVENTS:
        world.cloud.end(RUN_EVENTS[event])


@EACH
@pytest.mark.parametrize(("state", "event"), [(state, event) for state, row in TABLE.items() for event in row])
def test_each_state_meets_each_event(location: JobLocation, state: str, event: str) -> None:
    world = World(location)
    bring_to(world, state)
    world.cloud.calls.clear()
    happen(world, event)
    status = world.look()
    assert " ".join([status.state, *world.cloud.calls]) == TABLE[state][event], status
    assert len(world.cloud.alive) <= 1


# --- Deployments.


@EACH
def test_a_deployment_is_done_when_its_run_was_running_for_a_minute(location: JobLocation) -> None:
    world = World(location)
    request = world.deploy()
    answers = []
    for seconds in (0, 30, 30, 29, 1):
        world.cloud.pass_time(seconds)
        answers.append(world.controller.is_done(request))
    # Starts; is first seen RUNNING; and so 30, 59 and 60 s later.
    assert answers == [False, False, False, False, True]


def test_a_deployment_that_changes_nothing_is_done_at_once() -> None:
    world = World().running()
    run = world.cloud.only.id
    assert world.controller.is_done(world.deploy())
    assert world.cloud.only.id == run


@pytest.mark.parametrize("change", [{"code_hash": "new"}, {"config_hash": "new"}, {"bump": "again"}])
def test_another_hash_or_bump_replaces_the_run(change: dict[str, str]) -> None:
    world = World().running()
    request = world.deploy(replace(world.desired(), **change))  # type: ignore[arg-type]
    old = world.cloud.only.id
    world.until("RUNNING")
    assert world.cloud.only.id != old
    world.cloud.pass_time(60)
    assert world.controller.is_done(request)
    assert world.record.restarts == 0  # a replacement is no restart
    assert world.record.run_failures == 0


def test_other_parameters_of_an_emr_run_are_another_version_without_help_of_the_hashes() -> None:
    assert replace(World(EMR).desired(), job=replace(JOB, arguments=("--x",))).version != World(EMR).desired().version


def test_a_deployment_whose_runs_fail_fails_with_their_error() -> None:
    world = World()
    request = world.deploy()
    with pytest.raises(DeployFailed, match=r"3 runs failed since the deployment.*KeyError: 'tz'"):
        for _ in range(40):
            world.controller.is_done(request)
            world.cloud.pass_time(20)
            if world.cloud.alive and world.cloud.only.phase == "running":
                world.cloud.end("failed", "KeyError: 'tz'")
    assert len(world.cloud.all) == 3
    assert world.look().state == "GAVE_UP"  # and none is started while CloudFormation decides


def test_a_start_that_is_refused_counts_as_a_failed_run() -> None:
    world = World()
    world.cloud.faults = ["refused"] * 3
    request = world.deploy()
    with pytest.raises(DeployFailed, match="No such script"):
        for _ in range(10):
            world.controller.is_done(request)
            world.cloud.pass_time(30)
    assert world.cloud.all == []


def test_a_deployment_that_waits_too_long_says_for_what() -> None:
    world = World()
    world.cloud.faults = ["busy"] * 100
    request = world.deploy()
    with pytest.raises(DeployFailed, match=r"WAITING after 15\d\d s.*The quota is exceeded"):
        for _ in range(100):
            world.controller.is_done(request)
            world.cloud.pass_time(30)
    assert world.record.run_failures == 0


def test_a_rollback_starts_the_old_version_again() -> None:
    world = World().running()
    bad = world.deploy(world.desired("v2"))
    with pytest.raises(DeployFailed):
        for _ in range(40):
            world.controller.is_done(bad)
            world.cloud.pass_time(30)
            if world.cloud.alive and world.cloud.only.start.version == bad.desired.version:
                world.cloud.end("failed")
    request = world.deploy(world.desired("v1"))
    world.until("RUNNING")
    world.cloud.pass_time(60)
    assert world.controller.is_done(request)
    assert world.cloud.only.start.version == world.desired("v1").version


@EACH
def test_a_rollback_while_the_old_version_is_stopping_waits_for_its_end(location: JobLocation) -> None:
    world = World(location).running()
    old = world.cloud.only
    world.deploy(world.desired("v2"))
    world.look()
    world.deploy(world.desired("v1"))
    assert world.look().state == "STOPPING"
    world.until("RUNNING")
    assert world.cloud.only.id != old.id
    assert world.cloud.only.start.version == old.start.version
    assert world.cloud.most_alive == 1
    assert world.record.restarts == 0


def test_a_rollback_before_the_stop_got_through_keeps_the_run_and_counts_its_failures() -> None:
    world = World().running()
    run = world.cloud.only
    world.deploy(world.desired("v2"))
    world.look()
    run.phase = "running"  # the request to stop was lost
    world.deploy(world.desired("v1"))
    assert world.look().run_id == run.id
    world.cloud.end("failed")
    assert world.look().run_failures == 1


def test_a_poll_of_a_deployment_that_was_overtaken_fails() -> None:
    world = World().running()
    overtaken = world.deploy(world.desired("v2"))
    world.deploy(world.desired("v1"))
    with pytest.raises(DeployFailed, match="a later deployment has replaced"):
        world.controller.is_done(overtaken)


def test_a_request_that_is_sent_again_resets_nothing() -> None:
    world = World()
    request = world.deploy()
    world.fail(3)
    assert world.look().gave_up
    world.controller.request(request)
    assert world.look().gave_up


def test_two_resources_cannot_own_one_pipeline() -> None:
    world = World().running()
    other = Request(world.desired("v2"), "stack Q", "other-request")
    with pytest.raises(ConfigError, match=r"belongs to stack P, not to stack Q"):
        world.controller.request(other)
    gone = replace(other, delete=True)
    world.controller.request(gone)
    assert world.controller.is_done(gone)
    assert world.look().state == "RUNNING"


@pytest.mark.parametrize("to", [OTHER, EMR], ids=str)
def test_a_pipeline_moves_to_another_job_or_service_one_run_at_a_time(to: JobLocation) -> None:
    world = World(GLUE).running()
    request = world.deploy(world.desired("v1", location=to))
    while not world.controller.is_done(request):
        world.cloud.pass_time(30)
    assert world.cloud.only.start.location == to
    assert world.cloud.most_alive == 1
    assert world.record.drain == ()


def test_a_pipeline_that_moves_twice_in_a_row_leaves_no_run_behind() -> None:
    world = World(GLUE).running()
    world.cloud.pass_time(DOUBT_S)  # so that the run is not merely taken for one that is not listed yet
    world.deploy(world.desired("v1", location=OTHER))
    world.deploy(world.desired("v1", location=EMR))
    world.until("RUNNING")
    assert world.cloud.only.start.location == EMR
    assert world.cloud.most_alive == 1


def test_a_pipeline_moves_away_from_a_location_that_only_cloudformation_remembers() -> None:
    world = World(GLUE).running()
    world.records.saved.clear()
    request = world.deploy(world.desired("v1", location=EMR))
    while not world.controller.is_done(request):
        world.cloud.pass_time(30)
    assert world.cloud.only.start.location == EMR
    assert world.cloud.most_alive == 1


# --- Deletion.


@EACH
@pytest.mark.parametrize("state", sorted(TABLE))
def test_after_a_deletion_nothing_runs(location: JobLocation, state: str) -> None:
    world = World(location)
    bring_to(world, state)
    request = world.deploy(delete=True)
    for _ in range(60):
        if world.controller.is_done(request):
            break
        world.cloud.pass_time(10)
    else:
        pytest.fail(f"not done: {world.look()}")
    world.cloud.pass_time(DOUBT_S)
    world.look()
    assert world.cloud.alive == []


def test_a_deletion_while_starting_waits_for_a_start_that_may_still_arrive() -> None:
    world = World(GLUE)
    world.cloud.faults = ["lost, but late"]
    world.deploy()
    world.look()
    request = world.deploy(delete=True)
    elapsed = 0
    while not world.controller.is_done(request):
        world.cloud.pass_time(10)
        elapsed += 10
    assert len(world.cloud.all) == 1  # it did arrive
    assert world.cloud.alive == []
    assert LATE_S <= elapsed <= DOUBT_S + 20


def test_a_deletion_waits_for_the_first_of_two_calls_although_the_second_was_answered() -> None:
    world = World(GLUE)
    world.cloud.faults = ["lost, but late"]
    world.deploy()
    world.look()
    world.cloud.pass_time(CALL_S)
    assert world.look().run_id == "r1"
    request = world.deploy(delete=True)
    while not world.controller.is_done(request):
        world.cloud.pass_time(10)
    assert len(world.cloud.all) == 2  # the first one did arrive, after the second had been stopped
    assert world.cloud.alive == []


@EACH
def test_what_is_gone_is_deleted_at_once(location: JobLocation) -> None:
    world = World(location).running()
    world.cloud.all.clear()  # job or application were deleted by hand
    world.cloud.pass_time(DOUBT_S)
    assert world.controller.is_done(world.deploy(delete=True))


def test_a_deleted_pipeline_can_be_created_again_and_repeats_no_label() -> None:
    world = World(EMR).running()
    label = world.cloud.only.start.label
    world.deploy(delete=True)
    world.until("DELETED")
    world.running()
    assert world.cloud.only.start.label != label
    assert len(world.cloud.all) == 2
    assert world.record.restarts == 0


# --- Runs that end by themselves.


@pytest.mark.parametrize("outcome", ["failed", "finished", "stopped"])
def test_what_ended_by_itself_is_started_again_and_counted_once(outcome: str) -> None:
    world = World().running()
    world.cloud.end(outcome)
    statuses = [world.look(), world.look(), world.look()]  # an event, its duplicate, and the schedule
    assert [status.restarts for status in statuses] == [1, 0, 0]
    assert [status.run_failures for status in statuses] == [int(outcome != "stopped"), 0, 0]
    assert len(world.cloud.alive) == 1


def test_an_event_concerns_the_pipelines_of_its_location() -> None:
    world = World().running()
    assert world.controller.reconcile_at(JobLocation("glue", "somebody-elses")) == ()
    (status,) = world.controller.reconcile_at(GLUE)
    assert status.pipeline == "p"


def test_failures_are_followed_by_longer_and_longer_pauses() -> None:
    world = World().running()
    starts = []
    for _ in range(4):
        world.cloud.end("failed", "boom")
        failed_us = world.clock.time_us()
        world.until("STARTING", step_s=1)
        starts.append((world.clock.time_us() - failed_us) / 1e6)
        world.until("RUNNING")
    assert starts == [0, 60, 120, 240]


def test_the_controller_gives_up_after_too_many_failures_in_an_hour_and_stays_so() -> None:
    world = World().running().fail(5)
    status = world.look()
    assert (status.state, status.gave_up, status.running, status.failures) == ("GAVE_UP", True, False, 5)
    assert "5 runs failed within an hour" in status.reason
    assert "boom" in status.reason
    world.cloud.pass_time(7200)
    assert world.look().state == "GAVE_UP"  # a quiet hour is no cure
    assert world.controller.reset("p") is not None
    world.until("RUNNING")
    assert not world.look().gave_up


def test_failures_of_more_than_an_hour_ago_do_not_count() -> None:
    world = World().running()
    for _ in range(8):
        world.cloud.end("failed")
        world.until("RUNNING")
        world.cloud.pass_time(1000)
    assert not world.look().gave_up


@pytest.mark.parametrize("after_s", [1.0, 30.0, SUCCESSOR_S - 31])
def test_glues_weekly_restart_is_left_to_glue(after_s: float) -> None:
    world = World(GLUE).running()
    world.cloud.expire(after_s)
    world.look()
    world.until("RUNNING")
    assert world.cloud.only.id == "r1_restart_1"
    assert world.cloud.most_alive == 1
    assert "start" not in world.cloud.calls[1:]
    assert (world.record.restarts, world.record.run_failures, world.record.replaces) == (0, 0, "")


def test_if_glue_does_not_restart_an_expired_run_the_controller_does() -> None:
    world = World(GLUE).running()
    world.cloud.end("expired")
    world.until("RUNNING", within_s=SUCCESSOR_S + 60)
    assert world.cloud.only.id == "r2"
    assert world.record.restarts == 1


@pytest.mark.parametrize("delete", [False, True])
def test_a_deployment_in_the_middle_of_the_weekly_restart_meets_no_second_run(delete: bool) -> None:
    world = World(GLUE).running()
    world.cloud.expire(120)
    world.look()
    request = world.deploy(world.desired("v2", location=EMR), delete=delete)
    while not world.controller.is_done(request):
        world.cloud.pass_time(30)
    assert world.cloud.most_alive == 1
    assert [run.start.version for run in world.cloud.alive] == ([] if delete else [request.desired.version])


# --- Faults.


@EACH
def test_a_quota_or_throttling_is_retried_and_no_failure(location: JobLocation) -> None:
    world = World(location)
    world.cloud.faults = ["busy", "busy"]
    world.deploy()
    statuses = [world.look(), world.look(), world.look()]
    assert [status.state for status in statuses] == ["WAITING", "WAITING", "STARTING"]
    assert statuses[0].reason == "The quota is exceeded"
    assert (world.record.run_failures, world.record.restarts) == (0, 0)


def test_while_a_service_does_not_answer_nothing_is_concluded() -> None:
    world = World().running()
    world.cloud.deaf = True
    status = world.look()
    assert (status.state, status.running, status.reason) == ("UNKNOWN", None, "Rate exceeded")
    assert world.cloud.calls == ["start"]


@EACH
@pytest.mark.parametrize("fault", ["lost", "lost, but started", "lost, but late"])
def test_a_start_without_answer_makes_one_run(location: JobLocation, fault: Fault) -> None:
    world = World(location)
    world.cloud.lag_s = LAG_S
    world.cloud.faults = [fault]
    world.deploy()
    world.until("RUNNING", step_s=10)
    world.cloud.pass_time(DOUBT_S)
    assert world.look().state == "RUNNING"
    assert len(world.cloud.all) == 1
    assert world.cloud.most_alive == 1


def test_a_start_without_answer_is_not_asked_for_again_while_the_call_may_last() -> None:
    world = World(EMR)
    world.cloud.faults = ["lost"]
    world.deploy()
    world.look()
    world.cloud.pass_time(CALL_S - 1)
    world.look()
    assert world.cloud.calls == ["start"]
    world.cloud.pass_time(1)
    world.look()
    assert world.cloud.calls == ["start", "start"]


@pytest.mark.parametrize("to", ["v2", "elsewhere"])
def test_a_deployment_over_a_start_without_answer_waits_until_it_cannot_arrive(to: str) -> None:
    world = World(EMR)
    world.cloud.faults = ["lost, but late"]
    world.deploy()
    world.look()
    world.deploy(world.desired("v2") if to == "v2" else world.desired("v1", location=GLUE))
    for _ in range(60):
        world.look()
        world.cloud.pass_time(10)
    assert world.look().state == "RUNNING"
    assert world.cloud.most_alive == 1
    assert len(world.cloud.all) == 2  # the late one came, and was stopped


@EACH
def test_a_run_that_lists_do_not_show_yet_is_not_started_twice(location: JobLocation) -> None:
    world = World(location)
    world.cloud.lag_s = 300
    world.deploy()
    world.look()
    world.cloud.pass_time(100)
    world.look()
    assert world.cloud.calls == ["start"]


def test_after_a_lost_record_the_run_is_adopted() -> None:
    world = World(EMR).running()
    run = world.cloud.only.id
    world.records.saved.clear()
    world.running()
    assert world.cloud.only.id == run
    assert len(world.cloud.all) == 1


def test_a_record_lost_during_a_deletion_does_not_end_it() -> None:
    world = World().running()
    request = world.deploy(delete=True)
    world.records.saved.clear()
    while not world.controller.is_done(request):
        world.cloud.pass_time(10)
    assert world.cloud.alive == []


def test_a_record_lost_during_a_deployment_is_written_again_by_the_poll() -> None:
    world = World()
    request = world.deploy()
    world.controller.is_done(request)
    world.records.saved.clear()
    while not world.controller.is_done(request):
        world.cloud.pass_time(30)
    assert len(world.cloud.all) == 1


def test_a_run_that_a_person_started_is_replaced() -> None:
    world = World(GLUE)
    world.cloud._launch(Start("p", GLUE, "", ""))
    world.deploy()
    world.until("RUNNING")
    assert world.cloud.only.start.version == world.desired().version
    assert world.cloud.most_alive == 1


def test_of_two_runs_the_older_one_is_stopped() -> None:
    world = World(EMR).running()
    older = world.cloud.only
    world.clock.advance(1)
    world.cloud._add(SimulatedRun("r2", replace(older.start, label="another"), world.clock.time_us()))
    world.look()
    assert older.phase == "stopping"
    world.until("RUNNING")
    assert world.cloud.only.id == "r2"


@pytest.mark.parametrize("fault", ["lost", "lost, but saved"])
def test_a_record_that_may_not_be_saved_starts_nothing_twice(fault: Literal["lost", "lost, but saved"]) -> None:
    world = World(EMR)
    world.deploy()
    world.records.faults = [fault]
    with pytest.raises(StoreError):
        world.look()
    assert world.cloud.calls == []
    world.until("RUNNING")
    assert len(world.cloud.all) == 1


# --- Calls at the same time.


@EACH
def test_of_two_calls_at_once_one_starts_the_run(location: JobLocation) -> None:
    world = World(location)
    world.deploy()
    inner: list[Status] = []
    world.cloud.meanwhile = lambda: inner.append(world.look())
    outer = world.look()
    assert inner[0].state == "STARTING"
    assert (outer.state, outer.reason) == ("UNKNOWN", "Another call is working on this pipeline now.")
    assert world.cloud.calls == ["start"]


@EACH
def test_a_call_in_the_middle_of_a_start_waits(location: JobLocation) -> None:
    world = World(location)
    world.deploy()
    world.cloud.lag_s = 60
    world.cloud.faults = []

    def look_during_start() -> None:  # first comes the list, then the start
        world.cloud.meanwhile = lambda: inner.append(world.look())

    inner: list[Status] = []
    world.cloud.meanwhile = look_during_start
    world.look()
    assert [status.state for status in inner] == ["STARTING"]
    assert world.cloud.calls == ["start"]


@EACH
@pytest.mark.parametrize("delete", [False, True])
def test_a_request_in_the_middle_of_a_start_replaces_or_ends_the_run(location: JobLocation, delete: bool) -> None:
    world = World(location)
    world.deploy()

    def request_during_start() -> None:
        world.cloud.meanwhile = lambda: world.deploy(world.desired("v2"), delete=delete) and None

    world.cloud.meanwhile = request_during_start
    world.look()
    assert world.cloud.only.start.version == world.desired("v1").version
    world.until("DELETED" if delete else "RUNNING")
    world.cloud.pass_time(DOUBT_S)
    assert [run.start.version for run in world.cloud.alive] == ([] if delete else [world.desired("v2").version])
    assert world.cloud.most_alive == 1


def test_a_failure_seen_by_two_calls_counts_once() -> None:
    world = World().running()
    world.cloud.end("failed")
    before = len(world.reported)
    world.cloud.meanwhile = lambda: world.look() and None
    world.look()
    assert sum(status.run_failures for status in world.reported[before:]) == 1
    assert sum(status.restarts for status in world.reported[before:]) == 1


def test_one_pipeline_that_cannot_be_reconciled_does_not_keep_the_others_from_it() -> None:
    world = World()
    world.records.saved["a-broken-one"] = ("{}", 0)
    world.deploy()
    with pytest.raises(ExceptionGroup, match="1 of 2 pipelines"):
        world.controller.reconcile_all()
    assert world.cloud.calls == ["start"]


# --- What is stored and sent.


def test_properties_and_records_come_back_as_they_were() -> None:
    desired = replace(
        World(EMR).desired(),
        job=EmrJob("s3://b/j.py", "arn:r", ("--a", "b"), "--conf x=y", "/group", "prefix", "arn:key"),
        running=False,
        bump="7",
        settle_s=5,
    )
    assert DesiredPipeline.from_properties({"ServiceToken": "arn:f", **desired.to_properties()}) == desired
    world = World().running().fail(2)
    world.cloud.faults = ["lost"]
    world.deploy(world.desired("v2", location=OTHER))
    world.until("STARTING")
    record = world.record
    assert record.pending is not None
    assert record.drain == () or record.drain == (GLUE,)
    assert PipelineState.from_json(record.to_json()) == record


def test_a_record_of_another_version_of_the_code_is_read() -> None:
    text = World().running().record.to_json()
    assert PipelineState.from_json(text.replace('"restarts": 0,', '"restarts": 0, "invented_later": 1,')).restarts == 0
    assert PipelineState.from_json(text.replace('"restarts": 0,', "")).restarts == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Pipeline": ""}, "lacks Pipeline"),
        ({"JobName": None}, "lacks JobName"),
        ({"Engine": "flink"}, "must be one of glue, emr-serverless"),
        ({"Engine": "emr-serverless", "ApplicationId": "a"}, "EntryPoint and ExecutionRoleArn"),
        ({"Desired": "YES"}, "must be RUNNING or STOPPED"),
        ({"SettleSeconds": "soon"}, "must be a number"),
        ({"MaxFailuresPerHour": "0"}, "MaxFailuresPerHour must be 1 to 100, got 0"),
        ({"Pipeline": "a/b"}, "letters, digits"),
    ],
)
def test_properties_that_cannot_be_are_refused(change: dict[str, str | None], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DesiredPipeline.from_properties(World().desired().to_properties() | change)


# --- All of it at random.


class Interleavings(RuleBasedStateMachine):
    """Deployments, failures, lost answers and calls at once, in any order."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.cloud = self.world.cloud
        self.cloud.lag_s = LAG_S
        self.deleted = False
        self.world.deploy()

    @rule(
        version=st.sampled_from(["v1", "v2", "v3"]),
        location=st.sampled_from([GLUE, GLUE, EMR, EMR, OTHER]),
        running=st.sampled_from([True, True, True, False]),
    )
    def deploy(self, version: str, location: JobLocation, running: bool) -> None:
        self.ask(self.world.desired(version, location=location, running=running))

    @rule()
    def delete(self) -> None:
        self.ask(None)

    def ask(self, wanted: DesiredPipeline | None) -> None:
        """CloudFormation asks for it (or a deletion), and goes back, or asks again, if that fails."""
        last = self.world.last
        assert last is not None
        for _ in range(50):
            try:
                self.deleted = False
                self.world.deploy(wanted, delete=wanted is None)
            except StoreError:
                wanted = last.desired if wanted is not None else None
            else:
                return
        raise AssertionError("the faults of saving do not end")

    @rule()
    def poll(self) -> None:
        request = self.world.last
        assert request is not None
        # CloudFormation polls only what was noted.
        stored = self.world.records.load("p")
        if stored is None or stored.record.deploy_id == request.id:
            done = self.guarded(lambda: self.world.controller.is_done(request))
            self.deleted = self.deleted or (request.delete and done is True)

    @rule(times=st.integers(1, 2))
    def event(self, times: int) -> None:
        for _ in range(times):
            self.guarded(self.look)

    @rule(also=st.sampled_from(["look", "deploy", "delete"]), during=st.integers(0, 2))
    def call_at_once(self, also: str, during: int) -> None:
        def inner() -> None:
            if also == "look":
                self.guarded(self.look)
            elif also == "deploy":
                self.deploy("v2", EMR, True)
            else:
                self.delete()

        def later(left: int) -> Callable[[], None]:
            def hook() -> None:
                self.cloud.meanwhile = later(left - 1)

            return inner if left == 0 else hook

        self.cloud.meanwhile = later(during)
        self.guarded(self.look)
        self.cloud.meanwhile = None

    @rule()
    def reset(self) -> None:
        self.guarded(lambda: self.world.controller.reset("p"))

    @rule(seconds=st.sampled_from([1, 5, 30, 61, 120, 300, 900]))
    def time_passes(self, seconds: int) -> None:
        self.cloud.pass_time(seconds)

    @precondition(lambda self: self.cloud.alive)
    @rule(outcome=st.sampled_from(["failed", "finished", "stopped"]))
    def a_run_ends(self, outcome: str) -> None:
        self.cloud.end(outcome)

    @precondition(lambda self: any(self.expirable(run) for run in self.cloud.alive))
    @rule(after_s=st.sampled_from([1.0, 300.0, SUCCESSOR_S - LAG_S - 1]))
    def glue_restarts(self, after_s: float) -> None:
        self.cloud.expire(after_s)
        # Noticed before the successor is there, as by the schedule.
        self.cloud.deaf = False
        self.world.records.faults.clear()
        self.look()

    @rule(fault=st.sampled_from(["busy", "refused", "lost", "lost, but started", "lost, but late"]))
    def next_start(self, fault: Fault) -> None:
        self.cloud.faults.append(fault)

    @rule(fault=st.sampled_from(["lost", "lost, but saved"]))
    def next_save(self, fault: Literal["lost", "lost, but saved"]) -> None:
        self.world.records.faults.append(fault)

    @rule(deaf=st.booleans())
    def service_answers_or_not(self, deaf: bool) -> None:
        self.cloud.deaf = deaf

    @precondition(lambda self: self.nothing_underway())
    @rule()
    def record_is_lost(self) -> None:
        self.world.records.saved.clear()

    def nothing_underway(self) -> bool:
        """Nobody can know, without the record, of what is in flight or not listed yet, or at a location of long ago."""
        last = self.world.last
        return (
            not self.cloud.late
            and not any(run.successor_us for run in self.cloud.all)
            and all(self.cloud._age_s(run) >= LAG_S for run in self.cloud.alive)
            and all(run.start.location == last.desired.location for run in self.cloud.alive)
        )

    def expirable(self, run: SimulatedRun) -> bool:
        return run.start.location.runs_on == "glue" and self.cloud._age_s(run) >= LAG_S

    def look(self) -> Status | None:
        return self.world.controller.reconcile("p")

    def guarded(self, call: Callable[[], object]) -> object:
        try:
            return call()
        except (StoreError, DeployFailed):
            return None

    @invariant()
    def never_two_runs(self) -> None:
        assert self.cloud.most_alive <= 1

    @invariant()
    def after_a_deletion_nothing_runs(self) -> None:
        assert not (self.deleted and self.cloud.alive)

    def teardown(self) -> None:
        """Faults cease: what runs becomes what is wanted."""
        if not hasattr(self, "world"):
            return
        self.cloud.faults.clear()
        self.world.records.faults.clear()
        self.cloud.deaf = False
        request = self.world.last
        assert request is not None
        self.world.controller.request(request)
        wanted = request.desired.running and not request.delete
        there = [(request.desired.version, request.desired.location, "running")] if wanted else []
        for look in range(200):
            if look == 100:
                self.world.controller.reset("p")  # the controller may have given up before the faults ceased
            self.cloud.pass_time(30)
            self.look()
            if self.alive() == there and not self.cloud.late and not any(run.successor_us for run in self.cloud.all):
                break
        for _ in range(5):
            self.cloud.pass_time(60)
            self.look()
        assert self.alive() == there
        self.never_two_runs()

    def alive(self) -> list[tuple[str, JobLocation, str]]:
        return [(run.start.version, run.start.location, run.phase) for run in self.cloud.alive]


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
