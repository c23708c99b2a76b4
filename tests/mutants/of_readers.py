"""Safeguards of readers: each commit once, and no gap without a word."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, Sim, by_tests

_CONSUMER: Final = "brokerless/consumer.py"
_ENTRIES: Final = "brokerless/log/entries.py"
_RECORDS: Final = "brokerless/columns/records.py"

MUTANTS: Final = (
    Mutant(
        "a reader notices that its topic was deleted",
        _CONSUMER,
        "        if metadata.deleted or metadata.id != self._id:",
        "        if False:",
        "It goes on with the messages of another topic as if nothing had happened.",
        Sim(),
    ),
    Mutant(
        "a reader that waits makes sure that it waits for the future",
        _CONSUMER,
        "                self.log.check_retained(self.version)\n",
        "                pass\n",
        "A reader that clean-up has overtaken waits for ever.",
        Sim(),
    ),
    Mutant(
        "a poll that fails moves no position",
        _CONSUMER,
        "        self.part.tail.rewind(self.mark)\n",
        "",
        "The messages of a failed poll are never delivered.",
        by_tests("unit/test_consumer", "test_a_failed_fetch_gives_the_same_messages_again"),
    ),
    Mutant(
        "a rewind forgets only what came since",
        _CONSUMER,
        "        for _ in range(min(self._marked - marked, len(self._delivered))):\n"
        "            self._delivered.popitem()\n",
        "        self._delivered.clear()\n",
        "After an error an object that was added twice is delivered twice.",
        by_tests("unit/test_consumer", "test_an_error_does_not_forget_what_was_delivered_before"),
    ),
    Mutant(
        "an object that was added twice is delivered once",
        _CONSUMER,
        "        fresh = [add for add in entry.messages if add.path not in self._delivered]",
        "        fresh = list(entry.messages)",
        "Messages of a writer that repeats its commit come twice.",
        by_tests("unit/test_consumer", "test_a_file_added_twice_is_delivered_once"),
    ),
    Mutant(
        "rewrites are no messages",
        _ENTRIES,
        "        return tuple({add.path: add for add in self.adds if add.data_change}.values())",
        "        return tuple({add.path: add for add in self.adds}.values())",
        "Compaction delivers every message once more.",
        by_tests("unit/test_consumer", "test_rewrites_are_not_delivered"),
    ),
    Mutant(
        "an error is raised when all partitions have ended their turn",
        _CONSUMER,
        "                wait(futures)  # a straggler",
        "                pass  # a straggler",
        "A straggler moves a position that was rewound, and its messages are never delivered.",
        by_tests("unit/test_consumer", "test_one_failing_partition_does_not_cost_the_others_messages"),
    ),
    Mutant(
        "an interrupt takes back what nobody got",
        _CONSUMER,
        "        except BaseException:  # interrupts, too",
        "        except Exception:  # interrupts, too",
        "The position is past messages that were never given out.",
        by_tests("unit/test_consumer", "test_an_interrupt_gives_the_same_messages_again"),
    ),
    Mutant(
        "the position is before what a loop has not given out",
        _CONSUMER,
        "            found[batch.topic, batch.partition] = batch.first\n",
        "            pass\n",
        "Who leaves the loop and saves the position never gets the rest.",
        by_tests("unit/test_consumer", "test_who_leaves_a_loop_goes_on_after_it"),
    ),
    Mutant(
        "an object that is gone is an error",
        _RECORDS,
        "        except FileNotFoundError:\n            msg = (\n",
        "        except FileNotFoundError:\n            return Table.from_pydict({})\n            msg = (\n",
        "Messages are left out without a word.",
        by_tests("unit/test_consumer", "test_a_file_that_is_gone_is_named"),
    ),
    Mutant(
        "a reader checks metadata that changes under it",
        _CONSUMER,
        "        check_supported(entry.protocol or self.log.state.protocol, metadata, table=self.log.uri)\n",
        "",
        "Columns that were renamed are read as null.",
        by_tests(
            "faults/test_safeguards",
            "test_a_reader_stops_where_its_table_gets_a_feature_that_it_does_not_read",
        ),
    ),
    Mutant(
        "a reader notices that its table was made again by hand",
        "brokerless/consumer.py",
        "            if not self.log.meant(entry):\n",
        "            if False:\n",
        "It goes on in the new table where it was in the old one, and passes over what comes before.",
        Sim(),
    ),
    Mutant(
        "a reader that waits makes sure that its table is there",
        "brokerless/log/log.py",
        "        self.check_same()\n        self.check_end(version)\n",
        "        self.check_end(version)\n",
        "It waits for ever in a table that was made again, and is shorter.",
        Sim(),
    ),
)
