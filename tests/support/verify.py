"""Topics to verify, and what verification finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brokerless import DeltaLog, Producer, Schema, create_topic
from brokerless.clock import SYSTEM
from brokerless.log.entries import build_entry
from brokerless.verify.table import verify_table, verify_topic
from tests.support.fakes import FakeClock

if TYPE_CHECKING:
    from brokerless.store import ObstoreStore

SCHEMA = Schema.parse("id string, n long")


def fill(store: ObstoreStore, topic: str = "t", *, commits: int = 3, partitions: int = 1) -> DeltaLog:
    """A topic of which each commit (from version 1 on) has two messages."""
    create_topic(store, topic, SCHEMA, partitions=partitions)
    for partition in range(partitions):
        with Producer(topic, store=store, partition=partition) as producer:
            for n in range(commits):
                producer.send([{"id": f"{partition}-{n}-{row}", "n": row} for row in range(2)])
    return DeltaLog(store, topic)


def find(store: ObstoreStore, table: str = "t", **more: Any) -> list[tuple[str, str]]:
    return [(finding.kind, finding.text) for finding in verify_table(store, table, **more).findings]


def paths(log: DeltaLog, version: int) -> list[str]:
    entry = log.read(version)
    assert entry is not None
    return [add.path for add in entry.adds]


def put_entry(log: DeltaLog, version: int, **more: Any) -> None:
    """An entry by an unconditional PUT, as bad writers write them."""
    fields = {"commit_id": "c", "timestamp_ms": 1_900_000_000_000, "operation": "WRITE", "engine": "some/1"} | more
    log.store.put(log.entry_path(version), build_entry(**fields))


def now() -> FakeClock:
    clock = FakeClock()
    clock.now_us = SYSTEM.time_us()
    return clock


def kinds(store: ObstoreStore, clock: FakeClock) -> list[str]:
    return [finding.kind for report in verify_topic(store, "t", clock=clock) for finding in report.findings]
