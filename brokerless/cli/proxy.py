"""``brokerless proxy``: faults on demand between programs that run elsewhere and an S3 server."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from brokerless.cli.app import (
    JsonOption,
    ProfileOption,
    RootOption,
    check_listening,
    common,
    examples,
    help_of,
)
from brokerless.cli.messages import stop_on_signals
from brokerless.cli.output import print_json, printable, say
from brokerless.errors import ConfigError

if TYPE_CHECKING:
    from brokerless.testing import Injected, Plan

_TURN_S = 0.5


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command(
        help=help_of(proxy),
        epilog=examples(
            "brokerless proxy --rules rules.json --seed 7",
            "brokerless proxy --upstream http://127.0.0.1:9000 --port 9900 --json",
            "curl -X PUT http://127.0.0.1:9900/_proxy/rules --data @rules.json",
        ),
    )(proxy)


def proxy(
    ctx: typer.Context,
    *,
    upstream: Annotated[
        str | None,
        typer.Option("--upstream", metavar="URL", help="The S3 server; the one of the settings otherwise."),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option("--rules", metavar="FILE", help="The faults, as JSON (docs/testing.md); none otherwise."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Instead of the seed in the rules.", show_default=False)
    ] = None,
    port: Annotated[int, typer.Option("--port", metavar="N", help="The port to listen on; 0 for a free one.")] = 0,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a proxy in front of an S3 server that injects faults, until Ctrl-C.

    It listens on the loopback interface only, prints its address first and then each fault. Point the program under
    test at it with AWS_ENDPOINT_URL_S3. Faults can be changed while it runs, at /_proxy/rules.
    """
    options = common(ctx, profile, root, as_json)
    from brokerless.testing import FaultProxy

    target = upstream or options.settings().endpoint
    if target is None:
        raise ConfigError(
            "The profile aws has no endpoint that a proxy could stand in front of; give --upstream http://host:port."
        )
    plans = _plans(rules, seed)

    def show(line: Injected) -> None:
        if options.as_json:
            print(line.to_json(), flush=True)
        else:
            applied = {True: "applied", False: "not applied", None: "on its way"}[line.applied]
            print(f"{line.fault!r}  {line.op} {printable(line.key)}  ({applied})", flush=True)

    with stop_on_signals() as stop, FaultProxy(target, *plans, port=port, on_injected=show) as running:
        check_listening(target)
        if options.as_json:
            print(json.dumps({"endpoint": running.endpoint, "upstream": running.upstream}), flush=True)
        else:
            print(running.endpoint, flush=True)
            say(f"In front of {running.upstream}. Stop it with Ctrl-C.")
        while not stop.wait(_TURN_S):
            pass
    counters = {"requests": dict(running.requests), "faults": dict(running.faults)}
    if options.as_json:
        print_json(counters)
    else:
        say(f"{sum(running.requests.values()):,} requests, {sum(running.faults.values()):,} faults: {counters}")


def _plans(rules: Path | None, seed: int | None) -> tuple[Plan, ...]:
    from brokerless.testing.faults import plans_from_json

    if rules is None:
        return ()
    try:
        return plans_from_json(rules.read_bytes(), seed=seed)
    except OSError as error:
        raise ConfigError(f"Cannot read the rules in {rules} ({error.strerror or error}).") from None
