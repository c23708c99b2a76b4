"""What queues, streams and clients send to the ingest function: answers of 4xx, dead letters, or failures by name.

A payload that is malformed (what a producer wrote) must not keep its neighbours in the same batch from being taken. An
envelope that is malformed (what only AWS writes) may fail the batch by a named error; then nothing of it is lost at the
source, and the batch without it is taken. Failed messages are delivered again, as the service would.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import gzip
import importlib
import json
import os
import sys
import zlib
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from brokerless.aws.environment import IngestEnvironment
from brokerless.consumer import Consumer
from brokerless.errors import BrokerlessError, TopicNotFound
from brokerless.topics import create_topic
from tests.malformed import nasty
from tests.malformed.json_lines import SCHEMA, _damaged, _jsonable, _raw, _values, _whole
from tests.malformed.kinds import Kind, World, drained, once_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from brokerless.store import Store

_BASE: Final = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
_ARN: Final = "arn:aws:x:us-east-1:123456789012:clicks"
_REFUSALS: Final = {400, 403, 404, 405, 413, 415}
MAX_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Bad:
    """An event, and the number of the bad record in it; None for a request.

    Attributes:
        envelope: whether the bad part is one that only AWS writes.
    """

    service: str
    event: dict[str, Any]
    envelope: bool = False


def text_of(id_: str) -> bytes:
    """A message that fits the topic."""
    rest = {"n": 1, "d": None, "b": None, "x": None, "day": None, "at": None, "p": None}
    return json.dumps({"id": id_, **rest}).encode()


def body(rng: Random) -> bytes:
    """A malformed message."""
    return rng.choice((_values, _raw, _damaged, _whole))(rng)


def generate(rng: Random) -> Bad:
    if rng.random() < 0.35:
        return Bad("http", _request(rng))
    service = rng.choice(("sqs", "fifo", "kinesis", "kafka", "sns", "bus"))
    event = batch(service, [text_of("with"), body(rng), text_of("too")])
    if rng.random() < 0.5:
        return Bad(service, event)
    bad = bad_record(service, event)
    envelope = True
    if service == "kinesis" and rng.random() < 0.3:
        bad["kinesis"]["data"], envelope = _no_base64(rng), False
    elif service == "kafka" and rng.random() < 0.5:
        bad[rng.choice(("value", "value", "key"))], envelope = _no_base64(rng), False
    elif service in {"sqs", "fifo"} and rng.random() < 0.5:
        value = rng.choice(({"stringValue": text(rng)}, {"binaryValue": "/w=="}, {}, {"stringValue": None}))
        bad["messageAttributes"], envelope = {"topic": {"dataType": "String", **value}}, False
    elif service == "bus" and rng.random() < 0.5:
        bad["detail"], envelope = _jsonable(nasty.value(rng)), False
    else:
        _break(rng, bad)
    return Bad(service, event, envelope)


def text(rng: Random) -> str:
    return rng.choice(nasty.TEXTS)


def _no_base64(rng: Random) -> Any:
    return rng.choice(("%", "a", "ab=c", "=====", "é", "\ud800", "x" * 101, " ", "/w==\n", "_-8="))


def _break(rng: Random, record: dict[str, Any]) -> None:
    """Takes a field away or makes nonsense of it, at any depth."""
    while True:
        name = rng.choice(list(record))
        if isinstance(record[name], dict) and record[name] and rng.random() < 0.7:
            record = record[name]
            continue
        if rng.random() < 0.4:
            del record[name]
        else:
            record[name] = nasty.value(rng)
        return


def batch(service: str, bodies: list[bytes]) -> dict[str, Any]:
    """The event of a service with these messages."""
    match service:
        case "sqs" | "fifo":
            return {"Records": [_sqs(n, body, fifo=service == "fifo") for n, body in enumerate(bodies)]}
        case "kinesis":
            return {"Records": [_kinesis(n, body) for n, body in enumerate(bodies)]}
        case "kafka":
            records = [_kafka(n, body) for n, body in enumerate(bodies)]
            return {
                "eventSource": "aws:kafka",
                "eventSourceArn": _ARN,
                "bootstrapServers": "b-1:9092",
                "records": {"k-0": records},
            }
        case "sns":
            return {"Records": [_sns(n, body) for n, body in enumerate(bodies)]}
    return _bus(bodies[1])


def bad_record(service: str, event: dict[str, Any]) -> dict[str, Any]:
    """The second of the event's records: the bad one."""
    record: dict[str, Any] = event
    if service == "kafka":
        record = event["records"]["k-0"][1]
    elif service != "bus":
        record = event["Records"][1]
    return record


