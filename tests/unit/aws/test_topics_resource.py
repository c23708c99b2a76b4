"""The custom resource that creates topics: what CloudFormation sends, and what it gets."""

from __future__ import annotations

from typing import Any

import pytest

from brokerless.aws.topic_request import TopicRequest
from brokerless.aws.topics_resource import PATIENCE_S, on_event
from brokerless.errors import AccessDenied, BrokerlessError, ConfigError, SchemaError, TopicExists, TopicNotFound
from brokerless.schema import Schema
from brokerless.topics import create_topic, describe_topic, list_topics
from tests.support.fakes import FakeClock, FakeStore, Put

A = {"Name": "a", "Schema": "date string, message string"}
B = {"Name": "b", "Schema": "n long", "Partitions": "2"}
OUT = {"Name": "out", "Schema": "x double", "Partitions": "1", "DeadLettersOf": ["a", "b"]}


@pytest.fixture
def store() -> FakeStore:
    return FakeStore(FakeClock())


def ask(store: FakeStore, kind: str, *topics: Any, old: list[Any] | None = None) -> Any:
    event: dict[str, Any] = {
        "RequestType": kind,
        "ResourceProperties": {"ServiceToken": "arn:x", "Topics": list(topics)},
    }
    if kind != "Create":
        event["PhysicalResourceId"] = "id-1"
    if old is not None:
        event["OldResourceProperties"] = {"ServiceToken": "arn:x", "Topics": old}
    return on_event(event, store, clock=store.clock)


def names(store: FakeStore) -> list[str]:
    return [topic.name for topic in list_topics(store, clock=store.clock)]


def test_create_makes_topics_and_dead_letters(store: FakeStore) -> None:
    answer, outcome = ask(store, "Create", OUT, A, B)  # in any order
    assert answer == {"PhysicalResourceId": "topics:memory://fake", "Data": {"Topics": "4"}}
    assert outcome.ready == ("out", "a", "b", "out.dead_letters")
    assert names(store) == ["a", "b", "out", "out.dead_letters"]
    b = describe_topic(store, "b", clock=store.clock)
    assert (str(b.schema), b.partitions) == ("n long", 2)
    assert str(describe_topic(store, "out.dead_letters", clock=store.clock).schema) == (
        "date string, message string, n long, _reason string, _topic string, _partition integer, _offset string"
    )


def test_the_same_again_changes_nothing(store: FakeStore) -> None:
    ask(store, "Create", A, B, OUT)
    before = dict(store.objects)
    answer, outcome = ask(store, "Update", A, B, OUT, old=[A, B, OUT])
    assert answer["PhysicalResourceId"] == "id-1"
    assert outcome.left == ()
    assert store.objects == before


def test_an_update_adds_topics_and_leaves_those_no_longer_asked_for(store: FakeStore) -> None:
    ask(store, "Create", A, B)
    _, outcome = ask(store, "Update", B, {"Name": "c", "Schema": "n long"}, old=[A, B])
    assert (outcome.ready, outcome.left) == (("b", "c"), ("a",))
    assert names(store) == ["a", "b", "c"]


def test_delete_deletes_nothing(store: FakeStore) -> None:
    ask(store, "Create", A, B)
    before = dict(store.objects)
    answer, outcome = ask(store, "Delete", A, B)
    assert answer == {"PhysicalResourceId": "id-1"}
    assert (outcome.ready, outcome.left) == ((), ("a", "b"))
    assert store.objects == before


def test_delete_succeeds_with_properties_that_were_never_good(store: FakeStore) -> None:
    assert ask(store, "Delete", "rubbish", {"Nome": "a"}, {"Name": "b"})[1].left == ("b",)
    assert on_event({"RequestType": "Delete", "ResourceProperties": {}}, store)[1].left == ()


@pytest.mark.parametrize(
    ("wanted", "says"),
    [({"Name": "a", "Schema": "n long"}, "exists with the schema"), ({**A, "Partitions": "3"}, "1 partitions, not 3")],
)
def test_a_topic_that_differs_fails_and_says_how(store: FakeStore, wanted: dict[str, Any], says: str) -> None:
    ask(store, "Create", A)
    with pytest.raises(TopicExists, match=says):
        ask(store, "Update", wanted, old=[A])


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ("a", ConfigError),
        ({"Name": "x"}, ConfigError),
        ({**A, "Partition": "2"}, ConfigError),
        ({**A, "Name": "x", "Partitions": "two"}, ConfigError),
        ({**A, "Name": "x", "DeadLettersOf": "a"}, ConfigError),
        ({**A, "Name": "x/y"}, ConfigError),
        ({"Name": "x", "Schema": "n longer"}, SchemaError),
        (B, ConfigError),  # twice
    ],
)
def test_nothing_is_created_if_one_of_them_cannot_be_read(
    store: FakeStore, bad: Any, error: type[BrokerlessError]
) -> None:
    with pytest.raises(error):
        ask(store, "Create", B, bad)
    assert not store.objects


@pytest.mark.parametrize("topics", [None, [], "a"])
def test_no_topics_at_all_is_a_mistake(store: FakeStore, topics: Any) -> None:
    with pytest.raises(ConfigError, match="property Topics"):
        on_event({"RequestType": "Create", "ResourceProperties": {"Topics": topics}}, store, clock=store.clock)


@pytest.mark.parametrize("partitions", [3, "3"])
def test_numbers_may_come_as_texts(partitions: Any) -> None:
    assert TopicRequest.from_properties({**A, "Partitions": partitions}).partitions == 3


def test_inputs_that_are_not_asked_for_are_taken_as_they_are(store: FakeStore) -> None:
    create_topic(store, "elsewhere", Schema.parse("k string"), clock=store.clock)
    ask(store, "Create", {**OUT, "DeadLettersOf": ["elsewhere"]})
    assert describe_topic(store, "out.dead_letters", clock=store.clock).schema.names[0] == "k"


def test_dead_letters_of_an_unknown_input_fail(store: FakeStore) -> None:
    with pytest.raises(TopicNotFound, match="'nowhere'"):
        ask(store, "Create", {**OUT, "DeadLettersOf": ["nowhere"]})


def test_a_policy_that_is_not_in_force_yet_is_waited_for(store: FakeStore) -> None:
    store.puts = [Put(AccessDenied("refused"), applied=False) for _ in range(3)]
    ask(store, "Create", A)
    assert names(store) == ["a"]
    assert 0 < sum(store.clock.slept) < PATIENCE_S  # type: ignore[attr-defined]


def test_a_refusal_that_stays_fails(store: FakeStore) -> None:
    store.puts = [Put(AccessDenied("refused"), applied=False) for _ in range(500)]
    with pytest.raises(AccessDenied):
        ask(store, "Create", A)
    assert PATIENCE_S <= sum(store.clock.slept) < PATIENCE_S + 10  # type: ignore[attr-defined]
