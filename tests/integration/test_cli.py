"""The command against the embedded S3 server: what a first hour with it looks like."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from arro3.io import read_parquet

from brokerless.consumer import Consumer
from brokerless.examples.timezone.messages import zone_messages
from brokerless.local.minio import find_minio
from brokerless.log.log import DeltaLog
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.settings import Settings
from brokerless.topics import create_dead_letters
from tests.support.cli import Cli, assert_refused

REPO = Path(__file__).parents[2]
SCHEMA = "date string, message string"


def json_lines(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


ROWS = [m.row() for m in zone_messages(10)]


def test_round_trip(cli, tmp_path):
    assert cli("topics", "create", "timezone1", "--schema", SCHEMA).exit_code == 0
    summary = cli.json("produce", "timezone1", stdin=json_lines(ROWS))
    assert summary == {
        "topic": "timezone1",
        "messages": 10,
        "partitions": [{"partition": 0, "messages": 10, "first": "1:0", "last": "1:9", "commits": 1}],
    }

    shown = [json.loads(line) for line in cli("tail", "timezone1", "--once").stdout.splitlines()]
    assert [{"date": r["date"], "message": r["message"]} for r in shown] == ROWS

    done = cli.json("export", "timezone1", "out.csv", "--once")
    Path("position.json").write_text(json.dumps(done))
    assert cli.json("export", "timezone1", "more.csv", "--once", "--from", "@position.json")["messages"] == 0
    assert list(done.pop("table_ids")) == ["0"]
    assert done == {"topic": "timezone1", "file": "out.csv", "messages": 10, "next": {"0": "2:0"}}
    with Path("out.csv").open(newline="") as file:
        assert [row["message"] for row in csv.DictReader(file)] == [row["message"] for row in ROWS]
    cli.json("export", "timezone1", "out.parquet", "--expect", "10", "--timeout", "20")
    assert read_parquet("out.parquet").read_all().num_rows == 10

    (listed,) = cli.json("topics", "list")
    assert (listed["topic"], listed["partitions"], listed["schema"]) == ("timezone1", 1, SCHEMA)
    about = cli.json("topics", "describe", "timezone1")
    assert about["tables"] == [{"partition": 0, "table": about["uri"], "earliest": "1:0", "next": "2:0", "commits": 1}]

    assert cli.json("topics", "delete", "timezone1", "--yes")["deleted"] == "timezone1"
    assert cli.json("topics", "list") == []


def test_create_is_repeatable_when_asked_to(cli):
    assert cli("topics", "create", "t", "--schema", SCHEMA).exit_code == 0
    assert_refused(cli("topics", "create", "t", "--schema", SCHEMA), "'t' exists")
    assert cli("topics", "create", "t", "--schema", SCHEMA, "--if-not-exists").exit_code == 0


def test_a_deleted_topic_begins_anew(cli):
    for text in ("first", "second"):
        cli.json("topics", "create", "t", "--schema", "s string")
        cli.json("produce", "t", stdin=json_lines([{"s": text}]))
        assert json.loads(cli("tail", "t", "--once").stdout)["s"] == text
        cli.json("topics", "delete", "t", "--yes")


def test_an_interrupted_deletion_is_finished_by_the_same_command(cli):
    cli.json("topics", "create", "t", "--schema", SCHEMA, "--partitions", "2")
    DeltaLog(cli.store, "t.1").delete()  # as far as it got
    assert_refused(cli("topics", "describe", "t"), "half deleted", "Finish it: brokerless topics delete t")
    assert_refused(cli("topics", "delete", "t"), "--yes")
    assert cli.json("topics", "delete", "t", "--yes")["uri"].endswith("/t")
    assert cli.json("topics", "create", "t", "--schema", SCHEMA)["partitions"] == 1
    assert_refused(cli("topics", "delete", "nix", "--yes"), "no topic 'nix'")


def test_a_key_keeps_its_order_in_one_partition(cli):
    cli.json("topics", "create", "t", "--schema", "k string, n long", "--partitions", "3")
    rows = [{"k": f"key {i % 5}", "n": i} for i in range(100)]
    summary = cli.json("produce", "t", "--key", "k", stdin=json_lines(rows))
    assert sum(part["messages"] for part in summary["partitions"]) == 100
    found = [json.loads(line) for line in cli("tail", "t", "--once", "--offsets").stdout.splitlines()]
    partitions: dict[str, set[int]] = {}
    for row in found:
        partitions.setdefault(row["k"], set()).add(row["_partition"])
    assert all(len(numbers) == 1 for numbers in partitions.values())
    for key in partitions:
        numbers = [row["n"] for row in found if row["k"] == key]
        assert numbers == sorted(numbers)
    only = cli("tail", "t", "--once", "--offsets", "--partition", "1").stdout.splitlines()
    assert {json.loads(line)["_partition"] for line in only} == {1}


def test_produce_reads_a_file(cli):
    cli.json("topics", "create", "t", "--schema", SCHEMA)
    Path("rows.jsonl").write_text(json_lines(ROWS))
    assert cli.json("produce", "t", "--file", "rows.jsonl")["messages"] == 10
    assert cli.json("produce", "t", "--file", "-", stdin=json_lines(ROWS[:1]))["messages"] == 1


def test_produce_shows_what_was_acknowledged(cli):
    cli.json("topics", "create", "t", "--schema", SCHEMA)
    result = cli("produce", "t", stdin=json_lines(ROWS))
    assert "10 messages acknowledged" in result.stderr
    assert "1:9" in result.stdout


def test_a_large_input_is_one_message_each(cli):
    """Over chunk limits: nothing lost, doubled or out of order."""
    cli.json("topics", "create", "t", "--schema", "n long")
    assert cli.json("produce", "t", stdin=json_lines({"n": i} for i in range(25_000)))["messages"] == 25_000
    with Consumer("t", start="beginning", store=cli.store) as consumer:
        numbers = []
        while len(numbers) < 25_000:
            for batch in consumer.poll(5):
                numbers += batch.data.column("n").to_pylist()
    assert numbers == list(range(25_000))


def test_an_older_producer_with_the_id_is_stopped(cli):
    cli.json("topics", "create", "t", "--schema", "s string")
    with Producer("t", store=cli.store, producer_id="sensor") as older:
        older.send([{"s": "older"}])
        cli.json("produce", "t", "--producer-id", "sensor", stdin=json_lines([{"s": "newer"}]))
        with pytest.raises(Exception, match="took over"):
            older.send([{"s": "zombie"}])


def test_tail_begins_where_it_is_told_to(cli):
    cli.json("topics", "create", "t", "--schema", "s string")
    for text in "abc":
        cli.json("produce", "t", stdin=json_lines([{"s": text}, {"s": text.upper()}]))

    def tail(*args: str) -> str:
        result = cli("tail", "t", "--once", *args)
        assert result.exit_code == 0, result.output
        return "".join(json.loads(line)["s"] for line in result.stdout.splitlines())

    assert tail() == tail("--from", "beginning") == "aAbBcC"
    assert tail("--from", "latest") == ""
    assert tail("--from", "2:1") == "BcC"
    assert tail("--from", "2026-01-01T00:00:00+00:00") == "aAbBcC"
    assert tail("--from", "9999-01-01T00:00:00+00:00") == ""
    assert tail("--max", "3") == "aAb"
    assert tail("--max", "0") == ""
    assert_refused(cli("tail", "t", "--from", "soon"), "'soon'")
    assert_refused(cli("tail", "t", "--from", "2026-01-01T00:00:00"), "no UTC offset")


def test_tail_formats(cli):
    cli.json("topics", "create", "t", "--schema", "s string, d double")
    cli.json("produce", "t", stdin=json_lines([{"s": "=1\x1b[2J", "d": 1.7e12}, {"s": None, "d": None}]))
    lines = cli("tail", "t", "--once", "--format", "csv", "--offsets").stdout.splitlines()
    assert lines[0] == '"s","d","_produced_at","_partition","_offset"'
    assert lines[1].startswith('"\'=1\x1b[2J","1700000000000.0","20')
    assert lines[1].endswith('"0","1:0"')
    assert lines[2].startswith(",,")
    table = cli("tail", "t", "--once", "--format", "table").stdout
    assert "\x1b" not in table
    assert "1700000000000.0" in table


def test_maintain(cli):
    cli.json("topics", "create", "t", "--schema", "s string")
    (report,) = cli.json("maintain", "t")
    assert report["table"] == "t"
    assert report["skipped"] == []
    assert_refused(cli("maintain", "nix"), "'nix'")


def start(cli: Cli, *args: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, **cli.settings.to_environ(), "PYTHONPATH": str(REPO), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-P", "-m", "brokerless.cli", *args]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["live.csv", "live.parquet"])
def test_a_stopped_export_leaves_a_complete_file(cli, tmp_path, number, name):
    cli.json("topics", "create", "t", "--schema", "s string")
    cli.json("produce", "t", stdin=json_lines([{"s": "a"}]))
    with start(cli, "export", "t", name) as export:
        partial = tmp_path / (name if name.endswith("csv") else f".{name}.partial")
        deadline = time.monotonic() + 20
        while not partial.exists() or (name.endswith("csv") and b'"a"' not in partial.read_bytes()):
            assert time.monotonic() < deadline, export.poll()
            time.sleep(0.05)
        cli.json("produce", "t", stdin=json_lines([{"s": "b"}]))
        time.sleep(1.0)
        export.send_signal(number)
        _, err = export.communicate(timeout=20)
    assert export.returncode == 0, err
    assert b"2 messages" in err
    if name.endswith("parquet"):
        assert read_parquet(name).read_all().column("s").to_pylist() == ["a", "b"]
    else:
        assert [row["s"] for row in csv.DictReader(io.StringIO(Path(name).read_text()))] == ["a", "b"]


def test_tail_follows_until_ctrl_c(cli):
    cli.json("topics", "create", "t", "--schema", "s string")
    with start(cli, "tail", "t", "--from", "beginning") as tail:
        cli.json("produce", "t", stdin=json_lines([{"s": "live"}]))
        assert json.loads(tail.stdout.readline())["s"] == "live"
        tail.send_signal(signal.SIGINT)
        _, err = tail.communicate(timeout=20)
    assert tail.returncode == 130
    assert b"Traceback" not in err


def test_export_insists_on_what_was_expected(cli):
    cli.json("topics", "create", "t", "--schema", "s string")
    cli.json("produce", "t", stdin=json_lines([{"s": "a"}]))
    assert_refused(cli("export", "t", "o.csv", "--expect", "2", "--timeout", "0.5"), "2 messages", "1 came", code=1)


def test_up_status_down(tmp_path, monkeypatch):
    """A server in the background, found by the commands that follow."""
    monkeypatch.chdir(tmp_path)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "BROKERLESS_", "MINIO_"))}
    environ["PYTHONPATH"] = str(REPO)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "brokerless.cli", *args, "--json"]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)

    try:
        up = json.loads(run("up").stdout)
        assert up["endpoint"].startswith("http://127.0.0.1:")
        assert json.loads(run("up").stdout)["pid"] == up["pid"]
        assert json.loads(run("status").stdout)["endpoint"] == up["endpoint"]
        assert run("topics", "create", "t", "--schema", "s string").returncode == 0
        assert [t["topic"] for t in json.loads(run("topics", "list").stdout)] == ["t"]
        doctor = {check["name"]: check["verdict"] for check in json.loads(run("doctor").stdout)}
        assert doctor["endpoint"] == doctor["clock"] == doctor["bucket"] == doctor["conditional PUT"] == "ok"
    finally:
        down = json.loads(run("down").stdout)
    assert down["stopped"]["pid"] == up["pid"]
    assert run("status").returncode == 1
    gone = run("topics", "list")
    assert gone.returncode == 2
    assert "brokerless up" in json.loads(gone.stderr)["error"]["message"]


@pytest.mark.minio
@pytest.mark.skipif(find_minio() is None, reason="no MinIO: put 'minio' on PATH or set BROKERLESS_MINIO_BINARY")
def test_commands_find_the_minio_that_is_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = {"MINIO_S3_ACCESS_KEY": "tests", "MINIO_S3_SECRET_ACCESS_KEY": "tests-secret"}
    unset = dict.fromkeys(("BROKERLESS_PROFILE", "BROKERLESS_ROOT"))
    binary = {"BROKERLESS_MINIO_BINARY": str(find_minio())}
    command = Cli(Settings("minio", "s3://unused", state_dir=tmp_path / "state"), {**unset, **keys, **binary})
    try:
        assert json.loads(command("up", "--json", BROKERLESS_PROFILE="minio").stdout)["kind"] == "minio"
        assert command("topics", "create", "t", "--schema", "s string").exit_code == 0
        assert_refused(command("topics", "list", MINIO_S3_ACCESS_KEY=None), "MINIO_S3_ACCESS_KEY")
    finally:
        assert command("down").exit_code == 0


@pytest.mark.spark
@pytest.mark.timeout(320)
def test_demo_shows_its_own_ten_messages_and_leaves_nothing_running(tmp_path):
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "BROKERLESS_", "MINIO_"))}
    environ["PYTHONPATH"] = str(REPO)
    command = [sys.executable, "-P", "-m", "brokerless.cli"]
    done = subprocess.run(
        [*command, "demo", "--json", "--interval", "0.1"],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,  # the first on a machine makes the archive of Spark's classes
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert sorted(row["message"] for row in shown["rows"]) == [str(i) for i in range(10)]
    assert sorted(row["message"] for row in shown["rows"] if row["topic"] == "timezone1") == ["2", "9"]
    with (tmp_path / "results.csv").open(newline="") as file:
        assert [row["message"] for row in csv.DictReader(file)] == [row["message"] for row in shown["rows"]]
    status = subprocess.run(
        [*command, "status"], env=environ, cwd=tmp_path, capture_output=True, timeout=30, check=False
    )
    assert status.returncode == 1


def test_dead_letters_are_shown_edited_sent_again_and_removed(cli: Cli) -> None:
    columns = "user string, n long"
    cli("topics", "create", "clicks", "--schema", columns, "--partitions", "2")
    create_dead_letters(cli.store, "clean", [Schema.parse(columns)])
    dead = {"n": 1, "_reason": "no zone", "_topic": "clicks", "_partition": 1, "_offset": "3:0"}
    with Producer("clean.dead_letters", store=cli.store) as producer:
        producer.send([{"user": "ada", **dead}, {"user": "bo", **dead}, {"user": "cy", **dead, "_reason": "too old"}])

    assert cli.json("dlq", "list", "clean") == [
        {"reason": "no zone", "messages": 2},
        {"reason": "too old", "messages": 1},
    ]
    shown = cli("dlq", "show", "clean", "--reason", "zone", "--json").stdout
    assert [json.loads(line)["_position"] for line in shown.splitlines()] == ["1:0", "1:1"]
    assert "1:2  clicks/1 3:0  too old" in cli("dlq", "show", "clean").stdout

    Path("dead.jsonl").write_text(shown.replace('"n": 1', '"n": "x"', 1))
    assert_refused(cli("dlq", "redrive", "clean", "--file", "dead.jsonl"), "dead.jsonl, line 1")
    Path("dead.jsonl").write_text(shown.replace('"n": 1', '"n": 2', 1))
    assert cli.json("dlq", "redrive", "clean", "--file", "dead.jsonl")["messages"] == 2
    assert cli.json("dlq", "redrive", "clean", "--file", "dead.jsonl")["already"] == 2
    assert cli.json("dlq", "redrive", "clean", "--dry-run")["topics"] == {"clicks": 1}
    assert cli.json("dlq", "redrive", "clean")["messages"] == 1
    sent = [json.loads(line) for line in cli("tail", "clicks", "--once", "--partition", "1").stdout.splitlines()]
    assert [(row["user"], row["n"]) for row in sent] == [("ada", 2), ("bo", 1), ("cy", 1)]
    assert cli.json("dlq", "list", "clean") == []

    assert_refused(cli("dlq", "purge", "clean"), "--yes")
    assert cli.json("dlq", "purge", "clean", "--yes") == {
        "output": "clean",
        "dry_run": False,
        "messages": 3,
        "not_redriven": 0,
        "until": "2:0",
    }
    assert cli("tail", "clean.dead_letters", "--from", "beginning", "--once").stdout == ""
