"""Topics as a whole, against a store in memory."""

from __future__ import annotations

import pytest

from brokerless.admin import create_dead_letters, create_topic, delete_topic, describe_topic, list_topics
from brokerless.errors import ConditionalPutUnsupported, ConfigError, TopicDeleted, TopicExists, TopicNotFound
from brokerless.log import DeltaLog
from brokerless.producer import Producer
from brokerless.topics import Schema
from tests.support.fakes import FakeClock, FakeStore, Put

SCHEMA = Schema.parse("n long")


@pytest.fixture
def store() -> FakeStore:
    return FakeStore(FakeClock())


def create(store: FakeStore, topic: str = "t", schema: Schema = SCHEMA, **more: int) -> None:
    create_topic(store, topic, schema, clock=store.clock, **more)  # type: ignore[arg-type]


def test_a_topic_exists_though_it_is_empty(store: FakeStore) -> None:
    create(store)
    with pytest.raises(TopicExists, match="exists already"):
        create(store)
    create(store, exist_ok=True)


@pytest.mark.parametrize("exist_ok", [True, False])
def test_a_topic_that_differs_is_refused(store: FakeStore, exist_ok: bool) -> None:
    create(store)
    with pytest.raises(TopicExists, match="schema 'n long', not 's string'"):
        create(store, schema=Schema.parse("s string"), exist_ok=exist_ok)
    with pytest.raises(TopicExists, match="1 partitions, not 2"):
        create(store, partitions=2, exist_ok=exist_ok)


def test_a_creation_that_crashed_half_way_is_finished_by_the_same_call(store: FakeStore) -> None:
    DeltaLog(store, "t.1", clock=store.clock).create(
        schema_string=SCHEMA.to_delta(), configuration={"brokerless.partitions": "2"}
    )
    with pytest.raises(TopicNotFound):
        describe_topic(store, "t", clock=store.clock)
    create(store, partitions=2)
    assert describe_topic(store, "t", clock=store.clock).heads == (0, 0)


def test_no_topic_is_opened_half_as_it_was_and_half_as_it_was_created_again(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store, partitions=2)
    get, begun = store.get, []

    def recreated_in_between(path: str, **_: object) -> bytes:
        if path.startswith("t.1/") and not begun:
            begun.append(path)
            delete_topic(store, "t", clock=store.clock)
            create(store, partitions=2)
        return get(path)

    monkeypatch.setattr(store, "get", recreated_in_between)
    # A producer of both would be told that the new partition 1 has sequence 0, which only the old one had.
    with Producer("t", producer_id="p", store=store, clock=store.clock) as producer:  # type: ignore[arg-type]
        assert [not ack.duplicate for sequence in (0, 1) for ack in producer.send({"n": [1]}, sequence=sequence)] == [
            True,
            True,
        ]
    assert describe_topic(store, "t", clock=store.clock).heads == (4, 4)


def test_list_describe_delete(store: FakeStore) -> None:
    create(store, "b", partitions=2)
    create(store, "a")
    store.put("photos/cat.jpg", b"x")
    assert [(topic.name, topic.partitions) for topic in list_topics(store, clock=store.clock)] == [("a", 1), ("b", 2)]
    delete_topic(store, "b", clock=store.clock)
    assert [topic.name for topic in list_topics(store, clock=store.clock)] == ["a"]
    for call in (describe_topic, delete_topic):
        with pytest.raises(TopicNotFound, match="topics create b"):
            call(store, "b", clock=store.clock)


@pytest.mark.parametrize("partitions", [0, 1025])
def test_impossible_numbers_of_partitions(store: FakeStore, partitions: int) -> None:
    with pytest.raises(ConfigError):
        create(store, partitions=partitions)
    assert store.objects == {}


def test_a_store_that_lets_commits_overwrite_each_other_is_refused(store: FakeStore) -> None:
    store.puts = [Put("created"), Put("created")]
    with pytest.raises(ConditionalPutUnsupported):
        create(store)
    assert store.objects == {}


def test_dead_letters_have_the_columns_of_all_inputs(store: FakeStore) -> None:
    topic = create_dead_letters(store, "out", [SCHEMA, Schema.parse("n long, s string")], clock=store.clock)
    assert topic.name == "out.dead_letters"
    assert str(topic.schema) == "n long, s string, _reason string, _topic string, _partition integer, _offset string"


def test_a_deletion_that_crashed_is_finished_and_nothing_of_the_old_topic_comes_back(store: FakeStore) -> None:
    create_topic(store, "a", SCHEMA, partitions=3, clock=store.clock)
    DeltaLog(store, "a.2", clock=store.clock).delete()  # as far as the call got
    with pytest.raises(TopicNotFound, match="half deleted"):
        describe_topic(store, "a", clock=store.clock)
    assert list_topics(store, clock=store.clock) == []
    with pytest.raises(TopicExists, match="half deleted"):
        create_topic(store, "a", SCHEMA, partitions=3, exist_ok=True, clock=store.clock)
    delete_topic(store, "a", clock=store.clock)
    for table in ("a", "a.1", "a.2"):
        with pytest.raises(TopicDeleted):
            DeltaLog(store, table, clock=store.clock).refresh()
    create_topic(store, "a", SCHEMA, partitions=3, clock=store.clock)
