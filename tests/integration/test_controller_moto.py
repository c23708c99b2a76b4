"""The function, its records and both services as boto3 speaks to them, against moto's Glue, EMR Serverless and S3.

moto makes no client tokens effective and lacks BatchStopJobRun, which is added here; runs change their state only as
the tests say.
"""

from __future__ import annotations

import importlib
import io
import json
import sys
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError
from botocore.stub import ANY, Stubber
from moto import mock_aws
from moto.emrserverless.models import emrserverless_backends
from moto.glue.models import glue_backends
from moto.glue.responses import GlueResponse
from moto.moto_api import state_manager

from brokerless.aws.controller.calls import client_config
from brokerless.aws.controller.desired import DesiredPipeline
from brokerless.aws.controller.emr_serverless import EmrServerlessService
from brokerless.aws.controller.glue import GlueService
from brokerless.aws.controller.services import AnswerLost, EmrJob, JobLocation, ServiceBusy, Start, StartRefused
from brokerless.aws.controller.states import PipelineState, S3PipelineStates
from brokerless.aws.environment import ControllerEnvironment
from brokerless.clock import SYSTEM
from brokerless.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

ACCOUNT, REGION, BUCKET = "123456789012", "us-east-1", "state-of-tests"
PREFIX = f"s3://{BUCKET}/controller"
GLUE = JobLocation("glue", "etl")
JOB = EmrJob(
    "s3://b/job.py",
    f"arn:aws:iam::{ACCOUNT}:role/r",
    arguments=("--name", "etl"),
    spark_submit="--conf spark.executor.cores=2",
    log_group="/brokerless/dev/etl",
    log_prefix="etl",
)


class Context:
    function_name = "controller"
    memory_limit_in_mb = 256
    invoked_function_arn = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:controller"
    aws_request_id = "r"


@pytest.fixture(scope="module")
def session() -> boto3.Session:
    """One for all tests: it remembers the services' models, of which Glue's takes half a second to read."""
    return boto3.Session("test", "test", region_name=REGION)


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, session: boto3.Session) -> Iterator[None]:
    environ = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
        "POWERTOOLS_TRACE_DISABLED": "true",
        **ControllerEnvironment(stage="dev", metrics_namespace="Brokerless/dev", state_prefix=PREFIX).to_environ(),
    }
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    def batch_stop_job_run(self: Any) -> str:
        job = self.glue_backend.get_job(self._get_param("JobName"))
        ids = self._get_param("JobRunIds")
        for run in job.job_runs:
            if run.job_run_id in ids and run.status in ("STARTING", "RUNNING"):
                run.status = "STOPPING"
        return json.dumps({"SuccessfulSubmissions": [{"JobName": job.name, "JobRunId": each} for each in ids]})

    monkeypatch.setattr(GlueResponse, "batch_stop_job_run", batch_stop_job_run, raising=False)
    with mock_aws():
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", session)
        state_manager.set_transition("glue::job_run", transition={"progression": "manual", "times": 1000})
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield
        state_manager.unset_transition("glue::job_run")


@pytest.fixture
def function() -> Iterator[ModuleType]:
    """The function, as at a cold start."""
    name = "lambdas.stream_controller.handler"
    sys.modules.pop(name, None)
    yield importlib.import_module(name)
    sys.modules.pop(name, None)


def glue_job(name: str = "etl") -> JobLocation:
    boto3.client("glue").create_job(
        Name=name,
        Role="r",
        Command={"Name": "gluestreaming"},
        ExecutionProperty={"MaxConcurrentRuns": 1},
        DefaultArguments={"--name": "etl"},
    )
    return JobLocation("glue", name)


def emr_application() -> JobLocation:
    made = boto3.client("emr-serverless").create_application(
        name="app", releaseLabel="emr-7.12.0", type="SPARK", clientToken="t"
    )
    return JobLocation("emr-serverless", made["applicationId"])


