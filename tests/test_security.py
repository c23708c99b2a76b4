"""What somebody hostile may write, name or send, and what it must not reach. ``docs/threat-model.md`` links here."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import socket
import stat
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arro3.core import Table

from brokerless import store
from brokerless.bucket import create_bucket
from brokerless.columns.footer import check_footer, row_count
from brokerless.columns.text import RowReader
from brokerless.consumer import Consumer
from brokerless.errors import BrokerlessError, ConfigError, MessageError, StoreError, UnsupportedTable
from brokerless.export.text import csv_header, csv_lines, json_lines
from brokerless.export.topic import export_topic
from brokerless.ingest.bodies import table_of
from brokerless.local.minio import find_minio, start_minio
from brokerless.local.processes import prepare
from brokerless.local.server import start_embedded
from brokerless.log.entries import is_inside
from brokerless.log.log import DeltaLog
from brokerless.maintenance.maintainer import Maintainer
from brokerless.producer.producer import Producer
from brokerless.schema import Schema, check_name, is_table, split_table
from brokerless.settings import Settings, check_root
from brokerless.store import open_store
from brokerless.topics import create_topic, list_topics
from brokerless.verify.table import verify_table
from tests.support.cli import Cli, assert_refused
from tests.support.fakes import FakeClock, FakeStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from brokerless.local.server import LocalServer

CANARY = "canary-7f3a9"
SCHEMA = Schema.parse("m string, n long")
OUTSIDE = ["../other/a.parquet", "x/../../other/a.parquet", "%2e%2e/other/a.parquet", "/etc/passwd",
           "s3://elsewhere/a.parquet", "file:///etc/passwd", "./a.parquet", "a//b.parquet", "a\0b.parquet"]  # fmt: skip
MIB = 2**20


@pytest.fixture
def fake(clock: FakeClock) -> FakeStore:
    return FakeStore(clock)


def entry(*actions: dict[str, Any]) -> bytes:
    return "".join(json.dumps(action) + "\n" for action in actions).encode()


def add(path: str) -> dict[str, Any]:
    return {"add": {"path": path, "size": 1, "modificationTime": 1, "dataChange": True, "partitionValues": {}}}


# Names


@pytest.mark.parametrize(
    "name",
    ["..", "../t", "t/../u", "%2e%2e", "t%2fu", "t\0", "t\x07", "t\u202e", "\u0442opic", "t\uff0e1", "t.\u0661", "t.1",
     "_delta_log", "t/_delta_log", "_brokerless", "x" * 201, "t\\u", " t", "t ", "t:u"],
)  # fmt: skip
def test_hostile_names_are_neither_topics_nor_tables(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid topic name"):
        check_name(name)
    assert is_table(name) == (name == "t.1")


@pytest.mark.parametrize("name", ["t.²", "t.٣", "t.01", "t.0", "t." + "9" * 5000, "t.-1", ".1"])
def test_only_partitions_as_they_are_written_are_partitions(name: str) -> None:
    assert split_table(name) == (name, 0)


def test_hostile_folders_hide_no_topic(fake: FakeStore, clock: FakeClock) -> None:
    create_topic(fake, "good", SCHEMA, clock=clock)
    for folder in ("t.²", "%2e%2e", "good.01", "x" * 300, "a b"):
        fake.put(f"{folder}/_delta_log/{0:020d}.json", b"{}")
    assert [topic.name for topic in list_topics(fake, clock=clock)] == ["good"]


def test_maintenance_passes_over_folders_that_no_topic_can_have(fake: FakeStore, clock: FakeClock) -> None:
    """delta-rs would read ``%2e%2e`` as the folder above, and write its checkpoint there."""
    create_topic(fake, "good", SCHEMA, clock=clock)
    log = fake.objects[f"good/_delta_log/{0:020d}.json"]
    fake.put(f"%2e%2e/_delta_log/{0:020d}.json", log)
    maintainer = Maintainer(settings=None, store=fake, checkpoint_every=1, clock=clock)
    assert [report.table for report in maintainer.run_once()] == ["good"]


@pytest.mark.parametrize(
    "root", ["s3://b/%2e%2e/x", "s3://b/a\\..\\x", "s3://b\n/x", "s3://b/a\0", "file://etc/passwd"]
)
def test_roots_that_clients_read_differently_are_refused(root: str) -> None:
    with pytest.raises(ConfigError):
        check_root(root)


# Paths in log entries


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_reader_refuses_an_entry_that_points_out_of_its_table(fake: FakeStore, clock: FakeClock, path: str) -> None:
    create_topic(fake, "t", SCHEMA, clock=clock)
    fake.put(f"t/_delta_log/{1:020d}.json", entry(add(path)))
    asked: list[str] = []
    fake.on_get = asked.append
    with pytest.raises(UnsupportedTable), Consumer("t", start="beginning", store=fake, clock=clock) as consumer:
        consumer.poll(0)
    assert all(name.startswith("t/_delta_log/") for name in asked)


def test_maintenance_deletes_nothing_outside_of_the_table(fake: FakeStore, clock: FakeClock) -> None:
    """Whatever a log says was removed: only objects that were listed below the table are ever deleted."""
    for name in ("t", "other", "t.1"):
        if name != "t.1":
            create_topic(fake, name, SCHEMA, clock=clock)
        fake.put(f"{name}/a.parquet", b"x")
    removes = [{"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}} for path in OUTSIDE]
    fake.put(f"t/_delta_log/{1:020d}.json", entry({"commitInfo": {"timestamp": 1}}, *removes))
    orphan = f"t/part-orphan.{0:08x}.snappy.parquet"
    fake.put(orphan, b"x")
    clock.advance(7200)
    deleted: list[str] = []
    real = fake.delete
    fake.delete = lambda paths: (deleted.extend(paths), real(paths))[1]  # type: ignore[method-assign]
    Maintainer(["t"], store=fake, unsafe_no_minimum=True, grace_s=60, log_retention_s=60, clock=clock).run_once()
    assert orphan in deleted
    assert all(path.startswith("t/") and ".." not in path for path in deleted)


def test_maintenance_leaves_a_table_with_such_an_add_alone_and_goes_on(fake: FakeStore, clock: FakeClock) -> None:
    for name in ("t", "u"):
        create_topic(fake, name, SCHEMA, clock=clock)
        fake.put(f"{name}/part-orphan.{0:08x}.snappy.parquet", b"x")
    fake.put(f"t/_delta_log/{1:020d}.json", entry(add("../other/a.parquet")))
    clock.advance(2 * 86400)
    bad, good = Maintainer(["t", "u"], store=fake, clock=clock).run_once()
    assert bad.objects_removed == 0
    assert "outside of itself" in " ".join(bad.skipped)
    assert good.objects_removed == 1


def test_verify_looks_at_nothing_outside_and_says_so(fake: FakeStore, clock: FakeClock) -> None:
    create_topic(fake, "t", SCHEMA, clock=clock)
    paths = ["../other/a.parquet", "/etc/passwd", "s3://elsewhere/a.parquet", "a\u0000b"]
    fake.put(f"t/_delta_log/{1:020d}.json", entry(*map(add, paths)))
    asked: list[str] = []
    fake.on_get = asked.append
    exists = fake.exists
    fake.exists = lambda path: (asked.append(path), exists(path))[1]  # type: ignore[method-assign]
    report = verify_table(fake, "t", full=True, clock=clock)
    assert any("4 files outside" in note for note in report.notes)
    assert all(path.startswith("t/_delta_log/") for path in asked)


@pytest.mark.parametrize("path", ["..a.parquet", "a..b/c.parquet", "...", ".hidden", "x=1%2F/a.parquet"])
def test_odd_paths_inside_are_inside(path: str) -> None:
    assert is_inside(path)


@pytest.mark.parametrize(
    "key", ["../secret.txt", "t/../../secret.txt", "t/%2e%2e/%2e%2e/secret.txt", "t/..%2fsecret.txt"]
)
def test_a_local_root_keeps_keys_inside(tmp_path: Path, key: str) -> None:
    (tmp_path / "secret.txt").write_text("untouched")
    local = open_store(Settings("embedded", f"file://{tmp_path}/root"))
    for attack in (lambda: local.get(key), lambda: local.put(key, b"overwritten"), lambda: local.delete([key])):
        try:
            assert attack() != b"untouched"
        except (StoreError, FileNotFoundError):
            continue
    assert (tmp_path / "secret.txt").read_text() == "untouched"


# Credentials


@pytest.mark.parametrize(
    "root",
    [f"https://key:{CANARY}@host/x", f"s3://key:{CANARY}@b/x?y", f"s3://key:{CANARY}@[::1", f"s3://b/p?sig={CANARY}",
     f"abfss://c:{CANARY}@account/x", f"az://c/x#{CANARY}", f"s3://key:a/{CANARY}@b/x"],
)  # fmt: skip
def test_a_refused_root_does_not_show_its_credentials(root: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_root(root)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "args",
    [
        ["verify", f"s3://key:{CANARY}@bucket"],
        ["verify", f"s3://key:a/{CANARY}@bucket"],
        ["verify", f"s3://bucket/t?sig={CANARY}"],
        ["verify", f"s3://bucket/t?sig={CANARY}", "--root", "s3://b"],
        ["verify", f"s3://key:{CANARY}@bucket/t", "--root", "s3://b"],
        ["demo", "--root", f"gs://u:{CANARY}@b"],
        ["demo", "--root", f"az://c/x?sig={CANARY}"],
    ],
)
def test_a_refused_url_does_not_show_its_credentials(tmp_path: Path, args: list[str]) -> None:
    cli = Cli(Settings("embedded", f"file://{tmp_path}", state_dir=tmp_path / "state"))
    assert CANARY not in assert_refused(cli(*args))


@pytest.mark.parametrize("endpoint", [f"http://key:{CANARY}@h:9000", f"ftp://h?sig={CANARY}", f"key:{CANARY}@h"])
def test_an_endpoint_with_credentials_is_refused_without_showing_them(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"must not contain credentials|is not a URL") as caught:
        Settings("minio", "s3://b", endpoint=endpoint)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("content", [f"AWS_SECRET_ACCESS_KEY {CANARY}".encode(), b"A=\xff" + CANARY.encode()])
def test_a_broken_dotenv_is_named_without_its_content(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".env").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Settings.load(environ={}, dotenv=tmp_path / ".env")
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_servers_folder_is_its_owners_only(tmp_path: Path) -> None:
    assert stat.S_IMODE(prepare(tmp_path / "a" / "b").stat().st_mode) == 0o700


# Files


@pytest.fixture
def topic(fake: FakeStore, clock: FakeClock) -> str:
    create_topic(fake, "t", SCHEMA, clock=clock)
    with Producer("t", store=fake, clock=clock) as producer:
        producer.send([{"m": "=1+1", "n": -1}])
    return "t"


NAMES = ("out.csv", "out.jsonl", "out.parquet")


@pytest.mark.parametrize("name", NAMES)
def test_export_does_not_write_through_a_symbolic_link(
    fake: FakeStore, clock: FakeClock, topic: str, tmp_path: Path, name: str
) -> None:
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / name).symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match="symbolic link"):
        export_topic(topic, tmp_path / name, store=fake, once=True, clock=clock)
    assert (tmp_path / "victim").read_text() == "untouched"


def test_export_does_not_write_through_a_link_at_its_partial_file(
    fake: FakeStore, clock: FakeClock, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / ".out.parquet.partial").symlink_to(tmp_path / "victim")
    export_topic(topic, tmp_path / "out.parquet", store=fake, once=True, clock=clock)
    assert (tmp_path / "victim").read_text() == "untouched"
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 1


@pytest.mark.parametrize("name", NAMES)
def test_export_keeps_the_permissions_of_the_file_that_it_replaces(
    fake: FakeStore, clock: FakeClock, topic: str, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).touch(mode=0o600)
    export_topic(topic, tmp_path / name, store=fake, once=True, clock=clock)
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    before = os.umask(0o077)
    try:
        export_topic(topic, tmp_path / f"new-{name}", store=fake, once=True, clock=clock)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / f"new-{name}").stat().st_mode) == 0o600


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1+1", "\uff0b1", "\uff0d1", "\uff20a"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_that_is_a_formula_is_defused_in_csv_only(text: str) -> None:
    table = Table.from_pydict({"m": pa.array([text])})
    [line] = csv_lines(table)
    assert next(csv.reader(io.StringIO(line, newline=""))) == ["'" + text]
    assert json.loads(json_lines(table)[0]) == {"m": text}


def test_a_column_that_is_called_like_a_formula_is_defused() -> None:
    """Tables of other writers may have any name."""
    assert csv_header(["=cmd|'/c calc'!A1", "n"]) == '''"'=cmd|'/c calc'!A1","n"'''


def test_raw_leaves_texts_and_numbers_as_they_are(
    fake: FakeStore, clock: FakeClock, topic: str, tmp_path: Path
) -> None:
    for raw, text in ((False, "'=1+1"), (True, "=1+1")):
        export_topic(topic, tmp_path / "out.csv", store=fake, once=True, raw=raw, clock=clock)
        with (tmp_path / "out.csv").open(newline="") as file:
            [row] = csv.DictReader(file)
        assert (row["m"], row["n"]) == (text, "-1")


# Sizes


# The peak is not that of getrusage: its maximum survives exec, so it begins with the memory of the pytest that forked.
DECODE = """
import sys
from brokerless.columns import records
from brokerless.errors import StoreError
records.MAX_DECODED_BYTES = 64 * 2**20
try:
    records.decode(sys.stdin.buffer.read())
