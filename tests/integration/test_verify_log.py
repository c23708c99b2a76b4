"""``brokerless verify`` finds faults of the log that are planted for real, in topics and in others' tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from brokerless import DeltaLog, Producer, Schema, create_topic, delete_topic
from brokerless.log.entries import ENGINE_KEY, PARTITIONS_KEY, Add, Metadata, Protocol
from brokerless.maintenance.maintainer import storage_options
from brokerless.verify import table
from brokerless.verify.table import TableReport, verify_table, verify_topic
from tests.support.checkpoints import clean_up, write_checkpoint
from tests.support.verify import SCHEMA, fill, find, kinds, now, paths, put_entry

if TYPE_CHECKING:
    from brokerless.store import ObstoreStore


@pytest.fixture
def store(cli) -> ObstoreStore:
    return cli.store


def test_a_gap(store) -> None:
    log = fill(store, commits=5)
    store.delete([log.entry_path(2), log.entry_path(3)])
    assert find(store) == [("gap", "entries 2 to 3 are missing from the log")]


def test_a_checkpoint_bridges_a_gap_for_what_comes_after(store) -> None:
    log = fill(store, commits=5)
    write_checkpoint(log)
    with Producer("t", store=store) as producer:
        producer.send([{"id": "x", "n": 1}])
    store.delete([log.entry_path(2)])
    report = verify_table(store, "t")
    assert [finding.kind for finding in report.findings] == ["gap"]
    assert report.files == 6


@pytest.mark.parametrize("first", [0, 2])
def test_entries_missing_up_to_a_checkpoint(store, first) -> None:
    log = fill(store, commits=5)
    write_checkpoint(log)
    clean_up(log, first)
    store.delete([log.entry_path(version) for version in (4, 5)])
    report = verify_table(store, "t", full=True)
    assert ("gap", "entries 4 to 5 are missing from the log") in [(f.kind, f.text) for f in report.findings]
    assert (report.head, report.files, report.orphans) == (5, 5, 0)


def test_a_beginning_that_nothing_covers(store) -> None:
    log = fill(store)
    clean_up(log, 2)
    assert find(store) == [("gap", "the log begins at entry 2, and no checkpoint says what was before")]


def test_a_log_that_begins_behind_its_checkpoint(store) -> None:
    log = fill(store)
    write_checkpoint(log)
    with Producer("t", store=store) as producer:
        producer.send([{"id": "x", "n": 1}])
    clean_up(log, 4)
    report = verify_table(store, "t")
    assert (report.ok, report.entries, report.files) == (True, 1, 4), report.findings
    store.delete([log.entry_path(4)])
    report = verify_table(store, "t")
    assert (report.ok, report.head, report.files) == (True, 3, 3), report.findings


def test_a_log_that_is_cleaned_up_while_one_looks(store, monkeypatch) -> None:
    log = fill(store)
    write_checkpoint(log)
    listed = list(store.list("t"))
    clean_up(log, 2)
    monkeypatch.setattr(type(store), "list", lambda self, prefix, after=None: iter(listed))
    report = verify_table(store, "t")
    assert (report.ok, report.entries, report.files) == (True, 2, 3), report.findings


@pytest.mark.parametrize(
    "data", [b"nonsense\n", b'{"add": {"path": "x"}}\n', b"[1]\n", b'{"commitInfo": {"timest', b"", b"\n"]
)
def test_an_unreadable_entry(store, data) -> None:
    log = fill(store)
    store.put(log.entry_path(2), data)
    ((kind, text),) = find(store)
    assert kind == "unreadable-entry"
    assert text.startswith("entry 2 is not a log entry")


def test_an_entry_that_was_cut_at_the_end_of_a_line(store) -> None:
    log = fill(store)
    store.put(log.entry_path(2), b"".join(store.get(log.entry_path(2)).splitlines(keepends=True)[:-1]))
    ((kind, text),) = find(store)
    assert kind == "unreadable-entry"
    assert "have 1 actions of 2" in text


@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        (["protocol"], "entry 0 is the first, and has no protocol"),
        (["metaData"], "entry 0 is the first, and has no metadata"),
        (["metaData", "protocol"], "entry 0 is the first, and has no protocol and no metadata"),
    ],
)
def test_a_table_that_never_said_what_it_is(store, left_out, words) -> None:
    log = fill(store)
    actions = [json.loads(line) for line in store.get(log.entry_path(0)).splitlines()]
    actions[0]["commitInfo"].pop("actions")
    kept = [action for action in actions if not action.keys() & set(left_out)]
    store.put(log.entry_path(0), b"\n".join(json.dumps(action).encode() for action in kept))
    assert find(store) == [("missing-metadata", words)]


def test_metadata_without_columns(store) -> None:
    log = fill(store)
    metadata = log.state.metadata
    put_entry(log, 4, metadata=Metadata(metadata.id, '{"fields": 5}', configuration=metadata.configuration))
    assert [kind for kind, _ in find(store)] == ["missing-metadata", "schema-change"]


def test_a_topic_with_features_that_its_readers_refuse(store) -> None:
    log = fill(store)
    put_entry(log, 4, protocol=Protocol(1, 4))
    ((kind, text),) = find(store)
    assert kind == "unsupported"
    assert "changeDataFeed" in text


def test_an_entry_that_adds_and_removes_one_file(store) -> None:
    log = fill(store)
    (path,) = paths(log, 2)
    put_entry(log, 4, removes=[path], adds=[Add(path, 1, 2, 1, data_change=False)])
    assert ("added-and-removed", f"entry 4 adds and removes {path}") in find(store)


def test_rows_of_a_topic_that_another_engine_rewrites(cli, store) -> None:
    fill(store)
    table = DeltaTable(f"{store.uri}/t", storage_options=storage_options(cli.settings))
    table.optimize.compact()  # the same rows: readers know
    assert find(store) == []
    table.delete("n = 0")
    table.restore(2)
    (first, text), (second, restored) = find(store)
    assert first == second == "rewritten"
    assert text.startswith("entry 5 (DELETE by delta-rs")
    assert restored.startswith("entry 6 (RESTORE by delta-rs")


def test_partitions_that_do_not_agree(store) -> None:
    fill(store, partitions=3)
    for number, schema, partitions in ((1, Schema.parse("id string, n long, more long"), "3"), (2, SCHEMA, "4")):
        log = DeltaLog(store, f"t.{number}")
        metadata = log.state.metadata
        put_entry(
            log,
            4,
            metadata=Metadata(metadata.id, schema.to_delta(), configuration={PARTITIONS_KEY: partitions}),
        )
    texts = [f.text for report in verify_topic(store, "t") for f in report.findings if f.kind == "partitions-differ"]
    assert texts == [
        "t.1 has other columns than t: + more long",
        "t says that the topic has 3 partitions; t.2 says 4",
    ]


def test_a_topic_created_anew_with_other_columns_while_one_looks(store, monkeypatch) -> None:
    fill(store, partitions=2)
    run = table._Inspection.run
    begun: list[str] = []

    def in_between(self: Any) -> TableReport:
        if self.table == "t.1" and not begun:
            begun.append(self.table)
            delete_topic(store, "t")
            create_topic(store, "t", Schema.parse("other string"), partitions=2)
        return run(self)

    monkeypatch.setattr(table._Inspection, "run", in_between)
    assert [f for report in verify_topic(store, "t") for f in report.findings] == []
    assert begun


@pytest.mark.parametrize("before", [False, True], ids=["new", "after a deleted one"])
def test_a_topic_that_is_half_created(store, before) -> None:
    if before:
        fill(store, partitions=2)
        delete_topic(store, "t")
    DeltaLog(store, "t.1").create(schema_string=SCHEMA.to_delta(), configuration={PARTITIONS_KEY: "2"})
    clock = now()
    first, _ = verify_topic(store, "t", clock=clock)
    assert first.findings == ()
    assert "t.1 is there, t is not yet: the topic is being created, or was just now" in first.notes
    clock.advance(3600)
    first, _ = verify_topic(store, "t", clock=clock)
    assert [(f.kind, f.text) for f in first.findings] == [
        ("half-created", "t.1 is there, t is not; 'brokerless topics describe t' says what to do")
    ]


def test_entries_that_go_missing_while_one_looks(store, monkeypatch) -> None:
    log = fill(store)
    listed = list(store.list("t"))
    listing = type(store).list
    for n in range(2):
        log.append([], {"a": n})
    store.delete([log.entry_path(4)])

    def before_and_after(self: Any, prefix: str, *, after: str | None = None) -> Any:
        return iter(listed) if after is None else listing(self, prefix, after=after)

    monkeypatch.setattr(type(store), "list", before_and_after)
    report = verify_table(store, "t")
    assert [(f.kind, f.text) for f in report.findings] == [("gap", "entry 4 is missing from the log")]
    assert report.head == 5


def test_a_repeated_add(store) -> None:
    log = fill(store)
    (path,) = paths(log, 2)
    size = next(info.size for info in store.list("t") if info.path == f"t/{path}")
    log.append([Add(path, size, 2, 1)])
    assert find(store) == [("repeated-add", f"entry 4 adds {path}, which is in the table already")]
    log.append([Add(path, size, 2, 1, data_change=False)])  # new statistics
    assert len(find(store)) == 1


@pytest.mark.parametrize(("now", "is_fault"), [(8, False), (7, True), (6, True)])
def test_a_transaction_that_does_not_advance(store, now, is_fault) -> None:
    log = fill(store)
    put_entry(log, 4, txns={"app": 7})
    put_entry(log, 5, txns={"app": now})
    wanted = [("txn-back", f"entry 5 has the transaction 'app' at {now}; it was at 7")]
    assert find(store) == (wanted if is_fault else [])


def test_a_position_that_goes_back(store) -> None:
    log = fill(store)
    put_entry(log, 4, txns={"k/s#2": 0, "k/s#1": 5, "k/s#0": 1})
    put_entry(log, 5, txns={"k/s#2": 0, "k/s#1": 4, "k/s#0": 9})
    assert find(store) == [("txn-back", "entry 5 has the transaction 'k/s' at 0/4/9; it was at 0/5/1")]


def test_a_changed_schema_of_a_topic(store) -> None:
    log = fill(store)
    metadata = log.state.metadata
    changed = Metadata(metadata.id, Schema.parse("id string, n short").to_delta(), configuration=metadata.configuration)
    put_entry(log, 4, metadata=changed)
    first, *rest = find(store)
    assert first == ("schema-change", "entry 4 changes the columns: + n short, - n long")
    assert {(kind, text.partition(" ")[2]) for kind, text in rest} == {
        ("columns", "differs from the log's columns: it has n as Int64, not short")
    }


def test_a_topic_that_was_replaced_without_a_tombstone(store) -> None:
    log = fill(store)
    metadata = log.state.metadata
    put_entry(log, 4, metadata=Metadata("other", metadata.schema_string, configuration=metadata.configuration))
    ((kind, text),) = find(store)
    assert kind == "replaced"
    assert text.endswith("by other)")


def test_sparks_writer_beside_conditional_writers(store) -> None:
    log = fill(store)
    put_entry(log, 4, engine="Apache-Spark/4.1.1 Delta-Lake/4.2.0")
    ((kind, text),) = find(store)
    assert kind == "unsafe-writer"
    assert text.endswith("entries 4")


@pytest.mark.parametrize(("engine", "is_fault"), [("Apache-Spark/4.1.1 Delta-Lake/4.2.0", False), ("delta-rs:1", True)])
def test_a_table_that_belongs_to_spark(store, engine, is_fault) -> None:
    log = DeltaLog(store, "out")
    owned = Metadata("i", SCHEMA.to_delta(), configuration={ENGINE_KEY: "delta"})
    put_entry(log, 0, engine="Apache-Spark/4.1.1 Delta-Lake/4.2.0", metadata=owned, protocol=Protocol(1, 2))
    put_entry(log, 1, engine=engine)
    assert [kind for kind, _ in find(store, "out")] == (["unsafe-writer"] if is_fault else [])


def test_clocks_that_go_back_are_noted(store) -> None:
    log = fill(store)
    put_entry(log, 4, timestamp_ms=5)
    report = verify_table(store, "t")
    assert report.ok
    assert "1 entry older than the one before, by the writers' clocks (4)" in report.notes


def test_a_partition_without_a_table(cli, store) -> None:
    fill(store, partitions=2)
    store.delete([info.path for info in store.list("t.1")])
    reports = verify_topic(store, "t")
    assert [finding.kind for report in reports for finding in report.findings] == ["missing-partition"]
    assert cli("verify", "t").exit_code == 1


def test_a_topic_that_is_half_deleted(store) -> None:
    fill(store, partitions=3)
    for deleted in ("t.2", "t.1"):
        DeltaLog(store, deleted).delete()
        clock = now()
        first, *rest = verify_topic(store, "t", clock=clock)
        ((kind, text),) = [(finding.kind, finding.text) for finding in first.findings]
        assert kind == "half-deleted"
        assert text.startswith("t.2 is deleted, t is not" if deleted == "t.2" else "t.1, t.2 are deleted, t is not")
        assert text.endswith("Finish it: brokerless topics delete t")
        assert all(report.ok for report in rest)
        assert sum(clock.slept) == 30
    clock.advance(3600)
    clock.slept.clear()
    assert (kinds(store, clock), clock.slept) == (["half-deleted"], [])  # nobody is at it any more
    delete_topic(store, "t")
    assert kinds(store, clock) == []
    create_topic(store, "t", SCHEMA, partitions=2)
    assert kinds(store, clock) == []


def delete_and_create(store: ObstoreStore) -> None:
    delete_topic(store, "t")
    create_topic(store, "t", SCHEMA, partitions=3)


@pytest.mark.parametrize(
    "go_on",
    [lambda store: DeltaLog(store, "t.1").delete(), lambda store: delete_topic(store, "t"), delete_and_create],
    ids=["next partition", "to its end", "to its end and created again"],
)
def test_a_deletion_that_goes_on_while_one_looks(store, go_on) -> None:
    fill(store, partitions=3)
    DeltaLog(store, "t.2").delete()
    clock = now()
    clock.on_sleep = lambda: go_on(store) if len(clock.slept) == 25 else None
    assert kinds(store, clock) == []
    assert len(clock.slept) == 25


def test_a_topic_that_is_being_created_again(store) -> None:
    fill(store, partitions=2)
    delete_topic(store, "t")
    DeltaLog(store, "t.1").create(schema_string=SCHEMA.to_delta(), configuration={PARTITIONS_KEY: "2"})
    clock = now()
    assert (kinds(store, clock), clock.slept) == ([], [])
