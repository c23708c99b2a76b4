"""What CloudWatch is sent, how a failure is survived, and that the stream never notices."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError
from botocore.serialize import create_serializer
from botocore.stub import Stubber
from moto import mock_aws

from brokerless import metrics
from brokerless.aws import cloudwatch
from brokerless.aws.cloudwatch import MAX_WAITING, CloudWatchSink, JsonLinesSink, Publisher, Unsent, cloudwatch_client
from brokerless.metrics import LATENCY_BOUNDS_S, Datum, Histogram, Meter
from tests.support.fakes import START_US, FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

AT = datetime(2027, 1, 15, 8, 0, tzinfo=UTC)


def client() -> Any:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return boto3.client("cloudwatch", region_name="us-east-1", **keys)


class Calls:
    """A client that keeps what it is asked to put; ``errors`` are raised first, None of them lets a call pass."""

    def __init__(self, *errors: Exception | None) -> None:
        self.made: list[dict[str, Any]] = []
        self.errors = list(errors)

    def put_metric_data(self, **arguments: Any) -> None:
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        self.made.append(arguments)

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [entry for call in self.made for entry in call["MetricData"]]


def sink(calls: Any) -> CloudWatchSink:
    return CloudWatchSink(calls, "Brokerless/dev")


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "PutMetricData")


def datum(distinct: int, of: str = "etl") -> Datum:
    """So many values, as wide as a number gets."""
    values = tuple(-1.2345678901234567e-300 * (n + 1) for n in range(distinct))
    return Datum(metrics.LAG_MESSAGES, of, values, tuple(1e22 / 3 for _ in values))


# Requests


def test_an_entry_has_values_counts_one_dimension_and_the_time() -> None:
    real = client()
    expected = {
        "Namespace": "Brokerless/dev",
        "MetricData": [
            {
                "MetricName": "EndToEndLatency",
                "Dimensions": [{"Name": "Pipeline", "Value": "etl"}],
                "Timestamp": AT,
                "Unit": "Seconds",
                "Values": (0.1, 0.2),
                "Counts": (99.0, 1.0),
            }
        ],
    }
    with Stubber(real) as stub:
        stub.add_response("put_metric_data", {}, expected)
        data = [Datum(metrics.END_TO_END_LATENCY, "etl", (0.1, 0.2), (99.0, 1.0))]
        assert CloudWatchSink(real, "Brokerless/dev").send(data, at_us=START_US) is None
        stub.assert_no_pending_responses()


def test_all_that_a_pipeline_measures_in_a_minute_is_one_request() -> None:
    meter, calls = Meter(), Calls()
    full = Histogram([1] * (len(LATENCY_BOUNDS_S) + 1))
    for metric in metrics.METRICS:
        if metric.emitter == "pipeline":
            if metric.row == "latency":
                meter.add_histogram(metric, "etl", full)
            else:
                for rows in range(600):  # ten batches a second
                    meter.add(metric, "etl", rows)
    sink(calls).send(meter.take(), at_us=START_US)
    assert len(calls.made) == 1


def test_more_than_150_values_are_several_entries() -> None:
    calls = Calls()
    whole = datum(301)
    sink(calls).send([whole], at_us=START_US)
    assert [len(entry["Values"]) for entry in calls.entries] == [150, 150, 1]
    assert [value for entry in calls.entries for value in entry["Values"]] == list(whole.values)
    assert [count for entry in calls.entries for count in entry["Counts"]] == list(whole.counts)


def test_more_than_1000_entries_are_several_requests() -> None:
    calls = Calls()
    sink(calls).send([datum(1, of=f"t{n}") for n in range(1001)], at_us=START_US)
    assert [len(call["MetricData"]) for call in calls.made] == [1000, 1]


@pytest.mark.parametrize("protocol", ["query", "json", "smithy-rpc-v2-cbor"])
def test_no_request_is_larger_than_a_megabyte_in_any_protocol(protocol: str) -> None:
    calls = Calls()
    long = "x" * 255
    sink(calls).send([*(datum(150, of=long) for _ in range(60)), *(datum(1, of=long) for _ in range(2000))], at_us=0)
    operation = client().meta.service_model.operation_model("PutMetricData")
    bodies = [create_serializer(protocol).serialize_to_request(call, operation)["body"] for call in calls.made]
    sizes = [len(urlencode(body) if isinstance(body, dict) else body) for body in bodies]
    assert len(sizes) > 2
    assert max(sizes) < 1_000_000


def test_the_numbers_arrive() -> None:
    with mock_aws():
        real = client()
        data = [
            Datum(metrics.PRODUCED_MESSAGES, "clicks", (10.0, 3.0), (2.0, 1.0)),
            Datum(metrics.PRODUCED_MESSAGES, "other", (500.0,), (1.0,)),
        ]
        CloudWatchSink(real, "Brokerless/dev").send(data, at_us=START_US)
        found = real.get_metric_statistics(
            Namespace="Brokerless/dev",
            MetricName="ProducedMessages",
            Dimensions=[{"Name": "Topic", "Value": "clicks"}],
            StartTime=AT,
            EndTime=AT + timedelta(minutes=1),
            Period=60,
            Statistics=["Sum", "SampleCount", "Maximum"],
        )["Datapoints"]
    assert [(point["Sum"], point["SampleCount"], point["Maximum"]) for point in found] == [(23, 3, 10)]


def test_the_client_gives_up_within_16_seconds() -> None:
    config = cloudwatch_client("eu-central-1").meta.config
    assert (config.connect_timeout + config.read_timeout) * config.retries["total_max_attempts"] == 16


# Failures


@pytest.mark.parametrize(
    "error",
    [
        client_error("Throttling"),
        client_error("AccessDenied"),
        EndpointConnectionError(endpoint_url="https://monitoring"),
        ReadTimeoutError(endpoint_url="https://monitoring"),
        NoCredentialsError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failure_is_returned_not_raised(error: Exception) -> None:
    data = (datum(2),)
    unsent = sink(Calls(error)).send(data, at_us=START_US)
    assert unsent is not None
    assert unsent.data == data
    assert type(error).__name__ in unsent.why


def test_what_went_before_the_failure_is_not_returned() -> None:
    data = [datum(1, of=f"t{n}") for n in range(2001)]
    unsent = sink(Calls(None, client_error("Throttling"))).send(data, at_us=START_US)
    assert unsent is not None
    assert [one.of for one in unsent.data] == [f"t{n}" for n in range(1000, 2001)]


def publisher(calls: Calls, meter: Meter, clock: FakeClock) -> Publisher:
    return Publisher(meter, sink(calls), clock=clock)


def test_what_failed_goes_later_with_its_own_time() -> None:
    meter, clock, calls = Meter(), FakeClock(), Calls(client_error("Throttling"))
    publishing = publisher(calls, meter, clock)
    for rows in (1, 2):
        meter.add(metrics.PIPELINE_MESSAGES, "etl", rows)
        publishing.publish()
        clock.advance(60)
    assert [(entry["Values"], entry["Timestamp"]) for entry in calls.entries] == [
        ((1,), AT),
        ((2,), AT + timedelta(seconds=60)),
    ]


def test_after_a_failure_in_the_middle_nothing_goes_twice() -> None:
    meter, clock = Meter(), FakeClock()
    calls = Calls(None, client_error("Throttling"))
    publishing = publisher(calls, meter, clock)
    for n in range(1500):
        meter.add(metrics.PRODUCED_MESSAGES, f"t{n}", 1)
    publishing.publish()
    publishing.publish()
    names = [entry["Dimensions"][0]["Value"] for entry in calls.entries]
    assert names == [f"t{n}" for n in range(1500)]


def test_of_a_long_outage_the_last_periods_are_retained() -> None:
    meter, clock, calls = Meter(), FakeClock(), Calls(*[client_error("AccessDenied")] * 100)
    publishing = publisher(calls, meter, clock)
    for minute in range(100):
        meter.add(metrics.PIPELINE_MESSAGES, "etl", minute)
        publishing.publish()
    publishing.publish()
    assert [entry["Values"][0] for entry in calls.entries] == list(range(100 - MAX_WAITING, 100))


def test_failures_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    meter, clock, calls = Meter(), FakeClock(), Calls(*[client_error("AccessDenied")] * 100)
    publishing = publisher(calls, meter, clock)
    meter.add(metrics.PIPELINE_MESSAGES, "etl", 1)
    for _ in range(13):  # ten seconds apart: at 0, 60 and 120
        publishing.publish()
        clock.advance(10)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 3
    assert "AccessDenied" in warnings[0]
    assert f"1 of at most {MAX_WAITING} periods wait" in warnings[0]


# The thread


class Notes:
    """A sink that says when it was called; the first calls raise."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.sent: list[Datum] = []
        self.called = threading.Semaphore(0)

    def send(self, data: Sequence[Datum], *, at_us: int) -> Unsent | None:
        self.called.release()
        if self.failures:
            self.failures -= 1
            raise ZeroDivisionError
        self.sent += data
        return None


