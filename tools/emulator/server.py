"""The AWS emulator of ``make deploy-local``: ministack, with the features that its release 1.5.33 does not have.

It runs as ``python -m tools.emulator.server`` in its own process and ends with the ``Emulator`` that started it. The
additions use private names of ministack, so its exact version (1.5.33) is pinned, and checked here.

===============================  ===================================================================================
addition                         without it
===============================  ===================================================================================
types that are only stored       the deployment is refused: "Unrecognized resource types"
composite alarms                 the same error, although ministack supports them
alarms on metric math            the same error; here they get no data, only ``SetAlarmState`` changes them
tags of buckets are stored       the CDK's function that empties buckets finds none of its own
only empty buckets are deleted   a test would not notice that buckets are not emptied
``Custom::S3AutoDeleteObjects``  that function needs the AWS SDK for JavaScript; here Python empties the bucket
loopback counts as TLS           each bucket refuses plain HTTP, which all clients here use
more condition keys              policies on conditional PUTs, roles and metrics' namespaces match never or always
the owner may assume any role    a job's role trusts only Glue, with conditions that only a service call fulfils
metrics are read from logs       functions write their metrics to the log (EMF), where they stay unread
isolated functions               this interpreter's packages hide that a function's package lacks one
Glue runs                        ``StartJobRun`` reports success for jobs that never ran (``glue_runs``)
===============================  ===================================================================================
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
import threading
import uuid
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import boto3

from brokerless.errors import ConfigError
from tools.emulator.glue_runs import GlueRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MINISTACK: Final = "1.5.33"

ACCOUNT: Final = "000000000000"
REGION: Final = "us-east-1"

DIRECTORY_ENV: Final = "BROKERLESS_EMULATOR_DIRECTORY"
"""The emulator's folder; runs of jobs are in ``glue``, temporary files in ``tmp``."""

STORED: Final = {
    "AWS::Budgets::Budget": (),
    "AWS::EMRServerless::Application": ("ApplicationId", "Arn"),
    "AWS::Glue::SecurityConfiguration": (),
}
"""Types of which only the properties are stored, each with the attributes that templates use."""

# The packages of Lambda's Python runtimes, which functions use.
_LAMBDA_HAS: Final = ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "six", "urllib3")

Handler = dict[str, Any]
Context = dict[str, str]


def main() -> None:
    """Serve until standard input closes, which happens when the parent process ends, even if it is killed."""
    installed = importlib.metadata.version("ministack")
    if installed != MINISTACK:
        raise ConfigError(
            f"The emulator needs ministack {MINISTACK}, but {installed} is installed; run: make setup-aws"
        )
    directory = Path(os.environ[DIRECTORY_ENV])
    runs = GlueRuns(directory / "glue", _endpoint())
    _register_stored()
    _refine_buckets()
    _accept_composite_alarms()
    _empty_buckets()
    _count_loopback_as_tls()
    _complete_conditions()
    _let_owner_assume_roles()
    _extract_metrics()
    _isolate_functions(directory / "tmp" / "lambda-python")
    runs.install()
    threading.Thread(target=_stop_with_parent, args=(runs,), daemon=True).start()
    sys.argv[1:] = []
    importlib.import_module("ministack.app").main()


def _stop_with_parent(runs: GlueRuns) -> None:
    os.read(0, 1)
    runs.close()
    # The functions' workers are in this group, too. The parent created it: brokerless.local.processes.spawn.
    os.killpg(0, signal.SIGKILL)


def _endpoint() -> str:
    return f"http://127.0.0.1:{os.environ['GATEWAY_PORT']}"


def _handlers() -> dict[str, Handler]:
    provisioners: Any = importlib.import_module("ministack.services.cloudformation.provisioners")
    handlers: dict[str, Handler] = provisioners._RESOURCE_HANDLERS
    return handlers


def _register_stored() -> None:
    for kind, attributes in STORED.items():
        _handlers().setdefault(kind, _stored(kind, attributes))


