"""Names and schemas of topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerless.errors import ConfigError, SchemaError
from brokerless.schema import Column, Schema, check_name, dead_letters, partition_table, split_table

TYPES = ["string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date", "timestamp"]
TYPES += ["decimal(10,2)", "decimal(38,38)"]
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)
SCHEMAS = st.lists(st.builds(Column, NAMES, st.sampled_from(TYPES)), min_size=1, unique_by=lambda c: c.name.lower())


@given(SCHEMAS)
def test_parse_is_the_inverse_of_str(columns: list[Column]) -> None:
    schema = Schema.of(columns)
    assert Schema.parse(str(schema)) == schema


@given(SCHEMAS)
def test_from_delta_is_the_inverse_of_to_delta(columns: list[Column]) -> None:
    schema = Schema.of(columns)
    assert Schema.from_delta(schema.to_delta()) == schema
    assert schema.to_delta().endswith('{"name":"_produced_at","type":"timestamp","nullable":true,"metadata":{}}]}')


def test_sql_names_and_spellings() -> None:
    text = "a BIGINT, b:int ,c  decimal( 10 , 2 ), d bool, e smallint, f tinyint"
    assert str(Schema.parse(text)) == "a long, b integer, c decimal(10,2), d boolean, e short, f byte"


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("", "Cannot read"),
        ("a", "Cannot read 'a'"),
        ("a string,", "Cannot read ''"),
        ("a text", "unknown type 'text'"),
        ("a decimal(39,1)", "unknown type"),
        ("a decimal(3,4)", "unknown type"),
        ("a array<string>", "'a' has the nested or unknown type 'array<string>'.*JSON text"),
        ("a long, b struct<x:int,y:map<string,decimal(3,2)>>, c long", "'b' has the nested or unknown type 'struct<x"),
        ("a string, A long", "twice"),
        ("_a string", "is not a valid column name"),
        ("_produced_at timestamp", "is not a valid column name"),
        ("1a string", "is not a valid column name"),
        ("a-b string", "is not a valid column name"),
    ],
)
def test_bad_schema_text_says_why(text: str, because: str) -> None:
    with pytest.raises(SchemaError, match=because):
        Schema.parse(text)


def test_reserved_names_are_for_the_kit() -> None:
    assert Schema.of([Column("_reason", "string")], reserved=True).names == ("_reason",)
    with pytest.raises(SchemaError):
        Schema.of([Column("_produced_at", "timestamp")], reserved=True)


def test_a_nested_column_cannot_be_created() -> None:
    with pytest.raises(SchemaError, match=r"'tags' has the nested or unknown type 'array'.*JSON text"):
        Schema.of([Column("tags", '{"type": "array", "elementType": "string"}')])


def test_nested_types_can_be_read() -> None:
    text = '{"type":"struct","fields":[{"name":"a","type":{"type":"array"},"nullable":true,"metadata":{}}]}'
    assert Schema.from_delta(text).columns == (Column("a", '{"type": "array"}'),)


@pytest.mark.parametrize("name", ["t", "t.dead_letters", "a-b_c", "A.b.c", "t1.2x", "x" * 200])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "x" * 201, ".t", "t.", "a..b", "t.1", "t.0", "a/b", "../x", "_t", "-t", "a b", "ä", "t.1\n", "t\n", "a.b.12"],
)
def test_bad_names(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid topic name"):
        check_name(name)


@given(st.sampled_from(["t", "t.dead_letters", "a.b"]), st.integers(0, 1023))
def test_tables_and_partitions(topic: str, partition: int) -> None:
    assert split_table(partition_table(topic, partition)) == (topic, partition)


def test_dead_letters() -> None:
    assert dead_letters("out") == "out.dead_letters"
    assert partition_table("t", 0) == "t"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "5",
        "{}",
        '{"fields":5}',
        '{"fields":[5]}',
        '{"fields":[{"name":"a"}]}',
        '{"fields":[{"name":5,"type":"x"}]}',
    ],
)
def test_text_that_is_no_delta_schema_is_named(text: str) -> None:
    with pytest.raises(SchemaError, match="not the schema of a Delta table"):
        Schema.from_delta(text)