def test_closing_sends_what_is_left() -> None:
    meter, notes = Meter(), Notes()
    with Publisher(meter, notes, period_s=3600):
        meter.add(metrics.PIPELINE_MESSAGES, "etl", 7)
    assert [one.values for one in notes.sent] == [(7,)]


def test_a_mistake_in_a_sink_loses_one_period_and_not_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    meter, notes = Meter(), Notes(failures=1)
    with Publisher(meter, notes, period_s=0.001):
        meter.add(metrics.PIPELINE_MESSAGES, "etl", 1)
        assert notes.called.acquire(timeout=10)
        meter.add(metrics.PIPELINE_MESSAGES, "etl", 2)
        assert notes.called.acquire(timeout=10)
    assert [one.values for one in notes.sent] == [(2,)]
    assert "ZeroDivisionError" in caplog.text


def test_a_sink_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudwatch, "CLOSE_WITHIN_S", 0.01)
    released = threading.Event()

    class Hanging:
        def send(self, data: Sequence[Datum], *, at_us: int) -> Unsent | None:
            released.wait(60)
            return None

    meter = Meter()
    meter.add(metrics.PIPELINE_MESSAGES, "etl", 1)
    publishing = Publisher(meter, Hanging(), period_s=3600).start()
    begun = time.monotonic()
    publishing.close()
    taken = time.monotonic() - begun
    released.set()
    assert taken < 30


