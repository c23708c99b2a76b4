"""The log's protocol against a store in memory with scripted answers."""

from __future__ import annotations

import io
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brokerless.errors import (
    AccessDenied,
    CommitUnknown,
    ConfigError,
    LogDamaged,
    LogIncomplete,
    NotCommitted,
    OffsetOutOfRange,
    StoreError,
    StoreUnavailable,
    TopicChanged,
    TopicDeleted,
    TopicExists,
    TopicNotFound,
    UnsupportedTable,
)
from brokerless.log.entries import Add, Entry, build_entry, parse_entry
from brokerless.log.lifecycle import epoch_of
from brokerless.log.log import RECHECK_S, Commit, DeltaLog, TxnAdvanced, _Request, shared
from brokerless.offsets import Offset
from brokerless.schema import Schema
from tests.support.checkpoints import clean_up, write_checkpoint
from tests.support.fakes import START_US, FakeClock, FakeStore, Put

SCHEMA = Schema.parse("n long").to_delta()


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    return FakeStore(clock)


@pytest.fixture
def log(store: FakeStore, clock: FakeClock) -> DeltaLog:
    return create(store, "t", clock=clock)


def add(name: str, rows: int = 1) -> Add:
    return Add(name, 10, rows, 1)


def create(store: FakeStore, table: str, *, clock: FakeClock) -> DeltaLog:
    log = DeltaLog(store, table, clock=clock)
    log.create(schema_string=SCHEMA, configuration={})
    return log


def again(log: DeltaLog) -> DeltaLog:
    return DeltaLog(log.store, log.table, clock=log._clock)


def paths(log: DeltaLog) -> list[str]:
    """Every file of the log in order, once per entry that adds it."""
    return [a.path for entry in log.read_from(0) for a in entry.adds]


# Appending


def test_versions_have_no_gaps_and_one_put_suffices(log: DeltaLog, store: FakeStore) -> None:
    store.requests.clear()
    assert [log.append([add(f"f{n}")]).version for n in range(3)] == [1, 2, 3]
    assert paths(log) == ["f0", "f1", "f2"]
    assert store.requests["PUT"] == 3


def test_a_rivals_entry_is_read_before_the_next_try(log: DeltaLog) -> None:
    rival = again(log)
    for n in range(5):
        rival.append([add(f"r{n}")])
    commit = log.append([add("mine")])
    assert (commit.version, commit.attempts) == (6, 2)
    assert paths(log) == ["r0", "r1", "r2", "r3", "r4", "mine"]


@pytest.mark.parametrize("answer", ["unknown", "exists"])
def test_lost_answer_is_resolved_by_the_commit_id(log: DeltaLog, store: FakeStore, answer: str) -> None:
    store.puts = [Put(answer)]  # type: ignore[arg-type]
    assert log.append([add("f")]).version == 1
    assert log.append([add("g")]).version == 2
    assert paths(log) == ["f", "g"]


def test_a_put_that_never_arrived_is_sent_again_to_the_same_version(log: DeltaLog, store: FakeStore) -> None:
    store.puts = [Put("unknown", applied=False), Put("unknown", applied=False)]
    commit = log.append([add("f")])
    assert (commit.version, commit.attempts) == (1, 3)
    late = store.land_late_puts()
    assert late == ["exists", "exists"]
    assert paths(log) == ["f"]


def test_a_put_that_lands_late_is_met_as_our_own(log: DeltaLog, store: FakeStore) -> None:
    store.puts = [Put("unknown", applied=False), Put("exists", applied=False, before=store.land_late_puts)]
    assert log.append([add("f")]).version == 1
    assert paths(log) == ["f"]


def test_the_same_bytes_are_sent_again(log: DeltaLog, store: FakeStore, clock: FakeClock) -> None:
    store.puts = [Put("unknown", applied=False)]
    clock.on_sleep = lambda: clock.advance(0.5)
    log.append([add("f")])
    assert store.late[0][1] == store.objects[log.entry_path(1)]


def test_after_a_lost_put_a_rival_may_win_and_we_move_on(log: DeltaLog, store: FakeStore) -> None:
    rival = again(log)
    store.puts = [Put("unknown", applied=False)]

    def win() -> None:
        store.on_get = None
        rival.append([add("r")])

    store.on_get = lambda _: win()
    assert log.append([add("f")]).version == 2
    assert store.land_late_puts() == ["exists"]
    assert paths(log) == ["r", "f"]


def test_exists_but_absent_is_no_answer(log: DeltaLog, store: FakeStore) -> None:
    # 409 and 412 without an object: a conflict with a PUT that then failed.
    store.puts = [Put("exists", applied=False)]
    assert log.append([add("f")]).version == 1
    assert paths(log) == ["f"]


