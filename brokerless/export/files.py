"""Files of exported messages: CSV, JSON lines or Parquet, by the file's extension.

CSV has two columns more than the topic: ``time``, the reader's minibatch (milliseconds since the epoch, even, growing),
and ``diff``, always 1 because a log only grows; ``_produced_at`` is left out.

CSV and JSON lines are written in place and flushed after each minibatch, so that a reader can follow the file. Parquet
has its index at the end: it is written beside the file and moved there when it is complete. A symbolic link is refused:
in a folder that others can write to, it would choose which of the user's files is replaced. A file that is replaced
keeps its permissions; a new one has what the umask leaves.
"""

from __future__ import annotations

import io
import os
import stat
import tempfile
from functools import partial
from typing import IO, TYPE_CHECKING, Final, Protocol

from arro3.core import Table
from arro3.io import read_ipc_stream, write_ipc_stream, write_parquet

from brokerless.columns.records import arrow_schema, nulls
from brokerless.errors import ConfigError, SchemaError
from brokerless.export.text import csv_header, csv_lines, json_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from brokerless.schema import Schema

FORMATS: Final = (".csv", ".jsonl", ".parquet")

_ROW_GROUP_BYTES: Final = 32 * 2**20
_NEW_FILE: Final = 0o666
"""Permissions of a new file, before the umask; as of every program that writes what it is told to."""

# The Arrow IPC stream format ends a stream with a continuation mark and the length zero.
_IPC_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class _Writer(Protocol):
    def write(self, table: Table, time_ms: int) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class _Lines:
    """A text file, one line a message."""

    def __init__(self, path: Path) -> None:
        # newline="": a line break inside a message stays as it is.
        self._file: IO[str] = os.fdopen(_open(path, os.O_TRUNC), "w", encoding="utf-8", newline="")

    def put(self, lines: Sequence[str]) -> None:
        if lines:
            self._file.write("\n".join(lines) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _Csv(_Lines):
    def __init__(self, path: Path, schema: Schema, *, raw: bool) -> None:
        super().__init__(path)
        self._raw = raw
        self._names = list(schema.names)
        taken = {name.lower() for name in schema.names}
        extra = [name if name not in taken else f"_{name}" for name in ("time", "diff")]
        self.put([csv_header([*schema.names, *extra], raw=raw)])
        self.flush()

    def write(self, table: Table, time_ms: int) -> None:
        end = f',"{time_ms}","1"'
        self.put([line + end for line in csv_lines(table.select(self._names), raw=self._raw)])


class _JsonLines(_Lines):
    def __init__(self, path: Path, schema: Schema) -> None:
        super().__init__(path)

    def write(self, table: Table, time_ms: int) -> None:
        self.put(json_lines(table))


class _Parquet:
    """Parquet. arro3 writes it from one Arrow stream, so the messages wait in a temporary file until the last came."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._path = path
        if path.is_dir():
            raise IsADirectoryError(21, "Is a directory", str(path))
        try:
            self._schema = arrow_schema(schema)
        except SchemaError as error:
            raise SchemaError(f"{error} Export a table as it is to .jsonl or .csv.") from None
        self._partial = path.with_name(f".{path.name}.partial")
        # That of a run that was killed, or a link that somebody put there: the name is easy to guess.
        self._partial.unlink(missing_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else _NEW_FILE
        self._file = os.fdopen(_open(self._partial, os.O_EXCL, mode=mode), "wb")
        self._stream = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115  # closed by close()
        self._rows = self._bytes = self._head = 0
        self._put(self._schema.empty_table())
        self._head = self._stream.tell()

    def write(self, table: Table, time_ms: int) -> None:
        for name in self._schema.names:
            if name not in table.column_names:  # a table of others has no ``_produced_at``
                field = self._schema.field(name)
                table = table.append_column(field, nulls(field.type, table.num_rows))
        self._rows += table.num_rows
        self._bytes += int(table.nbytes)
        self._put(Table.from_batches(table.select(self._schema.names).to_batches(), schema=self._schema))

    def flush(self) -> None:
        """Nothing: no reader can use a Parquet file before its end is written."""

    def close(self) -> None:
        rows = max(self._rows * _ROW_GROUP_BYTES // max(self._bytes, 1), 1)
        try:
            with self._file as file, self._stream as stream:
                stream.write(_IPC_END)
                stream.seek(0)
                source = read_ipc_stream(stream)
                write_parquet(source, file, compression="snappy", skip_arrow_metadata=True, max_row_group_size=rows)
            self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)

    def _put(self, table: Table) -> None:
        """Append to the stream, without the schema that it already begins with, and without an end."""
        buffer = io.BytesIO()
        write_ipc_stream(table, buffer)
        self._stream.write(buffer.getbuffer()[self._head : -len(_IPC_END)])


def _open(path: Path, flags: int, *, mode: int = _NEW_FILE) -> int:
    """A file to write, with these permissions if it is new; never by way of a symbolic link."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | flags, mode)


def writer_for(path: Path, *, raw: bool) -> Callable[[Path, Schema], _Writer]:
    """Return what opens a writer of the format that the file's extension names.

    Raises:
        ConfigError: the extension names no format.
    """
    writers: dict[str, Callable[[Path, Schema], _Writer]] = {
        ".csv": partial(_Csv, raw=raw),
        ".jsonl": _JsonLines,
        ".parquet": _Parquet,
    }
    try:
        return writers[path.suffix.lower()]
    except KeyError:
        raise ConfigError(
            f"{str(path)!r} does not say which format to write; end it in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}."
        ) from None
