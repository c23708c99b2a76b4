"""The source's three faces without Spark: planning in this process, reading as a worker would."""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from arro3.core import Table
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from brokerless.columns.records import encode
from brokerless.errors import (
    ConfigError,
    LogDamaged,
    LogIncomplete,
    OffsetOutOfRange,
    PipelineError,
    PipelineFenced,
    SchemaError,
    StoreError,
    TopicChanged,
    TopicRewritten,
)
from brokerless.log.entries import Add, Metadata, Protocol, build_entry
from brokerless.log.log import DeltaLog, TxnAdvanced
from brokerless.producer.producer import Producer
from brokerless.schema import Schema, dead_letters
from brokerless.settings import Settings
from brokerless.spark.failures import named_error, unreadable_in
from brokerless.spark.inputs import first_position
from brokerless.spark.messages import topic_names, union_columns
from brokerless.spark.outputs import OutputLog, PipelineOutputs, UploadedFiles
from brokerless.spark.progress import (
    Begin,
    SourceOffset,
    app_id,
    covers,
    follows,
    halves,
    owner_id,
    pieces,
    progress_in,
)
from brokerless.spark.source import SLICE_BYTES, SLICE_ROWS, BrokerlessSource, Reader, _cuts
from brokerless.spark.worker import settings_option
from brokerless.store import open_store
from brokerless.topics import create_dead_letters, create_topic, delete_topic
from tests.support.checkpoints import clean_up, write_checkpoint

if TYPE_CHECKING:
    from brokerless.store import Store

pytestmark = pytest.mark.spark

NAME, OUTPUT = "job", "out"
COLUMNS = StructType([StructField("id", LongType()), StructField("_produced_at", TimestampType())])
PLACES = [
    StructField("_topic", StringType()),
    StructField("_partition", IntegerType()),
    StructField("_version", LongType()),
    StructField("_index", LongType()),
]


@pytest.fixture
def settings() -> Settings:
    return Settings(profile="embedded", root=f"memory:///{uuid.uuid4().hex}")


@pytest.fixture
def store(settings: Settings) -> Store:
    store = open_store(settings)
    create_topic(store, "a", Schema.parse("id long"))
    create_topic(store, "b", Schema.parse("id long"), partitions=2)
    create_topic(store, OUTPUT, Schema.parse("id long"))
    create_dead_letters(store, OUTPUT, [Schema.parse("id long")])
    return store


def options(settings: Settings, **more: str) -> dict[str, str]:
    common = {"topics": "a", "settings": settings_option(settings), "pipeline": NAME, "output": OUTPUT}
    return {**common, **more}


def reader(settings: Settings, **more: str) -> Reader:
    return BrokerlessSource(options(settings, **more)).streamReader(COLUMNS)


def send(settings: Settings, topic: str, *ids: int) -> None:
    with Producer(topic, settings=settings) as producer:
        producer.send({"id": list(ids)})


