"""Safeguards of the log: who owns a version, what a commit may go past, and what nobody may commit into."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, Sim, by_tests

_LOG: Final = "brokerless/log.py"
_ENTRIES: Final = "brokerless/entries.py"
_REPLAY: Final = "brokerless/replay.py"

MUTANTS: Final = (
    Mutant(
        "an interrupted commit is remembered as ours",
        _LOG,
        "                self._unresolved.add(commit_id)  # interrupted",
        "                pass  # interrupted",
        "The producer takes its own entry for a rival's, and stops.",
        by_tests("unit/test_producer", "test_an_interrupted_commit_is_no_rivals"),
    ),
    Mutant(
        "a claim that slept into a freed name is removed",
        _LOG,
        "                        if adds or self._is_cut_off(version):\n",
        "                        if adds:\n",
        "Readers from the beginning start on it, and never get to the messages.",
        by_tests("unit/test_log", "test_a_claim_that_slept_between_looking_and_writing_is_taken_back"),
    ),
    Mutant(
        "an entry with our commit id is ours",
        _LOG,
        "return (None if entry.commit_id == commit_id else entry), attempt",
        "return entry, attempt",
        "A commit whose answer was lost is taken for a rival's and written once more.",
        Sim(),
    ),
    Mutant(
        "an entry with another commit id is not ours",
        _LOG,
        "return (None if entry.commit_id == commit_id else entry), attempt",
        "return None, attempt",
        "Of two writers at one version both get an acknowledgement, and one's messages are nowhere.",
        Sim(),
    ),
    Mutant(
        "a refusal of the name is looked into, not believed",
        _LOG,
        "                doubt = True  # 409 and 412 too: a proxy or a retry below us may have met our own first try\n",
        '                if outcome == "exists":\n'
        '                    return Entry(version, 0, None, "", (), (), {}, None, None), attempt\n'
        "                doubt = True\n",
        "A repetition below the client meets its own first try, and the messages are written twice.",
        Sim(),
    ),
    Mutant(
        "an entry that is not there yet may still come",
        _LOG,
        "            self._clock.backoff(attempt, base_s=0.02)\n",
        '            raise NotCommitted("absent")\n',
        "A PUT that lands late shows messages that were reported as not written.",
        Sim(40),
    ),
    Mutant(
        "the same bytes go to the same version again",
        _LOG,
        "outcome = self.store.put_if_absent(path, body)",
        "outcome = self.store.put_if_absent(\n"
        "                    path, body.replace(commit_id.encode(), self._clock.uuid().encode()) if attempt else body\n"
        "                )",
        "A second try does not know itself again, and the messages are written twice.",
        Sim(),
    ),
    Mutant(
        "at the deadline an open outcome is unknown",
        _LOG,
        "            if self._clock.monotonic() >= deadline:\n"
        "                raise self._unknown(version, commit_id, None)",
        '            if self._clock.monotonic() >= deadline:\n                raise NotCommitted("deadline")',
        "The producer removes an object whose entry appears a minute later, and readers find a hole.",
        Sim(80),
    ),
    Mutant(
        "an open outcome ends at the deadline",
        _LOG,
        "            if self._clock.monotonic() >= deadline:\n"
        "                raise self._unknown(version, commit_id, None)\n",
        "",
        "While the store does not answer, a send never returns.",
        by_tests("unit/test_log", "test_unknown_at_the_deadline_is_said_with_what_resolves_it"),
    ),
    Mutant(
        "rivals stop a commit at the deadline",
        _LOG,
        "                if self._clock.monotonic() >= deadline:\n                    msg_0 = (",
        "                if conflicts > 10**9:\n                    msg_0 = (",
        "Under many writers a send goes on for ever.",
        by_tests("unit/test_log", "test_not_committed_only_when_every_try_was_taken_by_others"),
    ),
    Mutant(
        "an error of the store while in doubt is no failure",
        _LOG,
        "                if doubt:\n                    raise self._unknown(version, commit_id, error) from error\n",
        "                if doubt:\n                    raise\n",
        "Credentials expire after a lost answer, the messages count as failed, are sent again and are there twice.",
        Sim(50),
    ),
    Mutant(
        "every entry is read before the next version is tried",
        _LOG,
        "                for entry in self.read_from(state.version + 1):\n"
        "                    self._absorb(entry)\n"
        "                    self._check_rival(entry, txns, expect or {})\n",
        "                state.version = self.head()\n",
        "A fenced owner goes past the entry that fences it, and writes on.",
        Sim(),
    ),
    Mutant(
        "txns of entries in between are compared",
        _LOG,
        "                    self._absorb(entry)\n                    self._check_rival(entry, txns, expect or {})\n",
        "                    self._absorb(entry)\n",
        "A successor's commit is seen and not heeded: the fenced producer writes behind it.",
        Sim(30),
    ),
    Mutant(
        "the txns of the entry that came first are compared",
        _LOG,
        "                self._check_rival(rival, txns, expect or {})\n",
        "",
        "Two copies of a pipeline write the same batch, one right behind the other.",
        Sim(20),
    ),
    Mutant(
        "txns that are known already are compared before the first PUT",
        _LOG,
        "            self._check_txns(txns, expect or {})\n            commit_id = self._clock.uuid()",
        "            commit_id = self._clock.uuid()",
        "A commit that the log has already is written again.",
        Sim(),
    ),
    Mutant(
        "an expected txn must be there",
        _LOG,
        "            if (found := known.get(app_id, -1)) != version:",
        "            if (found := known.get(app_id, version)) != version:",
        "After a topic was created anew, an owner of the old one passes for the owner of the new one.",
        by_tests("unit/test_log", "test_what_is_not_as_expected_stops_the_commit"),
    ),
    Mutant(
        "own commits of unknown outcome are known again",
        _LOG,
        "        self._unresolved.add(commit_id)\n",
        "",
        "A producer that meets its own late commit believes that it was fenced, and stops.",
        by_tests("unit/test_log", "test_an_outcome_that_was_unknown_is_found_by_the_next_append"),
    ),
    Mutant(
        "a writer that was idle looks at the head again",
        _LOG,
        "        return elapsed > FRESH_S",
        "        return False",
        "After an hour it commits to a name that clean-up has freed, where no reader looks.",
        by_tests("unit/test_log", "test_a_writer_that_slept_past_clean_up_does_not_commit_into_the_past"),
    ),
    Mutant(
        "idle is what either clock says",
        _LOG,
        "        elapsed = max(self._clock.monotonic() - monotonic, (self._clock.time_us() - wall_us) / 1e6)",
        "        elapsed = self._clock.monotonic() - monotonic",
        "A laptop that was closed for an hour believes that no time has passed, and commits into the past.",
        by_tests("faults/test_safeguards", "test_a_writer_was_idle_if_either_clock_says_so"),
    ),
    Mutant(
        "that the next name is free is asked before the hint",
        _LOG,
        "            entry = self.read(state.version + 1)\n            checkpoint = self.checkpoint_version()\n",
        "            checkpoint = self.checkpoint_version()\n            entry = self.read(state.version + 1)\n",
        "Clean-up between the two questions makes a freed name look like the head, and the commit is lost.",
        by_tests("faults/test_safeguards", "test_clean_up_while_an_idle_writer_looks_is_noticed"),
    ),
    Mutant(
        "a writer that slept before its PUT asks whether its entry is in the past",
        _LOG,
        "                    if self._is_stale() and self._is_past(version, adds, commit_id):",
        "                    if False:",
        "Messages are acknowledged that stand behind the log's beginning, where no reader looks.",
        by_tests("unit/test_log", "test_a_writer_that_slept_between_looking_and_writing_takes_it_back"),
    ),
    Mutant(
        "an entry that a checkpoint holds is never taken back",
        _LOG,
        "        return not any(add.path in known.files or add.path in known.tombstones for add in adds)",
        "        return True",
        "A commit that readers have seen is written a second time.",
        by_tests("unit/test_log", "test_a_commit_that_a_checkpoint_already_holds_is_never_taken_back"),
    ),
    Mutant(
        "what was loaded is not behind the hint",
        _LOG,
        "            if (self.checkpoint_version() or 0) <= state.version:",
        "            if True:",
        "Clean-up while a table is opened makes an old version look like its head.",
        by_tests("unit/test_log", "test_clean_up_while_loading_is_noticed"),
    ),
    Mutant(
        "times do not go back",
        _LOG,
        "                timestamp = max(self._clock.time_us() // 1000, state.timestamp_ms)",
        "                timestamp = self._clock.time_us() // 1000",
        "A start by time leaves out messages of a writer whose clock is behind.",
        Sim(),
    ),
    Mutant(
        "times do not go back behind a checkpoint",
        _LOG,
        "        if state is not None and not state.timestamp_ms and (last := self.read(state.version)) is not None:\n"
        "            state.timestamp_ms = last.timestamp_ms\n",
        "",
        "The same, for whoever opens the table at a checkpoint.",
        by_tests("faults/test_simulation", "test_times_do_not_go_back_behind_a_checkpoint"),
    ),
    Mutant(
        "a deleted topic stops its writers",
        _LOG,
        '        if metadata.deleted:\n            msg = f"{self.uri} was deleted (entry {entry.version})."\n'
        "            raise TopicDeleted(msg)\n",
        "",
        "Messages are acknowledged that stand behind the end of a topic.",
        by_tests("unit/test_log", "test_delete_ends_the_log_and_stale_writers_stop"),
    ),
    Mutant(
        "a topic that was created anew stops writers of the old one",
        _LOG,
        "        if metadata.id != state.metadata.id:\n            msg = (\n",
        "        if False:\n            msg = (\n",
        "Messages for the old topic turn up in the new one.",
        by_tests("faults/test_safeguards", "test_a_table_that_was_replaced_without_a_tombstone_stops_its_writers"),
    ),
    Mutant(
        "a state that is read anew must be of the same topic",
        _LOG,
        "        if before and before.metadata.id != state.metadata.id:",
        "        if False:",
        "A writer that slept through deletion, creation and clean-up writes into the new topic.",
        by_tests("faults/test_safeguards", "test_a_writer_that_slept_through_a_new_creation_and_its_clean_up_stops"),
    ),
    Mutant(
        "a changed schema stops writers",
        _LOG,
        "        if metadata.schema_string != state.metadata.schema_string:",
        "        if False:",
        "Objects without a new column, or with a dropped one, are committed to the changed table.",
        by_tests("unit/test_log", "test_a_changed_table_stops_writers_before_they_write"),
    ),
    Mutant(
        "metadata that changes under a writer is checked",
        _LOG,
        "        check_supported(protocol, metadata, table=self.uri)\n        if metadata.schema_string",
        "        if metadata.schema_string",
        "A table that got column mapping is written to as if it had none, and columns read as null.",
        by_tests("unit/test_log", "test_a_changed_table_stops_writers_before_they_write"),
    ),
    Mutant(
        "a table is checked when it is opened",
        _LOG,
        "                check_supported(state.protocol, state.metadata, table=self.uri)\n",
        "",
        "The same, for a table that had column mapping from the start.",
        by_tests("faults/test_safeguards", "test_a_table_is_looked_at_when_it_is_opened"),
    ),
    Mutant(
        "outputs of the delta engine are not written to",
        _LOG,
        '            if state.metadata.configuration.get(ENGINE_KEY) == "delta":',
        "            if False:",
        "Spark's own writer, which knows no conditional PUT, overwrites the commit.",
        by_tests("faults/test_safeguards", "test_an_output_of_the_delta_engine_is_not_written_to"),
    ),
    Mutant(
        "features that the log does not know are refused",
        _ENTRIES,
        "    if features - _HARMLESS:",
        "    if not features:",
        "Rows that a deletion vector hides are delivered, constraints of others are broken.",
        by_tests("unit/test_entries", "test_unsupported_features_are_named"),
    ),
    Mutant(
        "deletion vectors are refused",
        _ENTRIES,
        '    if action.get("deletionVector"):',
        "    if False:",
        "Deleted rows are delivered as messages.",
        by_tests("unit/test_entries", "test_deletion_vectors_are_refused_by_name"),
    ),
    Mutant(
        "an entry that is cut off is an error",
        _ENTRIES,
        "        raise StoreError(msg) from error\n    return Entry(\n",
        "    return Entry(\n",
        "A truncated answer passes for an entry without messages.",
        by_tests("unit/test_entries", "test_bytes_that_are_no_entry_are_named_not_guessed"),
    ),
    Mutant(
        "a new topic begins with fresh sequences",
        _LOG,
        "forgotten = dict.fromkeys((a for a in (state.txns if state else {}) if not a.endswith(_EPOCH)), -1)",
        "forgotten: dict[str, int] = {}",
        "Sequences of the old topic make a producer's messages to the new one look like repetitions.",
        by_tests("unit/test_log", "test_progress_does_not_survive_its_topic"),
    ),
    Mutant(
        "epochs outlive their topic",
        _LOG,
        "(state.txns if state else {}) if not a.endswith(_EPOCH))",
        "(state.txns if state else {}))",
        "After a topic was created anew, an old owner's epoch is handed out a second time.",
        by_tests("unit/test_log", "test_progress_does_not_survive_its_topic"),
    ),
    Mutant(
        "a tombstone stands right behind what it removes",
        _LOG,
        "                entry, _ = self._put_entry(state.version + 1, body, commit_id, deadline=deadline)\n"
        "                if entry is None:\n",
        "                version = state.version + 1\n"
        "                while (entry := self._put_entry(version, body, commit_id,"
        " deadline=deadline)[0]) is not None:\n"
        "                    version += 1\n"
        "                if entry is None:\n",
        "Messages of a commit in the last moment stay in the deleted table.",
        by_tests("unit/test_log", "test_a_commit_between_delete_and_its_tombstone_is_removed_too"),
    ),
    Mutant(
        "an absent entry is told apart: not yet, or cleaned up",
        _LOG,
        "        if checkpoint is None or checkpoint < version or self.store.exists(self.entry_path(version)):\n"
        "            return\n",
        "        return\n",
        "A reader that clean-up has overtaken waits for ever, and nobody is told.",
        Sim(),
    ),
    Mutant(
        "files that an entry removes are dead",
        _REPLAY,
        "            state.files.pop(path, None)\n",
        "            state.files.get(path)\n",
        "Maintenance keeps what compaction replaced, and a deleted topic's objects, for ever.",
        by_tests("unit/test_log", "test_delete_ends_the_log_and_stale_writers_stop"),
    ),
)
