"""Safeguards of pipelines: progress in the commit of the rows, dead letters first, one owner."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, Sim, by_tests

_OUTPUTS: Final = "brokerless/spark/outputs.py"
_SOURCE: Final = "brokerless/spark/source.py"
_INPUTS: Final = "brokerless/spark/inputs.py"
_PACKER: Final = "brokerless/spark/realtime/packer.py"
_FEED: Final = "brokerless/spark/realtime/feed.py"
_BRIDGE: Final = "brokerless/spark/realtime/bridge.py"
_APPEND: Final = "            self._log.append(adds, txns, expect={**owned, **(expect or {})})\n"

MUTANTS: Final = (
    Mutant(
        "what latest means is recorded before anything is read",
        _OUTPUTS,
        "        self.output.note(begin.at, begin.ids)\n",
        "",
        "A crash before the first commit moves the start behind messages that were read and not written.",
        by_tests("spark/test_source", "test_a_crash_before_the_first_commit_does_not_move_the_start"),
    ),
    Mutant(
        "no object is larger than its readers take",
        _OUTPUTS,
        "    if rows.nbytes <= OBJECT_BYTES or rows.num_rows == 1:\n",
        "    if rows.num_rows:\n",
        "The output is committed, and nobody can read it.",
        by_tests("unit/spark/test_outputs", "test_many_rows_become_several_objects_in_their_order"),
    ),
    Mutant(
        "progress is in the commit of the rows",
        _OUTPUTS,
        _APPEND,
        "            self._log.append(adds, {}, expect=owned)\n            self._log.append([], txns, expect=owned)\n",
        "A pipeline that is killed between the two commits writes the batch twice.",
        Sim(100),
    ),
    Mutant(
        "the epoch is compared with a pipeline's commit",
        _OUTPUTS,
        _APPEND,
        "            self._log.append(adds, txns, expect=expect or {})\n",
        "A pipeline that was replaced writes on beside its successor.",
        Sim(),
    ),
    Mutant(
        "a pipeline claims its outputs at start",
        _OUTPUTS,
        "        for output in self._all():\n            output.claim(old_version=old_version)\n",
        "",
        "Two pipelines of one name are never told apart.",
        Sim(),
    ),
    Mutant(
        "dead letters are committed before the output",
        _OUTPUTS,
        "        if self.letters is not None and letters.rows:\n"
        "            self.letters.commit(letters, offset.at, offset.ids)\n"
        "        if self.output in missing:\n"
        "            self.output.commit(good, offset.at, offset.ids)\n",
        "        if self.output in missing:\n"
        "            self.output.commit(good, offset.at, offset.ids)\n"
        "        if self.letters is not None and letters.rows:\n"
        "            self.letters.commit(letters, offset.at, offset.ids)\n",
        "A pipeline that is killed in between loses the batch's dead letters.",
        Sim(40),
    ),
    Mutant(
        "rows at or below an output's own progress are skipped",
        _OUTPUTS,
        "            if covers(done, start, end):\n                continue\n",
        "",
        "After a crash between two commits a pipeline cannot start any more.",
        Sim(130),
    ),
    Mutant(
        "the dead letters' own progress counts, too",
        _OUTPUTS,
        "            if covers(done, start, end):\n"
        "                continue\n"
        "            if not follows(done, start) and not (output is self.letters and _behind(done, start)):\n",
        "            if output is not self.letters and covers(done, start, end):\n"
        "                continue\n"
        "            if False:\n",
        "After such a crash the dead letters are there twice.",
        Sim(),
    ),
    Mutant(
        "a batch continues exactly what the output records",
        _OUTPUTS,
        "            if not follows(done, start) and not (output is self.letters and _behind(done, start)):\n",
        "            if False:\n",
        "With progress that was read too early, a batch is written a second time.",
        Sim(220),
    ),
    Mutant(
        "batches end at the position of the output that is ahead",
        _SOURCE,
        "        target = {t: v for t, v in self._target.items() if v > at[t]}",
        "        target = {}",
        "After a crash between two commits a pipeline cannot start any more.",
        Sim(130),
    ),
    Mutant(
        "a restart begins after what the output records",
        _INPUTS,
        "        if (version := recorded(log)) is not None:",
        "        if False:",
        "A restart reads everything again.",
        Sim(100),
    ),
    Mutant(
        "objects that waited for ten minutes are not committed",
        _OUTPUTS,
        "        if any(objects.adds[number].path not in objects.kept for number in old):",
        "        if False:",
        "An executor's object that was swept as an orphan is committed, and its rows are gone.",
        by_tests("faults/test_safeguards", "test_a_pipeline_commits_no_object_that_may_have_been_swept"),
    ),
    Mutant(
        "a pipeline puts its objects again after it slept within a commit",
        _OUTPUTS,
        "            raise\n        self._put_again(objects)\n",
        "            raise\n",
        "Rows of the output are gone.",
        by_tests(
            "faults/test_simulation",
            "test_a_pipeline_that_slept_within_its_commit_puts_its_objects_again",
            "test_a_pipeline_says_when_an_executors_object_was_swept_while_it_slept",
        ),
    ),
    Mutant(
        "a pipeline that meets its own progress after a sleep is not fenced",
        _OUTPUTS,
        "            if error.ours:\n",
        "            if False:\n",
        "A laptop that is opened again finds its pipeline stopped.",
        by_tests(
            "faults/test_simulation",
            "test_a_pipeline_that_slept_within_a_commit_without_rows_is_not_fenced_by_itself",
        ),
    ),
    Mutant(
        "a plan has as many messages as its offsets say",
        _SOURCE,
        "        if rows != until.rows - since.rows:",
        "        if False:",
        "Messages that the planner has forgotten are left out without a word.",
        by_tests("spark/test_source", "test_planning_refuses_to_lose_messages"),
    ),
    Mutant(
        "objects without a number of rows are refused",
        _INPUTS,
        "            if add.rows is None:",
        "            if False:",
        "Foreign commits break the count of messages, on which the check of each plan rests.",
        by_tests("spark/test_source", "test_a_writer_without_row_counts_is_refused"),
    ),
    Mutant(
        "the order of slips is put back",
        _PACKER,
        "        for slip in self._slips:\n",
        "        for slip in sorted(self._slips, key=lambda slip: slip.lane or 0):\n",
        "Messages of one partition come out of a real-time pipeline in the order in which its tasks were done.",
        Sim(),
    ),
    Mutant(
        "a real-time pipeline's position lies behind whole commits only",
        _PACKER,
        "            if slip.last:\n",
        "            if True:\n",
        "A pipeline that is killed goes on behind a commit of which it has written a part.",
        Sim(),
    ),
    Mutant(
        "a position moves only over what came back from all lanes",
        _PACKER,
        "            if not complete:\n                break\n",
        "",
        "A slow task's messages are left out.",
        Sim(),
    ),
    Mutant(
        "dead letters that are there already are not written by the next real-time run",
        _PACKER,
        "            if letters is not None and not any(pack.start[table] < version "
        "for table, version in self._ahead.items()):\n",
        "            if letters is not None:\n",
        "After a crash between the two commits the dead letters are there twice.",
        by_tests(
            "unit/spark/test_realtime_packer",
            "test_dead_letters_are_not_repeated_after_a_crash_between_the_two_commits",
        ),
    ),
    Mutant(
        "nothing behind the dead letters is read before the output is there, too",
        _FEED,
        "                return ahead.get(table, -1)\n",
        "                return None\n",
        "After a crash between the two commits a real-time pipeline cannot start any more, or leaves dead letters out.",
        by_tests(
            "unit/spark/test_realtime_feed",
            "test_nothing_behind_the_dead_letters_is_read_before_the_output_has_come_as_far",
        ),
    ),
    Mutant(
        "a slip that comes back in the place of another ends the run",
        _PACKER,
        "                        if item != slip.number:\n",
        "                        if False:\n",
        "A task that lost a slip is taken for one that had nothing to give back: its messages are left out.",
        by_tests("unit/spark/test_realtime_packer", "test_a_mark_of_another_slip_ends_the_run"),
    ),
    Mutant(
        "bytes in flight are bounded",
        _BRIDGE,
        "                while self._packer.size > IN_FLIGHT_BYTES and not self._closing:\n",
        "                while False:\n",
        "A slow store fills the memory.",
        by_tests("unit/spark/test_realtime_bridge", "test_a_slow_store_stops_the_feed"),
    ),
    Mutant(
        "messages of which little is made give their bytes back",
        _PACKER,
        "            if max(nbytes, size) < PACK_BYTES:\n",
        "            if nbytes < PACK_BYTES:\n",
        "A filter over a large commit stops for ever.",
        by_tests(
            "unit/spark/test_realtime_packer",
            "test_messages_of_which_little_is_made_give_their_bytes_back_before_their_commit_is_complete",
        ),
    ),
    Mutant(
        "a commit is let in when all of it can be read",
        _FEED,
        "        for each in (fetch, *(of_commit if fetch.first else ())):\n",
        "        for each in (fetch,):\n",
        "An object that cannot be read holds back all partitions, if it is not the first of its commit.",
        by_tests(
            "unit/spark/test_realtime_bridge",
            "test_the_second_object_of_a_commit_that_cannot_be_read_holds_back_only_its_partition",
        ),
    ),
    Mutant(
        "what an input cannot go on with is said although others never pause",
        _FEED,
        "            self._raise_held(idle=False)\n",
        "",
        "A partition stands still, and nobody is told.",
        by_tests(
            "unit/spark/test_realtime_feed",
            "test_what_cannot_be_read_is_raised_in_the_end_although_others_never_pause",
        ),
    ),
    Mutant(
        "what is on its way is committed before what cannot be read ends the run",
        _BRIDGE,
        "                self._settle(_SETTLE_S)  # or each run would end before it has committed what it could read\n",
        "",
        "A pipeline beside a damaged object does not get on, however often it is started.",
        by_tests(
            "unit/spark/test_realtime_bridge",
            "test_what_is_on_its_way_is_committed_before_an_object_that_cannot_be_read_ends_the_run",
        ),
    ),
)
