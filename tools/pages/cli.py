"""Generate ``docs/cli.md`` from the command itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer.main

from brokerless.cli import application

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE: Final = "docs/cli.md"

# All verbs have these options, so they are described once, at the top.
_SHARED: Final = ("profile", "root", "as_json")

_INTRO: Final = """\
# Command line

`brokerless [OPTIONS] VERB ...`; `brokerless VERB --help` shows the same texts. This page is made from the command:
`python -m tools.pages cli`, and a test compares the two.

## Everywhere

These options may come before or after the verb.

{shared}

Settings come from options, then from environment variables, then from `.env` in the working directory, then from the
profile's defaults; the default profile is that of the server that `brokerless up` started. `AWS_ENDPOINT_URL`,
`AWS_REGION` and the AWS SDK's credential variables have their usual meaning; `MINIO_S3_ACCESS_KEY` and
`MINIO_S3_SECRET_ACCESS_KEY` are for the profile `minio`. `BROKERLESS_PROFILE`, `BROKERLESS_ROOT` and
`BROKERLESS_STATE_DIR` (default `.brokerless`) are specific to brokerless.

Data goes to standard output, progress and errors to standard error. With `--json` both are JSON; an error is
`{{"error": {{"type": ..., "message": ..., "exit_code": ...}}}}`.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | it failed after it began: messages without an acknowledgement, missing rows, a store that failed while they \
were read, a failed check |
| 2 | it could not begin, and nothing was written: invalid input or settings, or a store that does not answer, \
refuses, or lacks the bucket |
| 3 | `lag --max-seconds`: further behind |
| 130 | interrupted with Ctrl-C |
"""


def generate(repository: Path) -> dict[str, bytes]:
    """Return the page by its path in the repository."""
    return {PAGE: markdown().encode()}


def markdown() -> str:
    """Return the reference of every verb, argument and option."""
    root = typer.main.get_command(application())
    shared = [p for p in root.params if p.name in _SHARED]
    others = [p for p in root.params if p.name not in _SHARED and p.name != "help"]
    parts = [_INTRO.format(shared="\n".join([*_option_rows(shared), *_option_rows(others, header=False)]))]
    for path, command in _leaves(root, "brokerless"):
        parts.append(_section(path, command))
    return "\n".join(parts).rstrip() + "\n"


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name in command.list_commands(None):
        child = command.commands[name]
        if hasattr(child, "commands"):
            yield from _leaves(child, f"{path} {name}")
        else:
            yield f"{path} {name}", child


def _section(path: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name not in (*_SHARED, "help")]
    usage = " ".join([path, *(["[OPTIONS]"] if options else []), *(_metavar(p) for p in arguments)])
    lines = [f"## {path.removeprefix('brokerless ')}", "", f"`{usage}`", "", command.help or "", ""]
    if arguments:
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [f"| `{_metavar(p)}` | {_cell(p.help)} |" for p in arguments]
        lines.append("")
    if options:
        lines += [*_option_rows(options), ""]
    shown = [line.strip().replace("\\[", "[") for line in (command.epilog or "").split("\n\n")[1:]]
    if shown:
        lines += ["```sh", *shown, "```", ""]
    return "\n".join(lines)


def _option_rows(options: list[Any], *, header: bool = True) -> list[str]:
    rows = ["| option | meaning | default |", "|---|---|---|"] if header else []
    for option in options:
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        kind = "" if option.is_flag else f" `{_cell(_metavar(option))}`"
        default = "" if option.is_flag or option.default is None else f"`{option.default}`"
        rows.append(f"| {names}{kind} | {_cell(option.help)} | {'required' if option.required else default} |")
    return rows


def _metavar(parameter: Any) -> str:
    if parameter.metavar:
        return str(parameter.metavar)
    context = typer.main.get_command(application()).make_context("brokerless", [], resilient_parsing=True)
    return str(parameter.display_type(context)).strip("<>")


def _cell(text: str | None) -> str:
    return (text or "").replace("|", r"\|")