def ids_of(source: Reader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [
        value
        for part in source.partitions(start, end)
        for batch in source.read(part)
        for value in pa.table(batch).column("id").to_pylist()
    ]


def progress_of(store: Store, table: str) -> str:
    """The txn of the pipeline's progress in the table that is there now."""
    return app_id(NAME, table, DeltaLog(store, table).state.metadata.id)


def record(store: Store, topic: str, **done: int) -> None:
    """What a pipeline's commit leaves in an output's log."""
    DeltaLog(store, topic).append([], {progress_of(store, table): version for table, version in done.items()})


def test_batches_are_what_came_since(settings: Settings, store: Store) -> None:
    source = reader(settings)
    send(settings, "a", 1, 2)
    # Spark asks for the latest offset first: the initial one must not move what is known by then.
    first = source.latestOffset()
    start = source.initialOffset()
    assert ids_of(source, start, first) == [1, 2]
    assert source.latestOffset() == first
    send(settings, "a", 3)
    second = source.latestOffset()
    assert ids_of(source, first, second) == [3]
    assert (first["rows"], second["rows"]) == (2, 3)
    source.commit(second)
    assert source.latestOffset() == second
    source.stop()


def test_it_resumes_after_the_outputs_progress(settings: Settings, store: Store) -> None:
    send(settings, "a", 1)
    send(settings, "a", 2)
    record(store, OUTPUT, a=1)
    source = reader(settings)
    assert ids_of(source, source.initialOffset(), source.latestOffset()) == [2]


@pytest.mark.parametrize(("start", "expected"), [("beginning", [1, 2]), ("latest", [2])])
def test_where_a_new_pipeline_begins(settings: Settings, store: Store, start: str, expected: list[int]) -> None:
    send(settings, "a", 1)
    source = reader(settings, start=start)
    source.initialOffset()
    send(settings, "a", 2)
    assert ids_of(source, source.initialOffset(), source.latestOffset()) == expected


def claimed(settings: Settings, store: Store, **more: str) -> PipelineOutputs:
    """The outputs in the hands of a run that has just begun."""
    schema = Schema.parse("id long")
    output, letters = (OutputLog(store, topic, schema, NAME) for topic in (OUTPUT, dead_letters(OUTPUT)))
    outputs = PipelineOutputs(output, letters, NAME)
    outputs.claim()
    outputs.record_start(first_position(store, options(settings, **more), output))
    return outputs


@pytest.mark.parametrize("start", ["beginning", "latest", "2020-01-01T00:00:00+00:00"])
@pytest.mark.parametrize("letters", [False, True], ids=["before the commits", "between the commits"])
def test_a_crash_before_the_first_commit_does_not_move_the_start(
    settings: Settings, store: Store, start: str, letters: bool
) -> None:
    send(settings, "a", 1)
    begins = [1] if start != "latest" else []
    outputs = claimed(settings, store, start=start, topics="a,b")
    send(settings, "a", 2)
    source = reader(settings, start=start, topics="a,b")
    begin, end = SourceOffset.of(source.initialOffset()), SourceOffset.of(source.latestOffset())
    assert ids_of(source, begin.to_dict(), end.to_dict()) == [*begins, 2]
    assert outputs.missing(begin.at, end, batch_id=0) == [outputs.dead_letters, outputs.output]
    if letters and outputs.dead_letters is not None:
        outputs.dead_letters.commit(UploadedFiles(), end.at, end.ids)
    # The next run, after more has come.
    send(settings, "a", 3)
    outputs = claimed(settings, store, start="latest", topics="a,b")
    source = reader(settings, start="latest", topics="a,b")
    begin, end = SourceOffset.of(source.initialOffset()), SourceOffset.of(source.latestOffset())
    found = ids_of(source, begin.to_dict(), end.to_dict())
    assert found == ([*begins, 2] if letters else [*begins, 2, 3])
    missing = outputs.missing(begin.at, end, batch_id=0)
    assert missing == ([outputs.output] if letters else [outputs.dead_letters, outputs.output])
    outputs.commit(UploadedFiles(), UploadedFiles(), end, missing=missing)


def test_a_start_is_noted_only_once_for_each_input(settings: Settings, store: Store) -> None:
    send(settings, "a", 1)
    log = DeltaLog(store, OUTPUT)
    claimed(settings, store)
    assert (log.refresh().version, log.txn(progress_of(store, "a"))) == (2, 0)  # after the claim
    claimed(settings, store, start="latest")
    assert (log.refresh().version, log.txn(progress_of(store, "a"))) == (3, 0)
    claimed(settings, store, start="latest", topics="a,b")  # b is new to it
    assert [log.refresh().version, *(log.txn(progress_of(store, t)) for t in ("a", "b", "b.1"))] == [5, 0, 0, 0]
    claimed(settings, store, topics="a,b")
    assert log.refresh().version == 6


def test_clean_up_before_the_first_commit_is_not_a_silent_gap(settings: Settings, store: Store) -> None:
    for number in range(3):
        send(settings, "a", number)
    claimed(settings, store)
    log = DeltaLog(store, "a")
    write_checkpoint(log)
    clean_up(log, below=3)
    claimed(settings, store)
    source = reader(settings)
    source.initialOffset()
    with pytest.raises(OffsetOutOfRange, match=r"Offset 1:0 .* is gone"):
        source.latestOffset()
    # Another name begins with what is left.
    source = reader(settings, pipeline="other")
    assert ids_of(source, source.initialOffset(), source.latestOffset()) == [2]


def test_a_start_in_a_topic_that_is_created_again_is_its_new_beginning(settings: Settings, store: Store) -> None:
    claimed(settings, store)
    delete_topic(store, "a")
    create_topic(store, "a", Schema.parse("id long"))
    send(settings, "a", 1)
    outputs = claimed(settings, store)
    source = reader(settings)
    begin, end = SourceOffset.of(source.initialOffset()), SourceOffset.of(source.latestOffset())
    assert ids_of(source, begin.to_dict(), end.to_dict()) == [1]
    assert outputs.missing(begin.at, end, batch_id=0) == [outputs.dead_letters, outputs.output]


def test_a_start_before_version_0_is_not_noted(settings: Settings, store: Store) -> None:
    data = encode(Table.from_arrow(pa.table({"id": pa.array([7])})))
    store.put("others/x.parquet", data)
    body = build_entry(
        commit_id="x",
        timestamp_ms=0,
        operation="CREATE TABLE AS SELECT",
        engine="other",
        adds=[Add("x.parquet", len(data), 1, 0)],
        metadata=Metadata("x", DeltaLog(store, "a").state.metadata.schema_string),
        protocol=Protocol(1, 2),
    )
    store.put(DeltaLog(store, "others").entry_path(0), body)
    for _ in range(2):
        outputs = claimed(settings, store, topics="others")
        source = reader(settings, topics="others")
        begin, end = SourceOffset.of(source.initialOffset()), SourceOffset.of(source.latestOffset())
        assert ids_of(source, begin.to_dict(), end.to_dict()) == [7]
    assert DeltaLog(store, OUTPUT).state.version == 2  # two claims, and nothing else
    outputs.commit(UploadedFiles(), UploadedFiles(), end, missing=outputs.missing(begin.at, end, batch_id=0))
    assert DeltaLog(store, OUTPUT).txn(progress_of(store, "others")) == 0


def test_who_was_taken_over_does_not_note_its_start(settings: Settings, store: Store) -> None:
    old = claimed(settings, store)
    claimed(settings, store)
    with pytest.raises(PipelineFenced, match="took over"):
        old.record_start(Begin({"b": 0}, {"b": "x"}))
    assert DeltaLog(store, OUTPUT).txn(app_id(NAME, "b", "x")) is None


def test_a_batch_that_leaves_something_out_is_refused(settings: Settings, store: Store) -> None:
    for number in range(3):
        send(settings, "a", number)
    outputs = claimed(settings, store)
    outputs.output.commit(UploadedFiles(), {"a": 1}, {"a": DeltaLog(store, "a").state.metadata.id})
    source = reader(settings, pipeline="other", maxrows="1")
    first = SourceOffset.of(source.latestOffset())
    second = SourceOffset.of(source.latestOffset())
    third = SourceOffset.of(source.latestOffset())
    assert outputs.missing(first.at, second, batch_id=1) == [outputs.dead_letters, outputs.output]
    with pytest.raises(PipelineError, match=r"'out' records \{'a': 1\}: rows would be lost or repeated"):
        outputs.missing(second.at, third, batch_id=2)


def test_after_a_crash_between_two_outputs_a_batch_ends_where_the_first_is(settings: Settings, store: Store) -> None:
    for number in range(1, 6):
        send(settings, "a", number)
        send(settings, "b", number * 10)
    record(store, OUTPUT, a=1)
    record(store, dead_letters(OUTPUT), a=3)
    source = reader(settings, topics="a,b")
    start = source.initialOffset()
    first = source.latestOffset()
    assert first["at"]["a"] == 3
    assert {t: v for t, v in first["at"].items() if t != "a"} == {t: v for t, v in start["at"].items() if t != "a"}
    assert ids_of(source, start, first) == [2, 3]
    second = source.latestOffset()
    assert second["at"]["a"] == 5
    assert sorted(ids_of(source, first, second)) == [4, 5, 10, 20, 30, 40, 50]


@pytest.mark.parametrize(("limit", "value"), [("maxrows", "3"), ("maxfiles", "2")])
def test_limits(settings: Settings, store: Store, limit: str, value: str) -> None:
    for number in range(3):
        send(settings, "a", number * 2, number * 2 + 1)
    source = reader(settings, **{limit: value})
    start = source.initialOffset()
    first = source.latestOffset()
    assert ids_of(source, start, first) == [0, 1, 2, 3]
    assert first["seen"] - first["rows"] == 2  # the lag
    assert ids_of(source, first, source.latestOffset()) == [4, 5]


def test_once_ends_at_the_heads_of_the_start(settings: Settings, store: Store) -> None:
    send(settings, "a", 1)
    source = reader(settings, until="now")
    start = source.initialOffset()
    send(settings, "a", 2)
    end = source.latestOffset()
    assert ids_of(source, start, end) == [1]
    assert source.latestOffset() == end


def test_metadata_and_missing_columns(settings: Settings, store: Store) -> None:
    create_topic(store, "c", Schema.parse("other string"))
    send(settings, "a", 7)
    send(settings, "a", 8, 9)
    source = BrokerlessSource(options(settings, topics="a,c", metadata="true"))
    assert source.schema() == (
        "`id` bigint, `other` string, `_produced_at` timestamp, "
        "`_topic` string, `_partition` int, `_version` bigint, `_index` bigint"
    )
    schema = StructType([COLUMNS[0], StructField("other", StringType()), COLUMNS[1], *PLACES])
    stream = source.streamReader(schema)
    (part,) = stream.partitions(stream.initialOffset(), stream.latestOffset())
    rows = pa.Table.from_batches(list(stream.read(part))).drop_columns(["_produced_at"]).to_pylist()
    common = {"other": None, "_topic": "a", "_partition": 0}
    assert rows == [
        {"id": 7, **common, "_version": 1, "_index": 0},
        {"id": 8, **common, "_version": 2, "_index": 0},
        {"id": 9, **common, "_version": 2, "_index": 1},
    ]


@pytest.mark.parametrize(
    ("column", "expected"),
    [(pa.array([7], pa.int32()), [7]), (pa.array(["7"]), "as Utf8, but the table has it as long")],
)
def test_another_writers_column_is_widened_or_refused_by_name(
    settings: Settings, store: Store, column: pa.Array, expected: list[int] | str
) -> None:
    data = encode(Table.from_arrow(pa.table({"id": column})))
    store.put("a/x.parquet", data)
    DeltaLog(store, "a").append([Add("x.parquet", len(data), 1, 0)])
    source = reader(settings)
    start, end = source.initialOffset(), source.latestOffset()
    if isinstance(expected, str):
        with pytest.raises(StoreError, match=rf"a/x\.parquet has the column 'id' {expected}"):
            ids_of(source, start, end)
    else:
        assert ids_of(source, start, end) == expected


def test_a_file_that_was_added_twice_is_read_once(settings: Settings, store: Store) -> None:
    send(settings, "a", 1)
    log = DeltaLog(store, "a")
    entry = log.read(1)
    assert entry is not None
    log.append(entry.adds)
    send(settings, "a", 2)
    source = reader(settings)
    assert ids_of(source, source.initialOffset(), source.latestOffset()) == [1, 2]


def test_planning_refuses_to_lose_messages(settings: Settings, store: Store) -> None:
    send(settings, "a", 1)
    source = reader(settings)
    start, end = source.initialOffset(), source.latestOffset()
    with pytest.raises(PipelineError, match="must have 2 messages, got 1"):
        source.partitions(start, {**end, "rows": 2})


def test_a_writer_without_row_counts_is_refused(settings: Settings, store: Store) -> None:
    store.put("a/x.parquet", b"")
    DeltaLog(store, "a").append([Add("x.parquet", 1, None, 0)])
    with pytest.raises(SchemaError, match="without the statistic numRecords"):
        reader(settings).latestOffset()


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match="needs the option 'settings'"):
        BrokerlessSource({"topics": "a"}).schema()
    with pytest.raises(ConfigError, match="different topic names"):
        topic_names({"topics": "a,a"})
    with pytest.raises(SchemaError, match="in one topic and"):
        union_columns([Schema.parse("x long"), Schema.parse("x string")])


