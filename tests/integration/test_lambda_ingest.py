"""The ingest and generator functions as AWS calls them: real events, real handlers, tables on a real S3 server."""

from __future__ import annotations

import base64
import gzip
import importlib
import io
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from brokerless import DeltaLog, Schema, create_topic, open_store
from brokerless.aws.environment import GeneratorEnvironment, IngestEnvironment
from brokerless.columns.records import decode
from brokerless.errors import BrokerlessError, ConfigError, MessageError, TopicNotFound
from brokerless.examples.timezone.messages import NEW_YORK, PARIS, input_schema
from brokerless.ingest.batches import SourceMessage

if TYPE_CHECKING:
    from brokerless import Settings
    from brokerless.aws.environment import Environment

SCHEMA = Schema.parse("s string, n long")
QUEUE = "arn:aws:sqs:us-east-1:123456789012:queue"
STREAM = "arn:aws:kinesis:us-east-1:123456789012:stream/clicks"
CLUSTER = "arn:aws:kafka:us-east-1:123456789012:cluster/c/11111111-2222-3333-4444-555555555555-1"
BASE = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898  # what Kinesis counts from, 186 bits


@dataclass
class Context:
    function_name: str = "function"
    memory_limit_in_mb: int = 512
    invoked_function_arn: str = "arn:aws:lambda:us-east-1:123456789012:function:function"
    aws_request_id: str = "52fdfc07-2182-154f-163f-5f0f9a621d72"
    remaining_ms: int = 60_000

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms


