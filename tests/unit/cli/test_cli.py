"""The command's surface: help, options before and after the verb, errors and exit codes, the documentation."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from brokerless import errors
from brokerless.cli import application, lines
from brokerless.cli import main as cli_main
from brokerless.cli.app import _Root, exit_code
from brokerless.cli.lines import Spool
from brokerless.cli.messages import _printer, stop_on_signals
from brokerless.cli.output import Progress, printable
from brokerless.columns.records import to_table
from brokerless.consumer import Batch
from brokerless.consumer.partition import PartitionReader
from brokerless.local.doctor import clock_skew
from brokerless.errors import ConfigError, MessageError, SchemaError
from brokerless.log.entries import PARTITIONS_KEY
from brokerless.log.log import DeltaLog
from brokerless.producer.partitioner import partition_of
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.settings import Settings
from brokerless.topics import create_topic
from brokerless.verify.holes import find_hole
from brokerless.version import VERSION
from tests.support.checkpoints import clean_up, write_checkpoint
from tests.support.cli import Cli, assert_refused
from tests.support.fakes import FakeClock, FakeStore

REPO = Path(__file__).parents[3]

VERBS = [
    "up",
    "down",
    "status",
    "verify",
    "cost",
    "topics create",
    "topics list",
    "topics describe",
    "topics delete",
    "produce",
    "tail",
    "export",
    "new pipeline",
    "run",
    "demo",
    "maintain",
    "dlq list",
    "dlq show",
    "dlq redrive",
    "dlq purge",
    "doctor",
]


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """A command on a local folder: no server is needed."""
    monkeypatch.chdir(tmp_path)
    return Cli(Settings("embedded", f"file://{tmp_path}/root", state_dir=tmp_path / "state"))


# Help and documentation


@pytest.mark.parametrize("verb", VERBS)
def test_help_teaches_by_example(cli, verb):
    result = cli(*verb.split(), "--help", COLUMNS="200")
    assert result.exit_code == 0
    assert f"brokerless {verb}" in result.stdout.split("Examples:")[1]
    assert "--profile" in result.stdout
    assert "--json" in result.stdout


def test_root_help_lists_every_verb(cli):
    result = cli("--help")
    for verb in VERBS:
        assert verb.split()[0] in result.stdout


def test_without_a_verb_the_help_is_shown_and_nothing_done(cli):
    result = cli()
    assert result.exit_code == 2
    assert "Usage" in result.stdout


def test_version(cli):
    assert cli("--version").stdout == f"brokerless {VERSION}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_and_option_is_documented(verb):
    import typer.main

    command = typer.main.get_command(application())
    for word in verb.split():
        command = command.commands[word]
    page = (REPO / "docs" / "cli.md").read_text()
    section = page.split(f"\n## {verb}\n")[1].split("\n## ")[0]
    everywhere = page.split("\n## Everywhere\n")[1].split("\n## ")[0]
    for parameter in command.params:
        if parameter.name != "help":
            for name in parameter.opts if parameter.param_type_name == "option" else [parameter.metavar]:
                assert f"`{name}" in section + everywhere
            assert parameter.help, f"{verb} {parameter.name}"


def test_starting_loads_nothing_heavy():
    code = "import sys; from brokerless.cli import application; application(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30, cwd=REPO
    ).stdout.split()
    assert not {"pyspark", "pyarrow", "deltalake", "arro3.core", "obstore", "rich.console"} & set(loaded)


# Options


def test_options_may_stand_before_or_after_the_verb(cli):
    before = cli("--json", "--root", "memory:///before", "topics", "list")
    after = cli("topics", "list", "--json", "--root", "memory:///before")
    assert (before.stdout, before.exit_code) == (after.stdout, after.exit_code) == ("[]\n", 0)


def test_what_stands_after_the_verb_wins(cli):
    result = cli("--root", "memory:///one", "topics", "describe", "t", "--root", "memory:///two")
    assert "memory:///two" in result.stderr


# Errors


def test_errors_are_one_message(cli):
    assert_refused(cli("topics", "describe", "nix"), "There is no topic 'nix'", "brokerless topics create nix")


def test_with_json_errors_are_json_on_standard_error(cli):
    result = cli("topics", "describe", "nix", "--json")
    error = json.loads(result.stderr)["error"]
    assert (error["type"], error["exit_code"], result.exit_code) == ("TopicNotFound", 2, 2)
    assert result.stdout == ""


@pytest.mark.parametrize("args", [["--nonsense"], ["nonsense"], ["topics", "create"], ["tail", "t", "--max", "x"]])
def test_a_line_that_cannot_be_parsed_is_exit_2(cli, args):
    result = cli(*args)
    assert result.exit_code == 2
    assert "--help'" in result.stderr
    result = cli("--json", *args)
    assert json.loads(result.stderr)["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ConfigError, 2),
        (errors.TopicNotFound, 2),
        (errors.UnsupportedTable, 2),
        (errors.StoreUnavailable, 2),
        (errors.AccessDenied, 2),
        (errors.BucketNotFound, 2),
        (errors.ConditionalPutUnsupported, 2),
        (errors.BrokerlessError, 1),
        (errors.NotCommitted, 1),
        (errors.ProducerFenced, 1),
        (errors.BufferFull, 1),
        (errors.PipelineError, 1),
    ],
)
def test_exit_codes(kind, code):
    assert exit_code(kind("what")) == code


@pytest.mark.parametrize("verb", [["tail", "t", "--once"], ["export", "t", "o.csv", "--once"]])
def test_what_fails_after_rows_were_written_is_exit_1(cli, monkeypatch, verb):
    cli.json("topics", "create", "t", "--schema", "s string")
    for text in ("first", "second"):
        cli.json("produce", "t", stdin=json.dumps({"s": text}))
    second = DeltaLog(cli.store, "t").read(2)
    cli.store.delete([f"t/{add.path}" for add in second.messages])
    take = PartitionReader.next_entries
    monkeypatch.setattr(PartitionReader, "next_entries", lambda part, max_bytes: take(part, 1))  # a commit a poll
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
    take = PartitionReader.next_entries

    def losing(part, max_bytes):
        cli.store.delete(["t/_delta_log/00000000000000000003.json"])
        part.tail._opened = {}  # as in a log that is longer than what its opening hands on
        return take(part, 1)  # a commit a poll

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


def test_what_cannot_begin_is_exit_2_and_writes_nothing(cli):
    assert_refused(cli("export", "t", "o.csv", "--once"), "no topic 't'")
    assert not Path("o.csv").exists()


def test_ctrl_c_is_130(cli, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("brokerless.topics.survey_topics", interrupted)
    result = cli("topics", "list")
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_ctrl_c_while_the_command_starts_is_130_too(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("brokerless.cli.application", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli_main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


def test_nothing_is_loaded_before_ctrl_c_is_handled():
    code = "import sys; before = set(sys.modules); import brokerless.cli; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPO).stdout
    assert set(loaded.split()) <= {"brokerless", "brokerless.cli", "brokerless.version", "__future__"}


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    """As ``brokerless tail ... | head -1``."""
    environ = {**os.environ, "BROKERLESS_ROOT": f"file://{tmp_path}/root", "PYTHONPATH": str(REPO)}
    command = [sys.executable, "-P", "-m", "brokerless.cli"]

    def run(*args: str, **options):
        return subprocess.run([*command, *args], env=environ, cwd=tmp_path, timeout=60, check=True, **options)

    run("topics", "create", "t", "--schema", "s string", capture_output=True)
    text = "".join(json.dumps({"s": "x" * 1000}) + "\n" for _ in range(1000))
    run("produce", "t", input=text.encode(), capture_output=True)
    with subprocess.Popen(
        [*command, "tail", "t", "--once"], env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as tail:
        tail.stdout.readline()
        tail.stdout.close()
        assert tail.stderr.read() == b""
        assert tail.wait(30) == 0


def test_deleting_needs_a_yes(cli):
    assert cli("topics", "create", "t", "--schema", "s string").exit_code == 0
    assert_refused(cli("topics", "delete", "t"), "needs confirmation", "--yes")
    assert cli("topics", "delete", "t", "--yes").exit_code == 0
    assert_refused(cli("topics", "describe", "t"), "no topic 't'")


def test_topics_that_cannot_be_described_are_listed_with_their_problem(cli):
    assert cli("topics", "create", "good", "--schema", "s string").exit_code == 0
    store = cli.store
    half = {"schema_string": Schema.parse("s string").to_delta(), "configuration": {PARTITIONS_KEY: "2"}}
    DeltaLog(store, "half.1").create(**half)
    store.put("damaged/_delta_log/00000000000000000000.json", b"")
    result = cli("topics", "list")
    assert result.exit_code == 0
    assert "good" in result.stdout
    assert "half: Topic 'half' is half created" in result.stderr
    listed = {topic["topic"]: topic for topic in cli.json("topics", "list")}
    assert {name: bool(topic["problem"]) for name, topic in listed.items()} == {
        "good": False,
        "half": True,
        "damaged": True,
    }
    assert listed["half"].keys() == listed["good"].keys()
    about = cli.json("topics", "describe", "half")
    assert (about["schema"], about["partitions"], len(about["tables"])) == ("s string", 2, 1)
    assert "half created" in cli("topics", "describe", "half").stderr
    assert cli("topics", "delete", "half", "--yes").exit_code == 0
    assert_refused(cli("topics", "describe", "half"), "no topic 'half'")


def test_up_refuses_the_cloud(cli):
    assert_refused(cli("up", "--profile", "aws"), "aws")


@pytest.mark.parametrize(
    ("environ", "args", "kind"),
    [
        ({}, [], "embedded"),
        ({"BROKERLESS_PROFILE": "minio"}, [], "minio"),
        ({"BROKERLESS_PROFILE": "minio"}, ["--profile", "embedded"], "embedded"),
        ({"BROKERLESS_PROFILE": "aws"}, ["--minio"], "minio"),
        ({}, ["--profile", "minio"], "minio"),
    ],
)
def test_up_starts_the_server_of_the_profile(cli, monkeypatch, environ, args, kind):
    def start(state_dir, *, kind, port, environ):
        raise ConfigError(f"{kind} would be started")

    monkeypatch.setattr("brokerless.local.background.up", start)
    assert_refused(cli("up", *args, **{"BROKERLESS_PROFILE": None, **environ}, stdin=""), f"{kind} would be started")


def test_up_refuses_the_cloud_of_the_environment(cli):
    assert_refused(cli("up", BROKERLESS_PROFILE="aws"), "aws")


def test_the_demo_refuses_what_it_does_not_bring(cli):
    assert_refused(cli("demo", "--profile", "aws"), "'aws'", "embedded or minio")
    assert_refused(cli("demo", "--root", "file:///tmp/x"), "file:///tmp/x", "s3://")


def test_status_without_a_server(cli):
    result = cli("status")
    assert (result.exit_code, result.stdout) == (1, "")
    assert json.loads(cli("status", "--json").stdout) == {"running": False}
    assert cli("down").exit_code == 0


def test_a_signal_stops_a_bounded_read():
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)
    assert signal.getsignal(signal.SIGTERM) is before


# What is shown


def test_control_characters_do_not_reach_the_terminal():
    assert printable("a\x1b[2Jb\r\u202ec\n") == "a\\x1b[2Jb\\r\\u202ec\\n"
    assert printable("é 日本") == "é 日本"


def test_columns_grow_with_their_messages(capsys):
    schema = Schema.parse("n long, s string")
    show = _printer("table", offsets=False)
    for row in ({"n": 1, "s": "a"}, {"n": 22, "s": "a longer text"}, {"n": 333, "s": "b" * 50}, {"n": 4, "s": "c"}):
        data = to_table([row], schema, topic="t", produced_at_us=0).select(["n", "s"])
        show(Batch("t", 0, 1, 0, data), data)
    assert capsys.readouterr().out.splitlines() == [
        "n  s",
        "1  a",
        "n         s",
        "22        a longer text",
        "n         s",
        "333       " + "b" * 39 + "…",
        "4         c",
    ]


def test_progress_is_sparse_where_nobody_watches(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress("Sending", total=10) as progress:
        progress.update(1)
        now[0] = 6.0
        progress.update(5)
        progress.update(6)
    assert capsys.readouterr().err == "Sending: 5 of 10 messages\n"


# Input lines

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


# Doctor


def doctor(cli, name):
    return next(check for check in json.loads(cli("doctor", "--json").stdout) if check["name"] == name)


def test_doctor_says_what_it_found(cli):
    result = cli("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(result.stdout)}
    assert checks["python"]["verdict"] == "ok"
    assert checks["bucket"]["verdict"] == "ok"
    assert checks["conditional PUT"]["verdict"] == "ok"
    assert {check["verdict"] for check in checks.values()} <= {"ok", "warn", "skip"}


def test_doctor_fails_with_a_fix(cli):
    result = cli("doctor", "--root", "nonsense", "--json")
    checks = {check["name"]: check for check in json.loads(result.stdout)}
    assert result.exit_code == 1
    assert checks["settings"]["verdict"] == "fail"
    assert "s3://bucket" in checks["settings"]["detail"]
    assert checks["bucket"]["verdict"] == "skip"


def test_doctor_finds_a_hole_in_a_log(cli):
    store = cli.store
    create_topic(store, "good", Schema.parse("s string"))
    create_topic(store, "t", Schema.parse("s string"), partitions=2)
    log = DeltaLog(store, "t.1")
    log.append([], {"a": 0})
    checkpoint = write_checkpoint(log)
    for n in range(1, 4):
        log.append([], {"a": n})
    clean_up(log, checkpoint)
    assert doctor(cli, "logs")["verdict"] == "ok"
    hole = store.get(log.entry_path(3))
    store.delete([log.entry_path(3)])
    logs = doctor(cli, "logs")
    assert (logs["verdict"], logs["detail"]) == ("fail", "the log of t.1 lacks entry 3, although entry 4 exists")
    assert "brokerless verify t'" in logs["fix"]
    store.put(log.entry_path(3), hole)
    store.delete([f"t.1/_delta_log/{checkpoint:020d}.checkpoint.parquet"])
    assert "names checkpoint 1, which does not exist" in doctor(cli, "logs")["detail"]


def test_a_log_is_looked_at_for_holes_with_one_list():
    store = FakeStore(FakeClock())
    assert find_hole(store, "t") is None
    for version in range(1, 6):
        store.put(f"t/_delta_log/{version:020d}.json", b"{}")
    assert find_hole(store, "t") == "the log of t lacks entry 0, although entry 1 exists"
    store.put("t/_delta_log/00000000000000000002.checkpoint.parquet", b"")  # its hint was lost
    store.requests.clear()
    assert find_hole(store, "t") is None
    assert store.requests == {"GET": 1, "LIST": 1}


@pytest.mark.parametrize(
    ("mode", "line", "verdict"),
    [
        (0o644, "AWS_SECRET_ACCESS_KEY=hidden", "warn"),
        (0o600, "AWS_SECRET_ACCESS_KEY=hidden", "ok"),
        (0o644, "AWS_REGION=eu-west-1", "ok"),
    ],
)
def test_doctor_warns_of_secrets_that_others_can_read(cli, tmp_path, mode, line, verdict):
    (tmp_path / ".env").write_text(f"{line}\n")
    (tmp_path / ".env").chmod(mode)
    result = cli("doctor", "--json")
    settings = next(check for check in json.loads(result.stdout) if check["name"] == "settings")
    assert settings["verdict"] == verdict
    assert (settings["fix"] == "chmod 600 .env") == (verdict == "warn")
    assert "hidden" not in result.output


@pytest.mark.parametrize("offset_s", [0.0, 30.0, -30.0])
def test_clock_skew_is_measured_against_the_servers_date(offset_s):
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(403)  # as S3 answers who is not signed in
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        skew, error_s = clock_skew(f"http://127.0.0.1:{server.server_port}", now=lambda: time.time() - offset_s)
    finally:
        server.shutdown()
        server.server_close()
    assert abs(skew - offset_s) <= error_s + 0.05


def test_the_runner_is_the_real_application():
    """CliRunner and the script go through the same main, or these tests would show nothing."""
    assert CliRunner().invoke(application(), ["--version"]).exit_code == 0


def verbs() -> typer.Typer:
    app = typer.Typer(cls=_Root)

    @app.command()
    def fill() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/x.csv")

    @app.command()
    def show() -> None:
        print("20 €")

    return app


def test_an_error_of_the_machine_is_a_line_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        verbs()(["fill"])
    assert caught.value.code == 1
    assert capsys.readouterr().err == "error: No space left on device: /x.csv\n"


def test_output_is_shown_on_terminals_of_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, encoding="ascii"))
    with pytest.raises(SystemExit) as caught:
        verbs()(["show"])
    assert (caught.value.code, data.getvalue()) == (0, b"20 \\u20ac\n")
