"""What the stream controller knows of a pipeline: what is wanted, and how far it got; one S3 object each.

Why S3 and not an SSM parameter: two invocations of the controller may work on one pipeline at the same moment (a poll
of CloudFormation, an event, the schedule), and "never two runs" must not depend on how many of them the platform lets
run. PutParameter overwrites whatever is there. S3's conditional PUT (``If-Match``) is a compare-and-set: of two that
read the same record one can change it, and a start is written into the record before it is made. So nobody needs a
lock or a reserved concurrency of 1, which would throttle CloudFormation's polls, and a throttled poll fails the
deployment. An object also has no limit of 4 KB, which EMR's parameters can exceed.

A deleted pipeline leaves a tombstone of a few bytes. It keeps the numbers of starts unique if the pipeline comes back,
and a delayed invocation finds it instead of nothing.

Standard library only; boto3's client is passed in.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Protocol, get_args

from brokerless.aws.controller.engines import EmrJob, EngineName, Place
from brokerless.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_s3 import S3Client

    from brokerless.clock import Clock

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_REQUIRED: Final = ("Pipeline", "Engine", "CodeHash", "ConfigHash")

# CloudFormation sends all properties as text, and back as they are in the template.
_NUMBERS: Final = {
    "max_failures_per_hour": ("MaxFailuresPerHour", 1, 100),
    "max_start_failures": ("MaxStartFailures", 1, 100),
    "settle_s": ("SettleSeconds", 0, 3600),
    "grace_s": ("GraceSeconds", 0, 600),
    "deploy_timeout_s": ("DeployTimeoutSeconds", 60, 7200),
}


@dataclass(frozen=True, slots=True)
class Desired:
    """What a deployment wants of a pipeline: the properties of its custom resource.

    Attributes:
        pipeline: its name.
        place: where it is to run. Its name may be a token of the CDK.
        code_hash: of the script and the library; another one restarts the run.
        config_hash: of arguments, workers and the like; likewise.
        job: what EMR Serverless is told; None on Glue.
        running: False to stop the run and keep it stopped.
        bump: any text; another one restarts the run although nothing else changed.
        max_failures_per_hour: after so many the controller gives up, until a deployment or a reset.
        max_start_failures: after so many of a deployment's runs, before one has settled, the deployment fails.
        settle_s: how long a run must have been RUNNING for the deployment to be done.
        grace_s: how long a run may take to stop (EMR Serverless; Glue decides itself).
        deploy_timeout_s: after which a deployment fails with the reason of its waiting. Less than the time-out of the
            custom resource's provider, whose message has no reason.

    Raises:
        ConfigError: a value that cannot be.
    """

    pipeline: str
    place: Place
    code_hash: str
    config_hash: str
    job: EmrJob | None = None
    running: bool = True
    bump: str = ""
    max_failures_per_hour: int = 5
    max_start_failures: int = 3
    settle_s: int = 60
    grace_s: int = 120
    deploy_timeout_s: int = 1500

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.pipeline):
            raise ConfigError(
                f"Pipeline {self.pipeline!r}: use up to 100 letters, digits, '_', '.' and '-', first a letter."
            )
        if self.place.engine not in get_args(EngineName):
            known = ", ".join(get_args(EngineName))
            raise ConfigError(f"Pipeline {self.pipeline!r}: Engine {self.place.engine!r}; use one of {known}.")
        if (self.place.engine == "emr-serverless") != (self.job is not None):
            raise ConfigError(
                f"Pipeline {self.pipeline!r}: EntryPoint and ExecutionRoleArn are for emr-serverless, and needed there."
            )
        for name, (spelt, least, most) in _NUMBERS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"Pipeline {self.pipeline!r}: {spelt} {value}; use {least} to {most}.")

    @property
    def version(self) -> str:
        """16 hexadecimal digits that differ if what is run differs, wherever it runs."""
        job = None if self.job is None else asdict(self.job)
        text = json.dumps([self.code_hash, self.config_hash, self.bump, job])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_properties(self) -> dict[str, Any]:
        """The custom resource's properties, from which ``from_properties`` makes this very value."""
        properties: dict[str, Any] = {
            "Pipeline": self.pipeline,
            "Engine": self.place.engine,
            _place_property(self.place.engine): self.place.name,
            "CodeHash": self.code_hash,
            "ConfigHash": self.config_hash,
            "Desired": "RUNNING" if self.running else "STOPPED",
            "Bump": self.bump,
            **{spelt: str(getattr(self, name)) for name, (spelt, _, _) in _NUMBERS.items()},
        }
        if self.job is not None:
            properties |= {
                "EntryPoint": self.job.entry_point,
                "ExecutionRoleArn": self.job.role_arn,
                "Arguments": list(self.job.arguments),
                "SparkSubmitParameters": self.job.spark_submit,
                "LogGroupName": self.job.log_group,
                "LogStreamNamePrefix": self.job.log_prefix,
                "LogEncryptionKeyArn": self.job.log_key_arn,
            }
        return properties

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> Desired:
        """What a custom resource's properties say; those that are not known are left alone (``ServiceToken``).

        Raises:
            ConfigError: a property is missing or cannot be.
        """
        engine = properties.get("Engine", "")
        missing = [name for name in (*_REQUIRED, _place_property(engine)) if not properties.get(name)]
        if missing:
            raise ConfigError(
                f"The custom resource lacks {', '.join(missing)}; it has: {', '.join(sorted(properties))}."
            )
        wanted = properties.get("Desired", "RUNNING")
        if wanted not in ("RUNNING", "STOPPED"):
            raise ConfigError(f"Pipeline {properties['Pipeline']!r}: Desired {wanted!r}; use RUNNING or STOPPED.")
        return cls(
            pipeline=properties["Pipeline"],
            place=Place(engine, properties[_place_property(engine)]),
            code_hash=properties["CodeHash"],
            config_hash=properties["ConfigHash"],
            job=_job(properties),
            running=wanted == "RUNNING",
            bump=properties.get("Bump", ""),
            **{
                name: _number(properties, spelt)
                for name, (spelt, _, _) in _NUMBERS.items()
                if properties.get(spelt) is not None
            },
        )


