"""The deployment as a user has it, on an emulator of AWS: the real templates, functions, policies and job.

The tests are the stages of one story and share one deployment; run them together. What the emulator is and is not:
``docs/local-aws.md``.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from brokerless.aws.cloudwatch import CloudWatchSink
from brokerless.clock import SYSTEM
from brokerless.consumer import Consumer
from brokerless.errors import AccessDenied, StoreError
from brokerless.examples.timezone.messages import NEW_YORK, PARIS, UNIFIED
from brokerless.metrics import COMMIT_CONFLICTS, END_TO_END_LATENCY, LAG_MESSAGES, REJECTED_MESSAGES, Datum
from brokerless.producer.producer import Producer
from brokerless.schema import dead_letters
from brokerless.settings import Settings
from brokerless.store import open_store
from brokerless.topics import describe_topic, list_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from infra.config import StageConfig
    from tools.emulator.deployment import Deployment, Emulator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PIPELINE = "timezone-etl"
DATE = "2024-08-23 10:52:13.066217 +0200"
ANYBODY_SENDS = json.dumps(
    {"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}]}
)


@dataclass
class Cloud:
    """A deployment, and the ways of its users."""

    emulator: Emulator
    deployment: Deployment
    stage: StageConfig
    sent: list[str] = field(default_factory=list)

    def settings(self, credentials: Mapping[str, str] | None = None) -> Settings:
        """The library's view, as the account's owner or as a role."""
        keys = {**self.emulator.environ(), **(credentials or {})}
        environ = keys | {"BROKERLESS_ROOT": self.root}
        return Settings.load(profile="aws", environ=environ, dotenv=None)

    @property
    def root(self) -> str:
        functions = self.emulator.client("lambda")
        environ = functions.get_function_configuration(FunctionName=f"{self.stage.prefix}-topics")["Environment"]
        return str(environ["Variables"]["BROKERLESS_ROOT"])

    def output(self, prefix: str) -> str:
        """A stack's output, whose name ends with a hash."""
        stacks = self.emulator.client("cloudformation").describe_stacks()["Stacks"]
        outputs = {o["OutputKey"]: o["OutputValue"] for stack in stacks for o in stack.get("Outputs", ())}
        return next(str(value) for key, value in outputs.items() if re.fullmatch(f"{prefix}[0-9A-F]{{8}}", key))

    def function_role(self, name: str) -> dict[str, str]:
        """Credentials of a function's role."""
        function = self.emulator.client("lambda").get_function_configuration(FunctionName=f"{self.stage.prefix}-{name}")
        return self.emulator.assume(function["Role"])

    def invoke(self, name: str) -> Any:
        """What a function answers."""
        answer = self.emulator.client("lambda").invoke(FunctionName=f"{self.stage.prefix}-{name}", Payload=b"{}")
        content = json.loads(answer["Payload"].read())
        assert "FunctionError" not in answer, content
        return content

    @property
    def job(self) -> dict[str, Any]:
        """The Glue job's definition."""
        name = f"{self.stage.prefix}-{PIPELINE}"
        job: dict[str, Any] = self.emulator.client("glue").get_job(JobName=name)["Job"]
        return job

    def runs(self) -> list[dict[str, Any]]:
        """The job's runs, the newest first."""
        name = f"{self.stage.prefix}-{PIPELINE}"
        runs: list[dict[str, Any]] = self.emulator.client("glue").get_job_runs(JobName=name)["JobRuns"]
        return runs

    def alarm(self, name: str) -> dict[str, Any]:
        """An alarm as it is now."""
        (alarm,) = self.emulator.client("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"]
        return dict(alarm)

    def texts(self, topic: str) -> Counter[str]:
        """The texts of all messages of a topic."""
        found: Counter[str] = Counter()
        with Consumer(topic, start="beginning", settings=self.settings()) as consumer:
            while batches := consumer.poll(0):
                for batch in batches:
                    found.update(batch.data.column("message").to_pylist())
        return found

    def await_text(self, topic: str, text: str, within_s: float = 120) -> None:
        """Returns once a reader has seen the message."""
        deadline = time.monotonic() + within_s
        with Consumer(topic, start="beginning", settings=self.settings()) as consumer:
            while time.monotonic() < deadline:
                if any(text in batch.data.column("message").to_pylist() for batch in consumer.poll()):
                    return
        logs = sorted(self.emulator.directory.glob("glue/*/log"))
        tails = "".join(f"\n{log}: ...{log.read_text(errors='replace')[-2000:]}" for log in logs)
        pytest.fail(f"{text} did not come to {topic} within {within_s} s; {self.runs()}{tails}")

    def post(self, body: bytes, *, signed: bool = True) -> tuple[int, Any]:
        """A POST to the function's URL, as the account's owner."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        url = self.output(f"Ingest{NEW_YORK}Url")
        request = AWSRequest("POST", url, data=body, headers={"Content-Type": "application/json"})
        request.headers["Host"] = urlsplit(url).netloc
        keys = self.emulator.environ()
        if signed:
            credentials = Credentials(keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"])
            SigV4Auth(credentials, "lambda", keys["AWS_REGION"]).add_auth(request)
        connection = http.client.HTTPConnection(urlsplit(self.emulator.endpoint).netloc, timeout=60)
        connection.request("POST", "/", body=body, headers=dict(request.headers.items()))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, json.loads(content or b"null")


def eventually(holds: Callable[[], object], *, within_s: float) -> None:
    """Waits for what other processes do."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        threading.Event().wait(0.5)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Everything deployed to an emulator of its own."""
    pytest.importorskip("aws_cdk")
    pytest.importorskip("ministack")
    from tools.emulator.app import local_stage
    from tools.emulator.deployment import Deployment, Emulator

    directory = tmp_path_factory.mktemp("aws")
    with Emulator(directory / "emulator") as emulator:
        deployment = Deployment(emulator, directory / "cdk")
        deployment.bootstrap()
        deployment.synth()
        deployment.deploy()
        yield Cloud(emulator, deployment, local_stage())
    eventually(lambda: str(directory) not in processes(), within_s=10)


