"""Run pipelines on EMR Serverless."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from brokerless.aws.controller.calls import LATER, error_code, http_status, retryable, start_error
from brokerless.aws.controller.services import UNKNOWN_STATE, Run, StartRefused

if TYPE_CHECKING:
    from mypy_boto3_emr_serverless import EMRServerlessClient
    from mypy_boto3_emr_serverless.literals import JobRunStateType
    from mypy_boto3_emr_serverless.type_defs import ConfigurationOverridesTypeDef, SparkSubmitTypeDef

    from brokerless.aws.controller.services import EmrJob, JobLocation, Outcome, Phase, Start

_PHASES: Final[dict[str, tuple[Phase, Outcome]]] = {
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

_ALIVE: Final[tuple[JobRunStateType, ...]] = (
    "SUBMITTED",
    "PENDING",
    "SCHEDULED",
    "QUEUED",
    "RUNNING",
    "CANCELLING",
)


class EmrServerlessService:
    """Runs streaming jobs on EMR Serverless applications, which several pipelines may share.

    The service's own restarts are switched off: the controller counts failures on both services by the same rule, and a
    deployment learns of the first one.
    """

    def __init__(self, client: EMRServerlessClient) -> None:
        self._client = client

    def runs(self, location: JobLocation, *, pipeline: str, known: str) -> tuple[Run, ...]:
        """Implement ``JobService``."""
        from botocore.exceptions import ClientError

        found: dict[str, Run] = {}
        with retryable(f"list runs of {location}", no_error=("ResourceNotFoundException",)):
            try:
                paginator = self._client.get_paginator("list_job_runs")
                for page in paginator.paginate(applicationId=location.name, states=list(_ALIVE)):
                    for summary in page["jobRuns"]:
                        if _emr_name(summary.get("name", ""))[0] == pipeline:
                            found[summary["id"]] = _emr_run(location, summary, summary["id"])
                if known and known not in found:
                    answer = self._client.get_job_run(applicationId=location.name, jobRunId=known)
                    found[known] = _emr_run(location, answer["jobRun"], known)
            except ClientError as error:
                if error_code(error) in LATER or http_status(error) >= 500 or not self._gone(location):
                    raise
        return tuple(found.values())

    def start(self, start: Start) -> str:
        """Implement ``JobService``. The same ``Start`` returns the same run, however often it is sent."""
        from botocore.exceptions import BotoCoreError, ClientError

        if start.job is None:
            raise StartRefused(f"Pipeline {start.pipeline!r} has no entry point for {start.location}. Deploy it again.")
        submit: SparkSubmitTypeDef = {
            "entryPoint": start.job.entry_point,
            "entryPointArguments": start.job.arguments,
        }
        if start.job.spark_submit:
            submit["sparkSubmitParameters"] = start.job.spark_submit
        try:
            answer = self._client.start_job_run(
                applicationId=start.location.name,
                clientToken=start.token,
                executionRoleArn=start.job.role_arn,
                mode="STREAMING",
                name=f"brokerless:{start.pipeline}:{start.version}:{start.label}",
                retryPolicy={"maxFailedAttemptsPerHour": 1},
                jobDriver={"sparkSubmit": submit},
                configurationOverrides=_emr_overrides(start.job),
            )
        except (BotoCoreError, ClientError) as error:
            raise start_error(start, error) from error
        return answer["jobRunId"]

    def stop(self, location: JobLocation, run_ids: tuple[str, ...], *, grace_s: int) -> None:
        """Implement ``JobService``. After ``grace_s`` seconds the service ends the runs that are left."""
        for run_id in run_ids:
            # ValidationException: the run has ended meanwhile; the next call sees whether it has.
            with retryable(
                f"stop run {run_id} of {location}", no_error=("ResourceNotFoundException", "ValidationException")
            ):
                self._client.cancel_job_run(
                    applicationId=location.name, jobRunId=run_id, shutdownGracePeriodInSeconds=grace_s
                )

    def _gone(self, location: JobLocation) -> bool:
        """Whether the application was deleted; ListJobRuns has no error code for that."""
        from botocore.exceptions import ClientError

        try:
            return self._client.get_application(applicationId=location.name)["application"]["state"] == "TERMINATED"
        except ClientError as error:
            return error_code(error) == "ResourceNotFoundException"


def _emr_run(location: JobLocation, run: Any, run_id: str) -> Run:
    _, version, label = _emr_name(run.get("name", ""))
    phase, outcome = _PHASES.get(run["state"], UNKNOWN_STATE)
    return Run(
        id=run_id,
        location=location,
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
