"""Entries of a log: what is written, byte by byte, and what is read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerless.errors import StoreError, UnsupportedTable
from brokerless.log.entries import (
    Add,
    Metadata,
    Protocol,
    build_entry,
    check_supported,
    is_inside,
    metadata_of,
    parse_entry,
)

SCHEMA = '{"type":"struct","fields":[]}'
TEXT = st.text(min_size=1, max_size=20)
PATHS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(is_inside)
ADDS = st.builds(
    Add,
    path=PATHS,
    size=st.integers(0, 2**40),
    rows=st.none() | st.integers(0, 2**31),
    modified_ms=st.integers(1, 2**42),
    data_change=st.booleans(),
)


def test_an_append_is_these_bytes() -> None:
    entry = build_entry(
        commit_id="c-1",
        timestamp_ms=1700000000123,
        operation="WRITE",
        engine="brokerless/0",
        adds=[Add("part-1 %é.parquet", 10, 3, 1700000000100)],
        txns={"p": 7},
    )
    assert entry.decode() == (
        '{"commitInfo":{"timestamp":1700000000123,"operation":"WRITE","operationParameters":{"mode":"Append",'
        '"partitionBy":"[]"},"isBlindAppend":true,"engineInfo":"brokerless/0","txnId":"c-1","actions":3}}\n'
        '{"txn":{"appId":"p","version":7,"lastUpdated":1700000000123}}\n'
        '{"add":{"path":"part-1%20%25%C3%A9.parquet","partitionValues":{},"size":10,"modificationTime":1700000000100,'
        '"dataChange":true,"stats":"{\\"numRecords\\":3}"}}\n'
    )


def test_a_creation_is_these_bytes() -> None:
    entry = build_entry(
        commit_id="c-0",
        timestamp_ms=5,
        operation="CREATE TABLE",
        engine="e",
        metadata=Metadata("id-1", SCHEMA, configuration={"a": "b"}, created_ms=4),
        protocol=Protocol(1, 2),
    )
    assert entry.decode() == (
        '{"commitInfo":{"timestamp":5,"operation":"CREATE TABLE","operationParameters":{},"isBlindAppend":false,'
        '"engineInfo":"e","txnId":"c-0","actions":3}}\n'
        '{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}\n'
        '{"metaData":{"id":"id-1","format":{"provider":"parquet","options":{}},'
        '"schemaString":"{\\"type\\":\\"struct\\",\\"fields\\":[]}","partitionColumns":[],"configuration":{"a":"b"},'
        '"createdTime":4}}\n'
    )


@given(
    commit_id=TEXT,
    timestamp=st.integers(1, 2**45),
    adds=st.lists(ADDS, max_size=3),
    removes=st.lists(PATHS, max_size=3),
    txns=st.dictionaries(TEXT, st.integers(-1, 2**62), max_size=3),
    metadata=st.none() | st.builds(Metadata, id=TEXT, schema_string=TEXT, configuration=st.dictionaries(TEXT, TEXT)),
    protocol=st.none() | st.just(Protocol(1, 2)),
)
def test_parse_is_the_inverse_of_build(
    commit_id: str,
    timestamp: int,
    adds: list[Add],
    removes: list[str],
    txns: dict[str, int],
    metadata: Metadata | None,
    protocol: Protocol | None,
) -> None:
    body = build_entry(
        commit_id=commit_id,
        timestamp_ms=timestamp,
        operation="WRITE",
        engine="e",
        adds=adds,
        removes=removes,
        txns=txns,
        metadata=metadata,
        protocol=protocol,
    )
    entry = parse_entry(3, body, table="t")
    assert (entry.version, entry.timestamp_ms, entry.commit_id, entry.operation) == (3, timestamp, commit_id, "WRITE")
    assert (entry.adds, entry.removes, entry.txns) == (tuple(adds), tuple(removes), txns)
    assert (entry.metadata, entry.protocol) == (metadata, protocol)


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_an_entry_that_was_cut_at_the_end_of_a_line_is_unreadable(lines: int) -> None:
    adds = [Add("a.parquet", 1, 1, 1)]
    body = build_entry(commit_id="c", timestamp_ms=1, operation="WRITE", engine="e", adds=adds, txns={"p": 1})
    cut = b"".join(body.splitlines(keepends=True)[:lines])
    with pytest.raises(StoreError, match=f"hold {lines} actions"):
        parse_entry(7, cut, table="t")


@pytest.mark.parametrize(
    ("operation", "actions", "rewritten"),
    [
        ("WRITE", [{"add": {"path": "a", "size": 1, "dataChange": True}}], False),
        # A delete of whole files adds nothing that a reader could take for new.
        ("DELETE", [{"remove": {"path": "a", "dataChange": True}}], False),
        (
            "OPTIMIZE",
            [{"remove": {"path": "a", "dataChange": False}}, {"add": {"path": "b", "size": 1, "dataChange": False}}],
            False,
        ),
        (
            "DELETE",
            [{"remove": {"path": "a", "dataChange": True}}, {"add": {"path": "b", "size": 1, "dataChange": True}}],
            True,
        ),
        # Absent means true for other writers: the protocol requires it, and some leave it out.
        ("UPDATE", [{"remove": {"path": "a"}}, {"add": {"path": "b", "size": 1, "dataChange": True}}], True),
        ("RESTORE", [{"add": {"path": "a", "size": 1, "dataChange": True}}], True),
    ],
)
def test_rewritten_rows_are_told_from_new_ones(operation: str, actions: list[Any], rewritten: bool) -> None:
    lines = [{"commitInfo": {"operation": operation}}, *actions]
    body = "\n".join(json.dumps(line) for line in lines).encode()
    assert parse_entry(1, body, table="t").rewritten is rewritten


def test_line_separators_inside_text_do_not_end_an_action() -> None:
    body = build_entry(commit_id="c", timestamp_ms=1, operation="WRITE", engine="e", txns={"a\u2028b\x85c": 1})
    assert parse_entry(0, body, table="t").txns == {"a\u2028b\x85c": 1}


def test_what_other_writers_write_is_read() -> None:
    lines = [
        {"commitInfo": {"timestamp": 9, "operation": "OPTIMIZE", "tags": {"new": 1}}},
        {"add": {"path": "a%2520b", "size": 1, "dataChange": False, "stats": None, "modificationTime": None}},
        {"add": {"path": "c", "size": 1, "dataChange": True, "stats": '{"minValues":{}}'}},
        {"remove": {"path": "d%20e", "dataChange": False, "deletionTimestamp": 1}},
        {"cdc": {"path": "ignored"}},
        {"domainMetadata": {"domain": "x"}},
    ]
    body = "\r\n".join(json.dumps(line) for line in lines) + "\n\n"
    entry = parse_entry(1, body.encode(), table="t")
    assert [(a.path, a.rows, a.data_change) for a in entry.adds] == [("a%20b", None, False), ("c", None, True)]
    assert entry.removes == ("d e",)
    assert entry.commit_id is None
    assert [a.path for a in entry.messages] == ["c"]


def test_messages_leave_out_rewrites_and_repetitions() -> None:
    adds = [Add("a", 1, 1, 1), Add("b", 1, 1, 1, data_change=False), Add("c", 1, 1, 1), Add("a", 1, 1, 1)]
    body = build_entry(commit_id="c", timestamp_ms=1, operation="WRITE", engine="e", adds=adds)
    assert [add.path for add in parse_entry(0, body, table="t").messages] == ["a", "c"]


@pytest.mark.parametrize(
    "body",
    [b'{"add":{"path":"x"', b"\xff\xfe", b'{"add":{"size":1}}', b'{"txn":{"appId":"a","version":"x"}}', b"[]", b"1",
     b'{"add":{"path":"x","size":1,"dataChange":true,"stats":"{"}}', b'{"metaData":{}}', b"<html>Not found</html>"],
)  # fmt: skip
def test_bytes_that_are_no_entry_are_named_not_guessed(body: bytes) -> None:
    with pytest.raises(StoreError, match=r"Entry 4 of the log of s3://b/t cannot be read"):
        parse_entry(4, body, table="s3://b/t")


@pytest.mark.parametrize("path", ["s3://other/x", "/abs", "../x", "a/../../x", "file:///x"])
def test_files_outside_the_table_are_refused(path: str) -> None:
    line = json.dumps({"add": {"path": path, "size": 1, "dataChange": True}})
    with pytest.raises(UnsupportedTable, match="outside of itself"):
        parse_entry(0, line.encode(), table="t")


def test_deletion_vectors_are_refused_by_name() -> None:
    line = json.dumps({"add": {"path": "x", "size": 1, "dataChange": True, "deletionVector": {"storageType": "u"}}})
    with pytest.raises(UnsupportedTable, match="deletionVectors"):
        parse_entry(0, line.encode(), table="t")


FEATURES: list[tuple[Protocol, dict[str, Any], str]] = [
    (Protocol(2, 2), {}, "columnMapping"),
    (Protocol(1, 3), {}, "checkConstraints"),
    (Protocol(1, 4), {}, "changeDataFeed, checkConstraints, generatedColumns|changeDataFeed, generatedColumns"),
    (Protocol(1, 5), {}, "columnMapping"),
    (Protocol(1, 6), {}, "identityColumns"),
    (Protocol(3, 7, ("deletionVectors",), ("deletionVectors",)), {}, "deletionVectors"),
    (Protocol(3, 7, ("timestampNtz",), ("timestampNtz", "appendOnly")), {}, r"support: timestampNtz\."),
    (Protocol(3, 7, ("v2Checkpoint",), ("v2Checkpoint",)), {}, "v2Checkpoint"),
    (Protocol(1, 7, (), ("inCommitTimestamp",)), {}, "inCommitTimestamp"),
    (Protocol(1, 7, (), ("rowTracking", "domainMetadata")), {}, "domainMetadata, rowTracking"),
    (Protocol(3, 7), {}, "reader version 3"),
    (Protocol(4, 8), {}, "reader version 4, writer version 8"),
    (Protocol(1, 9), {}, "writer version 9"),
    (Protocol(1, 2), {"configuration": {"delta.columnMapping.mode": "name"}}, "columnMapping"),
    (Protocol(1, 2), {"partition_columns": ("day",)}, r"partition columns \(day\)"),
    (Protocol(1, 2), {"schema_string": '{"metadata":{"delta.invariants":"x"}}'}, "column invariants"),
]


@pytest.mark.parametrize(("protocol", "metadata", "named"), FEATURES)
def test_unsupported_features_are_named(protocol: Protocol, metadata: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedTable, match=named):
        check_supported(protocol, Metadata(**{"id": "i", "schema_string": SCHEMA, **metadata}), table="t")


@pytest.mark.parametrize(
    "protocol", [Protocol(1, 1), Protocol(1, 2), Protocol(1, 7), Protocol(1, 7, (), ("appendOnly", "invariants"))]
)
def test_plain_tables_are_supported(protocol: Protocol) -> None:
    configuration = {"delta.columnMapping.mode": "none", "delta.appendOnly": "true"}
    check_supported(protocol, Metadata("i", SCHEMA, configuration=configuration), table="t")


def test_metadata_from_a_checkpoint_may_have_maps_as_pairs() -> None:
    row = {
        "id": "i",
        "schemaString": SCHEMA,
        "partitionColumns": None,
        "configuration": [("brokerless.deleted", "true")],
    }
    assert metadata_of(row).deleted
    assert metadata_of({**row, "configuration": None}).first_version == 0


@pytest.mark.parametrize(
    "action",
    [
        {"txn": {"appId": "a", "version": 2**63}},
        {"add": {"path": "x", "size": -1, "dataChange": True}},
        {"add": {"path": "x", "size": 1, "dataChange": True, "stats": '{"numRecords": -1}'}},
        {"add": {"path": "x", "size": 1, "dataChange": True, "stats": '{"numRecords": "many"}'}},
        {"protocol": {"minReaderVersion": -1, "minWriterVersion": 2}},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [5]}},
        {"metaData": {"id": "x", "schemaString": "{}", "partitionColumns": [5]}},
        {"metaData": {"id": None, "schemaString": "{}"}},
        {"metaData": {"id": "x", "schemaString": "{}", "configuration": {"brokerless.partitions": "x"}}},
        {"metaData": {"id": "x", "schemaString": "{}", "configuration": {"brokerless.partitions": "1000000000"}}},
        {"metaData": {"id": "x", "schemaString": "{}", "configuration": {"brokerless.partitions": ["1"]}}},
        {"metaData": {"id": "x", "schemaString": "{}", "configuration": {"brokerless.firstVersion": "-5"}}},
        {"metaData": {"id": "x", "schemaString": "{}", "configuration": {"a": None}}},
    ],
    ids=lambda action: json.dumps(action)[:70],
)
def test_values_that_no_delta_writer_writes_are_named_at_once(action: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match="Entry 3 of the log of s3://b/t cannot be read"):
        parse_entry(3, json.dumps(action).encode(), table="s3://b/t")


@pytest.mark.parametrize(
    "body",
    [
        b'{"commitInfo": {"timestamp": 1e999}}',
        b'{"txn": {"appId": "a", "version": Infinity}}',
        b'{"add":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["infinite time", "infinite txn", "deep"],
)
def test_json_that_python_reads_in_its_own_way_is_no_entry(body: bytes) -> None:
    with pytest.raises(StoreError, match="Entry 3"):
        parse_entry(3, body, table="s3://b/t")


def test_a_commit_id_of_another_type_is_no_crash_later() -> None:
    assert parse_entry(0, b'{"commitInfo": {"txnId": ["a"]}}', table="t").commit_id == "['a']"
