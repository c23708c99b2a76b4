"""``brokerless groups`` and ``lag`` against the embedded S3 server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from unittest.mock import ANY

from brokerless.client import Client
from brokerless.offsets import Offset
from tests.support.cli import assert_refused

if TYPE_CHECKING:
    from tests.support.cli import Cli


def sent(cli: Cli) -> Client:
    """A topic of two partitions with three messages in each, in a commit of their own."""
    cli.json("topics", "create", "clicks", "--schema", "n long", "--partitions", "2")
    client = Client(settings=cli.settings, store=cli.store)
    for partition in range(2):
        with client.producer("clicks", partition=partition) as producer:
            for n in range(3):
                producer.send([{"n": n}])
    return client


def test_a_group_is_listed_described_reset_and_deleted(cli: Cli) -> None:
    assert cli.json("groups", "list") == []
    client = sent(cli)
    reader = client.consumer("clicks", start="earliest", group="billing", heartbeat_s=0.5)
    assert reader.poll(5)
    (listed,) = cli.json("groups", "list")
    assert (listed["group"], listed["members"], listed["topics"]) == ("billing", 1, ["clicks"])
    assert_refused(cli("groups", "reset", "billing", "--to", "earliest"), "members that are alive")
    assert_refused(cli("groups", "delete", "billing", "--yes"), "members that are alive")
    while reader.poll(0):
        pass
    reader.close()

    about = cli.json("groups", "describe", "billing")
    assert [(one["committed"], one["lag_messages"]) for one in about["partitions"]] == [("4:0", 0), ("4:0", 0)]
    assert "4:0" in cli("groups", "describe", "billing").stdout
    dry = cli.json("groups", "reset", "billing", "--to", "-2", "--topic", "clicks:1", "--dry-run")
    assert dry["partitions"] == [
        {"topic": "clicks", "partition": 1, "old": "4:0", "new": "2:0", "skipped": 0, "repeated": 2}
    ]
    assert client.group("billing").partitions[1].lag.position == Offset(4)
    shown = cli("groups", "reset", "billing", "--to", "-2", "--topic", "clicks:1")
    assert shown.exit_code == 0 and "2 repeated" in shown.stdout
    assert [one.lag.messages for one in client.group("billing").partitions] == [0, 2]

    assert_refused(cli("groups", "reset", "billing", "--to", "99:0"), "holds 1:0 up to 4:0", code=1)
    assert_refused(cli("groups", "reset", "other", "--to", "1h"), "no group 'other'")
    assert_refused(cli("groups", "delete", "billing"), "--yes")
    assert cli.json("groups", "delete", "billing", "--yes") == {"deleted": "billing"}
    assert_refused(cli("groups", "describe", "billing"), "no group 'billing'")
    assert not [path for path in cli.objects() if "_brokerless/groups" in path]


def test_a_killed_member_is_waited_for(cli: Cli) -> None:
    client = sent(cli)
    reader = client.consumer("clicks", start="earliest", group="billing", heartbeat_s=0.2)
    reader.poll(5)
    reader._end_heartbeats()
    done = cli("groups", "reset", "billing", "--to", "latest", "--json")
    assert done.exit_code == 0, done.output
    assert [one["new"] for one in json.loads(done.stdout)["partitions"]] == ["4:0", "4:0"]
    assert "Waiting up to 0.6 s" in done.stderr


def test_tail_goes_on_where_its_group_has_committed(cli: Cli) -> None:
    client = sent(cli)
    assert [json.loads(line)["n"] for line in _lines(cli, "--group", "g", "--once", "--max", "2")] != []
    shown = 2 + len(_lines(cli, "--group", "g", "--once"))
    assert shown == 6
    assert _lines(cli, "--group", "g", "--once") == []
    with client.producer("clicks", partition=1) as producer:
        producer.send([{"n": 9}])
    assert [json.loads(line)["n"] for line in _lines(cli, "--group", "g", "--once")] == [9]
    assert_refused(cli("tail", "clicks", "--group", "g", "--partition", "1"), "either group or partitions")


def test_tail_and_export_end_where_they_are_bid(cli: Cli) -> None:
    client = sent(cli)
    assert len(_lines(cli, "--until", "3:0")) == 4
    assert len(_lines(cli, "--from", "2:0", "--until", "latest")) == 4
    done = cli.json("export", "clicks", "out.csv", "--from", "1h", "--until", "3:0")
    assert (done["messages"], done["next"]) == (4, {"0": "3:0", "1": "3:0"})
    assert cli.json("export", "clicks", "rest.csv", "--once", "--from", "today")["messages"] == 6
    assert_refused(cli("tail", "clicks", "--until", "2999-01-01"), "still to come")
    assert len(list(client.consumer("clicks", start="earliest", until="2:0"))) == 2


def test_lag_in_the_shell(cli: Cli) -> None:
    client = sent(cli)
    assert_refused(cli("lag", "billing"), "no group and no pipeline")
    assert len(_lines(cli, "--group", "billing", "--once", "--max", "4")) == 4
    found = cli.json("lag", "billing")
    assert (found["kind"], found["messages"]) == ("group", 2)
    assert cli.json("lag") == [cli.json("lag", "billing") | {"seconds": ANY, "partitions": ANY}]
    assert "2 messages" in cli("lag", "billing").stdout
    assert cli("lag", "billing", "--max-seconds", "3600").exit_code == 0
    assert cli("lag", "billing", "--max-seconds", "0").exit_code == 3
    assert cli("lag", "billing", "--max-seconds", "0", "--watch").exit_code == 3
    assert client.lag("billing").messages == 2


def _lines(cli: Cli, *more: str) -> list[str]:
    result = cli("tail", "clicks", *more)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()
