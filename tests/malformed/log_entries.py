"""Log entries that no Delta writer should write: readers and writers name them, and nothing before or behind is lost.

The entry is the one that creates the table, or the second of three commits. Whoever opens the table, whoever holds it
open, and whoever verifies it meets the entry. When it is repaired, everything is there as if nothing had happened.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from brokerless.consumer import Consumer
from brokerless.log.log import DeltaLog
from brokerless.offsets import Offset
from brokerless.topics import describe_topic, list_topics
from brokerless.verify.table import verify_topic
from tests.malformed import nasty
from tests.malformed.kinds import Kind, World, drained, once_each, producer_on, store_with

if TYPE_CHECKING:
    from brokerless.producer.producer import Producer
    from tests.support.fakes import FakeStore

VICTIM: Final = 2
_ADD: Final[dict[str, Any]] = {
    "path": "part-x.parquet",
    "partitionValues": {},
    "size": 100,
    "modificationTime": 0,
    "dataChange": True,
    "stats": '{"numRecords": 1}',
}
_METADATA: Final[dict[str, Any]] = {
    "id": "00000000-0000-4000-8000-000000000000",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": '{"type":"struct","fields":[{"name":"id","type":"string","nullable":true,"metadata":{}}]}',
    "partitionColumns": [],
    "configuration": {"brokerless.partitions": "1"},
    "createdTime": 0,
}
_ACTIONS: Final[dict[str, dict[str, Any]]] = {
    "add": _ADD,
    "remove": {"path": "part-y.parquet", "dataChange": True, "deletionTimestamp": 0},
    "txn": {"appId": "a", "version": 1, "lastUpdated": 0},
    "metaData": _METADATA,
    "protocol": {"minReaderVersion": 1, "minWriterVersion": 2},
    "commitInfo": {"timestamp": 0, "txnId": "c", "operation": "WRITE", "engineInfo": "x"},
}
_PATHS: Final = (
    *nasty.TEXTS,
    "../other/part-x.parquet",
    "a/../../x",
    "%2e%2e/x",
    "..%2fx",
    "%2Fetc%2Fpasswd",
    "file:/etc/passwd",
    "s3://elsewhere/x.parquet",
    "_delta_log/00000000000000000000.json",
    "_delta_log/../x",
    "x" * 5000,
    "a//b",
    "./x",
)
CONFIGURATIONS: Final[tuple[Any, ...]] = (
    {"brokerless.partitions": "x"},
    {"brokerless.partitions": "0"},
    {"brokerless.partitions": "-1"},
    {"brokerless.partitions": "1000000000"},
    {"brokerless.partitions": None},
    {"brokerless.partitions": ["1"]},
    {"brokerless.firstVersion": "x"},
    {"brokerless.firstVersion": "99999999999"},
    {"brokerless.firstVersion": "-5"},
    {"brokerless.deleted": True},
    {"delta.columnMapping.mode": 5},
    {"": None},
    [],
    [["a", 1]],
    [1],
    "text",
)
SCHEMAS: Final = (
    "",
    "{}",
    "[]",
    "null",
    "5",
    '"text"',
    '{"fields":5}',
    '{"fields":[5]}',
    '{"fields":[{}]}',
    '{"fields":[{"name":"id"}]}',
    '{"fields":[{"name":5,"type":"string"}]}',
    '{"fields":[{"name":"id","type":"decimal(x,y)"}]}',
    '{"fields":[{"name":"id","type":"decimal()"}]}',
    '{"fields":[{"name":"id","type":"decimal(99,99)"}]}',
    '{"fields":[{"name":"id","type":["string"]}]}',
    '{"fields":[{"name":"id","type":"string"},{"name":"id","type":"long"}]}',
    '{"fields":' + "[" * 50_000 + "]" * 50_000 + "}",
    "not json",
)


@dataclass(frozen=True, slots=True)
class Bad:
    """The bytes, and which entry has them."""

    data: bytes | None
    version: int
    seed: int


def generate(rng: Random) -> Bad:
    version = 0 if rng.random() < 0.3 else VICTIM
    make = rng.choice((None, _field, _field, _field, _field, _line, _line, _whole))
    return Bad(None if make is None else make(rng), version, rng.randrange(2**32))


def _field(rng: Random) -> bytes:
    """One field of one action is of another type, missing, or absurd."""
    kind = rng.choice(list(_ACTIONS))
    action = dict(_ACTIONS[kind])
    name = rng.choice(list(action))
    special = {
        "path": _PATHS,
        "configuration": CONFIGURATIONS,
        "schemaString": SCHEMAS,
        "stats": ("", "{", "[]", "5", '{"numRecords": "x"}', '{"numRecords": -1}', '{"numRecords": 1e999}', "null", 5),
        "partitionColumns": (["id"], [5], [[]], "id", 5, {"a": 1}, None),
        "minReaderVersion": (0, -1, 2, 3, 4, 99, 10**30, "1", "x", None, 1.5, [], 1e308),
        "minWriterVersion": (0, -1, 3, 7, 8, 99, 10**9, 10**30, "2", "x", None, 2.5, [], 1e308),
    }
    draw = rng.random()
    if draw < 0.15:
        del action[name]
    elif name in special and draw < 0.8:
        action[name] = rng.choice(special[name])
    else:
        action[name] = _small(nasty.value(rng))
    if kind == "protocol" and rng.random() < 0.4:
        action |= {"minReaderVersion": 3, "minWriterVersion": 7}
        action[rng.choice(("readerFeatures", "writerFeatures"))] = rng.choice(
            ([5], [[]], "x", 5, {"a": 1}, ["a", 5], None)
        )
    if kind == "add" and rng.random() < 0.1:
        action["deletionVector"] = _small(nasty.value(rng))
    lines = [{kind: action}]
    if rng.random() < 0.5:
        lines = [{"protocol": _ACTIONS["protocol"]}, {"metaData": _METADATA}, *lines]
    return "\n".join(map(json.dumps, lines)).encode()


def _small(value: Any) -> Any:
    return 10**4299 if isinstance(value, int) and abs(value) > 10**4299 else value


def _line(rng: Random) -> bytes:
    line = rng.choice(
        (
            b"{}",
            b"[]",
            b"null",
            b"5",
            b'"add"',
            b'{"add": null}',
            b'{"add": []}',
            b'{"add": "x"}',
            b'{"add": {}}',
            b'{"txn": 5}',
            b'{"metaData": "x"}',
            b'{"protocol": []}',
            b'{"commitInfo": null}',
            b'{"commitInfo": []}',
            b'{"commitInfo": {"timestamp": 1e999}}',
            b'{"commitInfo": {"timestamp": "soon"}}',
            b'{"commitInfo": {"txnId": []}}',
            b'{"commitInfo": {"txnId": {"a": 1}}}',
            b'{"cdc": {"path": "x"}}',
            b'{"unheardOf": {"a": 1}}',
            b'{"domainMetadata": {}}',
            b'{"txn": {"appId": "a", "version": NaN}}',
            b'{"txn": {"appId": "a", "version": Infinity}}',
            b'{"txn": {"appId": "a", "version": ' + b"9" * 5000 + b"}}",
            b'{"txn": {"appId": "a", "version": ' + b"9" * 50 + b"}}",
            b'{"add":' + b"[" * 100_000,
            b'{"add":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"x":' + b'{"x":' * 50_000 + b"1" + b"}" * 50_001,
            b"\xff\xfe",
            b"\x00",
            b"\xef\xbb\xbf{}",
            b'{"add": {"path": "\\ud800", "size": 1, "dataChange": true}}',
            json.dumps({"add": _ADD, "remove": {"path": _ADD["path"]}}).encode(),
            b'{"add": {"path": "a", "path": "../b", "size": 1, "size": "x", "dataChange": true}}',
            json.dumps({"add": _ADD}).encode() * 2,
        )
    )
    good = json.dumps({"txn": _ACTIONS["txn"]}).encode()
    return rng.choice((line, good + b"\n" + line, line + b"\n" + good, line + b"\n" + line))


def _whole(rng: Random) -> bytes:
    return rng.choice(
        (
            b"",
            b"\n",
            b" ",
            b"\r\n",
            b"\x00" * 100,
            b"PAR1",
            b"<Error/>",
            b"{",
            rng.randbytes(200),
            b"x" * 1_000_000,
            b"{}\n" * 9999,
        )
    )


def attack(bad: Bad, world: World) -> str | None:
    store = store_with("t", "id string")
    with producer_on(store, "t") as writer, producer_on(store, "t") as holder:
        writer.send({"id": ["before"]})
        holder.send({"id": ["held"]})
        return _attack(bad, world, store, writer, holder)


def _attack(bad: Bad, world: World, store: FakeStore, writer: Producer, holder: Producer) -> str | None:
    log = DeltaLog(store, "t", clock=store.clock)
    reader = Consumer("t", start="beginning", store=store, clock=store.clock)
    for id_ in ("bad", "after"):
        writer.send({"id": [id_]})
    number = 0 if bad.version == 0 else VICTIM + 1
    path = log.entry_path(number)
    good = store.objects[path]
    data = nasty.damaged(Random(bad.seed), good) if bad.data is None else bad.data
    store.put(path, data)

    found: list[dict[str, Any]] = []
    error = world.error(lambda: drained(reader, found))
    if error is not None:
        reader.seek(Offset(number + 1))
        found += drained(reader)
    opened = world.error(lambda: describe_topic(store, "t", clock=store.clock))
    world.count(error or opened)
    for act in (
        lambda: list_topics(store, clock=store.clock),
        lambda: DeltaLog(store, "t", clock=store.clock).load(with_files=True),
        lambda: drained(Consumer("t", start="beginning", store=store, clock=store.clock)),
        lambda: drained(Consumer("t", start="latest", store=store, clock=store.clock)),
        lambda: verify_topic(store, "t", clock=store.clock, full=True),
    ):
        world.error(act)
    more = [] if world.error(lambda: holder.send({"id": ["late"]})) else ["late"]
    with_new: list[str] = []

    def send_new() -> None:
        with producer_on(store, "t") as producer:
            producer.send({"id": ["new"]})
        with_new.append("new")

    world.error(send_new)
    if (wrong := once_each(found, "id", ["before", "held", "after"])) is not None:
        return wrong
    store.put(path, good)
    with Consumer("t", start="beginning", store=store, clock=store.clock) as consumer:
        wanted = ["before", "held", "bad", "after", *more, *with_new]
        wrong = once_each(drained(consumer), "id", wanted)
    return wrong and f"after the repair: {wrong}"


KIND: Final = Kind(generate, attack)
