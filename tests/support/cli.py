"""The command as a test calls it: in this process, with an environment of its own, and what must hold of a refusal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from brokerless.bucket import create_bucket
from brokerless.cli import application
from brokerless.settings import Settings
from brokerless.store import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

    from brokerless.store import ObstoreStore

# Whatever the developer's shell says, these come from the test only.
_OWN = (
    "BROKERLESS_PROFILE",
    "BROKERLESS_ROOT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "MINIO_S3_ACCESS_KEY",
    "MINIO_S3_SECRET_ACCESS_KEY",
)


@dataclass
class Cli:
    """``cli("topics", "list")`` runs the command; the settings are those of its environment."""

    settings: Settings
    environ: dict[str, str | None] = field(default_factory=dict)

    def __call__(self, *args: str, stdin: str | bytes | None = None, **environ: str | None) -> Result:
        env = {**dict.fromkeys(_OWN), **self.settings.to_environ(), **self.environ, **environ}
        return CliRunner().invoke(application(), list(args), input=stdin, env=env)

    def json(self, *args: str, stdin: str | bytes | None = None) -> Any:
        """What the command prints with ``--json``, which must be one document."""
        result = self(*args, "--json", stdin=stdin)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    @property
    def store(self) -> ObstoreStore:
        return open_store(self.settings)

    def objects(self) -> set[str]:
        """Everything below the root."""
        found = set()
        for folder in self.store.folders():
            found |= {info.path for info in self.store.list(folder)}
        return found


def cli_on(endpoint: str, root: str, state_dir: Path) -> Cli:
    """A command whose bucket exists."""
    cli = cli_without_bucket(endpoint, root, state_dir)
    create_bucket(cli.settings)
    return cli


def cli_without_bucket(endpoint: str, root: str, state_dir: Path) -> Cli:
    """A command on a local server."""
    return Cli(Settings("embedded", root, endpoint=endpoint, access_key="any", secret_key="any", state_dir=state_dir))


def assert_refused(result: Result, *words: str, code: int = 2) -> str:
    """The command refused: this exit code, nothing on standard output, one message with these words, no traceback."""
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.stdout == ""
    message = result.stderr.strip()
    assert "Traceback" not in message
    lines = [line for line in message.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, message
    for word in words:
        assert word in lines[0], f"{word!r} is not in {lines[0]!r}"
    return lines[0]
