"""Run pipelines on AWS Glue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from brokerless.aws.controller.calls import retryable, start_error
from brokerless.aws.controller.services import UNKNOWN_STATE, Run, ServiceBusy

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient

    from brokerless.aws.controller.services import JobLocation, Outcome, Phase, Start

VERSION_ARGUMENT: Final = "--brokerless-version"
LABEL_ARGUMENT: Final = "--brokerless-attempt"


_PHASES: Final[dict[str, tuple[Phase, Outcome]]] = {
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

# Glue's codes for a run that cannot be stopped because it has ended; the next call sees whether it has.
_HAS_ENDED: Final = ("EntityNotFoundException", "JobRunNotFoundException", "JobRunInTerminalStateException")


class GlueService:
    """Runs Glue streaming jobs. The code and the arguments of a run are those of the job's definition.

    Glue has no client token. The job must have ``MaxConcurrentRuns`` 1, which prevents a second run, and ``MaxRetries``
    0, because the controller restarts runs.
    """

    def __init__(self, client: GlueClient) -> None:
        self._client = client

    def runs(self, location: JobLocation, *, pipeline: str, known: str) -> tuple[Run, ...]:
        """Implement ``JobService``. Glue returns the runs of 90 days, in any order."""
        found: list[Run] = []
        with retryable(f"list runs of {location}", no_error=("EntityNotFoundException",)):
            for page in self._client.get_paginator("get_job_runs").paginate(JobName=location.name):
                found.extend(_glue_run(location, run) for run in page["JobRuns"])
        return tuple(run for run in found if run.alive or run.id == known or run.label)

    def start(self, start: Start) -> str:
        """Implement ``JobService``."""
        from botocore.exceptions import BotoCoreError, ClientError

        arguments = {VERSION_ARGUMENT: start.version, LABEL_ARGUMENT: start.label}
        try:
            return self._client.start_job_run(JobName=start.location.name, Arguments=arguments)["JobRunId"]
        except (BotoCoreError, ClientError) as error:
            raise start_error(start, error) from error

    def stop(self, location: JobLocation, run_ids: tuple[str, ...], *, grace_s: int) -> None:
        """Implement ``JobService``. Glue itself decides how long a run may take to end."""
        with retryable(f"stop runs of {location}", no_error=("EntityNotFoundException",)):
            answer = self._client.batch_stop_job_run(JobName=location.name, JobRunIds=list(run_ids))
            refused = [error.get("ErrorDetail", {}) for error in answer.get("Errors", ())]
            worrying = [detail for detail in refused if detail.get("ErrorCode") not in _HAS_ENDED]
            if worrying:
                text = "; ".join(f"{detail.get('ErrorCode')}: {detail.get('ErrorMessage')}" for detail in worrying)
                raise ServiceBusy(f"Could not stop runs of {location}: {text}. The next call tries again.")


def _glue_run(location: JobLocation, run: Any) -> Run:
    arguments = run.get("Arguments", {})
    phase, outcome = _PHASES.get(run["JobRunState"], UNKNOWN_STATE)
    return Run(
        id=run["Id"],
        location=location,
        phase=phase,
        outcome=outcome,
        version=arguments.get(VERSION_ARGUMENT, ""),
        label=arguments.get(LABEL_ARGUMENT, ""),
        state=run["JobRunState"],
        error=run.get("ErrorMessage", ""),
        started_us=int(run["StartedOn"].timestamp() * 1e6),
    )
