"""Checkpoints and ``_last_checkpoint`` hints that lie: named errors, or the log goes on without them.

Some logs still have all their entries, in others clean-up has removed those below the checkpoint. When the damage is
repaired, every message is there exactly once, those included that were acknowledged in between.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from brokerless.consumer import Consumer
from brokerless.log.log import DeltaLog
from brokerless.topics import describe_topic
from brokerless.verify.table import verify_topic
from tests.malformed import nasty
from tests.malformed.kinds import GIB, Kind, World, drained, once_each, producer_on, store_with
from tests.malformed.log_entries import SCHEMAS
from tests.support.checkpoints import clean_up, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

HINT: Final = "t/_delta_log/_last_checkpoint"
CHECKPOINT: Final = f"t/_delta_log/{3:020d}.checkpoint.parquet"


@dataclass(frozen=True, slots=True)
class Bad:
    """Which object becomes what, and whether entries below the checkpoint are gone."""

    path: str
    change: Callable[[bytes], bytes]
    cleaned: bool


def generate(rng: Random) -> Bad:
    make = rng.choice((_hint, _hint, _bytes, _rows, _rows))
    path, change = make(rng)
    return Bad(path, change, rng.random() < 0.5)


def _hint(rng: Random) -> tuple[str, Callable[[bytes], bytes]]:
    value = nasty.value(rng)
    value = 10**4299 if isinstance(value, int) and abs(value) > 10**4299 else value
    text = rng.choice(
        (
            json.dumps({"version": value, "size": 1}).encode(),
            json.dumps(value).encode(),
            json.dumps(
                {"version": rng.choice((0, 1, 2, 4, 5, 999, -1, -3, 2**63, 10**19, 10**20, 3.7, "3", True))}
            ).encode(),
            json.dumps({"version": 3, "size": value, "parts": rng.choice((2, -1, 10**9, "x", None))}).encode(),
            b'{"version": 1e999}',
            b'{"version": NaN}',
            b'{"version": ' + b"9" * 5000 + b"}",
            b"[" * 100_000,
            b'{"version": 3, "version": 99}',
            b"",
            b"\xff\xfe",
            b"3",
            b"\x00",
            b"x" * 100_000,
            b'{"version":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        )
    )
    seed = rng.randrange(2**32)
    if rng.random() < 0.3:
        return HINT, lambda good: nasty.damaged(Random(seed), good)
    return HINT, lambda good: text


def _bytes(rng: Random) -> tuple[str, Callable[[bytes], bytes]]:
    seed = rng.randrange(2**32)
    other = rng.choice((b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"{}", rng.randbytes(500)))
    if rng.random() < 0.2:
        return CHECKPOINT, lambda good: other
    return CHECKPOINT, lambda good: nasty.damaged(Random(seed), good)


def _rows(rng: Random) -> tuple[str, Callable[[bytes], bytes]]:
    """A whole Parquet object with other columns, or with rows that say what no checkpoint may."""
    nothing: list[dict[str, Any]] = []
    more = rng.choice(
        (
            [{"txn": {"appId": None, "version": 1}}],
            [{"txn": {"appId": "a", "version": None}}],
            [{"txn": {"appId": "a", "version": -(2**63)}}],
            [{"add": {"path": None, "size": 1}}],
            [{"add": {"path": "x", "size": None}}],
            [{"add": {"path": "../x", "size": 1}}],
            [{"remove": {"path": None}}],
            [{"remove": {"path": "x", "deletionTimestamp": None}}],
            [{"protocol": {"minReaderVersion": None, "minWriterVersion": 2}}],
            [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}}],
            [{"protocol": {"minReaderVersion": -1, "minWriterVersion": 2**31 - 1}}],
            [{"metaData": {"id": None, "schemaString": None}}],
            [{"metaData": {"id": "x", "schemaString": rng.choice(SCHEMAS)}}],
            [{"metaData": {"id": "x", "schemaString": "{}", "configuration": [("brokerless.partitions", "x")]}}],
            [{"metaData": {"id": "x", "schemaString": "{}", "configuration": [("brokerless.partitions", "9" * 9)]}}],
            nothing,
        )
    )
    drop = rng.choice((None, None, "txn", "add", "metaData", "protocol", "all"))
    retype = rng.choice((None, None, "txn", "add", "remove", "metaData", "protocol"))
    flat = rng.choice((pa.array([1]), pa.array(["x"]), pa.array([[1]]), pa.array([{"a": 1}]), pa.array([{"path": 1}])))
    bomb = rng.random() < 0.01
    if bomb:
        _bomb()  # here, where no memory is counted

    def change(good: bytes) -> bytes:
        if bomb:
            return _bomb()
        table = pq.read_table(io.BytesIO(good))
        table = pa.concat_tables([table, pa.Table.from_pylist(more, schema=table.schema)])
        if drop == "all":
            return _parquet(pa.table({"other": [1]}))
        if drop is not None:
            table = table.drop_columns([drop])
        if retype is not None and retype in table.column_names:
            place = table.column_names.index(retype)
            table = table.set_column(place, retype, flat.take(pa.array([0] * table.num_rows)))
        return _parquet(table)

    return CHECKPOINT, change


@cache
def _bomb() -> bytes:
    """Some kilobytes with a million rows."""
    return _parquet(pa.table({"txn": pa.nulls(1_000_000, pa.int64()), "metaData": pa.nulls(1_000_000, pa.int64())}))


def _parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def attack(bad: Bad, world: World) -> str | None:
    store = store_with("t", "id string")
    with producer_on(store, "t") as holder:
        for id_ in ("a", "b", "c"):
            holder.send({"id": [id_]})
        log = DeltaLog(store, "t", clock=store.clock)
        write_checkpoint(log)
        holder.send({"id": ["d"]})
        if bad.cleaned:
            clean_up(log, 3)
        good = store.objects[bad.path]
        store.put(bad.path, bad.change(good))
        store.clock.advance(120)  # who holds the table open looks at the hint again
        sent = [] if world.error(lambda: holder.send({"id": ["held"]})) else ["held"]

    def send() -> None:
        with producer_on(store, "t") as producer:
            producer.send({"id": ["new"]})
        sent.append("new")

    opened = world.error(lambda: DeltaLog(store, "t", clock=store.clock).load(with_files=True))
    described = world.error(lambda: describe_topic(store, "t", clock=store.clock))
    written = world.error(send)
    read = world.error(lambda: drained(Consumer("t", start="beginning", store=store, clock=store.clock)))
    world.error(lambda: verify_topic(store, "t", clock=store.clock, full=True))
    world.count(opened or described or written or read)
    store.put(bad.path, good)
    with Consumer("t", start="beginning", store=store, clock=store.clock) as consumer:
        # Clean-up removes entries, and with them the offsets of a and b; the checkpoint itself is at c.
        wrong = once_each(drained(consumer), "id", [*(("c",) if bad.cleaned else ("a", "b", "c")), "d", *sent])
    return wrong and f"after the repair: {wrong}"


KIND: Final = Kind(generate, attack, limit_s=60.0, memory=3 * GIB)