def test_unknown_at_the_deadline_is_said_with_what_resolves_it(log: DeltaLog, store: FakeStore) -> None:
    store.puts = [Put("unknown", applied=False) for _ in range(1000)]
    with pytest.raises(CommitUnknown) as caught:
        log.append([add("f")], deadline_s=5)
    assert caught.value.version == 1
    assert "read entry 1 later" in str(caught.value)
    assert set(store.land_late_puts()) == {"created", "exists"}
    entry = log.read(1)
    assert entry is not None
    assert entry.commit_id == caught.value.commit_id


@pytest.mark.parametrize("error", [AccessDenied("x"), ConfigError("no credentials"), StoreUnavailable("x")])
def test_a_refusal_after_doubt_is_not_a_failure(log: DeltaLog, store: FakeStore, error: Exception) -> None:
    store.puts = [Put("unknown", applied=False), Put(error, applied=False)]
    with pytest.raises(CommitUnknown):
        log.append([add("f")])


@pytest.mark.parametrize("error", [AccessDenied("x"), ConfigError("no credentials")])
def test_a_refusal_at_once_is_one(log: DeltaLog, store: FakeStore, error: Exception) -> None:
    store.puts = [Put(error, applied=False)]
    with pytest.raises(type(error)):
        log.append([add("f")])


def test_not_committed_only_when_every_try_was_taken_by_others(
    log: DeltaLog, store: FakeStore, clock: FakeClock
) -> None:
    rival = again(log)
    count = 0

    def win() -> None:
        nonlocal count
        count += 1
        script, store.puts = store.puts, []
        rival.append([add(f"r{count}")])
        store.puts = script
        clock.advance(1)

    store.puts = [Put("exists", before=win) for _ in range(100)]
    with pytest.raises(NotCommitted, match="nothing was written"):
        log.append([add("mine")], deadline_s=5)
    assert "mine" not in paths(log)


def test_an_outcome_that_was_unknown_is_found_by_the_next_append(log: DeltaLog, store: FakeStore) -> None:
    store.puts = [Put("unknown", applied=False) for _ in range(100)]
    with pytest.raises(CommitUnknown):
        log.append([add("f")], {"p": 1}, deadline_s=1)
    store.puts.clear()
    store.land_late_puts()
    with pytest.raises(TxnAdvanced) as caught:
        log.append([add("f-again")], {"p": 1})
    assert caught.value.ours
    assert caught.value.entry.version == 1
    assert log.append([add("g")], {"p": 2}).version == 2


def test_timestamps_never_go_back(log: DeltaLog, clock: FakeClock) -> None:
    first = log.append([add("f")]).timestamp_ms
    clock.advance(-5)
    assert log.append([add("g")]).timestamp_ms == first
    clock.advance(20)
    assert log.append([add("h")]).timestamp_ms == first + 15_000


# Txns, claims and fencing


def test_a_txn_that_the_log_has_is_not_written_again(log: DeltaLog, store: FakeStore) -> None:
    log.append([add("f")], {"p": 3})
    for version in (2, 3):
        with pytest.raises(TxnAdvanced) as caught:
            log.append([add("again")], {"p": version})
        assert caught.value.found == 3
    assert again(log).txn("p") == 3
    assert paths(log) == ["f"]


def test_a_rival_that_moves_our_txn_stops_us(log: DeltaLog) -> None:
    rival = again(log)
    log.append([add("f")], {"p": 1})
    rival.append([add("r")], {"p": 5})
    with pytest.raises(TxnAdvanced) as caught:
        log.append([add("zombie")], {"p": 2})
    assert not caught.value.ours
    assert "zombie" not in paths(log)


def test_a_claim_fences_the_older_owner(log: DeltaLog) -> None:
    new = again(log)
    old_epoch = log.claim("p")
    log.append([add("f")], {"p": 1}, expect={epoch_of("p"): old_epoch})
    assert new.claim("p") == old_epoch + 1
    with pytest.raises(TxnAdvanced) as caught:
        log.append([add("zombie")], {"p": 2}, expect={epoch_of("p"): old_epoch})
    assert caught.value.app_id == epoch_of("p")
    assert paths(log) == ["f"]


def test_a_claim_seen_before_the_append_fences_too(log: DeltaLog) -> None:
    epoch = log.claim("p")
    again(log).claim("p")
    log.refresh()
    with pytest.raises(TxnAdvanced):
        log.append([add("zombie")], {"p": 2}, expect={epoch_of("p"): epoch})


def test_two_claims_at_once_get_two_epochs(log: DeltaLog, store: FakeStore) -> None:
    rival = again(log)

    def win() -> None:
        store.puts = []
        assert rival.claim("p") == 1

    store.puts = [Put("exists", before=win)]
    assert log.claim("p") == 2


def test_a_failed_commit_leaves_the_handle_usable(log: DeltaLog, store: FakeStore) -> None:
    store.puts = [Put(AccessDenied("x"), applied=False)]
    with pytest.raises(AccessDenied):
        log.append([add("f")])
    assert log.append([add("g")]).version == 1


