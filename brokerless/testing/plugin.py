"""pytest fixtures around the fault proxy: ``pytest_plugins = ["brokerless.testing.plugin"]``.

``fault_server`` says which S3 server stands behind the proxy. It is the embedded one of this session; a fixture of the
same name in your own tests puts another one in its place.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING

import pytest

from brokerless.errors import ConfigError
from brokerless.settings import Settings
from brokerless.testing.proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUCKET = "brokerless-testing"


@pytest.fixture(scope="session")
def fault_server_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The embedded server, started when the first test needs it."""
    from brokerless.bucket import create_bucket
    from brokerless.local.server import start_embedded

    with start_embedded(tmp_path_factory.mktemp("fault-server")) as server:
        settings = Settings(
            profile="embedded",
            root=f"s3://{_BUCKET}",
            endpoint=server.endpoint,
            access_key=server.access_key,
            secret_key=server.secret_key,
        )
        create_bucket(settings)
        yield settings


@pytest.fixture
def fault_server(fault_server_of_session: Settings) -> Settings:
    """The settings of the S3 server itself, without the proxy, with an empty root for this test."""
    return dataclasses.replace(fault_server_of_session, root=f"{fault_server_of_session.root}/{uuid.uuid4().hex}")


@pytest.fixture
def fault_proxy(fault_server: Settings) -> Iterator[FaultProxy]:
    """A proxy in front of ``fault_server``, without faults until the test adds some."""
    if fault_server.endpoint is None:
        raise ConfigError(f"The proxy needs a server with an endpoint in front of it; {fault_server.root} has none.")
    with FaultProxy(fault_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def fault_settings(fault_server: Settings, fault_proxy: FaultProxy) -> Settings:
    """The same root as ``fault_server`` through ``fault_proxy``, for the code under test."""
    return fault_proxy.through(fault_server)