except StoreError as error:
    print(error)
print(next(x.split()[1] for x in open("/proc/self/status") if x.startswith("VmHWM")))
"""


def decoded(data: bytes) -> tuple[str, int]:
    """The error of decoding an object in a process of bounded memory, and the peak of that memory in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", DECODE],
        input=data,
        capture_output=True,
        timeout=110,
        check=False,
        env={"PATH": os.environ["PATH"], "RUST_BACKTRACE": "0", "MALLOC_ARENA_MAX": "2"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1500 * MIB, 1500 * MIB)),
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    printed, _, peak = done.stdout.decode().strip().rpartition("\n")
    return printed, int(peak) // 1024


def bomb(rows: int, value: str) -> bytes:
    """Parquet that holds one value many times."""
    indices = pa.Array.from_buffers(pa.int8(), rows, [None, pa.py_buffer(bytes(rows))])
    column = pa.DictionaryArray.from_arrays(indices, pa.array([value]))
    buffer = io.BytesIO()
    pq.write_table(pa.table({"m": column}), buffer, store_schema=False)
    return buffer.getvalue()


def test_parquet_that_unpacks_without_end_is_refused_in_bounded_memory() -> None:
    data = bomb(3_000_000, "x" * 100)  # 300 MB from a few kilobytes
    assert len(data) < MIB
    printed, peak = decoded(data)
    assert "unpack to more than 67108864 bytes" in printed
    assert peak < 250