# Checkpoints and clean-up


@pytest.mark.parametrize("hint", [True, False])
def test_txns_and_metadata_survive_checkpoint_and_clean_up(log: DeltaLog, store: FakeStore, hint: bool) -> None:
    log.append([add("f")], {"p": 7, "q": 1})
    log.append([add("g")], {"q": 2})
    write_checkpoint(log)
    clean_up(log, below=2)
    log.append([add("h")])
    if not hint:
        store.delete(["t/_delta_log/_last_checkpoint"])
        store.delete([log.entry_path(2)])
    other = again(log)
    assert (other.txn("p"), other.txn("q"), other.txn("r")) == (7, 2, None)
    assert other.state.version == 3
    assert other.state.metadata.id == log.state.metadata.id
    assert set(other.load(with_files=True).files) == {"f", "g", "h"}


@pytest.mark.parametrize("parts", [1, 2])
def test_a_checkpoint_of_several_parts_counts_only_when_all_are_there(
    log: DeltaLog, store: FakeStore, parts: int
) -> None:
    log.append([], {"p": 7})
    version = write_checkpoint(log)
    whole = f"t/_delta_log/{version:020d}.checkpoint"
    rows = pq.read_table(io.BytesIO(store.get(f"{whole}.parquet")))
    store.delete([f"{whole}.parquet"])
    for number in range(parts):
        part = io.BytesIO()
        pq.write_table(rows.slice(2 * number, 2 if number == 0 else None), part)  # the txn is in the second
        store.put(f"{whole}.{number + 1:010d}.{2:010d}.parquet", part.getvalue())
    if parts == 2:
        clean_up(log, version)
    assert again(log).txn("p") == 7


def test_a_hint_whose_checkpoint_is_gone_is_survived(log: DeltaLog, store: FakeStore) -> None:
    log.append([add("f")], {"p": 7})
    version = write_checkpoint(log)
    store.delete([f"t/_delta_log/{version:020d}.checkpoint.parquet"])
    assert again(log).txn("p") == 7


def test_a_checkpoint_that_goes_while_it_is_read_is_named(log: DeltaLog, store: FakeStore) -> None:
    log.append([], {"p": 7})
    version = write_checkpoint(log)

    def say_it_is_absent(path: str) -> None:
        if ".checkpoint." in path:
            raise FileNotFoundError(path)

    store.on_get = say_it_is_absent
    with pytest.raises(StoreError, match=rf"{version:020d}\.checkpoint\.parquet was listed and was not there.*again"):
        again(log).load()


@pytest.mark.parametrize("hint", [b"", b"{}", b"null", b'{"version":"x"}'])
def test_a_broken_hint_is_none(log: DeltaLog, store: FakeStore, hint: bytes) -> None:
    log.append([add("f")])
    store.put("t/_delta_log/_last_checkpoint", hint)
    assert again(log).state.version == 1


def test_a_writer_that_slept_past_clean_up_does_not_commit_into_the_past(
    log: DeltaLog, clock: FakeClock, store: FakeStore
) -> None:
    sleeper = again(log)
    sleeper.append([add("f1")])
    for n in range(2, 8):
        log.append([add(f"f{n}")])
    write_checkpoint(log)
    clean_up(log, below=7)
    clock.advance(7200)
    assert sleeper.append([add("mine")]).version == 8
    assert not store.exists(log.entry_path(2))
    assert set(again(log).load(with_files=True).files) == {*(f"f{n}" for n in range(1, 8)), "mine"}


def test_a_store_that_fails_a_writer_behind_its_commit_leaves_it_unknown(
    log: DeltaLog, clock: FakeClock, store: FakeStore
) -> None:
    log.append([add("f1")])

    def fail(path: str) -> None:
        store.on_get = None
        raise ConfigError("no credentials")

    def sleep() -> None:
        clock.advance(61)
        store.on_get = fail

    store.puts = [Put("created", before=sleep)]
    with pytest.raises(CommitUnknown):
        log.append([add("f2")])


def asleep_at_its_put(log: DeltaLog, clock: FakeClock, store: FakeStore) -> DeltaLog:
    """A writer that will sleep before its next PUT, of entry 2, until clean-up has removed the true entries below 7."""
    sleeper = again(log)
    sleeper.append([add("f1")])

    def sleep() -> None:
        script, store.puts = store.puts, []
        for n in range(2, 8):
            log.append([add(f"f{n}")])
        write_checkpoint(log)
        clean_up(log, below=7)
        store.puts = script
        clock.advance(7200)

    store.puts = [Put("created", before=sleep)]
    return sleeper


def test_a_writer_that_slept_between_looking_and_writing_writes_once_more(
    log: DeltaLog, clock: FakeClock, store: FakeStore
) -> None:
    sleeper = asleep_at_its_put(log, clock, store)
    assert sleeper.append([add("mine")], {"p": 1}).version == 8
    assert store.requests["DELETE"] == 1, "clean-up alone removes"
    assert "mine" in again(log).load(with_files=True).files
    assert again(log).txn("p") == 1


