"""The real-time engine in Spark: which transforms it takes, that those lose nothing, and what ends it."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from brokerless.errors import ConfigError, PipelineError
from brokerless.log.log import DeltaLog
from brokerless.schema import Schema
from brokerless.spark import Pipeline
from brokerless.spark.job import run_arguments
from brokerless.spark.reader import source_options
from brokerless.spark.realtime import engine, requirements
from brokerless.spark.realtime.engine import RealtimePipeline, start_realtime
from brokerless.spark.realtime.requirements import NotRealtimeError
from brokerless.store import open_store
from brokerless.topics import create_topic
from tests.support.pipelines import create, finish, rows_of, send, settle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from brokerless.settings import Settings

    Transform = Callable[[DataFrame], DataFrame]

pytestmark = pytest.mark.spark

IDS = [f"{number:04d}" for number in range(2_000)]


@pytest.fixture
def topics(settings: Settings) -> Settings:
    create(settings)
    create_topic(open_store(settings), "out", Schema.parse("message string"))
    for at in range(0, len(IDS), 500):
        send(settings, "timezone1", IDS[at : at + 500])
    return settings


def start(spark: SparkSession, settings: Settings, transform: Transform, *, once: bool = True) -> RealtimePipeline:
    options = source_options(settings, ["timezone1"], name="p", output="out", once=once)
    where = {"name": "p", "settings": settings, "options": options, "commit_interval_s": 0.0}
    return start_realtime(spark, transform, "out", **where)  # type: ignore[arg-type]


def messages(settings: Settings) -> list[str]:
    return [row["message"] for row in rows_of(settings, "out")]


def same(rows: DataFrame) -> DataFrame:
    return rows.select("message")


def test_rows_that_a_filter_drops_or_a_generator_makes_are_exact(spark: SparkSession, topics: Settings) -> None:
    from pyspark.sql import functions as F

    def transform(rows: DataFrame) -> DataFrame:
        twice = F.explode(F.array("message", F.concat("message", F.lit("+"))))
        return rows.where("message not like '%5'").select(twice.alias("message"))

    finish(start(spark, topics, transform))
    assert messages(topics) == [text for id_ in IDS if not id_.endswith("5") for text in (id_, f"{id_}+")]


def test_a_join_with_a_table_that_is_broadcast(spark: SparkSession, topics: Settings) -> None:
    def transform(rows: DataFrame) -> DataFrame:
        names = spark.range(10).selectExpr("lpad(cast(id as string), 4, '0') as message", "concat('n', id) as name")
        return rows.join(names.hint("broadcast"), "message").selectExpr("name as message")

    finish(start(spark, topics, transform))
    assert messages(topics) == [f"n{number}" for number in range(10)]


def udf(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.select(F.udf(lambda text: text)("message").alias("message"))


def pandas_udf(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.select(F.pandas_udf(lambda texts: texts, "string")("message").alias("message"))


def arrow(rows: DataFrame) -> DataFrame:
    return rows.select("message").mapInArrow(lambda batches: batches, "message string")


def shuffled(rows: DataFrame) -> DataFrame:
    return rows.select("message").repartition(2)


def coalesced(rows: DataFrame) -> DataFrame:
    return rows.select("message").coalesce(1)


@pytest.mark.parametrize(
    ("transform", "operator"),
    [
        (udf, "BatchEvalPython"),
        (pandas_udf, "ArrowEvalPython"),
        (arrow, "MapInArrow"),
        (shuffled, "ShuffleExchange"),
        (coalesced, "Coalesce"),
    ],
    ids=["udf", "pandas_udf", "mapInArrow", "repartition", "coalesce"],
)
def test_a_transform_in_which_rows_wait_is_refused_before_anything_is_claimed(
    spark: SparkSession, topics: Settings, transform: Transform, operator: str
) -> None:
    with pytest.raises(NotRealtimeError, match=operator):
        start(spark, topics, transform)
    assert DeltaLog(open_store(topics), "out").state.version == 0
    assert not spark.streams.active
    assert spark.conf.get(engine._CHECK) == "true"  # other queries of the session are checked as ever
    finish(start(spark, topics, same))  # its task slots are free again
    assert messages(topics) == IDS


def test_the_plan_is_looked_at_where_sparks_own_check_is_off(spark: SparkSession, topics: Settings) -> None:
    spark.conf.set(engine._CHECK, "false")  # the user's choice, for other queries
    try:
        with pytest.raises(NotRealtimeError, match="ArrowEvalPython"):
            start(spark, topics, pandas_udf)
    finally:
        spark.conf.unset(engine._CHECK)
    assert DeltaLog(open_store(topics), "out").state.version == 0


def test_sockets_that_cannot_be_made_are_a_reason(
    spark: SparkSession, topics: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(NotRealtimeError, match="set TMPDIR to a folder with a short path"):
        start(spark, topics, same)


def test_state_is_refused_as_by_micro_batches(spark: SparkSession, topics: Settings) -> None:
    with pytest.raises(ConfigError, match=r"is stateful \(Deduplicate\)"):
        start(spark, topics, lambda rows: rows.select("message").dropDuplicates())


@pytest.mark.parametrize(
    ("provider", "missing", "said"),
    [
        (None, "org.apache.spark.sql.Nowhere", r"it lacks org\.apache\.spark\.sql\.Nowhere"),
        ("brokerless.realtime.Elsewhere", "brokerless.realtime.Elsewhere", r"without --jars .*bridge\.jar"),
    ],
)
def test_a_spark_that_lacks_a_class_says_which(
    spark: SparkSession,
    topics: Settings,
    monkeypatch: pytest.MonkeyPatch,
    provider: str | None,
    missing: str,
    said: str,
) -> None:
    monkeypatch.setattr(requirements, "PROVIDER", provider or requirements.PROVIDER)
    monkeypatch.setattr(requirements, "_INTERNALS", (missing,))
    with pytest.raises(NotRealtimeError, match=said):
        start(spark, topics, same)


def test_no_more_lanes_than_task_slots(spark: SparkSession, topics: Settings) -> None:
    stream = start(spark, topics, same, once=False)
    try:
        assert stream.bridge.lanes == 2  # of local[2]; a third would wait for ever, and nobody would say so
        with pytest.raises(ConfigError, match="hold all task slots"):
            start(spark, topics, same, once=False)
    finally:
        stream.stop()


def test_an_error_of_the_transform_ends_the_run_and_commits_nothing_behind_it(
    spark: SparkSession, topics: Settings
) -> None:
    from pyspark.sql import functions as F

    failing = F.when(F.col("message") == "1200", F.raise_error(F.lit("boom"))).otherwise(F.col("message"))
    stream = start(spark, topics, lambda rows: rows.select(failing.alias("message")))
    with pytest.raises(PipelineError, match=r"\[USER_RAISED_EXCEPTION\] boom"):
        finish(stream)
    assert messages(topics) in (IDS[:0], IDS[:500], IDS[:1000])
    finish(start(spark, topics, same))
    assert messages(topics) == IDS


def test_a_new_batch_of_spark_goes_on_where_the_last_one_stopped(
    spark: SparkSession, topics: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BATCH", "5 seconds")  # the least
    sent = list(IDS)
    over = threading.Event()

    def produce() -> None:
        number = len(IDS)
        while not over.wait(0.01):
            more = [f"{n:05d}" for n in range(number, number + 200)]
            send(topics, "timezone1", more)
            sent.extend(more)
            number += 200

    stream = start(spark, topics, same, once=False)
    producer = threading.Thread(target=produce)
    producer.start()
    try:
        deadline = time.monotonic() + 40
        while len(stream.query.recentProgress) < 3 and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        over.set()
        producer.join()
    settle(stream, topics)
    stream.stop()
    assert stream.error() is None
    assert max(progress["batchId"] for progress in stream.query.recentProgress) >= 1
    assert messages(topics) == sent


def test_a_session_that_dies_ends_the_run(spark: SparkSession, topics: Settings) -> None:
    stream = start(spark, topics, same, once=False)
    settle(stream, topics)
    stream.query.stop()  # as when its driver goes: every socket is closed
    stream.wait(once=False)
    stream.stop()
    assert messages(topics) == IDS
    send(topics, "timezone1", ["more"])
    finish(start(spark, topics, same))
    assert messages(topics) == [*IDS, "more"]


def job(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> Callable[[Transform], tuple[int, dict[str, Any], str]]:
    for name, value in settings.to_environ().items():
        monkeypatch.setenv(name, value)

    def run(transform: Transform) -> tuple[int, dict[str, Any], str]:
        args = ["--once", "--json", *arguments]
        code = run_arguments(Pipeline("p", inputs=["timezone1"], output="out", transform=transform), args)
        said = capsys.readouterr()
        events = [json.loads(line) for line in said.out.splitlines() if line.startswith("{")]
        return code, (events or [{}])[0], said.err

    return run


@pytest.mark.usefixtures("spark")
def test_a_job_takes_the_engine_that_the_transform_allows_and_says_why(
    topics: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = job(topics, monkeypatch, capsys)
    code, started, _ = run(same)
    assert (code, started["engine"], started["reason"]) == (0, "realtime", "")
    send(topics, "timezone1", ["more"])
    code, started, _ = run(udf)
    assert (code, started["engine"]) == (0, "micro-batch")
    assert started["reason"] == "the transform needs BatchEvalPython, where rows wait for others"
    assert messages(topics) == [*IDS, "more"]  # each engine goes on where the other stopped


@pytest.mark.usefixtures("spark")
def test_an_engine_that_was_asked_for_is_taken_or_refused(
    topics: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = job(topics, monkeypatch, capsys, "--engine", "realtime")(udf)
    assert code == 2
    assert "cannot run in real-time mode: the transform needs BatchEvalPython" in said
    code, started, _ = job(topics, monkeypatch, capsys, "--engine", "micro-batch")(same)
    assert (code, started["engine"], started["reason"]) == (0, "micro-batch", "")
    assert messages(topics) == IDS


def test_micro_batches_do_not_use_the_source_of_this_engine(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format(requirements.PROVIDER).schema("message string").options(folder="/", lanes=1).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", tmp_path.as_uri()).start()
    with pytest.raises(Exception, match="real-time mode only"):
        query.processAllAvailable()