def test_an_object_that_is_too_large_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = open_store(Settings("embedded", f"file://{tmp_path}"))
    local.put("t/a.parquet", b"12345")
    monkeypatch.setattr(store, "MAX_OBJECT_BYTES", 4)
    with pytest.raises(StoreError, match="has 5 bytes; the largest supported object has 4"):
        local.get("t/a.parquet")


def zigzag(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while True:
        out.append(rest & 127 | (128 if rest > 127 else 0))
        rest >>= 7
        if not rest:
            return bytes(out)


def footer_with(*, start: int, size: int, rows: int = 1) -> bytes:
    """An object with one column chunk that is said to be there."""
    # FileMetaData: 1 version, 2 schema, 3 num_rows, 4 row_groups; the numbers are those of parquet.thrift.
    root = b"\x48\x01r\x15\x02\x00"  # name, num_children
    leaf = b"\x15\x04\x25\x02\x18\x01a\x00"  # type INT64, repetition OPTIONAL, name
    meta = b"\x15\x04\x19\x15\x00\x19\x18\x01a\x15\x00\x16" + zigzag(rows)
    meta += b"\x16" + zigzag(0) + b"\x16" + zigzag(size) + b"\x26" + zigzag(start) + b"\x00"
    chunk = b"\x26\x00\x1c" + meta + b"\x00"
    group = b"\x19\x1c" + chunk + b"\x16\x00\x16" + zigzag(rows) + b"\x00"
    footer = b"\x15\x02\x19\x2c" + root + leaf + b"\x16" + zigzag(rows) + b"\x19\x1c" + group + b"\x00"
    return b"PAR1" + bytes(16) + footer + len(footer).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize(
    ("start", "size", "rows"),
    [(4, -1, 1), (-1, 4, 1), (4, 2**40, 1), (2**62, 2**62, 1), (4, 2**31, 2**31), (4, 8, -1), (10**6, 4, 1)],
)
def test_a_footer_that_points_outside_is_an_error_and_not_the_end_of_the_process(
    start: int, size: int, rows: int
) -> None:
    """A size below zero made the decoder abort."""
    check_footer(footer_with(start=4, size=16))
    data = footer_with(start=start, size=size, rows=rows)
    printed, peak = decoded(data)
    assert "points outside" in printed
    assert peak < 150


@pytest.mark.parametrize(
    ("footer", "reads"),
    [
        (b"\xff" * 200_000, (check_footer, row_count)),
        (b"\x15" + b"\x80" * 200_000, (check_footer, row_count)),
        (b"\x1c" * 9999, (check_footer, row_count)),
        (b"\x15\x02\x19\x0c\x16\x00\x19\x19\x05\x00", (check_footer,)),  # a row group that is an empty list
    ],
)
def test_a_footer_without_an_end_or_of_another_shape_is_damaged(
    footer: bytes, reads: tuple[Callable[[bytes], object], ...]
) -> None:
    whole = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    for read in reads:
        with pytest.raises(ValueError, match="footer is damaged"):
            read(whole)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("long", value) for value in ("[" * 100_000, '{"n":' * 100_000, "9" * 5_000, "-" + "9" * 5_000, "NaN")),
        *(("long", value) for value in ("1e999999999", "1" + "0" * 400 + ".0")),
        ("decimal(10,2)", "1e999999999"),
    ],
)
def test_json_of_any_depth_and_size_is_a_message_error(column: str, value: str) -> None:
    reader = RowReader("t", Schema.parse(f"n {column}"))
    with pytest.raises(MessageError) as caught:
        table_of(f'{{"n": {value}}}'.encode(), content_type="application/json", reader=reader)
    assert len(str(caught.value)) < 500