def processes() -> str:
    """The command lines of all processes."""
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_everything_is_deployed_and_a_second_look_finds_no_difference(cloud: Cloud) -> None:
    stacks = cloud.emulator.client("cloudformation").describe_stacks()["Stacks"]
    assert {stack["StackName"]: stack["StackStatus"] for stack in stacks} == {
        "CDKToolkit": "CREATE_COMPLETE",
        f"{cloud.stage.prefix}-data": "CREATE_COMPLETE",
        f"{cloud.stage.prefix}-streams": "CREATE_COMPLETE",
        f"{cloud.stage.prefix}-monitoring": "CREATE_COMPLETE",
    }
    assert "Number of stacks with differences: 0" in cloud.deployment.diff()


def test_the_topics_are_there_as_they_are_configured(cloud: Cloud) -> None:
    store = open_store(cloud.settings())
    assert {topic.name for topic in list_topics(store)} >= {NEW_YORK, PARIS, UNIFIED, dead_letters(UNIFIED)}
    for topic in cloud.stage.topics:
        found = describe_topic(store, topic.name)
        assert (str(found.schema), found.partitions) == (topic.schema, topic.partitions)


def test_the_controller_has_started_exactly_one_run_and_remembers_it(cloud: Cloud) -> None:
    (run,) = cloud.runs()
    assert run["JobRunState"] == "RUNNING"
    function = f"{cloud.stage.prefix}-stream-controller"
    environ = cloud.emulator.client("lambda").get_function_configuration(FunctionName=function)["Environment"]
    state = urlsplit(environ["Variables"]["BROKERLESS_STATE_PREFIX"])
    s3 = cloud.emulator.client("s3")
    (record,) = s3.list_objects_v2(Bucket=state.netloc, Prefix=f"{state.path[1:]}/")["Contents"]
    assert run["Id"] in s3.get_object(Bucket=state.netloc, Key=record["Key"])["Body"].read().decode()


def by_url(cloud: Cloud, row: dict[str, str]) -> str:
    status, answer = cloud.post(json.dumps(row).encode())
    assert (status, len(answer["acks"])) == (200, 1), answer
    return NEW_YORK


def by_queue(cloud: Cloud, row: dict[str, str]) -> str:
    url = cloud.output(f"Ingest{NEW_YORK}QueueUrl")
    cloud.emulator.client("sqs").send_message(QueueUrl=url, MessageBody=json.dumps(row))
    return NEW_YORK


