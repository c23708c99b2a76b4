"""``brokerless up``, ``down`` and ``status``: the S3 server on this machine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from brokerless.cli.app import JsonOption, ProfileOption, RootOption, common, connect, environment, examples, help_of
from brokerless.cli.output import print_json, print_table, say
from brokerless.settings import PROFILE_ENV, STATE_DIR_ENV, Settings, shown_url

if TYPE_CHECKING:
    from pathlib import Path

    from brokerless.local.background import ServerState


def register(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    app.command(
        help=help_of(up),
        epilog=examples(
            "brokerless up",
            "brokerless up --port 9000",
            "brokerless up --minio      (with MINIO_S3_ACCESS_KEY and MINIO_S3_SECRET_ACCESS_KEY set)",
        ),
    )(up)
    app.command(
        help=help_of(down),
        epilog=examples("brokerless down"),
    )(down)
    app.command(
        help=help_of(status),
        epilog=examples("brokerless status", "brokerless status --json"),
    )(status)


def state_dir() -> Path:
    """Return the folder of the local server's state; unlike other settings, this needs no running server."""
    from pathlib import Path

    return Path(environment().get(STATE_DIR_ENV) or ".brokerless")


def up(
    ctx: typer.Context,
    *,
    port: Annotated[
        int | None, typer.Option("--port", metavar="N", help="The port to listen on; default: a free one.")
    ] = None,
    minio: Annotated[
        bool, typer.Option("--minio", help="Start MinIO instead of the embedded server, as with the profile minio.")
    ] = False,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start an S3 server on this machine, in the background, and create the bucket.

    It listens on the loopback interface only. Later commands in this directory use it automatically; its objects are
    under .brokerless/ and stay there after 'brokerless down'. If it is already running, nothing changes.
    """
    options = common(ctx, profile, root, as_json)
    from brokerless.errors import ConfigError
    from brokerless.local import background
    from brokerless.local.minio import ACCESS_KEY_ENV, SECRET_KEY_ENV
    from brokerless.local.server import Kind

    environ = environment()
    chosen = "minio" if minio else options.profile or environ.get(PROFILE_ENV) or "embedded"
    if chosen not in get_args(Kind):
        raise ConfigError(
            f"'brokerless up' starts a server on this machine, and the profile {chosen!r} has no such server. Set "
            f"--profile or {PROFILE_ENV} to {' or '.join(get_args(Kind))}."
        )
    kind: Kind = "minio" if chosen == "minio" else "embedded"
    if not options.as_json:
        say(f"Starting {'MinIO' if kind == 'minio' else 'the embedded S3 server'} ...")
    state = background.up(state_dir(), kind=kind, port=port, environ=environ)
    # Use the new server, even if the environment has another endpoint.
    named = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    environ |= {"AWS_ENDPOINT_URL_S3": state.endpoint}
    settings = Settings.load(profile=kind, root=options.root, environ=environ)
    connect(settings, create=True)
    if options.as_json:
        print_json({**_as_dict(state), "root": settings.root})
        return
    say(f"Running: {kind} at {state.endpoint} (pid {state.pid}).")
    say(f"Topics are in {settings.root}; the server keeps their objects in {state.data_dir}.")
    if named and named.rstrip("/") != state.endpoint:
        say(f"Later commands will not use it, because AWS_ENDPOINT_URL(_S3) is {shown_url(named)}; unset it.")
    if kind == "minio":
        say(f"Later commands need the same {ACCESS_KEY_ENV} and {SECRET_KEY_ENV}; they are not stored.")
    say('Next: brokerless topics create clicks --schema "user string, page string". Stop it: brokerless down.')


def down(
    ctx: typer.Context, *, profile: ProfileOption = None, root: RootOption = None, as_json: JsonOption = False
) -> None:
    """Stop the server that 'brokerless up' started. Its data stays."""
    options = common(ctx, profile, root, as_json)
    from brokerless.local import background

    stopped = background.down(state_dir())
    if options.as_json:
        print_json({"stopped": None if stopped is None else _as_dict(stopped)})
    else:
        say("No server was running." if stopped is None else f"Stopped {stopped.endpoint}; its data stays.")


def status(
    ctx: typer.Context, *, profile: ProfileOption = None, root: RootOption = None, as_json: JsonOption = False
) -> None:
    """Show the server that 'brokerless up' started; exit 1 if there is none."""
    options = common(ctx, profile, root, as_json)
    from brokerless.local import background

    state = background.status(state_dir())
    if options.as_json:
        print_json({"running": state is not None, **({} if state is None else _as_dict(state))})
    elif state is None:
        say("No server is running. Start one with 'brokerless up'.")
    else:
        print_table(("what", "value"), list(_as_dict(state).items()))
    if state is None:
        raise typer.Exit(1)


def _as_dict(state: ServerState) -> dict[str, Any]:
    values = dataclasses.asdict(state)
    del values["process_start"]  # internal: identifies the process
    return values
