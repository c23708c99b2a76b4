"""A topic as CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import sys
import threading
import time
import zoneinfo
from decimal import Decimal

import pyarrow as pa
import pytest
from arro3.core import Table
from arro3.io import read_parquet
from hypothesis import given
from hypothesis import strategies as st

from brokerless.columns.records import to_table
from brokerless.errors import BrokerlessError, ConfigError, TopicChanged, TopicNotFound
from brokerless.export.text import csv_lines, json_lines, plain_decimal
from brokerless.export.topic import export_topic
from brokerless.log.tail import Tail
from brokerless.offsets import Offset, SavedPosition
from brokerless.producer.producer import Producer
from brokerless.schema import Schema
from brokerless.settings import Settings
from brokerless.store import open_store
from brokerless.topics import create_topic, delete_topic, describe_topic, open_topic

UNIFIED = Schema.parse("timestamp double, message string")
WIDE = Schema.parse("s string, l long, d double, f float, b boolean, x binary, day date, at timestamp, m decimal(10,2)")


def table(rows, schema=UNIFIED):
    return to_table(rows, schema, topic="t", produced_at_us=0)


def unified(*rows):
    return table([{"timestamp": t, "message": m} for t, m in rows])


@pytest.fixture
def store(tmp_path):
    return open_store(Settings("embedded", f"file://{tmp_path}/root"))


@pytest.fixture
def topic(store):
    """Four messages of two commits."""
    create_topic(store, "timezone_unified", UNIFIED)
    with Producer("timezone_unified", store=store) as producer:
        producer.send(
            [{"timestamp": 1724403133066.217, "message": "0"}, {"timestamp": 1711848600500.0, "message": "1"}]
        )
        producer.send([{"timestamp": 1730611800000.001, "message": "2"}, {"timestamp": None, "message": None}])
    return "timezone_unified"


# Numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1724403133066.217, "1724403133066.217"),  # the published sample
        (1711848600500.0, "1711848600500.0"),
        (1730611800000.001, "1730611800000.001"),
        (-62135596800000.0, "-62135596800000.0"),  # year 1
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1e16, "10000000000000000.0"),  # where Python's own text becomes scientific
        (1.5e-7, "0.00000015"),
        (5e-324, "0." + "0" * 323 + "5"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
    ],
)
def test_doubles_are_plain_decimals(value, text):
    assert plain_decimal(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_plain_decimals_read_back_as_the_same_double(value):
    text = plain_decimal(value)
    assert "e" not in text.lower()
    assert float(text) == value


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_plain_decimals_of_singles_read_back_as_the_same_single(value):
    import struct

    text = plain_decimal(value, single=True)
    assert "e" not in text.lower()
    assert struct.pack("f", float(text)) == struct.pack("f", value)


def test_singles_have_their_own_shortest_text():
    (line,) = csv_lines(table([{"f": 0.1}], Schema.parse("f float")).select(["f"]))
    assert line == '"0.1"'


# CSV


def test_csv_is_quoted_throughout_like_the_examples_results(store, topic, tmp_path):
    path = tmp_path / "results.csv"
    done = export_topic(topic, path, store=store, once=True)
    lines = path.read_text().splitlines()
    assert lines[0] == '"timestamp","message","time","diff"'
    assert lines[1].startswith('"1724403133066.217","0","')
    assert lines[1].endswith('","1"')
    assert lines[4].startswith(",,")  # nulls: empty, without quotes
    times = [int(row["time"]) for row in csv.DictReader(io.StringIO(path.read_text()))]
    assert times == sorted(times)
    assert all(time % 2 == 0 for time in times)
    assert (done.rows, done.next) == (4, {0: Offset(3)})


def test_the_added_columns_give_way_to_the_topics_own(store, tmp_path):
    create_topic(store, "t", Schema.parse("Time long, diff long"))
    export_topic("t", tmp_path / "t.csv", store=store, once=True)
    assert (tmp_path / "t.csv").read_text() == '"Time","diff","_time","_diff"\n'


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_texts_that_a_spreadsheet_would_run_are_defused(text):
    (line,) = csv_lines(unified((1.0, text)).select(["message"]))
    assert line == f'"\'{text}"'


@pytest.mark.parametrize("text", ["a=b", "1-1", "", " =1", "'=1", "é", "a@b"])
def test_other_texts_stay_as_they_are(text):
    (line,) = csv_lines(unified((1.0, text)).select(["message"]))
    assert line == f'"{text}"'


def test_binary_that_begins_like_a_formula_is_defused_too():
    (line,) = csv_lines(table([{"x": b"\xf8\x00\x00"}], Schema.parse("x binary")).select(["x"]))
    assert line == '"\'+AAA"'


def test_numbers_keep_their_minus():
    (line,) = csv_lines(unified((-1.5, "a")).select(["timestamp", "message"]))
    assert line == '"-1.5","a"'


@given(st.lists(st.text().filter(lambda t: not t.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))), min_size=1))
def test_any_text_reads_back_from_csv(texts):
    data = unified(*((1.0, text) for text in texts)).select(["message"])
    written = "\n".join(csv_lines(data)) + "\n"
    assert [row[0] if row else "" for row in csv.reader(io.StringIO(written, newline=""))] == texts


def test_every_type_has_a_text():
    row = {
        "s": 'quote " comma ,',
        "l": -5,
        "d": 1e22,
        "f": 0.5,
        "b": True,
        "x": b"\x00\xff",
        "day": "2026-11-21",
        "at": "2026-11-21T09:00:00.000001+00:00",
        "m": "12.30",
    }
    data = table([row, dict.fromkeys(row)], WIDE).select(list(WIDE.names))
    full, empty = csv_lines(data)
    assert full == (
        '"quote "" comma ,","-5","10000000000000000000000.0","0.5","true","AP8=","2026-11-21",'
        '"2026-11-21T09:00:00.000001+00:00","12.30"'
    )
    assert empty == "," * 8


# JSON lines


def test_json_lines_hold_each_message_exactly(store, topic, tmp_path):
    path = tmp_path / "t.jsonl"
    export_topic(topic, path, store=store, once=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["message"] for row in rows] == ["0", "1", "2", None]
    assert rows[0]["timestamp"] == 1724403133066.217
    assert rows[0]["_produced_at"].endswith("+00:00")


def test_json_has_no_bare_nan():
    lines = json_lines(unified((math.nan, "a"), (math.inf, "b"), (1.0, "c")).select(["timestamp"]))
    assert [json.loads(line, parse_constant=pytest.fail) for line in lines] == [
        {"timestamp": "nan"},
        {"timestamp": "inf"},
        {"timestamp": 1.0},
    ]


@pytest.fixture
def no_time_zones(monkeypatch):
    """A machine without a time-zone database, as slim images are."""
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath(to=[])
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()


def test_instants_need_no_time_zone_database(no_time_zones):
    """arro3's own conversion asks it even for UTC."""
    data = table([{"at": "2026-11-21T09:00:00+01:00"}], Schema.parse("at timestamp"))
    with pytest.raises(zoneinfo.ZoneInfoNotFoundError):
        data.column("at").to_pylist()
    assert json.loads(json_lines(data)[0])["at"] == "2026-11-21T08:00:00+00:00"