def start(name: str, environment: Environment, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The function's module, loaded anew as by a cold start."""
    variables = {**environment.to_environ(), **settings.to_environ(), "POWERTOOLS_TRACE_DISABLED": "true"}
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delitem(sys.modules, f"lambdas.{name}.handler", raising=False)
    return importlib.import_module(f"lambdas.{name}.handler")


def environment(settings: Settings, **changes: Any) -> IngestEnvironment:
    values = {"topics": ("t", "other", "missing"), "default_topic": "t", "max_body_bytes": 1_000_000, **changes}
    return IngestEnvironment(stage="dev", metrics_namespace="Brokerless/dev", root=settings.root, **values)


@pytest.fixture
def function(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Any:
    store = open_store(settings)
    create_topic(store, "t", SCHEMA)
    create_topic(store, "other", SCHEMA)
    return start("ingest", environment(settings), settings, monkeypatch)


def call(function: Any, event: dict[str, Any]) -> Any:
    return function.handler(json.loads(json.dumps(event)), Context())


def column(settings: Settings, table: str, name: str = "n") -> list[Any]:
    store = open_store(settings)
    return [
        value
        for entry in DeltaLog(store, table).read_from(0)
        for add in entry.messages
        for value in decode(store.get(f"{table}/{add.path}")).column(name).to_pylist()
    ]


def text(n: int) -> str:
    return json.dumps({"s": "secret", "n": n})


def sqs(*bodies: str, topic: str | None = None, group: str | None = None, first: int = 0) -> dict[str, Any]:
    attributes = {"topic": {"stringValue": topic, "dataType": "String"}} if topic else {}
    records = []
    for number, body in enumerate(bodies, start=first):
        system = {"ApproximateReceiveCount": "1", "SentTimestamp": "1"}
        if group:
            system |= {"MessageGroupId": group, "SequenceNumber": str(2**127 + number)}
        records.append(
            {
                "messageId": f"id-{number}",
                "receiptHandle": "x",
                "body": body,
                "attributes": system,
                "messageAttributes": attributes,
                "md5OfBody": "x",
                "eventSource": "aws:sqs",
                "eventSourceARN": QUEUE + (".fifo" if group else ""),
                "awsRegion": "us-east-1",
            }
        )
    return {"Records": records}


def kinesis(bodies: dict[int, str], *, shard: int = 0, arn: str = STREAM) -> dict[str, Any]:
    return {
        "Records": [
            {
                "kinesis": {
                    "kinesisSchemaVersion": "1.0",
                    "partitionKey": "1",
                    "sequenceNumber": str(BASE + number),
                    "data": base64.b64encode(body.encode()).decode(),
                    "approximateArrivalTimestamp": 1545084650.987,
                },
                "eventSource": "aws:kinesis",
                "eventVersion": "1.0",
                "eventID": f"shardId-{shard:012d}:{BASE + number}",
                "eventName": "aws:kinesis:record",
                "awsRegion": "us-east-1",
                "eventSourceARN": arn,
            }
            for number, body in bodies.items()
        ]
    }


def kafka(partitions: dict[int, dict[int, str | None]], *, managed: bool = True) -> dict[str, Any]:
    def record(partition: int, offset: int, body: str | None) -> dict[str, Any]:
        value = {} if body is None else {"value": base64.b64encode(body.encode()).decode()}
        about = {"topic": "k", "partition": partition, "offset": offset, "timestamp": 1, "timestampType": "CREATE_TIME"}
        return {**about, **value, "headers": []}

    source = {"eventSource": "aws:kafka", "eventSourceArn": CLUSTER} if managed else {"eventSource": "SelfManagedKafka"}
    return {
        **source,
        "bootstrapServers": "b-2:9092,b-1:9092",
        "records": {f"k-{p}": [record(p, o, body) for o, body in batch.items()] for p, batch in partitions.items()},
    }


def notification(body: str, topic: str | None = None) -> dict[str, Any]:
    """What SNS puts into a queue; to a function it comes with the same names."""
    attributes = {"MessageAttributes": {"topic": {"Type": "String", "Value": topic}}} if topic else {}
    return {
        "Type": "Notification",
        "MessageId": "sns-1",
        "TopicArn": "arn:aws:sns:us-east-1:123456789012:news",
        "Message": body,
        "Timestamp": "2026-11-21T09:00:00.000Z",
        **attributes,
    }


def bus(detail: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "0",
        "id": "event-1",
        "detail-type": "click",
        "source": "my.shop",
        "account": "123456789012",
        "time": "2026-11-21T09:00:00Z",
        "region": "us-east-1",
        "resources": [],
        "detail": detail,
    }


def request(
    body: str, *, path: str = "/", method: str = "POST", encoded: bool = False, **headers: str
) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {"content-type": "application/json", **named},
        "requestContext": {"http": {"method": method, "path": path}, "stage": "$default"},
        "body": body,
        "isBase64Encoded": encoded,
    }


NOTHING_FAILED: dict[str, Any] = {"batchItemFailures": []}


# Queues


def test_a_queue(function: Any, settings: Settings) -> None:
    assert call(function, sqs(text(1), "bad", text(2))) == NOTHING_FAILED
    assert call(function, sqs(text(3), topic="other")) == NOTHING_FAILED
    assert call(function, sqs(text(4), topic="forbidden")) == NOTHING_FAILED
    assert column(settings, "t") == [1, 2]
    assert column(settings, "other") == [3]
    assert column(settings, "t.dead_letters", "_body") == ["bad", text(4)]
    assert column(settings, "t.dead_letters", "_source_position") == ["id-1", "id-0"]


@pytest.mark.parametrize(
    ("body", "topic"),
    [
        (json.dumps(notification(text(1))), "t"),
        (json.dumps(notification(text(1), topic="other")), "other"),
        (json.dumps(bus({"s": "x", "n": 1})), "t"),
        (json.dumps(notification(json.dumps(bus({"s": "x", "n": 1})))), "t"),
    ],
    ids=["SNS", "SNS with a topic", "EventBridge", "EventBridge by SNS"],
)
def test_envelopes_in_a_queue_are_opened(function: Any, settings: Settings, body: str, topic: str) -> None:
    assert call(function, sqs(body)) == NOTHING_FAILED
    assert column(settings, topic) == [1]


@pytest.mark.parametrize(
    "body",
    [
        '{"TopicArn": ' + "[" * 100_000,
        json.dumps({**notification("x"), "Message": {"a": 1}}),
        json.dumps({**notification("x"), "MessageAttributes": [1]}),
        json.dumps({**notification("x"), "MessageAttributes": {"topic": {"Value": {"a": 1}}}}),
        json.dumps({**bus({}), "detail": "text"}),
        '{"detail-type": 1, "x": NaN}',
        "\ud800",
    ],
)
def test_false_envelopes_are_dead_letters(function: Any, settings: Settings, body: str) -> None:
    assert call(function, sqs(text(1), body, text(2))) == NOTHING_FAILED
    assert column(settings, "t") == [1, 2]
    assert len(column(settings, "t.dead_letters", "_body")) == 1


def test_a_fifo_queue_delivers_again_and_nothing_is_there_twice(function: Any, settings: Settings) -> None:
    for _ in range(2):
        assert call(function, sqs(text(0), "bad", text(2), group="a")) == NOTHING_FAILED
    call(function, sqs(text(0), group="b"))
    call(function, sqs(text(2), text(3), group="a", first=2))
    assert column(settings, "t") == [0, 2, 0, 3]
    assert column(settings, "t.dead_letters", "_body") == ["bad"]


def test_only_what_failed_is_delivered_again(function: Any, settings: Settings) -> None:
    event = sqs(text(1), text(2))
    event["Records"][1]["messageAttributes"] = {"topic": {"stringValue": "missing", "dataType": "String"}}
    assert call(function, event) == {"batchItemFailures": [{"itemIdentifier": "id-1"}]}
    assert column(settings, "t") == [1]


def test_a_batch_that_failed_as_a_whole_fails_the_function(function: Any) -> None:
    with pytest.raises(TopicNotFound):
        call(function, sqs(text(1), topic="missing"))


# Streams


def test_a_shard_that_is_cut_otherwise_when_it_is_delivered_again(function: Any, settings: Settings) -> None:
    bodies = {n: "bad" if n == 3 else text(n) for n in range(8)}
    for first, end in ((0, 4), (0, 8), (2, 5), (5, 8), (0, 8)):
        event = kinesis({n: bodies[n] for n in range(first, end)})
        assert call(function, event) == NOTHING_FAILED
    assert column(settings, "t") == [0, 1, 2, 4, 5, 6, 7]
    assert column(settings, "t.dead_letters", "_source_position") == [str(BASE + 3)]


def test_shards_do_not_mix_and_fan_out_does_not_matter(function: Any, settings: Settings) -> None:
    consumer = f"{STREAM}/consumer/fast:1545084650"
    call(function, kinesis({5: text(5)}))
    call(function, kinesis({1: text(1)}, shard=1))
    call(function, kinesis({5: text(5), 6: text(6)}, arn=consumer))
    assert column(settings, "t") == [5, 1, 6]


def test_the_first_that_failed_is_named_for_each_partition(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    create_topic(open_store(settings), "t", SCHEMA)
    function = start("ingest", environment(settings, default_topic="missing"), settings, monkeypatch)
    batch = SourceMessage(text(1).encode(), "kafka/c/k/0", {"partition": "k-0", "offset": 1}, 1, "t")
    monkeypatch.setattr(function, "batch_of", lambda event: function_batch(event, batch))
    answer = call(function, kafka({0: {2: text(2), 3: text(3)}, 1: {7: text(7), 8: text(8)}}))
    assert answer == {
        "batchItemFailures": [
            {"itemIdentifier": {"partition": "k-0", "offset": 2}},
            {"itemIdentifier": {"partition": "k-1", "offset": 7}},
        ]
    }


def function_batch(event: dict[str, Any], first: SourceMessage) -> Any:
    """The event's batch with one more message in front, so that not everything fails."""
    from lambdas.ingest.events import Batch, batch_of

    batch = batch_of(event)
    return Batch((first, *batch.messages), partial=batch.partial, stream=batch.stream)


@pytest.mark.parametrize("managed", [True, False])
def test_kafka_partitions_come_in_one_event(function: Any, settings: Settings, managed: bool) -> None:
    event = kafka({0: {5: text(5), 6: None, 7: text(7)}, 1: {5: text(50)}}, managed=managed)
    for _ in range(2):
        assert call(function, event) == NOTHING_FAILED
    event["bootstrapServers"] = "b-1:9092,b-2:9092"
    assert call(function, event) == NOTHING_FAILED
    assert column(settings, "t") == [5, 7, 50]
    assert column(settings, "t.dead_letters", "_body") == [None]
    assert DeltaLog(open_store(settings), "t").state.version == 1


# Asynchronous


def test_sns_and_eventbridge_call_the_function_itself(function: Any, settings: Settings) -> None:
    def sns(**message: Any) -> dict[str, Any]:
        return {"Records": [{"EventSource": "aws:sns", "EventVersion": "1.0", "Sns": message}]}

    call(function, sns(**notification(text(1))))
    call(function, sns(**notification(text(2), topic="other")))
    call(function, bus({"s": "x", "n": 3}))
    call(function, bus({"s": "x"}))
    assert column(settings, "t") == [1, 3]
    assert column(settings, "other") == [2]
    assert column(settings, "t.dead_letters", "_source") == ["eventbridge/my.shop/click"]
    # Two retries, then the destination for failures: there is no partial answer.
    both = {"Records": sns(**notification(text(4)))["Records"] + sns(**notification("x", topic="missing"))["Records"]}
    with pytest.raises(TopicNotFound):
        call(function, both)


@pytest.mark.parametrize("event", [{}, {"Records": []}, {"Records": [{"eventSource": "aws:s3"}]}, {"key": "value"}])
def test_an_event_of_another_service_is_named(function: Any, event: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match="is not of a supported service"):
        call(function, event)


# Requests


def test_a_request(function: Any, settings: Settings) -> None:
    answer = call(function, request(f"[{text(1)}, {text(2)}]", path="/topics/other"))
    assert (answer["statusCode"], answer["headers"]) == (200, {"Content-Type": "application/json"})
    (ack,) = json.loads(answer["body"])["acks"]
    assert (ack["topic"], ack["first"], ack["last"]) == ("other", "1:0", "1:1")
    packed = base64.b64encode(gzip.compress(text(3).encode())).decode()
    assert call(function, request(packed, encoded=True, content_encoding="gzip"))["statusCode"] == 200
    assert call(function, request(text(4), method="GET"))["headers"]["Allow"] == "POST"
    assert (column(settings, "other"), column(settings, "t")) == ([1, 2], [3])


def test_a_request_that_is_repeated_after_a_cold_start_is_written_once(
    function: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = request(text(1), Producer_Id="sensor", Producer_Sequence="0")
    assert not json.loads(call(function, event)["body"])["acks"][0]["duplicate"]
    other = start("ingest", environment(settings), settings, monkeypatch)
    assert json.loads(call(other, event)["body"])["acks"][0]["duplicate"]
    assert column(settings, "t") == [1]


ROLE = "arn:aws:sts::123456789012:assumed-role/sensors"


@pytest.mark.parametrize(
    ("authorizer", "caller"),
    [
        (None, ""),
        ({}, ""),
        ({"iam": None}, ""),
        ({"lambda": {"user": "x"}}, ""),
        (
            {"iam": {"userArn": "arn:aws:iam::123456789012:user/plant/alice"}},
            "arn:aws:iam::123456789012:user/plant/alice",
        ),
        ({"iam": {"userArn": f"{ROLE}/copy-1", "callerId": "AROA:copy-1", "cognitoIdentity": None}}, ROLE),
        ({"iam": {"userArn": f"{ROLE}/copy-2", "callerId": "AROA:copy-2"}}, ROLE),
        (
            {"iam": {"userArn": f"{ROLE}/CognitoIdentityCredentials", "cognitoIdentity": {"identityId": "i"}}},
            "cognito:i",
        ),
        ({"iam": {"callerId": "AIDA"}}, "iam:AIDA"),
        ({"jwt": {"claims": {"iss": "https://issuer", "sub": "user"}, "scopes": None}}, "jwt:https://issuer:user"),
    ],
)
def test_a_caller_is_who_aws_says(authorizer: Any, caller: str) -> None:
    from lambdas.ingest.events import http_request_of

    event = request(text(1), caller="arn:aws:iam::123456789012:user/claimed")
    event["requestContext"]["authorizer"] = authorizer
    received = http_request_of(event)
    assert received is not None
    assert received.caller == caller


def test_callers_have_producer_ids_of_their_own(function: Any, settings: Settings) -> None:
    for n, name in enumerate(("alice", "bob", "alice")):
        event = request(text(n), Producer_Id="sensor", Producer_Sequence="7")
        event["requestContext"]["authorizer"] = {"iam": {"userArn": f"arn:aws:iam::123456789012:user/{name}"}}
        assert json.loads(call(function, event)["body"])["acks"][0]["duplicate"] == (n == 2)
    assert column(settings, "t") == [0, 1]


# What is seen from outside


def test_logs_hold_counts_and_no_messages(
    function: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = io.StringIO()
    monkeypatch.setattr(function.logger.registered_handler, "stream", log)
    call(function, sqs(text(1), '{"s": "secret"}', '{"s": "secret", "n": "secret"}'))
    call(function, kinesis({1: text(1), 2: "secret"}))
    call(function, request('{"s": "secret", "n": "secret"}'))
    call(function, request(text(2)))
    with pytest.raises(BrokerlessError):
        call(function, sqs(text(1), topic="missing"))
    seen = capsys.readouterr()
    assert "secret" not in seen.out + seen.err + log.getvalue()
    taken = json.loads(log.getvalue().splitlines()[0])
    assert taken["message"] == "A batch was ingested."
    assert (taken["committed"], taken["rejected"], taken["failed"], taken["service"]) == (1, 2, 0, "ingest")


def test_metrics_have_one_dimension(function: Any, capsys: pytest.CaptureFixture[str]) -> None:
    call(function, sqs(text(1), text(2), "bad"))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "CloudWatchMetrics" in line]
    (line,) = lines
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert (directive["Namespace"], directive["Dimensions"]) == ("Brokerless/dev", [["Topic"]])
    units = {metric["Name"]: metric["Unit"] for metric in directive["Metrics"]}
    assert units == {"ProducedMessages": "Count", "RejectedMessages": "Count", "ProduceLatency": "Seconds"}
    assert (line["Topic"], line["ProducedMessages"], line["RejectedMessages"]) == ("t", [2.0], [1.0])


def test_an_environment_that_is_incomplete_stops_the_cold_start(
    function: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="not one of the allowed topics"):
        start("ingest", environment(settings, default_topic="elsewhere"), settings, monkeypatch)
    monkeypatch.delenv("BROKERLESS_TOPICS")
    with pytest.raises(ConfigError, match="BROKERLESS_TOPICS is not set"):
        importlib.import_module("lambdas.ingest.handler")


# The generator


def test_the_generator_sends_what_the_event_says(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for topic in (NEW_YORK, PARIS):
        create_topic(open_store(settings), topic, input_schema())
    values = GeneratorEnvironment("dev", "Brokerless/dev", settings.root, rate_per_s=1.0, duration_s=600.0)
    function = start("generator", values, settings, monkeypatch)
    answer = call(function, {"rate_per_s": 100, "duration_s": 0.5})
    assert (answer["due"], answer["sent"], answer["acknowledged"], answer["error"]) == (50, 50, 50, None)
    numbers = column(settings, NEW_YORK, "message") + column(settings, PARIS, "message")
    assert sorted(map(int, numbers)) == list(range(50))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "CloudWatchMetrics" in line]
    assert {line["Topic"] for line in lines} == {NEW_YORK, PARIS}
    assert sum(sum(line["ProducedMessages"]) for line in lines) == 50
    soon = function.handler({"duration_s": 5}, Context(remaining_ms=5_000))
    assert (soon["sent"], soon["out_of_time"]) == (0, True)


@pytest.mark.parametrize("service", [kinesis, lambda bodies: kafka({0: dict(bodies)})], ids=["kinesis", "kafka"])
@pytest.mark.parametrize("data", ["%", "a", "é", "x" * 101])
def test_a_payload_that_is_no_base64_is_a_dead_letter_and_stops_no_other(
    function: Any, settings: Settings, service: Any, data: str
) -> None:
    event = service({0: text(1), 1: "bad", 2: text(3)})
    if "Records" in event:
        event["Records"][1]["kinesis"]["data"] = data
    else:
        event["records"]["k-0"][1]["value"] = data
    assert call(function, event) == NOTHING_FAILED
    assert column(settings, "t") == [1, 3]
    assert column(settings, "t.dead_letters", "_body") == [data]


@pytest.mark.parametrize(
    "event",
    [
        {"Records": [{"eventSource": "aws:kinesis"}]},
        {"Records": [{"eventSource": "aws:sqs", "body": None}]},
        {"Records": [{"eventSource": "aws:sqs", "messageId": "1", "body": "{}", "messageAttributes": 5}]},
        {"Records": [{"EventSource": "aws:sns", "Sns": {}}]},
        {"Records": 5},
        {"eventSource": "aws:kafka", "records": {"k-0": [{"topic": "k"}]}},
        {"detail-type": "click"},
    ],
)
def test_an_envelope_that_no_service_writes_is_named(function: Any, event: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match="does not have the form of its service"):
        call(function, event)
