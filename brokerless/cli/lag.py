"""``brokerless lag``: how far groups and pipelines are behind."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Annotated, Final

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, connect, examples, help_of
from brokerless.cli.groups import lag_cells
from brokerless.cli.output import print_json, print_table, say
from brokerless.cli.signals import stop_on_signals
from brokerless.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokerless.lag import Lag
    from brokerless.store import Store

_WATCH_S: Final = 2.0
_TOO_FAR: Final = 3
"""The exit code if something is further behind than ``--max-seconds``."""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command(
        help=help_of(lag),
        epilog=examples(
            "brokerless lag billing",
            "brokerless lag timezone-etl --max-seconds 5",
            "brokerless lag billing --watch",
            "brokerless lag --prometheus 9464   (all groups)",
        ),
    )(lag)


def lag(
    ctx: typer.Context,
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="[GROUP|PIPELINE]", help="Its name; without it all groups.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")] = False,
    max_seconds: Annotated[
        float | None,
        typer.Option("--max-seconds", metavar="S", min=0, help="Exit with 3 if a partition is further behind."),
    ] = None,
    prometheus: Annotated[
        int | None,
        typer.Option(
            "--prometheus",
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve it at http://127.0.0.1:PORT/metrics until Ctrl-C; it is measured at each request.",
        ),
    ] = None,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how far a consumer group or a pipeline is behind: messages, and seconds since the first of them came.

    Seconds are those between the commit of the oldest message that was not read, by its writer's clock, and now. With
    --watch and --json, each look is one line.
    """
    options = common(ctx, profile, root, as_json)
    if prometheus is not None and (watch or max_seconds is not None):
        raise ConfigError("--prometheus serves until Ctrl-C; leave out --watch and --max-seconds.")
    settings = options.settings()
    store = connect(settings)
    look = _look(store, name)
    if prometheus is not None:
        _serve(prometheus, look)
        return
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(stop_on_signals()) if watch else None
        while True:
            found = look()
            if not options.as_json:
                _show(found)
            else:
                values = [one.to_dict() for one in found]
                print_json(values if name is None else values[0])
            if max_seconds is not None and any(one.seconds > max_seconds for one in found):
                raise typer.Exit(_TOO_FAR)
            if stop is None or stop.wait(_WATCH_S):
                return


def _look(store: Store, name: str | None) -> Callable[[], list[Lag]]:
    from brokerless.groups.admin import list_groups
    from brokerless.lag import lag_of

    def look() -> list[Lag]:
        names = [one.name for one in list_groups(store) if one.problem is None] if name is None else [name]
        return [lag_of(store, one) for one in names]

    return look


def _show(found: list[Lag]) -> None:
    for one in found:
        print_table(
            ("topic", "partition", "position", "end", "messages", "seconds"),
            [(part.topic, part.partition, part.position or "-", *lag_cells(part)) for part in one.partitions],
            title=f"{one.kind} {one.name}: {one.messages:,} messages, {one.seconds:,.1f} s behind",
        )
    if not found:
        say("There are no groups.")


def _serve(port: int, look: Callable[[], list[Lag]]) -> None:
    from brokerless.lag import samples
    from brokerless.metrics.prometheus import endpoint, exposition

    look()  # what is wrong now is said now
    try:
        server = endpoint(port, lambda: exposition(samples(look())))
    except OSError as error:
        raise ConfigError(f"Cannot listen on port {port} ({error.strerror or error}); choose another one.") from None
    with stop_on_signals() as stop:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        say(f"Serving http://127.0.0.1:{server.server_address[1]}/metrics; end with Ctrl-C.")
        try:
            stop.wait()
        finally:
            server.shutdown()
            server.server_close()
