"""Generate ``docs/api.md`` from the docstrings of the public names."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import TYPE_CHECKING, Any, Final

import brokerless

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE: Final = "docs/api.md"

_INTRO: Final = """\
# API

The public names of the package `brokerless`. This page is made from the docstrings: `python -m tools.pages api`, and a
test compares them. [Concepts](concepts.md) introduces the names with examples; errors are in the tree at the top of
`brokerless/errors.py`.
"""
_SECTION: Final = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Args and Raises):")
_ITEM: Final = re.compile(r"( {4})(\*{0,2}[A-Za-z_][\w, ]*): (.*)")


def page() -> str:
    """Return the whole page."""
    parts = [_INTRO]
    for name in brokerless.__all__:
        value = getattr(brokerless, name)
        is_error = inspect.isclass(value) and issubclass(value, Exception)  # those are in the tree
        if not name.startswith("__") and not is_error:
            parts.extend(_entry(name, value))
    return "\n".join(parts).rstrip() + "\n"


def generate(repository: Path) -> dict[str, bytes]:
    """Return the page by its path in the repository."""
    return {PAGE: page().encode()}


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"## {name}\n"
    if not inspect.isclass(value):
        yield f"```\n{name}{_signature(value)}\n```\n"
        yield _markdown(value)
        return
    if not issubclass(value, Exception):
        yield f"```\nclass {name}{_signature(value)}\n```\n"
    yield _markdown(value)
    fields = {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    for attribute, member in _members(value):
        if attribute in fields:
            continue
        if isinstance(member, property):
            yield f"### {name}.{attribute}\n"
            yield _markdown(member)
        else:
            yield f"### {name}.{attribute}()\n"
            yield f"```\n{attribute}{_signature(getattr(value, attribute))}\n```\n"
            yield _markdown(member)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class that have a docstring, in the order of the source."""
    for attribute, member in vars(kind).items():
        if attribute.startswith("_"):
            continue
        if isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(member):
            yield attribute, member


def _signature(value: Any) -> str:
    signature = inspect.signature(value)
    parts: list[str] = []
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
            keyword_only = True
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else stars
        text = f"{stars}{parameter.name}{_annotation(parameter.annotation, ': ')}"
        if parameter.default is not parameter.empty:
            text += f" = {_default(parameter.default)}"
        parts.append(text)
    result = "" if inspect.isclass(value) else _annotation(signature.return_annotation, " -> ")
    line = f"({', '.join(parts)}){result}"
    return line if len(line) <= 100 else "(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _annotation(annotation: object, mark: str) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return f"{mark}{annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)}"


def _default(value: object) -> str:
    # The text of other values has addresses, or changes between versions of Python.
    return repr(value) if value is None or isinstance(value, str | int | float | bool | tuple) else "..."


def _markdown(value: Any) -> str:
    """Return a docstring as Markdown: sections in bold, their items as lists."""
    lines: list[str] = []
    for line in (inspect.getdoc(value) or "").splitlines():
        if match := _SECTION.fullmatch(line):
            lines.append(f"**{match[1]}**\n")
        elif match := _ITEM.fullmatch(line):
            names = ", ".join(f"`{name.strip()}`" for name in match[2].split(","))
            lines.append(f"- {names}: {match[3]}")
        else:
            lines.append(line.removeprefix("    ") if line.startswith("     ") else line)
    return "\n".join(lines).replace("``", "`") + "\n"