class Service:
    """What a test does to the runs of a location, and asks about them."""

    def __init__(self, location: JobLocation) -> None:
        self.location = location

    @property
    def runs(self) -> list[Any]:
        if self.location.runs_on == "glue":
            return list(glue_backends[ACCOUNT][REGION].jobs[self.location.name].job_runs)
        return emrserverless_backends[ACCOUNT][REGION].job_runs.get(self.location.name, [])

    def set(self, state: str, error: str = "") -> None:
        """Of the last run, in Glue's words."""
        run = self.runs[-1]
        if self.location.runs_on == "glue":
            run.status = state
            plain = type(run).as_dict
            run.as_dict = lambda: {**plain(run), "ErrorMessage": error}
        else:
            run.state = {"SUCCEEDED": "SUCCESS", "STOPPED": "CANCELLED", "STARTING": "PENDING"}.get(state, state)
            run.state_details = error or "-"

    @property
    def state(self) -> str:
        run = self.runs[-1]
        return str(run.status if self.location.runs_on == "glue" else run.state)


@pytest.fixture(params=["glue", "emr-serverless"])
def service(request: pytest.FixtureRequest) -> Service:
    return Service(glue_job() if request.param == "glue" else emr_application())


def desired(location: JobLocation, code: str = "v1", **other: Any) -> DesiredPipeline:
    job = JOB if location.runs_on == "emr-serverless" else None
    return DesiredPipeline("etl", location, code, "c", job=job, settle_s=0, **other)


def cloudformation(
    function: ModuleType,
    kind: str,
    wanted: DesiredPipeline,
    *,
    request_id: str = "1",
    polls: Callable[[], None] | None = None,
) -> Any:
    """One request as the Provider makes it: what ``on_event`` answers is merged into the event of each poll."""
    event = {
        "RequestType": kind,
        "RequestId": request_id,
        "StackId": "stack",
        "LogicalResourceId": "Pipeline",
        "ResourceProperties": {"ServiceToken": "arn", **wanted.to_properties()},
    }
    if kind != "Create":
        event["PhysicalResourceId"] = "brokerless-pipeline-etl"
    event |= function.handler(event, Context())
    for _ in range(5):
        answer = function.handler(event, Context())
        if answer["IsComplete"]:
            return event["PhysicalResourceId"]
        if polls is not None:
            polls()
    return None


def running(function: ModuleType, service: Service) -> None:
    def run() -> None:
        service.set("RUNNING")

    # A poll in which the run is first seen RUNNING, and with settle_s=0 it is done.
    assert cloudformation(function, "Create", desired(service.location), polls=run) == "brokerless-pipeline-etl"


