"""Topics as a whole, against a store in memory."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from brokerless.errors import (
    ConditionalPutUnsupported,
    ConfigError,
    StoreUnavailable,
    TopicDeleted,
    TopicExists,
    TopicNotFound,
)
from brokerless.log.entries import PARTITIONS_KEY, Metadata, Protocol, build_entry
from brokerless.log.log import DeltaLog
from brokerless.log.probe import check_conditional_put
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.topics import (
    BrokenTopic,
    create_dead_letters,
    create_topic,
    delete_topic,
    describe_topic,
    list_topics,
    survey_topics,
)
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


def create_half(store: FakeStore, partitions: int = 2) -> None:
    """As far as a crash lets it get."""
    DeltaLog(store, f"t.{partitions - 1}", clock=store.clock).create(
        schema_string=SCHEMA.to_delta(), configuration={PARTITIONS_KEY: str(partitions)}
    )


def problems(store: FakeStore) -> dict[str, str]:
    return {t.name: t.problem for t in survey_topics(store, clock=store.clock) if isinstance(t, BrokenTopic)}


def test_a_creation_that_crashed_half_way_is_finished_by_the_same_call(store: FakeStore) -> None:
    create_half(store)
    with pytest.raises(TopicNotFound, match=r'half created.*topics create t --schema "n long" --partitions 2'):
        describe_topic(store, "t", clock=store.clock)
    assert "half created: 1 of 2 partitions" in problems(store)["t"]
    create(store, partitions=2)
    assert describe_topic(store, "t", clock=store.clock).heads == (0, 0)
    assert problems(store) == {}


@pytest.mark.parametrize("before", [False, True], ids=["new", "after a deleted one"])
def test_a_creation_that_crashed_half_way_can_be_undone_for_another(store: FakeStore, before: bool) -> None:
    if before:
        create(store, partitions=3)
        delete_topic(store, "t", clock=store.clock)
    create_half(store, 3)
    with pytest.raises(TopicExists, match=r"half created.*topics delete t"):
        create(store, schema=Schema.parse("s string"), partitions=3)
    delete_topic(store, "t", clock=store.clock)
    with pytest.raises(TopicNotFound, match="There is no topic 't'"):
        delete_topic(store, "t", clock=store.clock)
    create(store, schema=Schema.parse("s string"), partitions=3)


def test_a_refused_creation_leaves_nothing_and_a_deletion_takes_what_others_left(store: FakeStore) -> None:
    create(store)
    with pytest.raises(TopicExists):
        create(store, partitions=3)
    assert "t.2" not in store.folders()
    create_half(store, 3)
    delete_topic(store, "t", clock=store.clock)
    with pytest.raises(TopicDeleted):
        DeltaLog(store, "t.2", clock=store.clock).refresh()


def test_another_table_with_a_number_is_left_alone(store: FakeStore) -> None:
    create(store)
    foreign = build_entry(
        commit_id="c",
        timestamp_ms=1,
        operation="CREATE TABLE",
        engine="other/1",
        metadata=Metadata("id", SCHEMA.to_delta()),
        protocol=Protocol(1, 2),
    )
    store.put("t.7/_delta_log/00000000000000000000.json", foreign)
    delete_topic(store, "t", clock=store.clock)
    assert DeltaLog(store, "t.7", clock=store.clock).head() == 0
    assert survey_topics(store, clock=store.clock) == []


@pytest.mark.parametrize("lost", ["t", "t.1"])
def test_a_partition_whose_log_is_lost_is_not_created_anew(store: FakeStore, lost: str) -> None:
    """Its messages are acknowledged, and a restore may bring them back."""
    create(store, partitions=2)
    for table in ("t", "t.1"):
        DeltaLog(store, table, clock=store.clock).append([], {"a": 1})
    store.delete([path for path in store.objects if path.startswith(f"{lost}/")])
    for exist_ok in (False, True):
        with pytest.raises(TopicExists, match="not yet restored"):
            create(store, partitions=2, exist_ok=exist_ok)
    assert "not yet restored" in problems(store)["t"]
    delete_topic(store, "t", clock=store.clock)
    create(store, partitions=2)


def test_a_deletion_that_slept_does_not_end_the_next_topic(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    create(store, partitions=3)
    delete, slept = DeltaLog.delete, []

    def sleep_behind_the_first(log: DeltaLog) -> None:
        delete(log)
        if not slept:
            slept.append(log.table)
            delete_topic(store, "t", clock=store.clock)
            create(store, partitions=3)

    monkeypatch.setattr(DeltaLog, "delete", sleep_behind_the_first)
    delete_topic(store, "t", clock=store.clock)
    assert slept == ["t.2"]
    assert describe_topic(store, "t", clock=store.clock).partitions == 3


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (b"nonsense", "cannot be read"),
        (b"", "cannot be read"),
        (b'{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["v2Checkpoint"]}}\n', "metadata"),
    ],
)
def test_a_damaged_or_foreign_table_does_not_hide_the_topics(store: FakeStore, entry: bytes, words: str) -> None:
    create(store, "a")
    create(store, "z")
    store.put("m/_delta_log/00000000000000000000.json", entry)
    assert [topic.name for topic in list_topics(store, clock=store.clock)] == ["a", "z"]
    assert words in problems(store)["m"]


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
    assert set(store.objects) == {"t/_probe"}


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([], None),
        ([Put("exists")], None),
        ([Put("unknown"), Put("unknown", applied=False)], None),
        ([Put("unknown"), Put("created")], None),
        ([Put("exists"), Put("created"), Put("created")], ConditionalPutUnsupported),
        ([Put("unknown"), Put("created"), Put("unknown"), Put("created")], ConditionalPutUnsupported),
        ([Put("unknown")] * 5, StoreUnavailable),
    ],
)
@pytest.mark.parametrize("asked_before", [False, True])
def test_a_store_is_asked_for_conditional_puts_until_its_answer_tells(
    store: FakeStore, answers: list[Put], error: type[Exception] | None, asked_before: bool
) -> None:
    if asked_before:
        check_conditional_put(store, clock=store.clock)
    store.puts = list(answers)
    with pytest.raises(error) if error else nullcontext():
        check_conditional_put(store, clock=store.clock)
    assert set(store.objects) == {"_brokerless/_probe"}
    assert store.requests["DELETE"] == 0  # whoever creates topics need not be able to


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
    assert "topics delete a" in problems(store)["a"]
    with pytest.raises(TopicExists, match="half deleted"):
        create_topic(store, "a", SCHEMA, partitions=3, exist_ok=True, clock=store.clock)
    delete_topic(store, "a", clock=store.clock)
    for table in ("a", "a.1", "a.2"):
        with pytest.raises(TopicDeleted):
            DeltaLog(store, table, clock=store.clock).refresh()
    create_topic(store, "a", SCHEMA, partitions=3, clock=store.clock)
