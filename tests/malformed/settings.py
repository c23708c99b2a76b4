"""Settings, names and arguments: whatever the environment, ``.env`` or a command line says, the answer is clear.

What is refused is refused by a named error, before anything is written; what is accepted works, and stays in its place:
a topic's objects are below its own name. The neighbour is another topic in the same store.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from brokerless.aws import environment
from brokerless.consumer import Consumer
from brokerless.ingest.batches import Routes
from brokerless.offsets import Offset, parse_start
from brokerless.producer.producer import Producer
from brokerless.schema import Schema, check_name
from brokerless.settings import Settings
from brokerless.store import open_store
from brokerless.topics import create_topic, describe_topic, list_topics
from tests.malformed import nasty
from tests.malformed.json_lines import build_the_command_once, unclear
from tests.malformed.kinds import Kind, World, drained, once_each, producer_on, store_with
from tests.support.cli import Cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

_VARIABLES: Final = (
    "BROKERLESS_PROFILE",
    "BROKERLESS_ROOT",
    "BROKERLESS_STATE_DIR",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "MINIO_S3_ACCESS_KEY",
    "MINIO_S3_SECRET_ACCESS_KEY",
)
_URLS: Final = (
    "s3://",
    "s3:///x",
    "s3:/x",
    "S3://b",
    "s3://b/../x",
    "s3://b/%2e%2e/x",
    "s3://b/./x",
    "s3://b//x",
    "s3://b/a b",
    "s3://b/\x01",
    "s3://b/\n",
    "s3://b\n/x",
    "s3://b?x",
    "s3://b#x",
    "s3://k:s@b",
    "s3://[::1",
    "s3://[::1]",
    "s3://b:99999/x",
    "s3://B_b/x",
    "s3://" + "b" * 3000,
    "s3a://b",
    "s3://b/" + "x/" * 2000,
    "file://",
    "file://host/x",
    "file:x",
    "file:///proc/nowhere",
    "file:///dev/null/x",
    "gs://b",
    "gs://",
    "az://c",
    "az://",
    "abfss://c@a.dfs.core.windows.net/x",
    "abfss://x",
    "memory://",
    "memory://x/../y",
    "memory:///x",
    "http://127.0.0.1/",
    "ftp://x",
    "http://",
    "http://:9000",
    "http://127.0.0.1:0",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:x",
    "http://127.0.0.1:-1",
    "http://127.0.0.1:9",
    "http://127.0.0.1:9/path",
    "http://127.0.0.1:9?x",
    "http://user:secret@127.0.0.1:9",
    "http://[::1",
    "http://[::1]:9",
    "http://127.0.0.1:9\n",
    "http://127.0.0.1:\x00",
    "http://127.0.0.1 :9",
    "http://" + "a" * 64 + ".x:9",
    "http://\u2100:9",
    "http://..:9",
    "http://٣:9",
    "https://127.0.0.1:9",
    "HTTP://127.0.0.1:9",
    "//127.0.0.1:9",
    "127.0.0.1:9",
)
_NUMBERS: Final = (
    "",
    "0",
    "-1",
    "-0",
    "1.5",
    "1e9",
    "1e999",
    "NaN",
    "inf",
    "٣",
    "1_0",
    " 1",
    "9" * 30,
    "9" * 5000,
    "x",
    "0x1",
)
_PLACES: Final = (
    "beginning",
    "latest",
    "12",
    "12:",
    ":3",
    "1:-1",
    "-1:0",
    "9999999999999999999999:0",
    "0:9999999999999999999999",
    "1:" + "9" * 5000,
    "٣:٣",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+00:00",
    "2024-02-30T00:00:00+00:00",
    "2024-01-01",
    "2024-01-01T00:00:00",
    "2024-W01-1",
    "2024-01-01T00:00:00Z\n",
)
_SCHEMA_TEXTS: Final = (
    "",
    ",",
    "n",
    "n long,",
    "n long n long",
    "n long, N long",
    "n long; drop",
    "n decimal(0,0)",
    "n decimal(38,39)",
    "n decimal(99999999999,1)",
    "n decimal(",
    "n decimal(10,2",
    "n array<long>",
    "n struct<a:long>",
    "n: long",
    "n : : long",
    "_n long",
    "_produced_at timestamp",
    "n\x00 long",
    "名 long",
    "é long",
    "e\u0301 long",
    "\u017f long, S long",
    "n\u2003long",
    "x" * 5000 + " long",
    ", ".join(f"c{i} long" for i in range(2000)),
    "(" * 5000,
    "n long" + "," * 5000,
    "n decimal(" + "1" * 5000 + ",1)",
    "a long" + " " * 50_000 + "b",
)


@dataclass(frozen=True, slots=True)
class Bad:
    """Which door the value goes in at, and the value."""

    door: str
    value: Any


def generate(rng: Random) -> Bad:
    door = rng.choice(
        ("variables", "variables", "dotenv", "state", "function", "topic", "topic", "texts", "command", "command")
    )
    makers: dict[str, Callable[[Random], Any]] = {
        "variables": _variables,
        "dotenv": _dotenv,
        "state": _state,
        "function": _function,
        "topic": lambda rng: (
            text(rng),
            rng.choice((1, 1, 2, 0, -1, 1025, 10**9)),
            rng.choice((*_SCHEMA_TEXTS, "n long")),
        ),
        "texts": lambda rng: (rng.randrange(4), rng.choice((*_PLACES, *_SCHEMA_TEXTS, text(rng)))),
        "command": _command,
    }
    return Bad(door, makers[door](rng))


def text(rng: Random) -> str:
    """A text that is no good name, or nearly none."""
    if rng.random() < 0.7:
        return rng.choice(nasty.TEXTS)
    return "".join(
        rng.choice((*nasty.TEXTS[:20], "a", "b", "t", ".", "1", "-", "_")) for _ in range(rng.randrange(1, 8))
    )


def _variables(rng: Random) -> dict[str, str]:
    values = {"BROKERLESS_PROFILE": rng.choice(("embedded", "minio", "aws"))}
    for name in rng.sample(_VARIABLES, rng.choice((1, 2, 3))):
        values[name] = rng.choice((*_URLS, *_URLS, *nasty.TEXTS))
    return values


def _dotenv(rng: Random) -> bytes:
    good = b'# a comment\nexport BROKERLESS_PROFILE=embedded\nBROKERLESS_ROOT="memory://x"\n'
    line = rng.choice(
        (
            b"=",
            b"=x",
            b"NAME",
            b"1NAME=x",
            b"A B=x",
            b"export",
            b"export =x",
            b"\xff=x",
            b"NAME=\xff\xfe",
            b"BROKERLESS_ROOT='",
            b"BROKERLESS_ROOT=\x00",
            b"BROKERLESS_ROOT=s3://\xed\xa0\x80",
            b"\x00" * 50,
            b"\xef\xbb\xbfBROKERLESS_ROOT=memory://y",
            b"x" * 1_000_000,
            "BROKERLESS_ROOT=memory://x\u2028NAME=y".encode(),
            b"AWS_ENDPOINT_URL=http://127.0.0.1:x",
        )
    )
    return rng.choice(
        (good + line, line, line + b"\n" + good, nasty.damaged(rng, good), good.decode().encode("utf-16"))
    )


def _state(rng: Random) -> bytes:
    value = nasty.value(rng)
    value = 10**4299 if isinstance(value, int) and abs(value) > 10**4299 else value
    return rng.choice(
        (
            json.dumps({"endpoint": value}).encode(),
            json.dumps(value).encode(),
            json.dumps({"endpoint": rng.choice(_URLS)}).encode(),
            b"[" * 100_000,
            b"\xff\xfe",
            b"",
            rng.randbytes(100),
        )
    )


def _function(rng: Random) -> tuple[str, dict[str, str]]:
    name = rng.choice([name for name in dir(environment) if name.endswith("Environment")])
    loaded = getattr(environment, name)
    values = {
        "BROKERLESS_" + field.upper(): rng.choice((*_NUMBERS, *_URLS, *nasty.TEXTS, ",", "t,,t", "t,../x"))
        for field in loaded.__dataclass_fields__
        if rng.random() < 0.9
    }
    return name, values


def _command(rng: Random) -> tuple[list[str], dict[str, str]]:
    name, number, place = text(rng), rng.choice(_NUMBERS), rng.choice((*_PLACES, text(rng)))
    url, schema = rng.choice((*_URLS, text(rng))), rng.choice((*_SCHEMA_TEXTS, text(rng)))
    args = rng.choice(
        (
            ["topics", "create", name, "--schema", "n long"],
            ["topics", "create", "new", "--schema", schema],
            ["topics", "create", "new", "--schema", "n long", "--partitions", number],
            ["topics", "describe", name],
            ["topics", "delete", name, "--yes"],
            ["topics", "list", "--root", url],
            ["topics", "list", "--profile", name],
            ["produce", name],
            ["produce", "t", "--key", name],
            ["produce", "t", "--producer-id", name],
            ["produce", "t", "--file", name],
            ["tail", name, "--once"],
            ["tail", "t", "--once", "--from", place],
            ["tail", "t", "--once", "--max", number],
            ["tail", "t", "--once", "--partition", number],
            ["tail", "t", "--once", "--format", name],
            ["export", "t", "out.csv", "--once", "--from", place],
            ["export", "t", "out.csv", "--once", "--expect", number],
            ["maintain", name],
            ["verify", name],
            ["verify", "--history", name],
            [name],
            [name, name],
            ["topics", name],
            ["--root", url, "topics", "list"],
        )
    )
    if rng.random() < 0.2:
        args = [*args, "--json"]
    variables = {rng.choice(_VARIABLES): rng.choice((*_URLS, *nasty.TEXTS))} if rng.random() < 0.2 else {}
    # What an operating system hands to no program: NUL, and surrogates that are no undecodable bytes.
    return [_possible(arg) for arg in args], {name: _possible(value) for name, value in variables.items()}


def _possible(value: str) -> str:
    return os.fsdecode(value.replace("\x00", "").encode("utf-8", "surrogatepass").replace(b"\xed\xa0\x80", b"\xff"))[
        :100_000
    ]


@contextlib.contextmanager
def place() -> Iterator[tuple[Path, Iterator[int]]]:
    """A folder that is the working directory. A process of its own: nobody else is in it."""
    for name in _VARIABLES:
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        build_the_command_once()
        yield Path(folder), count()


def attack(bad: Bad, world: World) -> str | None:
    folder, numbers = world.place
    match bad.door:
        case "variables":
            world.count(world.error(lambda: open_store(Settings.load(environ=bad.value, dotenv=None))))
        case "dotenv":
            (folder / "dotenv").write_bytes(bad.value)
            load = lambda: Settings.load(environ={}, dotenv=folder / "dotenv")  # noqa: E731
            world.count(world.error(lambda: open_store(load())))
        case "state":
            (folder / "state").mkdir(exist_ok=True)
            (folder / "state" / "server.json").write_bytes(bad.value)
            given = {"BROKERLESS_STATE_DIR": str(folder / "state")}
            world.count(world.error(lambda: open_store(Settings.load(environ=given, dotenv=None))))
        case "function":
            name, variables = bad.value
            world.count(world.error(lambda: getattr(environment, name).load(variables)))
        case "texts":
            number, value = bad.value
            readers: tuple[Callable[[str], object], ...] = (
                _start_at,
                Offset.parse,
                Schema.parse,
                lambda text: Routes((text, "t"), text),
            )
            world.count(world.error(lambda: readers[number](value)))
        case "topic":
            return _topic(*bad.value, world)
        case "command":
            return _run(*bad.value, world, f"memory://{next(numbers)}")
    return None


def _start_at(text: str) -> None:
    """A start that can be read must be one at which a consumer can begin, or be refused by it."""
    store = store_with("t", "n long")
    with producer_on(store, "t") as producer:
        producer.send({"n": [1]})
    Consumer("t", start=parse_start(text), store=store, clock=store.clock).close()


def _topic(name: str, partitions: int, schema: str, world: World) -> str | None:
    store = store_with("neighbour", "n long")
    before = set(store.objects)
    with producer_on(store, "neighbour") as producer:
        producer.send({"n": [1]})
        known = set(store.objects)
        error = world.error(
            lambda: create_topic(store, name, Schema.parse(schema), partitions=partitions, clock=store.clock)
        )
        world.count(error)
        new = set(store.objects) - known
        producer.send({"n": [2]})
    if error is not None and new:
        return f"it was refused, but wrote {sorted(new)[:3]}"
    if any(path.partition("/")[0].rpartition(".")[0] != name and path.partition("/")[0] != name for path in new):
        return f"topic {name!r} has objects elsewhere: {sorted(new)[:3]}"
    if error is None:
        check_name(name)
        describe_topic(store, name, clock=store.clock)
        if {topic.name for topic in list_topics(store, clock=store.clock)} != {name, "neighbour"}:
            return f"topic {name!r} is not listed"
    assert before <= set(store.objects)
    with Consumer("neighbour", start="beginning", store=store, clock=store.clock) as consumer:
        return once_each(drained(consumer), "n", [1, 2])


def _run(args: list[str], variables: dict[str, str], world: World, root: str) -> str | None:
    cli = Cli(Settings("embedded", root, state_dir=Path("state")))
    create_topic(cli.store, "t", Schema.parse("n long"))
    create_topic(cli.store, "neighbour", Schema.parse("n long"))
    with Producer("neighbour", store=cli.store) as producer:
        producer.send({"n": [1]})
        result = cli(*args, stdin='{"n": 5}\n', **variables)
        producer.send({"n": [2]})
    if (wrong := unclear(result)) is not None and "Usage:" not in result.output:
        return f"{ascii(args)[:200]} {ascii(variables)[:200]}: {wrong}"
    world.outcomes["refused by the command" if result.exit_code else "valid after all"] += 1
    with Consumer("neighbour", start="beginning", store=cli.store) as consumer:
        return once_each(drained(consumer), "n", [1, 2])


KIND: Final = Kind(generate, attack, place)