def metrics(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    lines = (line for line in capsys.readouterr().out.splitlines() if "_aws" in line)
    return [json.loads(line) for line in lines]


def test_a_deployment_starts_a_run_and_is_done_when_it_runs(function: ModuleType, service: Service) -> None:
    running(function, service)
    assert len(service.runs) == 1
    assert cloudformation(function, "Update", desired(service.location), request_id="2") is not None
    assert len(service.runs) == 1


def test_an_update_stops_the_old_run_and_starts_a_new_one(function: ModuleType, service: Service) -> None:
    running(function, service)
    states = []

    def step() -> None:
        states.append((len(service.runs), service.state))
        service.set("STOPPED" if len(service.runs) == 1 else "RUNNING")

    assert cloudformation(function, "Update", desired(service.location, "v2"), request_id="2", polls=step)
    # moto cancels EMR's runs at once.
    assert [count for count, _ in states] == [1, 2]
    assert states[0][1] in ("STOPPING", "CANCELLED")
    assert len(service.runs) == 2


def test_a_deployment_fails_with_the_runs_error(function: ModuleType, service: Service) -> None:
    wanted = desired(service.location, max_start_failures=1)
    with pytest.raises(Exception, match="KeyError: 'tz'") as caught:
        cloudformation(function, "Create", wanted, polls=lambda: service.set("FAILED", "KeyError: 'tz'"))
    assert type(caught.value).__name__ == "DeployFailed"
    assert len(service.runs) == 1


def test_a_deletion_stops_the_run(function: ModuleType, service: Service) -> None:
    running(function, service)
    done = cloudformation(
        function, "Delete", desired(service.location), request_id="2", polls=lambda: service.set("STOPPED")
    )
    assert done == "brokerless-pipeline-etl"
    assert len(service.runs) == 1


def test_a_deletion_succeeds_when_everything_is_gone(function: ModuleType) -> None:
    for location in (JobLocation("glue", "gone"), JobLocation("emr-serverless", "00gone")):
        assert cloudformation(function, "Delete", desired(location), request_id=f"delete {location}") is not None


@pytest.mark.parametrize(
    "event",
    [
        {"source": "aws.glue", "detail-type": "Glue Job State Change", "detail": {"jobName": "etl", "state": "FAILED"}},
        {"source": "aws.events", "detail-type": "Scheduled Event", "detail": {}},
    ],
    ids=["event", "schedule"],
)
def test_a_run_that_failed_is_started_again(
    function: ModuleType, event: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service(glue_job())
    running(function, service)
    service.set("FAILED", "boom")
    capsys.readouterr()
    assert function.handler(event, Context()) == {"etl": "STARTING"}
    assert len(service.runs) == 2
    (sent,) = metrics(capsys)
    values = {name: sent[name] for name in ("Restarts", "RunFailures", "GaveUp", "PipelineRunning")}
    assert values == {"Restarts": [1.0], "RunFailures": [1.0], "GaveUp": [0.0], "PipelineRunning": [0.0]}
    (directive,) = sent["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["Pipeline"]]
    assert (directive["Namespace"], sent["Pipeline"]) == ("Brokerless/dev", "etl")


def test_an_event_of_emr_serverless_names_the_application(function: ModuleType) -> None:
    service = Service(emr_application())
    running(function, service)
    service.set("FAILED", "boom")
    detail = {"applicationId": service.location.name, "jobRunId": "r", "state": "FAILED"}
    event = {"source": "aws.emr-serverless", "detail-type": "EMR Serverless Job Run State Change", "detail": detail}
    assert function.handler(event, Context()) == {"etl": "STARTING"}
    assert function.handler({**event, "detail": {**detail, "applicationId": "00other"}}, Context()) == {}


def test_a_pipeline_that_was_given_up_is_reset_by_a_person(function: ModuleType) -> None:
    service = Service(glue_job())
    with pytest.raises(Exception, match="boom"):
        cloudformation(
            function, "Create", desired(GLUE, max_start_failures=1), polls=lambda: service.set("FAILED", "boom")
        )
    assert function.handler({"source": "aws.scheduler"}, Context()) == {"etl": "GAVE_UP"}
    assert function.handler({"reset": "etl"}, Context()) == {"etl": "STARTING"}
    assert function.handler({"reset": "unknown"}, Context()) == {}


def test_a_poll_does_not_fail_a_deployment_because_s3_does_not_answer(
    function: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    glue_job()

    def is_done(request: object) -> bool:
        raise StoreError("503 Slow Down")

    monkeypatch.setattr(type(function.CONTROLLER), "is_done", lambda self, request: is_done(request))
    assert cloudformation(function, "Create", desired(GLUE)) is None


def test_an_event_that_nobody_knows_is_refused(function: ModuleType) -> None:
    with pytest.raises(Exception, match=r"cannot handle this event\. Its keys are: detail, source"):
        function.handler({"source": "aws.s3", "detail": {}}, Context())


# --- What is sent to the services.


def test_a_glue_run_tells_its_version() -> None:
    location = glue_job()
    service = GlueService(boto3.client("glue"))
    run_id = service.start(Start("etl", location, "v", "l-1"))
    (run,) = service.runs(location, pipeline="etl", known="")
    assert (run.id, run.version, run.label, run.phase) == (run_id, "v", "l-1", "starting")
    assert Service(location).runs[0].arguments["--name"] == "etl"
    with pytest.raises(ServiceBusy, match="ConcurrentRunsExceeded"):
        service.start(Start("etl", location, "v", "l-2"))
    service.stop(location, (run_id,), grace_s=1)
    assert service.runs(location, pipeline="etl", known="")[0].phase == "stopping"


@pytest.mark.parametrize(
    ("state", "phase", "outcome"),
    [
        ("STARTING", "starting", ""),
        ("WAITING", "starting", ""),
        ("RUNNING", "running", ""),
        ("STOPPING", "stopping", ""),
        ("STOPPED", "ended", "stopped"),
        ("SUCCEEDED", "ended", "finished"),
        ("FAILED", "ended", "failed"),
        ("ERROR", "ended", "failed"),
        ("TIMEOUT", "ended", "failed"),
        ("EXPIRED", "ended", "expired"),
        ("INVENTED_LATER", "starting", ""),
    ],
)
def test_glues_states(state: str, phase: str, outcome: str) -> None:
    location = glue_job()
    service = GlueService(boto3.client("glue"))
    service.start(Start("etl", location, "v", "l-1"))
    Service(location).set(state, "why")
    (run,) = service.runs(location, pipeline="etl", known="")
    assert (run.phase, run.outcome, run.state, run.error) == (phase, outcome, state, "why")


def test_glue_refuses_to_stop_a_run_with_a_reason() -> None:
    client = boto3.client("glue")
    error = {"JobName": "etl", "JobRunId": "r", "ErrorDetail": {"ErrorCode": "Odd", "ErrorMessage": "no"}}
    with Stubber(client) as stub, pytest.raises(ServiceBusy, match="Odd: no"):
        stub.add_response("batch_stop_job_run", {"Errors": [error]})
        GlueService(client).stop(GLUE, ("r",), grace_s=1)
    over = {**error, "ErrorDetail": {"ErrorCode": "JobRunInTerminalStateException", "ErrorMessage": "it has ended"}}
    with Stubber(client) as stub:
        stub.add_response("batch_stop_job_run", {"Errors": [over]})
        GlueService(client).stop(GLUE, ("r",), grace_s=1)


def test_an_emr_run_is_started_as_a_stream_with_a_token_and_a_telling_name() -> None:
    client = boto3.client("emr-serverless")
    start = Start("etl", JobLocation("emr-serverless", "00app"), "v", "l-1", JOB)
    expected = {
        "applicationId": "00app",
        "clientToken": start.token,
        "executionRoleArn": JOB.role_arn,
        "mode": "STREAMING",
        "name": "brokerless:etl:v:l-1",
        "retryPolicy": {"maxFailedAttemptsPerHour": 1},
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": "s3://b/job.py",
                "entryPointArguments": ("--name", "etl"),
                "sparkSubmitParameters": "--conf spark.executor.cores=2",
            }
        },
        "configurationOverrides": {
            "monitoringConfiguration": {
                "cloudWatchLoggingConfiguration": {
                    "enabled": True,
                    "logGroupName": "/brokerless/dev/etl",
                    "logStreamNamePrefix": "etl",
                }
            }
        },
    }
    arn = "arn:aws:emr-serverless:us-east-1:123456789012:/applications/00app/jobruns/00run"
    with Stubber(client) as stub:
        stub.add_response("start_job_run", {"applicationId": "00app", "jobRunId": "00run", "arn": arn}, expected)
        assert EmrServerlessService(client).start(start) == "00run"
    assert len(start.token) == 64
    others = [
        Start("e", start.location, "v", "l-1"),
        Start("etl", start.location, "w", "l-1"),
        Start("etl", GLUE, "v", "l-2"),
    ]
    assert start.token not in {other.token for other in others}


def test_an_emr_run_is_cancelled_with_a_grace_and_found_by_its_name() -> None:
    location = emr_application()
    client = boto3.client("emr-serverless")
    service = EmrServerlessService(client)
    first = service.start(Start("etl", location, "v", "l-1", JOB))
    other = service.start(Start("somebody-elses", location, "v", "l-1", JOB))
    for run in Service(location).runs:
        run.state = "RUNNING"
    (run,) = service.runs(location, pipeline="etl", known="")
    assert (run.id, run.version, run.label, run.phase) == (first, "v", "l-1", "running")
    service.stop(location, (first, "00gone"), grace_s=120)
    assert service.runs(location, pipeline="etl", known="") == ()
    assert service.runs(location, pipeline="etl", known=first)[0].outcome == "stopped"
    assert service.runs(location, pipeline="somebody-elses", known="")[0].id == other
    with Stubber(client) as stub:
        grace = {"applicationId": location.name, "jobRunId": first, "shutdownGracePeriodInSeconds": 7}
        stub.add_response("cancel_job_run", {"applicationId": location.name, "jobRunId": first}, grace)
        service.stop(location, (first,), grace_s=7)


@pytest.mark.parametrize("state", ["TERMINATED", None])
def test_an_application_that_is_gone_has_no_runs(state: str | None) -> None:
    client = boto3.client("emr-serverless")
    with Stubber(client) as stub:
        stub.add_client_error("list_job_runs", "ValidationException", http_status_code=400)
        if state is None:
            stub.add_client_error("get_application", "ResourceNotFoundException", http_status_code=404)
        else:
            application = {"applicationId": "00app", "arn": "a" * 60, "releaseLabel": "emr-7", "type": "SPARK"}
            times = {"createdAt": 0, "updatedAt": 0}
            stub.add_response("get_application", {"application": {**application, **times, "state": state}})
        assert EmrServerlessService(client).runs(JobLocation("emr-serverless", "00app"), pipeline="p", known="") == ()


@pytest.mark.parametrize("code", ["ThrottlingException", "AccessDeniedException", "InternalServerException"])
def test_a_service_that_does_not_say_which_runs_there_are_is_busy(code: str) -> None:
    client = boto3.client("emr-serverless")
    status = 500 if code.startswith("Internal") else 400
    with Stubber(client) as stub, pytest.raises(ServiceBusy, match=code):
        stub.add_client_error("list_job_runs", code, http_status_code=status)
        if code == "AccessDeniedException":
            stub.add_client_error("get_application", code, http_status_code=403)
        EmrServerlessService(client).runs(JobLocation("emr-serverless", "00app"), pipeline="p", known="")
    glue = boto3.client("glue")
    with Stubber(glue) as stub, pytest.raises(ServiceBusy, match=code):
        stub.add_client_error("get_job_runs", code, http_status_code=status)
        GlueService(glue).runs(GLUE, pipeline="p", known="")


@pytest.mark.parametrize(
    ("code", "message", "status", "kind"),
    [
        ("ConcurrentRunsExceededException", "", 400, ServiceBusy),
        ("ResourceNumberLimitExceededException", "", 400, ServiceBusy),
        ("ThrottlingException", "", 400, ServiceBusy),
        ("ThrottlingException", "", 503, ServiceBusy),
        ("ServiceQuotaExceededException", "", 402, ServiceBusy),
        ("ConflictException", "the application is starting", 409, ServiceBusy),
        ("ResourceNotReadyException", "", 400, ServiceBusy),
        ("ValidationException", "vCPU quota of the account is reached", 400, ServiceBusy),
        ("ValidationException", "no such entry point", 400, StartRefused),
        ("InvalidInputException", "", 400, StartRefused),
        ("EntityNotFoundException", "", 400, StartRefused),
        ("ResourceNotFoundException", "", 404, StartRefused),
        ("AccessDeniedException", "iam:PassRole", 403, StartRefused),
        ("InternalServiceException", "", 500, AnswerLost),
        ("InternalServerException", "", 500, AnswerLost),
        ("OperationTimeoutException", "", 400, AnswerLost),
    ],
)
def test_what_an_error_says_about_a_start(code: str, message: str, status: int, kind: type[Exception]) -> None:
    glue, emr = boto3.client("glue"), boto3.client("emr-serverless")
    with Stubber(glue) as stub, pytest.raises(kind, match=code):
        stub.add_client_error("start_job_run", code, message, http_status_code=status)
        GlueService(glue).start(Start("p", GLUE, "v", "l"))
    with Stubber(emr) as stub, pytest.raises(kind, match=code):
        stub.add_client_error("start_job_run", code, message, http_status_code=status)
        EmrServerlessService(emr).start(Start("p", JobLocation("emr-serverless", "00app"), "v", "l", JOB))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ReadTimeoutError(endpoint_url="e"), AnswerLost),
        (ConnectTimeoutError(endpoint_url="e"), ServiceBusy),
    ],
)
def test_what_a_dead_network_says_about_a_start(error: Exception, kind: type[Exception]) -> None:
    class Client:
        def start_job_run(self, **_: object) -> None:
            raise error

    with pytest.raises(kind):
        GlueService(Client()).start(Start("p", GLUE, "v", "l"))  # type: ignore[arg-type]


