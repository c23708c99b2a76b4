"""A topic as a file: CSV, JSON lines or Parquet, by the file's extension.

CSV is made for spreadsheets and for the example's readers. Its header and all its fields are quoted; doubles are plain
decimals, never in scientific notation; a null is an empty field without quotes. Two columns are added: ``time``, the
reader's minibatch (milliseconds since the epoch, even, growing), and ``diff``, always 1 because a log only grows.
``_produced_at`` is left out. A text (or a column's name) that begins with ``=``, ``+``, ``-``, ``@``, the wide forms of
these, a tab or a line break would be run as a formula by a spreadsheet: it gets a ``'`` in front, the spreadsheets' own
mark for "this is text". Numbers are not touched, and neither are the other two formats, which hold every message as it
was sent. ``raw`` leaves the ``'`` out, for programs that read CSV.

CSV and JSON lines are written in place and flushed after each minibatch, so that a reader can follow the file. Parquet
has its index at the end: it is written beside its place and moved there when it is complete. A symbolic link at the
file's place is refused: in a folder that others can write to, it would choose which of the user's files is replaced. A
file that is replaced keeps its permissions; a new one has what the umask leaves.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import stat
import struct
import tempfile
import threading
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from arro3.core import DataType, Table
from arro3.io import read_ipc_stream, write_ipc_stream, write_parquet

from brokerless.clock import SYSTEM, Clock
from brokerless.columns.records import arrow_schema, json_value, nulls, values_of
from brokerless.consumer import Batch, Consumer
from brokerless.errors import BrokerlessError, ConfigError, SchemaError, TopicChanged, on_the_way
from brokerless.offsets import Offset, SavedPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from arro3.core import Schema as ArrowSchema

    from brokerless.offsets import Start
    from brokerless.schema import Schema
    from brokerless.store import Store
    from brokerless.topics import Topic

FORMATS: Final = (".csv", ".jsonl", ".parquet")

_POLL_S: Final = 0.25
"""A stop request is noticed after this at the latest."""

_ROW_GROUP_BYTES: Final = 32 * 2**20
_NEW_FILE: Final = 0o666
"""Permissions of a new file, before the umask; as of every program that writes what it is told to."""

# With the full-width forms, which spreadsheets in East Asian settings take for the plain ones.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
# The Arrow IPC stream format ends a stream with a continuation mark and the length zero.
_IPC_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export did.

    Attributes:
        path: the file.
        rows: how many messages it holds.
        position: where to go on; a start for the next run.
    """

    path: Path
    rows: int
    position: SavedPosition

    @property
    def next(self) -> Mapping[int, Offset]:
        """The offset to go on from, by partition."""
        return self.position.next


