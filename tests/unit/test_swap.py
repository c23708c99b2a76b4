"""Compare-and-swap on the stores that need no server: memory and a local folder."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from brokerless.errors import StoreUnavailable
from brokerless.settings import Settings
from brokerless.store import open_store
from tests.support.fakes import FakeClock, FakeStore, Put
from tests.support.swaps import check_missing, check_swaps, race

if TYPE_CHECKING:
    from pathlib import Path

    from brokerless.store import Store


@pytest.fixture(params=["memory", "file", "fake"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "fake":
        return FakeStore(FakeClock())
    root = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path}/root"
    return open_store(Settings("embedded", root))


def test_a_swap_needs_the_tag_that_the_object_has(store: Store) -> None:
    check_swaps(store)


def test_what_is_not_there_cannot_be_replaced(store: Store) -> None:
    check_missing(store)


def test_one_of_sixteen_threads_wins_each_round(store: Store) -> None:
    race(store)


def test_two_handles_of_one_folder_keep_each_other_out(tmp_path: Path) -> None:
    stores = [open_store(Settings("embedded", f"file://{tmp_path}/root", region=region)) for region in ("a", "b")]
    assert stores[0] is not stores[1]
    stores[0].swap("g/x", b"0", None)
    barrier = threading.Barrier(2)

    def add(store: Store) -> None:
        barrier.wait(10)
        done = 0
        while done < 25:
            data, tag = store.get_tagged("g/x")
            done += store.swap("g/x", str(int(data) + 1).encode(), tag)[0] == "created"

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(add, stores))
    assert stores[0].get("g/x") == b"50"


def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    store = open_store(Settings("embedded", f"file://{tmp_path}/root"))
    store.put("g", b"a file where the folder is to be")
    with pytest.raises(StoreUnavailable, match="g/x"):
        store.swap("g/x", b"1", ("tag", None))


def test_a_scripted_swap_is_lost_late_or_unheard() -> None:
    store = FakeStore(FakeClock())
    _, tag = store.swap("g/x", b"1", None)
    store.swaps = [Put("unknown", applied=False), Put("unknown")]
    assert store.swap("g/x", b"2", tag) == ("unknown", None)
    assert store.get("g/x") == b"1"
    assert store.swap("g/x", b"3", tag) == ("unknown", None)
    assert store.get("g/x") == b"3"
    assert store.land_late_swaps() == ["exists"], "its condition does not hold any more"
