"""Servers, roots and a clock that tests share."""

from __future__ import annotations

import dataclasses
import os
import signal
import uuid
from typing import TYPE_CHECKING

import pytest

from brokerless.bucket import create_bucket
from brokerless.settings import Settings
from tests.support.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "brokerless-tests"


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Lets children be interrupted: who starts the tests in the background may have had SIGINT ignored for all."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _quick_jvms() -> None:
    """Lets JVMs, which live for seconds here, compile once and quickly instead of twice and well."""
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.fixture
def clock() -> FakeClock:
    """Time that passes only where somebody sleeps."""
    return FakeClock()


@pytest.fixture(scope="session")
def embedded_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The embedded server on a free port, for the whole session, with an empty bucket."""
    from brokerless.local.server import start_embedded

    with start_embedded(tmp_path_factory.mktemp("embedded")) as server:
        settings = Settings(
            profile="embedded",
            root=f"s3://{BUCKET}",
            endpoint=server.endpoint,
            access_key="brokerless",
            secret_key="brokerless",
        )
        create_bucket(settings)
        yield settings


@pytest.fixture(scope="session")
def minio_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A MinIO server of this session; skips where there is no binary."""
    from brokerless.local.minio import find_minio, start_minio

    if find_minio(os.environ) is None:
        pytest.skip("no minio binary: set BROKERLESS_MINIO_BINARY or put one on PATH")
    with start_minio(tmp_path_factory.mktemp("minio"), access_key="tests", secret_key="tests-secret") as server:
        settings = Settings(
            profile="minio",
            root=f"s3://{BUCKET}",
            endpoint=server.endpoint,
            access_key=server.access_key,
            secret_key=server.secret_key,
        )
        create_bucket(settings)
        yield settings


@pytest.fixture(params=["embedded", pytest.param("minio", marks=pytest.mark.minio)])
def settings(request: pytest.FixtureRequest) -> Settings:
    """An empty root of this test's own, on each server there is."""
    base: Settings = request.getfixturevalue(f"{request.param}_settings")
    return dataclasses.replace(base, root=f"{base.root}/{uuid.uuid4().hex}")
