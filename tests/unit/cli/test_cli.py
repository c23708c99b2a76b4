"""The command's surface: help, options before and after the verb, errors and exit codes, the documentation."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from brokerless import errors
from brokerless.cli import application
from brokerless.cli import main as cli_main
from brokerless.cli.app import _Root, exit_code
from brokerless.cli.output import Progress, printable
from brokerless.cli.signals import stop_on_signals
from brokerless.cli.tail import printer
from brokerless.columns.records import to_table
from brokerless.consumer import Batch
from brokerless.errors import ConfigError
from brokerless.log.entries import PARTITIONS_KEY
from brokerless.log.log import DeltaLog
from brokerless.schema import Schema
from brokerless.version import VERSION
from tests.support.cli import assert_refused

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


@pytest.mark.parametrize(("args", "environ"), [(["--profile", "aws"], {}), ([], {"BROKERLESS_PROFILE": "aws"})])
def test_up_refuses_the_cloud(cli, args, environ):
    assert_refused(cli("up", *args, **environ), "aws")


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
    show = printer("table", offsets=False)
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
