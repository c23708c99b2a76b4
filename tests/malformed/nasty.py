"""Values that have broken programs before, and damage done to bytes that were well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from random import Random

TEXTS: Final = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "\n",
    "\r\n\t",
    "\x1b[31m",
    "\x7f",
    "\u2028",
    "\u202e",
    "\ufeff",
    "\uffff",
    "\U0010ffff",
    "\ud800",
    "a\udfffb",
    "e\u0301" * 50,
    "\u0131",
    "ß",
    "٣",
    "²",
    "null",
    "None",
    "NaN",
    "Infinity",
    "true",
    "0x10",
    "1e5",
    "1_000",
    "1e999999999",
    "../up",
    "..",
    ".",
    "/",
    "//",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "%2e%2e%2f",
    "%00",
    "%",
    "%zz",
    "s3://other/x",
    "file:///etc/passwd",
    "http://127.0.0.1/",
    "~",
    "$HOME",
    "`id`",
    "; rm -rf /",
    "' OR 1=1 --",
    "<script>",
    "{}",
    "[]",
    "{{7*7}}",
    "%s%n",
    "-1",
    "--help",
    "-",
    "CON",
    ".hidden",
    "_delta_log",
    "x" * 300,
    "x" * 70_000,
    "0000-00-00",
    "2024-02-30",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
    "10000-01-01",
    "2024-01-01T00:00:00",
    "2024-01-01T25:00:00+00:00",
)

NUMBERS: Final = (
    0,
    -0.0,
    -1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    2**64,
    10**38,
    10**400,
    10**5000,
    1.5,
    0.1,
    5e-324,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
)

OTHERS: Final[tuple[Any, ...]] = (None, True, False, [], {}, [[]], [None], {"a": 1}, [1, 2, 3], {"": {}})


def value(rng: Random) -> Any:
    """Something that JSON could hold, or nearly."""
    return rng.choice(rng.choice((TEXTS, NUMBERS, OTHERS)))


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    inner: Any = []
    for _ in range(depth):
        inner = [inner]
    return inner


def damaged(rng: Random, data: bytes) -> bytes:
    """Other bytes: cut short, with flipped bits, with a part that is zero, doubled, foreign or gone."""
    if not data:
        return rng.randbytes(rng.randrange(1, 50))
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice((1, 2, 4, 8, 16, 100)))
    part = data[start:end]
    match rng.randrange(8):
        case 0:
            return data[:start]
        case 1:
            flipped = bytearray(data)
            for _ in range(rng.choice((1, 1, 3, 20))):
                flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case 2:
            return data[:start] + bytes(len(part)) + data[end:]
        case 3:
            return data[:start] + part * rng.choice((2, 100)) + data[end:]
        case 4:
            return data[:start] + rng.randbytes(len(part)) + data[end:]
        case 5:
            return data[:start] + data[end:]
        case 6:
            return data[start:]
        case _:
            return data[:start] + b"\xff" * len(part) + data[end:]
