"""HTTP requests with messages, against a store in memory: all of a request is committed, or nothing."""

from __future__ import annotations

import base64
import gzip
import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from brokerless import metrics
from brokerless.columns.records import decode
from brokerless.errors import AccessDenied, DeliveryFailed, StoreUnavailable
from brokerless.ingest.batches import Routes
from brokerless.ingest.http import HttpIngest, HttpRequest, HttpResponse, namespace_of
from brokerless.log.log import DeltaLog
from brokerless.metrics import Meter
from brokerless.producer.pool import MAX_OPEN, ProducerPool
from brokerless.producer.producer import Producer
from brokerless.schema import Schema, partition_table
from brokerless.topics import create_topic, delete_topic
from tests.support.altered import alter
from tests.support.fakes import FakeClock, FakeStore, Put

SCHEMA = Schema.parse("s string, n long")
WIDE = Schema.parse("s string, n long, f double, b boolean, d decimal(6,2), day date, at timestamp, raw binary")
JSON, LINES = "application/json", "application/x-ndjson"
LIMIT = 10_000


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    store = FakeStore(clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    create_topic(store, "wide", WIDE, partitions=2, clock=clock)
    return store


@pytest.fixture
def http(store: FakeStore) -> HttpIngest:
    return opened(store)


def opened(store: FakeStore, *, default: str = "t", meter: Meter | None = None) -> HttpIngest:
    return HttpIngest(
        routes=Routes(("t", "wide", "missing"), default),
        producers=ProducerPool(store, timeout_s=2, clock=store.clock),
        max_bytes=LIMIT,
        meter=meter or Meter(),
        clock=store.clock,
    )


def post(
    body: str | bytes, kind: str | None = JSON, *, path: str = "/", method: str = "POST", **headers: str
) -> HttpRequest:
    """A request; a body of bytes comes as base64, as a function URL sends it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if kind is not None:
        named["content-type"] = kind
    if isinstance(body, bytes):
        return HttpRequest(method, path, named, base64.b64encode(body).decode(), base64_encoded=True)
    return HttpRequest(method, path, named, body, base64_encoded=False)


def numbers(store: FakeStore, table: str = "t") -> list[int]:
    return [
        n
        for entry in DeltaLog(store, table, clock=store.clock).read_from(0)
        for add in entry.messages
        for n in decode(store.get(f"{table}/{add.path}")).column("n").to_pylist()
    ]


def message(n: int) -> str:
    return json.dumps({"s": "x", "n": n})


def recreate(store: FakeStore, topic: str = "t", schema: Schema = SCHEMA, *, partitions: int = 1) -> None:
    delete_topic(store, topic, clock=store.clock)
    create_topic(store, topic, schema, partitions=partitions, clock=store.clock)


def refused(response: HttpResponse, status: int, *words: str) -> None:
    assert response.status == status, response
    for word in words:
        assert word in response.content["error"]
    assert len(response.content["error"]) < 600


def test_an_answer_says_where_the_messages_are(http: HttpIngest, store: FakeStore) -> None:
    assert http.handle(post(f"[{message(1)}, {message(2)}]")) == HttpResponse(
        200,
        {"acks": [{"topic": "t", "partition": 0, "first": "1:0", "last": "1:1", "messages": 2, "duplicate": False}]},
    )
    assert numbers(store) == [1, 2]


def test_warm_it_costs_two_requests(http: HttpIngest, store: FakeStore) -> None:
    http.handle(post(message(1)))
    store.requests.clear()
    http.handle(post(message(2)))
    assert store.requests == {"PUT": 2}


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (message(1), JSON, [1]),
        (message(1), None, [1]),
        (message(1), "Application/JSON; charset=UTF-8", [1]),
        (f" [ {message(1)} ,\r\n{message(2)}\n]\n", JSON, [1, 2]),
        (f"\ufeff{message(1)}", JSON, [1]),
        ("[]", JSON, []),
        (f"{message(1)}\n\n{message(2)}\r\n", LINES, [1, 2]),
        ('{"s": "a\u2028b", "n": 1}\n', LINES, [1]),
        ("", LINES, []),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_bodies(
    http: HttpIngest, store: FakeStore, body: str, kind: str | None, expected: list[Any], packed: bool
) -> None:
    request = post(gzip.compress(body.encode()), kind, content_encoding="gzip") if packed else post(body, kind)
    assert http.handle(request).status == 200
    assert numbers(store) == expected


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("", JSON, ["Line 1, column 1", "not JSON"]),
        ("nonsense", JSON, ["Line 1, column 1", "not JSON"]),
        (f"[{message(1)},\n {message(2)},\n oops]", JSON, ["Line 3, column 2", "not JSON"]),
        (f"[{message(1)}\n {message(2)}]", JSON, ["Line 2, column 2", "','"]),
        (f"[{message(1)},]", JSON, ["Line 1, column 2", "not JSON"]),
        (f"[{message(1)}", JSON, ["not JSON", "','"]),
        (f"{message(1)} {message(2)}", JSON, ["column 20", "Extra data"]),
        (f"[{message(1)}] x", JSON, ["Extra data"]),
        (f"[{message(1)},\n 5]", JSON, ["Line 2, column 2", "not a JSON object"]),
        ("null", JSON, ["not a JSON object"]),
        ('[{"s": "x", "n": 1},\n {"s": "x"}]', JSON, ["Line 2, column 2", "lacks the column 'n'"]),
        ('{"s": "x", "n": 1, "more": 2}', JSON, ["no column 'more'"]),
        ('{"s": "x", "n": 1, "_produced_at": null}', JSON, ["no column '_produced_at'"]),
        (f'[{message(1)},\n\n {{"s": "x", "n": "1"}}]', JSON, ["Line 3, column 2", "'n'", "'1'"]),
        ('{"s": "x", "n": NaN}', JSON, ["NaN"]),
        ('{"s": "x", "n": Infinity}', JSON, ["Infinity"]),
        ('{"s": "x", "n": 1e999}', JSON, ["'n'"]),
        ('{"s": "x", "n": ' + "9" * 5000 + "}", JSON, ["not JSON"]),
        ('{"s": "\\ud800", "n": 1}', JSON, ["'s'"]),
        ("[" * 9000, JSON, ["not JSON"]),
        ('{"s": "x", "n": [[{}]]}', JSON, ["'n'"]),
        ('{"s": "x", "n": 1,\n"n": 2}', JSON, ["not JSON", "a name twice"]),
        (f"{message(1)}\n{{", LINES, ["Line 2", "not JSON"]),
        (f"{message(1)}\n\n[1]", LINES, ["Line 3", "not a JSON object"]),
        (f'{message(1)}\n{{"s": 1, "n": 1}}', LINES, ["Line 2", "'s'"]),
        (b'{"s": "x",\n"n": "\xff"}', JSON, ["Line 2, byte 7", "UTF-8"]),
        ('"\ud800"', JSON, ["UTF-8"]),
    ],
)
def test_a_bad_body_is_refused_with_its_place_and_nothing_is_written(
    http: HttpIngest, store: FakeStore, body: str | bytes, kind: str, words: list[str]
) -> None:
    refused(http.handle(post(body, kind)), 400, *words)
    assert numbers(store) == []
    assert not any(path.endswith(".parquet") for path in store.objects)


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
def test_a_number_that_no_double_can_hold_is_refused(http: HttpIngest, number: str) -> None:
    row = json.dumps(dict.fromkeys(WIDE.names)).replace('"f": null', f'"f": {number}')
    refused(http.handle(post(row, path="/topics/wide")), 400, "'f'", "no double")


CHANGED = [("f", 2**53 + 1), ("d", "1.125"), ("at", "2026-11-21T09:00:00.000000001Z")]


@pytest.mark.parametrize(("name", "value"), CHANGED)
@pytest.mark.parametrize("kind", [JSON, LINES])
def test_a_value_that_would_change_is_refused_with_its_place(
    http: HttpIngest, name: str, value: Any, kind: str
) -> None:
    nothing = dict.fromkeys(WIDE.names)
    body = f"{json.dumps(nothing)}\n{json.dumps({**nothing, name: value})}"
    body = f"[{body.replace(chr(10), ',' + chr(10))}]" if kind == JSON else body
    refused(http.handle(post(body, kind, path="/topics/wide")), 400, "Line 2", f"'{name}'", f"cannot hold {value!r}")


def test_no_depth_is_a_crash(http: HttpIngest, store: FakeStore) -> None:
    # Somewhere here lies what can be read but not shown any more.
    for depth in range(700, 1001):
        refused(http.handle(post('{"s": "x", "n": ' + "[" * depth + "]" * depth + "}")), 400)
    assert numbers(store) == []


def test_a_large_body_is_refused(http: HttpIngest) -> None:
    refused(http.handle(post(" " * (LIMIT + 1))), 413, str(LIMIT))
    refused(http.handle(post(b" " * (LIMIT + 1))), 413)
    fits = json.dumps({"n": 1, "s": "x" * (LIMIT - len('{"n": 1, "s": ""}'))})
    assert http.handle(post(fits)).status == 200
    assert http.handle(post(gzip.compress(fits.encode()), content_encoding="gzip")).status == 200


@pytest.mark.parametrize(
    "bomb",
    [
        gzip.compress(b" " * (LIMIT + 1)),
        gzip.compress(b"\0" * 50_000_000)[:LIMIT],
    ],
    ids=["just over", "ten million"],
)
def test_what_unpacks_to_too_much_is_refused(http: HttpIngest, bomb: bytes) -> None:
    refused(http.handle(post(bomb, content_encoding="gzip")), 413, str(LIMIT))


def test_unpacking_stops_at_the_limit(http: HttpIngest) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)[:LIMIT]
    tracemalloc.start()
    try:
        http.handle(post(bomb, content_encoding="gzip"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"not gzip", "not gzip"),
        (gzip.compress(message(1).encode())[:-3], "too early"),
        (gzip.compress(message(1).encode()) + b"behind", "one part"),
        (b"", "too early"),
    ],
    ids=["other", "cut", "trailing", "empty"],
)
def test_broken_gzip(http: HttpIngest, data: bytes, words: str) -> None:
    refused(http.handle(post(data, content_encoding="gzip")), 400, words)


def test_broken_base64(http: HttpIngest) -> None:
    refused(http.handle(HttpRequest("POST", "/", {}, "?!", base64_encoded=True)), 400, "base64")


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [
        ("text/plain", ""),
        ("text/csv", ""),
        ("application/x-www-form-urlencoded", ""),
        (JSON, "br"),
        (JSON, "gzip, gzip"),
    ],
)
def test_other_kinds_of_body(http: HttpIngest, kind: str, encoding: str) -> None:
    refused(http.handle(post(message(1), kind, content_encoding=encoding)), 415)


def test_other_character_sets(http: HttpIngest) -> None:
    refused(http.handle(post(message(1), 'text/json; charset="latin-1"')), 415, "latin-1", "UTF-8")


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/topics/t", "POST", 200),
        ("/topics/t/", "POST", 200),
        ("/topics/forbidden", "POST", 403),
        ("/topics/t.dead_letters", "POST", 403),
        ("/topics/..", "POST", 403),
        ("/topics/t%2F_delta_log", "POST", 403),
        ("/topics/missing", "POST", 404),
        ("/topics/", "POST", 404),
        ("/topics/t/x", "POST", 404),
        ("/elsewhere", "POST", 404),
        ("/topics/t", "GET", 405),
        ("/", "PUT", 405),
    ],
)
def test_paths_and_methods(http: HttpIngest, path: str, method: str, status: int) -> None:
    response = http.handle(post(message(1), path=path, method=method))
    assert response.status == status
    assert (response.headers == {"Allow": "POST"}) == (status == 405)


# Who sends, and which request it is


def numbered(n: int, sequence: int | str, producer_id: str = "sensor-1", caller: str = "") -> HttpRequest:
    request = post(message(n), producer_id=producer_id, producer_sequence=str(sequence))
    return replace(request, caller=caller)


def test_a_request_that_is_repeated_is_written_once(http: HttpIngest, store: FakeStore) -> None:
    for duplicate in (False, True):
        (ack,) = http.handle(numbered(1, 0)).content["acks"]
        assert ack["duplicate"] == duplicate
        assert (ack["first"] is None) == duplicate
    assert http.handle(numbered(2, 1)).status == 200
    assert numbers(store) == [1, 2]


def test_copies_of_the_function_take_a_clients_requests_in_turn(store: FakeStore) -> None:
    copies = [opened(store), opened(store)]
    for n in range(6):
        assert copies[n % 2].handle(numbered(n, n)).status == 200
        assert copies[(n + 1) % 2].handle(numbered(n, n)).content["acks"][0]["duplicate"]
    assert numbers(store) == list(range(6))


@pytest.mark.parametrize(
    "headers",
    [
        {"producer_id": "a"},
        {"producer_sequence": "1"},
        {"producer_id": "", "producer_sequence": "1"},
        {"producer_id": "a/epoch", "producer_sequence": "1"},
        {"producer_id": "pipeline:t:0", "producer_sequence": "1"},
        {"producer_id": "x" * 201, "producer_sequence": "1"},
        {"producer_id": "a", "producer_sequence": "-1"},
        {"producer_id": "a", "producer_sequence": "1.0"},
        {"producer_id": "a", "producer_sequence": "9" * 19},
        {"producer_id": "a", "producer_sequence": "٣"},
    ],
)
def test_headers_that_cannot_be(http: HttpIngest, store: FakeStore, headers: dict[str, str]) -> None:
    refused(http.handle(post(message(1), **headers)), 400, "Producer-")
    assert numbers(store) == []


def test_a_sequence_that_goes_back_is_refused_and_stops_nobody(http: HttpIngest, store: FakeStore) -> None:
    http.handle(numbered(1, 5))
    refused(http.handle(numbered(2, 3)), 400, "Sequence 3", "sequences must grow")
    assert http.handle(numbered(3, 6)).status == 200
    assert numbers(store) == [1, 3]


ALICE, BOB = "arn:aws:iam::123456789012:user/alice", "arn:aws:sts::123456789012:assumed-role/bob"


def test_a_request_cannot_fence_a_producer_of_the_library(http: HttpIngest, store: FakeStore, clock: FakeClock) -> None:
    billing = Producer("t", producer_id="billing", store=store, clock=clock)
    billing.send([{"s": "x", "n": 1}], sequence=0)
    for caller in ("", ALICE):
        assert http.handle(numbered(2, 100, "billing", caller)).status == 200
    (ack,) = billing.send([{"s": "x", "n": 3}], sequence=1)
    assert not ack.duplicate
    # Nor is what it sends after a restart taken for a repetition.
    with Producer("t", producer_id="billing", store=store, clock=clock) as restarted:
        (ack,) = restarted.send([{"s": "x", "n": 4}], sequence=2)
    assert not ack.duplicate
    assert numbers(store) == [1, 2, 2, 3, 4]


def test_callers_with_the_same_producer_id_do_not_hinder_each_other(http: HttpIngest, store: FakeStore) -> None:
    callers = ("", ALICE, BOB)
    for n, caller in enumerate(callers):
        for duplicate in (False, True):
            (ack,) = http.handle(numbered(n, 7, "sensor", caller)).content["acks"]
            assert ack["duplicate"] == duplicate
    commits = DeltaLog(store, "t", clock=store.clock).state.version
    for n, caller in enumerate(callers, start=3):
        assert http.handle(numbered(n, 8, "sensor", caller)).status == 200
    assert numbers(store) == list(range(6))
    assert DeltaLog(store, "t", clock=store.clock).state.version == commits + 3, "somebody had to take the id over"


@pytest.mark.parametrize(
    ("caller", "namespace"),
    [
        ("", "http/anonymous"),
        (ALICE, "http/arn%3Aaws%3Aiam%3A%3A123456789012%3Auser%2Falice"),
        ("a.b-c_d", "http/a.b-c_d"),
        ("a/epoch", "http/a%2Fepoch"),
        ("100%~é\n", "http/100%25%7E%C3%A9%0A"),
    ],
)
def test_a_caller_is_a_name_space(caller: str, namespace: str) -> None:
    assert namespace_of(caller) == namespace


def test_long_callers_stay_apart_in_bounded_names() -> None:
    names = {namespace_of("x" * length) for length in (100, 101, 200, 201, 1000, 5000)}
    assert len(names) == 6
    assert max(map(len, names)) <= 205


def test_an_id_that_would_be_an_epoch_is_refused(http: HttpIngest) -> None:
    # Topics that are created again keep the epochs: its old sequences would hide the new ones.
    refused(http.handle(numbered(1, 0, "epoch")), 400, "Producer-Id")


def test_producers_are_kept_up_to_a_number(store: FakeStore, clock: FakeClock) -> None:
    producers = ProducerPool(store, timeout_s=2, clock=clock)
    first = producers.get("t", "id-0")
    assert producers.get("t", "id-0") is first
    for n in range(1, MAX_OPEN + 1):
        producers.get("t", f"id-{n}")
    assert producers.get("t", "id-0") is not first


# The store and the topic


def test_an_unknown_outcome_is_said_and_the_repetition_settles_it(http: HttpIngest, store: FakeStore) -> None:
    http.handle(numbered(1, 0))
    store.puts = [Put("unknown", applied=False) for _ in range(1000)]
    response = http.handle(numbered(2, 1))
    refused(response, 503, "may or may not be committed")
    assert response.content["unknown"] is True
    assert int(response.headers["Retry-After"]) > 0
    store.puts.clear()
    store.land_late_puts()
    assert http.handle(numbered(2, 1)).content["acks"][0]["duplicate"]
    assert numbers(store) == [1, 2]


def test_too_many_writers(http: HttpIngest, store: FakeStore, clock: FakeClock) -> None:
    http.handle(post(message(1)))
    rival = DeltaLog(store, "t", clock=clock)

    def win() -> None:
        script, store.puts = store.puts, []
        rival.append([])
        store.puts = script
        clock.advance(1)

    store.puts = [Put("exists", before=win) for _ in range(100)]
    response = http.handle(post(message(2)))
    refused(response, 429, "nothing was written")
    assert (response.content["unknown"], "Retry-After" in response.headers) == (False, True)
    assert numbers(store) == [1]


def test_a_refusal_of_the_store_is_not_the_clients_fault(http: HttpIngest, store: FakeStore) -> None:
    http.handle(post(message(1)))
    store.puts = [Put(AccessDenied("x"), applied=False)]
    with pytest.raises(DeliveryFailed):
        http.handle(post(message(2)))


def test_a_topic_that_was_deleted_and_created_again(http: HttpIngest, store: FakeStore, clock: FakeClock) -> None:
    http.handle(post(message(1)))
    delete_topic(store, "t", clock=clock)
    refused(http.handle(post(message(2))), 404)
    create_topic(store, "t", Schema.parse("n long"), clock=clock)
    refused(http.handle(post(message(3))), 400, "no column 's'")
    assert http.handle(post('{"n": 4}')).status == 200


def test_a_stale_handle_is_opened_anew_within_the_request(http: HttpIngest, store: FakeStore, clock: FakeClock) -> None:
    http.handle(post(message(1)))
    delete_topic(store, "t", clock=clock)
    create_topic(store, "t", SCHEMA, clock=clock)
    assert http.handle(post(message(2))).status == 200
    assert numbers(store)[-1:] == [2]


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_request_that_is_repeated_into_a_topic_created_again_is_written(
    http: HttpIngest, store: FakeStore, by_hand: bool
) -> None:
    requests = [numbered(n, n) for n in range(6)]
    for request in requests:
        http.handle(request)
    if by_hand:
        store.delete([path for path in store.objects if path.startswith("t/")])
        create_topic(store, "t", SCHEMA, clock=store.clock)
    else:
        recreate(store)
    for duplicate in (False, True):
        acks = [ack for request in requests for ack in http.handle(request).content["acks"]]
        assert [ack["duplicate"] for ack in acks] == [duplicate] * 6
    assert numbers(store) == [*([] if by_hand else range(6)), *range(6)]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 4), (4, 1)])
def test_a_topic_created_again_with_other_partitions_takes_each_request_once(
    store: FakeStore, clock: FakeClock, before: int, after: int
) -> None:
    create_topic(store, "missing", SCHEMA, partitions=before, clock=clock)
    warm = opened(store, default="missing")
    for n in range(2):  # not so many that each partition's log is open
        warm.handle(numbered(n, n))
    recreate(store, "missing", partitions=after)
    tables = [partition_table("missing", number) for number in range(max(before, after))]
    sent = [numbers(store, table) for table in tables]
    for copy in (warm, opened(store, default="missing")):
        assert {copy.handle(numbered(n, n)).status for n in range(12)} == {200}
    taken = [numbers(store, table)[len(old) :] for table, old in zip(tables, sent, strict=True)]
    assert taken == [[n for n in range(12) if n % after == number] for number in range(len(tables))]


@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize("how", ["created again", "altered", "altered before its log was read"])
def test_a_column_that_is_new_is_known_to_the_next_request(
    store: FakeStore, clock: FakeClock, how: str, sequences: bool
) -> None:
    http = opened(store)
    more = Schema.parse("s string, n long, t string")
    first, headers = ({"producer_id": "sensor", "producer_sequence": n} if sequences else {} for n in "45")
    http.handle(post("bad" if how.endswith("read") else message(1), **first))
    recreate(store, schema=more) if how == "created again" else alter(store, "t", more)
    request = post('{"s": "x", "n": 2, "t": "y"}', **headers)
    assert http.handle(request).status == 200
    refused(http.handle(post(message(3), **headers)), 400, "lacks the column 't'")
    assert numbers(store)[-1:] == [2]


def test_nothing_is_refused_by_a_schema_that_could_not_be_looked_at(http: HttpIngest, store: FakeStore) -> None:
    http.handle(numbered(1, 0))

    def fail(path: str) -> None:
        raise StoreUnavailable(path)

    store.on_get = fail
    refused(http.handle(post('{"n": 1}')), 503, "nothing was written")
    refused(http.handle(numbered(1, 0)), 503, "nothing was written")
    assert http.handle(numbered(2, 1)).status == 200


def test_what_is_not_written_costs_two_requests(http: HttpIngest, store: FakeStore) -> None:
    http.handle(numbered(1, 0))
    for request, status in ((numbered(1, 0), 200), (post('{"n": 1}'), 400)):
        http.handle(request)
        store.requests.clear()
        assert http.handle(request).status == status
        assert store.requests.keys() == {"GET"}
        assert store.requests.total() <= 2


def test_what_happened_is_counted_and_only_for_allowed_topics(store: FakeStore) -> None:
    meter = Meter()
    http = opened(store, meter=meter)
    http.handle(post(f"[{message(1)},{message(2)}]"))
    http.handle(numbered(3, 0))
    http.handle(numbered(3, 0))
    http.handle(post("bad"))
    http.handle(post("bad", path="/topics/made-up"))
    found = {(datum.metric, datum.of): datum for datum in meter.take()}
    assert {of for _, of in found} == {"t"}
    produced = found[metrics.PRODUCED_MESSAGES, "t"]
    assert sum(value * count for value, count in zip(produced.values, produced.counts, strict=True)) == 3
    assert found[metrics.REJECTED_MESSAGES, "t"].counts == (1,)
