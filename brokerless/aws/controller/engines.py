"""Glue and EMR Serverless behind one small protocol: which runs there are, start one, stop some.

The stream controller decides, this module speaks. It turns each service's states into the few that matter for a
decision, and each service's errors into what they say about the start that was asked for: it is refused
(``StartRefused``), it did not happen and may be tried again (``EngineBusy``), or nobody knows (``AnswerLost``). Taking
the third for the second is how a stream comes to run twice.

A run tells by itself what it is: a Glue run by two arguments, an EMR run by its name. So runs are recognised although
the controller never heard of them: after a lost answer, after a lost record, after Glue's weekly restart.

Clients are passed in. They must not repeat a call by themselves (``client_config``).
"""

from __future__ import annotations

import hashlib
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from brokerless.errors import BrokerlessError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
    from mypy_boto3_emr_serverless import EMRServerlessClient
    from mypy_boto3_emr_serverless.literals import JobRunStateType
    from mypy_boto3_emr_serverless.type_defs import ConfigurationOverridesTypeDef, SparkSubmitTypeDef
    from mypy_boto3_glue import GlueClient

EngineName = Literal["glue", "emr-serverless"]

Phase = Literal["starting", "running", "stopping", "ended"]
"""A run that has not ended is alive: it may hold the pipeline."""

Outcome = Literal["", "failed", "finished", "stopped", "expired"]
"""How a run ended. ``expired``: Glue is about to start its successor by itself."""

VERSION_ARGUMENT: Final = "--brokerless-version"
LABEL_ARGUMENT: Final = "--brokerless-attempt"


class EngineBusy(BrokerlessError):
    """The service did nothing, and may do it later: throttling, a quota, an application that is starting."""


class StartRefused(BrokerlessError):
    """The service will not start this run: bad arguments, a missing job or role, no permission."""


class AnswerLost(BrokerlessError):
    """The service was asked to start a run and never said whether it did."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where runs are: a Glue job or an EMR Serverless application.

    Attributes:
        name: the job's name, or the application's id.
    """

    engine: EngineName
    name: str

    def __str__(self) -> str:
        return f"{self.engine} {self.name}"


@dataclass(frozen=True, slots=True)
class EmrJob:
    """What EMR Serverless is told at each start. Glue keeps the same in the job's definition.

    Attributes:
        entry_point: the script, ``s3://bucket/job.py``.
        role_arn: what the run may do.
        arguments: of the script.
        spark_submit: parameters of spark-submit, in one string.
        log_group: CloudWatch group of the driver's output; empty for the service's own log only.
        log_prefix: of the streams in it.
        log_key_arn: what encrypts them; empty for the default.
    """

    entry_point: str
    role_arn: str
    arguments: tuple[str, ...] = ()
    spark_submit: str = ""
    log_group: str = ""
    log_prefix: str = ""
    log_key_arn: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a pipeline. Asking for it twice is asking for the same run.

    Attributes:
        version: what is run: a hash of code, configuration and parameters.
        label: which start it is; no two starts of a pipeline have the same.
        job: None on Glue.
    """

    pipeline: str
    place: Place
    version: str
    label: str
    job: EmrJob | None = None

    @property
    def token(self) -> str:
        """64 hexadecimal digits, the same for the same start: what EMR Serverless calls the client token."""
        return hashlib.sha256("\n".join((self.pipeline, self.version, self.label)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the service sees it now.

    Attributes:
        version: of its ``Start``; empty if a person started it.
        label: likewise.
        state: in the service's own word.
        error: the service's message, if it has one.
        started_us: microseconds since the epoch.
    """

    id: str
    place: Place
    phase: Phase
    version: str = ""
    label: str = ""
    outcome: Outcome = ""
    state: str = ""
    error: str = ""
    started_us: int = 0

    @property
    def alive(self) -> bool:
        """Whether it may still read and write."""
        return self.phase != "ended"