def _sqs(number: int, body: bytes, *, fifo: bool) -> dict[str, Any]:
    system = {"MessageGroupId": "g", "SequenceNumber": str(2**127 + number)} if fifo else {}
    return {
        "messageId": f"id-{number}",
        "receiptHandle": "x",
        "body": body.decode("utf-8", "replace"),
        "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1", **system},
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": _ARN,
    }


def _kinesis(number: int, body: bytes) -> dict[str, Any]:
    return {
        "kinesis": {
            "sequenceNumber": str(_BASE + number),
            "data": base64.b64encode(body).decode(),
            "partitionKey": "1",
        },
        "eventSource": "aws:kinesis",
        "eventID": f"shardId-000000000000:{_BASE + number}",
        "eventSourceARN": _ARN,
    }


def _kafka(number: int, body: bytes) -> dict[str, Any]:
    return {"topic": "k", "partition": 0, "offset": number, "value": base64.b64encode(body).decode(), "headers": []}


def _sns(number: int, body: bytes) -> dict[str, Any]:
    message = {"MessageId": f"id-{number}", "TopicArn": _ARN, "Message": body.decode("utf-8", "replace")}
    return {"EventSource": "aws:sns", "Sns": {**message, "Type": "Notification", "MessageAttributes": {}}}


def _bus(body: bytes) -> dict[str, Any]:
    try:
        detail = json.loads(body)
    except (ValueError, RecursionError):
        detail = body.decode("utf-8", "replace")
    return {"id": "e", "detail-type": "click", "source": "my.shop", "account": "1", "region": "r", "detail": detail}


def _request(rng: Random) -> dict[str, Any]:
    types = ("application/json", "application/x-ndjson")
    headers = {"content-type": rng.choice(types)}
    data = rng.choice((body(rng), b"[" + text_of("bad") + b"," + body(rng) + b"]", b"", b"[]", b"[" * 100_000))
    encoded: bool | Any = True
    match rng.randrange(9):
        case 0:
            headers["content-encoding"] = "gzip"
            data = rng.choice((gzip.compress(data), data, gzip.compress(data)[:-5], gzip.compress(data) * 70))
        case 1:
            headers["content-encoding"] = "gzip"
            data = rng.choice((_bomb(), gzip.compress(b"[" + b"[]," * 300_000), gzip.compress(_bomb())))
        case 2:
            headers["content-encoding"] = rng.choice(("br", "deflate", "gzip, gzip", "zstd", text(rng)))
        case 3:
            headers["content-type"] = rng.choice(
                ("text/html", "", ";", "application/json; charset=utf-16", "multipart/form-data", text(rng), "x" * 9999)
            )
        case 4:
            headers["producer-id"] = text(rng)
            headers["producer-sequence"] = rng.choice(("0", "-1", "9" * 18, "9" * 19, "1.0", "٣", "", text(rng)))
        case 5:
            headers["content-length"] = rng.choice(("-1", "9" * 30, "x"))
        case 6:
            encoded = rng.choice((False, None, "yes"))
    event: dict[str, Any] = {
        "version": "2.0",
        "rawPath": rng.choice(
            ("/", "/", "/topics/t", "/topics/../t", "/topics/%74", "//", f"/topics/{text(rng)}", text(rng))
        ),
        "headers": headers,
        "requestContext": {"http": {"method": rng.choice(("POST",) * 9 + ("GET", "", "post"))}},
        "body": base64.b64encode(data).decode() if encoded is True else data.decode("utf-8", "replace"),
        "isBase64Encoded": encoded,
    }
    if rng.random() < 0.1:
        event["body"] = rng.choice((*(_no_base64(rng) for _ in range(3)), None))
    return event


