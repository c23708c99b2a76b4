"""Safeguards of maintenance: nothing goes that anybody may still need."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, Sim, by_tests

_MAINTAINER: Final = "brokerless/maintenance/maintainer.py"
_STEP: Final = "brokerless/maintenance/step.py"
_LOG_END: Final = "brokerless/maintenance/log_end.py"
_LOG_CLEANUP: Final = "brokerless/maintenance/log_cleanup.py"
_GARBAGE: Final = "brokerless/maintenance/garbage.py"

MUTANTS: Final = (
    Mutant(
        "orphans have a time of grace",
        _GARBAGE,
        "        old = [i for i in found if now_s - i.modified_s >= self._grace_s and not i.path.startswith(inner)]",
        "        old = [i for i in found if not i.path.startswith(inner)]",
        "An object on its way to its commit is removed, and the commit names nothing.",
        Sim(),
    ),
    Mutant(
        "the log is asked once more right before a sweep removes",
        _GARBAGE,
        "                live.update(add.path for add in entry.adds)\n",
        "",
        "An object that was committed while the sweep went on is removed.",
        by_tests("unit/maintenance/test_maintainer", "test_a_commit_just_before_the_deletion_saves_its_file"),
    ),
    Mutant(
        "a removal is marked before the log is asked for the last time",
        _GARBAGE,
        '            self._store.put(mark, b"")\n',
        "",
        "A writer that slept for hours puts its object back, and then it is removed.",
        by_tests("unit/maintenance/test_maintainer", "test_a_commit_just_before_the_deletion_saves_its_file"),
    ),
    Mutant(
        "the mark of a removal without an answer stays",
        _GARBAGE,
        "            if doomed:\n                self._store.delete([info.path for info in doomed])\n",
        "            try:\n                if doomed:\n"
        "                    self._store.delete([info.path for info in doomed])\n"
        "            except BrokerlessError:\n                self._store.delete([mark])\n                raise\n",
        "The removal comes after the object was put back.",
        by_tests("faults/test_simulation", "test_an_object_is_put_back_behind_a_removal_that_is_under_way"),
    ),
    Mutant(
        "a removed file stays while an entry that adds it can be read",
        _GARBAGE,
        "            return unreachable and removed_ms < min(",
        "            return True or removed_ms < min(",
        "A reader that is behind a compaction meets an entry whose object is gone.",
        by_tests(
            "unit/maintenance/test_maintainer", "test_a_removed_file_stays_while_an_entry_that_adds_it_can_be_read"
        ),
    ),
    Mutant(
        "a file older than tombstones stays while an entry may name it",
        _GARBAGE,
        "        return unreachable and age_s >= rules.foreign_grace_s\n",
        "        return True\n",
        "The same, where the checkpoint has dropped the tombstone.",
        by_tests(
            "unit/maintenance/test_maintainer",
            "test_an_unknown_file_older_than_tombstones_stays_while_an_entry_may_name_it",
        ),
    ),
    Mutant(
        "entries stay for the log retention",
        _LOG_CLEANUP,
        "            if version >= hint or now_s - info.modified_s < retention_s:\n"
        "                break\n"
        "            old.append((version, info))\n"
        "        while True:\n"
        "            expired = list(takewhile(lambda found: now_s - found[1].modified_s >= retention_s, old))",
        "            if version >= hint:\n"
        "                break\n"
        "            old.append((version, info))\n"
        "        while True:\n"
        "            expired = list(old)",
        "Readers that are a minute behind are thrown out.",
        by_tests(
            "unit/maintenance/test_maintainer", "test_entries_go_when_they_are_old_and_below_a_settled_checkpoint"
        ),
    ),
    Mutant(
        "entries that the hint leads to stay",
        _LOG_CLEANUP,
        "            if version >= hint or now_s - info.modified_s < retention_s:",
        "            if now_s - info.modified_s < retention_s:",
        "After a maintainer was killed between a checkpoint and its hint, an old version passes for the head.",
        by_tests(
            "faults/test_safeguards",
            "test_entries_that_the_hint_leads_to_stay_although_a_later_checkpoint_is_there",
        ),
    ),
    Mutant(
        "a checkpoint settles before entries below it go",
        _LOG_CLEANUP,
        '            if ".checkpoint." in info.path and now_s - info.modified_s >= self._settle_s:',
        '            if ".checkpoint." in info.path:',
        "Whoever has just read the older hint does not find the entries that it leads to.",
        by_tests(
            "unit/maintenance/test_maintainer", "test_entries_go_when_they_are_old_and_below_a_settled_checkpoint"
        ),
    ),
    Mutant(
        "entries go only below a settled checkpoint",
        _LOG_CLEANUP,
        "            base = max([settled, *(",
        "            base = max([hint, *(",
        "The same, and where a checkpoint was lost nobody can open the table any more.",
        by_tests(
            "unit/maintenance/test_maintainer", "test_entries_go_when_they_are_old_and_below_a_settled_checkpoint"
        ),
    ),
    Mutant(
        "times that are not safe are refused",
        _MAINTAINER,
        "        if not unsafe_no_minimum and (",
        "        if unsafe_no_minimum and (",
        "A typing error in a setting makes maintenance remove what producers are about to commit.",
        by_tests("unit/maintenance/test_maintainer", "test_times_that_are_not_safe_are_refused"),
    ),
    Mutant(
        "a deleted topic's objects have a time of grace",
        _GARBAGE,
        "            return horizon.now_s - horizon.ended_s >= (",
        "            return True or (",
        "A reader that is in the middle of its last poll does not get its messages.",
        by_tests(
            "unit/maintenance/test_maintainer",
            "test_files_of_a_deleted_topic_go_after_the_grace_time_and_its_log_stays",
        ),
    ),
    Mutant(
        "the listing of a log says where it ends",
        _LOG_END,
        "            if gap is None and version != last + 1:\n                gap = last + 1\n",
        "",
        "One entry that is missing, and everything that was committed behind it is removed.",
        by_tests(
            "unit/maintenance/test_maintainer", "test_of_a_log_with_a_hole_behind_its_checkpoint_nothing_is_cleaned_up"
        ),
    ),
    Mutant(
        "the last look before a removal looks behind holes",
        _GARBAGE,
        "        if version < listed:\n            raise incomplete(log, version + 1)\n",
        "",
        "The same, where the hole comes while a sweep goes on.",
        by_tests("unit/maintenance/test_maintainer", "test_a_hole_that_comes_while_the_sweep_goes_on_is_noticed"),
    ),
    Mutant(
        "the store's time decides",
        _MAINTAINER,
        "                return StoreTime(info.modified_s, local_s - info.modified_s)\n",
        "                return StoreTime(local_s, 0.0)\n",
        "A maintainer whose clock is a day ahead removes what producers are about to commit.",
        by_tests("unit/maintenance/test_maintainer", "test_the_maintainers_clock_decides_nothing"),
    ),
    Mutant(
        "tables of others are left alone",
        _STEP,
        "        if not (sparks or PARTITIONS_KEY in properties or self._any_table):\n",
        "        if False:\n",
        "Another team's table beside the topics loses its history to our retention.",
        by_tests("unit/maintenance/test_maintainer", "test_tables_of_others_are_left_alone_unless_they_are_named"),
    ),
    Mutant(
        "objects of other engines have their own time",
        _GARBAGE,
        "        if rules.kit and _OF_THE_KIT.fullmatch(path) and age_s <",
        "        if age_s <",
        "The objects of a Spark batch that has run for two hours are gone when it commits.",
        by_tests(
            "unit/maintenance/test_maintainer",
            "test_what_another_engine_uploads_to_a_topic_stays_until_no_entry_can_name_it",
        ),
    ),
)
