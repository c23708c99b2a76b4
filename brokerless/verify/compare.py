"""Compare the rows of two topics, in memory that does not grow with them.

The rows are divided by a hash of their key (without a key: of themselves) into ``_BUCKETS`` buckets. A first reading
adds up a hash of each row by bucket: where the sums are equal, so are the rows. Only the buckets that differ are read
again, so many at a time as hold ``_MOST_ROWS`` rows. Two topics that are equal are read once.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.columns.records import rows_as_json
from brokerless.consumer import Consumer
from brokerless.errors import SchemaError
from brokerless.topics import describe_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from brokerless.store import Store
    from brokerless.topics import Topic

_BUCKETS: Final = 2**16
_MOST_ROWS: Final = 500_000
_HASH_BYTES: Final = 16
_Rows = tuple[Counter[bytes], Counter[bytes]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the rows of two topics differ.

    Attributes:
        columns: what was compared: the columns that both have, without ``_produced_at``.
        rows: how many rows each has.
        only_first: how many rows are in the first topic only; with a key, those whose key is.
        only_second: likewise.
        differing: with a key, how many keys have other rows in one topic than in the other.
        examples: some of them, as JSON text: the key, or without one the row.
    """

    columns: tuple[str, ...]
    rows: tuple[int, int]
    only_first: int
    only_second: int
    differing: int
    examples: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the rows are the same, in any order."""
        return not (self.only_first or self.only_second or self.differing)


def compare_topics(
    store: Store,
    first: str,
    second: str,
    *,
    key: Sequence[str] = (),
    examples: int = 10,
    on_rows: Callable[[int], None] | None = None,
    clock: Clock = SYSTEM,
) -> Comparison:
    """Compare what two topics hold now, without regard to order, partitions and ``_produced_at``.

    Args:
        store: where they are.
        first: a topic.
        second: the other one.
        key: the columns by which rows belong together; without them a changed row is one in each topic only.
        examples: how many differences to return.
        on_rows: called with the number of rows that were read so far.
        clock: time.

    Raises:
        TopicNotFound: one is missing.
        SchemaError: they have no column in common, or one of the key is missing.
    """
    topics = [describe_topic(store, name, clock=clock) for name in (first, second)]
    columns = tuple(name for name in topics[0].schema.names if name in topics[1].schema.names)
    if not columns or not set(key) <= set(columns):
        raise SchemaError(
            f"Topics {first!r} and {second!r} must both have {', '.join(key) or 'a column'}; they have in common: "
            f"{', '.join(columns) or 'none'}."
        )
    pair = _Pair(store, topics, columns, tuple(key), clock, on_rows or (lambda _: None))
    counts, differing = pair.add_up()
    found: Counter[str] = Counter()
    shown: list[str] = []
    for some in _groups(differing, [a + b for a, b in zip(*counts, strict=True)]):
        wanted: dict[bytes, str] = {}
        for part, rows in pair.rows_in(some).items():
            differences = _differences(rows, has_key=bool(key))
            found += differences
            if differences and len(shown) + len(wanted) < examples:
                wanted[part] = next(iter(differences))
        shown += [_example(where, text, first, second) for where, text in pair.texts_of(wanted)]
    return Comparison(
        columns,
        (sum(counts[0]), sum(counts[1])),
        found["first"],
        found["second"],
        found["both"],
        tuple(shown),
    )


@dataclass(slots=True)
class _Pair:
    store: Store
    topics: Sequence[Topic]
    columns: tuple[str, ...]
    key: tuple[str, ...]
    clock: Clock
    on_rows: Callable[[int], None]
    done: int = 0

    def read(self, topic: Topic) -> Iterator[tuple[int, bytes, bytes, str]]:
        """Yield for each row its bucket, the hashes of its key and of itself, and its key as JSON text."""
        for lines, keys in _rows(self.store, topic, self.columns, self.key, self.clock):
            for line, text in zip(lines, keys, strict=True):
                whole = _hash(line)
                part = _hash(text) if self.key else whole
                yield int.from_bytes(part[:2], "big"), part, whole, text
            self.done += len(lines)
            self.on_rows(self.done)

    def add_up(self) -> tuple[tuple[list[int], list[int]], list[int]]:
        """Return how many rows each bucket has in each topic, and the buckets that differ."""
        sums, counts = [0] * _BUCKETS, ([0] * _BUCKETS, [0] * _BUCKETS)
        for number, topic in enumerate(self.topics):
            for bucket, _, whole, _ in self.read(topic):
                sums[bucket] += (1 - 2 * number) * int.from_bytes(whole, "big")
                counts[number][bucket] += 1
        return counts, [b for b in range(_BUCKETS) if sums[b] or counts[0][b] != counts[1][b]]

    def rows_in(self, buckets: set[int]) -> dict[bytes, _Rows]:
        """Return the hashes of the rows in each topic by key."""
        found: dict[bytes, _Rows] = {}
        for number, topic in enumerate(self.topics):
            for bucket, part, whole, _ in self.read(topic):
                if bucket in buckets:
                    found.setdefault(part, (Counter(), Counter()))[number][whole] += 1
        return found

    def texts_of(self, wanted: dict[bytes, str]) -> Iterator[tuple[str, str]]:
        """Yield the keys with these hashes as text, each once."""
        for topic in self.topics:
            if not wanted:
                return
            for _, part, _, text in self.read(topic):
                if part in wanted:
                    yield wanted.pop(part), text


def _differences(rows: _Rows, *, has_key: bool) -> Counter[str]:
    left, right = rows
    if has_key and left and right:
        return Counter(both=1) if left != right else Counter()
    # Unary plus drops the zeros.
    return +Counter(first=(left - right).total(), second=(right - left).total())


def _example(where: str, text: str, first: str, second: str) -> str:
    names = {"first": [first], "second": [second], "both": [first, second]}[where]
    return f'{{"in": {json.dumps(names)}, "row": {text}}}'


def _groups(buckets: Sequence[int], rows: Sequence[int]) -> Iterator[set[int]]:
    """Divide buckets so that each part has few rows."""
    part: set[int] = set()
    size = 0
    for bucket in buckets:
        if part and size + rows[bucket] > _MOST_ROWS:
            yield part
            part, size = set(), 0
        part.add(bucket)
        size += rows[bucket]
    if part:
        yield part


def _rows(
    store: Store, topic: Topic, columns: Sequence[str], key: Sequence[str], clock: Clock
) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the rows of each commit up to the head that was found first, and their keys, as JSON text."""
    heads = dict(enumerate(topic.heads))
    with Consumer(topic, start="beginning", store=store, clock=clock) as consumer:
        while any(offset.version <= heads[number] for (_, number), offset in consumer.position().items()):
            batches = consumer.poll(1.0)
            if not batches:
                consumer.check_ends()
            for batch in batches:
                if batch.version <= heads[batch.partition]:
                    lines = rows_as_json(batch.data.select(list(columns)))
                    yield lines, rows_as_json(batch.data.select(list(key))) if key else lines


def _hash(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).digest()
