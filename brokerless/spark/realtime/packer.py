"""Transformed rows of all lanes: put back in order, packed into objects and committed with their position.

Rows go to the lanes in chunks, numbered in the order of the log. A lane returns rows with marks: "chunk n ends here".
The packer goes from chunk to chunk, and a position moves only over commits of which all chunks have come back.

Nothing here knows Spark or sockets; the bridge's threads and the simulation call it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import PipelineError
from brokerless.metrics import Histogram
from brokerless.spark.arrow import ages, split_dead_letters
from brokerless.spark.outputs import UploadedFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerless.spark.outputs import OutputLog, PipelineOutputs
    from brokerless.spark.progress import Position, SourceOffset

PACK_ROWS: Final = 500_000
"""The most rows of one pack, soft by one commit."""

PACK_BYTES: Final = 64 * 2**20
"""The same in bytes. If a commit has more, of messages or of transformed rows, it is uploaded in parts before it is
complete. It must be less than ``IN_FLIGHT_BYTES``, or the feed would wait for ever."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of one commit in a lane; ``lane`` is None without rows, ``last`` marks the last chunk of a commit."""

    number: int
    lane: int | None
    table: str
    version: int
    last: bool
    rows: int
    size: int


@dataclass(slots=True)
class Pack:
    """Transformed rows in order, and the positions before and after them.

    Attributes:
        end: the same as ``start`` if no commit is complete yet.
        rows: the number of messages that were read for it.
        size: their bytes, which count as in flight until the pack is committed.
        table: the good rows, for their ages.
    """

    batches: list[pa.RecordBatch]
    start: Position
    end: Position
    rows: int
    size: int
    good: UploadedFiles = field(default_factory=UploadedFiles)
    dead_letters: UploadedFiles = field(default_factory=UploadedFiles)
    table: pa.Table | None = None
    begun_s: float = 0.0
    compute_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Committed:
    """The figures of one log entry of the output."""

    rows: int
    dead_letters: int
    read: int
    compute_s: float
    commit_s: float
    latency: Histogram


@dataclass(slots=True)
class _Lane:
    """Returned record batches of a lane that are in no pack yet, with the numbers of the chunks that end there."""

    items: deque[pa.RecordBatch | int] = field(default_factory=deque)
    size: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self.items.append(rows)
        self.size += rows.nbytes

    def pop(self) -> pa.RecordBatch | int:
        item = self.items.popleft()
        if not isinstance(item, int):
            self.size -= item.nbytes
        return item


