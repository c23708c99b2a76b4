"""Parquet objects that are not what the log says: readers name the object, and go on behind it when they are told to.

The victim is the second of three commits. Under the name that this kit gave it, with the checksum, every other byte
must be noticed. Under a foreign name there is no checksum, and flipped bits in a value cannot be noticed (see
docs/guarantees.md); there the object must be read as rows of the topic, or refused.
"""

from __future__ import annotations

import io
import json
import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from brokerless.consumer import Consumer
from brokerless.log.log import DeltaLog
from brokerless.offsets import Offset
from brokerless.verify.table import verify_topic
from tests.malformed import nasty
from tests.malformed.kinds import GIB, Kind, World, drained, once_each, producer_on, store_with

if TYPE_CHECKING:
    from random import Random

    from tests.support.fakes import FakeStore

VICTIM: Final = 2
_SCHEMA: Final = pa.schema({"id": pa.string(), "n": pa.int64(), "_produced_at": pa.timestamp("us", "UTC")})
_GOOD: Final = pa.table({"id": ["bad"] * 3, "n": [1, 2, 3], "_produced_at": [0, 0, 0]}, schema=_SCHEMA)


@dataclass(frozen=True, slots=True)
class Bad:
    """The bytes, and whether the object has the name of a foreign writer."""

    data: bytes
    foreign: bool


def generate(rng: Random) -> Bad:
    make = rng.choice((_damaged, _damaged, _damaged, _other_bytes, _lying_footer, _lying_footer, _schema, _bomb))
    return Bad(make(rng), make in {_schema, _bomb} or rng.random() < 0.6)