def test_what_a_sleeper_put_into_a_freed_name_is_not_the_earliest_entry(
    log: DeltaLog, clock: FakeClock, store: FakeStore
) -> None:
    # Readers would be sent back to it for a whole retention.
    sleeper = asleep_at_its_put(log, clock, store)
    assert sleeper.claim("p") == 1
    assert store.exists(log.entry_path(2))
    assert store.exists(log.entry_path(8))
    assert again(log).earliest() == 7


def test_a_claim_that_others_followed_is_not_written_again(log: DeltaLog, clock: FakeClock, store: FakeStore) -> None:
    def meanwhile(path: str) -> None:
        if not store.exists(path) or path != log.entry_path(1):
            return
        store.on_get = None
        log_2 = again(log)
        log_2.append([add("g")])
        write_checkpoint(log_2)
        clock.advance(120)

    store.puts = [Put("unknown")]
    store.on_get = meanwhile
    log.claim("p")
    assert again(log).checkpoint_version() == 2
    assert [entry.txns for entry in log.read_from(1)] == [{"p/epoch": 1}, {}]


def test_a_commit_that_a_checkpoint_already_holds_is_not_written_again(
    log: DeltaLog, clock: FakeClock, store: FakeStore
) -> None:
    # The PUT lands, its answer is lost, and before we look again others commit and a checkpoint covers us all.
    def meanwhile() -> None:
        store.on_get = None
        other = again(log)
        other.append([add("g")])
        write_checkpoint(other)
        clean_up(other, below=1)  # what a writer would know its place by
        clock.advance(120)

    store.puts = [Put("unknown")]
    store.on_get = lambda _: meanwhile()
    commit = log.append([add("f")])
    assert commit.version == 1
    assert [a.path for entry in log.read_from(1) for a in entry.adds] == ["f", "g"]


def test_an_idle_writer_looks_again_before_it_writes(log: DeltaLog, clock: FakeClock, store: FakeStore) -> None:
    def requests_of_a_commit_after(seconds: float) -> dict[str, int]:
        clock.advance(seconds)
        store.requests.clear()
        log.append([add(clock.uuid())])
        return store.requests

    log.append([add("f")])
    assert requests_of_a_commit_after(0.9) == {"PUT": 1}
    assert requests_of_a_commit_after(0.9) == {"PUT": 1, "GET": 1}, "is the last entry still there?"
    assert requests_of_a_commit_after(61) == {"PUT": 1, "GET": 2, "LIST": 1}, "and is it the last?"


# Holes, damage, and tables made again by hand


def filled(log: DeltaLog, last: int) -> None:
    for n in range(1, last + 1):
        log.append([add(f"f{n}")])


def hole(log: DeltaLog, store: FakeStore, version: int) -> bytes:
    return store.objects.pop(log.entry_path(version))


def test_nothing_is_written_into_a_hole_and_all_goes_on_when_the_entry_is_back(log: DeltaLog, store: FakeStore) -> None:
    filled(log, 6)
    lost = hole(log, store, 4)
    writer = again(log)
    with pytest.raises(LogIncomplete, match=r"Entry 4 of the log .* is missing, but entry 5 is there") as raised:
        writer.append([add("mine")])
    assert raised.value.version == 4
    assert not store.exists(log.entry_path(4))
    store.objects[log.entry_path(4)] = lost
    assert writer.append([add("mine")]).version == 7


def test_a_writer_that_knew_the_log_before_the_hole_finds_it_within_a_minute(
    log: DeltaLog, store: FakeStore, clock: FakeClock
) -> None:
    writer = again(log)
    writer.append([add("f1")])
    log.refresh()
    filled(log, 4)
    hole(log, store, 3)
    clock.advance(61)
    with pytest.raises(LogIncomplete):
        writer.append([add("mine")])
    with pytest.raises(LogIncomplete):
        writer.head()


def test_the_end_is_not_where_an_entry_is_missing(log: DeltaLog, store: FakeStore, clock: FakeClock) -> None:
    reader = again(log)
    assert reader.head() == 0
    filled(log, 4)
    hole(log, store, 2)
    for question in (again(log).load, lambda: reader.check_end(2)):
        with pytest.raises(LogIncomplete):
            question()
    clock.advance(61)
    with pytest.raises(LogIncomplete):
        reader.check_retained(2)
    assert again(log).state.version == 4, "a reader may begin behind it"


def test_a_hole_that_a_checkpoint_covers_is_not_taken_for_clean_up(log: DeltaLog, store: FakeStore) -> None:
    filled(log, 6)
    write_checkpoint(log)
    hole(log, store, 3)
    reader = again(log)
    with pytest.raises(LogIncomplete):
        reader.check_retained(3)


