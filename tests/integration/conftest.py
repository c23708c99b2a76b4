"""The command on the embedded server."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.cli import Cli, cli_on

if TYPE_CHECKING:
    from pathlib import Path

    from brokerless.settings import Settings


@pytest.fixture
def cli(embedded_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """With a root of this test's own, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return cli_on(str(embedded_settings.endpoint), f"s3://brokerless-tests/{uuid.uuid4().hex}", tmp_path / "state")
