"""Batches of queues and streams into topics, against a store in memory: nothing lost, nothing twice, nobody stopped."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerless import metrics
from brokerless.columns.records import decode
from brokerless.errors import ConfigError, LogDamaged, StoreUnavailable, TopicExists, TopicNotFound
from brokerless.ingest.batches import BatchIngest, IngestResult, Routes, SourceMessage, create_ingest_dead_letters
from brokerless.log.log import DeltaLog
from brokerless.metrics import Meter
from brokerless.producer.partitioner import partition_of
from brokerless.producer.pool import ProducerPool
from brokerless.schema import Schema, partition_table
from brokerless.topics import create_dead_letters, create_topic, delete_topic
from tests.support.altered import alter
from tests.support.fakes import FakeClock, FakeStore, Put

SCHEMA = Schema.parse("s string, n long")
SHARD = "kinesis/stream/shard-0"
QUEUE = "sqs/queue"


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    create_topic(store, "other", SCHEMA, partitions=3, clock=clock)
    return store


def ingest(store: FakeStore, *, default: str = "t", meter: Meter | None = None) -> BatchIngest:
    return BatchIngest(
        store,
        routes=Routes(("t", "other", "missing"), default),
        producers=ProducerPool(store, timeout_s=2, clock=store.clock),
        meter=meter or Meter(),
        timeout_s=2,
        clock=store.clock,
    )


def body(n: int) -> bytes:
    return json.dumps({"s": "x", "n": n}).encode()


def stream(n: int, text: bytes | None = None, *, topic: str | None = None, source: str = SHARD) -> SourceMessage:
    """The message at place n of a shard."""
    return SourceMessage(text or body(n), source, str(n), n, topic)


def queued(n: int, text: bytes | None = None, *, topic: str | None = None) -> SourceMessage:
    return SourceMessage(text or body(n), QUEUE, f"id-{n}", topic=topic)


def rows(store: FakeStore, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for entry in DeltaLog(store, table, clock=store.clock).read_from(0):
        for add in entry.messages:
            data = decode(store.get(f"{table}/{add.path}"))
            columns = [data.column(name).to_pylist() for name in data.column_names]
            found += [dict(zip(data.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    return found


def numbers(store: FakeStore, table: str = "t") -> list[int]:
    return [row["n"] for row in rows(store, table)]


def letters(store: FakeStore, topic: str = "t") -> list[str]:
    return [row["_body"] for row in rows(store, f"{topic}.dead_letters")]


def counts(result: IngestResult) -> tuple[int, int, int, int]:
    return result.committed, result.rejected, result.skipped, len(result.failed)


@pytest.mark.parametrize("message", [stream, queued])
def test_a_batch_is_one_commit(store: FakeStore, message: Any) -> None:
    function = ingest(store)
    function.ingest([message(0)])
    store.requests.clear()
    result = function.ingest([message(1), message(2)])
    assert counts(result) == (2, 0, 0, 0)
    assert store.requests == {"PUT": 2}
    assert numbers(store) == [0, 1, 2]


@pytest.mark.parametrize("message", [stream, queued])
def test_a_bad_message_becomes_a_dead_letter_and_its_neighbours_are_taken(store: FakeStore, message: Any) -> None:
    result = ingest(store).ingest([message(1), message(2, b'{"s": 5, "n": 2}'), message(3)])
    assert counts(result) == (2, 1, 0, 0)
    assert numbers(store) == [1, 3]
    (letter,) = rows(store, "t.dead_letters")
    assert letter["_body"] == '{"s": 5, "n": 2}'
    assert "'s'" in letter["_reason"]
    assert (letter["_encoding"], letter["_topic"]) == ("utf-8", "t")
    assert letter["_source"] in {SHARD, QUEUE}
    assert letter["_source_position"] in {"2", "id-2"}


@pytest.mark.parametrize("message", [stream, queued])
def test_a_message_with_a_value_that_would_change_becomes_a_dead_letter(
    store: FakeStore, clock: FakeClock, message: Any
) -> None:
    create_topic(store, "money", Schema.parse("amount decimal(6,2), factor double"), clock=clock)
    texts = ['{"amount": "1.50", "factor": 0.1}', '{"amount": "1.255", "factor": 1}']
    texts.append(f'{{"amount": 1, "factor": {2**53 + 1}}}')
    routes = Routes(("money",), "money")
    function = BatchIngest(
        store, routes=routes, producers=ProducerPool(store, timeout_s=2, clock=clock), meter=Meter(), clock=clock
    )
    assert counts(function.ingest([message(n, text.encode()) for n, text in enumerate(texts)])) == (1, 2, 0, 0)
    reasons = sorted(row["_reason"] for row in rows(store, "money.dead_letters"))
    assert "'amount'" in reasons[0]
    assert "'1.255'" in reasons[0]
    assert "'factor'" in reasons[1]
    assert str(2**53 + 1) in reasons[1]


@pytest.mark.parametrize("bad", [{1}, {0, 4}, {0, 1, 2}, {3, 4}, {0, 1, 2, 3, 4}])
def test_those_that_do_not_fit_are_found_among_those_that_do(store: FakeStore, bad: set[int]) -> None:
    batch = [stream(n, b'{"s": 5, "n": 0}' if n in bad else None) for n in range(5)]
    ingest(store).ingest(batch)
    assert numbers(store) == [n for n in range(5) if n not in bad]
    found = rows(store, "t.dead_letters")
    assert [int(letter["_source_position"]) for letter in found] == sorted(bad)


DEEP = b'{"s": "x", "n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nonsense",
        b"null",
        b"[]",
        b'{"s": "x"}',
        b'{"s": "x", "n": 1, "more": 2}',
        b'{"s": "x", "n": NaN}',
        b'{"s": "x", "n": 1e999}',
        b'{"s": "x", "n": 99999999999999999999}',
        b'{"s": "x", "n": ' + b"9" * 10_000 + b"}",
        b'{"s": "\\ud800", "n": 1}',
        b'{"s": "\xff", "n": 1}',
        b"\x00\x01\x02",
        b"[" * 100_000,
        DEEP,
        b'{"s": {"deep": {}}, "n": 1}',
        b'{"_produced_at": "2026-11-21T09:00:00+00:00", "s": "x", "n": 1}',
        b'{"' + b"k" * 1_000_000 + b'": 1}',
        b"x" * 10_000_000,
    ],
    ids=lambda text: repr(text[:30]),
)
def test_hostile_messages_stop_nobody(store: FakeStore, text: bytes) -> None:
    function = ingest(store)
    hostile = SourceMessage(text, SHARD, "1", 1)
    assert counts(function.ingest([stream(0), hostile, stream(2)])) == (2, 1, 0, 0)
    assert numbers(store) == [0, 2]
    (letter,) = rows(store, "t.dead_letters")
    assert len(letter["_reason"]) <= 1000
    assert len(letter["_body"]) >= len(text)


def test_bytes_that_are_no_text_are_kept_as_base64(store: FakeStore) -> None:
    ingest(store).ingest([stream(1, b"\xff\x00")])
    (letter,) = rows(store, "t.dead_letters")
    assert (letter["_body"], letter["_encoding"]) == ("/wA=", "base64")


def test_a_tombstone_is_a_dead_letter(store: FakeStore) -> None:
    assert counts(ingest(store).ingest([SourceMessage(None, "kafka/c/t/0", "1", 1)])) == (0, 1, 0, 0)
    assert letters(store) == [None]


def test_a_decimal_that_would_fill_the_memory_is_refused(store: FakeStore, clock: FakeClock) -> None:
    create_topic(store, "money", Schema.parse("d decimal(10,2)"), clock=clock)
    function = BatchIngest(
        store,
        routes=Routes(("money",), "money"),
        producers=ProducerPool(store, timeout_s=2, clock=clock),
        meter=Meter(),
        clock=clock,
    )
    bad = ['"1e999999999"', '"NaN"', "[0, [1], 999999999]", "1.5", '"' + "1" * 1000 + '"', "true", '"x"']
    batch = [queued(n, f'{{"d": {text}}}'.encode()) for n, text in enumerate([*bad, '"1.25"', "3", "null"])]
    assert counts(function.ingest(batch)) == (3, len(bad), 0, 0)


# Topics


def test_a_message_may_name_its_topic(store: FakeStore) -> None:
    assert counts(ingest(store).ingest([queued(1), queued(2, topic="other")])) == (2, 0, 0, 0)
    assert numbers(store) == [1]
    assert [n for p in ("other", "other.1", "other.2") for n in numbers(store, p)] == [2]


@pytest.mark.parametrize("topic", ["forbidden", "t.dead_letters", "../t", "t/_delta_log", "", "\ud800", "x" * 5000])
def test_a_topic_outside_the_list_gets_nothing(store: FakeStore, topic: str) -> None:
    before = set(store.objects)
    result = ingest(store, default="").ingest([queued(1, topic=topic)])
    assert counts(result) == (0, 1, 0, 0)
    assert letters(store) == ['{"s": "x", "n": 1}']
    assert {path.split("/")[0] for path in set(store.objects) - before} == {"t.dead_letters"}


def test_a_topic_that_is_not_there_yet_fails_and_can_be_delivered_again(store: FakeStore, clock: FakeClock) -> None:
    function = ingest(store)
    result = function.ingest([queued(1), queued(2, topic="missing")])
    assert counts(result) == (1, 0, 0, 1)
    assert [m.item for m in result.failed] == ["id-2"]
    assert isinstance(result.errors[0], TopicNotFound)
    create_topic(store, "missing", SCHEMA, clock=clock)
    assert counts(function.ingest(result.failed)) == (1, 0, 0, 0)


def test_sources_keep_to_a_partition_each(store: FakeStore) -> None:
    function = ingest(store, default="other")
    sources = [f"kafka/c/t/{n}" for n in range(6)]
    for place in (1, 2):
        assert counts(function.ingest([stream(place, source=source) for source in sources])) == (6, 0, 0, 0)
    for number, table in enumerate(["other", "other.1", "other.2"]):
        share = sum(partition_of(source, 3) == number for source in sources)
        assert numbers(store, table) == [1] * share + [2] * share


@pytest.mark.parametrize(("topics", "default"), [((), ""), (("t",), "other"), (("t", "a/b"), "t")])
def test_routes_that_cannot_be(topics: tuple[str, ...], default: str) -> None:
    with pytest.raises(ConfigError):
        Routes(topics, default)


# Redelivery


def test_dead_letters_are_committed_first(store: FakeStore) -> None:
    order: list[str] = []
    put = store.create

    def noted(path: str, data: bytes) -> Any:
        order.append(path.partition("/")[0])
        return put(path, data)

    function = ingest(store)
    function.ingest([queued(0), queued(1, b"bad")])
    store.create = noted  # type: ignore[method-assign]
    function.ingest([queued(2), queued(3, b"bad")])
    assert order == ["t.dead_letters", "t"]


def test_what_the_store_refuses_is_delivered_again(store: FakeStore) -> None:
    function = ingest(store)
    function.ingest([stream(0)])
    store.puts = [Put(StoreUnavailable("x"), applied=False)]
    result = function.ingest([stream(1), stream(2)])
    assert [m.position for m in result.failed] == [1, 2]
    assert isinstance(result.errors[0], StoreUnavailable)
    assert counts(function.ingest(result.failed)) == (2, 0, 0, 0)
    assert numbers(store) == [0, 1, 2]


def test_an_ordered_source_stops_at_the_first_failure(store: FakeStore, clock: FakeClock) -> None:
    # Were the dead letter of place 3 written now, then place 1, found bad later, would count as there already.
    function = ingest(store, default="missing")
    batch = [stream(0, topic="t"), stream(1, b"bad"), stream(2, topic="t"), stream(3, topic="no")]
    result = function.ingest(batch)
    assert [m.position for m in result.failed] == [1, 2, 3]
    create_topic(store, "missing", SCHEMA, clock=clock)
    assert counts(function.ingest(result.failed)) == (1, 2, 0, 0)
    assert numbers(store) == [0, 2]
    assert [row["_source_position"] for row in rows(store, "missing.dead_letters")] == ["1", "3"]


def test_other_sources_go_on(store: FakeStore) -> None:
    batch = [stream(1, topic="missing", source="sqs/q/a"), stream(2, source="sqs/q/b"), stream(3, source="sqs/q/a")]
    result = ingest(store).ingest(batch)
    assert [m.position for m in result.failed] == [1, 3]
    assert numbers(store) == [2]


# A warm function whose topic changes


@pytest.mark.parametrize("message", [stream, queued])
@pytest.mark.parametrize("schema", ["s string, n long", "n long, s string, t string"])
def test_a_topic_that_was_deleted_and_created_again_is_opened_anew(
    store: FakeStore, clock: FakeClock, message: Any, schema: str
) -> None:
    function = ingest(store)
    function.ingest([message(1)])
    delete_topic(store, "t", clock=clock)
    create_topic(store, "t", Schema.parse(schema), clock=clock)
    result = function.ingest([message(2)])
    assert counts(result) == ((1, 0, 0, 0) if schema == "s string, n long" else (0, 1, 0, 0))


def recreate(store: FakeStore, topic: str, schema: Schema = SCHEMA, *, partitions: int = 1) -> None:
    delete_topic(store, topic, clock=store.clock)
    create_topic(store, topic, schema, partitions=partitions, clock=store.clock)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("bad", [0, 10])
def test_a_source_that_is_replayed_into_a_topic_created_again_is_taken(
    store: FakeStore, bad: int, by_hand: bool
) -> None:
    function = ingest(store)
    shard = [stream(n, b"bad" if n < bad else None) for n in range(100)]
    assert counts(function.ingest(shard)) == (100 - bad, bad, 0, 0)
    if by_hand:
        store.delete([path for path in store.objects if path.startswith("t/")])
        create_topic(store, "t", SCHEMA, clock=store.clock)
    else:
        recreate(store, "t")
    assert counts(function.ingest(shard)) == (100 - bad, 0, bad, 0)
    assert counts(function.ingest(shard)) == (0, 0, 100, 0)
    assert numbers(store) == list(range(bad, 100)) * (1 if by_hand else 2)


def test_dead_letters_that_are_replayed_after_their_topic_was_deleted_are_kept(store: FakeStore) -> None:
    function = ingest(store)
    shard = [stream(n, b"bad") for n in range(5)]
    function.ingest(shard)
    delete_topic(store, "t.dead_letters", clock=store.clock)
    assert counts(function.ingest(shard)) == (0, 5, 0, 0)


@pytest.mark.parametrize("message", [stream, queued])
@pytest.mark.parametrize("how", ["created again", "altered"])
def test_a_column_that_is_new_makes_no_dead_letters(store: FakeStore, message: Any, how: str) -> None:
    function = ingest(store)
    function.ingest([message(1)])
    more = Schema.parse("s string, n long, t string")
    recreate(store, "t", more) if how == "created again" else alter(store, "t", more)
    batch = [message(n, b'{"s": "x", "n": %d, "t": "y"}' % n) for n in range(2, 6)]
    assert counts(function.ingest(batch)) == (4, 0, 0, 0)
    assert numbers(store)[1:] == [2, 3, 4, 5]
    assert counts(function.ingest([message(6)])) == (0, 1, 0, 0), "its columns are the old ones"


@pytest.mark.parametrize("message", [stream, queued])
def test_no_dead_letter_by_a_schema_that_could_not_be_looked_at(store: FakeStore, message: Any) -> None:
    function = ingest(store)
    function.ingest([message(1)])

    def fail(path: str) -> None:
        raise StoreUnavailable(path)

    store.on_get = fail
    result = function.ingest([message(2, b"bad"), message(3)])
    assert counts(result) == (0, 0, 0, 2)
    assert isinstance(result.errors[0], StoreUnavailable)
    store.on_get = None
    assert counts(function.ingest(result.failed)) == (1, 1, 0, 0)


@pytest.mark.parametrize("message", [stream, queued])
def test_no_dead_letter_by_the_schema_of_a_damaged_log(store: FakeStore, message: Any) -> None:
    ingest(store).ingest([message(n) for n in range(3)])
    ingest(store).ingest([message(3)])
    store.objects[DeltaLog(store, "t", clock=store.clock).entry_path(1)] = b""
    result = ingest(store).ingest([message(4, b"bad")])
    assert counts(result) == (0, 0, 0, 1)
    assert isinstance(result.errors[0], LogDamaged)


@pytest.mark.parametrize(("before", "after"), [(3, 5), (5, 3), (1, 4), (4, 1), (4, 4)])
@pytest.mark.parametrize("warmed", [0, 1, 20])
@pytest.mark.parametrize("size", [1, 3, 20])
def test_a_topic_created_again_with_other_partitions_has_each_message_where_it_belongs(
    store: FakeStore, clock: FakeClock, before: int, after: int, warmed: int, size: int
) -> None:
    # A function that is warm for some of the partitions, and another one that gets everything again.
    create_topic(store, "missing", SCHEMA, partitions=before, clock=clock)
    sources = [f"kafka/c/t/{n}" for n in range(20)]
    batch = [stream(n, source=source, topic="missing") for n, source in enumerate(sources)]
    warm = ingest(store)
    warm.ingest([stream(100, topic="missing", source=sources[0])])
    warm.ingest(batch[1:warmed])
    recreate(store, "missing", partitions=after)
    tables = [partition_table("missing", number) for number in range(max(before, after))]
    old = [len(numbers(store, table)) for table in tables]
    for first in range(0, 20, size):
        part = batch[::-1][first : first + size]
        assert counts(warm.ingest(part)) == (len(part), 0, 0, 0)
    assert counts(ingest(store).ingest(batch)) == (0, 0, 20, 0)
    assert counts(warm.ingest(batch)) == (0, 0, 20, 0)
    for number, table in enumerate(tables):
        expected = [n for n, source in enumerate(sources) if number < after and partition_of(source, after) == number]
        assert sorted(numbers(store, table)[old[number] :]) == expected


def test_a_log_that_is_opened_late_has_the_columns_of_the_topic(store: FakeStore) -> None:
    function = ingest(store, default="other")
    sources = {partition_of(name, 3): name for name in (f"kafka/c/t/{n}" for n in range(20))}
    function.ingest([stream(1, source=sources[0])])
    recreate(store, "other", Schema.parse("n long"), partitions=3)
    assert counts(function.ingest([stream(1, source=sources[2]), stream(2, source=sources[1])])) == (0, 2, 0, 0)


def test_dead_letters_of_a_schema_that_is_gone_are_not_written(store: FakeStore, clock: FakeClock) -> None:
    function = ingest(store)
    function.ingest([stream(1)])
    delete_topic(store, "t", clock=clock)
    create_topic(store, "t", Schema.parse("n long"), clock=clock)
    # By the old schema place 3 is bad; by the new one place 2 is.
    result = function.ingest([stream(2), stream(3, b'{"n": 3}')])
    assert counts(result) == (1, 1, 0, 0)
    assert numbers(store) == [1, 3]
    assert letters(store) == [body(2).decode()]


def test_a_dead_letter_topic_that_was_deleted_is_created_again(store: FakeStore, clock: FakeClock) -> None:
    function = ingest(store)
    function.ingest([stream(1, b"bad")])
    delete_topic(store, "t.dead_letters", clock=clock)
    assert counts(function.ingest([stream(2, b"worse")])) == (0, 1, 0, 0)
    assert letters(store) == ["bad", "worse"]


def test_a_topic_that_is_gone_for_good_fails(store: FakeStore, clock: FakeClock) -> None:
    function = ingest(store)
    function.ingest([queued(1)])
    delete_topic(store, "t", clock=clock)
    for _ in range(2):
        assert counts(function.ingest([queued(2)])) == (0, 0, 0, 1)


def test_dead_letters_of_a_pipeline_are_not_those_of_ingest(store: FakeStore, clock: FakeClock) -> None:
    create_dead_letters(store, "t", [SCHEMA], clock=clock)
    with pytest.raises(TopicExists):
        create_ingest_dead_letters(store, "t", clock=clock)
    result = ingest(store).ingest([queued(1), queued(2, b"bad")])
    assert counts(result) == (1, 0, 0, 1)
    assert isinstance(result.errors[0], TopicExists)


# Metrics


def test_what_happened_is_counted_by_topic(store: FakeStore) -> None:
    meter = Meter()
    ingest(store, meter=meter).ingest([stream(1), stream(2), stream(3, b"bad"), stream(4, topic="no")])
    found = {(datum.metric, datum.of): datum.values for datum in meter.take()}
    assert found[metrics.PRODUCED_MESSAGES, "t"] == (2,)
    assert found[metrics.REJECTED_MESSAGES, "t"] == (2,)
    assert (metrics.PRODUCE_LATENCY, "t") in found
    assert {of for _, of in found} == {"t"}


def test_conflicts_are_counted(store: FakeStore, clock: FakeClock) -> None:
    meter = Meter()
    function = ingest(store, meter=meter)
    for place, message in enumerate((stream, queued)):
        function.ingest([message(2 * place)])
        DeltaLog(store, "t", clock=clock).append([])
        function.ingest([message(2 * place + 1)])
    found = {datum.metric: datum for datum in meter.take()}
    assert sum(found[metrics.COMMIT_CONFLICTS].counts) >= 2
