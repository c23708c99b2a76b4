"""The lines that ``brokerless produce`` reads: what is accepted, and how the others are named."""

from __future__ import annotations

import errno
import io
import json

import pytest

from brokerless.cli import lines
from brokerless.cli.lines import Spool
from brokerless.errors import ConfigError, MessageError, SchemaError
from brokerless.schema import Schema

SCHEMA = Schema.parse("s string, n long")


def spool(text: str | bytes, schema: Schema = SCHEMA) -> Spool:
    data = text.encode() if isinstance(text, str) else text
    return Spool(io.BytesIO(data), source="file", topic="t", schema=schema)


def rows(text: str) -> list[dict]:
    with spool(text) as found:
        return [dict(zip(t.column_names, row, strict=True)) for t in found.tables() for row in _rows(t)]


def _rows(table):
    return zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)


def test_lines_become_messages_and_blank_ones_are_skipped():
    text = '{"s": "a", "n": 1}\n\n  \r\n{"n": null, "s": "b"}'
    assert rows(text) == [{"s": "a", "n": 1}, {"s": "b", "n": None}]


def test_a_spool_is_read_in_bounded_chunks_and_in_order(monkeypatch):
    monkeypatch.setattr(lines, "CHUNK_ROWS", 3)
    monkeypatch.setattr(lines, "_IN_MEMORY_BYTES", 100)  # over into a file
    text = "".join(f'{{"s": "{i}", "n": {i}}}\n' for i in range(10))
    with spool(text) as found:
        assert found.rows == 10
        assert [t.num_rows for t in found.tables()] == [3, 3, 3, 1]
        assert [n for t in found.tables() for n in t.column("n").to_pylist()] == list(range(10))


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("nonsense", MessageError, ["is not JSON", "nonsense", "one JSON object a line"]),
        ('{"s": "a", "n": 1', MessageError, ["is not JSON"]),
        ('{"s": NaN, "n": 1}', MessageError, ["is not JSON", "NaN"]),
        (b'{"s": "\xff", "n": 1}', MessageError, ["is not JSON"]),
        ("[" * 100_000, MessageError, ["is not JSON"]),
        ("[1]", MessageError, ["not a JSON object"]),
        ('"text"', MessageError, ["not a JSON object"]),
        ('{"s": "a", "n": 1, "more": 2}', SchemaError, ["no column 'more'", "n, s"]),
        ('{"s": "a"}', SchemaError, ["lacks the column 'n'", "null"]),
        ('{"s": 5, "n": 1}', MessageError, ["'s'", "value is 5"]),
        ('{"s": "a", "n": "1"}', MessageError, ["'n'", "value is '1'"]),
        ('{"s": "a", "n": 1.5}', MessageError, ["'n'", "value is 1.5"]),
        ('{"s": "a", "n": true}', MessageError, ["'n'", "value is True"]),
        ('{"s": "a", "n": 99999999999999999999}', MessageError, ["'n'", "value is 9999"]),
        ('{"s": "\\ud800", "n": 1}', MessageError, ["'s'"]),
        ('{"s": "a", "n": 1, "n": 2}', MessageError, ["is not JSON", "a name twice"]),
    ],
)
def test_a_bad_line_is_named_with_its_number(line, kind, words):
    text = b'{"s": "a", "n": 1}\n\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n"
    with pytest.raises(kind) as caught:
        spool(text)
    assert "file, line 3" in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("kind", "value"), [("decimal(6,2)", "1.125"), ("double", 2**53 + 1), ("float", 1e300), ("float", 2**24 + 1)]
)
def test_a_value_that_would_change_is_named_with_its_line(kind, value):
    text = f'{{"v": null}}\n{{"v": {json.dumps(value)}}}'
    with pytest.raises(MessageError, match=r"^file, line 2: column 'v' is .*, which cannot hold ") as caught:
        spool(text, Schema.parse(f"v {kind}"))
    assert repr(value) in str(caught.value)


def test_a_line_may_have_8_mib_and_no_more():
    def line(size: int) -> str:
        return json.dumps({"n": 1, "s": "x" * (size - len('{"n": 1, "s": ""}\n'))}) + "\n"

    with spool(line(8 * 2**20)) as found:
        assert found.rows == 1
    with pytest.raises(MessageError, match=r"line 1 is longer than 8388608 bytes"):
        spool(line(8 * 2**20 + 1))


def test_a_time_that_the_input_brings_is_kept():
    (row,) = rows('{"s": "a", "n": 1, "_produced_at": "2026-11-21T09:00:00+00:00"}')
    assert row["_produced_at"].year == 2026


def test_a_full_scratch_folder_is_named(monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lines, "write_ipc_stream", full)
    with pytest.raises(ConfigError, match=r"temporary folder .* is full.*TMPDIR.*Nothing was written"):
        spool('{"s": "a", "n": 1}')
