"""Output of the command: data on standard output, progress on standard error, no control characters of messages."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from rich.progress import Progress as RichProgress

_SPARSE_S: Final = 5.0
"""Seconds between two lines of progress when standard error is not a terminal: rare enough for a log file."""


def print_json(value: Any) -> None:
    """Print one JSON document on one line of standard output."""
    print(json.dumps(value, ensure_ascii=False))


def say(text: str) -> None:
    """Print a line of information on standard error."""
    print(text, file=sys.stderr, flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table on standard output; if that is not a terminal, lines are never cut."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if title:
        print(printable(title))  # rich would wrap the table's own title to the table's width
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    # In a file or a pipe, wrapping at 80 columns would be arbitrary.
    Console(width=None if sys.stdout.isatty() else 240, highlight=False).print(table)


def printable(text: str) -> str:
    """Replace control characters, which could move the cursor, change the title or hide other lines."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Progress:
    """A progress count on standard error: live on a terminal, otherwise a line every few seconds.

    Args:
        what: the activity.
        unit: the unit of the count.
        total: the final count, if it is known.
    """

    def __init__(self, what: str, *, unit: str = "messages", total: int | None = None) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._count = 0
        self._live: RichProgress | None = None
        self._task: Any = None
        self._next_line = time.monotonic() + _SPARSE_S

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._live = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                *([BarColumn()] if self._total else []),
                TextColumn("{task.completed:,.0f} {task.fields[unit]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._live.add_task(self._what, total=self._total, unit=self._unit)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, count: int) -> None:
        """Show the count, which is the total so far."""
        self._count = count
        if self._live is not None:
            self._live.update(self._task, completed=count)
        elif (now := time.monotonic()) >= self._next_line:
            self._next_line = now + _SPARSE_S
            say(f"{self._what}: {count:,}{f' of {self._total:,}' if self._total else ''} {self._unit}")
