"""The order, the position and the bytes on their way of a real-time pipeline, whatever its lanes do."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerless.columns import records
from brokerless.errors import PipelineError
from brokerless.log.log import DeltaLog
from brokerless.schema import Schema, dead_letters
from brokerless.spark.outputs import OutputLog, PipelineOutputs, UploadedFiles
from brokerless.spark.progress import Begin, SourceOffset, app_id
from brokerless.spark.realtime import packer as packer_module
from brokerless.spark.realtime.packer import Committed, Pack, Packer
from brokerless.topics import create_topic
from tests.support.fakes import FakeClock, FakeStore

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from brokerless.spark.progress import Position

SCHEMA = Schema.parse("n long")
IDS = {"a": "id-a", "b": "id-b"}
BEGIN = {"a": 0, "b": 0}
ROW_BYTES = 100

Commit = tuple[str, list[list[int]]]
"""An input table, and the messages of each chunk of one commit in it; a chunk without is an object without rows."""


def made_of(message: int) -> list[int]:
    """What the transform makes of a message: none, one or two rows."""
    return [10 * message + number for number in range(message % 3)]


def is_bad(row: int) -> bool:
    """Which rows it marks as dead letters."""
    return row % 4 == 0


def batch(rows: Sequence[int]) -> pa.RecordBatch:
    """Rows as they come out of a lane."""
    marks = pa.array([{"n": row} if is_bad(row) else None for row in rows], pa.struct([("n", pa.int64())]))
    return pa.record_batch({"n": pa.array(rows, pa.int64()), "_dead_letter": marks})


class Run:
    """A packer between commits in memory and an output in memory; the lanes deliver when they are told to."""

    def __init__(
        self,
        commits: Sequence[Commit] = (),
        *,
        lanes: int = 1,
        store: FakeStore | None = None,
        at: Position | None = None,
        ahead: Position | None = None,
    ) -> None:
        clock = FakeClock()
        self.store = store or FakeStore(clock)
        if store is None:
            create_topic(self.store, "out", SCHEMA, clock=clock)
            create_topic(self.store, dead_letters("out"), SCHEMA, clock=clock)
        self.letters = OutputLog(self.store, dead_letters("out"), SCHEMA, "pipe", clock=clock)
        self.outputs = PipelineOutputs(OutputLog(self.store, "out", SCHEMA, "pipe", clock=clock), self.letters, "pipe")
        self.outputs.claim()
        begin = at or BEGIN
        self.outputs.record_start(Begin(begin, IDS))
        self.first = DeltaLog(self.store, "out", clock=clock).state.version + 1
        self.packer = Packer(
            self.outputs, SourceOffset(begin, begin, IDS, 0, 0), lanes=lanes, ahead=ahead or {}, clock=clock
        )
        self.streams: list[deque[int | tuple[int]]] = [deque() for _ in range(lanes)]
        self.made: list[tuple[str, int, list[int]]] = []
        versions = dict(begin)
        self.to_expect: deque[tuple[str, int, list[int], bool]] = deque()
        for table, chunks in commits:
            versions[table] += 1
            self.made.append(
                (table, versions[table], [row for chunk in chunks for one in chunk for row in made_of(one)])
            )
            for number, chunk in enumerate(chunks):
                self.to_expect.append((table, versions[table], chunk, number == len(chunks) - 1))
        self.end = versions

    def expect(self, lane: int) -> int:
        """Gives the next chunk to a lane."""
        table, version, chunk, last = self.to_expect.popleft()
        size = len(chunk) * ROW_BYTES
        to = lane if chunk else None
        number = self.packer.expect(len(chunk), size, lane=to, table=table, version=version, last=last)
        if chunk:
            self.streams[lane].extend(row for one in chunk for row in made_of(one))
            self.streams[lane].append((number,))
        return number

    def deliver(self, lane: int, items: int = 1 << 30) -> None:
        """A frame of so many rows and marks, or of what there is."""
        rows: list[int] = []
        marks: list[tuple[int, int]] = []
        while self.streams[lane] and items:
            items -= 1
            item = self.streams[lane].popleft()
            if isinstance(item, tuple):
                marks.append((item[0], len(rows)))
            else:
                rows.append(item)
        self.packer.deliver(lane, batch(rows) if rows else None, marks)

    def take(self) -> Pack | None:
        """The next pack, uploaded."""
        pack = self.packer.next_pack()
        if pack is not None:
            self.packer.upload(pack)
        return pack

    def commit(self) -> Committed | None:
        """Takes and commits what is there."""
        pack = self.take()
        return self.packer.commit([pack]) if pack is not None else None

    def all(self) -> None:
        """Expects and delivers everything, one lane after the other."""
        for number in range(len(self.to_expect)):
            self.expect(number % len(self.streams))
        for lane in range(len(self.streams)):
            self.deliver(lane)

    def entries(self, topic: str = "out") -> list[tuple[Position, list[int]]]:
        """What each entry holds that this run has written: the position behind it, and its rows."""
        log = DeltaLog(self.store, topic)
        found: list[tuple[Position, list[int]]] = []
        apps = {app_id("pipe", table, IDS[table]): table for table in IDS}
        for version in range(self.first if topic == "out" else 0, log.state.version + 1):
            entry = log.read(version)
            assert entry is not None
            rows = [
                n for add in entry.messages for n in records.load(self.store, f"{topic}/{add.path}")["n"].to_pylist()
            ]
            at = {apps[app]: number for app, number in entry.txns.items() if app in apps}
            if at or rows:
                found.append((at, rows))
        return found

    def check(self) -> None:
        """Each entry holds the good rows of just those commits by which its position has moved, in their order."""
        commits = deque(self.made)
        at = dict(self.packer.committed.run_start)
        for moved, rows in self.entries():
            at |= moved
            expected: list[int] = []
            while commits and commits[0][1] <= at[commits[0][0]]:
                expected += [row for row in commits.popleft()[2] if not is_bad(row)]
            assert rows == expected
        assert self.packer.committed.at == at
        done = [row for _, _, rows in self.made[: len(self.made) - len(commits)] for row in rows]
        letters = [row for _, rows in self.entries(dead_letters("out")) for row in rows]
        assert letters == [row for row in done if is_bad(row)]


_CHUNKS = st.lists(st.lists(st.integers(1, 60), max_size=4), min_size=1, max_size=4)
_COMMITS = st.lists(st.tuples(st.sampled_from("ab"), _CHUNKS), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None)
@given(
    commits=_COMMITS,
    lanes=st.integers(1, 4),
    limit=st.sampled_from((1, 40, 200, 1 << 30)),
    rng=st.randoms(use_true_random=False),
)
def test_whatever_the_lanes_do_each_entry_holds_whole_commits_in_order(
    commits: list[Commit], lanes: int, limit: int, rng: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packer_module, "PACK_BYTES", limit)
        patch.setattr(packer_module, "PACK_ROWS", limit // 10)
        run = Run(commits, lanes=lanes)
        packs: list[Pack] = []
        while run.to_expect or any(run.streams):
            step = rng.randrange(6)
            if step == 0 and run.to_expect:
                run.expect(rng.randrange(lanes))
            elif step < 4:
                run.deliver(rng.randrange(lanes), rng.randrange(1, 6))
            elif step == 4 and (pack := run.take()):
                packs.append(pack)
            elif packs and rng.random() < 0.5:
                run.packer.commit(packs)
                packs.clear()
        run.check()
        while pack := run.take():
            packs.append(pack)
        if packs:
            run.packer.commit(packs)
        run.check()
    assert run.packer.committed.at == run.end
    assert run.packer.committed.rows == sum(len(chunk) for _, chunks in commits for chunk in chunks)
    assert (run.packer.rows, run.packer.size) == (0, 0)


def test_a_commit_larger_than_a_pack_is_uploaded_in_parts_and_committed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer_module, "PACK_BYTES", 60)
    run = Run([("a", [[1, 4, 7], [10, 13, 16], [19]])], lanes=2)
    for lane in (0, 1, 0):
        run.expect(lane)
    run.deliver(0, 4)
    run.deliver(1, 4)
    before = len(run.store.objects)
    parts = [run.take()]
    assert parts[0] is not None
    assert parts[0].start == parts[0].end == BEGIN
    assert len(run.store.objects) > before  # uploaded, and in no entry
    assert run.packer.commit([parts[0]]) is None
    assert (run.entries(), run.packer.committed.at, run.packer.rows) == ([], BEGIN, 1)
    run.deliver(0)
    committed = run.commit()
    assert committed is not None
    assert (committed.rows, committed.dead_letters) == (4, 3)
    assert len(run.entries()) == len(run.entries(dead_letters("out"))) == 1
    assert (run.packer.rows, run.packer.size) == (0, 0)
    run.check()


def test_messages_of_which_little_is_made_give_their_bytes_back_before_their_commit_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packer_module, "PACK_BYTES", 5 * ROW_BYTES)
    run = Run([("a", [[3, 6], [9, 12], [15, 18], [1]])])
    for _ in range(3):
        run.expect(0)
    run.deliver(0, 2)
    assert run.take() is None
    run.deliver(0)
    assert run.commit() is None
    assert (run.packer.rows, run.packer.size) == (0, 0)  # or the feed waits for ever for what it still has to give
    run.expect(0)
    run.deliver(0)
    assert run.commit() is not None
    assert run.entries() == [({"a": 1}, [10])]
    run.check()


def test_a_pack_ends_behind_the_commit_with_which_it_is_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer_module, "PACK_ROWS", 3)
    run = Run([("a", [[2]]), ("a", [[5]]), ("a", [[8]]), ("b", [[1]])])
    run.all()
    taken = []
    while pack := run.take():
        taken.append((pack.end, pack.rows))
        run.packer.commit([pack])
    assert taken == [({"a": 2, "b": 0}, 2), ({"a": 3, "b": 1}, 2)]
    run.check()


def test_a_mark_of_another_chunk_ends_the_run() -> None:
    run = Run([("a", [[1], [2]])], lanes=2)
    run.expect(0)
    second = run.expect(1)
    run.packer.deliver(0, None, [(second, 0)])
    with pytest.raises(PipelineError, match="Chunk 0 was expected, and 1 came back"):
        run.take()
    assert run.entries() == []


def test_dead_letters_without_a_topic_end_the_run() -> None:
    run = Run([("a", [[4]])])
    packer = Packer(
        PipelineOutputs(run.outputs.output, None, "pipe"), SourceOffset(BEGIN, BEGIN, IDS, 0, 0), lanes=1, ahead={}
    )
    packer.expect(1, ROW_BYTES, lane=0, table="a", version=1, last=True)
    packer.deliver(0, batch(made_of(4)), [(0, 1)])
    pack = packer.next_pack()
    assert pack is not None
    with pytest.raises(PipelineError, match="has no topic for them"):
        packer.upload(pack)


COMMITS: list[Commit] = [("a", [[4], [10]]), ("b", [[8]]), ("a", [[16]])]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_dead_letters_are_not_repeated_after_a_crash_between_the_two_commits(at_once: int) -> None:
    ahead = {"a": 1, "b": 1}
    first = Run(COMMITS[:2])
    first.all()
    pack = first.take()
    assert pack is not None
    first.letters.commit(pack.dead_letters, pack.end, IDS)  # and here it dies
    assert first.entries() == []
    # The next run reads the same in other packs, and nothing behind it before that is committed.
    again = Run(COMMITS, store=first.store, ahead=ahead)
    while again.to_expect:
        for _ in range(at_once):
            behind = bool(again.to_expect) and again.to_expect[0][1] > ahead[again.to_expect[0][0]]
            if again.to_expect and not (behind and again.packer.committed.at != ahead):
                again.expect(0)
        again.deliver(0)
        again.commit()
    letters = [row for _, rows in again.entries(dead_letters("out")) for row in rows]
    good = [row for _, rows in again.entries() for row in rows]
    rows = [row for _, _, made in again.made for row in made]
    assert good == [row for row in rows if not is_bad(row)]
    assert letters == [row for row in rows if is_bad(row)]
    assert again.packer.committed.at == {"a": 2, "b": 1}


def test_a_pack_that_does_not_continue_the_output_is_refused() -> None:
    run = Run([("a", [[1]]), ("a", [[2]])])
    run.all()
    pack = run.take()
    assert pack is not None
    run.outputs.output.commit(UploadedFiles(), {"a": 1}, IDS)
    with pytest.raises(PipelineError, match="rows would be lost or repeated"):
        run.packer.commit([pack])


def test_a_lane_of_which_too_much_waits_is_full_until_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer_module, "PACK_BYTES", 100)
    run = Run([("a", [[2] * 20])], lanes=2)
    run.expect(0)
    assert not run.packer.is_full(0)
    run.deliver(0)
    assert run.packer.is_full(0)
    assert not run.packer.is_full(1)
    assert run.commit() is not None
    assert not run.packer.is_full(0)
