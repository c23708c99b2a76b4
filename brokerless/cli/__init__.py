"""The ``brokerless`` command. Everything it does is in the library; here are words, options, tables and exit codes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


@cache
def application() -> typer.Typer:
    """The command with all its verbs."""
    from brokerless.cli import app, bench, cost, doctor, jobs, messages, proxy, server, topics, verify

    # Each module registers its verbs when it is imported; the order here is the order in the help.
    for module in (server, topics, messages, jobs, bench, cost, verify, doctor, proxy):
        module.register(app.app)
    return app.app


def main() -> None:
    """The entry point of the ``brokerless`` script."""
    application()(prog_name="brokerless")
