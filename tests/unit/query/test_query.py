"""Topics as relations: scans, the latest message of each key, and SQL by topic names."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from brokerless.alter import alter_topic, limits_of
from brokerless.client import Client
from brokerless.errors import ConfigError, TopicNotFound
from brokerless.maintenance import compaction
from brokerless.maintenance.erasure import erase_messages
from brokerless.maintenance.maintainer import Maintainer
from brokerless.producer.producer import Producer
from brokerless.query.scan import scan
from brokerless.query.sql import run_sql
from brokerless.schema import Schema
from brokerless.settings import Settings
from brokerless.topics import create_topic
from tests.support.fakes import FakeClock, FakeStore

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = Schema.parse("user string, n long")


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, partitions=2, clock=clock)
    return store


def send(store: FakeStore, **last: int | None) -> None:
    Producer("t", key="user", store=store, clock=store.clock).send([{"user": u, "n": n} for u, n in last.items()])


def latest_of(store: FakeStore) -> dict[str, int]:
    found = scan("t", latest_only=True, key="user", store=store, clock=store.clock)
    return {row["user"]: row["n"] for row in found.rows()}


def test_a_scan_has_the_messages_of_all_partitions(store: FakeStore, clock: FakeClock) -> None:
    assert len(scan("t", store=store, clock=clock)) == 0
    send(store, a=1, b=2, c=3, d=4, e=5)
    found = scan("t", store=store, clock=clock)
    assert sorted(row["n"] for row in found.rows()) == [1, 2, 3, 4, 5]
    assert found.to_polars().columns == ["user", "n", "_produced_at"]
    assert found.to_duckdb().aggregate("sum(n)").fetchall() == [(15,)]
    parts = [len(scan("t", partitions=[number], store=store, clock=clock)) for number in (0, 1)]
    assert sum(parts) == 5
    assert min(parts) > 0
    with pytest.raises(ConfigError, match="the partitions 0 to 1, not 2"):
        scan("t", partitions=[2], store=store, clock=clock)
    with pytest.raises(TopicNotFound):
        scan("nothing", store=store, clock=clock)


def test_the_latest_message_of_each_key_before_and_after_merging_and_erasure(
    store: FakeStore, clock: FakeClock
) -> None:
    with pytest.raises(ConfigError, match="give key=, one of: user, n"):
        scan("t", latest_only=True, store=store, clock=clock)
    send(store, a=1, b=1, c=1, d=1)
    send(store, a=2, b=None)  # deletes b
    assert latest_of(store) == {"a": 2, "c": 1, "d": 1}
    erase_messages(store, "t", "user = 'd'", clock=clock)  # writes the objects with a = 1 and c = 1 again
    assert latest_of(store) == {"a": 2, "c": 1}
    clock.advance(compaction.SETTLED_S + 1)
    alter_topic(store, "t", limits_of(SCHEMA, compact_by="user"), clock=clock)
    send(store, c=2)
    Maintainer(["t"], store=store, clock=clock, merge_every=1, checkpoint_every=10**9).run_once()
    assert latest_of(store) == {"a": 2, "c": 2}
    send(store, b=3, a=None)
    assert latest_of(store) == {"b": 3, "c": 2}


def test_an_object_that_was_written_again_is_not_newer_than_what_came_after_it(
    store: FakeStore, clock: FakeClock
) -> None:
    create_topic(store, "one", SCHEMA, clock=clock)
    for last in ({"a": 1, "d": 1}, {"a": 2}, {"b": 1, "d": 2}, {"b": 2}):
        Producer("one", store=store, clock=clock).send([{"user": user, "n": n} for user, n in last.items()])
        clock.advance(1)
    erase_messages(store, "one", "user = 'd'", clock=clock)
    found = scan("one", latest_only=True, key="user", store=store, clock=clock)
    assert {row["user"]: row["n"] for row in found.rows()} == {"a": 2, "b": 2}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings("embedded", tmp_path.as_uri())
    with Client(settings=settings) as client:
        client.create_topic("clicks", "page string, at timestamp", partitions=2)
        at = datetime(2026, 11, 20, 12, tzinfo=UTC)
        with client.producer("clicks", key="page") as producer:
            producer.send([{"page": page, "at": at} for page in ("/", "/", "/a", "/b")])
        client.create_topic("clean.dead_letters", "n long")
    return settings


def test_sql_reads_topics_by_their_names(settings: Settings) -> None:
    with Client(settings=settings) as client:
        found = client.sql("select page, count(*) as n from clicks group by page order by page")
    assert found.to_struct_array().to_pylist() == [
        {"page": "/", "n": 2},
        {"page": "/a", "n": 1},
        {"page": "/b", "n": 1},
    ]
    assert run_sql('select count(*) as n from "clean.dead_letters"', settings=settings).column("n").to_pylist() == [0]
    late = "select count(*) as n from clicks where at > '2026-11-20T12:30:00+01:00'"
    assert run_sql(late, settings=settings).column("n").to_pylist() == [4]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from clics", "There is no topic 'clics' in .* There are: clean.dead_letters, clicks."),
        ("drop table clicks", "Only queries can be run"),
        ("select nothing from clicks", "The query cannot be run: .*nothing"),
        ("select page clicks", "The query cannot be run"),
    ],
)
def test_a_query_that_cannot_be_run_says_why(settings: Settings, query: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_sql(query, settings=settings)