def export_topic(
    topic: str | Topic,
    path: Path,
    *,
    store: Store | None = None,
    start: Start | SavedPosition = "beginning",
    once: bool = False,
    expect: int | None = None,
    timeout_s: float | None = None,
    stop: threading.Event | None = None,
    on_batches: Callable[[Sequence[Batch]], None] | None = None,
    raw: bool = False,
    accept_rewrites: bool = False,
    clock: Clock = SYSTEM,
) -> Exported:
    """Writes a topic's messages to a file, replacing it; the file is complete however this ends.

    Messages of one partition are in the log's order. Nothing is touched before the topic was found.

    Args:
        topic: an existing topic, by its name or as it was opened.
        path: ends in ``.csv``, ``.jsonl`` or ``.parquet``.
        store: where; the topic's own if it was opened, else that of the environment.
        start: where to begin.
        once: stop at the present head; otherwise it follows the topic.
        expect: stop when so many messages have come, and insist on the number; with 0, stop at the present head.
        timeout_s: stop after this time; with ``expect`` that is an error.
        stop: set it, from a signal handler or another thread, to stop.
        on_batches: called with the messages of each minibatch on their arrival.
        raw: leave texts in CSV as they are, also those that a spreadsheet would run.
        accept_rewrites: as ``Consumer``.
        clock: time, randomness and sleeping.

    Raises:
        TopicNotFound, TopicChanged, ConfigError: at once; nothing was written.
        BrokerlessError: reading failed, or fewer or more messages came than were expected, also because it was stopped.
            The file holds those that came.
    """
    writer_of = _writer_for(path, raw=raw)
    stop = stop or threading.Event()
    with consumer_at(topic, start, store=store, accept_rewrites=accept_rewrites, clock=clock) as consumer:
        (about,) = consumer.topics
        # No message can be waited for: it is known at the head that there is none.
        heads = dict(enumerate(about.heads)) if once or expect == 0 else None
        began = consumer.position()
        try:
            if path.is_symlink():
                raise ConfigError(
                    f"{path} is a symbolic link to {path.readlink()}; name that file, or remove the link."
                )
            writer = writer_of(path, about.schema)
        except OSError as error:
            raise ConfigError(f"Cannot write {path} ({error.strerror or error}); choose another file.") from None
        rows = time_ms = 0
        try:
            for batches in minibatches(consumer, heads=heads, timeout_s=timeout_s, stop=stop, clock=clock):
                if on_batches is not None:
                    on_batches(batches)
                time_ms = max(clock.time_us() // 2000 * 2, time_ms + 2)
                for batch in batches:
                    writer.write(batch.data, time_ms)
                    rows += batch.data.num_rows
                writer.flush()
                if expect is not None and rows >= expect:
                    break
        finally:
            writer.close()
        after = {n: offset for (_, n), offset in consumer.position().items()}
        if heads is not None:
            # The consumer may be past commits behind the head, which were left to the next run.
            after = {n: min(after[n], max(offset, Offset(heads[n] + 1))) for (_, n), offset in began.items()}
        table_ids = {n: table_id for (_, n), table_id in consumer.table_ids().items()}
        exported = Exported(path, rows, SavedPosition(about.name, after, table_ids))
    if expect is not None and rows != expect:
        waited = ""
        if stop.is_set():
            waited = " until it was stopped"
        elif rows < expect and timeout_s is not None and not once:
            waited = f" within {timeout_s:g} s"
        raise BrokerlessError(
            f"{expect} messages of topic {about.name!r} were expected, {rows} came{waited}; {path} holds those."
        )
    return exported


def consumer_at(
    topic: str | Topic,
    start: Start | SavedPosition,
    *,
    store: Store | None = None,
    partitions: Sequence[int] | None = None,
    accept_rewrites: bool = False,
    clock: Clock = SYSTEM,
) -> Consumer:
    """A consumer at this start, which may be where an earlier run ended.

    Raises:
        TopicChanged: the position is in tables that are not there any more.
        ConfigError, OffsetOutOfRange, TopicNotFound: as ``Consumer``, or a position in another topic.
    """
    if not isinstance(start, SavedPosition):
        return Consumer(
            topic, start=start, store=store, partitions=partitions, accept_rewrites=accept_rewrites, clock=clock
        )
    name = topic if isinstance(topic, str) else topic.name
    if start.topic != name:
        raise ConfigError(
            f"The position is one of topic {start.topic!r}, not of {name!r}; give the one of an export of {name!r}."
        )
    consumer = Consumer(topic, store=store, partitions=partitions, accept_rewrites=accept_rewrites, clock=clock)
    try:
        for (_, number), table_id in consumer.table_ids().items():
            if start.table_ids.get(number) != table_id or number not in start.next:
                raise TopicChanged(
                    f"Topic {name!r} was deleted and created again, or restored, since the position was saved: "
                    f"partition {number} was table {start.table_ids.get(number)}, and is {table_id}. The position "
                    "means nothing there; start with --from beginning, or where you choose."
                )
        for (_, number), _ in consumer.table_ids().items():
            consumer.seek(start.next[number], partition=number)
    except BaseException:
        consumer.close()
        raise
    return consumer


def minibatches(
    consumer: Consumer,
    *,
    heads: Mapping[int, int] | None = None,
    timeout_s: float | None = None,
    stop: threading.Event | None = None,
    clock: Clock = SYSTEM,
) -> Iterator[Sequence[Batch]]:
    """What a consumer's polls bring, until one of the bounds is met; never empty.

    A partition that cannot go on does not hold back what the others have now: its error comes after that.

    Args:
        consumer: of one topic.
        heads: by partition, the last commit to deliver; without it there is no end.
        timeout_s: an end by time.
        stop: an end from outside.
        clock: time.

    Raises:
        BrokerlessError: as ``Consumer.poll``, marked as ``on_the_way``.
    """
    deadline = math.inf if timeout_s is None else clock.monotonic() + timeout_s
    held: BrokerlessError | None = None
    came = False  # whether the other partitions brought messages since the error
    while not (stop is not None and stop.is_set()):
        if heads is not None and _is_past(consumer, heads):
            return
        left = deadline - clock.monotonic()
        if left <= 0:
            break
        try:
            with on_the_way():
                batches = consumer.poll(min(_POLL_S, left))
                if heads is not None and not batches and held is None:
                    consumer.check_ends()  # the heads are there, so what does not come before them is missing
        except BrokerlessError as error:
            # With heads, until the others are there. Without, once more: they may never fall silent.
            if len(consumer.position()) == 1 or (held is not None and not (came and heads is not None)):
                raise
            held, came = error, False
            continue
        if heads is not None:
            # What was committed since belongs to the next run.
            batches = [batch for batch in batches if batch.version <= heads[batch.partition]]
        if batches:
            came = True
            yield batches
        elif held is not None:
            break
    if held is not None:
        raise held


def _is_past(consumer: Consumer, heads: Mapping[int, int]) -> bool:
    return all(offset.version > heads[number] for (_, number), offset in consumer.position().items())


def json_lines(table: Table) -> list[str]:
    """Each row as JSON text: instants as ISO 8601, bytes as base64, decimals, NaN and infinities as text."""
    names = table.column_names
    columns = [values_of(table.column(name)) for name in names]
    encode = json.JSONEncoder(default=json_value, ensure_ascii=False, allow_nan=False).encode
    lines: list[str] = []
    for row in zip(*columns, strict=True):
        try:
            lines.append(encode(dict(zip(names, row, strict=True))))
        except ValueError:  # JSON has no NaN; bare NaN would make the line unreadable for most others
            safe = (repr(v) if isinstance(v, float) and not math.isfinite(v) else v for v in row)
            lines.append(encode(dict(zip(names, safe, strict=True))))
    return lines


def csv_header(names: Sequence[str], *, raw: bool = False) -> str:
    """The header line, safe unless ``raw`` (see the module), without its end."""
    return ",".join(_quote(name if raw else _defuse(name)) for name in names)


def csv_lines(table: Table, *, raw: bool = False) -> list[str]:
    """Each row as a line of CSV, safe unless ``raw`` (see the module), without its end."""
    columns = [_csv_column(table, name, raw=raw) for name in table.column_names]
    return [",".join(row) for row in zip(*columns, strict=True)]


def plain_decimal(value: float, *, single: bool = False) -> str:
    """The shortest plain decimal that reads back as the same number: ``1724403133066.217``, never ``1.7E12``.

    Args:
        value: NaN and infinities become ``NaN``, ``Infinity`` and ``-Infinity``.
        single: the number is of single precision, whose shortest text is shorter.
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    text = repr(value)
    if single:
        # Nine digits tell any two singles apart; fewer often do.
        text = next(
            t
            for t in (f"{value:.{digits}g}" for digits in range(6, 10))
            if struct.pack("f", float(t)) == struct.pack("f", value)
        )
        text = text if "e" in text or "." in text else text + ".0"
    if "e" not in text:
        return text
    plain = f"{Decimal(text):f}"
    return plain if "." in plain else plain + ".0"


def as_texts(table: Table, name: str, *, null: str = "") -> list[str]:
    """A column's values as text for people: plain decimals, ISO 8601, base64; ``null`` for none."""
    text = _formatter(table.column(name).type)
    return [null if value is None else text(value) for value in values_of(table.column(name))]


def _csv_column(table: Table, name: str, *, raw: bool) -> list[str]:
    column = table.column(name)
    text = _formatter(column.type)
    # Numbers may begin with a minus; everything else is somebody's text.
    guard = _plain if raw or DataType.is_numeric(column.type) or DataType.is_boolean(column.type) else _defuse
    return ["" if value is None else _quote(guard(text(value))) for value in values_of(column)]


def _formatter(kind: DataType) -> Callable[[Any], str]:
    if DataType.is_floating(kind):
        single = kind.equals(DataType.float32())
        return lambda value: plain_decimal(value, single=single)
    if DataType.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if DataType.is_decimal(kind):
        return lambda value: f"{value:f}"
    return _as_text


def _plain(text: str) -> str:
    return text


def _defuse(text: str) -> str:
    return "'" + text if text.startswith(_FORMULA) else text


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | datetime | date):
        return json_value(value)
    return json.dumps(value, default=json_value, ensure_ascii=False)


