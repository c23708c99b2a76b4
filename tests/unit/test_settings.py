"""Settings: where each value comes from, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brokerless.errors import ConfigError
from brokerless.settings import Settings, check_root

MINIO = {
    "BROKERLESS_PROFILE": "minio",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
    "MINIO_S3_ACCESS_KEY": "user",
    "MINIO_S3_SECRET_ACCESS_KEY": "hunter2-secret",
}


def load(environ: dict[str, str], **arguments: object) -> Settings:
    return Settings.load(environ=environ, **{"dotenv": None, **arguments})  # type: ignore[arg-type]


def test_argument_beats_environment_beats_dotenv_beats_default(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("BROKERLESS_ROOT=s3://from-dotenv\nAWS_REGION=eu-dotenv-1\n")
    environ = {"BROKERLESS_PROFILE": "aws", "BROKERLESS_ROOT": "s3://from-environ"}
    assert load(environ, dotenv=dotenv, root="s3://from-argument").root == "s3://from-argument"
    assert load(environ, dotenv=dotenv).root == "s3://from-environ"
    assert load({"BROKERLESS_PROFILE": "aws"}, dotenv=dotenv).root == "s3://from-dotenv"
    assert load(environ, dotenv=dotenv).region == "eu-dotenv-1"
    assert load(environ).region == "us-east-1"
    assert load({**environ, "AWS_DEFAULT_REGION": "eu-1"}).region == "eu-1"
    assert load({**environ, "AWS_DEFAULT_REGION": "eu-1", "AWS_REGION": "eu-2"}).region == "eu-2"
    assert load({**MINIO, "AWS_ENDPOINT_URL_S3": "http://s3:1"}).endpoint == "http://s3:1"


def test_dotenv_allows_comments_export_and_quotes(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("# a comment\n\nexport BROKERLESS_PROFILE='aws'\nBROKERLESS_ROOT=\"s3://bucket/a=b\"\n")
    assert load({}, dotenv=dotenv).root == "s3://bucket/a=b"


def test_dotenv_with_a_line_that_is_none_names_it(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("A=1\nwhat is this\n")
    with pytest.raises(ConfigError, match=r"line 2: expected NAME=value"):
        load({}, dotenv=dotenv)


def test_minio_takes_its_own_names_before_those_of_aws() -> None:
    both = {**MINIO, "AWS_ACCESS_KEY_ID": "aws-user", "AWS_SECRET_ACCESS_KEY": "aws-secret"}
    assert (load(both).access_key, load(both).secret_key) == ("user", "hunter2-secret")
    only_aws = {k: v for k, v in both.items() if not k.startswith("MINIO")}
    assert load(only_aws).access_key == "aws-user"


def test_minio_without_credentials_says_which_to_set() -> None:
    with pytest.raises(ConfigError, match="MINIO_S3_ACCESS_KEY"):
        load({k: v for k, v in MINIO.items() if not k.startswith("MINIO")})


def test_embedded_finds_the_running_server_and_needs_no_credentials(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text(json.dumps({"endpoint": "http://127.0.0.1:4567"}))
    settings = load({"BROKERLESS_STATE_DIR": str(tmp_path)})
    assert settings.endpoint == "http://127.0.0.1:4567"
    assert settings.access_key
    assert settings.root == "s3://brokerless"


@pytest.fixture
def minio_is_up(tmp_path: Path) -> dict[str, str]:
    """The environment of a directory where 'brokerless up --minio' left a server running."""
    (tmp_path / "server.json").write_text(json.dumps({"endpoint": "http://127.0.0.1:4567", "kind": "minio"}))
    keys = {"MINIO_S3_ACCESS_KEY": "user", "MINIO_S3_SECRET_ACCESS_KEY": "hunter2-secret"}
    return {"BROKERLESS_STATE_DIR": str(tmp_path), **keys}


def test_the_profile_is_that_of_the_running_server(minio_is_up: dict[str, str]) -> None:
    settings = load(minio_is_up)
    assert (settings.profile, settings.endpoint, settings.access_key) == ("minio", "http://127.0.0.1:4567", "user")
    assert load(minio_is_up, root="file:///data").profile == "embedded"
    assert load({**minio_is_up, "AWS_ENDPOINT_URL": "http://another:1"}).profile == "embedded"


def test_the_running_servers_credentials_are_asked_for_by_name(minio_is_up: dict[str, str]) -> None:
    del minio_is_up["MINIO_S3_ACCESS_KEY"]
    with pytest.raises(
        ConfigError, match=r"'brokerless up' started \(http://127.0.0.1:4567\); set MINIO_S3_ACCESS_KEY"
    ):
        load(minio_is_up)


@pytest.mark.parametrize("profile", ["embedded", "minio"])
def test_a_profile_that_is_not_the_running_servers_is_refused(minio_is_up: dict[str, str], profile: str) -> None:
    kind = "embedded" if profile == "minio" else "minio"
    state = Path(minio_is_up["BROKERLESS_STATE_DIR"], "server.json")
    state.write_text(json.dumps({"endpoint": "http://127.0.0.1:4567", "kind": kind}))
    for wanted in ({"profile": profile}, {}):
        with pytest.raises(ConfigError, match=f"The profile is {profile}, .* kind {kind} .*brokerless down"):
            load({**minio_is_up, "BROKERLESS_PROFILE": profile}, **wanted)


@pytest.mark.parametrize("content", [None, "", "{}", "[1", "[]", "5", "[" * 100_000])
def test_embedded_without_a_server_says_how_to_start_one(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "server.json").write_text(content)
    with pytest.raises(ConfigError, match="brokerless up"):
        load({"BROKERLESS_STATE_DIR": str(tmp_path)})


def test_a_local_folder_needs_no_server() -> None:
    settings = load({"BROKERLESS_ROOT": "file:///data/topics/", "AWS_ENDPOINT_URL": "http://ignored:1"})
    assert (settings.root, settings.endpoint, settings.bucket) == ("file:///data/topics", None, "")


def test_aws_needs_a_root_and_nothing_else() -> None:
    with pytest.raises(ConfigError, match="BROKERLESS_ROOT"):
        load({}, profile="aws")
    settings = load({}, profile="aws", root="s3a://bucket/prefix/")
    assert (settings.root, settings.bucket, settings.endpoint) == ("s3://bucket/prefix", "bucket", None)
    assert settings.access_key is None


def test_unknown_profile_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="'kafka'; use one of embedded, minio, aws"):
        load({}, profile="kafka")


@pytest.mark.parametrize(
    "root",
    ["", "bucket", "/path", "ftp://host/x", "s3://", "s3:///x", "http://host", "s3://b/../c", "s3://b/./c",
     "s3://b?x=1", "s3://b#x", "s3://key:secret@b", "s3://[::1"],
)  # fmt: skip
def test_bad_roots_are_refused(root: str) -> None:
    with pytest.raises(ConfigError):
        check_root(root)


@pytest.mark.parametrize(
    "root", ["s3://b", "gs://b/x", "az://c/x", "abfss://c@account.dfs.core.windows.net/x", "memory:///x"]
)
def test_good_roots_are_kept(root: str) -> None:
    assert check_root(root) == root


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:9000", "ftp://h", "http://", "http://h:port", "http://h:99999", "http://[x"]
)
def test_bad_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="not a URL"):
        Settings(profile="minio", root="s3://b", endpoint=endpoint)


def test_secrets_are_not_shown() -> None:
    settings = load({**MINIO, "AWS_SESSION_TOKEN": "token-secret"})
    assert settings.session_token == "token-secret"
    for text in (repr(settings), str(settings)):
        assert "secret" not in text.replace("secret_key", "")
        assert "user" not in text


@pytest.mark.parametrize(
    "environ", [MINIO, {"BROKERLESS_PROFILE": "aws", "BROKERLESS_ROOT": "s3://b/p", "AWS_ACCESS_KEY_ID": "a",
                        "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"}],
)  # fmt: skip
def test_a_child_process_gets_the_same_settings(environ: dict[str, str]) -> None:
    settings = load(environ)
    assert load(settings.to_environ()) == settings


@pytest.mark.parametrize("content", [b"\xff\xfe", b"A=\xff", "A=x".encode("utf-16")])
def test_a_dotenv_that_is_no_text_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".env").write_bytes(content)
    with pytest.raises(ConfigError, match=r"\.env cannot be read"):
        Settings.load(environ={}, dotenv=tmp_path / ".env")


@pytest.mark.parametrize("root", ["s3://[::1", "http://\u2100:9", "S3://[x"])
def test_a_root_that_is_no_url_is_refused_in_every_profile(root: str) -> None:
    with pytest.raises(ConfigError, match="not a URL of an object store"):
        load({"BROKERLESS_PROFILE": "aws", "BROKERLESS_ROOT": root})


def test_a_dotenv_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"\xef\xbb\xbfBROKERLESS_ROOT=memory://x")
    assert Settings.load(environ={}, dotenv=tmp_path / ".env").root == "memory://x"
