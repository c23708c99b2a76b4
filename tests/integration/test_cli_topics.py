"""The verbs that change what a topic keeps, and SQL, on a real S3 server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.cli import assert_refused

if TYPE_CHECKING:
    from tests.support.cli import Cli


@pytest.fixture
def clicks(cli: Cli) -> Cli:
    created = cli("topics", "create", "clicks", "--schema", "user string, n long", "--retention", "7d")
    assert created.exit_code == 0, created.output
    lines = "".join(json.dumps({"user": user, "n": n}) + "\n" for n, user in enumerate("abab"))
    assert cli("produce", "clicks", stdin=lines).exit_code == 0
    return cli


def test_limits_are_set_shown_and_taken_away(clicks: Cli) -> None:
    assert clicks.json("topics", "describe", "clicks")["limits"] == {"brokerless.retentionMs": "604800000"}
    changed = clicks.json("topics", "alter", "clicks", "--retention-bytes", "1.5GB", "--compact-by", "user")["limits"]
    assert (changed["brokerless.retentionBytes"], changed["brokerless.compactBy"]) == ("1500000000", "user")
    assert "until every group has read them" in clicks("topics", "alter", "clicks", "--retention", "until-read").stderr
    left = clicks.json(
        "topics", "alter", "clicks", "--retention", "forever", "--retention-bytes", "0", "--compact-by", ""
    )
    assert left["limits"] == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "nothing to change"),
        (("--retention", "soon"), "is not a duration"),
        (("--retention", "5m"), "at least an hour"),
        (("--retention-bytes", "many"), "is not a size"),
        (("--compact-by", "page"), "no column 'page'"),
    ],
)
def test_limits_that_cannot_work_are_refused(clicks: Cli, options: tuple[str, ...], words: str) -> None:
    assert_refused(clicks("topics", "alter", "clicks", *options), words)


def test_messages_are_forgotten(clicks: Cli) -> None:
    where = ("topics", "forget", "clicks", "--where", "user = 'a'")
    assert_refused(clicks(*where), "give --yes")
    assert [one["messages"] for one in clicks.json(*where, "--dry-run")] == [2]
    assert clicks.json("sql", "select count(*) as n from clicks") == {"n": 4}
    assert "2 messages of clicks were removed" in clicks(*where, "--yes").stderr
    assert clicks("sql", "select user, n from clicks order by n", "--csv").stdout == "user,n\nb,1\nb,3\n"
    assert_refused(clicks("sql", "select * from clikcs"), "no topic 'clikcs'", "clicks")