def by_fifo_queue(cloud: Cloud, row: dict[str, str]) -> str:
    url = cloud.output(f"Ingest{PARIS}FifoUrl")
    cloud.emulator.client("sqs").send_message(QueueUrl=url, MessageBody=json.dumps(row), MessageGroupId="group")
    return PARIS


def by_notification(cloud: Cloud, row: dict[str, str]) -> str:
    topic = cloud.output(f"Ingest{NEW_YORK}TopicArn")
    cloud.emulator.client("sns").publish(TopicArn=topic, Message=json.dumps(row))
    return NEW_YORK


def by_stream(cloud: Cloud, row: dict[str, str]) -> str:
    name = cloud.output(f"Ingest{PARIS}StreamName")
    cloud.emulator.client("kinesis").put_record(StreamName=name, Data=json.dumps(row).encode(), PartitionKey="key")
    return PARIS


def by_bus(cloud: Cloud, row: dict[str, str]) -> str:
    entry = {"EventBusName": cloud.stage.prefix, "Source": "tests", "DetailType": PARIS, "Detail": json.dumps(row)}
    assert cloud.emulator.client("events").put_events(Entries=[entry])["FailedEntryCount"] == 0
    return PARIS


@pytest.mark.parametrize("source", [by_url, by_queue, by_fifo_queue, by_notification, by_stream, by_bus])
def test_a_message_from_each_source_comes_to_its_topic(
    cloud: Cloud, source: Callable[[Cloud, dict[str, str]], str]
) -> None:
    text = f"{source.__name__}-{uuid.uuid4()}"
    topic = source(cloud, {"date": DATE, "message": text})
    cloud.await_text(topic, text)
    cloud.sent.append(text)


def test_the_url_refuses_who_is_not_signed_and_explains_what_is_no_message(cloud: Cloud) -> None:
    status, _ = cloud.post(b'{"message": "a"}', signed=False)
    assert status == 403
    status, answer = cloud.post(b'{"message": "a"}')
    assert status == 400
    assert "lacks the column 'date'" in answer["error"]


def test_a_role_may_do_what_its_part_does_and_nothing_else(cloud: Cloud) -> None:
    job, ingest = cloud.emulator.assume(cloud.job["Role"]), cloud.function_role(f"ingest-{NEW_YORK}")
    row = [{"date": DATE, "message": f"role-{uuid.uuid4()}"}]
    with Producer(NEW_YORK, settings=cloud.settings(ingest)) as producer:
        producer.send(row)
    cloud.sent.append(row[0]["message"])
    for credentials, topic in ((job, NEW_YORK), (ingest, PARIS), (ingest, UNIFIED)):
        store = open_store(cloud.settings(credentials))
        with pytest.raises(AccessDenied):
            store.put_if_absent(f"{topic}/part-{uuid.uuid4()}.parquet", b"x")
    for credentials, topic in ((job, UNIFIED), (job, dead_letters(UNIFIED)), (ingest, dead_letters(NEW_YORK))):
        store, path = open_store(cloud.settings(credentials)), f"{topic}/part-{uuid.uuid4()}.parquet"
        assert store.put_if_absent(path, b"x") == "created"
        with pytest.raises(AccessDenied):  # maintenance alone removes
            store.delete([path])
        open_store(cloud.settings(cloud.function_role("maintenance"))).delete([path])
    assert describe_topic(open_store(cloud.settings(job)), NEW_YORK).name == NEW_YORK
    with pytest.raises(StoreError):
        describe_topic(open_store(cloud.settings(ingest)), UNIFIED)


def test_nobody_replaces_an_entry_of_a_log(cloud: Cloud) -> None:
    ingest = cloud.emulator.client("s3", cloud.function_role(f"ingest-{NEW_YORK}"))
    location = urlsplit(cloud.root)
    key = f"{location.path[1:]}/{NEW_YORK}/_delta_log/{0:020}.json"
    with pytest.raises(ingest.exceptions.ClientError, match="AccessDenied"):
        ingest.put_object(Bucket=location.netloc, Key=key, Body=b"{}")
    with pytest.raises(ingest.exceptions.ClientError, match="PreconditionFailed"):
        ingest.put_object(Bucket=location.netloc, Key=key, Body=b"{}", IfNoneMatch="*")
    # Who could delete it could then put another in its place.
    with pytest.raises(ingest.exceptions.ClientError, match="AccessDenied"):
        ingest.delete_object(Bucket=location.netloc, Key=key)
    hint = f"{location.path[1:]}/{NEW_YORK}/_delta_log/_last_checkpoint"
    with pytest.raises(ingest.exceptions.ClientError, match="AccessDenied"):
        ingest.put_object(Bucket=location.netloc, Key=hint, Body=b"{}")


