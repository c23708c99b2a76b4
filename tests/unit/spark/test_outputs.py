"""A pipeline's objects: no more rows in one than its readers take."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from brokerless.columns import records
from brokerless.errors import ConfigError, MessageError, SchemaError
from brokerless.log.log import DeltaLog
from brokerless.producer.producer import Producer
from brokerless.schema import Column, Schema
from brokerless.spark import outputs
from brokerless.spark.progress import app_id
from brokerless.topics import create_topic
from tests.support.fakes import FakeClock, FakeStore

SCHEMA = Schema.parse("n long, text string")


def table(sizes: list[int]) -> pa.Table:
    """Numbered rows with texts of these lengths."""
    return pa.table({"n": pa.array(range(len(sizes)), pa.int64()), "text": ["x" * size for size in sizes]})


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([10] * 3, [3]),
        ([100] * 64, [8] * 8),
        ([10] * 15 + [990], [8, 4, 2, 1, 1]),  # unevenly
        ([5000, 10, 5000], [1, 1, 1]),  # larger than an object may be
        ([5000], [1]),
    ],
)
def test_many_rows_become_several_objects_in_their_order(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, sizes: list[int], expected: list[int]
) -> None:
    monkeypatch.setattr(outputs, "OBJECT_BYTES", 1000)
    store = FakeStore(clock)
    create_topic(store, "out", SCHEMA, clock=clock)
    output = outputs.OutputLog(store, "out", SCHEMA, "pipe", clock=clock)
    output.claim()
    objects = outputs.UploadedFiles()
    output.upload(table(sizes), objects)
    assert [add.rows for add in objects.adds] == expected
    assert (objects.rows, set(objects.data)) == (len(sizes), {add.path for add in objects.adds})
    output.commit(objects, {"in": 1}, {"in": "x"})
    entry = DeltaLog(store, "out", clock=clock).read(2)
    assert entry is not None
    read = [records.load(store, f"out/{add.path}") for add in entry.messages]
    assert [n for part in read for n in part.column("n").to_pylist()] == list(range(len(sizes)))


def test_rows_are_measured_in_the_topics_types(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "OBJECT_BYTES", 1000)
    numbers = list(range(100)) * 4  # 400 bytes; as long, with _produced_at, sixteen times as many
    store = FakeStore(clock)
    target = outputs.TableWriter("out", Schema.parse("n long"))
    uploaded = target.upload(store, pa.table({"n": pa.array(numbers, pa.int8())}), clock=clock)
    read = [records.load(store, f"out/{add.path}") for add, _ in uploaded]
    assert [part.num_rows for part in read] == [add.rows for add, _ in uploaded] == [50] * 8
    assert max(pa.table(part).nbytes for part in read) <= 1000
    assert [n for part in read for n in part.column("n").to_pylist()] == numbers


def test_rows_of_a_pipeline_that_would_change_are_refused(clock: FakeClock) -> None:
    store = FakeStore(clock)
    target = outputs.TableWriter("out", Schema.parse("amount decimal(10,1), n double"))
    rows = pa.table({"amount": [Decimal("1.5"), Decimal("1.5")], "n": [1, 2**53 + 1]})
    with pytest.raises(MessageError, match="Row 1: column 'n' of topic 'out' is double"):
        target.upload(store, rows, clock=clock)
    with pytest.raises(MessageError, match="Row 0: column 'amount' of topic 'out' is decimal"):
        target.upload(store, pa.table({"amount": [Decimal("1.25")], "n": [1.0]}), clock=clock)
    assert not store.objects


def test_an_output_with_nested_columns_is_refused_before_anything_is_written(clock: FakeClock) -> None:
    store = FakeStore(clock)
    create_topic(store, "out", SCHEMA, clock=clock)
    nested = Schema((Column("tags", '{"type": "array", "elementType": "string"}'),))
    with pytest.raises(SchemaError, match="Column 'tags' has the nested or unknown type 'array'"):
        outputs.OutputLog(store, "out", nested, "pipe", clock=clock)


def test_no_producer_moves_the_progress_of_a_pipeline(clock: FakeClock) -> None:
    store = FakeStore(clock)
    create_topic(store, "out", SCHEMA, clock=clock)
    for table_name, table_id in (("in", None), ("in.3", None), ("in", clock.uuid())):
        with pytest.raises(ConfigError, match="under which pipelines"):
            Producer("out", producer_id=app_id("pipe", table_name, table_id), store=store, clock=clock)
    output = outputs.OutputLog(store, "out", SCHEMA, "pipe", clock=clock)
    output.claim()
    for name in ("pipe", "pipe:in", "in:0", "a:b:c", "10:20:x0", "00:1a:2b:3c:4d:12"):
        with Producer("out", producer_id=name, store=store, clock=clock) as producer:
            producer.send({"n": [1], "text": ["x"]}, sequence=100)
    assert outputs.OutputLog(store, "out", SCHEMA, "pipe", clock=clock).position({"in": "x"}) == {}
    output.commit(outputs.UploadedFiles(), {"in": 1}, {"in": "x"})  # nor does one with its name fence it


def test_an_object_is_far_smaller_than_what_readers_refuse() -> None:
    assert outputs.OBJECT_BYTES * 4 <= records.MAX_DECODED_BYTES
