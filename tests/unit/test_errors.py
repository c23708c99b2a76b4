"""The tree of errors is as its module draws it."""

from __future__ import annotations

import inspect
import re

from brokerless import errors
from brokerless.offsets import Offset


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([\s│├└─]*)([A-Z]\w+)(?:\s.*)?$", line)
        if found is None or not hasattr(errors, found[2]):
            continue
        depth = len(found[1])
        above = [(d, name) for d, name in above if d < depth]
        drawn[found[2]] = above[-1][1] if above else None
        above.append((depth, found[2]))
    real = {
        name: None if kind is errors.BrokerlessError else kind.__base__.__name__
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, Exception) and kind.__module__ == errors.__name__
    }
    assert drawn == real


def test_errors_carry_their_context() -> None:
    unknown = errors.CommitUnknown("text", table="t", version=3, commit_id="c")
    assert (unknown.table, unknown.version, unknown.commit_id, str(unknown)) == ("t", 3, "c", "text")
    failed = errors.DeliveryFailed("text", acknowledged=[], unacknowledged=[2, 3], unknown=True)
    assert (failed.acknowledged, failed.unacknowledged, failed.unknown) == ((), (2, 3), True)
    assert errors.OffsetOutOfRange("text", earliest=Offset(4)).earliest == Offset(4)
