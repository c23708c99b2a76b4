"""The state of each pipeline that the controller remembers, in one S3 object each, changed by compare-and-set.

Why S3 and not an SSM parameter: two invocations of the controller may work on one pipeline at the same time (a poll of
CloudFormation, an event, the schedule), and the first invariant of ``controller``, never two runs, must not depend on
how many invocations the platform allows. PutParameter overwrites; S3's conditional PUT (``If-Match``) lets one of two
change the state, and a start is stored before it is asked for. So no lock and no reserved concurrency is needed, which
would throttle CloudFormation's polls and fail deployments. An object has no limit of 4 KB either.

A deleted pipeline leaves a small tombstone, so that the numbers of starts stay unique if the pipeline is created again.
Standard library only; boto3's client is passed in.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Protocol

from brokerless.aws.controller.desired import DesiredPipeline
from brokerless.aws.controller.services import JobLocation
from brokerless.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_s3 import S3Client

    from brokerless.clock import Clock

# 412; 409 of two PUTs at the same time; 404 of a PUT with If-Match on an object that was deleted.
_TAKEN: Final = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey")


@dataclass(frozen=True, slots=True)
class Pending:
    """A start that was asked for and whose outcome is unknown. Times are microseconds since the epoch.

    Attributes:
        asked_us: the time of the last call.
        calls: the number of calls. On Glue a second call can make a second run if the first one arrives late.
    """

    label: str
    version: str
    location: JobLocation
    asked_us: int
    calls: int = 1


@dataclass(frozen=True, slots=True)
class RunRef:
    """The run that the controller has accepted as the pipeline's. Times are microseconds since the epoch.

    Attributes:
        since_us: when it was started or found.
        running_since_us: when it was first seen RUNNING; 0 if it is not.
    """

    id: str
    location: JobLocation
    version: str
    since_us: int
    running_since_us: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that failed, or a start that was refused (then without an id)."""

    at_us: int
    run_id: str
    message: str