# Parquet


def test_parquet_holds_each_message_exactly(store, topic, tmp_path, monkeypatch):
    monkeypatch.setattr("brokerless.export.files._ROW_GROUP_BYTES", 1)  # a row group a message
    path = tmp_path / "t.parquet"
    export_topic(topic, path, store=store, once=True)
    data = read_parquet(path).read_all()
    assert data.column_names == ["timestamp", "message", "_produced_at"]
    assert data.column("message").to_pylist() == ["0", "1", "2", None]
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "root"] == ["t.parquet"]


def test_parquet_of_an_empty_topic_is_a_file_without_rows(store, tmp_path):
    create_topic(store, "t", WIDE)
    export_topic("t", tmp_path / "t.parquet", store=store, once=True)
    assert read_parquet(tmp_path / "t.parquet").read_all().num_rows == 0


def test_decimals_are_written_plainly():
    (line,) = csv_lines(table([{"m": Decimal("1E+3")}], Schema.parse("m decimal(10,0)")).select(["m"]))
    assert line == '"1000"'


# Bounds


def test_once_stops_at_the_head(store, topic, tmp_path):
    """What is committed while it reads belongs to the next run."""
    with Producer(topic, store=store) as producer:

        def another(batches):
            producer.send([{"timestamp": 1.0, "message": "late"}])

        done = export_topic(topic, tmp_path / "t.csv", store=store, once=True, on_batches=another)
    assert done.rows == 4