def _stored(kind: str, attributes: tuple[str, ...]) -> Handler:
    service = kind.split("::")[1].lower()

    def values(physical_id: str) -> dict[str, str]:
        arn = f"arn:aws:{service}:{REGION}:{ACCOUNT}:{physical_id}"
        return {name: arn if name == "Arn" else physical_id for name in attributes}

    def create(logical_id: str, props: Handler, stack_name: str) -> tuple[str, dict[str, str]]:
        physical_id = str(props.get("Name") or f"{stack_name}-{logical_id}-{uuid.uuid4().hex[:8]}")
        return physical_id, values(physical_id)

    def update(physical_id: str, old: Handler, new: Handler, stack_name: str) -> tuple[str, dict[str, str]]:
        return physical_id, values(physical_id)

    def delete(physical_id: str, props: Handler) -> None:
        """Nothing is stored outside the stack."""

    return {"create": create, "update": update, "delete": delete}


def _refine_buckets() -> None:
    s3: Any = importlib.import_module("ministack.services.s3")
    bucket = _handlers()["AWS::S3::Bucket"]
    create: Callable[..., tuple[str, Handler]] = bucket["create"]

    def create_with_tags(logical_id: str, props: Handler, stack_name: str) -> tuple[str, Handler]:
        name, attributes = create(logical_id, props, stack_name)
        if props.get("Tags"):
            s3._bucket_tags[name] = {tag["Key"]: tag["Value"] for tag in props["Tags"]}
        return name, attributes

    remove: Callable[[str, Handler], None] = bucket["delete"]

    def remove_empty(physical_id: str, props: Handler) -> None:
        if s3._buckets.get(physical_id, {}).get("objects"):
            raise ValueError(f"The bucket {physical_id} is not empty")
        remove(physical_id, props)

    bucket |= {"create": create_with_tags, "delete": remove_empty}


