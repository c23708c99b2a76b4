"""All mutants, in the order of the page: safeguards of which the simulation notices that they are missing."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_LOG: Final = (
    Mutant(
        "an entry with our commit id is ours",
        "return entry, attempt",
        "A commit whose answer was lost is taken for a rival's and written once more.",
    ),
    Mutant(
        "an entry with another commit id is not ours",
        "return None, attempt",
        "Of two writers at one version both get an acknowledgement, and the messages of one are lost.",
    ),
    Mutant(
        "a refused name is read, not believed",
        """\
if outcome == "exists":
    return Entry(version, 0, None, "", (), (), {}, None, None), attempt
doubt = True""",
        "A repetition below the client meets its own first try, and the messages are written twice.",
    ),
    Mutant(
        "an entry that is not there yet may still come",
        'raise NotCommitted("absent")',
        "A PUT that arrives late shows messages that were reported as not written.",
        first=200,
    ),
    Mutant(
        "the same bytes go to the same version again",
        """\
other = body.replace(commit_id.encode(), self._clock.uuid().encode()) if attempt else body
outcome = self.store.put_if_absent(path, other, within_s=max(deadline - begun, _LEAST_S))""",
        "A second try does not recognise the first, and the messages are written twice.",
    ),
    Mutant(
        "at the deadline an open outcome is unknown",
        """\
if self._clock.monotonic() >= deadline:
    raise NotCommitted("deadline")""",
        "The producer removes an object whose entry appears a minute later, and readers find a hole.",
        first=200,
    ),
    Mutant(
        "an error of the store while in doubt is no failure",
        """\
if doubt:
    raise""",
        "Credentials expire after a lost answer, the messages count as failed, are sent again and are there twice.",
        first=800,
    ),
    Mutant(
        "every entry is read before the next version is tried",
        "state.version = self.head()",
        "A fenced owner goes past the entry that fences it, and continues to write.",
    ),
    Mutant(
        "txns of entries in between are compared",
        "self._absorb(entry)",
        "The commit of a successor is ignored: the fenced producer writes behind it.",
        first=30,
    ),
    Mutant(
        "txns of the entry that came first are compared",
        "self._absorb(rival)",
        "Two copies of a pipeline write the same batch, one right behind the other.",
        first=20,
    ),
    Mutant(
        "known txns are compared before the first PUT",
        "",
        "A commit that the log has already is written again.",
    ),
    Mutant(
        "times do not go back",
        "timestamp = self._clock.time_us() // 1000",
        "A start by time leaves out messages of a writer whose clock is behind.",
    ),
    Mutant(
        "a writer looks once a second whether its table is there",
        "",
        "For a minute messages are acknowledged that go into a folder without a table.",
    ),
    Mutant(
        "a listing tells the end of a log from a hole",
        "following = None",
        "A writer replaces an entry that comes back, and is acknowledged where readers have passed.",
    ),
    Mutant(
        "nobody writes to a log with a hole",
        "",
        "What the missing entry says (a sequence, an epoch) is done a second time behind it.",
        first=600,
    ),
)

_PRODUCERS: Final = (
    Mutant(
        "the object goes before its entry",
        """\
