"""The checker, checked: each kind of fault is found in random histories, and clean ones are left alone."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from brokerless.testing.history import check, check_pipeline, log_order
from brokerless.testing.history.events import Event
from brokerless.testing.history.verdict import KINDS, SHOWN
from tests.support.world import World

CLEAN = 1000
FAULTY_OF_A_KIND = 100

# What a fault of one kind may look like, besides: a reader that is given a commit twice also goes back for it, and of
# two readers that disagree nobody knows which one is right. A zombie has often not given up its partition.
COMPANIONS = {
    "duplicate-delivery": {"non-monotonic-poll", "reordered"},
    "inconsistent-offset": {"duplicate", "reordered"},
    "zombie-write": {"two-owners"},
}


def kinds(seed: int, fault: str | None = None) -> set[str]:
    return set(check(World(seed, fault).events).found)


def test_clean_histories_raise_no_alarm() -> None:
    counts: Counter[str] = Counter()
    for seed in range(CLEAN):
        verdict = check(World(seed).events)
        assert verdict.ok, f"seed {seed}: {verdict.text()}"
        counts.update(verdict.counts)
    # All of it occurs, or this would prove nothing.
    for name in ("messages_acknowledged", "failed", "of_unknown_outcome", "seen", "readers"):
        assert counts[name] > CLEAN, counts


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_fault_is_found_and_named(kind: str) -> None:
    allowed = {kind} | COMPANIONS.get(kind, set())
    for seed in range(FAULTY_OF_A_KIND):
        found = kinds(seed, kind)
        assert kind in found, f"seed {seed}: only {found or 'nothing'}"
        assert found <= allowed, f"seed {seed}: {found - allowed}"


# One small history for each rule, to be read


def sent(ids: list[Any], *, process: str = "p", call: int = 1, queued: bool = False) -> Event:
    return Event(0, process, "send", "invoke", call, "t", ids=ids, queued=queued)


def acked(*acks: list[int], process: str = "p", call: int = 1, **more: Any) -> Event:
    return Event(0, process, "send", "ok", call, "t", acks=acks, **more)


def polled(ids: list[Any], version: int, index: int = 0, *, process: str = "r", call: int = 9, **more: Any) -> Event:
    return Event(
        0, process, "poll", "ok", call, "t", 0, ids=ids, offset=(version, index), next=(version + 1, 0), **more
    )


def began(version: int, *, process: str = "r", **more: Any) -> Event:
    return Event(0, process, "assign", "ok", 0, "t", 0, offset=(version, 0), **more)


def moved(version: int, *, process: str = "r") -> Event:
    return Event(0, process, "poll", "ok", 9, "t", 0, next=(version, 0))


def test_the_evidence_of_a_lost_message_names_its_events() -> None:
    verdict = check([began(1), sent(["a", "b"]), acked([0, 1, 0, 2]), polled(["a"], 1)])
    (finding,) = verdict.findings
    assert finding.kind == "lost"
    assert finding.events == (2, 3, 4)
    assert "'b' was acknowledged at t/0 1:0 to 1:1" in finding.text


DUPLICATE = [0, -1, 0, 1]
RESENT = [sent(["a"]), acked(DUPLICATE), sent(["b"], call=2), acked([0, 7, 0, 1], call=2)]


def test_a_duplicate_that_is_not_in_the_log_is_lost() -> None:
    verdict = check([began(1), *RESENT, moved(7)])
    (finding,) = verdict.findings
    assert (finding.kind, finding.events) == ("lost", (2, 3, 6))
    assert finding.text == "'a' was acknowledged at t/0 before 7:0, and readers went past it without it"
    assert check([began(1), polled(["a"], 3), *RESENT, polled(["b"], 7)]).ok  # whoever sent it


def test_a_duplicate_is_lost_in_no_partition_that_is_not_read_to_its_end() -> None:
    both = [sent(["a", "c"]), acked(DUPLICATE, [1, -1, 0, 1]), *RESENT[2:]]
    assert check([began(1), *both, moved(7)]).counts["unread"] == 3
    other = [sent(["d"], call=3), acked([1, 4, 0, 1], call=3)]
    read = [event._replace(partition=1) for event in (began(1), moved(4))]
    assert check([began(1), *both, *other, moved(7)]).ok
    assert check([began(1), *both, *other, moved(7), *read]).found == {"lost": 2}
    assert check([began(1), *both, *other, polled(["c"], 3), moved(7), *read]).found == {"lost": 1}


@pytest.mark.parametrize(
    "events",
    [
        [began(2), *RESENT, moved(7)],  # may be below where the log begins by now
        [began(1), *RESENT, moved(6)],
        [began(1), *RESENT[:2], moved(99)],  # nothing says where the log ended then
        [began(1), *RESENT[2:], *RESENT[:2], polled(["b"], 7), moved(99)],
        [began(1), RESENT[0], *RESENT[2:], RESENT[1], polled(["b"], 7), moved(99)],  # nor does what began before
        [
            began(1),
            *RESENT[:2],
            sent(["b"], process="q"),
            acked([0, 7, 0, 1], process="q"),
            polled(["b"], 7),
        ],  # other clocks
        [began(1), *RESENT[:2], sent(["b"], call=2), acked([1, 7, 0, 1], call=2), moved(99)],
        [began(1), *RESENT[:2], sent(["b"], call=2), acked(DUPLICATE, call=2), moved(99)],
    ],
)
def test_a_duplicate_that_may_be_elsewhere_is_not_judged(events: list[Event]) -> None:
    verdict = check(events)
    assert verdict.ok, verdict.text()
    assert verdict.counts["unread"]


def test_what_no_reader_reached_is_counted_and_not_judged() -> None:
    verdict = check([began(1), sent(["a"]), acked([0, 7, 0, 1]), moved(7)])
    assert verdict.ok
    assert verdict.counts["unread"] == 1
    assert check([began(1), sent(["a"]), acked([0, 7, 0, 1]), moved(8)]).found == {"lost": 1}


def test_a_reader_that_began_behind_a_message_does_not_miss_it() -> None:
    assert check([began(8), sent(["a"]), acked([0, 7, 0, 1]), moved(9)]).ok


def test_an_unknown_outcome_may_be_there_once_or_not_at_all() -> None:
    unknown = Event(0, "p", "send", "unknown", 1, "t")
    assert check([sent(["a"]), unknown, moved(9)]).ok
    assert check([sent(["a"]), unknown, polled(["a"], 1)]).ok
    assert check([sent(["a"]), polled(["a"], 1)]).ok  # killed before it heard anything
    assert check([sent(["a"]), unknown, polled(["a"], 1), polled(["a"], 2)]).found == {"duplicate": 1}


def test_failed_at_first_and_sent_again_is_no_fault() -> None:
    failed = Event(0, "p", "send", "fail", 1, "t")
    again = [sent(["a"], call=2), acked([0, 3, 0, 1], call=2)]
    assert check([sent(["a"]), failed, *again, polled(["a"], 3)]).ok
    assert check([sent(["a"]), failed, polled(["a"], 3)]).found == {"failed-but-seen": 1}
    failed_again = [sent(["a"], call=2), Event(0, "p", "send", "fail", 2, "t")]
    assert check([sent(["a"]), failed, *failed_again, polled(["a"], 3)]).found == {"failed-but-seen": 1}
    assert check([sent(["a"]), acked([0, 3, 0, 1]), *failed_again, polled(["a"], 3)]).ok


def test_part_of_a_call_can_fail() -> None:
    part = [acked([0, 1, 0, 1], ids=["a"]), Event(0, "p", "send", "fail", 1, "t", ids=["b"])]
    assert check([began(1), sent(["a", "b"]), *part, polled(["a"], 1)]).ok
    assert check([began(1), sent(["a", "b"]), *part, polled(["a"], 1), polled(["b"], 2)]).found == {
        "failed-but-seen": 1
    }
    assert check([began(1), sent(["a", "b"]), *part, moved(3)]).found == {"lost": 1}


def test_of_several_acknowledgements_any_may_hold_a_message() -> None:
    spread = [began(1), sent(["a", "b"]), acked([0, 1, 0, 1], [0, 2, 0, 1])]
    assert check([*spread, polled(["b"], 1), polled(["a"], 2)]).found == {"reordered": 1}
    assert check([*spread, polled(["a"], 1), polled(["b"], 2)]).ok
    assert check([*spread, polled(["a"], 1), polled(["b"], 3)]).found == {"inconsistent-offset": 1}
    assert check([*spread, polled(["a"], 1), moved(3)]).found == {"lost": 1}
    assert check([*spread, polled(["a"], 1)]).ok  # not past the second one yet


def test_calls_that_overlap_have_no_order_but_queued_ones_do() -> None:
    seen = [polled(["b"], 1), polled(["a"], 2)]
    overlap = [sent(["a"]), sent(["b"], call=2)]
    assert check([*overlap, *seen]).ok
    assert check([sent(["a"], queued=True), sent(["b"], call=2, queued=True), *seen]).found == {"reordered": 1}
    assert check([sent(["a"]), acked([0, 2, 0, 1]), sent(["b"], call=2), *seen]).found == {"reordered": 1}
    assert check([sent(["a"], process="q"), acked([0, 2, 0, 1], process="q"), sent(["b"], call=2), *seen]).ok


def test_a_seek_may_go_back_and_a_poll_may_not() -> None:
    both = [polled(["a"], 1), polled(["b"], 2, call=10)]
    assert check([*both, began(1), *both]).ok
    assert check([*both, *both]).found == {"duplicate-delivery": 2, "non-monotonic-poll": 1}


def test_the_middle_of_a_commit_is_no_place_to_begin() -> None:
    assert check([began(1), polled(["b"], 1, 1)]).found == {"gap": 1}
    assert check([Event(0, "r", "assign", "ok", 0, "t", 0, offset=(1, 1)), polled(["b"], 1, 1)]).ok
    assert check([polled(["b"], 1, 1)]).ok  # where it began is not known


def test_a_skipped_row_is_one_gap_even_if_others_saw_it() -> None:
    others = polled(["a", "b"], 1, process="s")
    assert check([others, began(1), polled(["b"], 1, 1)]).found == {"gap": 1}
    assert check([others, began(1), polled(["a"], 1), moved(2)]).found == {"gap": 1}


def test_who_is_told_to_read_anew_begins_wherever_it_begins() -> None:
    anew = Event(0, "r", "assign", "ok", 0, "t", 0)  # from where is not known
    assert check([polled(["a"], 1), polled(["b"], 2, call=10), anew, polled(["a"], 1, call=11)]).ok


def test_readers_that_disagree_are_inconsistent() -> None:
    assert check([polled(["a"], 1), polled(["b"], 1, process="s")]).found == {"inconsistent-offset": 1}
    # Even if they cut the commit in other pieces.
    pieces = [polled(["a"], 1, process="s"), polled(["c"], 1, 1, process="s")]
    assert check([polled(["a", "b"], 1), *pieces]).found == {"inconsistent-offset": 1}


def test_without_recorded_sends_nothing_is_a_phantom() -> None:
    assert check([polled(["a"], 1)]).ok
    assert check([sent(["b"]), polled(["a"], 1)]).found == {"phantom": 1}


def commit(process: str, version: int, *, call: int, end: bool = True) -> list[Event]:
    events = [Event(0, process, "commit", t, call, "t", 0, offset=(version, 0), group="g") for t in ("invoke", "ok")]
    return events if end else events[:1]


def test_a_commit_that_was_on_its_way_at_the_handover_is_no_zombie() -> None:
    old, new = commit("a", 2, call=1), commit("b", 3, call=1)
    late = commit("a", 4, call=2)
    assert check([*old, late[0], *new, late[1]]).ok
    assert check([*old, *new, *late]).found == {"zombie-write": 1}
    # Not even if it is the first that the earlier owner hears of; its successor is none either.
    assert check([late[0], *new, late[1], *commit("b", 5, call=2)]).ok


def test_who_gets_a_partition_back_may_commit_again() -> None:
    def gave_up(process: str) -> Event:
        return Event(0, process, "release", "ok", 0, "t", 0, group="g")

    handover = [
        began(1, process="a", group="g"),
        *commit("a", 2, call=1),
        gave_up("a"),
        began(2, process="b", group="g"),
        *commit("b", 3, call=1),
        gave_up("b"),
    ]
    assert check([*handover, began(3, process="a", group="g"), *commit("a", 4, call=2)]).ok
    assert check([*handover, *commit("a", 4, call=2)]).found == {"zombie-write": 1}


def test_a_group_that_goes_on_behind_its_commit_has_a_gap() -> None:
    assert check([*commit("a", 2, call=1), began(2, process="b", group="g")]).ok
    assert check([*commit("a", 2, call=1, end=False), began(1, process="b", group="g")]).ok
    assert check([*commit("a", 2, call=1), began(3, process="b", group="g")]).found == {"gap": 1}


@pytest.mark.parametrize(("end", "found"), [("fail", {"gap": 1}), ("unknown", {}), (None, {}), ("ok", {})])
def test_a_commit_that_failed_moves_no_group(end: Any, found: dict[str, int]) -> None:
    later = [Event(0, "a", "commit", t, 2, "t", 0, offset=(3, 0), group="g") for t in ("invoke", end) if t]
    assert check([*commit("a", 2, call=1), *later, began(3, process="b", group="g")]).found == found


def test_readers_without_a_group_may_share_a_partition() -> None:
    assert check([began(1), began(1, process="s"), polled(["a"], 1), polled(["a"], 1, process="s")]).ok


def test_an_end_whose_beginning_is_missing_is_left_out() -> None:
    assert check([acked([0, 1, 0, 1]), moved(9)]).ok


def test_many_findings_are_counted_and_some_described() -> None:
    ids = list(range(SHOWN * 3))
    verdict = check([began(1), sent(ids), acked([0, 1, 0, len(ids)]), moved(2)])
    assert verdict.found == {"lost": SHOWN * 3}
    assert len(verdict.findings) == SHOWN
    assert "lost: 300" in verdict.text()
    assert "... and 290 more" in verdict.text()
    assert json.loads(json.dumps(verdict.to_json()))["found"] == {"lost": 300}
    assert not verdict.ok


def test_a_clean_verdict_says_what_it_looked_at() -> None:
    verdict = check([began(1), sent(["a"]), acked([0, 1, 0, 1]), polled(["a"], 1)])
    assert verdict.text() == "OK: events 4, messages acknowledged 1, seen 1, readers 1."


# Pipelines

INPUTS = {("t1", 0): [1, 2, 3], ("t2", 0): [11, 12]}


def test_a_pipeline_that_keeps_all() -> None:
    assert check_pipeline(INPUTS, {0: [1, 11, 3, 12]}, {0: [2]}).ok
    assert check_pipeline(INPUTS, {0: [1, 12], 1: [11, 2]}, {0: [3]}).ok  # partitions of the output have no order


@pytest.mark.parametrize(
    ("output", "dead_letters", "found"),
    [
        ([1, 11, 12], [2], {"lost": 1}),
        ([1, 2, 11, 3, 12], [2], {"duplicate": 1}),
        ([1, 1, 2, 11, 3, 12], [], {"duplicate": 1}),
        ([1, 2, 11, 3, 12, 99], [], {"phantom": 1}),
        ([2, 1, 11, 3, 12], [], {"reordered": 1}),
        ([1, 11, 12], [3, 2], {"reordered": 1}),
    ],
    ids=["lost", "in both", "twice", "phantom", "reordered", "dead letters reordered"],
)
def test_a_pipeline_that_does_not(output: list[int], dead_letters: list[int], found: dict[str, int]) -> None:
    assert check_pipeline(INPUTS, {0: output}, {0: dead_letters}).found == found


def test_inputs_with_equal_ids_cannot_be_judged() -> None:
    assert "duplicate" in check_pipeline({("t1", 0): [1], ("t2", 0): [1]}, {0: [1]}, {}).found


def test_the_log_order_is_that_of_the_offsets() -> None:
    events = [polled(["b", "c"], 2), polled(["a"], 1), polled(["c"], 2, 1), moved(9)]
    assert log_order(events, "t") == {0: ["a", "b", "c"]}
    assert log_order(events, "other") == {}