class Engine(Protocol):
    """A service that runs streaming jobs."""

    def runs(self, place: Place, *, pipeline: str, known: str) -> tuple[Run, ...]:
        """All live runs of the pipeline at a place, and the known one even if it has ended.

        Guaranteed: a place that is gone has no runs; that is no error. Not guaranteed: that a run which was just
        started is in it.

        Args:
            place: where to look.
            pipeline: whose runs; a place may serve several.
            known: the id of a run, or empty.

        Raises:
            EngineBusy: the service could not say.
        """

    def start(self, start: Start) -> str:
        """Starts a run and answers its id.

        Raises:
            EngineBusy: nothing was started; a later call may.
            StartRefused: nothing was started, and the same call will not do it.
            AnswerLost: a run was started, or was not, or will be.
        """

    def stop(self, place: Place, run_ids: tuple[str, ...], *, grace_s: int) -> None:
        """Asks runs to end; they do so later. Runs that have ended or never were are no error.

        Raises:
            EngineBusy: not all could be asked.
        """


def client_config() -> Config:
    """For the clients of both services: one attempt of at most 13 s, so that a call is over when it has returned.

    botocore would repeat a StartJobRun whose answer was late, and Glue has no token by which it knew the repetition.
    """
    from botocore.config import Config

    return Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 1})


_GLUE_PHASES: Final[dict[str, tuple[Phase, Outcome]]] = {
    "STARTING": ("starting", ""),
    "WAITING": ("starting", ""),
    "RUNNING": ("running", ""),
    "STOPPING": ("stopping", ""),
    "STOPPED": ("ended", "stopped"),
    "SUCCEEDED": ("ended", "finished"),
    "FAILED": ("ended", "failed"),
    "ERROR": ("ended", "failed"),
    "TIMEOUT": ("ended", "failed"),
    "EXPIRED": ("ended", "expired"),
}

# What Glue says of a run that cannot be stopped because it has ended. Whether it has is seen at the next look.
_GLUE_OVER: Final = ("EntityNotFoundException", "JobRunNotFoundException", "JobRunInTerminalStateException")

_EMR_PHASES: Final[dict[str, tuple[Phase, Outcome]]] = {
    "SUBMITTED": ("starting", ""),
    "PENDING": ("starting", ""),
    "SCHEDULED": ("starting", ""),
    "QUEUED": ("starting", ""),
    "RUNNING": ("running", ""),
    "CANCELLING": ("stopping", ""),
    "CANCELLED": ("ended", "stopped"),
    "SUCCESS": ("ended", "finished"),
    "FAILED": ("ended", "failed"),
}

# A state that a service invents later counts as alive: waiting for it is safe, starting beside it is not.
_UNKNOWN: Final[tuple[Phase, Outcome]] = ("starting", "")

_EMR_ALIVE: Final[tuple[JobRunStateType, ...]] = (
    "SUBMITTED",
    "PENDING",
    "SCHEDULED",
    "QUEUED",
    "RUNNING",
    "CANCELLING",
)


class GlueEngine:
    """Glue streaming jobs. The code and the arguments of a run are those of the job's definition.

    Glue knows no client token. What keeps a second run from starting is the job's ``MaxConcurrentRuns`` of 1, which
    the job must have. It needs ``MaxRetries`` 0 too: restarting is the controller's part.
    """

    def __init__(self, client: GlueClient) -> None:
        self._client = client

    def runs(self, place: Place, *, pipeline: str, known: str) -> tuple[Run, ...]:
        """See ``Engine``. All runs that Glue remembers (90 days), whose order it does not promise."""
        found: list[Run] = []
        with _asked(f"list runs of {place}", no_error=("EntityNotFoundException",)):
            for page in self._client.get_paginator("get_job_runs").paginate(JobName=place.name):
                found.extend(_glue_run(place, run) for run in page["JobRuns"])
        return tuple(run for run in found if run.alive or run.id == known or run.label)

    def start(self, start: Start) -> str:
        """See ``Engine``."""
        from botocore.exceptions import BotoCoreError, ClientError

        arguments = {VERSION_ARGUMENT: start.version, LABEL_ARGUMENT: start.label}
        try:
            return self._client.start_job_run(JobName=start.place.name, Arguments=arguments)["JobRunId"]
        except (BotoCoreError, ClientError) as error:
            raise _start_error(start, error) from error

    def stop(self, place: Place, run_ids: tuple[str, ...], *, grace_s: int) -> None:
        """See ``Engine``. Glue decides itself how long a run may take."""
        with _asked(f"stop runs of {place}", no_error=("EntityNotFoundException",)):
            answer = self._client.batch_stop_job_run(JobName=place.name, JobRunIds=list(run_ids))
            refused = [error.get("ErrorDetail", {}) for error in answer.get("Errors", ())]
            worrying = [detail for detail in refused if detail.get("ErrorCode") not in _GLUE_OVER]
            if worrying:
                text = "; ".join(f"{detail.get('ErrorCode')}: {detail.get('ErrorMessage')}" for detail in worrying)
                raise EngineBusy(f"Could not stop runs of {place}: {text}. The next call tries again.")


