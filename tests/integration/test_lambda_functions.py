"""The functions maintenance, canary and topics as Lambda calls them: environment, real tables, what they print."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from brokerless import Consumer, Producer, Schema, Settings, create_topic, describe_topic, list_topics, open_store
from brokerless.aws.environment import CanaryEnvironment, Environment, MaintenanceEnvironment, TopicsEnvironment
from brokerless.errors import BrokerlessError, ConfigError, StoreUnavailable, TopicExists, TopicNotFound
from brokerless.examples.timezone.messages import INPUT_SCHEMA, input_schema, unified_schema
from brokerless.maintenance.maintainer import ROUND_PATH, Maintainer
from brokerless.topics import create_dead_letters
from tests.support.fakes import FakeClock, FakeStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from brokerless.store import Store

COMMON = {"stage": "dev", "metrics_namespace": "Brokerless/dev"}
N = Schema.parse("n long")


@dataclass
class Context:
    """What the functions ask of Lambda's context."""

    remaining_s: float = 300
    function_name: str = "f"
    memory_limit_in_mb: int = 256
    invoked_function_arn: str = "arn:aws:lambda:us-east-1:123456789012:function:f"
    aws_request_id: str = "request"

    def get_remaining_time_in_millis(self) -> int:
        return int(self.remaining_s * 1000)


@pytest.fixture
def settings(embedded_settings: Settings) -> Settings:
    """An empty root of this test's own."""
    return dataclasses.replace(embedded_settings, root=f"{embedded_settings.root}/{uuid.uuid4().hex}")


@pytest.fixture
def store(settings: Settings) -> Store:
    return open_store(settings)


