"""A measuring session: runs that were made together, on one machine, by one command; a file in ``benchmarks/results``.

What is collected of the machine says what it can do and nothing of whose it is: no host name, user or path.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.result import Result
from brokerless.cost import bill as cost

RESULTS: Final = Path(__file__).parent / "results"

_PACKAGES: Final = (
    "brokerless",
    "pyspark",
    "delta-spark",
    "deltalake",
    "obstore",
    "arro3-core",
    "pyarrow",
    "numpy",
    "confluent-kafka",
)


@dataclass(slots=True)
class Table:
    """Figures that are not of a run: rows of one shape, their keys the header."""

    title: str
    rows: list[dict[str, Any]]


@dataclass(slots=True)
class Session:
    """One file of results.

    Attributes:
        name: of the file, without its ending.
        title: a heading in the report.
        command: how to do it again.
        started: UTC, ISO 8601.
        machine: as from ``machine()``.
        versions: as from ``versions()``, and of servers.
        git: the commit that was measured.
        prices: what the costs are computed with; ``as_of`` is the date of the price list.
        tables: figures beyond those of runs.
        notes: what a reader must know, a sentence or two each.
    """

    name: str
    title: str
    command: str = ""
    started: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    git: str = ""
    prices: dict[str, Any] = field(default_factory=dict)
    runs: list[Result] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, name: str, title: str, command: str) -> Session:
        """A session that begins now, here."""
        return cls(
            name=name,
            title=title,
            command=command,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=machine(),
            versions=versions(),
            prices={"as_of": cost.AS_OF.isoformat(), "region": cost.REGION},
            git=git_commit(),
        )

    def to_json(self) -> dict[str, Any]:
        """As kept in ``benchmarks/results``."""
        own = {key: value for key, value in asdict(self).items() if key != "runs"}
        return {**own, "runs": [run.to_json() for run in self.runs]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Session:
        """The inverse."""
        runs = [Result.from_json(run) for run in values.get("runs", [])]
        tables = [Table(**table) for table in values.get("tables", [])]
        return cls(**{**values, "runs": runs, "tables": tables})

    def path(self, folder: Path = RESULTS) -> Path:
        """Where ``save`` puts it."""
        return folder / f"{self.name}.json"

    def save(self, folder: Path = RESULTS) -> Path:
        """Writes the file, at once, so that a reader never meets half of it."""
        folder.mkdir(parents=True, exist_ok=True)
        path = self.path(folder)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(self._text())
        return unfinished.replace(path)

    def _text(self) -> str:
        """JSON with a line for each field and each run, which git can compare."""
        fields = self.to_json()
        runs = ",\n".join(json.dumps(run) for run in fields.pop("runs"))
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()]
        return "{\n" + ",\n".join([*lines, f'"runs": [\n{runs}\n]']) + "\n}\n"


def load_all(folder: Path = RESULTS) -> list[Session]:
    """All sessions of a folder, the earliest first."""
    found = [Session.from_json(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda session: (session.started, session.name))


def machine() -> dict[str, Any]:
    """What the measurement ran on: ``cpu``, ``cores``, ``memory_gb``, ``os`` and ``python``."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "os": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "architecture": platform.machine(),
    }


def file_system(folder: Path) -> str:
    """The kind of file system that a folder is on, such as ``ext4`` or ``tmpfs``; ``unknown`` if nobody says."""
    place = folder.resolve()
    kind, depth = "unknown", 0
    for part in psutil.disk_partitions(all=True):
        mount = Path(part.mountpoint)
        # The innermost; of mounts on one another the last.
        if place.is_relative_to(mount) and len(mount.parts) >= depth:
            kind, depth = part.fstype or "unknown", len(mount.parts)
    return kind


def versions() -> dict[str, str]:
    """Versions of the packages that take part, of those that are installed."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_commit(repository: Path = Path(__file__).parents[1]) -> str:
    """The commit that is checked out, with ``-dirty`` if files differ from it; ``unknown`` without git."""
    try:
        commit = _git(repository, "rev-parse", "--short=12", "HEAD")
        # Results and pages made from them change while measuring and are not what is measured.
        changes = _git(repository, "status", "--porcelain", "--", ".", ":!benchmarks/results", ":!docs", ":!README.md")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{commit}-dirty" if changes else commit


def _git(repository: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(repository), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
