"""Safeguards of pipelines: progress in the commit of the rows, dead letters first, one owner."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, Sim, by_tests

_OUTPUTS: Final = "brokerless/spark/outputs.py"
_SOURCE: Final = "brokerless/spark/source.py"
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
        by_tests("unit/test_outputs", "test_many_rows_become_several_objects_in_their_order"),
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
        _SOURCE,
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
        _SOURCE,
        "            if add.rows is None:",
        "            if False:",
        "Foreign commits break the count of messages, on which the check of each plan rests.",
        by_tests("spark/test_source", "test_a_writer_without_row_counts_is_refused"),
    ),
)