def test_a_table_that_is_created_while_it_is_looked_for_is_no_hole(store: FakeStore, clock: FakeClock) -> None:
    listing = store.list

    def late(*args: Any, **more: Any) -> Any:
        store.list = listing  # type: ignore[method-assign]
        create(store, "t", clock=clock)
        return listing(*args, **more)

    store.list = late  # type: ignore[method-assign]
    assert DeltaLog(store, "t", clock=clock).state.version == 0


def test_nothing_is_created_over_what_is_left_of_a_log(log: DeltaLog, store: FakeStore) -> None:
    filled(log, 2)
    hole(log, store, 0)
    with pytest.raises(LogIncomplete):
        create(store, "t", clock=log._clock)


def test_a_damaged_entry_keeps_no_reader_from_opening_and_stops_writers(log: DeltaLog, store: FakeStore) -> None:
    filled(log, 4)
    store.objects[log.entry_path(2)] = b""
    reader = again(log)
    assert reader.state.version == 4
    with pytest.raises(LogDamaged, match="Entry 2") as raised:
        reader.append([add("mine")])
    assert raised.value.version == 2
    with pytest.raises(LogDamaged):
        again(log).load()


@pytest.mark.parametrize("entries", [2, 5, 8])
def test_a_table_made_again_by_hand_is_not_the_one_that_was_opened(
    log: DeltaLog, store: FakeStore, clock: FakeClock, entries: int
) -> None:
    filled(log, 4)
    reader = again(log)
    assert reader.state.version == 4
    store.objects.clear()
    filled(create(store, "t", clock=clock), entries)
    for question in (reader.confirm, log.confirm):
        with pytest.raises(TopicDeleted, match="deleted and created again"):
            question()
    clock.advance(2)
    with pytest.raises(TopicDeleted):
        log.append([add("mine")])
    assert again(log).load(with_files=True).files.keys() == {f"f{n}" for n in range(1, entries + 1)}


def test_a_handle_of_a_removed_table_stays_closed(log: DeltaLog, store: FakeStore, clock: FakeClock) -> None:
    filled(log, 2)
    store.objects.clear()
    clock.advance(61)
    with pytest.raises(TopicDeleted, match="was removed"):
        log.append([add("mine")])
    create(store, "t", clock=clock)
    with pytest.raises(TopicDeleted, match="created again"):
        log.append([add("mine")])


def test_confirming_costs_two_gets(log: DeltaLog, store: FakeStore) -> None:
    filled(log, 2)
    store.requests.clear()
    assert log.confirm().version == 2
    assert store.requests == {"GET": 2}


def test_threads_that_append_at_once_share_entries(log: DeltaLog, store: FakeStore) -> None:
    begun = threading.Event()

    def until_the_others_wait() -> None:
        begun.set()
        deadline = time.monotonic() + 30
        while len(log._waiting) < 8 and time.monotonic() < deadline:
            time.sleep(0.001)

    store.puts = [Put("created", before=until_the_others_wait)]

    def send(n: int) -> Commit:
        if n:
            begun.wait(timeout=30)
        return log.append([add(f"f{n}", rows=10)], {f"p{n}": n})

    with ThreadPoolExecutor(9) as pool:
        commits = list(pool.map(send, range(9)))
    assert commits[0].version == 1
    shared = [commit for commit in commits if commit.version == 2]
    assert len(shared) == 8
    entry = log.read(2)
    assert entry is not None
    assert [add.path for add in entry.adds] == [
        f"f{commits.index(c)}" for c in sorted(shared, key=lambda c: c.first_index)
    ]
    assert {commit.first_index for commit in shared} == set(range(0, 10 * len(shared), 10))
    assert again(log).load().txns == {f"p{n}": n for n in range(9)}


def test_one_request_that_is_refused_does_not_stop_the_others(log: DeltaLog) -> None:
    log.append([add("f")], {"p": 5})
    late, good = (
        _Request((add(name),), txns, {}, 0.0, 1e12) for name, txns in (("late", {"p": 5}), ("good", {"q": 1}))
    )
    log._commit([late, good])
    assert isinstance(late.outcome, TxnAdvanced)
    assert isinstance(good.outcome, Commit)
    assert paths(log) == ["f", "good"]


def test_clean_up_while_loading_is_noticed(log: DeltaLog, store: FakeStore) -> None:
    for n in range(1, 6):
        log.append([add(f"f{n}")])
    write_checkpoint(log)
    for n in range(6, 10):
        log.append([add(f"f{n}")])

    def overtake(path: str) -> None:
        if path.endswith("05.checkpoint.parquet"):
            store.on_get = None
            write_checkpoint(again(log))
            clean_up(log, below=9)

    store.on_get = overtake
    state = again(log).state
    assert (state.version, state.damage) == (9, None)


# Reading