def _accept_composite_alarms() -> None:
    provisioners: Any = importlib.import_module("ministack.services.cloudformation.provisioners")
    cloudwatch: Any = importlib.import_module("ministack.services.cloudwatch")
    record: Callable[[str, Handler], Handler] = provisioners._cw_metric_alarm_record

    def record_without_math(name: str, props: Handler) -> Handler:
        if "Metrics" in props:
            rest = {key: value for key, value in props.items() if key != "Metrics"}
            props = {**rest, "Namespace": "Emulator", "MetricName": "MetricMath"}
        return record(name, props)

    provisioners._cw_metric_alarm_record = record_without_math

    # A direct call, not HTTP: these handlers run in the event loop that would have to answer.
    def put(props: Handler) -> tuple[str, Handler]:
        status, _, body = cloudwatch._put_composite_alarm({}, props, is_cbor=False, is_json=True)
        if status >= 400:
            raise ValueError(body)
        name = str(props["AlarmName"])
        return name, {"Arn": f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:{name}"}

    def create(logical_id: str, props: Handler, stack_name: str) -> tuple[str, Handler]:
        return put(props)

    def update(physical_id: str, old: Handler, new: Handler, stack_name: str) -> tuple[str, Handler]:
        return put(new)

    def delete(physical_id: str, props: Handler) -> None:
        cloudwatch._delete_alarms({}, {"AlarmNames": [physical_id]}, is_cbor=False, is_json=True)

    _handlers()["AWS::CloudWatch::CompositeAlarm"] = {"create": create, "update": update, "delete": delete}


def _empty_buckets() -> None:
    def create(logical_id: str, props: Handler, stack_name: str) -> tuple[str, Handler]:
        return str(props["BucketName"]), {}

    def update(physical_id: str, old: Handler, new: Handler, stack_name: str) -> tuple[str, Handler]:
        return str(new["BucketName"]), {}

    def delete(physical_id: str, props: Handler) -> None:
        # With the account's own credentials, because the function's role is not tested here.
        bucket = boto3.resource("s3", endpoint_url=_endpoint()).Bucket(physical_id)
        tags = {tag["Key"]: tag["Value"] for tag in bucket.Tagging().tag_set}
        if tags.get("aws-cdk:auto-delete-objects") == "true":
            bucket.Policy().delete()  # its policy lets only the function's role delete log entries
            bucket.object_versions.delete()

    _handlers()["Custom::S3AutoDeleteObjects"] = {"create": create, "update": update, "delete": delete}


def _count_loopback_as_tls() -> None:
    app: Any = importlib.import_module("ministack.app")
    pin: Callable[[str, bool], None] = app.pin_request_origin
    app.pin_request_origin = lambda source_ip, secure: pin(source_ip, secure or source_ip == "127.0.0.1")


def _complete_conditions() -> None:
    actions: Any = importlib.import_module("ministack.core.iam_actions")
    of_s3: Callable[..., Context] = actions.s3_service_context
    of_tags: Callable[[str, str, bytes, Handler], Context] = actions.request_tag_context

    def s3_context(
        action: str, query: Handler | None, path: str = "", headers: dict[str, str] | None = None
    ) -> Context:
        context = of_s3(action, query, path, headers)
        if action == "s3:PutObject":
            creates = not {"partNumber", "uploads"} & set(query or {})
            context["s3:objectcreationoperation"] = str(creates).lower()
            if condition := (headers or {}).get("if-none-match"):
                context["s3:if-none-match"] = condition
        return context

    # All services except S3 and DynamoDB use this function; there is no hook for CloudWatch alone.
    def request_context(service: str, action: str, body: bytes, params: Handler) -> Context:
        context = of_tags(service, action, body, params)
        if action == "cloudwatch:PutMetricData":
            context["cloudwatch:namespace"] = _namespace(body)
        return context

    # For an assumed role, AWS returns the role's name; ministack returns the session's.
    evaluator: Any = importlib.import_module("ministack.core.iam_evaluator")
    resolve: Callable[[str, Any], Any] = evaluator._resolve_condition_key

    def resolve_role(key: str, asked: Any) -> Any:
        found = resolve(key, asked)
        if key.lower() == "aws:principalarn" and ":assumed-role/" in str(found):
            account, role = str(found).split(":")[4], str(found).split("/")[1]
            return f"arn:aws:iam::{account}:role/{role}"
        return found

    evaluator._resolve_condition_key = resolve_role
    actions.s3_service_context = s3_context
    actions.request_tag_context = request_context


def _namespace(body: bytes) -> str:
    """Parse a PutMetricData request, in the protocol that boto3 speaks: JSON, or the query of older releases."""
    if body.startswith(b"{"):
        return str(json.loads(body)["Namespace"])
    return parse_qs(body.decode())["Namespace"][0]


def _let_owner_assume_roles() -> None:
    evaluator: Any = importlib.import_module("ministack.core.iam_evaluator")
    evaluate: Callable[..., bool] = evaluator.evaluate_trust_policy

    def trusts(document: object, caller: str, *args: object, **kwargs: object) -> bool:
        return caller == f"arn:aws:iam::{ACCOUNT}:root" or evaluate(document, caller, *args, **kwargs)

    evaluator.evaluate_trust_policy = trusts


def _extract_metrics() -> None:
    logs: Any = importlib.import_module("ministack.services.cloudwatch_logs")
    cloudwatch: Any = importlib.import_module("ministack.services.cloudwatch")
    append: Callable[[Handler, list[Handler]], object] = logs._append_log_events

    def append_and_extract(stream: Handler, events: list[Handler]) -> object:
        for event in events:
            if event["message"].startswith('{"_aws"'):
                for datum in _embedded(json.loads(event["message"])):
                    cloudwatch._store_datum(*datum, None, None)
        cloudwatch._evaluate_all_alarms()
        return append(stream, events)

    logs._append_log_events = append_and_extract


def _embedded(line: Handler) -> Iterator[tuple[object, ...]]:
    """Yield namespace, name, dimensions, time, unit, None, and values of each metric in a line of a log."""
    for directive in line["_aws"]["CloudWatchMetrics"]:
        for names in directive["Dimensions"]:
            dimensions = {name: line[name] for name in names}
            for metric in directive["Metrics"]:
                values = line[metric["Name"]]
                values = values if isinstance(values, list) else [values]
                at_s = line["_aws"]["Timestamp"] / 1000
                yield directive["Namespace"], metric["Name"], dimensions, at_s, metric["Unit"], None, values


def _isolate_functions(directory: Path) -> None:
    """Let functions run in an interpreter with Lambda's packages: the standard library and boto3."""
    runtime: Any = importlib.import_module("ministack.core.lambda_runtime")
    detect: Callable[[str], tuple[str, str]] = runtime._detect_runtime_binary
    venv.create(directory, clear=True, symlinks=True)
    packages = next(directory.glob("lib/python*/site-packages"))
    for name in _LAMBDA_HAS:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ConfigError(f"The emulator's functions need {name}, which is not installed; run: make setup-aws")
        origin = Path(spec.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        (packages / source.name).symlink_to(source)

    def detect_isolated(name: str) -> tuple[str, str]:
        binary, script = detect(name)
        return (str(directory / "bin" / "python"), script) if binary == sys.executable else (binary, script)

    runtime._detect_runtime_binary = detect_isolated


if __name__ == "__main__":
    main()
