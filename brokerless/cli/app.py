"""The root of the command: options that every verb has, and how errors become messages and exit codes.

====  =====================================================================================================
exit  meaning
====  =====================================================================================================
0     success
1     it failed after it began: unacknowledged messages, missing rows, a store that failed meanwhile, a failed check
2     it could not begin: invalid input or settings, or a store that does not answer, refuses, or lacks the bucket
3     ``lag --max-seconds``: a group or pipeline is further behind
130   interrupted with Ctrl-C
====  =====================================================================================================

Exit code 2 means that nothing was written.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from brokerless.errors import BrokerlessError, StoreError, UsageError
from brokerless.settings import Profile, Settings
from brokerless.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from brokerless.store import ObstoreStore

_SHARED: Final = "Everywhere"

ProfileOption = Annotated[
    Profile | None,
    typer.Option("--profile", help="The profile; default: BROKERLESS_PROFILE.", rich_help_panel=_SHARED),
]
RootOption = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="URL",
        help="The URL of the topics, such as s3://bucket/prefix; default: BROKERLESS_ROOT.",
        rich_help_panel=_SHARED,
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print data as JSON on standard output, errors as JSON on standard error.",
        rich_help_panel=_SHARED,
    ),
]


@dataclass(frozen=True, slots=True)
class Common:
    """The options that every verb has, before or after the verb."""

    profile: Profile | None = None
    root: str | None = None
    as_json: bool = False

    def settings(self) -> Settings:
        """Load the settings from these options and the environment.

        Raises:
            ConfigError: as ``Settings.load``.
        """
        return Settings.load(profile=self.profile, root=self.root)


def common(ctx: typer.Context, profile: Profile | None, root: str | None, as_json: bool) -> Common:
    """Merge the options after a verb with those before it; the ones after it win."""
    before = ctx.obj if isinstance(ctx.obj, Common) else Common()
    return Common(profile or before.profile, root or before.root, as_json or before.as_json)


def connect(settings: Settings, *, create: bool = False) -> ObstoreStore:
    """Open the store after a check that a local server listens.

    Args:
        settings: the settings.
        create: create a missing bucket on local profiles (on aws, infrastructure code creates buckets).

    Raises:
        StoreUnavailable: nothing listens; found at once, where the store's client would retry for half a minute.
        AccessDenied: the server refused to create the bucket.
    """
    from brokerless.store import open_store

    if settings.profile != "aws" and settings.endpoint:
        from brokerless.local.processes import check_listening

        check_listening(settings.endpoint)
        if create:
            from brokerless.bucket import create_bucket

            create_bucket(settings)
    return open_store(settings)


def environment() -> dict[str, str]:
    """Return the environment together with the variables of ``.env``; the environment wins."""
    from pathlib import Path

    from brokerless.settings import _read_dotenv

    return {**_read_dotenv(Path(".env")), **os.environ}


def exit_code(error: BrokerlessError) -> int:
    """Return the exit code of an error; the table is in the module's docstring."""
    return 2 if isinstance(error, UsageError | StoreError) and not error.on_the_way else 1


def report(message: str, *, kind: str, code: int, as_json: bool) -> None:
    """Print one error on standard error, as text or as JSON."""
    if as_json:
        line = json.dumps({"error": {"type": kind, "message": message, "exit_code": code}}, ensure_ascii=False)
        print(line, file=sys.stderr)
    else:
        typer.echo(f"{typer.style('error:', fg='red', bold=True)} {message}", err=True)


class _Root(TyperGroup):
    """The root group, which turns every expected failure into one message and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the verbs in the order in which users need them; typer would put groups last."""
        first = ["up", "down", "status", "topics"]
        names = super().list_commands(ctx)
        return [*(name for name in first if name in names), *(name for name in names if name not in first)]

    def invoke(self, ctx: Any) -> Any:
        """Run the verb and flush its output."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has closed the pipe (``tail ... | head``). Standard output is redirected, or Python would print
            # another error when it closes it.
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
        """Run as in typer, with messages and exit codes for errors."""
        given = list(sys.argv[1:] if args is None else args)
        if not standalone_mode:
            return super().main(given, prog_name, complete_var, standalone_mode=False, **extra)
        # When parsing fails, no option has a value yet, so look for --json in the arguments.
        as_json = "--json" in (given[: given.index("--")] if "--" in given else given)
        if isinstance(sys.stdout, io.TextIOWrapper):  # the terminal's encoding may lack characters of messages
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
        typer.echo(message, err=True)  # 'brokerless' without arguments prints the help
        return error.exit_code
    if context is not None:
        message = f"{message.rstrip('.')}. See '{context.command_path} --help'."
    report(message, kind="UsageError", code=error.exit_code, as_json=as_json)
    return error.exit_code


def _discard_stdout() -> None:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return  # not a file, so there is nothing to redirect


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"brokerless {VERSION}")
        raise typer.Exit


def help_of(verb: Callable[..., object]) -> str:
    """Return a verb's docstring with each paragraph on one line, because the help would keep line breaks."""
    paragraphs = inspect.cleandoc(verb.__doc__ or "").split("\n\n")
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)


def examples(*lines: str) -> str:
    """Return the examples for the end of a verb's help; blank lines keep each on its own line."""
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
        "brokerless demo   (runs the complete example once)",
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
    """Serverless streaming on object storage: topics are Delta tables, an offset is a log position, no broker."""
    ctx.obj = Common(profile, root, as_json)