def test_the_job_may_send_metrics_of_this_stage_only(cloud: Cloud) -> None:
    client = cloud.emulator.client("cloudwatch", cloud.emulator.assume(cloud.job["Role"]))
    datum = [Datum(LAG_MESSAGES, PIPELINE, (0.0,), (1.0,))]
    now_us = SYSTEM.time_us()
    assert CloudWatchSink(client, cloud.stage.metrics_namespace).send(datum, at_us=now_us) is None
    refused = CloudWatchSink(client, "Brokerless/prod").send(datum, at_us=now_us)
    assert refused is not None
    assert "PutMetricData" in refused.why


def test_the_deployed_job_delivers_every_message_once(cloud: Cloud) -> None:
    expected = cloud.texts(NEW_YORK) + cloud.texts(PARIS)
    assert set(cloud.sent) <= set(expected)
    eventually(lambda: cloud.texts(UNIFIED) >= expected, within_s=60)
    # The other way round: what is there now had been sent by the time of the next line.
    delivered = cloud.texts(UNIFIED)
    assert delivered <= cloud.texts(NEW_YORK) + cloud.texts(PARIS)


def test_the_canary_measures_the_running_pipeline(cloud: Cloud) -> None:
    answer = cloud.invoke(f"canary-{PIPELINE}")
    assert answer["dead_letter"] is None
    assert 0 < answer["latency_s"] < 30


def test_maintenance_reports_every_table(cloud: Cloud) -> None:
    answer = cloud.invoke("maintenance")
    assert answer["tables"] >= 4
    assert answer["skipped"] == 0


def test_the_dashboard_shows_the_latency_that_the_job_measured(cloud: Cloud) -> None:
    client = cloud.emulator.client("cloudwatch")
    body = json.loads(client.get_dashboard(DashboardName=cloud.stage.prefix)["DashboardBody"])
    (query,) = queries(body, END_TO_END_LATENCY.name, "p99")
    values: list[float] = []

    def has_values() -> bool:
        now = datetime.now(UTC)
        answer = client.get_metric_data(
            MetricDataQueries=[query], StartTime=now - timedelta(hours=3), EndTime=now + timedelta(minutes=1)
        )
        values[:] = answer["MetricDataResults"][0]["Values"]
        return bool(values)

    # The job sends once a minute.
    eventually(has_values, within_s=90)
    assert all(0 < value < 60 for value in values)


def queries(body: Mapping[str, Any], name: str, statistic: str) -> list[dict[str, Any]]:
    """A dashboard's queries for one metric and statistic, as GetMetricData takes them."""
    found = []
    for widget in body["widgets"]:
        line: list[Any] = []
        for entry in widget["properties"].get("metrics", ()):
            if not isinstance(entry[0], str):
                continue  # an expression
            words = [word for word in entry if isinstance(word, str)]
            # A dot repeats what the line above has at that place.
            line = [line[index] if word == "." else word for index, word in enumerate(words)]
            namespace, metric, *dimensions = line
            options = entry[-1] if isinstance(entry[-1], dict) else {}
            properties = widget["properties"]
            if (metric, options.get("stat", properties.get("stat"))) != (name, statistic):
                continue
            pairs = [{"Name": key, "Value": of} for key, of in zip(dimensions[::2], dimensions[1::2], strict=True)]
            wanted = {"Namespace": namespace, "MetricName": metric, "Dimensions": pairs}
            period = options.get("period", properties.get("period", 60))
            found.append(
                {"Id": f"q{len(found)}", "MetricStat": {"Metric": wanted, "Stat": statistic, "Period": period}}
            )
    return found