def test_slices_have_about_one_size() -> None:
    assert _cuts([], 4) == []
    assert _cuts([(1, 1)] * 3, 4) == [(0, 3)]
    assert _cuts([(SLICE_ROWS, 1), (1, 1), (SLICE_ROWS - 1, 1), (1, 1)], 4) == [(0, 1), (1, 3), (3, 4)]
    assert _cuts([(1, SLICE_BYTES), (1, 1)], 4) == [(0, 1), (1, 2)]


def test_a_large_batch_is_cut_into_two_tasks_for_each_core() -> None:
    assert [b - a for a, b in _cuts([(SLICE_ROWS, 1)] * 40, 2)] == [10] * 4
    assert [b - a for a, b in _cuts([(SLICE_ROWS, 1)] * 40, 1)] == [20] * 2


def test_positions() -> None:
    assert covers({"a": 5}, {"a": 3}, {"a": 5})
    assert not covers({"a": 4}, {"a": 3}, {"a": 5})
    assert covers({"a": 5}, {"a": 3, "b": 1}, {"a": 5, "b": 1})
    assert not covers({}, {"a": 3}, {"a": 5})
    assert follows({"a": 3}, {"a": 3, "b": 0})
    assert not follows({"a": 3}, {"a": 4})
    assert not follows({"a": 3}, {"b": 4})


