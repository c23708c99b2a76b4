"""Parse the body of an HTTP request into rows: base64, gzip, JSON and JSON lines, with limits.

A body of a few kilobytes can unpack to gigabytes, so unpacking stops at the limit. Parsed JSON needs up to thirty times
the memory of its text (``[[],[],...]``): a function with 512 MB can hold the 6 MB that Lambda accepts, and a higher
limit for packed bodies needs more memory in proportion.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from brokerless.columns.text import DECODER, excerpt
from brokerless.errors import MessageError, UsageError

if TYPE_CHECKING:
    from arro3.core import Table

    from brokerless.columns.text import RowReader

MAX_MESSAGES: Final = 100_000
"""The limit of one request: 6 MB, what Lambda accepts, hold fewer messages unless they are nearly empty."""

_JSON: Final = frozenset({"application/json", "text/json"})
_LINES: Final = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"}
)
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_GZIP: Final = 31  # zlib's window bits for data with a gzip header


class BodyTooLarge(UsageError):
    """The body is larger than the limit, before or after it was unpacked."""


class UnsupportedBody(UsageError):
    """The content type or encoding is not supported."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows, and the offset in the body at which each begins (JSON) or its line number."""

    rows: list[dict[str, Any]]
    offsets: list[int]


def raw_body(body: str, *, base64_encoded: bool, encoding: str, max_bytes: int) -> bytes:
    """Return the unpacked bytes of a body.

    Args:
        body: the body as in the event.
        base64_encoded: whether it is base64.
        encoding: the header ``Content-Encoding``, or an empty string.
        max_bytes: the limit, packed and unpacked.

    Raises:
        BodyTooLarge: the body is larger than the limit.
        UnsupportedBody: the encoding is not supported.
        MessageError: the body is not valid base64 or gzip.
    """
    try:
        data = base64.b64decode(body, validate=True) if base64_encoded else body.encode()
    except (binascii.Error, ValueError):
        raise MessageError(
            "The body is not valid base64 or UTF-8. Send it with the encoding that the request names."
        ) from None
    _check_size(len(data), max_bytes)
    match encoding.strip().lower():
        case "" | "identity":
            return data
        case "gzip" | "x-gzip":
            return _unpacked(data, max_bytes)
    raise UnsupportedBody(f"The Content-Encoding must be gzip or empty, got {excerpt(encoding)}.")


def table_of(data: bytes, *, content_type: str, reader: RowReader) -> Table:
    """Return the messages of a body, checked against the topic's schema.

    Args:
        data: from ``raw_body``.
        content_type: the header; without one the body is JSON.
        reader: the reader of the topic.

    Raises:
        UnsupportedBody: the content type or character set is not supported.
        MessageError, SchemaError: a message is invalid; the text has the line and column, and the reason.
    """
    kind, _, parameters = content_type.lower().partition(";")
    kind = kind.strip() or "application/json"
    charset = re.search(r"""charset\s*=\s*["']?([^\s;"']*)""", parameters)
    if charset and charset[1] not in {"utf-8", "utf8", "us-ascii"}:
        raise UnsupportedBody(f"The character set must be UTF-8, got {excerpt(charset[1])}.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise MessageError(f"Line {line}, byte {column} is not UTF-8. Send UTF-8 text.") from None
    if kind in _JSON:
        found = _json(text, reader)
    elif kind in _LINES:
        found = _lines(text, reader)
    else:
        raise UnsupportedBody(
            f"The Content-Type must be application/json or application/x-ndjson, got {excerpt(kind)}."
        )

    def location(row: int) -> str:
        return _location(text, found.offsets[row]) if kind in _JSON else _line(found.offsets[row])

    return reader.table(found.rows, location).select(list(reader.schema.names))


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise BodyTooLarge(f"The body must have at most {max_bytes} bytes. Send fewer messages at a time.")


def _unpacked(data: bytes, max_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    try:
        unpacked = unpacker.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise MessageError(f"The body is not gzip ({error}). Pack it, or omit Content-Encoding.") from None
    _check_size(len(unpacked), max_bytes)
    if not unpacker.eof:
        raise MessageError("The gzip body ends too early. Send it again.")
    if unpacker.unused_data:
        raise MessageError("The gzip body must have one part. Pack it as one.")
    return unpacked


def _json(text: str, reader: RowReader) -> _Found:
    """Parse one object or an array of them, element by element, so that parsing ends at the first invalid one."""
    found = _Found([], [])
    try:
        start = _skip(text, 0)
        if text[start : start + 1] == "[":
            end = _array(text, start + 1, found, reader)
        else:
            value, end = _value(text, start)
            _add(found, _checked(reader, text, value, start), start)
        if (end := _skip(text, end)) != len(text):
            raise json.JSONDecodeError("Extra data", text, end)
    except json.JSONDecodeError as error:
        raise MessageError(
            f"Line {error.lineno}, column {error.colno} is not JSON: {error.msg}. Send an object, or an array of them."
        ) from None
    return found


def _array(text: str, position: int, found: _Found, reader: RowReader) -> int:
    """Parse the elements of an array and return the offset after it."""
    position = _skip(text, position)
    if text[position : position + 1] == "]":
        return position + 1
    while True:
        value, end = _value(text, position)
        _add(found, _checked(reader, text, value, position), position)
        end = _skip(text, end)
        mark = text[end : end + 1]
        if mark == "]":
            return end + 1
        if mark != ",":
            raise json.JSONDecodeError("Expecting ',' or ']'", text, end)
        position = _skip(text, end + 1)


def _checked(reader: RowReader, text: str, value: object, begin: int) -> dict[str, Any]:
    try:
        return reader.check(value, place="")
    except UsageError:
        # Only for an error: counting the lines before each of many messages would be slow.
        return reader.check(value, place=_location(text, begin), text=text[begin : begin + 500])


def _value(text: str, position: int) -> tuple[object, int]:
    try:
        value, end = DECODER.raw_decode(text, position)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise json.JSONDecodeError(str(error), text, position) from None
    return value, end


def _lines(text: str, reader: RowReader) -> _Found:
    found = _Found([], [])
    # Not splitlines(): it also splits at U+2028 and similar characters, which JSON text may contain.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            _add(found, reader.parse(line, place=_line(number)), number)
    return found


def _add(found: _Found, row: dict[str, Any], offset: int) -> None:
    if len(found.rows) == MAX_MESSAGES:
        raise BodyTooLarge(f"A request must have at most {MAX_MESSAGES} messages. Send fewer at a time.")
    found.rows.append(row)
    found.offsets.append(offset)


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return position if match is None else match.end()


def _location(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"Line {line}, column {position - text.rfind(chr(10), 0, position)}"


def _line(number: int) -> str:
    return f"Line {number}"