def test_a_refused_message_rings_an_alarm_that_tells_somebody(cloud: Cloud) -> None:
    name = f"{cloud.stage.name}-{NEW_YORK}-{REJECTED_MESSAGES.name}"
    (topic,) = cloud.alarm(name)["AlarmActions"]
    sqs = cloud.emulator.client("sqs")
    queue = sqs.create_queue(QueueName="alarms", Attributes={"Policy": ANYBODY_SENDS})["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    cloud.emulator.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    # Wherever it was before.
    cloud.emulator.client("cloudwatch").set_alarm_state(AlarmName=name, StateValue="OK", StateReason="test")
    assert cloud.post(b"no message")[0] == 400
    eventually(lambda: cloud.alarm(name)["StateValue"] == "ALARM", within_s=10)

    def notified() -> list[tuple[str, str]]:
        received = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", ())
        news = [json.loads(json.loads(message["Body"])["Message"]) for message in received]
        return [one for one in ((new["AlarmName"], new["NewStateValue"]) for new in news) if one == (name, "ALARM")]

    eventually(notified, within_s=10)


def test_an_alarm_comes_back_when_its_window_has_passed(cloud: Cloud) -> None:
    name = f"{cloud.stage.name}-{NEW_YORK}-{COMMIT_CONFLICTS.name}"
    assert COMMIT_CONFLICTS.alarm is not None
    sink = CloudWatchSink(cloud.emulator.client("cloudwatch"), cloud.stage.metrics_namespace)

    def measured(conflicts: float, at: datetime) -> None:
        datum = Datum(COMMIT_CONFLICTS, NEW_YORK, (conflicts,), (1.0,))
        assert sink.send([datum], at_us=int(at.timestamp() * 1e6)) is None

    # Almost out of the window, so that nobody has to wait until it is.
    measured(1000, datetime.now(UTC) - timedelta(minutes=COMMIT_CONFLICTS.alarm.minutes, seconds=-8))
    eventually(lambda: cloud.alarm(name)["StateValue"] == "ALARM", within_s=5)

    def is_over() -> bool:
        measured(0, datetime.now(UTC))  # the emulator looks at alarms when it gets a value
        return bool(cloud.alarm(name)["StateValue"] == "OK")

    eventually(is_over, within_s=30)


def test_an_update_changes_what_it_must_and_restarts_the_run_without_loss(cloud: Cloud) -> None:
    (before,) = cloud.runs()
    cloud.deployment.synth({"interval": "0.1"})
    changes = set(re.findall(r"^\[[-+~]\] (\S+)", cloud.deployment.diff(), re.MULTILINE))
    assert changes == {"AWS::Glue::Job", "Custom::BrokerlessStream"}
    cloud.deployment.deploy()
    assert cloud.job["DefaultArguments"]["--commit-interval"] == "0.1s"
    after, stopped = cloud.runs()
    assert (stopped["Id"], stopped["JobRunState"], after["JobRunState"]) == (before["Id"], "STOPPED", "RUNNING")
    text = f"after-{uuid.uuid4()}"
    by_url(cloud, {"date": DATE, "message": text})
    cloud.await_text(UNIFIED, text)
    assert cloud.texts(UNIFIED) <= cloud.texts(NEW_YORK) + cloud.texts(PARIS)


def test_the_generator_sends_by_itself_each_minute(cloud: Cloud) -> None:
    # Its messages are numbers; nobody else's are, and nobody has invoked it.
    eventually(lambda: all(any(map(str.isdigit, cloud.texts(topic))) for topic in (NEW_YORK, PARIS)), within_s=90)


def test_destroying_leaves_nothing_but_the_assets(cloud: Cloud) -> None:
    cloud.deployment.destroy()
    emulator = cloud.emulator
    stacks = emulator.client("cloudformation").describe_stacks()["Stacks"]
    assert [stack["StackName"] for stack in stacks] == ["CDKToolkit"]
    buckets = [bucket["Name"] for bucket in emulator.client("s3").list_buckets()["Buckets"]]
    assert [name for name in buckets if not name.startswith("cdk-")] == []
    assert emulator.client("lambda").list_functions()["Functions"] == []
    assert emulator.client("glue").get_jobs()["Jobs"] == []
    # The emulator makes a group again for a function that was still running; only the stack's have a retention.
    groups = emulator.client("logs").describe_log_groups()["logGroups"]
    assert [group["logGroupName"] for group in groups if "retentionInDays" in group] == []
    assert emulator.client("cloudwatch").describe_alarms()["MetricAlarms"] == []
    assert emulator.client("events").list_rules()["Rules"] == []
