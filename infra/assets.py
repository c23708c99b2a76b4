"""Build the uploaded packages of functions and jobs without Docker: ``python -m infra.assets``.

Wheels come from ``requirements-aws.lock``, checked against its hashes, into a cache below ``build/``: the network is
needed only when the lock has changed. Everything else is copied from the checkout. Synth only reads what is there.

An asset's identity is the hash of what it is made from, not of the archive: compressors differ between machines, and
an asset with a new name restarts the jobs that run it. Archives are deterministic nevertheless: sorted, and undated.

==================  ===========================================================================================
asset               content
==================  ===========================================================================================
``core``            of all functions but maintenance: obstore, arro3, Powertools, ``brokerless``, ``lambdas``
``maintenance``     the same and deltalake, which is larger than all the rest
``gluewheels``      for Glue's ``--additional-python-modules``: wheels that pip installs without an index
``environment``     for EMR's ``spark.archives``: an unpacked tree for PYTHONPATH, with pyarrow and boto3
==================  ===========================================================================================
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.requirements import Requirement

from brokerless.errors import BrokerlessError, ConfigError
from brokerless.version import VERSION
from infra.config import REPOSITORY, Runtime
from infra.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

BUILD: Final = REPOSITORY / "build" / "aws"
LOCK: Final = REPOSITORY / "requirements-aws.lock"

# Each wheel names the oldest C library that it runs with, and pip matches these names exactly. All three are older
# than that of Amazon Linux 2023, on which Lambda, Glue and EMR run; without one of them pip falls back to old releases.
_LIBRARIES: Final = ("manylinux_2_28", "manylinux_2_24", "manylinux2014")
_MACHINES: Final = {"arm64": "aarch64", "x86_64": "x86_64"}

_CORE: Final = ("obstore", "arro3-core", "arro3-io", "tzdata", "typing-extensions")
_FUNCTIONS: Final = (*_CORE, "aws-lambda-powertools", "jmespath")
_TYPER: Final = ("typer", "shellingham", "annotated-doc", "pydantic", "pydantic-core", "annotated-types")
_COMMAND_LINE: Final = (*_TYPER, "typing-inspection", "rich", "markdown-it-py", "mdurl", "pygments")
_BOTO3: Final = ("boto3", "botocore", "s3transfer", "urllib3", "jmespath", "python-dateutil", "six")

PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "core": _FUNCTIONS,
    # deltalake itself asks for arro3-core and, by an import, for deprecated.
    "maintenance": (*_FUNCTIONS, "deltalake", "deprecated", "wrapt"),
    # The command line's packages are what the library's wheel asks for; without an index pip would miss them.
    "gluewheels": (*_CORE, *_COMMAND_LINE),
    "environment": (*_CORE, *_BOTO3, "pyarrow", "pandas", "numpy", "pytz"),
}
"""The packages of each asset, with the versions of the lock file: nothing is resolved again."""

_SOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "core": ("brokerless", "lambdas"),
    "maintenance": ("brokerless", "lambdas"),
    "gluewheels": ("brokerless", "glue_jobs"),
    "environment": ("brokerless", "glue_jobs"),
}

JOB_PYTHON: Final = "3.13"
"""The Python of Glue 6.0; on EMR Serverless emr-spark-8.1.0 it is one of two."""

# Lambda refuses more; pip cannot know.
_FUNCTION_LIMIT_BYTES: Final = 250 * 2**20
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file to upload.

    Attributes:
        path: where it is.
        digest: of what it was made from; its identity.
    """

    path: Path
    digest: str