def test_head_needs_one_listing_and_few_requests(log: DeltaLog, store: FakeStore) -> None:
    reader = again(log)
    assert reader.head() == 0
    for n in range(1, 41):
        log.append([add(f"f{n}")])
        if n in {1, 2, 3, 5, 8, 31, 40}:
            assert reader.head() == n == again(log).head()
    store.requests.clear()
    assert reader.head() == 40
    assert store.requests["GET"] <= 14
    assert store.requests["LIST"] == 1


def test_head_of_a_handle_that_clean_up_has_overtaken(log: DeltaLog, clock: FakeClock) -> None:
    reader = again(log)
    assert reader.head() == 0
    for n in range(1, 9):
        log.append([add(f"f{n}")])
    write_checkpoint(log)
    clean_up(log, below=8)
    clock.advance(7200)
    assert reader.head() == 8
    assert reader.earliest() == 8


@pytest.mark.parametrize("below", [0, 1, 2, 5, 8, 9])
def test_earliest_after_clean_up(log: DeltaLog, below: int) -> None:
    assert log.earliest() == 1
    for n in range(1, 10):
        log.append([add(f"f{n}")])
    write_checkpoint(log)
    clean_up(log, below=below)
    assert again(log).earliest() == max(1, below)


def test_version_at(log: DeltaLog, clock: FakeClock) -> None:
    for n in range(1, 6):
        clock.advance(10)
        log.append([add(f"f{n}")])
    at = [START_US + n * 10_000_000 for n in range(7)]
    assert [log.version_at(us) for us in at] == [1, 1, 2, 3, 4, 5, 6]
    assert log.version_at(at[2] + 1) == 3
    write_checkpoint(log)
    clean_up(log, below=4)
    assert [log.version_at(us) for us in at] == [4, 4, 4, 4, 4, 5, 6]


def test_not_yet_and_no_more_are_told_apart(log: DeltaLog) -> None:
    log.append([add("f1")])
    log.check_retained(2)
    write_checkpoint(log)
    log.check_retained(2)
    log.append([add("f2")])
    log.append([add("f3")])
    log.check_retained(2)
    write_checkpoint(log)
    clean_up(log, below=3)
    with pytest.raises(OffsetOutOfRange) as caught:
        log.check_retained(2)
    assert caught.value.earliest == Offset(3)
    log.check_retained(4)


# Topics come and go


def test_no_table(store: FakeStore, clock: FakeClock) -> None:
    with pytest.raises(TopicNotFound, match="brokerless topics create"):
        _ = DeltaLog(store, "t", clock=clock).state


def test_create_twice(log: DeltaLog) -> None:
    with pytest.raises(TopicExists):
        again(log).create(schema_string=SCHEMA, configuration={})
    found = again(log).create(schema_string="other", configuration={}, exist_ok=True)
    assert found.schema_string == SCHEMA


def test_delete_ends_the_log_and_stale_writers_stop(log: DeltaLog) -> None:
    stale = again(log)
    log.append([add("f")])
    again(log).delete()
    with pytest.raises(TopicDeleted):
        stale.append([add("late")])
    with pytest.raises(TopicDeleted):
        log.append([add("late")])
    with pytest.raises(TopicDeleted):
        _ = again(log).state
    assert again(log).load(with_files=True).files == {}


def test_created_again_goes_on_with_the_versions_and_leaves_no_trace_of_stale_writers(log: DeltaLog) -> None:
    stale = again(log)
    stale.append([add("old")])
    again(log).delete()
    new = again(log)
    assert new.create(schema_string=SCHEMA, configuration={}).first_version == 3
    for handle in (stale, log):
        with pytest.raises(TopicDeleted, match=r"created again|was deleted"):
            handle.append([add("late")])
    assert new.append([add("new")]).version == 4
    assert set(again(log).load(with_files=True).files) == {"new"}
    assert again(log).earliest() == 4


def test_progress_does_not_survive_its_topic(log: DeltaLog) -> None:
    epoch = log.claim("p")
    log.append([add("old")], {"p": 9})
    again(log).delete()
    again(log).create(schema_string=SCHEMA, configuration={})
    new = again(log)
    assert new.txn("p") is None
    assert new.claim("p") == epoch + 1
    assert new.append([add("new")], {"p": 0}).version == 6


def test_a_commit_between_delete_and_its_tombstone_is_removed_too(log: DeltaLog, store: FakeStore) -> None:
    rival = again(log)
    log.append([add("f")])

    def commit() -> None:
        script, store.puts = store.puts, []
        rival.append([add("g")])
        store.puts = script

    store.puts = [Put("exists", before=commit)]
    log.delete()
    assert again(log).load(with_files=True).files == {}


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("schemaString", Schema.parse("n long, extra string").to_delta(), TopicChanged),
        ("configuration", {"delta.columnMapping.mode": "name"}, UnsupportedTable),
        ("partitionColumns", ["n"], UnsupportedTable),
    ],
)
def test_a_changed_table_stops_writers_before_they_write(
    log: DeltaLog, store: FakeStore, key: str, value: object, error: type[Exception]
) -> None:
    created = [json.loads(line) for line in store.objects[log.entry_path(0)].decode().splitlines()]
    metadata = next(action for action in created if "metaData" in action)
    metadata["metaData"][key] = value
    store.put(log.entry_path(1), json.dumps(metadata).encode())
    with pytest.raises(error):
        log.append([add("late")])
    assert not store.exists(log.entry_path(2))


