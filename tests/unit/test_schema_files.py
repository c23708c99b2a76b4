"""Schemas from JSON Schema, Avro and messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from arro3.io import write_parquet

from brokerless.columns.infer import schema_like, schema_of_file
from brokerless.columns.records import to_table
from brokerless.errors import ConfigError, SchemaError
from brokerless.schema import Schema

if TYPE_CHECKING:
    from pathlib import Path

JSON_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$ref": "#/$defs/event",
    "$defs": {
        "event": {
            "type": "object",
            "properties": {
                "user": {"type": "string"},
                "n": {"type": ["integer", "null"]},
                "x": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                "ok": {"$ref": "#/$defs/flag"},
                "at": {"type": "string", "format": "date-time"},
                "day": {"type": "string", "format": "date"},
                "kind": {"enum": ["a", "b"]},
                "raw": {"type": "string", "contentEncoding": "base64"},
            },
        },
        "flag": {"type": "boolean"},
    },
}
AVRO = {
    "type": "record",
    "name": "event",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "n", "type": ["null", "int"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["a"]}},
        {"name": "other", "type": "kind"},
        {"name": "raw", "type": "bytes"},
    ],
}


def test_a_json_schema_is_mapped() -> None:
    assert str(Schema.from_json_schema(JSON_SCHEMA)) == (
        "user string, n long, x double, ok boolean, at timestamp, day date, kind string, raw binary"
    )


def test_an_avro_record_is_mapped() -> None:
    assert str(Schema.from_avro(AVRO)) == (
        "user string, n integer, at timestamp, day date, price decimal(10,2), kind string, other string, raw binary"
    )


@pytest.mark.parametrize(
    "one",
    [
        {"type": "object"},
        {"type": "array", "items": {"type": "string"}},
        {"type": ["string", "integer"]},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"$ref": "other.json"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#/properties/bad"},
        {},
        True,
    ],
)
def test_what_json_schema_cannot_map_is_named(one: Any) -> None:
    with pytest.raises(SchemaError, match="'bad'"):
        Schema.from_json_schema({"type": "object", "properties": {"good": {"type": "string"}, "bad": one}})


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "string"},
        {"type": "map", "values": "string"},
        {"type": "record", "name": "r", "fields": []},
        ["string", "int"],
        ["null"],
        "unknown",
        {"type": "int", "logicalType": "time-millis"},
        {"type": "bytes", "logicalType": "decimal", "precision": 60},
    ],
)
def test_what_avro_cannot_map_is_named(kind: Any) -> None:
    with pytest.raises(SchemaError, match="'bad'"):
        Schema.from_avro({"type": "record", "name": "t", "fields": [{"name": "bad", "type": kind}]})


@pytest.mark.parametrize("document", [[], {}, {"type": "record"}, {"type": "record", "fields": [{"name": "x"}]}])
def test_what_is_no_schema_is_refused(document: Any) -> None:
    with pytest.raises(SchemaError):
        Schema.from_avro(document)
    with pytest.raises(SchemaError):
        Schema.from_json_schema(document)


def test_rows_tell_their_types() -> None:
    rows = [
        {"a": 1, "b": 1, "c": True, "d": "2026-03-29T03:30:00Z", "e": "2026-03-29", "f": "x", "g": None},
        {"a": None, "b": 0.5, "c": None, "d": "2026-03-29T03:30:00.5+02:00", "e": None, "f": "2026-03-29", "h": 2},
    ]
    schema = Schema.infer(rows)
    assert str(schema) == "a long, b double, c boolean, d timestamp, e date, f string, g string, h long"
    assert to_table(rows, schema, topic="t", produced_at_us=1).num_rows == 2


@pytest.mark.parametrize("values", [[1, "x"], [True, 1], [{"x": 1}], [[1]], [2**63]])
def test_values_that_no_column_holds_are_named(values: list[Any]) -> None:
    with pytest.raises(SchemaError, match="'bad'"):
        Schema.infer([{"bad": value} for value in values])


def test_only_the_first_thousand_rows_count() -> None:
    rows = [{"n": 1} for _ in range(1000)]
    assert str(Schema.infer([*rows, {"n": "x"}])) == "n long"
    with pytest.raises(SchemaError):
        Schema.infer([*rows[1:], {"n": "x"}])


def test_a_file_is_read_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "event.avsc").write_text(json.dumps(AVRO))
    assert schema_of_file(tmp_path / "event.avsc") == Schema.from_avro(AVRO)
    (tmp_path / "event.schema.json").write_text(json.dumps(JSON_SCHEMA))
    assert schema_of_file(tmp_path / "event.schema.json") == Schema.from_json_schema(JSON_SCHEMA)
    (tmp_path / "t.jsonl").write_text('{"n": 1}\n\n{"n": 2, "s": "x"}\n')
    assert str(schema_like(tmp_path / "t.jsonl")) == "n long, s string"
    (tmp_path / "t.csv").write_text("n,x,ok,at,code,none\n1,1.5,true,2026-03-29T03:30:00Z,007,\n,2,false,,8,\n")
    expected = "n long, x double, ok boolean, at timestamp, code string, none string"
    assert str(schema_like(tmp_path / "t.csv")) == expected


def test_parquet_tells_its_schema_exactly(tmp_path: Path) -> None:
    schema = Schema.parse(
        "a string, b long, c integer, d short, e byte, f float, g double, h boolean, i binary, j date, k timestamp, "
        "l decimal(10,2)"
    )
    table = to_table([{"b": 1}], schema, topic="t", produced_at_us=1)
    write_parquet(table, str(tmp_path / "t.parquet"))
    assert schema_like(tmp_path / "t.parquet") == schema


@pytest.mark.parametrize("name", ["t.txt", "missing.jsonl", "missing.parquet"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        schema_like(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content"),
    [("t.jsonl", b"[1]\n"), ("t.jsonl", b"{"), ("t.parquet", b"no"), ("t.csv", b"\xff"), ("t.csv", b"")],
)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SchemaError):
        schema_like(tmp_path / name)
