"""The command on a local folder."""

from __future__ import annotations

import pytest

from brokerless.settings import Settings
from tests.support.cli import Cli


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """A command on a local folder: no server is needed."""
    monkeypatch.chdir(tmp_path)
    return Cli(Settings("embedded", f"file://{tmp_path}/root", state_dir=tmp_path / "state"))