def test_a_log_without_metadata_is_damaged(store: FakeStore, clock: FakeClock) -> None:
    body = build_entry(commit_id="c", timestamp_ms=1, operation="WRITE", engine="e", adds=[add("f")])
    assert parse_entry(0, body, table="t").adds
    store.put("t/_delta_log/00000000000000000000.json", body)
    with pytest.raises(Exception, match="before any metadata"):
        DeltaLog(store, "t", clock=clock).load()


# Compare-and-set


def test_a_txn_that_is_expected_may_move_to_a_lower_number(log: DeltaLog) -> None:
    log.append([add("f")], {"s#1": 4, "s#0": 9})
    log.append([add("g")], {"s#1": 5, "s#0": 0}, expect={"s#1": 4, "s#0": 9})
    log.append([add("h")], {"s#1": 5, "s#0": 1}, expect={"s#1": 5, "s#0": 0})
    assert (again(log).txn("s#1"), again(log).txn("s#0")) == (5, 1)
    assert paths(log) == ["f", "g", "h"]


def test_a_txn_that_is_not_expected_may_not(log: DeltaLog) -> None:
    log.append([add("f")], {"s": 4, "other": 1})
    with pytest.raises(TxnAdvanced):
        log.append([add("g")], {"s": 3}, expect={"other": 1})
    assert paths(log) == ["f"]


@pytest.mark.parametrize(("present", "expected"), [({"s": 4}, -1), ({"s": 4}, 3), ({"s": 4}, 5), ({}, 0)])
def test_what_is_not_as_expected_stops_the_commit(log: DeltaLog, present: dict[str, int], expected: int) -> None:
    log.append([add("f")], present)
    for handle in (log, again(log)):
        with pytest.raises(TxnAdvanced) as caught:
            handle.append([add("g")], {"s": 9}, expect={"s": expected})
        assert (caught.value.app_id, caught.value.found) == ("s", present.get("s", -1))
    assert paths(log) == ["f"]


def test_absence_is_expected_as_minus_one_also_after_the_topic_was_created_again(log: DeltaLog) -> None:
    log.append([add("old")], {"s": 4}, expect={"s": -1})
    again(log).delete()
    again(log).create(schema_string=SCHEMA, configuration={})
    again(log).append([add("new")], {"s": 0}, expect={"s": -1})
    assert again(log).txn("s") == 0


def test_of_two_that_expect_the_same_one_commits(log: DeltaLog) -> None:
    rival = again(log)
    assert rival.state.version == 0
    log.append([add("f")], {"s": 0}, expect={"s": -1})
    with pytest.raises(TxnAdvanced):
        rival.append([add("again")], {"s": 0}, expect={"s": -1})
    assert paths(log) == ["f"]


def test_a_rival_that_moves_another_txn_is_no_hindrance(log: DeltaLog) -> None:
    rival = again(log)
    log.append([add("f")], {"s": 7})
    assert rival.refresh().txns["s"] == 7
    log.append([add("r")], {"other": 1})
    rival.append([add("g")], {"s": 2}, expect={"s": 7})
    assert paths(log) == ["f", "r", "g"]


@pytest.mark.parametrize(
    "hint",
    ['{"version": 1e999}', '{"version": -3}', '{"version": 3.7}', '{"version": "1"}', "[]", "[" * 100_000, ""],
    ids=["infinite", "negative", "fraction", "text", "list", "deep", "empty"],
)
def test_a_hint_that_is_none_is_as_good_as_no_hint(store: FakeStore, clock: FakeClock, hint: str) -> None:
    log = DeltaLog(store, "t", clock=clock)
    log.create(schema_string="{}", configuration={})
    log.append([add("f")])
    store.put("t/_delta_log/_last_checkpoint", hint.encode())
    assert DeltaLog(store, "t", clock=clock).load().version == 1


