"""Judge a pipeline: rows in = rows out + dead letters, each exactly once and in order. Pure; no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerless.testing.history.state import name_of
from brokerless.testing.history.verdict import Findings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from brokerless.testing.history.events import Id
    from brokerless.testing.history.verdict import Verdict


def check_pipeline(
    inputs: Mapping[tuple[str, int], Sequence[Id]],
    output: Mapping[int, Sequence[Id]],
    dead_letters: Mapping[int, Sequence[Id]],
) -> Verdict:
    """Return the verdict on a pipeline that makes one row of each row: rows in = rows out + dead letters.

    Rows retain their ids in the pipeline. In each partition of the output (and of the dead letters), rows of one input
    partition are in their order.

    Args:
        inputs: the rows of the inputs, by topic and partition, in log order.
        output: the rows of the output, by partition, in log order (see ``log_order``).
        dead_letters: likewise.
    """
    found = Findings()
    source: dict[Id, tuple[tuple[str, int], int]] = {}
    for where, ids in inputs.items():
        for row, one in enumerate(ids):
            if source.setdefault(one, (where, row)) != (where, row):
                found.add("duplicate", f"{one!r} is twice in the inputs, so nobody can tell where its row came from")
    seen: dict[Id, str] = {}
    for name, partitions in (("output", output), ("dead letters", dead_letters)):
        for number, ids in partitions.items():
            last: dict[tuple[str, int], int] = {}
            for one in ids:
                here = f"{name}, partition {number}"
                if one not in source:
                    found.add("phantom", f"{one!r} is in {here}, but in no input")
                    continue
                if one in seen:
                    found.add("duplicate", f"{one!r} is in {seen[one]} and (again) in {here}")
                    continue
                seen[one] = here
                where, row = source[one]
                if row < last.get(where, -1):
                    found.add("reordered", f"{one!r} stands in {here} behind a later row of {name_of(*where)}")
                last[where] = max(row, last.get(where, -1))
    for one, (where, row) in source.items():
        if one not in seen:
            found.add("lost", f"{one!r}, row {row} of {name_of(*where)}, is neither in the output nor a dead letter")
    counts = {
        "rows_in": sum(map(len, inputs.values())),
        "rows_out": sum(map(len, output.values())),
        "dead_letters": sum(map(len, dead_letters.values())),
    }
    return found.verdict(counts)
