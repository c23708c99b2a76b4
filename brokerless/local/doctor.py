"""Checks of what brokerless needs on this machine and in its store, each with how to fix what is missing."""

from __future__ import annotations

import contextlib
import http.client
import importlib.metadata
import re
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from brokerless.errors import (
    AccessDenied,
    BrokerlessError,
    BucketNotFound,
    ConditionalPutUnsupported,
    ConfigError,
    StoreError,
)
from brokerless.local.processes import HOST, check_listening, free_port
from brokerless.settings import STATE_DIR_ENV, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from brokerless.store import Store

Verdict = Literal["ok", "warn", "fail", "skip"]

_PYTHONS: Final = ((3, 11), (3, 13))
_MIB: Final = 2**20
_DISK_FAIL: Final = 64 * _MIB
"""The limit of the local servers in bytes: below it, they start and then fail in the middle of a commit."""
_DISK_WARN: Final = 1024 * _MIB
"""Bytes for Spark's scratch files, the spool of a large input and test data."""

SKEW_WARN_S: Final = 1.0
"""Latencies compare the producer's clock with the reader's, so a second of skew makes all of them useless. The store's
clock represents all other machines."""

SKEW_FAIL_S: Final = 900.0
"""AWS refuses requests whose signature differs from its clock by more than 15 minutes (RequestTimeTooSkewed)."""


_STORE_CHECKS: Final = ("endpoint", "clock", "credentials", "bucket", "conditional PUT", "logs")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    verdict: Verdict
    detail: str
    fix: str = ""


def diagnose(environ: Mapping[str, str], *, profile: str | None = None, root: str | None = None) -> Iterator[Check]:
    """Yield the results of all checks, in the order in which they depend on each other.

    The check of conditional PUT writes the small object ``_brokerless/_probe``.

    Args:
        environ: the variables with the settings.
        profile: as for ``Settings.load``.
        root: as for ``Settings.load``.
    """
    state_dir = Path(environ.get(STATE_DIR_ENV) or ".brokerless")
    yield _python()
    yield _packages()
    yield _java(environ)
    yield _loopback(state_dir)
    yield from _disk(state_dir)
    try:
        settings = Settings.load(profile=profile, root=root, environ=environ)
    except ConfigError as error:
        yield Check("settings", "fail", str(error))
        yield from _skipped(_STORE_CHECKS, "needs the settings")
        return
    yield _settings(settings)
    yield from _store(settings)


def _skipped(names: Iterable[str], reason: str) -> Iterator[Check]:
    return (Check(name, "skip", reason) for name in names)


def _python() -> Check:
    version = sys.version_info[:3]
    text = ".".join(map(str, version))
    low, high = _PYTHONS
    if low <= version[:2] <= high:
        return Check("python", "ok", f"{text} at {sys.executable}")
    return Check(
        "python",
        "fail",
        f"{text} at {sys.executable}; Glue and EMR Serverless run {low[0]}.{low[1]} to {high[0]}.{high[1]}",
        "Create the environment with one of these versions: make setup PYTHON=python3.11",
    )


def _packages() -> Check:
    """Compare installed versions with the pins of the installed brokerless package."""
    wanted: dict[str, str] = {}
    try:
        requirements = importlib.metadata.requires("brokerless") or []
    except importlib.metadata.PackageNotFoundError:
        return Check(
            "packages", "warn", "brokerless is not installed, so its pinned versions are unknown", "make setup"
        )
    for requirement in requirements:
        match = re.match(r"([A-Za-z0-9._-]+)\s*==\s*([^\s;,]+)", requirement)
        if match and match[1].lower() in {"pyspark", "delta-spark", "deltalake", "obstore", "ministack"}:
            wanted[match[1].lower()] = match[2]
    missing: list[str] = []
    other: list[str] = []
    for name, version in wanted.items():
        try:
            have = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if have != version:
            other.append(f"{name} {have} instead of {version}")
    if other:
        return Check(
            "packages", "fail", "; ".join(other), "pip install 'brokerless[spark,local]', in a fresh environment"
        )
    if missing:
        return Check(
            "packages",
            "warn",
            f"not installed: {', '.join(missing)}",
            "For pipelines and the local server: pip install 'brokerless[spark,local]'",
        )
    return Check("packages", "ok", ", ".join(f"{name} {version}" for name, version in sorted(wanted.items())))