@dataclass(frozen=True, slots=True)
class Pending:
    """A start that was asked for and not answered yet. Times are microseconds since the epoch.

    Attributes:
        asked_us: when, the last time.
        calls: how often. Another than the first can make a second run of the first's late arrival on Glue.
    """

    label: str
    version: str
    place: Place
    asked_us: int
    calls: int = 1


@dataclass(frozen=True, slots=True)
class RunRef:
    """The run that the controller holds for the pipeline's. Times are microseconds since the epoch.

    Attributes:
        since_us: when it was asked for or found.
        running_since_us: when it was first seen RUNNING; 0 if it is not.
    """

    id: str
    place: Place
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
class Record:
    """All that outlives an invocation. Times are microseconds since the epoch.

    Attributes:
        desired: what the last deployment wants.
        owner: the custom resource that the pipeline belongs to: its stack's id and its logical id.
        deploy_id: CloudFormation's id of the last request.
        deploy_at_us: when it came.
        deploy_failures: failed runs since then, before one settled.
        settled: whether a run has been RUNNING for long enough since then.
        deleting: whether the last request was Delete; ``deleted``: whether it is done.
        lineage: random; makes labels of starts unique although a lost record begins again at 1.
        attempt: number of the last start.
        pending: the start whose answer is not known.
        run: the run that counts as the pipeline's.
        stopping: runs that the controller itself asked to stop; their end is no failure.
        replaces: the run that ended by itself and has no successor yet.
        expired: the last run whose end as EXPIRED was noted.
        failures: those of the last hour, at least.
        gave_up: why the controller has given up; empty if it has not.
        not_before_us: no start before: the pause after a failure.
        late_until_us: until then a start without answer may still make a run appear.
        successor_until_us: until then Glue may start the successor of a run that expired.
        drain: places of earlier deployments where runs may still be.
        restarts: runs started in place of one that had ended by itself, ever.
        run_failures: failed runs, ever.
    """

    desired: Desired
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
    drain: tuple[Place, ...] = ()
    restarts: int = 0
    run_failures: int = 0

    @property
    def wants_run(self) -> bool:
        """Whether a run should be there."""
        return self.desired.running and not self.deleting

    def in_doubt(self, now_us: int) -> bool:
        """Whether a run may still appear that nobody is about to ask for."""
        return now_us < max(self.late_until_us, self.successor_until_us)

    def to_json(self) -> str:
        """As ``from_json`` reads it."""
        return json.dumps({**asdict(self), "desired": self.desired.to_properties()}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """What ``to_json`` wrote, also in an earlier or later version of this code.

        Raises:
            ConfigError: the text is no record.
        """
        try:
            raw = json.loads(text)
            pending, run = raw.get("pending"), raw.get("run")
            known: dict[str, Any] = {field.name: raw[field.name] for field in fields(cls) if field.name in raw}
            return cls(
                **known
                | {
                    "desired": Desired.from_properties(raw["desired"]),
                    "pending": pending and Pending(**pending | {"place": Place(**pending["place"])}),
                    "run": run and RunRef(**run | {"place": Place(**run["place"])}),
                    "stopping": tuple(raw.get("stopping", ())),
                    "failures": tuple(Failure(**failure) for failure in raw.get("failures", ())),
                    "drain": tuple(Place(**place) for place in raw.get("drain", ())),
                }
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"The controller's record cannot be read: {error!r}. Remove the object and deploy the pipeline again."
            ) from error


@dataclass(frozen=True, slots=True)
class Stored:
    """A record, and which edition of it was read."""

    record: Record
    revision: str


class Records(Protocol):
    """Keeps records, and changes one only if nobody else did meanwhile."""

    def load(self, pipeline: str) -> Stored | None:
        """The pipeline's record, as last saved by anybody; None if there is none.

        Raises:
            StoreError: it could not be read.
        """

    def save(self, record: Record, *, revision: str | None) -> bool:
        """Replaces the edition that was read, or creates the first one (None).

        Returns:
            False if there is another edition by now; nothing was changed.

        Raises:
            StoreError: it may or may not be saved.
        """

    def pipelines(self) -> tuple[str, ...]:
        """The names of all that have a record.

        Raises:
            StoreError: they could not be listed.
        """


class S3Records:
    """Records as objects ``<prefix>/<pipeline>.json``.

    Args:
        client: of S3. It may repeat calls: a PUT that finds its own earlier self has succeeded.
        prefix: ``s3://bucket/path``, without slash at the end. Not below the topics' root.
        clock: marks each edition, so that it knows itself again.

    Raises:
        ConfigError: the prefix is none.
    """

    def __init__(self, client: S3Client, prefix: str, *, clock: Clock) -> None:
        found = re.fullmatch(r"s3://([^/]+)/(.*[^/])", prefix)
        if found is None:
            raise ConfigError(f"The state's prefix is {prefix!r}; use s3://bucket/path, without slash at the end.")
        self._client = client
        self._bucket, self._path = found[1], found[2]
        self._clock = clock

    def load(self, pipeline: str) -> Stored | None:
        """See ``Records``."""
        found = self._get(pipeline)
        return None if found is None else Stored(Record.from_json(found[0]), found[1])

    def save(self, record: Record, *, revision: str | None) -> bool:
        """See ``Records``."""
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
            # After a lost answer the repetition meets what the first one wrote. Only reading tells.
            found = self._get(pipeline)
            if found is not None and found[0] == body:
                return True
            if isinstance(error, ClientError) and error.response["Error"]["Code"] in _TAKEN:
                return False
            raise StoreError(f"Could not write {self._uri(pipeline)}: {error}. The next call tries again.") from error
        return True

    def pipelines(self) -> tuple[str, ...]:
        """See ``Records``."""
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
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                return None
            raise StoreError(f"Could not read {self._uri(pipeline)}: {error}. The next call tries again.") from error
        except BotoCoreError as error:
            raise StoreError(f"Could not read {self._uri(pipeline)}: {error}. The next call tries again.") from error

    def _key(self, pipeline: str) -> str:
        return f"{self._path}/{pipeline}.json"

    def _uri(self, pipeline: str) -> str:
        return f"s3://{self._bucket}/{self._key(pipeline)}"


# 412, 409 of two PUTs at once, and 404 of a PUT with If-Match on an object that is gone.
_TAKEN: Final = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey")


def _place_property(engine: str) -> str:
    return "ApplicationId" if engine == "emr-serverless" else "JobName"


def _job(properties: Mapping[str, Any]) -> EmrJob | None:
    if not properties.get("EntryPoint") or not properties.get("ExecutionRoleArn"):
        return None
    return EmrJob(
        entry_point=properties["EntryPoint"],
        role_arn=properties["ExecutionRoleArn"],
        arguments=tuple(properties.get("Arguments", ())),
        spark_submit=properties.get("SparkSubmitParameters", ""),
        log_group=properties.get("LogGroupName", ""),
        log_prefix=properties.get("LogStreamNamePrefix", ""),
        log_key_arn=properties.get("LogEncryptionKeyArn", ""),
    )


def _number(properties: Mapping[str, Any], name: str) -> int:
    try:
        return int(properties[name])
    except ValueError:
        raise ConfigError(
            f"Pipeline {properties['Pipeline']!r}: {name} {properties[name]!r} is not a number."
        ) from None