def test_errors_keep_their_names_on_the_way_through_spark() -> None:
    text = "[STREAM_FAILED] ...\n  File x\nbrokerless.errors.TopicDeleted: s3://b/t was deleted.\n SQLSTATE: 38000"
    error = named_error(text)
    assert type(error).__name__ == "TopicDeleted"
    assert str(error) == "s3://b/t was deleted."
    assert "OffsetOutOfRange: gone" in str(named_error("brokerless.errors.OffsetOutOfRange: gone"))
    assert "Spark stopped" in str(named_error("java.lang.OutOfMemoryError"))


def made_again_by_hand(store: Store, table: str, *ids: int) -> None:
    """The table's folder removed, and another table with its name and some messages in its place."""
    store.delete([info.path for info in store.list(table)])
    create_topic(store, table, Schema.parse("id long"))
    with Producer(table, store=store) as producer:
        for one in ids:
            producer.send({"id": [one]})


@pytest.mark.parametrize("ids", [[7], [7, 8, 9, 10]], ids=["shorter than the progress", "longer"])
def test_an_input_that_was_made_again_by_hand_is_refused_until_it_is_accepted(
    settings: Settings, store: Store, ids: list[int]
) -> None:
    for number in range(3):
        send(settings, "a", number)
    record(store, OUTPUT, a=2)
    record(store, dead_letters(OUTPUT), a=3)
    made_again_by_hand(store, "a", *ids)
    for start in ("beginning", "latest"):
        with pytest.raises(TopicChanged, match=r"up to entry 2, but .* --accept-new-input"):
            claimed(settings, store, start=start)
        with pytest.raises(TopicChanged, match="is not the table that the pipeline 'job' has read"):
            reader(settings, start=start).latestOffset()
    outputs = claimed(settings, store, start="latest", acceptnewinput="true")
    # The next run needs no permission any more, and knows nothing of the old table.
    source = reader(settings)
    begin, end = SourceOffset.of(source.initialOffset()), SourceOffset.of(source.latestOffset())
    assert ids_of(source, begin.to_dict(), end.to_dict()) == ids
    missing = outputs.missing(begin.at, end, batch_id=0)
    assert missing == [outputs.dead_letters, outputs.output]
    outputs.commit(UploadedFiles(), UploadedFiles(), end, missing=missing)
    assert progress_in(DeltaLog(store, OUTPUT), NAME, "a") == {DeltaLog(store, "a").table_id: len(ids)}


