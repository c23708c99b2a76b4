"""The types of a stage's configuration, in one long file because they are checked against each other.

A stage is one value, which the constructs read, so it can be compared and tested as data. ``infra/stages.py`` has the
stages themselves.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from brokerless.aws.controller.services import RunsOn
from brokerless.aws.topic_request import TopicRequest
from brokerless.errors import ConfigError
from brokerless.examples.timezone.messages import ZONES
from brokerless.metrics import NAMESPACE
from brokerless.schema import (
    MAX_PARTITIONS,
    Schema,
    check_name,
    dead_letters,
    split_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

REPOSITORY: Final = Path(__file__).resolve().parents[1]

Source = Literal["url", "sqs", "sqs-fifo", "kinesis", "sns", "eventbridge", "msk"]
"""A service that sends messages to the ingest function."""

Architecture = Literal["arm64", "x86_64"]

GlueWorker = Literal["G.025X", "G.1X", "G.2X"]

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,22}[a-z0-9]")
# Names of functions are made from stage, role and topic, and have 64 characters at most.
_LONGEST_TOPIC: Final = 24
_STAGE: Final = re.compile(r"[a-z][a-z0-9]{1,15}")
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
# What CloudWatch Logs accepts.
_LOG_DAYS: Final = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731)


# Above the classes, because some of them have defaults that are checked while this module is loaded.
def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"A pipeline cannot be called {name!r}: small letters, digits and hyphens, 2 to 24 of them, beginning "
            "with a letter, because the names of AWS resources are made from it."
        )


def _check_choice(value: str, choices: object, what: str) -> None:
    if value not in get_args(choices):
        raise ConfigError(f"{what} {value!r}. Use one of {', '.join(get_args(choices))}.")


def _repeated(names: Iterable[str]) -> str | None:
    counts = Counter(names)
    return next((name for name, count in counts.items() if count > 1), None)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic that producers write.

    Attributes:
        name: of the topic.
        schema: its columns, ``"date string, message string"``; ``_produced_at`` is implied.
        partitions: how many tables it has. More of them let more producers commit at once.
        sources: the services that send messages to it through the ingest function, besides the library. Each has its
            own price.

    Raises:
        ConfigError: a name, number or source is invalid.
        SchemaError: a schema that cannot be read.
    """

    name: str
    schema: str
    partitions: int = 1
    sources: tuple[Source, ...] = ("url",)

    def __post_init__(self) -> None:
        check_name(self.name)
        if len(self.name) > _LONGEST_TOPIC:
            raise ConfigError(
                f"Topic {self.name!r} has {len(self.name)} characters; use at most {_LONGEST_TOPIC} to deploy it."
            )
        Schema.parse(self.schema)
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            raise ConfigError(f"Topic {self.name!r} has {self.partitions} partitions; use 1 to {MAX_PARTITIONS}.")
        for source in self.sources:
            if source not in get_args(Source):
                raise ConfigError(
                    f"Topic {self.name!r} has the unknown source {source!r}. Use one of {', '.join(get_args(Source))}."
                )
        if again := _repeated(self.sources):
            raise ConfigError(f"Topic {self.name!r} has the source {again!r} twice. Name each once.")


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """A streaming job from topics to one output topic and its dead letters.

    Attributes:
        name: of the pipeline: part of names of AWS resources, value of the metrics' dimension, and the key of its
            progress in the output's log. Renaming it starts the pipeline anew.
        script: the job's file, relative to ``glue_jobs/``.
        inputs: topics that it reads: those of the stage or outputs of other pipelines.
        output: the topic that it writes, and that no one else writes.
        output_schema: the output's columns.
        latency_objective_p99_s: seconds from a message's production to its commit in the output, which 99 of 100
            messages must not exceed; the latency alarm's threshold.
        runs_on: the service that runs it; the stage's if None. Both run micro-batches: real-time mode does not reach
            executors on other machines.
        workers: how many Glue workers, or EMR executors, at most; a Glue job needs two.
        worker_type: of Glue.
        driver: cores and memory in GB of EMR's driver.
        executor: likewise of each executor.
        arguments: further arguments of the script, for example ``(("--commit-interval", "500ms"),)``.
        canary: the input topic that the canary sends a message to each minute; None without canary. The pipeline must
            carry the columns on: the canary knows its message by the column ``message``.
        running: False stops the job and keeps it stopped, without canary and alarms; messages wait in the inputs.

    Raises:
        ConfigError: a value that cannot be.
        SchemaError: a schema that cannot be read.
    """

    name: str
    script: str
    inputs: tuple[str, ...]
    output: str
    output_schema: str
    latency_objective_p99_s: float
    runs_on: RunsOn | None = None
    workers: int = 2
    worker_type: GlueWorker = "G.025X"
    driver: tuple[int, int] = (2, 4)
    executor: tuple[int, int] = (2, 4)
    arguments: tuple[tuple[str, str], ...] = ()
    canary: str | None = None
    running: bool = True

    def __post_init__(self) -> None:
        where = f"Pipeline {self.name!r}"
        _check_name(self.name)
        check_name(self.output)
        Schema.parse(self.output_schema)
        if not (REPOSITORY / "glue_jobs" / self.script).is_file():
            raise ConfigError(
                f"{where} has the script {self.script!r}, which is not in glue_jobs/. Write it, or correct the name."
            )
        if not self.inputs:
            raise ConfigError(f"{where} has no inputs; name at least one topic.")
        if again := _repeated(self.inputs):
            raise ConfigError(f"{where} reads {again!r} twice; name each input once.")
        if self.output in self.inputs:
            raise ConfigError(
                f"{where} reads its own output {self.output!r}, which would never end; choose another output."
            )
        if not self.latency_objective_p99_s > 0:
            raise ConfigError(
                f"{where} has a latency objective of {self.latency_objective_p99_s} s; it must be above zero."
            )
        if self.runs_on is not None:
            _check_choice(self.runs_on, RunsOn, f"{where} has the unknown runs_on")
        _check_choice(self.worker_type, GlueWorker, f"{where} has the unknown worker type")
        if self.workers < 2:
            raise ConfigError(f"{where} has {self.workers} workers; the driver needs one, so use at least 2.")
        if ("--engine", "delta") in self.arguments:
            raise ConfigError(
                f"{where} would write with Spark's own Delta writer, which does not commit conditionally; the data "
                "bucket refuses its commits. Leave out --engine delta."
            )
        if self.canary is not None and self.canary not in self.inputs:
            raise ConfigError(
                f"{where} has its canary in {self.canary!r}, which it does not read; use one of {self.inputs}."
            )

    @property
    def watched(self) -> bool:
        """Whether the pipeline has a canary and runs."""
        return self.canary is not None and self.running

    @property
    def dead_letters(self) -> str:
        """The topic of its dead letters."""
        return dead_letters(self.output)


