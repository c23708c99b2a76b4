"""What checkpoints are made of: the last one, and one entry that says what all entries behind it said."""

from __future__ import annotations

import io
import json
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from brokerless.errors import StoreError
from brokerless.log.log import DeltaLog
from brokerless.maintenance.checkpoints import LogCopy, merged
from brokerless.maintenance.maintainer import Maintainer
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.settings import Settings
from brokerless.store import open_store
from brokerless.topics import create_topic
from tests.support.fakes import FakeClock, FakeStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore(FakeClock())
    create_topic(store, "t", Schema.parse("n long"), clock=store.clock)
    return store


def lines(*actions: dict[str, Any]) -> bytes:
    return b"\n".join(json.dumps(action).encode() for action in actions)


def actions(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def test_the_later_action_on_a_file_counts_however_its_path_is_written() -> None:
    first = lines({"add": {"path": "a%3Ab", "stats": '{"numRecords":1}'}}, {"add": {"path": "c"}})
    second = lines({"remove": {"path": "a:b", "deletionTimestamp": 7}}, {"remove": {"path": "d"}})
    third = lines({"add": {"path": "d", "tags": {"x": "y"}}})
    assert actions(merged([first, second, third])) == [
        {"remove": {"path": "a:b", "deletionTimestamp": 7}},
        {"add": {"path": "c"}},
        {"add": {"path": "d", "tags": {"x": "y"}}},
    ]


def test_the_last_version_of_each_application_counts_and_their_ids_are_not_decoded() -> None:
    first = lines({"txn": {"appId": "a%20b", "version": 1}}, {"txn": {"appId": "a b", "version": 5}})
    second = lines({"txn": {"appId": "a%20b", "version": 2}})
    assert actions(merged([first, second])) == [
        {"txn": {"appId": "a%20b", "version": 2}},
        {"txn": {"appId": "a b", "version": 5}},
    ]


def test_what_is_of_one_commit_only_is_left_out_and_odd_text_survives() -> None:
    data = lines({"cdc": {"path": "x"}}, {"metaData": {"id": "1"}}, {"metaData": {"id": "\ud800\u2028"}}, {"new": {}})
    assert actions(merged([data])) == [{"metaData": {"id": "\ud800\u2028"}}]


def rows(path: Path) -> list[str]:
    """The actions of a checkpoint, in any order."""
    return sorted(
        json.dumps({kind: value for kind, value in row.items() if value is not None}, sort_keys=True, default=str)
        for row in pq.read_table(path).to_pylist()
    )


def test_it_says_what_delta_rs_says_of_the_same_table(tmp_path: Path) -> None:
    """Two rounds, so that the second stands on the first; with files of others, removed ones, and application ids."""
    settings = Settings("local", tmp_path.as_uri())
    store = open_store(settings)
    create_topic(store, "t", Schema.parse("n long, s string"))
    table, log = tmp_path / "t", tmp_path / "t" / "_delta_log"
    for turn in range(2):
        with Producer("t", settings=settings, producer_id="a%20b") as producer:
            for n in range(3):
                producer.send([{"n": n, "s": "x"}])
        columns = DeltaTable(table).to_pyarrow_table().slice(0, 1)
        write_deltalake(table, columns, mode="append")
        DeltaTable(table).optimize.compact()
        write_deltalake(table, columns, mode="append")
        (report,) = Maintainer(["t"], settings=settings, checkpoint_every=1).run_once(collect_garbage=False)
        version = DeltaTable(table).version()
        assert (report.checkpoint, report.skipped) == (version, ())
        other = tmp_path / f"other{turn}"
        shutil.copytree(table, other)
        path = other / "_delta_log" / f"{version:020d}.checkpoint.parquet"
        ours, hint = rows(path), json.loads((log / "_last_checkpoint").read_bytes())
        path.unlink()
        (other / "_delta_log" / "_last_checkpoint").unlink()
        DeltaTable(other).create_checkpoint()
        assert ours == rows(path)
        theirs = json.loads((other / "_delta_log" / "_last_checkpoint").read_bytes())
        assert hint == {**theirs, "sizeInBytes": hint["sizeInBytes"]}


def test_a_checkpoint_of_several_parts_is_added_to(store: FakeStore) -> None:
    log = DeltaLog(store, "t", clock=store.clock)
    with Producer("t", store=store, clock=store.clock) as producer:
        producer.send({"n": [1]})
        version = Maintainer(["t"], store=store, clock=store.clock, checkpoint_every=1).run_once()[0].checkpoint
        whole = f"t/_delta_log/{version:020d}.checkpoint"
        parts = pq.read_table(io.BytesIO(store.objects.pop(f"{whole}.parquet")))
        for number, part in enumerate((parts.slice(0, 2), parts.slice(2)), start=1):
            buffer = io.BytesIO()
            pq.write_table(part, buffer)
            store.put(f"{whole}.{number:010d}.{2:010d}.parquet", buffer.getvalue())
        producer.send({"n": [2]})
    before = log.load(with_files=True)
    (report,) = Maintainer(["t"], store=store, clock=store.clock, checkpoint_every=1).run_once(collect_garbage=False)
    assert version == 1
    assert report.checkpoint == 2
    store.delete([log.entry_path(number) for number in range(3)])
    after = DeltaLog(store, "t", clock=store.clock).load(with_files=True)
    assert (after.files.keys(), after.txns) == (before.files.keys(), before.txns)


def test_a_disk_that_is_full_is_reported_and_stops_no_other_table(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    (report,) = Maintainer(["t"], store=store, clock=store.clock, checkpoint_every=1).run_once(collect_garbage=False)
    assert report.checkpoint is None
    assert "No space left" in report.skipped[0]


def test_what_a_try_read_before_the_last_one_is_forgotten(store: FakeStore) -> None:
    with LogCopy(store, "t") as copy:
        copy.get("t/_delta_log/" + f"{0:020d}.json")
        with pytest.raises(FileNotFoundError):
            copy.get("t/_delta_log/_last_checkpoint")
        with pytest.raises(StoreError, match="No such file"):
            copy.write_checkpoint(0)