# Files


LINE = {
    "at": "2027-01-15T08:00:00+00:00",
    "metric": "PipelineMessages",
    "pipeline": "etl",
    "unit": "Count",
    "values": [7],
    "counts": [2.0],
}
SEVEN = Datum(metrics.PIPELINE_MESSAGES, "etl", (7,), (2.0,))


def test_a_file_gets_a_line_for_each_datum_and_keeps_the_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    for _ in range(2):
        assert JsonLinesSink(path).send([SEVEN], at_us=START_US) is None
    assert [json.loads(line) for line in path.read_text().splitlines()] == [LINE, LINE]


def test_a_stream_gets_the_same_and_stays_open() -> None:
    out = io.StringIO()
    assert JsonLinesSink(out).send([SEVEN], at_us=START_US) is None
    assert json.loads(out.getvalue()) == LINE


def test_a_file_that_cannot_be_written_is_a_failure_like_any(tmp_path: Path) -> None:
    unsent = JsonLinesSink(tmp_path).send([SEVEN], at_us=START_US)
    assert unsent is not None
    assert unsent.data == (SEVEN,)
    assert "IsADirectoryError" in unsent.why


def test_a_file_needs_no_boto3(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["boto3"] = sys.modules["botocore"] = None
from pathlib import Path
from brokerless import metrics
from brokerless.aws.cloudwatch import JsonLinesSink, Publisher
meter = metrics.Meter()
with Publisher(meter, JsonLinesSink(Path({str(tmp_path)!r}) / "m")):
    meter.add(metrics.RESTARTS, "etl", 1)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert "Restarts" in (tmp_path / "m").read_text()
