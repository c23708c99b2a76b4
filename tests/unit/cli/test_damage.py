"""``brokerless tail`` and ``export`` of a topic that is damaged, or was rewritten by another engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brokerless.consumer.partition import PartitionReader
from brokerless.log.log import DeltaLog
from brokerless.producer.partitioner import partition_of
from brokerless.producer.producer import Producer


@pytest.mark.parametrize("verb", [["tail", "t", "--once"], ["export", "t", "o.csv", "--once"]])
def test_what_fails_after_rows_were_written_is_exit_1(cli, monkeypatch, verb):
    cli.json("topics", "create", "t", "--schema", "s string")
    for text in ("first", "second"):
        cli.json("produce", "t", stdin=json.dumps({"s": text}))
    second = DeltaLog(cli.store, "t").read(2)
    cli.store.delete([f"t/{add.path}" for add in second.messages])
    next_entries = PartitionReader.next_entries
    monkeypatch.setattr(
        PartitionReader, "next_entries", lambda part, max_bytes: next_entries(part, 1)
    )  # a commit a poll
    result = cli(*verb, "--json")
    error = json.loads(result.stderr.splitlines()[-1])["error"]
    assert (result.exit_code, error["exit_code"], error["type"]) == (1, 1, "StoreError")
    assert "brokerless verify t" in error["message"]
    assert "first" in (result.stdout + (Path("o.csv").read_text() if verb[0] == "export" else ""))


@pytest.fixture
def two_partitions(cli):
    """Topic t: five commits of a message each in partition 0, and one in partition 1. Returns their texts."""
    cli.json("topics", "create", "t", "--schema", "s string", "--partitions", "2")
    texts = ([], [])
    for text in map(str, range(100)):
        texts[partition_of(text, 2)].append(text)
    sent = [*texts[0][:5], texts[1][0]]
    with Producer("t", store=cli.store, key="s") as producer:
        for text in sent:
            producer.send([{"s": text}])
    return sent


def read_with(cli, verb, *options):
    """What a bounded read brings, its error, and its exit code."""
    file = Path("o.jsonl")
    file.unlink(missing_ok=True)
    result = cli(*(["tail", "t"] if verb == "tail" else ["export", "t", str(file)]), "--once", *options, "--json")
    text = result.stdout if verb == "tail" else file.read_text() if file.exists() else ""
    error = None if result.exit_code == 0 else json.loads(result.stderr.splitlines()[-1])["error"]
    return [json.loads(line)["s"] for line in text.splitlines()], error, result.exit_code


@pytest.mark.parametrize("verb", ["tail", "export"])
def test_a_damaged_object_holds_back_only_what_is_behind_it(cli, two_partitions, verb):
    (third,) = DeltaLog(cli.store, "t").read(3).messages
    cli.store.put(f"t/{third.path}", b"PAR1 and no more PAR1")
    found, error, code = read_with(cli, verb)
    assert (sorted(found), code) == (sorted([*two_partitions[:2], two_partitions[5]]), 1)
    assert "partition 0, offset 3:0" in error["message"]


@pytest.mark.parametrize("verb", ["tail", "export"])
def test_a_missing_entry_is_not_the_end(cli, two_partitions, verb):
    cli.store.delete(["t/_delta_log/00000000000000000003.json"])
    _, error, code = read_with(cli, verb)
    assert (error["type"], code) == ("LogIncomplete", error["exit_code"])
    assert code != 0


@pytest.mark.parametrize("verb", ["tail", "export"])
def test_an_entry_that_goes_while_it_is_read_is_not_the_end(cli, two_partitions, verb, monkeypatch):
    next_entries = PartitionReader.next_entries

    def losing(part, max_bytes):
        cli.store.delete(["t/_delta_log/00000000000000000003.json"])
        part.tail._opened = {}  # as in a log that is longer than what its opening hands on
        return next_entries(part, 1)  # a commit a poll

    monkeypatch.setattr(PartitionReader, "next_entries", losing)
    found, error, code = read_with(cli, verb)
    assert (sorted(found), code) == (sorted([*two_partitions[:2], two_partitions[5]]), 1)
    assert error["type"] == "LogIncomplete"


@pytest.mark.parametrize("verb", ["tail", "export"])
def test_rows_that_another_engine_deleted_stop_a_reader_that_does_not_accept_it(cli, verb, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    cli.json("topics", "create", "t", "--schema", "s string")
    with Producer("t", store=cli.store) as producer:
        producer.send([{"s": "kept"}, {"s": "deleted"}])
    deltalake.DeltaTable(str(tmp_path / "root" / "t")).delete("s = 'deleted'")
    found, error, code = read_with(cli, verb)
    assert (found, error["type"], code) == (["kept", "deleted"], "TopicRewritten", 1)
    found, _, code = read_with(cli, verb, "--accept-rewrites")
    assert (found, code) == (["kept", "deleted", "kept"], 0)