def test_runs_one_after_the_other_leave_nothing_out(store, topic, tmp_path, monkeypatch):
    """One poll may bring what is before the head together with what was committed since."""
    path, next_path = tmp_path / "t.jsonl", tmp_path / "next.jsonl"

    def opened(*args, **kwargs):
        about = open_topic(*args, **kwargs)
        with Producer(topic, store=store) as producer:
            producer.send([{"timestamp": 1.0, "message": "late"}])
        return about

    with monkeypatch.context() as patch:
        patch.setattr("brokerless.consumer.open_topic", opened)
        patch.setattr(Tail, "is_fresh", lambda *_: False)  # entries of a while ago are taken together
        done = export_topic(topic, path, store=store, once=True)
    assert (done.rows, done.next) == (4, {0: Offset(3)})
    assert export_topic(topic, next_path, store=store, once=True, start=done.next[0]).next == {0: Offset(4)}
    assert json.loads(next_path.read_text())["message"] == "late"


def test_a_start_past_the_head_stays(store, topic, tmp_path, monkeypatch):
    about = describe_topic(store, topic)
    with Producer(topic, store=store) as producer:
        producer.send([{"timestamp": 1.0, "message": "late"}])
    monkeypatch.setattr("brokerless.consumer.open_topic", lambda *args, **kwargs: about)
    done = export_topic(topic, tmp_path / "t.csv", store=store, once=True, start=Offset(4))
    assert (done.rows, done.next) == (0, {0: Offset(4)})


def test_expect_stops_without_an_end(store, topic, tmp_path):
    assert export_topic(topic, tmp_path / "t.csv", store=store, expect=4).rows == 4


def test_no_message_is_expected_up_to_the_head(store, topic, tmp_path):
    create_topic(store, "empty", UNIFIED)
    begun = time.monotonic()
    assert export_topic("empty", tmp_path / "e.csv", store=store, expect=0, timeout_s=10).rows == 0
    assert time.monotonic() - begun < 5
    with pytest.raises(BrokerlessError, match=r"0 messages .* were expected, \d came;"):
        export_topic(topic, tmp_path / "t.csv", store=store, expect=0)


def test_expect_is_insisted_on_when_the_time_is_over(store, topic, tmp_path):
    with pytest.raises(BrokerlessError, match=r"5 messages .* were expected, 4 came within 0\.3 s"):
        export_topic(topic, tmp_path / "t.csv", store=store, expect=5, timeout_s=0.3)
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 5


def test_more_than_expected_is_as_wrong_as_fewer(store, topic, tmp_path):
    with pytest.raises(BrokerlessError, match=r"1 messages .* were expected, \d came"):
        export_topic(topic, tmp_path / "t.csv", store=store, expect=1, once=True)


def test_a_stop_leaves_a_complete_file(store, topic, tmp_path):
    stop = threading.Event()
    seen = []

    def arrived(batches):
        seen.extend(batches)
        if sum(batch.data.num_rows for batch in seen) == 4:
            stop.set()

    done = export_topic(topic, tmp_path / "t.parquet", store=store, stop=stop, on_batches=arrived)
    assert done.rows == read_parquet(tmp_path / "t.parquet").read_all().num_rows == 4


def test_a_stop_before_all_that_was_expected_came_is_an_error(store, topic, tmp_path):
    stop = threading.Event()
    with pytest.raises(BrokerlessError, match=r"5 messages .* expected, \d came until it was stopped"):
        export_topic(topic, tmp_path / "t.csv", store=store, expect=5, stop=stop, on_batches=lambda _: stop.set())


def test_a_follower_sees_each_minibatch_at_once(store, topic, tmp_path):
    path = tmp_path / "t.csv"
    stop, seen = threading.Event(), []
    with Producer(topic, store=store) as producer:

        def arrived(batches):
            seen.append(len(path.read_text().splitlines()))
            if len(seen) == 1:
                producer.send([{"timestamp": 1.0, "message": "more"}])
            if sum(batch.data.num_rows for batch in batches) == 1:
                stop.set()

        export_topic(topic, path, store=store, stop=stop, timeout_s=10, on_batches=arrived)
    assert seen[0] == 1  # the header, before anything came
    assert seen[-1] == 5  # all earlier minibatches are out when the next one arrives


