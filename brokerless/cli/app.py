"""The root of the command: options that every verb takes, and how errors become messages and exit codes.

====  =====================================================================================================
exit  meaning
====  =====================================================================================================
0     done
1     it went wrong on the way: messages without an acknowledgement, rows that did not come, a store that failed
      while they were read, a failed check
2     it could not begin: bad input or settings, or a store that does not answer, refuses, or lacks the bucket
130   interrupted with Ctrl-C
====  =====================================================================================================

Exit code 2 means that nothing was written.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer
from typer.core import TyperGroup

from brokerless.errors import BrokerlessError, ConfigError, StoreError, StoreUnavailable, UsageError
from brokerless.settings import Profile, Settings
from brokerless.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from brokerless.store import ObstoreStore

_CONNECT_TIMEOUT_S: Final = 3.0

_SHARED: Final = "Everywhere"

ProfileOption = Annotated[
    Profile | None,
    typer.Option("--profile", help="Where it runs; BROKERLESS_PROFILE otherwise.", rich_help_panel=_SHARED),
]
RootOption = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="URL",
        help="Where topics are, such as s3://bucket/prefix; BROKERLESS_ROOT otherwise.",
        rich_help_panel=_SHARED,
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", help="Data as JSON on standard output, errors as JSON on standard error.", rich_help_panel=_SHARED
    ),
]


@dataclass(frozen=True, slots=True)
class Common:
    """The options that every verb takes, wherever on the line they stood."""

    profile: Profile | None = None
    root: str | None = None
    as_json: bool = False

    def settings(self) -> Settings:
        """Where and how, from these options and the environment.

        Raises:
            ConfigError: as ``Settings.load``.
        """
        return Settings.load(profile=self.profile, root=self.root)


def common(ctx: typer.Context, profile: Profile | None, root: str | None, as_json: bool) -> Common:
    """The options of a verb over those that stood before it."""
    before = ctx.obj if isinstance(ctx.obj, Common) else Common()
    return Common(profile or before.profile, root or before.root, as_json or before.as_json)


def connect(settings: Settings, *, create: bool = False) -> ObstoreStore:
    """The store, after a look whether a local server is there at all.

    Args:
        settings: where.
        create: create a missing bucket, if that is this profile's way (on aws, buckets are infrastructure's).

    Raises:
        StoreUnavailable: nothing listens; found at once, where the store's client would try for half a minute.
        AccessDenied: the server refused to create the bucket.
    """
    from brokerless.store import open_store

    if settings.profile != "aws" and settings.endpoint:
        check_listening(settings.endpoint)
        if create:
            from brokerless.store import create_bucket

            create_bucket(settings)
    return open_store(settings)


def check_listening(endpoint: str) -> None:
    """Returns if something accepts connections at the endpoint.

    Raises:
        StoreUnavailable: nothing does.
    """
    parts = urlsplit(endpoint)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), _CONNECT_TIMEOUT_S).close()
    except ValueError as error:
        raise ConfigError(f"The endpoint {endpoint!r} is not a URL ({error}); write http://host:port.") from None
    except OSError as error:
        raise StoreUnavailable(
            f"No S3 server answers at {endpoint} ({error.strerror or error}). Start one with 'brokerless up' (MinIO: "
            "'brokerless up --minio'), or set AWS_ENDPOINT_URL to the one to use."
        ) from None


def environment() -> dict[str, str]:
    """The environment, over what ``.env`` in the working directory adds to it."""
    from pathlib import Path

    from brokerless.settings import _read_dotenv

    return {**_read_dotenv(Path(".env")), **os.environ}


def exit_code(error: BrokerlessError) -> int:
    """The exit code of an error; the table is in the module's docstring."""
    return 2 if isinstance(error, UsageError | StoreError) and not error.on_the_way else 1


def report(message: str, *, kind: str, code: int, as_json: bool) -> None:
    """One error on standard error, for people or for programs."""
    if as_json:
        line = json.dumps({"error": {"type": kind, "message": message, "exit_code": code}}, ensure_ascii=False)
        print(line, file=sys.stderr)
    else:
        typer.echo(f"{typer.style('error:', fg='red', bold=True)} {message}", err=True)


class _Root(TyperGroup):
    """The root group: turns every expected failure into one message and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs in the order in which they are needed; typer would put groups last."""
        first = ["up", "down", "status", "topics"]
        names = super().list_commands(ctx)
        return [*(name for name in first if name in names), *(name for name in names if name not in first)]

    def invoke(self, ctx: Any) -> Any:
        """Runs the verb, and sees to it that all its output is out."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has seen enough (``tail ... | head``). Standard output is pointed elsewhere, or Python would
            # complain once more when it closes it.
            _discard_stdout()
            raise typer.Exit(0) from None
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """As in typer, but for the errors."""
        given = list(sys.argv[1:] if args is None else args)
        if not standalone_mode:
            return super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
        # A failure to parse comes before any option has a value, so the line itself is asked.
        as_json = "--json" in (given[: given.index("--")] if "--" in given else given)
        if isinstance(sys.stdout, io.TextIOWrapper):  # messages may hold what a terminal of another encoding has not
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            code = super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
            sys.exit(code if isinstance(code, int) else 0)
        except BrokerlessError as error:
            code = exit_code(error)
            report(str(error), kind=type(error).__name__, code=code, as_json=as_json)
        except OSError as error:  # a full disk, a limit of open files
            code = 1
            name = f": {error.filename}" if error.filename else ""
            report(f"{error.strerror or error}{name}", kind=type(error).__name__, code=code, as_json=as_json)
        except typer.TyperException as error:
            code = _report_usage(error, as_json=as_json)
        except typer.Abort:
            code = 130
        sys.exit(code)


def _report_usage(error: typer.TyperException, *, as_json: bool) -> int:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(message, err=True)  # a bare 'brokerless' gets the help
        return error.exit_code
    if context is not None:
        message = f"{message.rstrip('.')}. See '{context.command_path} --help'."
    report(message, kind="UsageError", code=error.exit_code, as_json=as_json)
    return error.exit_code


def _discard_stdout() -> None:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return  # no file behind it, so nothing to close


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"brokerless {VERSION}")
        raise typer.Exit


def help_of(verb: Callable[..., object]) -> str:
    """A verb's docstring, its paragraphs without the line breaks of the source, which the help would keep."""
    paragraphs = inspect.cleandoc(verb.__doc__ or "").split("\n\n")
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)


def examples(*lines: str) -> str:
    """The examples at the end of a verb's help; the blank lines keep each on its own line there."""
    return "\n\n".join(["Examples:", *(f"  {line}".replace("[", r"\[") for line in lines)])


app = typer.Typer(
    name="brokerless",
    cls=_Root,
    no_args_is_help=True,
    rich_markup_mode="rich",
    # Locals in tracebacks would print credentials.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog=examples(
        "brokerless demo   (the whole thing, once)",
        "brokerless up   (an S3 server on this machine, in the background)",
        'brokerless topics create clicks --schema "user string, page string"',
        'echo \'{"user": "ada", "page": "/"}\' | brokerless produce clicks',
        "brokerless tail clicks --from beginning --once",
    ),
)


@app.callback()
def root(
    ctx: typer.Context,
    *,
    profile: ProfileOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Serverless streaming on object storage: topics are Delta tables, an offset is a place in a log, no broker."""
    ctx.obj = Common(profile, root, as_json)