def _quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


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
    """Parquet in row groups of bounded size: straight into the file with pyarrow, by way of a spool without."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._path = path
        if path.is_dir():
            raise IsADirectoryError(21, "Is a directory", str(path))
        self._partial = path.with_name(f".{path.name}.partial")
        try:
            self._schema = arrow_schema(schema)
        except SchemaError as error:
            raise SchemaError(f"{error} Export a table as it is to .jsonl or .csv.") from None
        self._waiting: list[Table] = []
        self._bytes = 0
        # That of a run that was killed, or a link that somebody put there: the name is easy to guess.
        self._partial.unlink(missing_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else _NEW_FILE
        file = os.fdopen(_open(self._partial, os.O_EXCL, mode=mode), "wb")
        self._sink = (_PyarrowSink if importlib.util.find_spec("pyarrow") else _SpoolSink)(
            file, self._schema, path.parent
        )

    def write(self, table: Table, time_ms: int) -> None:
        for name in self._schema.names:
            if name not in table.column_names:  # a table of others has no ``_produced_at``
                field = self._schema.field(name)
                table = table.append_column(field, nulls(field.type, table.num_rows))
        self._waiting.append(table.select(self._schema.names))
        self._bytes += int(table.nbytes)
        if self._bytes >= _ROW_GROUP_BYTES:
            self._drain()

    def flush(self) -> None:
        """Nothing: no reader can use a Parquet file before its end is written."""

    def close(self) -> None:
        try:
            self._drain()
            self._sink.close()
            self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)

    def _drain(self) -> None:
        if self._waiting:
            batches = [batch for table in self._waiting for batch in table.to_batches()]
            self._sink.put(Table.from_batches(batches, schema=self._schema).combine_chunks())
            self._waiting, self._bytes = [], 0


class _PyarrowSink:
    def __init__(self, file: IO[bytes], schema: ArrowSchema, scratch: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        self._pyarrow = pyarrow
        self._file = file
        self._writer = pyarrow.parquet.ParquetWriter(file, pyarrow.schema(schema), compression="snappy")

    def put(self, table: Table) -> None:
        self._writer.write_table(self._pyarrow.table(table))

    def close(self) -> None:
        with self._file:
            self._writer.close()


class _SpoolSink:
    """arro3 writes Parquet from one Arrow stream only, so that stream is made first, in a temporary file."""

    def __init__(self, file: IO[bytes], schema: ArrowSchema, scratch: Path) -> None:
        self._file = file
        self._spool = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115  # closed by close()
        with tempfile.SpooledTemporaryFile() as empty:
            write_ipc_stream(Table.from_batches([], schema=schema), empty)
            self._head = empty.tell() - len(_IPC_END)
            empty.seek(0)
            self._spool.write(empty.read(self._head))

    def put(self, table: Table) -> None:
        with tempfile.SpooledTemporaryFile() as one:
            write_ipc_stream(table, one)
            length = one.tell() - len(_IPC_END) - self._head
            one.seek(self._head)
            self._spool.write(one.read(length))

    def close(self) -> None:
        with self._file as file, self._spool as spool:
            spool.write(_IPC_END)
            spool.seek(0)
            write_parquet(read_ipc_stream(spool), file, compression="snappy", skip_arrow_metadata=True)


def _open(path: Path, flags: int, *, mode: int = _NEW_FILE) -> int:
    """A file to write, with these permissions if it is new; never by way of a symbolic link."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | flags, mode)


def _writer_for(path: Path, *, raw: bool) -> Callable[[Path, Schema], _Writer]:
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