def _parquet(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def _damaged(rng: Random) -> bytes:
    data = _parquet(
        _GOOD, compression=rng.choice(("snappy", "zstd", "gzip", "none")), use_dictionary=rng.random() < 0.5
    )
    for _ in range(rng.choice((1, 1, 2))):
        data = nasty.damaged(rng, data)
    return data


def _other_bytes(rng: Random) -> bytes:
    size = rng.choice((4, 8, 12, 100, 5000))
    return rng.choice(
        (
            b"",
            b"PAR1",
            b"PAR1PAR1",
            b"PARE" + rng.randbytes(size) + b"PARE",
            b"PAR1" + rng.randbytes(size) + struct.pack("<I", size) + b"PAR1",
            rng.randbytes(size),
            bytes(size),
            b"id,n\nbad,1\n",
            b'{"id": "bad"}\n',
            b"\x1f\x8b\x08\x00" + rng.randbytes(size),
            b"<html>503 Slow Down</html>",
            b"ORC" + rng.randbytes(size),
        )
    )


def _lying_footer(rng: Random) -> bytes:
    """The length of the footer, or a number in it, says what is not so: sizes, counts, places."""
    data = bytearray(_parquet(_GOOD, compression="snappy"))
    length = struct.unpack("<I", data[-8:-4])[0]
    if rng.random() < 0.4:
        lie = rng.choice((0, 1, length - 1, length + 1, len(data), 2**31 - 1, 2**31, 2**32 - 1))
        data[-8:-4] = struct.pack("<I", lie)
    else:
        # Thrift's compact numbers: a byte becomes one of up to ten bytes that is as large as numbers get.
        place = rng.randrange(len(data) - 8 - length, len(data) - 8)
        lie_bytes = rng.choice(
            (b"\xff\xff\xff\xff\x0f", b"\xfe" + b"\xff" * 8 + b"\x01", b"\xff" * 9 + b"\x01", b"\x01")
        )
        data[place : place + 1] = lie_bytes
        data[-8:-4] = struct.pack("<I", length + len(lie_bytes) - 1)
    return bytes(data)


def _schema(rng: Random) -> bytes:
    """Whole and well, but of other columns than the topic's."""
    made = rng.choice(
        (
            _GOOD.drop_columns(["n"]),
            _GOOD.drop_columns(["_produced_at"]),
            _GOOD.append_column("more", pa.array([1, 2, 3])),
            _GOOD.rename_columns(["id", "N", "_produced_at"]),
            _GOOD.rename_columns(["id", "id", "_produced_at"]),
            _GOOD.select(["_produced_at", "n", "id"]),
            _GOOD.set_column(1, "n", pa.array(["1", "2", "x"])),
            _GOOD.set_column(1, "n", pa.array([1, 2, 3], pa.int32())),
            _GOOD.set_column(1, "n", pa.array([1.5, 2.5, float("nan")])),
            _GOOD.set_column(1, "n", pa.array([[1], [2], []])),
            _GOOD.set_column(1, "n", pa.array([{"a": 1}] * 3)),
            _GOOD.set_column(0, "id", pa.array([b"\xff", b"x", None])),
            _GOOD.set_column(0, "id", pa.array(["bad"] * 3).dictionary_encode()),
            _GOOD.set_column(2, "_produced_at", pa.array([0, 1, 2])),
            _GOOD.set_column(2, "_produced_at", pa.array([2**62, -(2**62), 0], pa.timestamp("us", "UTC"))),
            _GOOD.slice(0, 0),
            _GOOD.slice(0, 1),
            pa.concat_tables([_GOOD] * 4),
            pa.table({"other": [1]}),
            pa.table({}),
        )
    )
    return _parquet(made)


def _bomb(rng: Random) -> bytes:
    """A few kilobytes that unpack to a megabyte, or rarely to more than a gigabyte."""
    if rng.random() < 0.95:
        return _parquet(pa.table({"id": ["x" * 1_000_000], "n": [1]}), compression="gzip")
    return _large_bomb(rng.choice(("nulls", "texts")))


@cache
def _large_bomb(of: str) -> bytes:
    rows = 2_000_000
    texts = pa.array(["x" * 1000]).take(pa.array([0] * 1000))
    ids = pa.chunked_array([texts] * (rows // 1000)) if of == "texts" else pa.nulls(rows, pa.string())
    return _parquet(pa.table({"id": ids, "n": pa.nulls(rows, pa.int64())}))


def attack(bad: Bad, world: World) -> str | None:
    store = store_with("t", "id string, n long")
    with producer_on(store, "t") as producer:
        for id_ in ("before", "bad", "after"):
            producer.send({"id": [id_], "n": [7]})
    path = _replace(store, bad)
    own = not bad.foreign and path in store.objects and store.objects[path] == bad.data
    with Consumer("t", start="beginning", store=store, clock=store.clock, batch_bytes=1) as consumer:
        found: list[dict[str, Any]] = []
        error = world.error(lambda: drained(consumer, found))
        if error is not None:
            if path not in str(error):
                return f"the error does not name the object: {error}"
            if world.error(lambda: consumer.poll(0)) is None:
                return "the error does not come again"
            consumer.seek(Offset(VICTIM + 1))
            found += drained(consumer)
    world.count(error)
    if own and error is None:
        return "damaged bytes under a name with a checksum were taken"
    for row in found:
        if set(row) != {"id", "n", "_produced_at"} or not isinstance(row["n"], int | None):
            return f"a row that is none of the topic: {ascii(row)[:200]}"
    reports = verify_topic(store, "t", clock=store.clock, full=True)
    if error is not None and all(report.ok for report in reports):
        return "verify finds nothing wrong"
    return once_each(found, "id", ["before", "after"])


def _replace(store: FakeStore, bad: Bad) -> str:
    log = DeltaLog(store, "t", clock=store.clock)
    entry = log.read(VICTIM)
    assert entry is not None
    path = f"t/{entry.adds[0].path}"
    if bad.foreign:
        lines = store.objects[log.entry_path(VICTIM)].splitlines()
        actions = [json.loads(line) for line in lines]
        for action in actions:
            if "add" in action:
                action["add"] |= {"path": "part-00000-of-others.parquet", "size": len(bad.data)}
        store.put(log.entry_path(VICTIM), "\n".join(map(json.dumps, actions)).encode())
        path = "t/part-00000-of-others.parquet"
    store.put(path, bad.data)
    return path


KIND: Final = Kind(generate, attack, limit_s=60.0, memory=3 * GIB)
