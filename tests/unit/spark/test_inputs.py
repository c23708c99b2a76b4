"""Where a run with an end stops."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from brokerless.clock import SYSTEM
from brokerless.errors import ConfigError, OffsetOutOfRange
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.spark.exact import parse_versions
from brokerless.spark.inputs import open_inputs
from brokerless.spark.messages import until_option
from brokerless.spark.runner import RunOptions
from brokerless.topics import create_topic
from tests.support.fakes import FakeStore


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore(SYSTEM)  # type: ignore[arg-type]
    for name, partitions in (("one", 1), ("two", 2)):
        create_topic(store, name, Schema.parse("n long"), partitions=partitions)
        for number in range(partitions):
            with Producer(name, store=store, partition=number) as producer:
                for n in range(4):
                    producer.send([{"n": n}])
    return store


def end(store: FakeStore, until: str, topic: str = "one", **more: Any) -> dict[str, int] | None:
    return open_inputs(store, {"topics": topic, "until": until, **more}).until


def test_a_run_ends_before_its_position(store: FakeStore) -> None:
    assert end(store, "3:0") == {"one": 2}
    assert end(store, "5:0") == {"one": 4}
    assert end(store, "now") == end(store, "latest") == {"one": 4}
    assert end(store, datetime.now(UTC).isoformat(), "two") == {"two": 4, "two.1": 4}
    assert end(store, "2020-01-01T00:00:00+00:00", "two") == {"two": 0, "two.1": 0}
    assert end(store, "") is None


def test_an_end_that_cannot_be_is_refused(store: FakeStore) -> None:
    with pytest.raises(OffsetOutOfRange):
        end(store, "9:0")
    with pytest.raises(ConfigError, match="Several tables cannot end at the offset 3:0"):
        end(store, "3:0", "two")
    for text, says in (("3:1", "whole commits"), ("beginning", "got beginning"), ("9999-01-01T00:00:00Z", "not come")):
        with pytest.raises(ConfigError, match=says):
            until_option(text)
        with pytest.raises(ConfigError, match=says):
            RunOptions(until=text)
    assert RunOptions(until="now").has_end
    assert not RunOptions().has_end


def test_commits_are_named_by_topic_partition_and_versions() -> None:
    assert parse_versions(["a.b/0=1:2", "a.b/1=3:3"]) == {("a.b", 0): (1, 2), ("a.b", 1): (3, 3)}
    for wrong in ("a=1:2", "a/0=2:1", "a/0=1", "a/x=1:2"):
        with pytest.raises(ConfigError, match="does not name commits"):
            parse_versions([wrong])
    with pytest.raises(ConfigError, match="once for each partition"):
        parse_versions(["a/0=1:2", "a/0=3:4"])
