"""``Pipeline.run`` as a notebook calls it, and the files of ``brokerless new`` as their user does."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from brokerless import Pipeline
from brokerless.errors import ConfigError, SchemaError, TopicNotFound
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.spark import PipelineResult, static_messages
from brokerless.spark.conf import STREAM_CONF
from brokerless.spark.exact import parse_versions, transform_versions
from brokerless.spark.files import load_pipeline
from brokerless.store import open_store
from brokerless.topics import create_topic, describe_topic, list_topics
from brokerless.verify.compare import compare_topics
from tests.support.pipelines import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from brokerless.settings import Settings
    from brokerless.spark.conf import Engine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

REPO = Path(__file__).parents[2]
CLICKS = "user string, page string"


def examples(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (REPO / page).read_text(), re.MULTILINE | re.DOTALL)


DOCUMENTED = examples("docs/pipelines.md")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The one that the documents show."""
    file = tmp_path_factory.mktemp("docs") / "by_section.py"
    file.write_text(DOCUMENTED[0])
    return load_pipeline(file)


@pytest.fixture
def clicks(settings: Settings) -> Settings:
    create_topic(open_store(settings), "clicks", Schema.parse(CLICKS))
    send(settings, ("ada", "/docs/api"), ("bob", None))
    return settings


def send(settings: Settings, *clicks: tuple[str, str | None]) -> None:
    with Producer("clicks", settings=settings) as producer:
        producer.send([{"user": user, "page": page} for user, page in clicks])