def _java(environ: Mapping[str, str]) -> Check:
    from brokerless.spark.java import find_java_home

    try:
        home = find_java_home(environ)
    except ConfigError as error:
        return Check("java", "fail", str(error), "Producers and readers do not need it; pipelines do.")
    return Check("java", "ok", str(home))


def _loopback(state_dir: Path) -> Check:
    """Check that loopback connections work: Spark, its workers and the local server use them."""
    from brokerless.local.background import status

    try:
        port = free_port()
        with socket.socket() as listener:
            listener.bind((HOST, port))
            listener.listen(1)
            socket.create_connection((HOST, port), 2).close()
    except OSError as error:
        return Check(
            "ports",
            "fail",
            f"a connection to {HOST} failed: {error.strerror or error}",
            "Allow programs to listen on and connect to the loopback interface (firewall, sandbox).",
        )
    running = status(state_dir)
    server = f"; brokerless up: {running.kind} at {running.endpoint}" if running is not None else ""
    return Check("ports", "ok", f"free ports on {HOST} can be used{server}")


def _disk(state_dir: Path) -> Iterator[Check]:
    folders = {"scratch disk": Path(tempfile.gettempdir()), "state disk": state_dir.absolute()}
    fixes = {
        "scratch disk": "Free some space there, or set TMPDIR.",
        "state disk": "Free some space there, or set BROKERLESS_STATE_DIR.",
    }
    for name, folder in folders.items():
        existing = folder
        while not existing.exists():
            existing = existing.parent
        try:
            free = shutil.disk_usage(existing).free
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            yield Check(name, "fail", f"{folder} cannot be written: {error.strerror or error}", fixes[name])
            continue
        verdict: Verdict = "fail" if free < _DISK_FAIL else "warn" if free < _DISK_WARN else "ok"
        yield Check(name, verdict, f"{free / 2**30:.1f} GiB free at {folder}", "" if verdict == "ok" else fixes[name])


def _settings(settings: Settings, dotenv: Path = Path(".env")) -> Check:
    """Show the settings, with a warning if other users can read a ``.env`` file with a secret."""
    text = f"profile {settings.profile}, topics in {settings.root}"
    with contextlib.suppress(OSError):  # no such file
        if dotenv.stat().st_mode & 0o077 and "SECRET" in dotenv.read_text(encoding="utf-8-sig"):
            return Check("settings", "warn", f"{text}; others can read {dotenv}, which has a secret", "chmod 600 .env")
    return Check("settings", "ok", text)


def _store(settings: Settings) -> Iterator[Check]:
    from brokerless.log.probe import check_conditional_put
    from brokerless.store import open_store

    on_s3 = settings.root.startswith("s3://")
    endpoint = settings.endpoint or (f"https://s3.{settings.region}.amazonaws.com" if on_s3 else None)
    if endpoint is None:
        yield Check("endpoint", "skip", f"{settings.root} needs no endpoint")
        yield Check("clock", "skip", "no server to compare with")
    else:
        reached = _endpoint(endpoint)
        yield reached
        if reached.verdict == "fail":
            yield from _skipped(_STORE_CHECKS[1:], "needs the endpoint")
            return
        yield _clock(endpoint)
    yield from _access(settings, open_store(settings), check_conditional_put)


def _endpoint(endpoint: str) -> Check:
    try:
        check_listening(endpoint)
    except BrokerlessError as error:
        return Check("endpoint", "fail", str(error))
    return Check("endpoint", "ok", f"{endpoint} accepts connections")