def test_an_input_that_was_restored_from_an_older_copy_is_refused(settings: Settings, store: Store) -> None:
    for number in range(3):
        send(settings, "a", number)
    record(store, OUTPUT, a=3)
    store.delete([DeltaLog(store, "a").entry_path(3)])
    with pytest.raises(TopicChanged, match="records the same table up to entry 3, but"):
        claimed(settings, store)
    outputs = claimed(settings, store, acceptnewinput="true")
    assert outputs.output.position({"a": DeltaLog(store, "a").table_id}) == {"a": 0}


def test_progress_from_before_tables_were_named_counts_and_is_named(settings: Settings, store: Store) -> None:
    for number in range(4):
        send(settings, "a", number)
    for topic, version in ((OUTPUT, 1), (dead_letters(OUTPUT), 3)):
        DeltaLog(store, topic).append([], {f"{NAME}:a:0": version})
    claimed(settings, store)
    table_id = DeltaLog(store, "a").table_id
    for topic, version in ((OUTPUT, 1), (dead_letters(OUTPUT), 3)):
        assert progress_in(DeltaLog(store, topic), NAME, "a") == {None: version, table_id: version}
    source = reader(settings)
    assert ids_of(source, source.initialOffset(), source.latestOffset()) == [1, 2]  # up to the dead letters' position
    # From here on, another table is another table.
    made_again_by_hand(store, "a", 7)
    with pytest.raises(TopicChanged):
        claimed(settings, store)
    outputs = claimed(settings, store, acceptnewinput="true")
    ids = {"a": DeltaLog(store, "a").table_id}
    assert (outputs.output.position(ids), outputs.dead_letters and outputs.dead_letters.position(ids)) == ({"a": 0}, {})