@pytest.mark.parametrize(
    "row",
    [
        {"txn": {"appId": "a", "version": None}},
        {"txn": {"appId": None, "version": 1}},
        {"add": {"path": None, "size": 1}},
        {"remove": {"path": None}},
        {"metaData": None, "txn": 5},
        {"protocol": {"minReaderVersion": None, "minWriterVersion": 2}},
    ],
    ids=json.dumps,
)
def test_a_checkpoint_with_rows_that_are_none_is_named_at_once(
    store: FakeStore, clock: FakeClock, row: dict[str, Any]
) -> None:
    log = DeltaLog(store, "t", clock=clock)
    log.create(schema_string="{}", configuration={})
    log.append([add("f")], {"a": 1})
    version = write_checkpoint(log)
    path = f"t/_delta_log/{version:020d}.checkpoint.parquet"
    rows = pq.read_table(io.BytesIO(store.objects[path])).to_pylist()
    kept = [found for found in rows if not any(found[kind] for kind in row)]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([*kept, row]), buffer)
    store.put(path, buffer.getvalue())
    with pytest.raises(StoreError, match="checkpoint 1"):
        DeltaLog(store, "t", clock=clock).load(with_files=True)


# Handing on what was read


def others(log: DeltaLog, count: int) -> DeltaLog:
    """A handle that has read the log after commits of somebody else."""
    rival = again(log)
    for n in range(count):
        rival.append([add(f"r{n}")])
    fresh = again(log)
    fresh.open()
    return fresh


def test_catching_up_with_another_handle_costs_one_get(log: DeltaLog, store: FakeStore) -> None:
    log.append([add("f")])
    fresh = others(log, 20)
    store.requests.clear()
    log.catch_up(fresh)
    assert store.requests == {"GET": 1}
    assert log.append([add("mine")]).attempts == 1
    assert fresh.state.version == 21, "each handle goes on by itself"
    log.catch_up(fresh)
    assert log.state.version == 22


@pytest.mark.parametrize("since", [0, 1])
def test_catching_up_does_not_hide_that_the_log_was_restored_from_an_older_copy(
    log: DeltaLog, store: FakeStore, clock: FakeClock, since: int
) -> None:
    filled(log, 3)
    assert shared(log) is log
    for version in (2, 3):
        hole(log, store, version)
    fresh = others(log, since)
    assert shared(fresh) is fresh, "who opens it now goes on with what is there"
    assert log.state.version == 3
    with pytest.raises((TopicChanged, LogIncomplete)):  # at the second look at the latest
        for _ in range(2):
            clock.advance(RECHECK_S + 1)
            log.append([add("mine")])


def test_catching_up_does_not_wait_for_a_commit_under_way(log: DeltaLog) -> None:
    fresh = others(log, 2)
    with ThreadPoolExecutor(1) as pool, log._lock:
        pool.submit(log.catch_up, fresh).result(10)
    assert log.state.version == 0


def test_a_commit_of_unknown_outcome_is_still_our_own_after_catching_up(log: DeltaLog, store: FakeStore) -> None:
    log.claim("p")
    store.puts = [Put("unknown", applied=False) for _ in range(3)]
    with pytest.raises(CommitUnknown):
        log.append([add("f")], {"p": 1}, expect={epoch_of("p"): 1}, deadline_s=0.0)
    assert "created" in store.land_late_puts()
    log.catch_up(others(log, 2))
    with pytest.raises(TxnAdvanced) as caught:
        log.append([add("f")], {"p": 1}, expect={epoch_of("p"): 1})
    assert caught.value.ours
    assert paths(log) == ["f", "r0", "r1"]


def test_damage_is_not_caught_up_with(log: DeltaLog, store: FakeStore) -> None:
    fresh = others(log, 5)
    del store.objects[log.entry_path(3)]
    damaged = again(log)
    assert damaged.state.damage is not None
    log.catch_up(damaged)
    assert log.state.version == 0
    log.catch_up(fresh)
    assert log.state.version == 5


def test_a_copy_goes_on_by_itself(log: DeltaLog, store: FakeStore) -> None:
    filled(log, 3)
    store.requests.clear()
    copy = log.copy()
    assert not store.requests
    assert copy.append([add("mine")], {"p": 1}).version == 4
    assert (log.state.version, log.txn("p")) == (3, None)
    assert log.append([add("next")]).attempts == 2
    assert again(log).copy().open().version == 5, "of one that was not opened yet, too"


def test_an_opening_hands_on_the_entries_that_it_has_read(log: DeltaLog, store: FakeStore) -> None:
    filled(log, 5)
    entries: list[Entry] = []
    opened = again(log)
    opened.open(entries=entries)
    assert [entry.version for entry in entries] == [0, 1, 2, 3, 4, 5]
    entries.clear()
    opened.open(entries=entries)
    assert not entries, "it reads once"
    write_checkpoint(again(log))
    log.append([add("more")])
    again(log).open(entries=entries)
    assert [entry.version for entry in entries] == [6]


def test_a_short_log_is_not_read_far_beyond_its_end(log: DeltaLog, store: FakeStore) -> None:
    for n in range(1, 200):
        log.append([add(f"f{n}")])
        if n in {1, 2, 10, 20, 50, 62, 63, 64, 100, 199}:
            store.requests.clear()
            assert again(log).load().version == n
            assert store.requests["GET"] <= 1 + (n + 1) + (8 if n < 63 else 16)