def test_parameters_that_boto3_refuses_are_refused() -> None:
    service = EmrServerlessService(boto3.client("emr-serverless"))
    with pytest.raises(StartRefused, match="Parameter validation failed"):
        service.start(Start("p", JobLocation("emr-serverless", ""), "v", "l", JOB))


def test_the_services_clients_do_not_repeat_calls() -> None:
    config = client_config()
    assert config.retries == {"mode": "standard", "total_max_attempts": 1}


# --- PipelineStates in S3.


def record(text: str = "v1") -> PipelineState:
    return PipelineState(desired(GLUE, text), "owner", "lineage")


def test_of_two_that_read_the_same_record_one_can_change_it() -> None:
    records = S3PipelineStates(boto3.client("s3"), PREFIX, clock=SYSTEM)
    assert records.load("etl") is None
    assert records.save(record(), revision=None)
    assert not records.save(record("v2"), revision=None)
    stored = records.load("etl")
    assert stored is not None
    assert stored.record == record()
    assert records.save(record("v2"), revision=stored.revision)
    assert not records.save(record("v3"), revision=stored.revision)
    again = records.load("etl")
    assert again is not None
    assert again.record == record("v2")
    assert records.pipelines() == ("etl",)


def test_a_put_that_meets_what_it_wrote_itself_has_succeeded() -> None:
    client = boto3.client("s3")
    records = S3PipelineStates(client, PREFIX, clock=SYSTEM)
    bodies: list[bytes] = []
    client.meta.events.register(
        "provide-client-params.s3.PutObject", lambda params, **_: bodies.append(params["Body"]) and None
    )
    with Stubber(client) as stub:  # the repetition of a PUT whose answer was lost
        stub.add_client_error("put_object", "PreconditionFailed", http_status_code=412)
        stub.add_response("get_object", {}, {"Bucket": BUCKET, "Key": "controller/etl.json"})
        stub._queue[-1]["response"][1].update({"Body": Reads(bodies), "ETag": '"e"'})
        assert records.save(record(), revision=None)
    with Stubber(client) as stub:
        stub.add_client_error("put_object", "PreconditionFailed", http_status_code=412)
        stub.add_response("get_object", {"Body": Reads([b"another's"]), "ETag": '"e"'}, {"Bucket": ANY, "Key": ANY})
        assert not records.save(record(), revision=None)


class Reads(io.RawIOBase):
    """A body that is known when it is read."""

    def __init__(self, bodies: list[bytes]) -> None:
        self._bodies = bodies

    def read(self, size: int = -1) -> bytes:
        return self._bodies[-1]


def test_an_s3_that_fails_says_so() -> None:
    records = S3PipelineStates(boto3.client("s3"), "s3://no-such-bucket/x", clock=SYSTEM)
    for call in (
        lambda: records.load("etl"),
        lambda: records.save(record(), revision=None),
        records.pipelines,
    ):
        with pytest.raises(StoreError, match="NoSuchBucket"):
            call()


def test_a_prefix_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be s3://bucket/path"):
        S3PipelineStates(boto3.client("s3"), "/brokerless/dev/pipelines", clock=SYSTEM)