class EmrServerlessEngine:
    """Streaming job runs of EMR Serverless applications, which several pipelines may share.

    The service's own restarts are limited to none: one place counts failures, for both engines by the same rule, and a
    deployment learns of the first one.
    """

    def __init__(self, client: EMRServerlessClient) -> None:
        self._client = client

    def runs(self, place: Place, *, pipeline: str, known: str) -> tuple[Run, ...]:
        """See ``Engine``."""
        from botocore.exceptions import ClientError

        found: dict[str, Run] = {}
        with _asked(f"list runs of {place}", no_error=("ResourceNotFoundException",)):
            try:
                paginator = self._client.get_paginator("list_job_runs")
                for page in paginator.paginate(applicationId=place.name, states=list(_EMR_ALIVE)):
                    for summary in page["jobRuns"]:
                        if _emr_name(summary.get("name", ""))[0] == pipeline:
                            found[summary["id"]] = _emr_run(place, summary, summary["id"])
                if known and known not in found:
                    answer = self._client.get_job_run(applicationId=place.name, jobRunId=known)
                    found[known] = _emr_run(place, answer["jobRun"], known)
            except ClientError as error:
                if _code(error) in _LATER or _status(error) >= 500 or not self._gone(place):
                    raise
        return tuple(found.values())

    def start(self, start: Start) -> str:
        """See ``Engine``. The same ``Start`` answers the same run, however often it is sent."""
        from botocore.exceptions import BotoCoreError, ClientError

        if start.job is None:
            raise StartRefused(f"Pipeline {start.pipeline!r} has no entry point for {start.place}. Deploy it again.")
        submit: SparkSubmitTypeDef = {
            "entryPoint": start.job.entry_point,
            "entryPointArguments": start.job.arguments,
        }
        if start.job.spark_submit:
            submit["sparkSubmitParameters"] = start.job.spark_submit
        try:
            answer = self._client.start_job_run(
                applicationId=start.place.name,
                clientToken=start.token,
                executionRoleArn=start.job.role_arn,
                mode="STREAMING",
                name=f"brokerless:{start.pipeline}:{start.version}:{start.label}",
                retryPolicy={"maxFailedAttemptsPerHour": 1},
                jobDriver={"sparkSubmit": submit},
                configurationOverrides=_emr_overrides(start.job),
            )
        except (BotoCoreError, ClientError) as error:
            raise _start_error(start, error) from error
        return answer["jobRunId"]

    def stop(self, place: Place, run_ids: tuple[str, ...], *, grace_s: int) -> None:
        """See ``Engine``. After ``grace_s`` seconds the service ends what is left."""
        for run_id in run_ids:
            # ValidationException: it has ended meanwhile. Whether it has is seen at the next look.
            with _asked(f"stop run {run_id} of {place}", no_error=("ResourceNotFoundException", "ValidationException")):
                self._client.cancel_job_run(
                    applicationId=place.name, jobRunId=run_id, shutdownGracePeriodInSeconds=grace_s
                )

    def _gone(self, place: Place) -> bool:
        """Whether the application is; ListJobRuns has no error of its own for that."""
        from botocore.exceptions import ClientError

        try:
            return self._client.get_application(applicationId=place.name)["application"]["state"] == "TERMINATED"
        except ClientError as error:
            return _code(error) == "ResourceNotFoundException"