@dataclass(frozen=True, slots=True)
class Assets:
    """All files to upload, as in the table above."""

    core: Asset
    maintenance: Asset
    gluewheels: Asset
    environment: Asset


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan of one asset.

    Attributes:
        kind: which, as in ``PACKAGES``.
        runtime: the processor and interpreter that its wheels must fit.
        requirements: the lock's lines for its packages.
    """

    kind: str
    runtime: Runtime
    requirements: str

    @property
    def digest(self) -> str:
        """The hash of everything that the archive depends on."""
        digest = hashlib.sha256(f"{self.kind} {self.runtime} {VERSION}\n{self.requirements}".encode())
        for path in _source_files(_SOURCES[self.kind]):
            digest.update(f"{path.relative_to(REPOSITORY)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        # How archives are made is part of what they are.
        digest.update(Path(__file__).read_bytes())
        return digest.hexdigest()

    @property
    def asset(self) -> Asset:
        """The path of the file."""
        suffix = ".gluewheels.zip" if self.kind == "gluewheels" else ".zip"
        digest = self.digest
        name = f"{self.kind}-{self.runtime.architecture}-py{self.runtime.python}-{digest[:16]}{suffix}"
        return Asset(BUILD / name, digest)


def find_assets(runtime: Runtime) -> Assets:
    """Return the assets for a runtime, which were built before.

    Raises:
        ConfigError: one is missing, or is older than its sources.
    """
    assets = {plan.kind: plan.asset for plan in _plans(runtime)}
    for kind, asset in assets.items():
        if not asset.path.is_file():
            raise ConfigError(
                f"The asset {kind!r} for {runtime.architecture} and Python {runtime.python} is missing or older than "
                "its sources. Make it with: python -m infra.assets"
            )
    return Assets(**assets)


def build_assets(runtime: Runtime) -> Assets:
    """Build missing assets, and remove the ones that they replace.

    Raises:
        ConfigError: a package is not in the lock.
        BrokerlessError: pip failed, or a function's package is larger than Lambda takes.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    assets = {}
    for plan in _plans(runtime):
        asset = assets[plan.kind] = plan.asset
        if asset.path.is_file():
            continue
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            made = Path(scratch) / asset.path.name
            _make(plan, made)
            stale = asset.path.name.replace(asset.digest[:16], "*")
            for old in BUILD.glob(stale):
                old.unlink()
            made.replace(asset.path)
    return Assets(**assets)


def write_archive(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    """Return a zip with the same bytes for the same members: sorted, without dates, owners or duplicates."""
    content = dict(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(content):
            _add(archive, name, content[name])


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr = 0o644 << 16
    # Wheels are compressed already.
    stored = name.endswith(".whl")
    archive.writestr(info, content, zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED, compresslevel=9)


def locked(packages: Iterable[str], *, python: str, lock: str) -> str:
    """Return the lock file's lines of some packages for one version of Python.

    pip evaluates conditions of a requirements file for itself, not for the Python that it downloads for; hence the
    choice is made here, and the conditions are left out.

    Raises:
        ConfigError: a package is not in the lock for this Python.
    """
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    environment |= {"platform_python_implementation": "CPython", "implementation_name": "cpython"}
    blocks = {}
    for block in re.split(r"\n(?=\S)", lock.strip()):
        head, _, hashes = block.partition(" \\\n")
        requirement = Requirement(head)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            blocks[requirement.name] = f"{requirement.name}{requirement.specifier} \\\n{hashes}"
    missing = sorted(set(packages) - set(blocks))
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} is not in {LOCK.name} for Python {python}. Add it to pyproject.toml; make lock."
        )
    return "\n".join(blocks[name] for name in sorted(set(packages))) + "\n"


def _plans(runtime: Runtime) -> Iterator[_Plan]:
    lock = LOCK.read_text()
    runtimes = {
        "core": runtime,
        "maintenance": runtime,
        "gluewheels": Runtime(architecture="x86_64", python=JOB_PYTHON),
        "environment": Runtime(architecture=runtime.architecture, python=JOB_PYTHON),
    }
    for kind, packages in PACKAGES.items():
        target = runtimes[kind]
        yield _Plan(kind, target, locked(packages, python=target.python, lock=lock))


def _make(plan: _Plan, path: Path) -> None:
    if plan.kind == "gluewheels":
        wheels = _wheels(plan)
        own = _own_wheel(path.parent)
        names = [line.split(" ")[0] for line in plan.requirements.splitlines() if not line.startswith(" ")]
        requirements = "\n".join([*names, f"brokerless=={VERSION}"]) + "\n"
        members = [(f"wheels/{wheel.name}", wheel.read_bytes()) for wheel in (*wheels, own)]
        write_archive(path, [*members, ("wheels/requirements.txt", requirements.encode())])
        _check_installable(plan, path)
        return
    shutil.copyfile(_packages(plan), path)
    # Added to what was compressed before: the packages change with the lock only, the sources all the time.
    with zipfile.ZipFile(path, "a") as archive:
        for source in _source_files(_SOURCES[plan.kind]):
            _add(archive, str(source.relative_to(REPOSITORY)), source.read_bytes())
        size = sum(info.file_size for info in archive.infolist())
    if plan.kind in {"core", "maintenance"} and size > _FUNCTION_LIMIT_BYTES:
        raise BrokerlessError(
            f"The package {plan.kind!r} has {size / 2**20:.0f} MB, but Lambda takes 250 MB. Leave packages out."
        )


