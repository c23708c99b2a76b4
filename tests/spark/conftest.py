"""One Spark session and one embedded S3 server for all tests here; a root of its own for each test."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from brokerless.bucket import create_bucket
from brokerless.local.server import start_embedded
from brokerless.settings import Settings
from brokerless.spark import spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("spark")
    with start_embedded(folder / "s3") as server:
        settings = Settings(
            profile="embedded",
            root="s3://brokerless",
            endpoint=server.endpoint,
            access_key=server.access_key,
            secret_key=server.secret_key,
            state_dir=folder / "state",
        )
        create_bucket(settings)
        yield settings


@pytest.fixture(scope="session")
def spark(base: Settings) -> Iterator[SparkSession]:
    session = spark_session(base, name="tests", cores=2)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def no_query_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A failed test must not make the next one fail."""
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


@pytest.fixture
def settings(base: Settings) -> Settings:
    return Settings(
        profile=base.profile,
        root=f"s3://brokerless/{uuid.uuid4().hex[:12]}",
        endpoint=base.endpoint,
        access_key=base.access_key,
        secret_key=base.secret_key,
        state_dir=base.state_dir,
    )
