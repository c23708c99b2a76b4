"""The example pipeline in the hands of a test: topics, messages, runs, crashes at named moments, and what came out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from brokerless.consumer import Consumer
from brokerless.log.log import DeltaLog
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.spark import read_stream, write_stream
from brokerless.spark.failures import named_error
from brokerless.spark.reader import source_options
from brokerless.spark.realtime.engine import RealtimePipeline, start_realtime
from brokerless.store import open_store
from brokerless.topics import create_dead_letters, create_topic
from glue_jobs.timezone_etl import unify_timezones

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from brokerless.settings import Settings
    from brokerless.spark import RunningPipeline
    from brokerless.store import Outcome, Store, Tag

NAME, OUTPUT = "timezone-etl", "timezone_unified"
GOOD, BAD = "2024-08-23 10:52:13.066217 +0200", "yesterday"


class Crashed(Exception):
    """The process would be dead now."""


class CrashingStore:
    """A store that dies at one moment and does nothing ever after, as a killed process would.

    Args:
        store: the real one.
        moment: ``before`` or ``after``.
        fragment: of the path of the PUT at which it happens.
        skip: that many such PUTs pass first.
    """

    def __init__(self, store: Store, moment: str, fragment: str, skip: int = 0) -> None:
        self._store, self._moment, self._fragment, self._skip = store, moment, fragment, skip
        self.dead = False
        self.uri, self.requests = store.uri, store.requests

    def put(self, path: str, data: bytes, *, within_s: float | None = None) -> None:
        self._around(path, lambda: self._store.put(path, data, within_s=within_s))

    def put_if_absent(self, path: str, data: bytes, *, within_s: float | None = None) -> Outcome:
        outcome: Outcome = self._around(path, lambda: self._store.put_if_absent(path, data, within_s=within_s))
        return outcome

    def swap(
        self, path: str, data: bytes, tag: Tag | None, *, within_s: float | None = None
    ) -> tuple[Outcome, Tag | None]:
        swapped: tuple[Outcome, Tag | None] = self._around(
            path, lambda: self._store.swap(path, data, tag, within_s=within_s)
        )
        return swapped

    def __getattr__(self, name: str) -> Any:
        if self.dead:
            raise Crashed
        return getattr(self._store, name)

    def _around(self, path: str, act: Any) -> Any:
        if self.dead:
            raise Crashed
        hit = self._fragment in path
        if hit and self._skip:
            self._skip -= 1
            hit = False
        if hit and self._moment == "before":
            self.dead = True
            raise Crashed
        result = act()
        if hit:
            self.dead = True
            raise Crashed
        return result


def create(settings: Settings, *, partitions: int = 1, topics: Sequence[str] = ("timezone1", "timezone2")) -> None:
    store = open_store(settings)
    schema = Schema.parse("date string, message string")
    for topic in topics:
        create_topic(store, topic, schema, partitions=partitions)
    create_topic(store, OUTPUT, Schema.parse("timestamp double, message string"), exist_ok=True)
    create_dead_letters(store, OUTPUT, [schema])


def send(settings: Settings, topic: str, ids: Sequence[str], date: str | None = GOOD) -> None:
    """One commit with these messages, bad ones if ``date`` cannot be parsed."""
    with Producer(topic, settings=settings) as producer:
        producer.send({"date": [date] * len(ids), "message": list(ids)})


def start(
    spark: SparkSession,
    settings: Settings,
    *,
    topics: Sequence[str] = ("timezone1", "timezone2"),
    name: str = NAME,
    begin: str = "beginning",
    once: bool = True,
    executor_rows: int = 1_000_000,
    engine: str = "micro-batch",
    lanes: int | None = None,
    **limits: Any,
) -> RunningPipeline:
    where = {"name": name, "output": OUTPUT, "settings": settings}
    if engine == "realtime":
        options = source_options(settings, topics, name=name, output=OUTPUT, start=begin, once=once, **limits)
        where = {"name": name, "settings": settings, "options": options, "commit_interval_s": 0.0, "lanes": lanes}
        return start_realtime(spark, unify_timezones, OUTPUT, **where)  # type: ignore[arg-type]
    rows = read_stream(spark, topics, **where, start=begin, once=once, **limits)  # type: ignore[arg-type]
    return write_stream(unify_timezones(rows), OUTPUT, name=name, settings=settings, executor_rows=executor_rows)


def settle(stream: RunningPipeline, settings: Settings, topics: Sequence[str] = ("timezone1",)) -> None:
    """Waits until the output has what is in partition 0 of these topics now, or the stream has ended."""
    if not isinstance(stream, RealtimePipeline):
        stream.query.processAllAvailable()
        return
    heads = {topic: DeltaLog(open_store(settings), topic).head() for topic in topics}
    bridge = stream.bridge
    while not bridge.ended.wait(0.02):
        if all(bridge._packer.committed.at[topic] >= head for topic, head in heads.items()):
            return


def finish(stream: RunningPipeline) -> None:
    """Processes what is there and ends; raises what went wrong."""
    try:
        stream.wait(once=True)
    except Exception as error:
        raise stream.error() or named_error(str(error)) from error
    finally:
        stream.stop()
    if (failure := stream.error()) is not None:
        raise failure


def run_once(spark: SparkSession, settings: Settings, **options: Any) -> None:
    finish(start(spark, settings, **options))


def rows_of(settings: Settings, topic: str) -> list[dict[str, Any]]:
    """Everything in a topic, in log order."""
    with Consumer(topic, settings=settings, start="beginning") as consumer:
        rows: list[dict[str, Any]] = []
        while batches := consumer.poll(0):
            for batch in batches:
                rows.extend(pa.table(batch.data).to_pylist())
        return rows


def delivered(settings: Settings) -> tuple[Counter[str], Counter[str]]:
    """How often each message is in the output and in the dead letters."""
    good = Counter(row["message"] for row in rows_of(settings, OUTPUT))
    return good, Counter(row["message"] for row in rows_of(settings, f"{OUTPUT}.dead_letters"))