@dataclass(frozen=True, slots=True)
class PipelineState:
    """What the controller remembers of a pipeline between invocations. Times are microseconds since the epoch.

    Attributes:
        desired: what the last deployment asks for.
        owner: the custom resource that owns the pipeline: its stack's id and its logical id.
        deploy_id: CloudFormation's id of the last request.
        deploy_at_us: the time of the last request.
        deploy_failures: the number of failed runs since then, before one settled.
        settled: whether a run has been RUNNING for long enough since then.
        deleting: whether the last request was Delete; ``deleted``: whether it is done.
        lineage: random; makes labels of starts unique although a lost state begins again at 1.
        attempt: the number of the last start.
        pending: the start whose outcome is unknown.
        run: the run that is accepted as the pipeline's.
        stopping: runs that the controller asked to stop; their end is not a failure.
        replaces: the run that ended by itself and has no successor yet.
        expired: the last run that was seen to end as EXPIRED.
        failures: the failures of the last hour, at least.
        gave_up: the reason why the controller has given up; empty if it has not.
        not_before_us: the end of the pause after a failure; no start before.
        late_until_us: until then a start without an answer may still make a run appear.
        successor_until_us: until then Glue may start the successor of an expired run.
        drain: locations of earlier deployments that may still have runs.
        restarts: the total number of runs started instead of one that had ended by itself.
        run_failures: the total number of failed runs.
    """

    desired: DesiredPipeline
    owner: str
    lineage: str
    deploy_id: str = ""
    deploy_at_us: int = 0
    deploy_failures: int = 0
    settled: bool = False
    deleting: bool = False
    deleted: bool = False
    attempt: int = 0
    pending: Pending | None = None
    run: RunRef | None = None
    stopping: tuple[str, ...] = ()
    replaces: str = ""
    expired: str = ""
    failures: tuple[Failure, ...] = ()
    gave_up: str = ""
    not_before_us: int = 0
    late_until_us: int = 0
    successor_until_us: int = 0
    drain: tuple[JobLocation, ...] = ()
    restarts: int = 0
    run_failures: int = 0

    @property
    def wants_run(self) -> bool:
        """Whether the pipeline should run."""
        return self.desired.running and not self.deleting

    def in_doubt(self, now_us: int) -> bool:
        """Whether a run may still appear that no further call asks for."""
        return now_us < max(self.late_until_us, self.successor_until_us)

    def to_json(self) -> str:
        """Return the stored form, which ``from_json`` reads."""
        values = asdict(self) | {
            "desired": self.desired.to_properties(),
            "pending": self.pending and _stored_with_location(self.pending),
            "run": self.run and _stored_with_location(self.run),
            "drain": [_stored_location(location) for location in self.drain],
        }
        return json.dumps(values, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> PipelineState:
        """Return the state that an earlier, this or a later version of this code stored.

        Raises:
            ConfigError: the text is not a stored state.
        """
        try:
            raw = json.loads(text)
            pending, run = raw.get("pending"), raw.get("run")
            known: dict[str, Any] = {field.name: raw[field.name] for field in fields(cls) if field.name in raw}
            return cls(
                **known
                | {
                    "desired": DesiredPipeline.from_properties(raw["desired"]),
                    "pending": pending and Pending(**_with_location(pending)),
                    "run": run and RunRef(**_with_location(run)),
                    "stopping": tuple(raw.get("stopping", ())),
                    "failures": tuple(Failure(**failure) for failure in raw.get("failures", ())),
                    "drain": tuple(_location(stored) for stored in raw.get("drain", ())),
                }
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"A stored state cannot be read: {error!r}. Delete the object and deploy the pipeline again."
            ) from error


# Stored states have the names of the first release, "place" and "engine".


def _stored_location(location: JobLocation) -> dict[str, str]:
    return {"engine": location.runs_on, "name": location.name}


def _location(stored: Mapping[str, Any]) -> JobLocation:
    return JobLocation(stored["engine"], stored["name"])


def _stored_with_location(value: Pending | RunRef) -> dict[str, Any]:
    values = {name: one for name, one in asdict(value).items() if name != "location"}
    return {**values, "place": _stored_location(value.location)}


def _with_location(stored: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: one for name, one in stored.items() if name != "place"}
    return {**values, "location": _location(stored["place"])}


@dataclass(frozen=True, slots=True)
class StoredState:
    """A pipeline's state, and the revision that was read."""

    record: PipelineState
    revision: str


class PipelineStates(Protocol):
    """Stores the states of pipelines, and changes one only if nobody else has changed it meanwhile."""

    def load(self, pipeline: str) -> StoredState | None:
        """Return the pipeline's state as it was last saved; None if there is none.

        Raises:
            StoreError: it could not be read.
        """

    def save(self, record: PipelineState, *, revision: str | None) -> bool:
        """Replace the revision that was read, or create the first one (None).

        Returns:
            False if another revision was saved meanwhile; nothing was changed.

        Raises:
            StoreError: it is unknown whether the state was saved.
        """

    def pipelines(self) -> tuple[str, ...]:
        """Return the names of all pipelines that have a state.

        Raises:
            StoreError: they could not be listed.
        """


class S3PipelineStates:
    """States as objects ``<prefix>/<pipeline>.json``.

    Args:
        client: the S3 client. It may repeat calls: a PUT that finds its own first attempt has succeeded.
        prefix: ``s3://bucket/path``, without a slash at the end. Not below the topics' root.
        clock: gives each revision an id, by which a repeated PUT is recognised.

    Raises:
        ConfigError: the prefix is invalid.
    """

    def __init__(self, client: S3Client, prefix: str, *, clock: Clock) -> None:
        found = re.fullmatch(r"s3://([^/]+)/(.*[^/])", prefix)
        if found is None:
            raise ConfigError(
                f"The prefix of states must be s3://bucket/path without a slash at the end, got {prefix!r}."
            )
        self._client = client
        self._bucket, self._path = found[1], found[2]
        self._clock = clock

    def load(self, pipeline: str) -> StoredState | None:
        """Implement ``PipelineStates``."""
        found = self._get(pipeline)
        return None if found is None else StoredState(PipelineState.from_json(found[0]), found[1])

    def save(self, record: PipelineState, *, revision: str | None) -> bool:
        """Implement ``PipelineStates``."""
        from botocore.exceptions import BotoCoreError, ClientError

        pipeline = record.desired.pipeline
        body = json.dumps({"edition": self._clock.uuid(), **json.loads(record.to_json())}, indent=1).encode()
        bucket, key = self._bucket, self._key(pipeline)
        try:
            if revision is None:
                self._client.put_object(Bucket=bucket, Key=key, Body=body, IfNoneMatch="*")
            else:
                self._client.put_object(Bucket=bucket, Key=key, Body=body, IfMatch=revision)
        except (BotoCoreError, ClientError) as error:
            # After a lost response the repeated PUT meets what the first one wrote. Only a read can tell.
            found = self._get(pipeline)
            if found is not None and found[0] == body:
                return True
            if isinstance(error, ClientError) and error.response["Error"]["Code"] in _TAKEN:
                return False
            raise StoreError(f"Could not write {self._uri(pipeline)}: {error}. The next call tries again.") from error
        return True

    def pipelines(self) -> tuple[str, ...]:
        """Implement ``PipelineStates``."""
        from botocore.exceptions import BotoCoreError, ClientError

        names: list[str] = []
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._path + "/")
            for page in pages:
                names += [found["Key"].removeprefix(self._path + "/") for found in page.get("Contents", ())]
        except (BotoCoreError, ClientError) as error:
            raise StoreError(f"Could not list s3://{self._bucket}/{self._path}/: {error}.") from error
        return tuple(name.removesuffix(".json") for name in names if name.endswith(".json") and "/" not in name)

    def _get(self, pipeline: str) -> tuple[bytes, str] | None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key(pipeline))
            return answer["Body"].read(), answer["ETag"]
        except (BotoCoreError, ClientError) as error:
            if isinstance(error, ClientError) and error.response["Error"]["Code"] == "NoSuchKey":
                return None
            raise StoreError(f"Could not read {self._uri(pipeline)}: {error}. The next call tries again.") from error

    def _key(self, pipeline: str) -> str:
        return f"{self._path}/{pipeline}.json"

    def _uri(self, pipeline: str) -> str:
        return f"s3://{self._bucket}/{self._key(pipeline)}"
