"""The pipeline's promises: every message once, in order, through restarts, crashes, rivals and limits."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokerless.errors import (
    ConfigError,
    PipelineError,
    PipelineFenced,
    SchemaError,
    StoreError,
    TopicChanged,
    TopicDeleted,
    TopicNotFound,
)
from brokerless.log.log import DeltaLog
from brokerless.schema import Schema
from brokerless.spark import outputs, read_stream, sink, write_stream
from brokerless.spark.realtime import engine as realtime
from brokerless.store import open_store
from brokerless.topics import create_topic, delete_topic
from glue_jobs.timezone_etl import unify_timezones
from tests.support.pipelines import (
    BAD,
    GOOD,
    NAME,
    OUTPUT,
    CrashingStore,
    create,
    delivered,
    finish,
    rows_of,
    run_once,
    send,
    settle,
    start,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from brokerless.settings import Settings

pytestmark = pytest.mark.spark


ENGINES = pytest.mark.parametrize("engine", ["micro-batch", "realtime"])


def once(*ids: str) -> Counter[str]:
    return Counter(dict.fromkeys(ids, 1))


@ENGINES
def test_rows_in_are_rows_out_and_dead_letters(spark: SparkSession, settings: Settings, engine: str) -> None:
    create(settings)
    large = "x" * 2**20
    send(settings, "timezone1", ["a", "", large])
    send(settings, "timezone2", ["c"], date=BAD)
    send(settings, "timezone2", ["d"], date=None)
    run_once(spark, settings, engine=engine)
    assert delivered(settings) == (once("a", "", large), once("c", "d"))
    row, sent = rows_of(settings, OUTPUT)[0], rows_of(settings, "timezone1")[0]
    assert (row["timestamp"], row["_produced_at"]) == (1724403133066.217, sent["_produced_at"])
    store = open_store(settings)
    table_id = DeltaLog(store, "timezone1").state.metadata.id
    assert DeltaLog(store, OUTPUT).txn(f"timezone-etl:timezone1:0:{table_id}") == 1
    letters = {row["message"]: row for row in rows_of(settings, f"{OUTPUT}.dead_letters")}
    assert letters["c"]["_reason"] == "date is not like 2024-08-23 04:52:13.066217 -0400: 'yesterday'"
    assert letters["c"]["date"] == BAD
    assert (letters["c"]["_topic"], letters["c"]["_partition"], letters["c"]["_offset"]) == ("timezone2", 0, "1:0")
    assert letters["d"]["_reason"] == "date is null"
    assert letters["d"]["_offset"] == "2:0"


@ENGINES
def test_a_restart_needs_no_checkpoint(spark: SparkSession, settings: Settings, engine: str) -> None:
    create(settings)
    send(settings, "timezone1", ["a"])
    run_once(spark, settings, engine=engine)
    shutil.rmtree(settings.state_dir / "scratch" / f"pipeline-{NAME}")
    send(settings, "timezone1", ["b"])
    run_once(spark, settings, engine=engine)
    run_once(spark, settings, engine=engine)
    assert delivered(settings)[0] == once("a", "b")


# Where a process can die while it writes one batch with good rows and dead letters.
MOMENTS = {
    "after the dead letters' upload": ("after", f"{OUTPUT}.dead_letters/part-"),
    "after the output's upload": ("after", f"{OUTPUT}/part-"),
    "before the dead letters' commit": ("before", f"{OUTPUT}.dead_letters/_delta_log"),
    "between the two commits": ("after", f"{OUTPUT}.dead_letters/_delta_log"),
    "before the output's commit": ("before", f"{OUTPUT}/_delta_log"),
    "after the output's commit": ("after", f"{OUTPUT}/_delta_log"),
}


# Packs of real-time mode, which are uploaded and committed in the same way, crash everywhere in the simulation.
@pytest.mark.parametrize(
    ("engine", "moment"),
    [*(("micro-batch", moment) for moment in MOMENTS), ("realtime", "between the two commits")],
)
def test_a_crash_loses_and_repeats_nothing(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch, moment: str, engine: str
) -> None:
    create(settings)
    send(settings, "timezone1", ["a", "b"])
    send(settings, "timezone1", ["c"], date=BAD)
    send(settings, "timezone2", ["d"], date=BAD)
    when, where = MOMENTS[moment]
    # The first commit to each output claims it, the output's second says where the pipeline begins; the crash is to
    # hit the batch's.
    skip = {f"{OUTPUT}.dead_letters/_delta_log": 1, f"{OUTPUT}/_delta_log": 2}.get(where, 0)
    store = CrashingStore(open_store(settings), when, where, skip)
    with monkeypatch.context() as patched:
        patched.setattr(sink, "open_store", lambda _: store)
        patched.setattr(realtime, "open_store", lambda _: store)
        with pytest.raises(PipelineError, match="Crashed"):
            run_once(spark, settings, engine=engine)
    assert store.dead
    # More arrives before the restart, so that its first batch would be cut elsewhere if nothing held it back.
    send(settings, "timezone1", ["e"], date=BAD)
    send(settings, "timezone2", ["f"])
    run_once(spark, settings, engine=engine)
    assert delivered(settings) == (once("a", "b", "f"), once("c", "d", "e"))


@ENGINES
def test_a_crash_before_the_first_commit_does_not_move_a_start_at_latest(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    create(settings)
    send(settings, "timezone1", ["old"])
    # Two entries pass: the claim, and where the pipeline begins.
    store = CrashingStore(open_store(settings), "before", f"{OUTPUT}/_delta_log", skip=2)
    with monkeypatch.context() as patched:
        patched.setattr(sink, "open_store", lambda _: store)
        patched.setattr(realtime, "open_store", lambda _: store)
        stream = start(spark, settings, engine=engine, once=False, begin="latest")
        send(settings, "timezone1", ["a"])
        send(settings, "timezone1", ["b"], date=BAD)
        with pytest.raises(PipelineError, match="Crashed"):
            finish(stream)
    assert store.dead
    send(settings, "timezone1", ["c"])
    run_once(spark, settings, engine=engine, begin="latest")
    assert delivered(settings) == (once("a", "c"), once("b"))


@ENGINES
def test_the_newer_pipeline_of_a_name_wins(spark: SparkSession, settings: Settings, engine: str) -> None:
    create(settings)
    send(settings, "timezone1", ["a"])
    old = start(spark, settings, engine=engine, once=False, lanes=1)
    settle(old, settings)
    # With a scratch folder of its own, as on another machine.
    new = start(spark, replace(settings, state_dir=settings.state_dir / "other"), engine=engine, once=False, lanes=1)
    send(settings, "timezone1", ["b"])
    settle(new, settings)
    with pytest.raises(PipelineFenced, match="took over"):
        finish(old)
    new.stop()
    assert new.error() is None
    assert delivered(settings)[0] == once("a", "b")


def test_two_pipelines_of_a_name_with_outputs_of_their_own(spark: SparkSession, settings: Settings) -> None:
    create(settings)
    create_topic(open_store(settings), "other", Schema.parse("date string, message string"))
    send(settings, "timezone1", ["a"])
    old = start(spark, settings, once=False)
    old.query.processAllAvailable()
    rows = read_stream(spark, ["timezone1"], name=NAME, output="other", settings=settings, metadata=False)
    new = write_stream(rows, "other", name=NAME, settings=settings)
    send(settings, "timezone1", ["b"])
    finish(new)
    finish(old)
    assert delivered(settings)[0] == once("a", "b")
    assert [row["message"] for row in rows_of(settings, "other")] == ["a", "b"]
    assert not list((settings.state_dir / "scratch" / f"pipeline-{NAME}").iterdir())


@ENGINES
def test_partitions_of_several_topics_in_one_query(spark: SparkSession, settings: Settings, engine: str) -> None:
    create(settings, partitions=3)
    ids = [f"{topic}-{i}" for topic in ("timezone1", "timezone2") for i in range(30)]
    for i in range(0, 30, 5):
        send(settings, "timezone1", ids[i : i + 5])
        send(settings, "timezone2", ids[30 + i : 30 + i + 5])
    run_once(spark, settings, engine=engine)
    assert delivered(settings)[0] == once(*ids)


@pytest.mark.parametrize("executor_rows", [0, 1_000_000], ids=["executors", "driver"])
def test_order_within_a_partition(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch, executor_rows: int
) -> None:
    create(settings)
    ids = [f"{i:05d}" for i in range(4_000)]
    for i in range(0, 4_000, 1_000):
        send(settings, "timezone1", ids[i : i + 1_000])
    send(settings, "timezone1", ["bad"], date=BAD)
    run_once(spark, settings, executor_rows=executor_rows)
    assert [row["message"] for row in rows_of(settings, OUTPUT)] == ids
    assert delivered(settings)[1] == once("bad")


@pytest.mark.parametrize(
    ("name", "output", "root"),
    [("another", OUTPUT, ""), (NAME, "timezone1", ""), ("", "", ""), (NAME, OUTPUT, "/elsewhere")],
    ids=["name", "output", "none", "root"],
)
def test_a_source_that_looks_for_its_progress_elsewhere_is_refused(
    spark: SparkSession, settings: Settings, name: str, output: str, root: str
) -> None:
    create(settings)
    elsewhere = replace(settings, root=settings.root + root)
    create_topic(open_store(elsewhere), "timezone1", Schema.parse("date string, message string"), exist_ok=True)
    rows = read_stream(spark, ["timezone1"], name=name, output=output, settings=elsewhere)
    joined = unify_timezones(rows).join(spark.range(1).selectExpr("'a' as message"), "message", "left")
    with pytest.raises(ConfigError, match=f"writes it to name='{NAME}', output='{OUTPUT}', root {settings.root}. "):
        write_stream(joined, OUTPUT, name=NAME, settings=settings)
    assert DeltaLog(open_store(settings), OUTPUT).state.version == 0  # not even claimed


def test_two_sources_are_refused_before_anything_is_recorded(spark: SparkSession, settings: Settings) -> None:
    create(settings)
    where = {"name": NAME, "output": OUTPUT, "settings": settings}
    one, other = (read_stream(spark, [topic], **where) for topic in ("timezone1", "timezone2"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has one source"):
        write_stream(unify_timezones(one.union(other)), OUTPUT, name=NAME, settings=settings)
    assert DeltaLog(open_store(settings), OUTPUT).state.version == 0


@ENGINES
def test_a_topic_deleted_under_the_pipeline(spark: SparkSession, settings: Settings, engine: str) -> None:
    create(settings)
    send(settings, "timezone1", ["a"])
    stream = start(spark, settings, engine=engine, once=False)
    settle(stream, settings)
    store = open_store(settings)
    delete_topic(store, "timezone1")
    create_topic(store, "timezone1", Schema.parse("date string, message string"))
    with pytest.raises(TopicDeleted):
        finish(stream)
    # A restart goes on with the new topic.
    send(settings, "timezone1", ["b"])
    run_once(spark, settings, engine=engine)
    assert delivered(settings)[0] == once("a", "b")


def test_bad_configuration_stops_at_start(spark: SparkSession, settings: Settings) -> None:
    create(settings)
    with pytest.raises(TopicNotFound, match="nowhere"):
        read_stream(spark, ["nowhere"], name=NAME, output=OUTPUT, settings=settings)
    with pytest.raises(ConfigError, match="is not a position"):
        read_stream(spark, ["timezone1"], name=NAME, output=OUTPUT, settings=settings, start="soon")
    array = {"type": "array", "elementType": "string", "containsNull": True}
    field = {"name": "tags", "type": array, "nullable": True, "metadata": {}}
    text = json.dumps({"type": "struct", "fields": [field]})
    DeltaLog(open_store(settings), "nested").create(schema_string=text, configuration={})
    with pytest.raises(SchemaError, match="Column 'tags' has the nested or unknown type 'array'"):
        read_stream(spark, ["nested"], name=NAME, output=OUTPUT, settings=settings)
    rows = read_stream(spark, ["timezone1"], name=NAME, output=OUTPUT, settings=settings)
    with pytest.raises(SchemaError, match="Select exactly"):
        write_stream(rows.select("message"), OUTPUT, name=NAME, settings=settings)
    fits = rows.selectExpr("1D as timestamp", "message")
    with pytest.raises(ConfigError, match="1 to 100 characters"):
        write_stream(fits, OUTPUT, name="a:b", settings=settings)
    with pytest.raises(ConfigError, match=r"is stateful \((Deduplicate|Aggregate)\)"):
        write_stream(fits.dropDuplicates(), OUTPUT, name=NAME, settings=settings)


def object_of(settings: Settings, table: str, version: int) -> str:
    entry = DeltaLog(open_store(settings), table).read(version)
    assert entry is not None
    return f"{table}/{entry.adds[0].path}"


@pytest.mark.parametrize("executor_rows", [0, 1_000_000], ids=["executors", "driver"])
def test_an_object_that_cannot_be_read_holds_back_only_what_is_behind_it(
    spark: SparkSession, settings: Settings, executor_rows: int
) -> None:
    create(settings)
    for message in "abcd":
        send(settings, "timezone1", [message])
        send(settings, "timezone2", [message * 2], date=BAD if message == "b" else GOOD)
    store = open_store(settings)
    lost, damaged = object_of(settings, "timezone1", 3), object_of(settings, "timezone2", 4)
    kept = {path: store.get(path) for path in (lost, damaged)}
    store.delete([lost])
    store.put(damaged, kept[damaged][:-8])
    for _ in range(2):  # a restart says so again, and repeats nothing
        with pytest.raises(StoreError, match=r"Offset [34]:0 of 'timezone[12]' cannot be read: .* start the pipeline"):
            run_once(spark, settings, executor_rows=executor_rows)
        assert delivered(settings) == (once("a", "aa", "b", "cc"), once("bb"))
    for path, data in kept.items():
        store.put(path, data)
    run_once(spark, settings, executor_rows=executor_rows)
    assert delivered(settings) == (once("a", "aa", "b", "c", "cc", "d", "dd"), once("bb"))


def test_executors_that_take_too_long_come_to_a_commit_in_parts(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(settings)
    ids = [f"{topic}-{number}" for topic in ("timezone1", "timezone2") for number in range(4)]
    for number in range(4):
        send(settings, "timezone1", [ids[number]])
        send(settings, "timezone2", [ids[4 + number]])
    send(settings, "timezone1", ["bad"], date=BAD)
    monkeypatch.setattr(outputs, "COMMIT_WITHIN_MS", -1)  # no executor is ever fast enough
    stream = start(spark, settings, executor_rows=0)
    finish(stream)
    assert delivered(settings) == (once(*ids), once("bad"))
    reports = stream.drain()
    assert len(reports) == 9  # one commit each, by the driver
    assert {report.by for report in reports} == {"driver"}


def test_an_input_made_again_by_hand_stops_the_pipeline(spark: SparkSession, settings: Settings) -> None:
    create(settings)
    for message in "abc":
        send(settings, "timezone1", [message])
    run_once(spark, settings)
    store = open_store(settings)
    store.delete([info.path for info in store.list("timezone1")])
    create(settings, topics=["timezone1"])
    for message in "defg":
        send(settings, "timezone1", [message])
    with pytest.raises(TopicChanged, match="--accept-new-input"):
        run_once(spark, settings)
    run_once(spark, settings, accept_new_input=True)
    run_once(spark, settings)
    assert delivered(settings)[0] == once(*"abcdefg")


def test_a_transform_that_shuffles_is_not_run_for_a_part(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(settings)
    store = open_store(settings)
    create_topic(store, "out", Schema.parse("message string"))
    for message in "abcd":
        send(settings, "timezone1", [message])
        send(settings, "timezone2", [message * 2])

    def run(executor_rows: int) -> None:
        where = {"name": "shuffling", "output": "out", "settings": settings}
        rows = read_stream(spark, ["timezone1", "timezone2"], **where, metadata=False)  # type: ignore[arg-type]
        moved = rows.repartition(3).select("message")
        finish(write_stream(moved, "out", name="shuffling", settings=settings, executor_rows=executor_rows))

    lost = object_of(settings, "timezone1", 3)
    kept = store.get(lost)
    store.delete([lost])
    with pytest.raises(StoreError, match="Offset 3:0 of 'timezone1'"):
        run(executor_rows=1_000_000)
    assert rows_of(settings, "out") == []
    store.put(lost, kept)
    monkeypatch.setattr(outputs, "COMMIT_WITHIN_MS", -1)
    run(executor_rows=0)
    assert Counter(row["message"] for row in rows_of(settings, "out")) == once(*"abcd", "aa", "bb", "cc", "dd")
