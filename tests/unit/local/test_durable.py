"""How the embedded server stores an object: what is synced before it is acknowledged, and what a failure leaves."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from brokerless.local import durable

FULL = OSError(errno.ENOSPC, "No space left on device")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to files and folders, in order."""
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        done.append(f"sync {Path(f'/proc/self/fd/{handle}').readlink().relative_to(tmp_path)}")
        sync(handle)

    def replaced(self: Path, target: Path) -> Path:
        done.append(f"name {Path(target).relative_to(tmp_path)}")
        return replace(self, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("names of open files are read from /proc")
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    return done


def test_content_is_synced_before_its_name_and_the_names_before_the_answer(tmp_path: Path, steps: list[str]) -> None:
    durable.store(tmp_path / "t" / "a", b"content", b"{}")
    assert steps == ["sync .", "sync t/a.tmp", "name t/a", "name t/a.meta.json", "sync t"]
    assert files(tmp_path) == {"t/a": b"content", "t/a.meta.json": b"{}"}


def test_a_power_cut_between_the_names_leaves_no_old_properties_with_new_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable.store(tmp_path / "a", b"old", b'{"size": 3}')
    replace = Path.replace

    def cut(self: Path, target: Path) -> Path:
        if target.name.endswith(".json"):
            assert files(tmp_path).keys() == {"a", "a.meta.json.tmp"}  # this is what the restart finds
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", cut)
    durable.store(tmp_path / "a", b"newer", b'{"size": 5}')
    assert files(tmp_path) == {"a": b"newer", "a.meta.json": b'{"size": 5}'}


@pytest.mark.parametrize("call", range(1, 4))
def test_a_refused_object_leaves_nothing_that_a_restart_would_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    durable.store(tmp_path / "other", b"content", b"{}")
    before = files(tmp_path)
    calls = 0

    def failing(real: object) -> object:
        def function(*args: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == call:
                raise FULL
            return real(*args, **options)  # type: ignore[operator]

        return function

    monkeypatch.setattr(durable, "_write", failing(durable._write))
    monkeypatch.setattr(durable, "sync_folder", failing(durable.sync_folder))
    with pytest.raises(OSError, match="No space left"):
        durable.store(tmp_path / "a", b"content", b"{}")
    assert files(tmp_path) == before


def test_a_refused_replacement_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durable.store(tmp_path / "a", b"old", b"{}")

    def full(handle: int) -> None:
        raise FULL

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        durable.store(tmp_path / "a", b"new", b"{}")
    assert files(tmp_path) == {"a": b"old", "a.meta.json": b"{}"}


def test_the_replaced_functions_are_those_of_the_version_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert re.search(r'"ministack==([\d.]+)"', project)[1] == durable.MINISTACK  # type: ignore[index]
    durable.check_version()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9.9")
    with pytest.raises(RuntimeError, match=r"ministack 9\.9\.9 is installed.*pip install"):
        durable.check_version()
