"""A session: runs of one command on one machine; a file in ``benchmarks/results``.

The description of the machine contains its capabilities, but no host name, user or path.
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
    """Figures beyond runs: rows with the same keys, which are the header."""

    title: str
    rows: list[dict[str, Any]]


@dataclass(slots=True)
class Session:
    """One file of results.

    Attributes:
        name: the file's name without its ending.
        title: its heading in the report.
        command: the command that repeats it.
        started: UTC, ISO 8601.
        machine: the result of ``machine()``.
        versions: the result of ``versions()``, and versions of servers.
        git: the measured commit.
        prices: the prices for the costs; ``as_of`` is the date of the price list.
        tables: figures beyond those of runs.
        notes: notes for readers, one or two sentences each.
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
        """Return a new session that begins now on this machine."""
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
        """Return the session as stored in ``benchmarks/results``."""
        own = {key: value for key, value in asdict(self).items() if key != "runs"}
        return {**own, "runs": [run.to_json() for run in self.runs]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Session:
        """Create a session from its stored form; the inverse of ``to_json``."""
        runs = [Result.from_json(run) for run in values.get("runs", [])]
        tables = [Table(**table) for table in values.get("tables", [])]
        return cls(**{**values, "runs": runs, "tables": tables})

    def path(self, folder: Path = RESULTS) -> Path:
        """Return the path to which ``save`` writes."""
        return folder / f"{self.name}.json"

    def save(self, folder: Path = RESULTS) -> Path:
        """Write the file atomically and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = self.path(folder)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(self._text())
        return unfinished.replace(path)

    def _text(self) -> str:
        """Return JSON with one line per field and run, for readable diffs in git."""
        fields = self.to_json()
        runs = ",\n".join(json.dumps(run) for run in fields.pop("runs"))
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()]
        return "{\n" + ",\n".join([*lines, f'"runs": [\n{runs}\n]']) + "\n}\n"


def load_all(folder: Path = RESULTS) -> list[Session]:
    """Return all sessions of a folder, the earliest first."""
    found = [Session.from_json(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda session: (session.started, session.name))


def machine() -> dict[str, Any]:
    """Describe this machine: ``cpu``, ``cores``, ``memory_gb``, ``os`` and ``python``."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "os": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "architecture": platform.machine(),
    }


def file_system(folder: Path) -> str:
    """Return a folder's kind of file system, such as ``ext4`` or ``tmpfs``, or ``unknown``."""
    location = folder.resolve()
    kind, depth = "unknown", 0
    for part in psutil.disk_partitions(all=True):
        mount = Path(part.mountpoint)
        # The innermost mount point; the last one if several are mounted there.
        if location.is_relative_to(mount) and len(mount.parts) >= depth:
            kind, depth = part.fstype or "unknown", len(mount.parts)
    return kind


def versions() -> dict[str, str]:
    """Return the versions of the packages that take part and are installed."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_commit(repository: Path = Path(__file__).parents[1]) -> str:
    """Return the current commit, with ``-dirty`` if files differ from it; ``unknown`` without git."""
    try:
        commit = _git(repository, "rev-parse", "--short=12", "HEAD")
        # Results and the pages generated from them change during the measurement and do not affect it.
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
