"""The group's object as a value: chains of handovers, members that die in them, resets, and what cannot be read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerless.errors import ConfigError, GroupDamaged
from brokerless.groups.state import (
    Committed,
    GroupState,
    Member,
    MemberState,
    check_group,
    group_path,
    key_of,
    member_path,
    newest,
    partition_of,
)
from brokerless.offsets import Offset

P = ("t", 0)
ONE = Member({"t": 1}, 9000)


def at(version: int, epoch: int) -> Committed:
    return Committed(Offset(version), epoch, "id")


def state(name: str, *committed: Committed, acknowledged: int = 0, fenced: str | None = None) -> MemberState:
    return MemberState(name, 1, acknowledged, {P: newest(*committed)} if committed else {}, fenced)  # type: ignore[dict-item]


def moved(group: GroupState, to: str, *states: MemberState) -> GroupState:
    """The group with its partition at another member, by way of who may read the topic."""
    members = {name: replace(one, topics={"t": 1} if name == to else {}) for name, one in group.members.items()}
    return replace(group, members=members)._divided({one.member: one for one in states})


@pytest.fixture
def group() -> GroupState:
    """Of four members; a has the partition since generation 1."""
    found = GroupState("g", "cooperative-sticky").joined("a", ONE, {})
    for name in "bcd":
        found = found.joined(name, Member({}, 9000), {})
    return found


def test_one_partition_stays_where_it_is_while_others_join(group: GroupState) -> None:
    assert group.generation == 4
    assert (group.shares[P].owner, group.shares[P].epoch, group.shares[P].handed_over_by) == ("a", 1, ())


def test_who_has_begun_stands_for_everybody_before_it(group: GroupState) -> None:
    begun = state("a", at(3, epoch=1))
    to_b = moved(group, "b", begun)
    assert to_b.shares[P].handed_over_by == ("a",)
    to_c = moved(to_b, "c", begun, state("b", at(4, epoch=to_b.shares[P].epoch)))
    assert to_c.shares[P].handed_over_by == ("b",)
    assert to_c.shares[P].epoch == to_c.generation == group.generation + 2


def test_an_owner_that_never_began_does_not_hide_who_had_the_partition_before(group: GroupState) -> None:
    to_b = moved(group, "b", state("a", at(3, epoch=1)))
    to_c = moved(to_b, "c", state("a", at(3, epoch=1)), state("b"))
    assert to_c.shares[P].handed_over_by == ("a", "b")
    # And back: it is asked for its own earlier offset, too.
    to_a = moved(to_c, "a", state("a", at(3, epoch=1)), state("b"), state("c"))
    assert to_a.shares[P].handed_over_by == ("a", "b", "c")


def test_an_old_commit_of_an_owner_does_not_count_as_a_beginning(group: GroupState) -> None:
    to_b = moved(group, "b", state("a", at(3, epoch=1)))
    to_a = moved(to_b, "a", state("a", at(3, epoch=1)), state("b", at(5, epoch=to_b.shares[P].epoch)))
    # a has not begun again: its commit is of its first time.
    to_c = moved(to_a, "c", state("a", at(3, epoch=1)), state("b", at(5, epoch=to_b.shares[P].epoch)))
    assert to_c.shares[P].handed_over_by == ("b", "a")


def test_what_a_dead_member_committed_is_the_groups(group: GroupState) -> None:
    to_b = moved(group, "b", state("a", at(3, epoch=1)))
    dead = state("a", at(4, epoch=1), fenced="it was slow")
    found = to_b.without("a", {"a": dead, "b": state("b")})
    share = found.shares[P]
    assert (share.owner, share.handed_over_by, share.committed) == ("b", (), at(4, epoch=1))
    # b dies as well, before it began; c goes on where a was.
    orphaned = replace(found, members={name: replace(one, topics={"t": 1}) for name, one in found.members.items()})
    last = orphaned.without("b", {"b": state("b", fenced="dead"), "c": state("c"), "d": state("d")})
    assert last.shares[P].owner in {"c", "d"}
    assert last.shares[P].handed_over_by == ()
    assert last.shares[P].committed == at(4, epoch=1)
    assert last.shares[P].epoch == last.generation


def test_a_dead_owner_that_had_begun_needs_nobody_before_it(group: GroupState) -> None:
    to_b = moved(group, "b", state("a", at(3, epoch=1)))
    epoch = to_b.shares[P].epoch
    found = to_b.without("b", {"a": state("a", at(3, epoch=1)), "b": state("b", at(7, epoch=epoch), fenced="dead")})
    assert found.shares[P].handed_over_by == ()
    assert found.shares[P].committed == at(7, epoch=epoch)
    not_begun = to_b.without("b", {"a": state("a", at(3, epoch=1)), "b": state("b", fenced="dead")})
    assert not_begun.shares[P].handed_over_by == ("a",), "a may still read, and has the newest offset"


def test_the_commit_of_the_highest_epoch_counts_not_the_highest_offset() -> None:
    assert newest(at(9, epoch=1), None, at(2, epoch=5), at(4, epoch=3)) == at(2, epoch=5)
    assert newest(None) is None


def test_a_static_member_takes_over_what_it_had_and_nothing_else_moves() -> None:
    group = GroupState("g", "cooperative-sticky")
    for name in ("a", "b"):
        group = group.joined(name, Member({"t": 4}, 60_000, f"{name}-instance"), {})
    before = {key: share.owner for key, share in group.shares.items()}
    assert sorted(map(str, before.values())) == ["a", "a", "b", "b"]
    his = next(key for key, owner in before.items() if owner == "b")
    final = MemberState("b", 2, 2, {his: Committed(Offset(8), 2, "id")}, "replaced")
    found = group.without("b", {"a": None, "b": final}, successor="b2")
    assert set(found.members) == {"a", "b2"}
    for key, owner in before.items():
        share = found.shares[key]
        assert share.owner == ("b2" if owner == "b" else "a")
        assert share.epoch == (found.generation if owner == "b" else group.shares[key].epoch)
    assert found.shares[his].committed == Committed(Offset(8), 2, "id")


def test_a_reset_is_newer_than_every_commit(group: GroupState) -> None:
    empty = group
    for name in "abcd":
        empty = empty.without(name, {name: state(name, at(9, epoch=1), fenced="left")})
    assert empty.members == {}
    assert empty.shares[P].committed == at(9, epoch=1)
    found = empty.reset({P: at(2, epoch=0), ("t", 1): None})
    assert found.generation == empty.generation + 1
    assert found.shares[P].committed == at(2, epoch=found.generation)
    assert found.shares["t", 1].committed is None
    joined = found.joined("e", ONE, {})
    assert joined.shares[P].owner == "e"
    assert joined.shares[P].committed == at(2, epoch=found.generation)
    assert joined.shares[P].epoch > found.generation


def test_a_partition_that_nobody_reads_keeps_its_offset(group: GroupState) -> None:
    nobody = group.without("a", {"a": state("a", at(3, epoch=1), fenced="left")})
    assert nobody.shares[P].owner is None
    assert nobody.shares[P].committed == at(3, epoch=1)


offsets = st.builds(
    Committed,
    st.builds(Offset, st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1)),
    st.integers(0, 99),
    st.text(),
    st.none() | st.integers(0),
)
keys = st.tuples(st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True), st.integers(0, 99))


@given(
    st.builds(
        MemberState, st.text(), st.integers(0), st.integers(0), st.dictionaries(keys, offsets), st.none() | st.text()
    )
)
def test_a_members_object_is_read_as_it_was_written(written: MemberState) -> None:
    assert MemberState.parse(written.to_bytes(), path="x") == written


def test_a_groups_object_is_read_as_it_was_written(group: GroupState) -> None:
    dead = state("a", Committed(Offset(4, 2), 1, "id", rows=7), fenced="dead")
    for found in (group, group.without("a", {"a": dead}), moved(group, "b", state("a", at(3, epoch=1)))):
        assert GroupState.parse(found.to_bytes(), path="x") == found


BROKEN = [b"", b"{}", b"[]", b"null", b"[" * 100_000, b'{"format": 2}', b"\xff\xfe"]


@pytest.mark.parametrize("data", BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_such_object_is_named(data: bytes) -> None:
    for kind in (GroupState, MemberState):
        with pytest.raises(GroupDamaged, match=r"s3://b/g/group\.json.*brokerless groups"):
            kind.parse(data, path="s3://b/g/group.json")


@pytest.mark.parametrize(
    "change",
    [
        {"strategy": "round-robin"},
        {"generation": "many"},
        {"members": {"a": {"topics": [], "session_ms": 1, "instance": None}}},
        {"members": {"a": {}}},
        {"partitions": {"t": {"owner": None, "epoch": 1, "handed_over_by": [], "committed": None}}},
        {"partitions": {"t/0": {"owner": None, "epoch": 1, "handed_over_by": [], "committed": {"offset": "3"}}}},
        {"partitions": {"t/0": {"owner": None, "epoch": 1, "handed_over_by": 5, "committed": None}}},
        {"format": 2},
    ],
    ids=repr,
)
def test_a_damaged_group_is_named(group: GroupState, change: dict[str, object]) -> None:
    data = json.dumps(json.loads(group.to_bytes()) | change).encode()
    with pytest.raises(GroupDamaged, match="x is not the object of a group"):
        GroupState.parse(data, path="x")


def test_paths_and_names() -> None:
    assert group_path("report") == "_brokerless/groups/report/group.json"
    assert member_path("report", "m-1") == "_brokerless/groups/report/members/m-1.json"
    assert partition_of(key_of(("t", 12))) == ("t", 12)
    for name in ("../x", "", "a/b"):
        with pytest.raises(ConfigError, match="name of a group"):
            check_group(name)
