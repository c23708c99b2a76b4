"""Safeguards of producers: the object before its entry, and each sequence once."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, Sim, by_tests

_PRODUCER: Final = "brokerless/producer/producer.py"
_UPLOAD: Final = "brokerless/log/commit.py"
_BUFFER: Final = "brokerless/producer/buffer.py"
_RECORDS: Final = "brokerless/columns/records.py"
_ADMIN: Final = "brokerless/topics.py"

MUTANTS: Final = (
    Mutant(
        "the object goes before its entry",
        _UPLOAD,
        "    log.store.put(path, data, within_s=timeout_s)\n"
        "    left_s = max(uploaded_s + timeout_s - clock.monotonic(), 0.0)\n"
        "    add = Add(name, len(data), table.num_rows, uploaded_us // 1000)\n"
        "    try:\n"
        "        commit = log.append([add], txns, expect=expect, deadline_s=left_s)\n",
        "    add = Add(name, len(data), table.num_rows, uploaded_us // 1000)\n"
        "    try:\n"
        "        commit = log.append([add], txns, expect=expect, deadline_s=timeout_s)\n"
        "        log.store.put(path, data)\n",
        "A producer that is killed in between leaves an entry whose messages nobody can read.",
        Sim(),
    ),
    Mutant(
        "the sequence is in the commit of its messages",
        _PRODUCER,
        "            txns = {self.producer_id: number}\n",
        "            txns = {}\n",
        "A restarted producer writes its last messages again.",
        Sim(),
    ),
    Mutant(
        "the epoch is compared with the commit",
        _PRODUCER,
        "            expect = {epoch_of(self.producer_id): self._epoch or 0}\n",
        "            expect = {}\n",
        "The older of two producers of one name writes on between the newer one's messages.",
        Sim(),
    ),
    Mutant(
        "a producer claims its id when it first touches a partition",
        _PRODUCER,
        "self._epoch = self.log.claim(self.producer_id, deadline_s=within_s)\n",
        "self._epoch = self.log.refresh().txns.get(epoch_of(self.producer_id), -1)\n",
        "The older of two producers of one name is never stopped.",
        Sim(),
    ),
    Mutant(
        "a sequence that the log has is not written again",
        _PRODUCER,
        "            if sequence is not None and known >= sequence:\n"
        "                self._check_sent(sequence)\n"
        "                self._remember(sequence)\n"
        "                return -1, 0, True\n"
        "            number = max(self._used, known) + 1 if sequence is None else sequence\n",
        "            number = max(self._used, known) + 1\n",
        "Messages that are sent again after an unknown outcome are there twice.",
        Sim(),
    ),
    Mutant(
        "the log is asked before a sequence is called a duplicate",
        _PRODUCER,
        "                self.log.confirm()\n                known = self._known()\n",
        "                pass\n",
        "Messages for a topic that was created anew are called duplicates, and are nowhere.",
        Sim(900, 900),
    ),
    Mutant(
        "a missing entry is not taken for a successor",
        _PRODUCER,
        "            self.log.confirm()  # an entry may be missing instead\n",
        "            pass\n",
        "While an entry is missing, a producer stops for ever because of another one that does not exist.",
        by_tests("faults/test_simulation", "test_a_producer_is_not_fenced_by_an_entry_that_is_missing"),
    ),
    Mutant(
        "a sequence that was passed over is no duplicate",
        _PRODUCER,
        "                self._check_sent(sequence)\n",
        "",
        "Messages that were never written are acknowledged.",
        by_tests("unit/producer/test_producer", "test_a_sequence_that_was_passed_over_is_not_taken_for_a_duplicate"),
    ),
    Mutant(
        "an interrupted call ends when all its shares have ended",
        _PRODUCER,
        "            except BaseException:  # an interrupt: a later call must not overtake what is on its way\n"
        "                wait(futures.values())\n"
        "                raise\n"
        "            outcomes = {p: futures[p]",
        "            finally:\n                pass\n            outcomes = {p: futures[p]",
        "A later call is committed before it.",
        by_tests("unit/producer/test_producer", "test_a_later_call_waits_for_what_an_interrupted_one_left_on_its_way"),
    ),
    Mutant(
        "a topic is opened as a whole",
        _ADMIN,
        "            log.refresh()\n",
        "            pass\n",
        "A producer takes one partition from a deleted topic and the other from its successor: false duplicates.",
        by_tests("unit/test_topics", "test_no_topic_is_opened_half_as_it_was_and_half_as_it_was_created_again"),
    ),
    Mutant(
        "an exact repetition goes to the partition of the first time",
        _PRODUCER,
        "            turn = self._turn() if sequence is None else sequence % self.partitions\n",
        "            turn = self._turn()\n",
        "The repetition does not meet its earlier self, and the messages are there twice.",
        Sim(),
    ),
    Mutant(
        "an exact repetition cuts its rows as the first time",
        _PRODUCER,
        "        spare = self._turn() if sequence is None else sequence % self.partitions\n",
        "        spare = self._turn()\n",
        "Rows without a key are lost or doubled when a call is repeated.",
        by_tests("faults/test_safeguards", "test_rows_without_a_key_that_are_sent_again_go_where_they_went"),
    ),
    Mutant(
        "no producer's id looks like a pipeline's progress",
        _PRODUCER,
        "        if producer_id is not None and _PROGRESS.fullmatch(producer_id):",
        "        if False:",
        "Its sequences move a pipeline past messages that it never read.",
        by_tests("unit/spark/test_outputs", "test_no_producer_moves_the_progress_of_a_pipeline"),
    ),
    Mutant(
        "a producer that a fork copied refuses",
        "brokerless/forks.py",
        "    return os.getpid() != opened_in\n",
        "    return False\n",
        "The child waits for ever for a thread that only its parent has.",
        by_tests("unit/test_forks", "test_a_copied_producer_refuses_and_leaves_the_rest_to_its_parent"),
    ),
    Mutant(
        "an object that waited long for its commit is put again",
        _UPLOAD,
        "        if waited_s > UPLOAD_VALID_S:",
        "        if False:",
        "Maintenance took the object for an orphan while its producer slept: acknowledged messages are gone.",
        Sim(500),
    ),
    Mutant(
        "how long an object waited is what either clock says",
        _UPLOAD,
        "        waited_s = max(clock.monotonic() - uploaded_s, (clock.time_us() - uploaded_us) / 1e6)",
        "        waited_s = (clock.time_us() - uploaded_us) / 1e6",
        "The same, where the wall clock was set back meanwhile.",
        by_tests("faults/test_simulation", "test_the_wall_clock_may_be_set_back_while_an_object_waits"),
    ),
    Mutant(
        "an object is put once more when the removals under way are over",
        _UPLOAD,
        "        if not under_way:\n            put()\n",
        "",
        "Maintenance, which did not see the entry, removes the object that was put back.",
        by_tests("faults/test_simulation", "test_an_object_is_put_back_behind_a_removal_that_is_under_way"),
    ),
    Mutant(
        "an object of an unknown commit is put again, too",
        _UPLOAD,
        "        with contextlib.suppress(BrokerlessError):  # what is unknown already cannot become worse\n"
        "            put_again_if_late()\n"
        "        raise\n",
        "        raise\n",
        "The commit appears later, and its messages are gone.",
        by_tests("faults/test_simulation", "test_an_unknown_commit_that_comes_late_has_its_object"),
    ),
    Mutant(
        "a commit whose object cannot be put again is unknown, not failed",
        _UPLOAD,
        "        raise CommitUnknown(msg, table=log.uri, version=commit.version,"
        " commit_id=commit.commit_id) from error",
        "        raise",
        "The messages count as failed, are sent again and are there twice.",
        by_tests("faults/test_simulation", "test_a_commit_whose_object_cannot_be_put_again_is_not_reported_as_failed"),
    ),
    Mutant(
        "a producer notices before its first send that its topic was created anew",
        _PRODUCER,
        "_PartitionWriter(shared(log), producer_id, clock) for log in about.logs]",
        "_PartitionWriter(type(log)(log.store, log.table, clock=clock), producer_id, clock) for log in about.logs]",
        "Messages for the old topic turn up in the new one.",
        by_tests(
            "faults/test_simulation",
            "test_a_producer_that_was_opened_on_a_deleted_topic_writes_nothing_into_the_new_one",
            "test_such_a_producer_does_not_take_over_the_new_topic_either",
        ),
    ),
    Mutant(
        "an unknown outcome is not hidden by another partition's refusal",
        _BUFFER,
        "        elif final is not None and not self.acks and not unknown:",
        "        elif final is not None and not self.acks:",
        "Messages that may still appear are reported as never written, are sent again and are there twice.",
        by_tests("unit/producer/test_producer", "test_an_unknown_outcome_is_not_hidden_by_another_partitions_refusal"),
    ),
    Mutant(
        "objects carry the checksum of their bytes",
        _RECORDS,
        "            if problem is None:",
        "            if True:",
        "A bit that flips on the way makes another number of a number, and nobody notices.",
        by_tests("unit/log/test_damage", "test_a_flipped_bit_is_noticed_and_the_object_asked_for_again"),
    ),
    Mutant(
        "damaged bytes are asked for again",
        _RECORDS,
        "    for _ in range(2):\n        try:\n            data = store.get(path)",
        "    for _ in range(1):\n        try:\n            data = store.get(path)",
        "One flipped bit on the wire stops a pipeline.",
        by_tests("unit/log/test_damage", "test_a_flipped_bit_is_noticed_and_the_object_asked_for_again"),
    ),
    Mutant(
        "a store without conditional PUT is refused",
        _ADMIN,
        "        if created > 1:\n",
        "        if False:\n",
        "Two writers overwrite each other's commits, and acknowledged messages are gone.",
        by_tests("unit/test_topics", "test_a_store_that_lets_commits_overwrite_each_other_is_refused"),
    ),
    Mutant(
        "a topic that is half deleted is not created",
        _ADMIN,
        "        if error.left is None or error.left.used:\n            raise TopicExists(str(error)) from None\n",
        "",
        "Messages of a deleted topic come back in the new one.",
        by_tests(
            "unit/test_topics", "test_a_deletion_that_crashed_is_finished_and_nothing_of_the_old_topic_comes_back"
        ),
    ),
    Mutant(
        "partition 0 is created last",
        _ADMIN,
        "    for number in range(partitions - 1, -1, -1):",
        "    for number in range(partitions):",
        "After a crash half-way a topic counts as complete whose other partitions are missing.",
        by_tests("faults/test_safeguards", "test_a_creation_that_crashes_half_way_leaves_no_topic"),
    ),
    Mutant(
        "partition 0 is deleted last",
        _ADMIN,
        "    for log in reversed(live_logs(store, topic, clock=clock)):",
        "    for log in live_logs(store, topic, clock=clock):",
        "After a crash half-way nobody knows which partitions are left, and their messages stay.",
        by_tests("faults/test_safeguards", "test_a_deletion_that_crashes_half_way_can_be_finished"),
    ),
)