def test_start_at_an_offset(store, topic, tmp_path):
    done = export_topic(topic, tmp_path / "t.csv", store=store, once=True, start=Offset(2, 1))
    assert done.rows == 1


# Refusals


@pytest.fixture
def two_partitions(store):
    create_topic(store, "keyed", UNIFIED, partitions=2)
    producer = Producer("keyed", store=store, key="message")
    for number in range(7):
        producer.send([{"timestamp": 1.0, "message": str(number)}])
    producer.close()
    return "keyed"


def test_each_partition_goes_on_where_an_earlier_run_ended(store, two_partitions, tmp_path):
    first = export_topic(two_partitions, tmp_path / "t.csv", store=store, once=True)
    assert first.next[0] != first.next[1]
    with Producer(two_partitions, store=store) as producer:
        producer.send([{"timestamp": 1.0, "message": "later"}])
    saved = SavedPosition.parse(json.dumps(first.position.to_dict()), source="")
    second = export_topic(two_partitions, tmp_path / "t.jsonl", store=store, once=True, start=saved)
    assert (first.rows, second.rows) == (7, 1)
    assert json.loads((tmp_path / "t.jsonl").read_text())["message"] == "later"


@pytest.mark.parametrize("how", ["deleted", "removed by hand"])
def test_a_position_in_a_topic_that_was_made_anew_is_refused(store, two_partitions, tmp_path, how):
    saved = export_topic(two_partitions, tmp_path / "t.csv", store=store, once=True).position
    if how == "deleted":
        delete_topic(store, two_partitions)
    else:
        for table in ("keyed", "keyed.1"):
            shutil.rmtree(tmp_path / "root" / table)
    create_topic(store, two_partitions, UNIFIED, partitions=2)
    with pytest.raises(TopicChanged, match=rf"was table {saved.table_ids[0]}, and is .*--from beginning"):
        export_topic(two_partitions, tmp_path / "again.csv", store=store, once=True, start=saved)
    assert not (tmp_path / "again.csv").exists()


def test_a_position_of_another_topic_is_refused(store, topic, two_partitions, tmp_path):
    saved = export_topic(topic, tmp_path / "t.csv", store=store, once=True).position
    with pytest.raises(ConfigError, match="one of topic 'timezone_unified', not of 'keyed'"):
        export_topic(two_partitions, tmp_path / "t.csv", store=store, start=saved)


def test_an_unknown_topic_leaves_an_existing_file_alone(store, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("mine")
    with pytest.raises(TopicNotFound):
        export_topic("nix", path, store=store, once=True)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["t", "t.txt", "t.csv.gz"])
def test_an_unknown_extension_is_refused(store, topic, tmp_path, name):
    with pytest.raises(ConfigError, match=r"\.csv, \.jsonl or \.parquet"):
        export_topic(topic, tmp_path / name, store=store, once=True)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_place_that_cannot_be_written_is_named(store, topic, tmp_path, suffix):
    with pytest.raises(ConfigError, match="Cannot write"):
        export_topic(topic, tmp_path / "missing" / f"t{suffix}", store=store, once=True)
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(ConfigError, match="Cannot write"):
        export_topic(topic, tmp_path / f"folder{suffix}", store=store, once=True)


def test_a_value_that_python_has_no_type_for_stops_neither_json_nor_csv() -> None:
    late = pa.table(
        {"at": pa.array([2**62, 0], pa.timestamp("us", "UTC")), "day": pa.array([2**31 - 1, 0], pa.date32())}
    )
    table = Table.from_arrow(late)
    first, second = map(json.loads, json_lines(table))
    assert first["at"] == f"{2**62} microseconds since 1970-01-01"
    assert second == {"at": "1970-01-01T00:00:00+00:00", "day": "1970-01-01"}
    assert csv_lines(table)[1] == '"1970-01-01T00:00:00+00:00","1970-01-01"'