def test_an_entry_of_any_depth_is_a_named_error(fake: FakeStore, clock: FakeClock) -> None:
    create_topic(fake, "t", SCHEMA, clock=clock)
    fake.put(f"t/_delta_log/{1:020d}.json", b'{"add":' + b"[" * 100_000)
    with pytest.raises(BrokerlessError):
        list(DeltaLog(fake, "t", clock=clock).read_from(0))


# Secrets of real processes: they are looked for wherever others could look


ACCESS, SECRET, TOKEN = "canary-access-51", "canary-secret-83c1e", "canary-token-99d2"
SECRETS = (SECRET.encode(), TOKEN.encode())
COLUMNS = "date string, message string"
needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="arguments are read from /proc")


@pytest.fixture(scope="module", params=["embedded", pytest.param("minio", marks=pytest.mark.minio)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    folder = tmp_path_factory.mktemp("server")
    if request.param == "embedded":
        with start_embedded(folder) as running:
            yield running
        return
    if find_minio() is None:
        pytest.skip("no MinIO: put 'minio' on PATH or set BROKERLESS_MINIO_BINARY")
    with start_minio(folder, access_key=ACCESS, secret_key=SECRET) as running:
        yield running


@pytest.fixture
def cli(server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    settings = Settings(
        server.kind,
        f"s3://brokerless-tests/{uuid.uuid4().hex}",
        endpoint=server.endpoint,
        access_key=ACCESS,
        secret_key=SECRET,
        # MinIO refuses a token that it did not give.
        session_token=TOKEN if server.kind == "embedded" else None,
        state_dir=tmp_path / "state",
    )
    create_bucket(settings)
    return Cli(settings)


def process(cli: Cli, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "brokerless.cli", *args],
        env={**os.environ, **cli.settings.to_environ()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def arguments() -> bytes:
    """The arguments of every process of the machine, as ``ps`` shows them to every user."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return b"\n".join(found)


def assert_clean(*texts: bytes | str) -> None:
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        for secret in SECRETS:
            at = data.find(secret)
            assert at < 0, data[max(0, at - 200) : at + 50]


def files_below(folder: Path) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()


@needs_proc
def test_no_secret_in_arguments_output_or_files_while_a_producer_runs(
    cli: Cli, server: LocalServer, tmp_path: Path
) -> None:
    assert cli("topics", "create", "t", "--schema", COLUMNS).exit_code == 0
    running = process(cli, "produce", "t")
    assert running.stdin is not None
    running.stdin.write(b'{"date": "d", "message": "m"}\n')
    running.stdin.flush()
    deadline = time.monotonic() + 30
    while b"brokerless.cli" not in (shown := arguments()):  # for a moment a new process has none
        assert time.monotonic() < deadline
        time.sleep(0.01)
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors.decode()[-2000:]
    assert_clean(shown, output, errors, *files_below(tmp_path))


@pytest.mark.parametrize(
    "args",
    [
        ["doctor", "--json"],
        ["topics", "list", "--json"],
        ["topics", "describe", "nix"],
        ["tail", "nix", "--once"],
        ["export", "nix", "out.csv", "--once"],
        ["verify", "nix"],
        ["run", "timezone-etl", "--once"],
        ["status", "--json"],
    ],
)
def test_no_secret_in_what_a_command_says(cli: Cli, tmp_path: Path, args: list[str]) -> None:
    assert_clean(cli(*args).output, *files_below(tmp_path))


def test_no_secret_in_the_errors_of_a_store_that_refuses_or_does_not_answer(cli: Cli) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        for args in (["topics", "list"], ["doctor", "--json"], ["topics", "create", "t", "--schema", COLUMNS]):
            result = cli(*args, AWS_ENDPOINT_URL_S3=url)
            assert result.exit_code != 0
            assert_clean(result.output)
    if cli.settings.profile == "minio":
        result = cli("topics", "list", MINIO_S3_ACCESS_KEY="nobody")
        assert result.exit_code == 2
        assert_clean(result.output)


def test_the_embedded_server_serves_no_web_pages(server: LocalServer) -> None:
    if server.kind != "embedded":
        pytest.skip("MinIO asks for credentials")
    opener = build_opener(ProxyHandler({}))
    for path, method in (("/_ministack/reset", "POST"), ("/", "GET"), ("/brokerless-tests?list-type=2", "GET")):
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": "rebound.evil.example"},
        ):
            with pytest.raises(HTTPError) as refused:
                opener.open(Request(server.endpoint + path, method=method, headers=headers), timeout=10)  # noqa: S310
            assert refused.value.code == 403
            assert "Access-Control-Allow-Origin" not in refused.value.headers


def test_servers_are_not_reached_by_another_address_of_this_machine(server: LocalServer) -> None:
    """A server that listens everywhere is there at 127.0.0.2, too, which needs no network to be tried."""
    port = int(server.endpoint.rpartition(":")[2])
    others = {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), port, family=socket.AF_INET)}
    for address in {"127.0.0.2", *others} - {"127.0.0.1"}:
        with pytest.raises(OSError):  # refused or unreachable, as the system has it
            socket.create_connection((address, port), 2).close()


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.spark
def test_no_secret_in_arguments_output_or_conf_while_a_pipeline_runs(cli: Cli, tmp_path: Path) -> None:
    for name in ("timezone1", "timezone2"):
        cli.json("topics", "create", name, "--schema", COLUMNS)
    running = process(cli, "run", "timezone-etl", "--once")
    shown = []
    while running.poll() is None:
        shown.append(arguments())
        try:
            running.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    output, errors = running.communicate()
    assert running.returncode == 0, errors.decode()[-2000:]
    assert any(b"org.apache.spark" in text for text in shown)  # the JVM was seen
    assert_clean(*shown, output, errors, *files_below(tmp_path))
