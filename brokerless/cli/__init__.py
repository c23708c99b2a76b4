"""The ``brokerless`` command: options, tables and exit codes; all functions are in the library."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typer


def application() -> typer.Typer:
    """The command with all its verbs."""
    from brokerless.cli import (
        app,
        cost,
        demo,
        dlq,
        doctor,
        export,
        groups,
        lag,
        maintain,
        new,
        produce,
        run,
        server,
        sql,
        tail,
        topics,
        verify,
    )

    if not app.app.registered_commands:
        # The order here is the order in the help.
        first, second = (server, topics, groups, produce, tail, export, sql), (lag, new, run, dlq, demo, maintain)
        for module in (*first, *second, cost, verify, doctor):
            module.register(app.app)
    return app.app


def main() -> None:
    """Run the ``brokerless`` script."""
    try:
        application()(prog_name="brokerless")
    except KeyboardInterrupt:  # while modules are imported or an error is printed
        sys.exit(130)
