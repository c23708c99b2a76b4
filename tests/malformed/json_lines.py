"""JSON lines through ``brokerless produce``, on a real S3 server: one bad line, and nothing of the input is written."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer.testing

from brokerless.local.server import start_embedded
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.topics import create_topic
from tests.malformed import nasty
from tests.malformed.kinds import Kind, World, once_each
from tests.support.cli import Cli, cli_on

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

SCHEMA: Final = Schema.parse(
    "id string, n long, d double, b boolean, x binary, day date, at timestamp, p decimal(10,2)"
)
GOOD: Final[dict[str, Any]] = {
    "id": "?",
    "n": 1,
    "d": 0.5,
    "b": True,
    "x": "/w==",
    "day": "2026-11-21",
    "at": "2026-11-21T09:00:00+00:00",
    "p": "9.99",
}
_MIB: Final = 2**20


def line_of(id_: str, **values: Any) -> bytes:
    """A line of the topic."""
    return json.dumps({**GOOD, "id": id_, **values}).encode()


def generate(rng: Random) -> bytes:
    """One line, whose id is ``bad`` if it can be read at all."""
    return rng.choice((_values, _values, _values, _raw, _raw, _damaged, _damaged, _whole, _columns, _giant))(rng)


def _values(rng: Random) -> bytes:
    changes = {rng.choice(list(GOOD)[1:]): nasty.value(rng) for _ in range(rng.choice((1, 1, 3)))}
    return json.dumps({**GOOD, "id": "bad", **_jsonable(changes)}).encode()


def _jsonable(value: Any) -> Any:
    # Python writes no integer of more than 4300 digits.
    if isinstance(value, dict):
        return {key: _jsonable(inner) for key, inner in value.items()}
    return 10**4299 if isinstance(value, int) and abs(value) > 10**4299 else value


_RAW: Final = (
    "1e999999999",
    "-1e999999999",
    "1e-999999999",
    "9" * 5000,
    "0" * 100,
    "01",
    "+1",
    ".5",
    "1.",
    "0x1F",
    "NaN",
    "Infinity",
    "-Infinity",
    "undefined",
    "TRUE",
    "'x'",
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    "[" * 900 + "]" * 900,
    '{"a":' * 10_000 + "1" + "}" * 10_000,
    '"\\ud800"',
    '"\\ud800\\ud800"',
    '"\\u0000"',
    '"\\x41"',
    '"\\',
    '"\t"',
    '"\x00"',
    "1,",
    "1}",
    "1} {",
    "1 /* */",
    "1 // x",
    "",
)


def _raw(rng: Random) -> bytes:
    """A text in the place of a value, which a JSON library would not write."""
    name = rng.choice(list(GOOD)[1:])
    parts = [f'"{key}":{json.dumps(value)}' for key, value in {**GOOD, "id": "bad"}.items() if key != name]
    return ("{" + ",".join([*parts, f'"{name}":{rng.choice(_RAW)}']) + "}").encode()


def _damaged(rng: Random) -> bytes:
    return nasty.damaged(rng, line_of("bad")).replace(b"\n", b" ")


def _whole(rng: Random) -> bytes:
    good = line_of("bad")
    return rng.choice(
        (
            b"\xef\xbb\xbf" + good,
            b"\xef\xbb\xbf\xef\xbb\xbf" + good,
            good.decode().encode("utf-16"),
            good.decode().encode("utf-32"),
            b"\x00" + good,
            good + b"\x00",
            good.replace(b"bad", b"b\xffd"),
            good.replace(b'"bad"', b'"\xed\xa0\x80"'),
            good + good,
            b"[" + good + b"]",
            good[:-1] + b', "n": 2}',
            good[:-1] + b', "n": "two"}',
            b"null",
            b"5",
            b'"text"',
            b"[]",
            b"{}",
            b"}{",
            b"\x1f\x8b\x08\x00",
            b"PAR1",
            b"id,n,d\n1,2,3".replace(b"\n", b" "),
            b"\xff" * 100,
            b"-",
            b"{'id': 'bad'}",
        )
    )


def _columns(rng: Random) -> bytes:
    row: dict[str, Any] = {**GOOD, "id": "bad"}
    if rng.random() < 0.5:
        del row[rng.choice(list(row))]
    else:
        row[rng.choice((*nasty.TEXTS, "ID", "id ", "_produced_at", "_produced_at"))] = _jsonable({0: nasty.value(rng)})[
            0
        ]
    return json.dumps(row, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")


def _giant(rng: Random) -> bytes:
    if rng.random() < 0.8:
        return line_of("bad", x="/w==" * rng.choice((1000, 20_000)), more="x" * 10_000)
    return rng.choice((line_of("x" * 9 * _MIB), b"[" * 8 * _MIB, b" " * 9 * _MIB, b'{"a":"' * _MIB))


@contextlib.contextmanager
def place() -> Iterator[tuple[Cli, Iterator[int]]]:
    """A server, and the command beside it in an empty working directory."""
    with tempfile.TemporaryDirectory() as folder, start_embedded(Path(folder) / "s3") as server:
        os.chdir(folder)  # a process of its own: nobody else is in it
        build_the_command_once()
        yield cli_on(server.endpoint, "s3://malformed", Path(folder) / "state"), itertools.count()


def attack(bad: bytes, world: World) -> str | None:
    base, numbers = world.place
    cli = Cli(replace(base.settings, root=f"s3://malformed/{next(numbers)}"))
    create_topic(cli.store, "t", SCHEMA)
    with Producer("t", store=cli.store) as producer:
        producer.send([{**GOOD, "id": "before"}])
        before = cli.objects()
        result = cli("produce", "t", stdin=line_of("with") + b"\n" + bad + b"\n" + line_of("too") + b"\n")
        refused = result.exit_code != 0
        if (wrong := unclear(result)) is not None:
            return wrong
        if len(result.stderr) > 2000:
            return f"the message has {len(result.stderr)} characters"
        if refused and cli.objects() != before:
            return f"the input was refused, but wrote {sorted(cli.objects() - before)}"
        producer.send([{**GOOD, "id": "after"}])
    world.outcomes["refused by the command" if refused else "valid after all"] += 1
    shown = cli("tail", "t", "--once", "--format", "jsonl")
    if shown.exit_code != 0:
        return f"tail fails ({shown.exit_code}): {ascii(shown.stderr)[:300]} {shown.exception!r}"
    rows = [json.loads(line, parse_constant=_refuse) for line in shown.stdout.split("\n") if line]
    return once_each(rows, "id", ["before", "after"] if refused else ["before", "with", "too", "after"])


def build_the_command_once() -> None:
    """Three quarters of the time of a command in a test are for building its options, anew each time."""
    typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]


def unclear(result: Any) -> str | None:
    """What is wrong with how a command ended: None if it worked, or refused in one message without a traceback."""
    if result.exit_code == 0:
        return None
    if not isinstance(result.exception, SystemExit):
        raise result.exception
    errors = [line for line in result.stderr.split("\n") if line.startswith(("error: ", '{"error": '))]
    if result.exit_code not in {1, 2} or len(errors) != 1 or "Traceback" in result.output:
        return f"exit code {result.exit_code}, and no clear message: {ascii(result.output)[:300]}"
    return None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


KIND: Final = Kind(generate, attack, place, limit_s=30.0)
