"""JSON lines as Arrow tables for a topic; the whole input is checked before the first message is sent.

The first pass converts the lines to Arrow in chunks and stores them in a spool: in memory while it is small, then in
the temporary folder (``TMPDIR``). The second pass reads the spool. So invalid input writes nothing, memory is bounded,
no line is parsed twice, and a file that changes between the passes does no harm.
"""

from __future__ import annotations

import errno
import tempfile
from typing import IO, TYPE_CHECKING, Any, Final, Self

from arro3.core import Table
from arro3.io import read_ipc_stream, write_ipc_stream

from brokerless.columns.text import RowReader
from brokerless.errors import ConfigError, MessageError, UsageError
from brokerless.schema import PRODUCED_AT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from brokerless.schema import Schema

MAX_LINE_BYTES: Final = 8 * 2**20
"""The longest line: much more than a message should have, and little compared with the memory of a machine."""

CHUNK_ROWS: Final = 10_000
_CHUNK_BYTES: Final = 4 * 2**20
_IN_MEMORY_BYTES: Final = 16 * 2**20


class Spool:
    """The checked messages of an input; a context manager.

    Args:
        lines: the input, in bytes.
        source: the name of the input in errors.
        topic: the topic's name, for errors.
        schema: the columns of each line.
        on_progress: called after each chunk with the number of messages so far.

    Raises:
        MessageError: a line that is not JSON, not an object, too long, or holds a value of a wrong type.
        SchemaError: a line with an unknown column, or without one that the topic has (null must be written).
        ConfigError: the disk is full.
    """

    def __init__(
        self,
        lines: IO[bytes],
        *,
        source: str,
        topic: str,
        schema: Schema,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self.rows = 0
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115  # closed by __exit__
        self._chunks = 0
        try:
            for table in _tables(lines, source, topic, schema):
                write_ipc_stream(table, self._file)
                self._chunks += 1
                self.rows += table.num_rows
                if on_progress is not None:
                    on_progress(self.rows)
        except OSError as error:
            self._file.close()
            raise _spool_error(error) from error
        except BaseException:
            self._file.close()
            raise

    def tables(self) -> Iterator[Table]:
        """Yield the messages, in order, in tables of bounded size; each call begins at the first message."""
        self._file.seek(0)
        for _ in range(self._chunks):
            yield Table.from_arrow(read_ipc_stream(self._file))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _tables(lines: IO[bytes], source: str, topic: str, schema: Schema) -> Iterator[Table]:
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    size = number = 0
    reader = RowReader(topic, schema, optional=(PRODUCED_AT,))
    while line := lines.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise MessageError(
                f"{source}, line {number} is longer than {MAX_LINE_BYTES} bytes (8 MiB), the limit of one message. "
                "Store large content in a separate object and send its URL."
            )
        if not line.strip():
            continue
        rows.append(reader.parse(line, place=f"{source}, line {number}"))
        numbers.append(number)
        size += len(line)
        if len(rows) >= CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield _table(reader, rows, numbers, source)
            rows, numbers, size = [], [], 0
    if rows:
        yield _table(reader, rows, numbers, source)


def _table(reader: RowReader, rows: list[dict[str, Any]], numbers: list[int], source: str) -> Table:
    table = reader.table(rows, lambda row: f"{source}, line {numbers[row]}")
    if any(PRODUCED_AT in row for row in rows):
        return table
    # The producer sets the time when it receives the messages, not when they are checked.
    return table.select(list(reader.schema.names))


def _spool_error(error: OSError) -> UsageError | OSError:
    if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return error
    return ConfigError(
        f"The temporary folder {tempfile.gettempdir()} is full ({error.strerror}); the input is stored there until it "
        "is checked. Free some space, set TMPDIR to a folder on another disk, or send the input in parts. "
        "Nothing was written to the topic."
    )