def test_a_pipeline_of_the_version_before_is_fenced(settings: Settings, store: Store) -> None:
    logs = [DeltaLog(store, topic) for topic in (OUTPUT, dead_letters(OUTPUT))]
    epochs = [log.claim(NAME) for log in logs]
    logs[0].append([], {f"{NAME}:a:0": 0}, expect={f"{NAME}/epoch": epochs[0]})
    claimed(settings, store)
    for log, epoch in zip(logs, epochs, strict=True):
        with pytest.raises(TxnAdvanced):
            log.append([], {f"{NAME}:a:0": 1}, expect={f"{NAME}/epoch": epoch})
    before = logs[0].refresh().txns[f"{NAME}/epoch"]
    claimed(settings, store)
    assert logs[0].refresh().txns[f"{NAME}/epoch"] == before  # only once: it may be a producer's by now


def test_a_table_made_by_hand_under_a_running_pipeline_is_noticed(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(settings, "a", 1)
    source = reader(settings)
    end = source.latestOffset()
    made_again_by_hand(store, "a", 7, 8, 9)  # with an entry where this one waits
    monkeypatch.setattr("brokerless.spark.inputs.SAME_S", 0.0)
    with pytest.raises(TopicChanged, match="created again"):
        source.latestOffset()
    assert SourceOffset.of(end).ids != {"a": DeltaLog(store, "a").table_id}


def test_a_producer_with_the_pipelines_name_does_not_fence_it(settings: Settings, store: Store) -> None:
    outputs = claimed(settings, store)
    with Producer(OUTPUT, settings=settings, producer_id=NAME) as producer:
        producer.send({"id": [1]})
    outputs.output.commit(UploadedFiles(), {"a": 1}, {"a": "x"})
    with pytest.raises(ConfigError, match="no '/'"):
        Producer(OUTPUT, settings=settings, producer_id=owner_id(NAME))


def put_entry(store: Store, table: str, version: int, body: bytes) -> None:
    store.put(DeltaLog(store, table).entry_path(version), body)


def test_what_another_engine_rewrote_stops_the_pipeline_until_that_is_accepted(
    settings: Settings, store: Store
) -> None:
    send(settings, "a", 1, 2)
    entry = DeltaLog(store, "a").read(1)
    assert entry is not None
    rest = encode(Table.from_arrow(pa.table({"id": pa.array([2])})))
    store.put("a/rest.parquet", rest)
    rewrite = build_entry(
        commit_id="x",
        timestamp_ms=entry.timestamp_ms,
        operation="DELETE",
        engine="other",
        adds=[Add("rest.parquet", len(rest), 1, 0)],
        removes=[entry.adds[0].path],
    )
    put_entry(store, "a", 2, rewrite)
    send(settings, "b", 10)
    source = reader(settings, topics="a,b")
    end = source.latestOffset()
    assert ids_of(source, source.initialOffset(), end) == [1, 2, 10]
    with pytest.raises(TopicRewritten, match=r"Entry 2 .*--accept-rewrites"):
        source.latestOffset()
    source = reader(settings, acceptrewrites="true")
    assert ids_of(source, source.initialOffset(), source.latestOffset()) == [1, 2, 2]


@pytest.mark.parametrize("until", ["", "now"])
@pytest.mark.parametrize("missing", [False, True], ids=["damaged", "missing"])
def test_an_entry_that_cannot_be_read_holds_back_its_own_partition_only(
    settings: Settings, store: Store, until: str, missing: bool
) -> None:
    for number in range(4):
        send(settings, "a", number)
        send(settings, "b", 10 + number)
    if missing:
        store.delete([DeltaLog(store, "a").entry_path(3)])
    else:
        put_entry(store, "a", 3, b"")
    expected, error = ([0, 1], LogIncomplete if missing else LogDamaged)
    for _ in range(2):  # a restart says the same
        source = reader(settings, topics="a,b", until=until)
        assert sorted(ids_of(source, source.initialOffset(), source.latestOffset())) == [*expected, 10, 11, 12, 13]
        with pytest.raises(error, match="Entry 3 of the log of"):
            for _ in range(60):
                source.latestOffset()


def test_an_object_that_cannot_be_read_is_named_by_its_offset_and_can_be_skipped(
    settings: Settings, store: Store
) -> None:
    for number in range(3):
        send(settings, "a", number)
    entry = DeltaLog(store, "a").read(2)
    assert entry is not None
    store.delete([f"a/{entry.adds[0].path}"])
    source = reader(settings)
    start, end = source.initialOffset(), source.latestOffset()
    with pytest.raises(StoreError, match=r"Offset 2:0 of 'a' cannot be read: .* --skip a@2:0") as caught:
        ids_of(source, start, end)
    assert unreadable_in(f"x\nbrokerless.errors.StoreError: {caught.value}\ny") == ("a", 2)
    source = reader(settings, skip="b@1:0,a@2:0")
    assert ids_of(source, source.initialOffset(), source.latestOffset()) == [0, 2]


def test_parts_of_a_batch() -> None:
    start, end = {"a": 1, "b": 4, "c": 0}, {"a": 4, "b": 4, "c": 1}
    assert halves(start, end) == [
        (start, {"a": 2, "b": 4, "c": 0}),
        ({"a": 2, "b": 4, "c": 0}, end),
    ]
    assert halves({"a": 1, "c": 0}, {"a": 2, "c": 1}) == [
        ({"a": 1, "c": 0}, {"a": 2, "c": 0}),
        ({"a": 2, "c": 0}, {"a": 2, "c": 1}),
    ]
    assert halves({"a": 1, "b": 4}, {"a": 2, "b": 4}) == []  # one commit
    cut = pieces({"a": -1, "b": -1}, {"a": 6, "b": 0}, 8)
    assert (cut[0][0], cut[-1][1]) == ({"a": -1, "b": -1}, {"a": 6, "b": 0})
    assert all(a[1] == b[0] for a, b in itertools.pairwise(cut))
