"""Assets: the right packages, the same bytes each time, and never stale."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from brokerless.errors import BrokerlessError, ConfigError
from infra import assets
from infra.assets import LOCK, PACKAGES, build_assets, find_assets, locked, write_archive
from infra.config import Runtime

TEXT = """\
deprecated==1.3.1 ; python_full_version < '3.12' \\
    --hash=sha256:aa
deprecated==3.0.1 ; python_full_version >= '3.12' \\
    --hash=sha256:bb \\
    --hash=sha256:cc
obstore==0.12.1 \\
    --hash=sha256:dd
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:ee
"""


def test_the_lock_is_read_for_the_python_that_is_built_for() -> None:
    assert locked(["deprecated"], python="3.13", lock=TEXT) == (
        "deprecated==3.0.1 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
    )
    assert locked(["deprecated"], python="3.11", lock=TEXT) == "deprecated==1.3.1 \\\n    --hash=sha256:aa\n"


@pytest.mark.parametrize("package", ["colorama", "pyarrow"])
def test_a_package_that_the_lock_lacks_is_named(package: str) -> None:
    with pytest.raises(ConfigError, match=f"{package} is not in requirements-aws.lock for Python 3.13"):
        locked([package, "obstore"], python="3.13", lock=TEXT)


@pytest.mark.parametrize("kind", PACKAGES)
@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_the_lock_has_every_package_with_its_hashes(kind: str, python: str) -> None:
    found = locked(PACKAGES[kind], python=python, lock=LOCK.read_text())
    names = re.findall(r"^([a-z0-9-]+)==\S+ \\$", found, re.MULTILINE)
    assert names == sorted(set(PACKAGES[kind]))
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=\w)", found))


def test_an_archive_is_the_same_bytes_for_the_same_content(tmp_path: Path) -> None:
    members = [("b.py", b"two"), ("a.py", b"one"), ("c.whl", b"\0" * 999)]
    write_archive(tmp_path / "1.zip", members)
    write_archive(tmp_path / "2.zip", reversed(members))
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "1.zip") as archive:
        assert archive.namelist() == ["a.py", "b.py", "c.whl"]
        assert archive.read("a.py") == b"one"
        # A wheel is compressed already.
        assert archive.getinfo("c.whl").compress_size == 999


@dataclass(frozen=True)
class Checkout:
    """Where it is, and what was downloaded for it: the commands."""

    path: Path
    downloads: list[list[str]]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """A checkout with little in it, whose packages are downloaded by writing a wheel."""
    for top in ("brokerless", "lambdas", "glue_jobs"):
        (tmp_path / top).mkdir()
        (tmp_path / top / "__init__.py").write_text(f"# {top}\n")
        (tmp_path / top / "__pycache__").mkdir()
        (tmp_path / top / "__pycache__" / "x.pyc").write_bytes(b"x")
    (tmp_path / "lock").write_text(LOCK.read_text())
    monkeypatch.setattr(assets, "REPOSITORY", tmp_path)
    monkeypatch.setattr(assets, "BUILD", tmp_path / "build")
    monkeypatch.setattr(assets, "LOCK", tmp_path / "lock")
    downloads: list[list[str]] = []

    def run(command: list[str], what: str, *, environ: object = None) -> None:
        if "hatchling" in command:
            write_archive(Path(command[-1]) / "brokerless-0.1.0-py3-none-any.whl", [("brokerless/x.py", b"")])
            return
        if "--dest" not in command:
            return  # pip is asked whether the wheels can be installed
        downloads.append(command)
        folder = Path(command[command.index("--dest") + 1])
        for name in re.findall(r"^([a-z0-9-]+)==", (folder / "requirements.txt").read_text(), re.MULTILINE):
            members = [(f"{name}/__init__.py", b"x"), (f"{name}/tests/t.py", b"x"), (f"{name}.dist-info/RECORD", b"x")]
            write_archive(folder / f"{name}-1-py3-none-any.whl", members)

    monkeypatch.setattr(assets, "_run", run)
    return Checkout(tmp_path, downloads)


def names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


@pytest.mark.usefixtures("checkout")
def test_a_function_has_its_packages_and_the_library() -> None:
    built = build_assets(Runtime())
    assert {"obstore/__init__.py", "brokerless/__init__.py", "lambdas/__init__.py"} <= set(names(built.core.path))
    assert not [name for name in names(built.core.path) if "tests/" in name or "RECORD" in name or ".pyc" in name]
    extra = set(names(built.maintenance.path)) - set(names(built.core.path))
    assert extra == {"deltalake/__init__.py", "deprecated/__init__.py", "wrapt/__init__.py"}


@pytest.mark.usefixtures("checkout")
def test_glue_gets_wheels_and_their_list() -> None:
    path = build_assets(Runtime()).gluewheels.path
    assert path.name.endswith(".gluewheels.zip")
    with zipfile.ZipFile(path) as archive:
        assert "wheels/brokerless-0.1.0-py3-none-any.whl" in archive.namelist()
        requirements = archive.read("wheels/requirements.txt").decode().splitlines()
    assert "brokerless==0.1.0" in requirements
    assert {"obstore", "arro3-core", "typer"} <= {line.split("==")[0] for line in requirements}
    assert len(requirements) == len(names(path)) - 1


def test_wheels_are_asked_for_by_processor_and_hash(checkout: Checkout) -> None:
    build_assets(Runtime(architecture="arm64", python="3.13"))
    wheels = {command[command.index("--python-version") + 1] for command in checkout.downloads}
    assert wheels == {"3.13"}
    machines = {tuple(part for part in command if part.startswith("manylinux")) for command in checkout.downloads}
    arm = ("manylinux_2_28_aarch64", "manylinux_2_24_aarch64", "manylinux2014_aarch64")
    x86 = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64")
    assert machines == {arm, x86}
    for command in checkout.downloads:
        assert {"--require-hashes", "--no-deps", "--only-binary=:all:"} <= set(command)


def test_a_changed_source_makes_new_assets_without_the_network(checkout: Checkout) -> None:
    first = build_assets(Runtime())
    count = len(checkout.downloads)
    (checkout.path / "lambdas" / "__init__.py").write_text("# changed\n")
    with pytest.raises(ConfigError, match=r"'core' for arm64 and Python 3\.13 is missing or older than its sources"):
        find_assets(Runtime())
    second = build_assets(Runtime())
    assert len(checkout.downloads) == count
    assert second.core.digest != first.core.digest
    # Jobs do not hold functions, so they are not restarted.
    assert (second.gluewheels, second.environment) == (first.gluewheels, first.environment)
    assert not first.core.path.exists()
    assert find_assets(Runtime()) == second


def test_a_changed_lock_is_downloaded_anew(checkout: Checkout) -> None:
    build_assets(Runtime())
    count = len(checkout.downloads)
    lock = checkout.path / "lock"
    lock.write_text(re.sub(r"(?m)^deltalake==\S+", "deltalake==9.9.9", lock.read_text()))
    build_assets(Runtime())
    assert len(checkout.downloads) == count + 1


def test_a_package_too_large_for_lambda_is_refused(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout.path / "brokerless" / "large.bin").write_bytes(bytes(3 * 2**20))
    monkeypatch.setattr(assets, "_FUNCTION_LIMIT_BYTES", 2 * 2**20)
    with pytest.raises(BrokerlessError, match="'core' has 3 MB, but Lambda takes"):
        build_assets(Runtime())


def test_a_failed_download_leaves_no_cache(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], what: str, *, environ: object = None) -> None:
        raise BrokerlessError(f"{what} failed")

    monkeypatch.setattr(assets, "_run", fail)
    with pytest.raises(BrokerlessError, match="Downloading the packages of 'core' failed"):
        build_assets(Runtime())
    assert list((checkout.path / "build" / "wheels").iterdir()) == []
    assert [path.name for path in (checkout.path / "build").iterdir()] == ["wheels"]


def test_wheels_that_ask_for_a_missing_one_are_refused(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    metadata = b"Metadata-Version: 2.1\nName: one\nVersion: 1\nRequires-Dist: another\n"
    content = {"one-1.dist-info/METADATA": metadata, "one-1.dist-info/WHEEL": b"Wheel-Version: 1.0\n"}
    wheel = checkout.path / "one-1-py3-none-any.whl"
    write_archive(wheel, [*content.items(), ("one-1.dist-info/RECORD", b"")])
    members = [(f"wheels/{wheel.name}", wheel.read_bytes()), ("wheels/requirements.txt", b"one==1\n")]
    write_archive(checkout.path / "x.gluewheels.zip", members)
    plan = next(plan for plan in assets._plans(Runtime()) if plan.kind == "gluewheels")
    with pytest.raises(BrokerlessError, match="No matching distribution found for another"):
        assets._check_installable(plan, checkout.path / "x.gluewheels.zip")
