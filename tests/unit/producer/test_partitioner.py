"""Partitions by key, as Kafka chooses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerless.producer.partitioner import murmur2, partition_of

# Source: Apache Kafka, clients/src/test/java/org/apache/kafka/common/utils/UtilsTest.java, testMurmur2.
KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "signed"), KAFKA.items())
def test_hashes_and_partitions_are_those_of_kafkas_default_partitioner(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32
    assert partition_of(key, 7) == (signed & 0x7FFFFFFF) % 7
    assert partition_of(key.decode(), 7) == partition_of(key, 7)


@given(st.one_of(st.text(), st.binary(), st.integers()), st.integers(1, 1024))
def test_every_key_has_one_partition(key: str | bytes | int, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions
    assert partition_of(key, 1) == 0


def test_numbers_are_hashed_as_their_text() -> None:
    assert partition_of(21, 64) == partition_of("21", 64)