def _bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(2**20)) for _ in range(64)), packer.flush()])


@contextlib.contextmanager
def place() -> Iterator[Iterator[int]]:
    """The function's environment. A process of its own: nobody else has it."""
    os.environ |= {"POWERTOOLS_TRACE_DISABLED": "true", "BROKERLESS_PROFILE": "embedded"}
    yield count()


class _Context:
    function_name = "ingest"
    memory_limit_in_mb = 512
    invoked_function_arn = _ARN
    aws_request_id = "1"


def attack(bad: Bad, world: World) -> str | None:
    root = f"memory://ingest-{next(world.place)}"
    settings = IngestEnvironment("dev", "Brokerless/dev", root, ("t",), "t", MAX_BYTES)
    os.environ |= settings.to_environ() | {"BROKERLESS_PROFILE": "embedded"}
    sys.modules.pop("lambdas.ingest.handler", None)
    module = importlib.import_module("lambdas.ingest.handler")
    store = module.STORE
    create_topic(store, "t", SCHEMA)

    def call(event: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = module.handler(event, _Context())
        return answer

    if bad.service == "http":
        return _http(bad.event, call, store, world)
    return _batch(bad, call, store, world)


def _http(event: dict[str, Any], call: Callable[[Any], dict[str, Any]], store: Store, world: World) -> str | None:
    def post(id_: str) -> int:
        good = {**event, "rawPath": "/", "headers": {}, "body": text_of(id_).decode(), "isBase64Encoded": False}
        return int(call({**good, "requestContext": {"http": {"method": "POST"}}})["statusCode"])

    if post("before") != 200:
        return "a valid request was refused before"
    answer = call(event)
    status = answer["statusCode"]
    world.outcomes["valid after all" if status == 200 else f"HTTP {status}"] += 1
    if status not in _REFUSALS | {200}:
        return f"the answer is {status}: {ascii(answer['body'])[:200]}"
    if status != 200 and not json.loads(answer["body"])["error"]:
        return f"{status} says nothing"
    if post("after") != 200:
        return "a valid request was refused after it"
    rows = _rows(store, "t")
    if status != 200 and len(rows) != 2:
        return f"the answer is {status}, but {len(rows) - 2} rows were written"
    return once_each(rows, "id", ["before", "after"])


def _batch(bad: Bad, call: Callable[[Any], dict[str, Any]], store: Store, world: World) -> str | None:
    event, alone = bad.event, bad.service == "bus"
    failure: BrokerlessError | None = None
    try:
        answer = call(copy.deepcopy(event))
    except BrokerlessError as error:
        failure = error
    if failure is not None:
        if not bad.envelope:
            return f"a payload failed its whole batch with {type(failure).__name__}: {failure}"
        world.count(failure)
        if not alone:
            rest = batch(bad.service, [text_of("with"), b"", text_of("too")])
            records = rest["records"]["k-0"] if bad.service == "kafka" else rest["Records"]
            del records[1]
            call(rest)
    else:
        if answer["batchItemFailures"]:
            with contextlib.suppress(BrokerlessError):  # the source keeps what fails again
                call(_again(bad.service, event, answer))
        letters = _rows(store, "t.dead_letters")
        rows = _rows(store, "t")
        taken = len(rows) - (0 if alone else 2)
        failed = len(answer["batchItemFailures"])
        world.outcomes["dead letter" if letters else "valid after all" if taken else "delivered again"] += 1
        if not failed and len(letters) + taken != 1:
            return f"the bad message is there {taken} times, and {len(letters)} times as a dead letter"
    return None if alone else once_each(_rows(store, "t"), "id", ["with", "too"])


def _again(service: str, event: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """What the service delivers again: a queue what failed, a stream everything from some place before it on."""
    again = copy.deepcopy(event)
    if service == "sqs":
        failed = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
        again["Records"] = [record for record in again["Records"] if record.get("messageId") in failed]
    return again


def _rows(store: Store, topic: str) -> list[dict[str, Any]]:
    try:
        reader = Consumer(topic, start="beginning", store=store)
    except TopicNotFound:
        return []
    with reader:
        return drained(reader)


KIND: Final = Kind(generate, attack, place)