name = records.object_name(data, clock.uuid())
add = Add(name, len(data), table.num_rows, begun_us // 1000)
commit = log.append([add], txns, expect=expect, deadline_s=timeout_s)
log.store.put(f"{log.table}/{name}", data)
return commit""",
        "A producer that is killed in between leaves an entry whose messages nobody can read.",
        statements=4,
    ),
    Mutant(
        "the sequence is in the commit of its messages",
        "txns = {}",
        "A restarted producer writes its last messages again.",
    ),
    Mutant(
        "the epoch is compared with the commit",
        "expect = {}",
        "The older of two producers of one name continues to write between the messages of the newer one.",
    ),
    Mutant(
        "a producer claims its id in each partition",
        """\
known = self.log.txn(epoch_of(self.producer_id))
self._epoch = self.log.claim(self.producer_id, deadline_s=within_s) if known is None else known""",
        "The older of two producers of one name is never stopped.",
    ),
    Mutant(
        "a sequence that the log has is not written again",
        "number = max(self._used, known) + 1",
        "Messages that are sent again after an unknown outcome are there twice.",
        statements=2,
    ),
    Mutant(
        "the log is asked before a sequence is called a duplicate",
        "",
        "Messages for a topic that was created again are called duplicates, and are nowhere.",
        first=1500,
        statements=2,
    ),
    Mutant(
        "an exact repetition goes to the same partition",
        "turn = self._turn()",
        "The repetition does not meet the first try, and the messages are there twice.",
    ),
    Mutant(
        "an object that waited long for its commit is put again",
        "if False:",
        "Maintenance took the object for an orphan while its producer slept: acknowledged messages are gone.",
    ),
)

_PIPELINES: Final = (
    Mutant(
        "progress is in the commit of the rows",
        """\
self._log.append(adds, {}, expect=owned)
self._log.append([], txns, expect=owned)""",
        "A pipeline that is killed between the two commits writes the batch twice.",
        first=100,
    ),
    Mutant(
        "the epoch is compared with the commit of a pipeline",
        "self._log.append(adds, txns, expect=expect or {})",
        "A pipeline that was replaced continues to write beside its successor.",
    ),
    Mutant(
        "a pipeline claims its outputs at start",
        "",
        "Two pipelines of one name are never told apart.",
    ),
    Mutant(
        "dead letters are committed before the output",
        """\
if self.output in missing:
    self.output.commit(good, offset.at, offset.ids)
if self.dead_letters is not None and rejected.rows:
    self.dead_letters.commit(rejected, offset.at, offset.ids)""",
        "A pipeline that is killed in between loses the dead letters of the batch.",
        first=40,
        statements=2,
    ),
    Mutant(
        "the dead letters' own progress counts, too",
        """\
if output is not self.dead_letters and covers(done, start, end):
    continue""",
        "After a crash between the two commits the dead letters are there twice.",
        statements=2,
    ),
    Mutant(
        "a batch continues exactly what the output records",
        "",
        "With progress that was read too early, a batch is written a second time.",
        first=500,
    ),
    Mutant(
        "batches end at the position of the output that is ahead",
        "target: dict[str, int] = {}",
        "After a crash between two commits a pipeline cannot start any more.",
        first=130,
    ),
    Mutant(
        "a restart begins after what the output records",
        "if False:",
        "A restart reads everything again.",
        first=100,
    ),
    Mutant(
        "the order of chunks is put back",
        "for chunk in sorted(self._chunks, key=lambda chunk: chunk.lane or 0):",
        "Messages of one partition leave a real-time pipeline in the order in which its tasks ended.",
    ),
    Mutant(
        "the position of a real-time pipeline lies behind whole commits",
        "if True:",
        "A pipeline that is killed continues behind a commit of which it has written a part.",
    ),
    Mutant(
        "a position moves only over what came back from all lanes",
        "",
        "The messages of a slow task are left out.",
    ),
)

_READERS: Final = (
    Mutant(
        "a reader notices that its topic was deleted",
        "if False:",
        "It continues with the messages of another topic as if nothing had happened.",
    ),
    Mutant(
        "a reader that waits asks whether its entry was removed",
        "",
        "A reader that clean-up has overtaken waits for ever.",
    ),
    Mutant(
        "a reader notices that its table was made again by hand",
        "if False:",
        "It continues in the new table at its old position, and skips what comes before.",
        first=100,
    ),
    Mutant(
        "a reader that waits makes sure that its table is there",
        "",
        "It waits for ever in a table that was made again, and is shorter.",
    ),
)

_WITH_GROUP: Final = 1_000_000  # ``tests.sim.run.GROUPS``: the worlds with a consumer group

_GROUPS: Final = (
    Mutant(
        "a member reads a partition only after its earlier owners let go of it",
        "if True:",
        "The new owner begins at an old offset while the earlier one is still at work: messages come twice, and the "
        "earlier one's commits are lost.",
        first=_WITH_GROUP,
    ),
    Mutant(
        "a member acknowledges a generation only after it let go of what that took from it",
        "acknowledged = self.generation",
        "The new owner begins before the earlier one has let go, at an old offset: messages come twice.",
        first=_WITH_GROUP,
    ),
    Mutant(
        "a member that slept asks whether it is alive before it gives out messages",
        "if False:",
        "Who wakes up gives out messages that its successor has given out already.",
        first=_WITH_GROUP + 200,
    ),
    Mutant(
        "a commit of a partition that was handed over is refused",
        "if False:",
        "A consumer believes that its work counts, and its successor does it again.",
        first=_WITH_GROUP,
    ),
)

GROUPS: Final[dict[str, tuple[Mutant, ...]]] = {
    "The log": _LOG,
    "Producers and objects": _PRODUCERS,
    "Pipelines": _PIPELINES,
    "Readers": _READERS,
    "Consumer groups": _GROUPS,
    "Maintenance and ingest": (
        Mutant(
            "orphans have a time of grace",
            "old = [i for i in found if not i.path.startswith(inner)]",
            "An object before its commit is removed, and the commit names nothing.",
        ),
        Mutant(
            "what is not beyond the known position is skipped",
            "if True:",
            "What Kinesis, Kafka or a FIFO queue delivers again is written again.",
        ),
    ),
}

MUTANTS: Final = tuple(mutant for group in GROUPS.values() for mutant in group)
