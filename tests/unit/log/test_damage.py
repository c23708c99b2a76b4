"""Objects carry the checksum of their bytes in their names, and readers notice what was damaged on the way."""

from __future__ import annotations

import random

import pytest

from brokerless.columns.records import decode, encode, load, object_name, to_table
from brokerless.errors import StoreError
from brokerless.schema import Schema
from tests.support.fakes import FakeClock, FakeStore

ROWS = to_table([{"n": number} for number in range(100)], Schema.parse("n long"), topic="t", produced_at_us=0)
DATA = encode(ROWS)
NAME = f"t/{object_name(DATA, 'u')}"


class Damaged(FakeStore):
    """Gives other bytes than it holds, so many times."""

    def __init__(self, data: bytes, times: int) -> None:
        super().__init__(FakeClock())
        self.damaged, self.times = data, times

    def get(self, path: str, *, within_s: float | None = None) -> bytes:
        self.times -= 1
        return self.damaged if self.times >= 0 else super().get(path)


def flipped(seed: int) -> bytes:
    bit = random.Random(seed).randrange(8 * len(DATA))
    data = bytearray(DATA)
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


@pytest.mark.parametrize("seed", range(50))
def test_a_flipped_bit_is_noticed_and_the_object_asked_for_again(seed: int) -> None:
    store = Damaged(flipped(seed), times=1)
    store.put(NAME, DATA)
    assert load(store, NAME).column("n").to_pylist() == list(range(100))
    assert store.times == -1


@pytest.mark.parametrize("data", [flipped(0), DATA[:-1], DATA + b"x", b""])
def test_what_stays_damaged_is_a_named_error(data: bytes) -> None:
    store = Damaged(data, times=2)
    store.put(NAME, DATA)
    with pytest.raises(StoreError, match="is damaged"):
        load(store, NAME)


@pytest.mark.parametrize("data", [DATA[:-1], DATA[: len(DATA) // 2], b"", b"PAR1PAR1", bytes(1000)])
def test_bytes_that_are_no_parquet_are_a_named_error_whoever_wrote_them(data: bytes) -> None:
    with pytest.raises(StoreError):
        decode(data)
    store = Damaged(data, times=2)
    with pytest.raises(StoreError, match="t/part-00000-of-somebody"):
        load(store, "t/part-00000-of-somebody.snappy.parquet")


def test_objects_of_others_are_read_as_they_are() -> None:
    store = FakeStore(FakeClock())
    for name in ("part-00000-c8f1-c000.snappy.parquet", "x.parquet"):
        store.put(f"t/{name}", DATA)
        assert load(store, f"t/{name}").num_rows == 100


@pytest.mark.parametrize("table", ["t", "t.3"])
def test_a_missing_object_is_named_with_what_to_do(table: str) -> None:
    with pytest.raises(StoreError, match=rf"/{table}/part-.* not in the store.*'brokerless verify t'"):
        load(FakeStore(FakeClock()), f"{table}/{NAME.rpartition('/')[2]}")