class Packer:
    """The order, the position and the bytes in flight of one run.

    Args:
        outputs: the claimed outputs of the pipeline.
        offset: the offset at which the run begins.
        lanes: the number of lanes.
        ahead: as ``Inputs.ahead``.
        clock: time.
    """

    def __init__(
        self, outputs: PipelineOutputs, offset: SourceOffset, *, lanes: int, ahead: Position, clock: Clock = SYSTEM
    ) -> None:
        self.changed = threading.Condition()
        self.committed = offset  # the position in the output's log
        self.rows = self.size = 0  # of the chunks that are not committed
        self._outputs = outputs
        self._ahead = ahead
        self._clock = clock
        self._chunks: deque[Chunk] = deque()
        self._lanes = [_Lane() for _ in range(lanes)]
        self._taken = offset.at
        self._unfinished = UploadedFiles(), UploadedFiles()  # of a commit that is larger than a pack
        self._number = 0

    # From the inputs

    def expect(self, rows: int, size: int, *, lane: int | None, table: str, version: int, last: bool) -> int:
        """Register a chunk before it is sent to its lane, and return its number."""
        with self.changed:
            chunk = Chunk(self._number, lane, table, version, last, rows, size)
            self._number += 1
            self._chunks.append(chunk)
            self.rows += rows
            self.size += size
            if lane is None:
                self.changed.notify_all()
        return chunk.number

    # From the lanes

    def deliver(self, lane: int, rows: pa.RecordBatch | None, marks: Sequence[tuple[int, int]]) -> None:
        """Store returned rows of a lane; a mark is the number of a chunk, and how many of the rows precede its end."""
        with self.changed:
            here = self._lanes[lane]
            begin = 0
            for number, end in marks:
                if rows is not None and end > begin:
                    here.add(rows.slice(begin, end - begin))
                here.items.append(number)
                begin = end
            if rows is not None and begin < rows.num_rows:
                here.add(rows.slice(begin))
            self.changed.notify_all()

    def is_full(self, lane: int) -> bool:
        """Return whether a lane must wait because too many of its rows are in no pack yet."""
        return self._lanes[lane].size > PACK_BYTES

    # To the output

    def is_ready(self) -> bool:
        """Return whether rows of the next chunk are there, or it has none."""
        if not self._chunks:
            return False
        first = self._chunks[0].lane
        return first is None or bool(self._lanes[first].items)

    def next_pack(self) -> Pack | None:
        """Return all complete commits up to the limits; an incomplete one only if it is too large. None if nothing."""
        with self.changed:
            pack = self._next_pack()
            self.changed.notify_all()
        return pack

    def _next_pack(self) -> Pack | None:
        batches: list[pa.RecordBatch] = []
        end = dict(self._taken)
        rows = size = made = nbytes = 0
        # (batches, rows, size, chunks) up to the end of the last complete commit.
        whole: tuple[int, int, int, int] | None = None
        done = 0
        walks = [iter(lane.items) for lane in self._lanes]
        # guard: the order of chunks is put back
        for chunk in self._chunks:
            if whole and (made >= PACK_ROWS or nbytes >= PACK_BYTES):
                break
            complete = chunk.lane is None
            if chunk.lane is not None:
                for item in walks[chunk.lane]:
                    if isinstance(item, int):
                        if item != chunk.number:
                            raise PipelineError(
                                f"Chunk {chunk.number} was expected, and {item} came back. Nothing of it was written."
                            )
                        complete = True
                        break
                    batches.append(item)
                    made += item.num_rows
                    nbytes += item.nbytes
            # guard: a position moves only over what came back from all lanes
            if not complete:
                break
            done += 1
            rows, size = rows + chunk.rows, size + chunk.size
            # guard: the position of a real-time pipeline lies behind whole commits
            if chunk.last:
                end[chunk.table] = chunk.version
                whole = len(batches), rows, size, done
        if whole is None:
            # The size of the messages counts, too: if few rows are made of them, the feed would wait for ever.
            if max(nbytes, size) < PACK_BYTES:
                return None
            whole = len(batches), rows, size, done
            end = dict(self._taken)
        return self._cut(batches[: whole[0]], end, *whole[1:])

    def _cut(self, batches: list[pa.RecordBatch], end: Position, rows: int, size: int, chunks: int) -> Pack:
        """Return the pack, and remove its rows and chunks from the lanes."""
        left = len(batches)
        for _ in range(chunks):
            chunk = self._chunks.popleft()
            while chunk.lane is not None and not isinstance(self._lanes[chunk.lane].pop(), int):
                left -= 1
        if left and (lane := self._chunks[0].lane) is not None:  # of a chunk that is not complete
            for _ in range(left):
                self._lanes[lane].pop()
        pack = Pack(batches, self._taken, end, rows, size, begun_s=time.perf_counter())
        self._taken = end
        return pack

    def upload(self, pack: Pack) -> None:
        """Upload a pack's rows as objects; they become visible with ``commit``."""
        pack.good, pack.dead_letters = self._unfinished
        self._unfinished = UploadedFiles(), UploadedFiles()
        if pack.batches:
            good, rejected = split_dead_letters(pa.Table.from_batches(pack.batches))
            pack.batches = []
            # After a crash between the two commits the dead letters are there already.
            if rejected is not None and not any(pack.start[table] < version for table, version in self._ahead.items()):
                self._dead_letter_log().upload(rejected, pack.dead_letters)
            self._outputs.output.upload(good, pack.good)
            pack.table = good
        if pack.start == pack.end:
            self._unfinished = pack.good, pack.dead_letters
            pack.good, pack.dead_letters = UploadedFiles(), UploadedFiles()
        pack.compute_s = time.perf_counter() - pack.begun_s

    def commit(self, packs: Sequence[Pack]) -> Committed | None:
        """Commit uploaded packs with one entry: dead letters first, then rows and position. None if nothing moved.

        Raises:
            PipelineFenced, PipelineError: as ``PipelineOutputs.commit``.
        """
        begun = time.perf_counter()
        good, rejected = UploadedFiles(), UploadedFiles()
        for pack in packs:
            for target, objects in ((good, pack.good), (rejected, pack.dead_letters)):
                target.adds += objects.adds
                target.data.update(objects.data)
        start, end = packs[0].start, packs[-1].end
        read, size = sum(pack.rows for pack in packs), sum(pack.size for pack in packs)
        offset = replace(self.committed, at=end, rows=self.committed.rows + read)
        moved = start != end
        if moved:
            missing = self._outputs.missing(start, offset, batch_id=offset.rows)
            self._outputs.commit(good, rejected, offset, missing=missing)
        with self.changed:
            self.committed = offset
            self.rows -= read
            self.size -= size
            self.changed.notify_all()
        if not moved:
            return None
        now_us = self._clock.time_us()
        latency = Histogram()
        for pack in packs:
            if pack.table is not None:
                latency.add_counts(ages(pack.table, now_us).counts)
        spent = time.perf_counter() - begun
        return Committed(good.rows, rejected.rows, read, sum(pack.compute_s for pack in packs), spent, latency)

    def _dead_letter_log(self) -> OutputLog:
        if self._outputs.dead_letters is None:
            raise PipelineError("The transform marks dead letters, but the pipeline has no topic for them.")
        return self._outputs.dead_letters