def _clock(endpoint: str) -> Check:
    try:
        skew, error_s = clock_skew(endpoint)
    except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
        return Check("clock", "warn", f"{endpoint} did not return its time ({error})", "Compare the clocks yourself.")
    text = f"the store's clock is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'} (within {error_s:.1f} s)"
    fix = "Synchronise this machine's clock by NTP: it is used to sign requests and to measure latencies."
    # The part of the difference that may come from the header's low resolution is ignored.
    sure = abs(skew) - error_s
    if sure >= SKEW_FAIL_S:
        return Check("clock", "fail", text + "; requests are refused", fix)
    if sure > SKEW_WARN_S:
        return Check("clock", "warn", text + "; measured latencies are wrong by as much", fix)
    return Check("clock", "ok", text)


def clock_skew(endpoint: str, *, now: Callable[[], float] = time.time) -> tuple[float, float]:
    """Return by how many seconds the server's clock is ahead of this one, and the error of that value in seconds.

    The ``Date`` header has whole seconds, rounded down, and was set between request and answer.

    Raises:
        OSError, HTTPException, ValueError, TypeError: there was no answer, or one without a date.
    """
    parts = urlsplit(endpoint)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=5)
    try:
        before = now()
        connection.request("HEAD", "/")
        header = connection.getresponse().getheader("Date")
        after = now()
    finally:
        connection.close()
    if header is None:
        raise ValueError("no Date header")
    there = parsedate_to_datetime(header).timestamp() + 0.5
    return there - (before + after) / 2, 0.5 + (after - before) / 2


def _access(settings: Settings, store: Store, probe: Callable[[Store], None]) -> Iterator[Check]:
    source = "from the environment" if settings.access_key else "from the platform's credential chain"
    local = settings.profile != "aws"
    try:
        folders = store.folders()
    except AccessDenied as error:
        yield Check("credentials", "fail", str(error), "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to valid ones.")
        yield from _skipped(_STORE_CHECKS[3:], "needs the credentials")
        return
    except BucketNotFound as error:
        yield Check("credentials", "ok", source)
        yield Check(
            "bucket",
            "warn" if local else "fail",
            str(error),
            "'brokerless topics create' creates it." if local else "Create it, or choose another root.",
        )
        yield from _skipped(_STORE_CHECKS[4:], "needs the bucket")
        return
    except (StoreError, ConfigError) as error:
        yield Check("credentials", "fail", str(error))
        yield from _skipped(_STORE_CHECKS[3:], "the store did not answer")
        return
    yield Check("credentials", "ok", source)
    yield Check("bucket", "ok", f"{settings.root} can be listed")
    try:
        probe(store)
    except ConditionalPutUnsupported as error:
        yield Check("conditional PUT", "fail", str(error))
    except (StoreError, ConfigError) as error:
        yield Check("conditional PUT", "fail", str(error), "Producers and pipelines need to write below the root.")
    else:
        yield Check("conditional PUT", "ok", "a second PUT of the same object was refused, as it must be")
    yield _logs(store, folders)


def _logs(store: Store, folders: Sequence[str]) -> Check:
    """Check all logs for missing entries after their last checkpoints, several logs at a time."""
    from brokerless.log.log import read_pool
    from brokerless.schema import is_table, split_table
    from brokerless.verify.holes import find_hole

    def look(table: str) -> tuple[str | None, str | None]:
        try:
            return find_hole(store, table), None
        except BrokerlessError as error:
            return None, str(error)

    tables = [name for name in folders if is_table(name)]
    found = dict(zip(tables, read_pool().map(look, tables), strict=True))
    holes = {table: hole for table, (hole, _) in found.items() if hole}
    if holes:
        topics = sorted({split_table(table)[0] for table in holes})
        return Check(
            "logs",
            "fail",
            _first(holes.values()),
            "Restore the missing entries from a replica or a backup; see 'brokerless verify "
            f"{topics[0]}'{' and the others' if len(topics) > 1 else ''}. Delete nothing until then.",
        )
    if failed := [error for _, error in found.values() if error]:
        return Check("logs", "warn", f"not all logs could be checked: {_first(failed)}")
    return Check("logs", "ok", f"{len(tables):,} checked: no entries are missing after the last checkpoint")


def _first(problems: Iterable[str]) -> str:
    first, *others = problems
    return f"{first}{f'; and {len(others):,} more' if others else ''}"
