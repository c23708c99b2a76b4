"""Which partition a key belongs to: murmur2, as Kafka's default partitioner, so that keys land where they did there."""

from __future__ import annotations

from functools import lru_cache

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned (source: Austin Appleby's MurmurHash2 with the seed that Kafka fixed, 0x9747b28c)."""
    length = len(data)
    h = 0x9747B28C ^ length
    whole = length - length % 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


@lru_cache(maxsize=65536)
def partition_of(key: str | bytes | int, partitions: int) -> int:
    """The key's partition: Kafka's ``toPositive(murmur2(key)) % partitions``. Text is hashed as UTF-8, numbers as text.

    Cached: a topic's keys repeat, and then a row costs one look-up.
    """
    data = key if isinstance(key, bytes) else str(key).encode()
    return (murmur2(data) & 0x7FFFFFFF) % partitions
