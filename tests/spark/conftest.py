"""One Spark session for all tests here; a root of its own for each test."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING

import pytest

from brokerless.spark import spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from brokerless.settings import Settings


@pytest.fixture(scope="session")
def base(embedded_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return dataclasses.replace(embedded_settings, state_dir=tmp_path_factory.mktemp("spark"))


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
    return dataclasses.replace(base, root=f"{base.root}/{uuid.uuid4().hex[:12]}")