@pytest.fixture
def load(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Environment], Any]]:
    """Starts a function cold: its module is imported anew with the environment that it is deployed with."""
    names: list[str] = []

    def load_one(name: str, environment: Environment) -> Any:
        # A logger lives as long as its name, and writes to the standard output of its first test.
        variables = {**settings.to_environ(), **environment.to_environ(), "POWERTOOLS_SERVICE_NAME": uuid.uuid4().hex}
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        names.append(f"lambdas.{name}.handler")
        sys.modules.pop(names[-1], None)
        return importlib.import_module(names[-1])

    yield load_one
    for name in names:
        sys.modules.pop(name, None)


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The log lines and the metrics that a function printed."""
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    (metrics,) = [line for line in lines if "_aws" in line] or [{}]
    return [line for line in lines if "_aws" not in line], metrics


def declared(metrics: dict[str, Any]) -> tuple[str, list[list[str]], dict[str, str]]:
    """The namespace, the dimension sets, and the units by name."""
    (entry,) = metrics["_aws"]["CloudWatchMetrics"]
    return entry["Namespace"], entry["Dimensions"], {metric["Name"]: metric["Unit"] for metric in entry["Metrics"]}


# The canary


@pytest.fixture
def example(settings: Settings, store: Store) -> Settings:
    create_topic(store, "in", input_schema())
    create_topic(store, "out", unified_schema())
    create_dead_letters(store, "out", [input_schema()])
    return settings


def canary_environment(settings: Settings, timeout_s: float) -> CanaryEnvironment:
    return CanaryEnvironment(
        **COMMON, root=settings.root, topic="in", output="out", pipeline="etl", timeout_s=timeout_s
    )


def play_pipeline(settings: Settings, target: str, ready: threading.Event, extra: dict[str, Any]) -> None:
    """Takes one message from the input to a topic."""
    with Consumer("in", settings=settings) as consumer, Producer(target, settings=settings) as producer:
        ready.set()
        (batch,) = consumer.poll(30)
        producer.send([{"message": batch.data.column("message").to_pylist()[0], **extra}])


@pytest.mark.parametrize("runs", [1, 3])
def test_the_canary_sees_its_message(
    load: Callable[[str, Environment], Any], example: Settings, capsys: pytest.CaptureFixture[str], runs: int
) -> None:
    function = load("canary", canary_environment(example, 20))
    for _ in range(runs):
        ready = threading.Event()
        pipeline = threading.Thread(target=play_pipeline, args=(example, "out", ready, {"timestamp": 1.0}))
        pipeline.start()
        assert ready.wait(20)
        answer = function.handler({}, Context())
        pipeline.join(20)
        assert 0 < answer["latency_s"] < 20
        (log,), metrics = printed(capsys)
        assert declared(metrics) == (
            "Brokerless/dev",
            [["Pipeline"]],
            {"CanaryMissing": "Count", "CanaryLatency": "Seconds"},
        )
        assert (metrics["Pipeline"], metrics["CanaryMissing"]) == ("etl", [0])
        assert metrics["CanaryLatency"] == [answer["latency_s"]]
        assert (log["level"], log["canary"]) == ("INFO", answer["text"])
        assert log["requests"]["PUT"] == 2
        assert log["usd"] > 0


def test_the_canary_reports_a_dead_letter_as_missing(
    load: Callable[[str, Environment], Any], example: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    function = load("canary", canary_environment(example, 2))
    ready = threading.Event()
    extra = {"_reason": "no date", "_topic": "in", "_partition": 0, "_offset": "1:0"}
    pipeline = threading.Thread(target=play_pipeline, args=(example, "out.dead_letters", ready, extra))
    pipeline.start()
    assert ready.wait(20)
    answer = function.handler({}, Context())
    pipeline.join(20)
    assert (answer["latency_s"], answer["dead_letter"]) == (None, "no date")
    (log,), metrics = printed(capsys)
    assert log["level"] == "ERROR"
    assert "no date" in log["message"]
    assert metrics["CanaryMissing"] == [1]
    assert "CanaryLatency" not in metrics


def test_the_canary_gives_up_before_the_function_is_killed(
    load: Callable[[str, Environment], Any], example: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    function = load("canary", canary_environment(example, 500))
    assert function.handler({}, Context(remaining_s=function.RESERVE_S + 0.1))["latency_s"] is None
    assert printed(capsys)[1]["CanaryMissing"] == [1]


def test_a_canary_that_cannot_send_counts_as_missing(
    load: Callable[[str, Environment], Any], settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    function = load("canary", canary_environment(settings, 5))
    with pytest.raises(TopicNotFound):
        function.handler({}, Context())
    metrics = printed(capsys)[1]
    assert metrics["CanaryMissing"] == [1]
    assert declared(metrics)[1] == [["Pipeline"]]


# Maintenance


def maintenance_environment(settings: Settings, grace_s: float = 3600) -> MaintenanceEnvironment:
    return MaintenanceEnvironment(
        **COMMON, root=settings.root, log_retention_s=7 * 86400, grace_s=grace_s, sweep_every_s=900
    )


def test_maintenance_does_its_work_and_reports_it(
    load: Callable[[str, Environment], Any],
    settings: Settings,
    store: Store,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create_topic(store, "a", N, partitions=2)
    with Producer("a", partition=1, settings=settings) as producer:
        for n in range(5):
            producer.send([{"n": n}])
    store.put("a/part-orphan.00000000.snappy.parquet", b"1234567")
    store.put("b/rubbish", b"x")
    function = load("maintenance", maintenance_environment(settings))
    hurried = Maintainer(settings=settings, checkpoint_every=5, grace_s=0, unsafe_no_minimum=True)
    monkeypatch.setattr(function, "MAINTAINER", hurried)
    assert function.handler({}, Context()) == {"tables": 3, "bytes_removed": 7, "skipped": 1}
    logs, metrics = printed(capsys)
    assert [(log["table"], log["level"]) for log in logs] == [("a", "INFO"), ("a.1", "INFO"), ("b", "WARNING")]
    assert (logs[0]["objects_removed"], logs[1]["checkpoint"], logs[2]["skipped"]) == (1, 5, ["no table"])
    assert declared(metrics) == (
        "Brokerless/dev",
        [["Stage"]],
        {"BytesRemoved": "Bytes", "MaintenanceSkipped": "Count"},
    )
    assert (metrics["Stage"], metrics["BytesRemoved"], metrics["MaintenanceSkipped"]) == ("dev", [7], [1])
    assert store.exists("a.1/_delta_log/_last_checkpoint")


def test_maintenance_refuses_times_that_are_not_safe_when_it_starts(
    load: Callable[[str, Environment], Any], settings: Settings
) -> None:
    with pytest.raises(ConfigError, match="got 604800 and 60"):
        load("maintenance", maintenance_environment(settings, grace_s=60))


def test_an_incomplete_environment_stops_the_cold_start(
    load: Callable[[str, Environment], Any], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BROKERLESS_GRACE_S", raising=False)
    with pytest.raises(ConfigError, match="BROKERLESS_GRACE_S is not set"):
        load("maintenance", TopicsEnvironment(**COMMON, root=settings.root))


def test_maintenance_with_little_time_takes_a_table_a_run_in_turn(
    load: Callable[[str, Environment], Any], settings: Settings, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(store, "a", N)
    create_topic(store, "b", N)
    function = load("maintenance", maintenance_environment(settings))
    tables: list[str] = []
    for _ in range(4):
        assert function.handler({}, Context(remaining_s=function.RESERVE_S))["tables"] == 1
        tables += [log["table"] for log in printed(capsys)[0]]
    assert tables == ["a", "b", "a", "b"]


def test_maintenance_that_fails_counts_as_skipped(
    load: Callable[[str, Environment], Any], settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = dataclasses.replace(maintenance_environment(settings), root="s3://no-such-bucket")
    function = load("maintenance", environment)
    with pytest.raises(BrokerlessError):
        function.handler({}, Context())
    assert printed(capsys)[1]["MaintenanceSkipped"] == [1]


# The rounds of maintenance, on a clock that stands still


@pytest.fixture
def memory() -> FakeStore:
    store = FakeStore(FakeClock())
    for name in ("a", "b", "c"):
        create_topic(store, name, N, clock=store.clock)
        store.put(f"{name}/part-orphan.00000000.snappy.parquet", b"x")
    advance(store, 7200)
    return store


def advance(store: FakeStore, seconds: float) -> None:
    assert isinstance(store.clock, FakeClock)
    store.clock.advance(seconds)


def run_round(store: FakeStore, *, tables: int = 99) -> list[tuple[str, int]]:
    """A run that has time for so many tables: which they were, and how many orphans each lost."""
    maintainer = Maintainer(store=store, clock=store.clock, checkpoint_every=10**9)
    until_s = store.clock.monotonic() + tables - 0.5
    found: list[tuple[str, int]] = []
    for report in maintainer.run_round(until_s=until_s, garbage_every_s=900):
        found.append((report.table, report.objects_removed))
        advance(store, 1)
        assert not report.skipped
    return found


def test_a_round_that_is_cut_goes_on_and_collects_on(memory: FakeStore) -> None:
    assert run_round(memory, tables=2) == [("a", 1), ("b", 1)]
    advance(memory, 300)
    assert run_round(memory, tables=2) == [("c", 1)]
    advance(memory, 300)
    assert run_round(memory, tables=2) == [("a", 0), ("b", 0)]


def test_a_table_that_comes_or_goes_in_the_middle_of_a_round_changes_no_other_turn(memory: FakeStore) -> None:
    run_round(memory, tables=2)
    create_topic(memory, "bb", N, clock=memory.clock)
    memory.delete([path for path in memory.objects if path.startswith("b/")])
    assert [table for table, _ in run_round(memory)] == ["bb", "c"]


def test_orphans_are_looked_for_only_when_it_is_time(memory: FakeStore) -> None:
    collected: list[int] = []
    for _ in range(7):  # each five minutes, a few seconds early
        collected.append(sum(objects for _, objects in run_round(memory)))
        memory.put("a/part-orphan.00000000.snappy.parquet", b"x")
        memory.modified["a/part-orphan.00000000.snappy.parquet"] -= 7200
        advance(memory, 295)
    assert collected == [3, 0, 0, 1, 0, 0, 1]


def test_a_table_that_kills_the_run_does_not_keep_the_others_from_their_turn(memory: FakeStore) -> None:
    seen: list[str] = []
    for _ in range(3):
        rounds = Maintainer(store=memory, clock=memory.clock).run_round(garbage_every_s=900)
        for report in rounds:
            seen.append(report.table)
            if report.table == "b":
                rounds.close()  # what a killed function leaves: no position is stored after the first
    assert seen == ["a", "b", "b", "c"]


def test_a_step_that_takes_too_long_is_cut_and_the_next_table_comes_first(memory: FakeStore) -> None:
    maintainer = Maintainer(store=memory, clock=memory.clock)
    until_s = memory.clock.monotonic() + 1
    memory.on_get = lambda path: advance(memory, 1)  # each read of a log takes a second
    (report,) = maintainer.run_round(until_s=until_s, garbage_every_s=900)
    assert (report.table, report.objects_removed) == ("a", 0)
    assert "orphans: the time of the run ended after 0" in report.skipped[0]
    assert "a/part-orphan.00000000.snappy.parquet" in memory.objects
    memory.on_get = None
    assert run_round(memory) == [("b", 1), ("c", 1)]


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"after": 1}', b"\xff"])
def test_a_damaged_position_means_a_round_from_the_start(memory: FakeStore, damage: bytes) -> None:
    run_round(memory, tables=2)
    memory.put(ROUND_PATH, damage)
    assert [table for table, _ in run_round(memory)] == ["a", "b", "c"]


def test_a_position_that_cannot_be_stored_stops_before_anything_is_done(
    memory: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, data: bytes) -> None:
        raise StoreUnavailable(path)

    monkeypatch.setattr(memory, "put", refuse)
    with pytest.raises(StoreUnavailable):
        run_round(memory)
    assert "a/part-orphan.00000000.snappy.parquet" in memory.objects


def test_a_root_without_tables_costs_two_requests(store: Store) -> None:
    maintainer = Maintainer(store=store)
    store.requests.clear()
    assert list(maintainer.run_round()) == []
    assert dict(store.requests) == {"GET": 1, "LIST": 1}


# Topics


def topics_event(kind: str, *topics: dict[str, Any], old: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    event: dict[str, Any] = {
        "RequestType": kind,
        "ResourceProperties": {"ServiceToken": "arn:aws:lambda:x", "Topics": list(topics)},
        "LogicalResourceId": "Topics",
        "ResourceType": "Custom::Topics",
    }
    if kind != "Create":
        event["PhysicalResourceId"] = "topics"
    if old is not None:
        event["OldResourceProperties"] = {"Topics": old}
    return event


def test_the_topics_resource_lives_and_dies_without_losing_a_topic(
    load: Callable[[str, Environment], Any], settings: Settings, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    function = load("topics", TopicsEnvironment(**COMMON, root=settings.root))
    given = {"Name": "in", "Schema": INPUT_SCHEMA, "Partitions": "2"}
    output = {"Name": "out", "Schema": "n long", "DeadLettersOf": ["in"]}
    answer = function.handler(topics_event("Create", given, output), Context())
    assert answer == {"PhysicalResourceId": f"topics:{settings.root}", "Data": {"Topics": "3"}}
    assert [topic.name for topic in list_topics(store)] == ["in", "out", "out.dead_letters"]
    assert describe_topic(store, "in").partitions == 2
    with Producer("in", settings=settings) as producer:
        producer.send([{"date": "x", "message": "y"}])

    with pytest.raises(TopicExists, match="exists with the schema"):
        function.handler(topics_event("Update", {**output, "Schema": "n double"}, old=[given, output]), Context())
    capsys.readouterr()
    function.handler(topics_event("Update", output, old=[given, output]), Context())
    assert [log["topics"] for log in printed(capsys)[0] if log["level"] == "WARNING"] == [["in"]]
    assert function.handler(topics_event("Delete", output), Context()) == {"PhysicalResourceId": "topics"}
    assert sum(describe_topic(store, "in").heads) == 1  # the message is still there
