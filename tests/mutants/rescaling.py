"""Mutants of rescales and writes in place, and of operations at once: copies, collections, disposals."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

__all__ = ["PYTHON", "SCALA"]

_LOSS: Final = "tests/unit/savepoints/test_faults.py::test_operation_on_local_files_survives_a_power_loss"
_FAULTS: Final = (f"{_LOSS}[a-rescale-in-place]",)
_PLACE: Final = "spark_statestore/savepoints/rescale_in_place.py"
_PLACES: Final = "tests/unit/savepoints/test_rescale_in_place.py"
_COPIES: Final = "tests/unit/savepoints/test_restore.py"
_HOLDS: Final = "spark_statestore/savepoints/savepoint_holds.py"
_DISPOSALS: Final = "tests/unit/savepoints/test_disposal.py"
_WRITES: Final = "tests/unit/writing/test_in_place.py"
_STARTS: Final = "tests/spark/test_rescale_in_place.py"
_DRIVER: Final = "jvm-shim/src/main/scala/org/apache/spark/sql/statestore/driver"

PYTHON: Final = (
    Mutant(
        "rescale-without-a-journal",
        "spark_statestore/query/journal.py",
        "storage.create(path, journal.encode())",
        "journal.encode()",
        _FAULTS,
        "An interrupted rescale leaves the old number of partitions or the new one, whole.",
    ),
    Mutant(
        "reads-in-spite-of-a-journal",
        "spark_statestore/query/query_checkpoint.py",
        "self._require_no_journal(max(planned - {*batches}, default=None))",
        "pass",
        ("tests/unit/savepoints/test_rescale_in_place.py::test_damaged_journal_is_refused",),
        "No function reads a checkpoint of which some files have changed and others not.",
    ),
    Mutant(
        "rescale-leaves-attempts",
        _PLACE,
        "if not self._is_named(change):",
        "if False:",
        ("tests/unit/savepoints/test_rescale_in_place.py::test_failed_rescale_leaves_no_file",),
        "A rescale that fails before its journal leaves no file.",
    ),
    Mutant(
        "planned-batch-keeps-its-partitions",
        _PLACE,
        "if self._batch is None or number >= self._batch]",
        "if self._batch is None or number == self._batch]",
        (f"{_STARTS}::test_planned_batch_has_the_new_partitions_and_its_input",),
        "A batch that was planned before a rescale is run with the new partitions.",
    ),
    Mutant(
        "metadata-of-a-planned-run-is-forgotten",
        _PLACE,
        "return files | self._metadata_of_planned()",
        "return files",
        (
            "tests/unit/savepoints/test_rescale_in_place.py::test_metadata_of_a_planned_run_has_the_new_partitions",
        ),
        "Spark's metadata of an operator has the number of partitions that its batches have.",
    ),
    Mutant(
        "query-runs-during-a-rescale",
        _PLACE,
        "            self._require_stopped()",
        "            pass",
        ("tests/unit/savepoints/test_rescale_in_place.py::test_rescale_of_a_running_query_changes_nothing",),
        "A query that runs is not rescaled.",
    ),
    Mutant(
        "rollback-keeps-the-partitions-of-a-rescale",
        "spark_statestore/query/rollback.py",
        "_describe_partitions(checkpoint, checkpoint.newest_partitions(), partitions)",
        "pass",
        (f"{_STARTS}::test_batch_before_the_rescale_has_its_own_partitions",),
        "After a rollback over a rescale Spark's metadata has the partitions of the batch.",
    ),
    Mutant(
        "partitions-that-are-gone-stay",
        "spark_statestore/query/orphans.py",
        "elif store.newest is None and decided.is_past(name):",
        "elif False:",
        (
            "tests/unit/savepoints/test_rescale_in_place.py::test_partitions_of_past_batches_alone_are_collected",
        ),
        "Files of partitions that are gone are collected.",
    ),
    Mutant(
        "collection-of-what-is-being-written",
        "spark_statestore/query/orphans.py",
        "if version in decided.versions_in_use:",
        "if False:",
        (f"{_WRITES}::test_collection_during_a_write_in_place_removes_nothing_of_it",),
        "A collection removes no file that a write in place is about to publish.",
    ),
    Mutant(
        "collection-by-an-old-log",
        "spark_statestore/query/gc.py",
        "self._decided = _committed_since(self._checkpoint, self._decided, reasons)",
        "pass",
        (f"{_WRITES}::test_collection_that_began_before_a_write_in_place_removes_nothing_of_it",),
        "A collection removes no attempt that was published since it began.",
    ),
    Mutant(
        "collection-lists-before-it-reads-holds",
        "spark_statestore/query/gc.py",
        "self._merged.look_for_others(since=time.monotonic())",
        "pass",
        (f"{_WRITES}::test_write_in_place_that_ends_after_a_scan_of_a_collection_is_whole",),
        "A collection removes no stream of a write in place that ended since its listing.",
    ),
    Mutant(
        "collection-in-spite-of-a-journal",
        "spark_statestore/query/gc.py",
        "        checkpoint.newest_batch()",
        "        checkpoint.batches()",
        (f"{_PLACES}::test_collection_that_began_before_a_rescale_removes_nothing_of_it",),
        "A collection removes no attempt that the journal of an interrupted rescale names.",
    ),
    Mutant(
        "write-in-place-is-published-without-its-files",
        "spark_statestore/writing/in_place.py",
        "require_unremoved(state_hold, missing)",
        "pass",
        (f"{_WRITES}::test_write_in_place_without_what_was_removed_meanwhile_is_not_published",),
        "A write in place whose files were removed fails, and the query has its state of before.",
    ),
    Mutant(
        "rescale-is-published-without-its-files",
        _PLACE,
        "require_unremoved(self._hold, self._missing_files())",
        "pass",
        (f"{_PLACES}::test_rescale_without_what_was_removed_meanwhile_changes_nothing",),
        "A rescale in place whose files were removed fails, and the query has its state of before.",
    ),
    Mutant(
        "copy-of-entries-of-before-and-after",
        "spark_statestore/savepoints/copy.py",
        "        self._require_unchanged()\n        if state:",
        "        pass\n        if state:",
        (f"{_COPIES}::test_copy_of_a_query_that_is_rescaled_is_whole_or_leaves_nothing",),
        "A copy has the stores and the number of partitions of one time.",
    ),
    Mutant(
        "copy-to-other-partitions-of-before-and-after",
        "spark_statestore/savepoints/copy.py",
        "            self._require_unchanged()",
        "            pass",
        (f"{_COPIES}::test_copy_to_other_partitions_during_a_write_in_place_is_refused",),
        "A copy to other partitions has the operators of one time.",
    ),
    Mutant(
        "collection-of-streams-of-a-write-in-place",
        "spark_statestore/query/gc.py",
        "return int(version) if version.isascii() and version.isdigit() else None",
        "return None",
        ("tests/unit/writing/test_in_place.py",),
        "A collection keeps the streams of a write in place that ends meanwhile.",
    ),
    Mutant(
        "copy-of-stores-of-after",
        "spark_statestore/savepoints/copy.py",
        "if not named.issuperset(version.name.id for version in versions):",
        "if False:",
        (f"{_COPIES}::test_copy_of_a_query_that_is_rescaled_is_whole_or_leaves_nothing",),
        "A copy has no stores of another number of partitions than its logs.",
    ),
    Mutant(
        "copy-with-changes-for-other-partitions",
        "spark_statestore/savepoints/copy.py",
        "self._entry = entry or self._commit",
        "self._entry = self._commit",
        (f"{_COPIES}::test_copy_with_changes_for_other_partitions_is_refused",),
        "A key is written to the partition that has it in the copy.",
    ),
    Mutant(
        "copy-in-format-1-of-before-and-after",
        "spark_statestore/savepoints/copy.py",
        "if later := sorted(self._writes_in_place() - writes):",
        "if later := []:",
        (f"{_COPIES}::test_copy_in_format_1_during_a_write_in_place_is_refused",),
        "A copy has all stores of before a write in place, or all of after it.",
    ),
    Mutant(
        "pointer-to-what-is-not-held",
        "spark_statestore/savepoints/create.py",
        "        _require_held(savepoint, copy)",
        "        pass",
        (f"{_COPIES}::test_pointer_to_state_that_is_replaced_is_whole_or_leaves_nothing",),
        "A pointer savepoint can be restored, also one that was taken during a rescale in place.",
    ),
    Mutant(
        "hold-in-a-removed-savepoint",
        _HOLDS,
        "                _remove_remains(checkpoint, new_hold)",
        "                pass",
        (f"{_DISPOSALS}::test_copy_of_a_savepoint_that_was_disposed_of_leaves_nothing_in_its_directory",),
        "A savepoint that was disposed of leaves no file, also if a copy of it began meanwhile.",
    ),
    Mutant(
        "query-forgets-that-it-has-holds",
        _HOLDS,
        'if old_hold.files.url(directory) != f"{checkpoint.url}/{STATE}/{HOLDS_DIRECTORY}":',
        "if False:",
        (f"{_DISPOSALS}::test_copy_of_a_pointer_that_was_disposed_of_leaves_the_holds_of_the_query",),
        "The cleanups of a query look for holds as long as there may be any.",
    ),
    Mutant(
        "number-of-another-query",
        "spark_statestore/options.py",
        'return numbers.get(query or "", numbers.get(""))',
        'return numbers.get("", next(iter(numbers.values()), None))',
        (f"{_STARTS}::test_number_is_that_of_the_querys_name",),
        "A query has the number of partitions that the option has for its name.",
    ),
)

SCALA: Final = (
    Mutant(
        "state-of-other-partitions",
        f"{_DRIVER}/StatePartitions.scala",
        "if ids.length > 1 && ids.length != info.numPartitions",
        "if false",
        (f"{_STARTS}::test_batch_with_the_state_of_other_partitions_is_refused",),
        "No batch runs on the state of another number of partitions.",
    ),
    Mutant(
        "journal-is-left-at-a-start",
        f"{_DRIVER}/StatePartitions.scala",
        "(hasOption || mayGoOn || logs.hasJournal || logs.haveOtherPartitions)",
        "(hasOption || mayGoOn || logs.haveOtherPartitions)",
        (f"{_STARTS}::test_interrupted_rescale_is_completed_by_the_next_start",),
        "The next start of a query completes an interrupted rescale, also without the option.",
    ),
    Mutant(
        "logs-contradict-each-other",
        f"{_DRIVER}/StatePartitions.scala",
        "(hasOption || mayGoOn || logs.hasJournal || logs.haveOtherPartitions)",
        "(hasOption || mayGoOn || logs.hasJournal)",
        (f"{_STARTS}::test_logs_with_other_partitions_than_each_other_are_made_to_agree",),
        "A query does not start with the state of other partitions than its batch has.",
    ),
    Mutant(
        "failed-rescale-is-ignored",
        f"{_DRIVER}/QueryOptionsRule.scala",
        "StatePartitions.require(query, plan)",
        "()",
        (f"{_STARTS}::test_refused_rescale_fails_before_the_first_task_and_changes_no_state",),
        "A query that cannot be rescaled fails before its first task.",
    ),
)