def _glue_run(place: Place, run: Any) -> Run:
    arguments = run.get("Arguments", {})
    phase, outcome = _GLUE_PHASES.get(run["JobRunState"], _UNKNOWN)
    return Run(
        id=run["Id"],
        place=place,
        phase=phase,
        outcome=outcome,
        version=arguments.get(VERSION_ARGUMENT, ""),
        label=arguments.get(LABEL_ARGUMENT, ""),
        state=run["JobRunState"],
        error=run.get("ErrorMessage", ""),
        started_us=int(run["StartedOn"].timestamp() * 1e6),
    )


def _emr_run(place: Place, run: Any, run_id: str) -> Run:
    _, version, label = _emr_name(run.get("name", ""))
    phase, outcome = _EMR_PHASES.get(run["state"], _UNKNOWN)
    return Run(
        id=run_id,
        place=place,
        phase=phase,
        outcome=outcome,
        version=version,
        label=label,
        state=run["state"],
        error=run.get("stateDetails") or "",
        started_us=int(run["createdAt"].timestamp() * 1e6),
    )


def _emr_name(name: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"brokerless:([^:]+):([^:]+):([^:]+)", name)
    return (found[1], found[2], found[3]) if found else ("", "", "")


def _emr_overrides(job: EmrJob) -> ConfigurationOverridesTypeDef:
    if not job.log_group:
        return {}
    logs: Any = {"enabled": True, "logGroupName": job.log_group}
    if job.log_prefix:
        logs["logStreamNamePrefix"] = job.log_prefix
    if job.log_key_arn:
        logs["encryptionKeyArn"] = job.log_key_arn
    return {"monitoringConfiguration": {"cloudWatchLoggingConfiguration": logs}}


# Nothing was done, and the same call may succeed later.
_LATER: Final = frozenset(
    {
        "ConcurrentRunsExceededException",
        "ConflictException",
        "LimitExceededException",
        "RequestLimitExceeded",
        "ResourceNotReady",
        "ResourceNotReadyException",
        "ResourceNumberLimitExceededException",
        "ServiceQuotaExceededException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)


def _start_error(start: Start, error: BotoCoreError | ClientError) -> BrokerlessError:
    """What an error says about the run that was to be started."""
    from botocore.exceptions import (
        ClientError,
        ConnectTimeoutError,
        EndpointConnectionError,
        NoCredentialsError,
        ParamValidationError,
    )

    text = f"start pipeline {start.pipeline!r} on {start.place}"
    if isinstance(error, ClientError):
        # Both services report some quotas as bad input.
        if _code(error) in _LATER or "quota" in str(error).lower():
            return _busy(text, error)
        # Glue's OperationTimeoutException comes with status 400, but says nothing about what it timed out in.
        if _status(error) < 500 and _code(error) != "OperationTimeoutException":
            msg = f"Could not {text}: {error}. Correct it and deploy again."
            return StartRefused(msg)
    elif isinstance(error, ParamValidationError):
        msg = f"Could not {text}: {error}. Correct it and deploy again."
        return StartRefused(msg)
    elif isinstance(error, (ConnectTimeoutError, EndpointConnectionError, NoCredentialsError)):
        return _busy(text, error)  # it was never sent
    msg = f"Asked to {text}, and got no answer: {error}. Whether it runs is found out later."
    return AnswerLost(msg)


@contextmanager
def _asked(what: str, *, no_error: tuple[str, ...]) -> Iterator[None]:
    """Turns errors of a call that may be repeated into ``EngineBusy``, but for codes that are no error at all."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        if _code(error) not in no_error:
            raise _busy(what, error) from error
    except BotoCoreError as error:
        raise _busy(what, error) from error


def _busy(what: str, error: BotoCoreError | ClientError) -> EngineBusy:
    msg = f"Could not {what} now: {error}. The next call tries again."
    return EngineBusy(msg)


def _code(error: ClientError) -> str:
    return error.response["Error"]["Code"]


def _status(error: ClientError) -> int:
    return error.response["ResponseMetadata"]["HTTPStatusCode"]