@dataclass(frozen=True, slots=True)
class GeneratorConfig:
    """A function that sends example messages.

    Attributes:
        rate_per_s: messages a second.
        duration_s: for how long at a time, in seconds.
        enabled: whether it runs each minute by itself; otherwise only when it is invoked by hand.
    """

    rate_per_s: float = 10.0
    duration_s: float = 45.0
    enabled: bool = False

    def __post_init__(self) -> None:
        if not self.rate_per_s > 0 or not 0 < self.duration_s <= 600:
            raise ConfigError(
                f"The generator cannot send {self.rate_per_s} messages/s for {self.duration_s} s; "
                "use a rate above 0 and at most 600 s, since a function ends after 15 minutes."
            )
        if self.enabled and self.duration_s > 45:
            raise ConfigError(
                f"The generator starts each minute, so it cannot run for {self.duration_s} s; use at most 45."
            )


@dataclass(frozen=True, slots=True)
class VpcConfig:
    """The stage's own network without access to the internet, with endpoints to the AWS services.

    Attributes:
        cidr: its addresses.
        zones: in how many availability zones; each interface endpoint costs about 7 USD a month and zone.
    """

    cidr: str = "10.42.0.0/20"
    zones: int = 2


@dataclass(frozen=True, slots=True)
class MskConfig:
    """An existing Kafka cluster whose topics are the source ``msk`` of the topics with the same names.

    Attributes:
        cluster_arn: of the MSK cluster, which uses IAM access control.
    """

    cluster_arn: str


@dataclass(frozen=True, slots=True)
class Runtime:
    """The runtime that the assets are built for.

    Attributes:
        architecture: of the functions' and EMR's processors. Glue has x86_64 always.
        python: of the functions. 3.13 is what Glue 6.0 runs and what the library is tested with.
    """

    architecture: Architecture = "arm64"
    python: str = "3.13"

    def __post_init__(self) -> None:
        _check_choice(self.architecture, Architecture, "Unknown architecture")
        if not re.fullmatch(r"3\.\d+", self.python):
            raise ConfigError(f"Unknown Python {self.python!r}; write for example '3.13'.")


