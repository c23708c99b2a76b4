"""Jars by Ivy from a repository in a folder: pinned, fetched once, never a wrong one."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from benchmarks.peers import jars, load
from benchmarks.peers.jars import BROKER_JARS, IVY_SETTINGS, SPARK_JARS, Jar, fetch, fetch_delta

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POM = """<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId><artifactId>thing</artifactId>
<version>1.0</version></project>"""


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Publishes a jar in a repository that Ivy is told of."""
    home = tmp_path / "central"
    folder = home / "org" / "example" / "thing" / "1.0"
    folder.mkdir(parents=True)
    (folder / "thing-1.0.pom").write_text(POM)
    settings = tmp_path / "settings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="here"/><resolvers>'
        f'<ibiblio name="here" m2compatible="true" root="{home.as_uri()}/"/></resolvers></ivysettings>'
    )
    monkeypatch.setenv(IVY_SETTINGS, str(settings))

    def write(content: bytes) -> None:
        (folder / "thing-1.0.jar").write_bytes(content)

    return write


def _jar(content: bytes) -> Jar:
    return Jar("org.example", "thing", "1.0", hashlib.sha256(content).hexdigest())


def test_jars_are_fetched_once_and_again_if_damaged(
    publish: Callable[[bytes], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(b"good")
    (path,) = fetch([_jar(b"good")], tmp_path / "jars")
    assert path.read_bytes() == b"good"
    with monkeypatch.context() as patch:
        patch.setattr(jars, "_resolve", lambda *_: pytest.fail("fetched twice"))
        assert fetch([_jar(b"good")], tmp_path / "jars") == [path]
    path.write_bytes(b"goo")
    fetch([_jar(b"good")], tmp_path / "jars")
    assert path.read_bytes() == b"good"


def test_a_jar_with_another_checksum_is_refused_and_not_kept(
    publish: Callable[[bytes], None], tmp_path: Path
) -> None:  # fmt: skip
    publish(b"evil")
    with pytest.raises(ValueError, match="SHA-256"):
        fetch([_jar(b"good")], tmp_path / "jars")
    assert list((tmp_path / "jars").iterdir()) == []


@pytest.mark.usefixtures("publish")
def test_a_failed_download_is_a_reason_and_no_error(tmp_path: Path) -> None:
    reason = load("kafka").prepare(tmp_path / "cache")
    assert reason is not None
    assert "kafka_2.13" in reason


def test_delta_s_jars_are_fetched_once_and_a_failure_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    calls: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(jars, "_run", calls.append)
        assert fetch_delta(tmp_path) is None
        assert fetch_delta(tmp_path) is None
    assert len(calls) == 1
    monkeypatch.setattr(jars, "_FETCH_DELTA", "raise SystemExit('no network')")
    assert "no network" in (fetch_delta(tmp_path / "other") or "")


def test_the_pins_are_complete() -> None:
    for pinned in (BROKER_JARS, SPARK_JARS):
        assert all(len(bytes.fromhex(jar.sha256)) == 32 and jar.version[0].isdigit() for jar in pinned)
        assert len({jar.artifact for jar in pinned}) == len(pinned)
    assert "kafka_2.13-4.1.2.jar" in {jar.file for jar in BROKER_JARS}