def _check_installable(plan: _Plan, path: Path) -> None:
    """Let pip resolve the wheels as on Glue, without installing: a wheel that another one needs may be missing."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(path) as archive:
        archive.extractall(scratch)
        wheels = Path(scratch) / "wheels"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run"]
        command += ["--no-index", "--find-links", str(wheels), "--requirement", str(wheels / "requirements.txt")]
        command += ["--target", str(wheels / "target"), "--ignore-installed", *_target(plan)]
        _run(command, "Installing the wheels for Glue without an index")


def _packages(plan: _Plan) -> Path:
    """Build the archive of a plan's packages from their wheels, once for each state of the lock file."""
    wheels = _wheels(plan)
    folder = wheels[0].parent
    made = folder.with_name(f"{folder.name}.zip")
    if not made.is_file():
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            write_archive(Path(scratch) / made.name, _unpacked(wheels))
            (Path(scratch) / made.name).replace(made)
    return made


def _unpacked(wheels: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                # Tests and headers of pyarrow, pandas and numpy are a third of them; nothing imports them.
                if name.endswith(("/", "/RECORD")) or re.search(r"/(tests|include|src)/|\.data/", name):
                    continue
                yield name, archive.read(name)


def _source_files(tops: Iterable[str]) -> Iterator[Path]:
    for top in tops:
        for path in sorted((REPOSITORY / top).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def _wheels(plan: _Plan) -> list[Path]:
    """Return the wheels of a plan's packages from the cache, after downloading missing ones."""
    target = plan.runtime
    key = hashlib.sha256(f"{target}\n{plan.requirements}".encode()).hexdigest()[:16]
    cache = BUILD / "wheels" / f"{target.architecture}-py{target.python}-{key}"
    if not cache.is_dir():
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
            _download(plan, Path(scratch))
            # Whole or not at all: an interrupted download leaves no cache behind.
            shutil.move(scratch, cache)
            Path(scratch).mkdir()  # for the context manager to remove
    return sorted(cache.glob("*.whl"))


def _download(plan: _Plan, folder: Path) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(plan.requirements)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--dest", str(folder), "--requirement", str(requirements), *_target(plan)]
    _run(command, f"Downloading the packages of {plan.kind!r}")


def _target(plan: _Plan) -> list[str]:
    """Return the options of pip for another machine than this one."""
    machine = _MACHINES[plan.runtime.architecture]
    platforms = [part for library in _LIBRARIES for part in ("--platform", f"{library}_{machine}")]
    return ["--only-binary=:all:", "--implementation", "cp", "--python-version", plan.runtime.python, *platforms]


def _own_wheel(folder: Path) -> Path:
    """Build the wheel of the library and the jobs with the build tool that pyproject.toml pins."""
    # The build tool dates the archive's members by this variable.
    environ = {**os.environ, "SOURCE_DATE_EPOCH": "315532800"}
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    _run(command, "Building the library's wheel", environ=environ)
    return next(folder.glob("brokerless-*.whl"))


def _run(command: list[str], what: str, *, environ: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokerlessError(f"{what} failed with exit code {done.returncode}: {done.stderr.strip()[-2000:]}")


def main(argv: list[str] | None = None) -> int:
    """Build the assets of all stages, or of one runtime. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.assets", description="Builds what the CDK app uploads.")
    parser.add_argument("--architecture", choices=sorted(_MACHINES), help="of functions, instead of the stages'")
    parser.add_argument("--python", help="of functions, for example 3.11, instead of the stages'")
    args = parser.parse_args(argv)
    try:
        default = Runtime()
        chosen = Runtime(args.architecture or default.architecture, args.python or default.python)
        runtimes = {chosen} if argv or args.architecture or args.python else {s.runtime for s in STAGES.values()}
        for runtime in sorted(runtimes, key=repr):
            assets = build_assets(runtime)
            for field in fields(assets):
                asset: Asset = getattr(assets, field.name)
                size = asset.path.stat().st_size / 2**20
                # Not on standard output, which belongs to the template when ``cdk synth`` calls this.
                print(f"{field.name:12} {size:6.1f} MB  {asset.path.relative_to(REPOSITORY)}", file=sys.stderr)
    except BrokerlessError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