@dataclass(frozen=True, slots=True)
class StageConfig:
    """The configuration of one deployment.

    Attributes:
        name: of the stage; part of all names, so that stages can share an account.
        topics: those that producers write.
        pipelines: from topics to topics.
        runs_on: the service that runs pipelines which do not name one.
        retention_days: how far back in time readers may go.
        kms: whether buckets, queues, logs and so on have a key of the stage's own (about 1 USD a month and requests).
        vpc: a private network for functions and jobs; None for none, in which case all traffic to AWS is TLS to public
            endpoints.
        msk: the cluster of the source ``msk``.
        alarm_emails: the addresses that alarms notify.
        monthly_budget_usd: the stage's budget; at 80 % of it, spent or forecast, the e-mails go out. None for none.
        removal: whether data goes when the stage is destroyed.
        runtime: what the assets are built for.
        generator: the example's producer.
        log_retention_days: of all log groups.
        max_failures_per_hour: after so many failed runs of a pipeline within an hour the controller gives up.
        emr_python: the interpreter of EMR's jobs; it must be one of those that the asset ``environment`` was built for.
        ingest_concurrency: at most so many copies of a topic's ingest function run at once; each is a writer.
        reserve_concurrency: whether functions get these shares of the account's concurrency for themselves. False for
            an account that is new: AWS keeps 10 unreserved, and new accounts have no more than that.

    Raises:
        ConfigError: values that do not fit together.
    """

    name: str
    topics: tuple[TopicConfig, ...]
    pipelines: tuple[PipelineConfig, ...]
    runs_on: RunsOn = "glue"
    retention_days: int = 7
    kms: bool = True
    vpc: VpcConfig | None = None
    msk: MskConfig | None = None
    alarm_emails: tuple[str, ...] = ()
    monthly_budget_usd: float | None = None
    removal: Literal["destroy", "retain"] = "retain"
    runtime: Runtime = Runtime()
    generator: GeneratorConfig = GeneratorConfig()
    log_retention_days: int = 30
    max_failures_per_hour: int = 5
    emr_python: str = "/usr/bin/python3.13"
    ingest_concurrency: int = 10
    reserve_concurrency: bool = True

    def __post_init__(self) -> None:
        if not _STAGE.fullmatch(self.name):
            raise ConfigError(
                f"A stage cannot be called {self.name!r}: small letters and digits, 2 to 16 of them, beginning with a "
                "letter, because the names of buckets are made from it."
            )
        _check_choice(self.runs_on, RunsOn, f"Stage {self.name!r} has the unknown runs_on")
        self._check_topics()
        self._check_numbers()
        for topic in self.topics:
            if "msk" in topic.sources and self.msk is None:
                raise ConfigError(
                    f"Topic {topic.name!r} has the source 'msk', but stage {self.name!r} has no cluster; set its msk."
                )
        for email in self.alarm_emails:
            if not _EMAIL.fullmatch(email):
                raise ConfigError(f"Stage {self.name!r} has the alarm e-mail {email!r}, which is no address.")

    def _check_topics(self) -> None:
        for kind, names in (
            ("topic", [topic.name for topic in self.topics]),
            ("pipeline", [pipeline.name for pipeline in self.pipelines]),
            ("output", [pipeline.output for pipeline in self.pipelines]),
        ):
            if again := _repeated(names):
                raise ConfigError(f"Stage {self.name!r} has the {kind} {again!r} twice; each needs a name of its own.")
        produced = {topic.name for topic in self.topics}
        outputs = {pipeline.output for pipeline in self.pipelines}
        known = produced | outputs | {pipeline.dead_letters for pipeline in self.pipelines}
        for pipeline in self.pipelines:
            if pipeline.output in produced:
                raise ConfigError(
                    f"Pipeline {pipeline.name!r} writes {pipeline.output!r}, which is a topic for producers too; "
                    "a table has one committing writer, so choose another output or remove the topic."
                )
            for name in pipeline.inputs:
                if name not in known:
                    raise ConfigError(
                        f"Pipeline {pipeline.name!r} reads the unknown topic {name!r}; stage {self.name!r} has: "
                        f"{', '.join(sorted(known))}. Add a TopicConfig, or correct the name."
                    )
            if pipeline.canary is not None:
                self._check_canary(pipeline, pipeline.canary)
        if again := _repeated(catalog_name(table) for request in self.requests for table in request.tables):
            raise ConfigError(
                f"Two tables of stage {self.name!r} would be {again!r} in the Glue catalog; rename one of the topics."
            )

    def _check_canary(self, pipeline: PipelineConfig, topic: str) -> None:
        # Here, because what sends canaries loads the store, which the rest of a configuration does without.
        from brokerless.aws.canary import COLUMN

        for request in self.requests:
            if request.name in (topic, pipeline.output) and COLUMN not in Schema.parse(request.schema).names:
                raise ConfigError(
                    f"Pipeline {pipeline.name!r} cannot have a canary: topic {request.name!r} lacks the column "
                    f"{COLUMN!r}, by which the message is known. Add the column, or leave out canary."
                )

    def _check_numbers(self) -> None:
        for what, value, least in (
            ("retention_days", self.retention_days, 1),
            ("max_failures_per_hour", self.max_failures_per_hour, 1),
            ("ingest_concurrency", self.ingest_concurrency, 1),
            ("monthly_budget_usd", self.monthly_budget_usd or 1, 1),
        ):
            if value < least:
                raise ConfigError(f"Stage {self.name!r} has {what} = {value}; use {least} or more.")
        if self.max_failures_per_hour > 10:
            raise ConfigError(
                f"Stage {self.name!r} has max_failures_per_hour = {self.max_failures_per_hour}; EMR takes at most 10."
            )
        if self.log_retention_days not in _LOG_DAYS:
            raise ConfigError(
                f"Stage {self.name!r} keeps logs for {self.log_retention_days} days; "
                f"CloudWatch offers {', '.join(map(str, _LOG_DAYS))}."
            )

    @property
    def metrics_namespace(self) -> str:
        """The CloudWatch namespace of the stage's metrics."""
        return f"{NAMESPACE}/{self.name}"

    @property
    def auto_delete(self) -> bool:
        """Whether destroying the stage empties its buckets first."""
        return self.removal == "destroy"

    @property
    def prefix(self) -> str:
        """The prefix of names of AWS resources."""
        return f"brokerless-{self.name}"

    @property
    def log_prefix(self) -> str:
        """The prefix of names of log groups."""
        return f"/brokerless/{self.name}"

    @property
    def database(self) -> str:
        """The database of the tables in the Glue catalog."""
        return catalog_name(self.prefix)

    @property
    def requests(self) -> tuple[TopicRequest, ...]:
        """Every topic that must exist, inputs first."""
        requests = [TopicRequest(topic.name, topic.schema, topic.partitions) for topic in self.topics]
        for pipeline in self.pipelines:
            requests.append(TopicRequest(pipeline.output, pipeline.output_schema, dead_letters_of=pipeline.inputs))
        return tuple(requests)

    @property
    def failures_queue(self) -> str:
        """The queue of events that no function could process."""
        return f"{self.prefix}-failures"

    def ingest_name(self, topic: TopicConfig) -> str:
        """Return the name of the queue, stream or SNS topic that is a source of a topic."""
        return f"{self.prefix}-{resource_name(topic.name)}"

    def dead_letter_queue(self, topic: TopicConfig, source: Source) -> str:
        """Return the name of the queue for messages of a queue that could not be committed."""
        return f"{self.ingest_name(topic)}-dead-letters{'.fifo' if source == 'sqs-fifo' else ''}"

    @property
    def queues_to_watch(self) -> tuple[str, ...]:
        """The queues that should be empty."""
        sources = [
            (topic, source) for topic in self.topics for source in topic.sources if source in ("sqs", "sqs-fifo")
        ]
        return (self.failures_queue, *(self.dead_letter_queue(topic, source) for topic, source in sources))

    @property
    def ingested(self) -> tuple[TopicConfig, ...]:
        """The topics that have sources, and so an ingest function."""
        return tuple(topic for topic in self.topics if topic.sources)

    @property
    def has_example(self) -> bool:
        """Whether the stage has the generator's topics."""
        return set(ZONES) <= {topic.name for topic in self.topics}

    def tables_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the tables of these topics, relative to the root."""
        wanted = set(names)
        tables = [table for request in self.requests for table in request.tables]
        return tuple(table for table in tables if split_table(table)[0] in wanted)

    def service_of(self, pipeline: PipelineConfig) -> RunsOn:
        """Return the service that runs the pipeline."""
        return pipeline.runs_on or self.runs_on


def catalog_name(name: str) -> str:
    """Return a name that Athena accepts without quotes: lower-case letters, digits and underscores."""
    return re.sub(r"[^a-z0-9_]", "_", name.lower())


def resource_name(topic: str) -> str:
    """Return a topic's name as a part of names of AWS resources."""
    return catalog_name(topic).replace("_", "-")