def test_a_run_in_a_session_of_somebody_elses(
    spark: SparkSession, pipeline: Pipeline, clicks: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    key = "spark.sql.shuffle.partitions"
    spark.conf.set(key, "7")
    try:
        result = pipeline.run(clicks, once=True, create_output=True, spark=spark)
        assert spark.conf.get(key) == "7"  # restored
    finally:
        spark.conf.set(key, STREAM_CONF[key])
    assert result == PipelineResult(rows=1, dead_letters=1, engine="realtime")
    assert describe_topic(open_store(clicks), "sections").schema == Schema.parse("user string, section string")
    assert [(row["user"], row["section"]) for row in rows_of(clicks, "sections")] == [("ada", "docs")]
    [letter] = rows_of(clicks, "sections.dead_letters")
    assert (letter["user"], letter["_reason"], letter["_offset"]) == ("bob", "page is null", "1:1")
    assert pipeline.run(clicks, once=True, spark=spark).rows == 0  # it goes on where it stopped
    assert capfd.readouterr().out == ""


def test_a_run_in_a_thread_ends_when_it_is_asked_to(spark: SparkSession, pipeline: Pipeline, clicks: Settings) -> None:
    stop, results = threading.Event(), []
    options = {"engine": "micro-batch", "create_output": True, "spark": spark, "stop": stop}
    thread = threading.Thread(target=lambda: results.append(pipeline.run(clicks, **options)))  # type: ignore[arg-type]
    thread.start()
    while thread.is_alive() and len(spark.streams.active) == 0:
        thread.join(0.05)
    query = spark.streams.active[0]
    query.processAllAvailable()
    stop.set()
    thread.join(60)
    assert results == [PipelineResult(rows=1, dead_letters=1, engine="micro-batch")]


def test_a_missing_output_is_an_error_with_its_columns(
    spark: SparkSession, pipeline: Pipeline, clicks: Settings
) -> None:
    command = 'brokerless topics create sections --schema "user string, section string"'
    with pytest.raises(TopicNotFound, match=command) as refused:
        pipeline.run(clicks, once=True, spark=spark)
    assert not refused.value.on_the_way
    assert [topic.name for topic in list_topics(open_store(clicks))] == ["clicks"]  # nothing was created


def test_an_output_is_not_created_with_columns_that_a_topic_cannot_have(spark: SparkSession, clicks: Settings) -> None:
    nested = Pipeline(
        "n", inputs=["clicks"], output="n", transform=lambda rows: rows.select(F.struct("user").alias("s"))
    )
    with pytest.raises(SchemaError, match="Column 's' has the nested or unknown type"):
        nested.run(clicks, once=True, create_output=True, spark=spark)
    assert [topic.name for topic in list_topics(open_store(clicks))] == ["clicks"]


def test_the_documents_show_it_in_twelve_lines_and_their_other_examples_run(
    spark: SparkSession, clicks: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len([line for line in DOCUMENTED[0].splitlines() if line]) <= 12
    assert DOCUMENTED[0] in examples("README.md")
    assert DOCUMENTED[0] in examples("CONTRIBUTING.md")
    for name, value in clicks.to_environ().items():
        monkeypatch.setenv(name, value)
    for code in DOCUMENTED[1:]:
        exec(compile(code, "<example>", "exec"), {})  # noqa: S102  # our own documents
    shown = capsys.readouterr().out
    assert shown.startswith("2 0 realtime\n")
    assert "/docs/api" in shown


def test_static_messages_have_the_columns_of_a_stream(spark: SparkSession) -> None:
    rows = static_messages(spark, CLICKS, [("ada", "/"), ("bob", None)], topic="clicks")
    assert rows.columns == ["user", "page", "_produced_at", "_topic", "_partition", "_version", "_index"]
    found = [(row["user"], row["_topic"], row["_version"], row["_index"]) for row in rows.collect()]
    assert found == [("ada", "clicks", 1, 0), ("bob", "clicks", 1, 1)]


def test_the_files_of_new_run_as_they_are(clicks: Settings, tmp_path: Path) -> None:
    environ = {**os.environ, **clicks.to_environ(), "PYTHONPATH": str(REPO)}

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", *arguments]
        return subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )

    assert python("brokerless.cli", "new", "pipeline", "by-section").returncode == 0
    done = python("brokerless.cli", "run", "by_section.py", "--once")
    assert done.returncode == 0, done.stderr[-3000:]
    assert [(row["user"], row["section"]) for row in rows_of(clicks, "by_section")] == [("ada", "docs")]
    assert [row["user"] for row in rows_of(clicks, "by_section.dead_letters")] == ["bob"]
    tested = python("pytest", "-q", "-p", "no:cacheprovider", "test_by_section.py")
    assert tested.returncode == 0, tested.stdout[-3000:]
    assert "2 passed" in tested.stdout


@pytest.mark.parametrize("engine", ["realtime", "micro-batch"])
def test_a_replay_into_another_output_ends_where_it_should_and_leaves_the_live_one_alone(
    spark: SparkSession, pipeline: Pipeline, clicks: Settings, engine: Engine
) -> None:
    store = open_store(clicks)
    send(clicks, ("cy", "/blog/1"))
    send(clicks, ("di", "/blog/2"))
    run = {"engine": engine, "create_output": True, "spark": spark}
    assert pipeline.run(clicks, once=True, **run).rows == 3  # type: ignore[arg-type]
    live = describe_topic(store, "sections").heads
    beside = dataclasses.replace(pipeline, output="sections_v2")
    assert beside.run(clicks, until="3:0", **run).rows == 2  # type: ignore[arg-type]
    assert not compare_topics(store, "sections", "sections_v2").ok
    assert beside.run(clicks, until="3:0", **run).rows == 0  # type: ignore[arg-type]
    assert beside.run(clicks, until="now", **run).rows == 1  # type: ignore[arg-type]
    assert compare_topics(store, "sections", "sections_v2", key=["user"]).ok
    assert describe_topic(store, "sections").heads == live


def test_exactly_these_commits_are_transformed_and_nothing_is_written(
    spark: SparkSession, pipeline: Pipeline, clicks: Settings
) -> None:
    send(clicks, ("cy", "/blog/1"))
    send(clicks, ("di", "/blog/2"))
    rows = transform_versions(pipeline, clicks, parse_versions(["clicks/0=1:2"]), spark).collect()
    assert [(row["user"], row["section"]) for row in rows if row["_dead_letter"] is None] == [
        ("ada", "docs"),
        ("cy", "blog"),
    ]
    assert [row["_dead_letter"]["_offset"] for row in rows if row["_dead_letter"]] == ["1:1"]
    assert [topic.name for topic in list_topics(open_store(clicks))] == ["clicks"]
    with pytest.raises(ConfigError, match="has no entry 4"):
        transform_versions(pipeline, clicks, {("clicks", 0): (3, 4)}, spark)
    with pytest.raises(ConfigError, match="does not read partition 1"):
        transform_versions(pipeline, clicks, {("clicks", 1): (1, 1)}, spark)
