"""Mutants of local copies and of the scrub: what is verified, and what is done about damage."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_SHIM: Final = "jvm-shim/src/main/scala/org/apache/spark/sql/statestore"
_PLACES: Final = "spark_statestore/storage/task_local_state_store.py"
_COPIES: Final = "tests/spark/test_local_copies.py"
_UNIT: Final = "tests/unit/storage/test_task_local_state_store.py"
_DAMAGED: Final = f"{_COPIES}::test_damaged_copy_costs_time_alone"
_SAME_ROWS: Final = f"{_COPIES}::test_load_from_a_copy_has_the_rows_of_one_without"

_SCRUB: Final = "spark_statestore/store/scrub.py"

MUTANTS: Final = (
    Mutant(
        "scrub-of-superseded-streams",
        _SCRUB,
        "if error is not None and entry in _streams_of(store):",
        "if error is not None:",
        ("tests/unit/store/test_scrub.py::test_stream_that_was_discarded_meanwhile_is_no_damage",),
        "A stream that a cleanup has deleted is not taken for damage.",
    ),
    Mutant(
        "scrub-without-repair",
        "spark_statestore/backend/handlers.py",
        "    if not (damaged := store.damaged):",
        "    if not (damaged := frozenset()):",
        ("tests/spark/test_healing.py::test_damage_is_repaired_from_memory_while_the_query_runs",),
        "Damage that is found while a query runs is repaired from the state in memory.",
    ),
    Mutant(
        "local-copy-unverified",
        f"{_SHIM}/table/LocalCopy.scala",
        "if (LocalCopyFile.crcOf(mapped.duplicate()) != region.crc) {",
        "if (LocalCopyFile.crcOf(mapped.duplicate()) == region.crc + 1) {",
        (_DAMAGED,),
        "A damaged local copy costs time, and no row.",
    ),
    Mutant(
        "local-copy-of-another-stream",
        f"{_SHIM}/table/LocalCopy.scala",
        "if (copyStreamId != streamId) throw",
        "if (copyStreamId.isEmpty) throw",
        (_DAMAGED,),
        "A local copy of another store or version is not taken for this one's.",
    ),
    Mutant(
        "local-copy-of-the-newest-rows",
        f"{_SHIM}/arrow/LoadedChanges.scala",
        "      else if (atBase != null && !hasBase) endBase()",
        "      else if (atBase != null && !hasBase && message.stream > 1) endBase()",
        (_SAME_ROWS,),
        "A local copy has the rows of its full snapshot, and not those of later batches.",
    ),
    Mutant(
        "local-copy-with-the-hash-of-this-process",
        f"{_SHIM}/table/LocalCopy.scala",
        "find(name, createdAtVersion).map(_.keyHash).getOrElse(KeyHash.ofProcess)",
        "KeyHash.ofProcess",
        (f"{_COPIES}::test_copy_of_another_process_is_used",),
        "A restarted application finds the keys in a local copy.",
    ),
    Mutant(
        "local-copy-written-in-place",
        f"{_SHIM}/table/LocalCopyFile.scala",
        "      writeTo(unfinished, streamId, families)\n",
        "      writeTo(unfinished, streamId, Nil)\n",
        (f"{_COPIES}::test_load_writes_a_copy_that_the_next_one_uses",),
        "A local copy has the rows of its store.",
    ),
    Mutant(
        "local-copy-in-a-public-directory",
        _PLACES,
        "and not stat.S_IMODE(status.st_mode) & 0o077",
        "and not stat.S_IMODE(status.st_mode) & 0o022",
        (f"{_UNIT}::test_directory_that_others_can_enter_is_not_used",),
        "Other users of a host cannot read state in local copies.",
    ),
    Mutant(
        "local-copies-without-a-bound",
        f"{_SHIM}/provider/LocalCopies.scala",
        "takeWhile(_ => total + needed > maxBytes)",
        "takeWhile(_ => total > maxBytes)",
        (f"{_COPIES}::test_copies_of_a_host_have_a_bound",),
        "Local copies do not fill a disk.",
    ),
    Mutant(
        "local-copy-of-another-layout",
        f"{_SHIM}/table/LocalCopy.scala",
        "if (family.layout != layout) {",
        "if (family.layout.isEmpty) {",
        (f"{_COPIES}::test_copy_of_another_layout_is_not_used",),
        "A family that is scanned by other columns than before is not read from the indexes of a local copy.",
    ),
    Mutant(
        "local-copy-removed-for-a-damaged-stream",
        f"{_SHIM}/backend/CheckpointClient.scala",
        "      val loaded = loading.run()",
        "      val loaded = { e.removeIfDamaged(); loading.run() }",
        (f"{_COPIES}::test_damaged_change_leaves_the_copy",),
        "Damage in storage does not cost the local copy that covers a part of the state.",
    ),
    Mutant(
        "local-copy-without-later-changes",
        f"{_SHIM}/arrow/LoadedChanges.scala",
        "columns.applyTo(table, from, until)",
        "columns.applyTo(table, from, math.min(until, 64))",
        (f"{_COPIES}::test_many_changes_over_a_copy_are_all_applied",),
        "All changes of a delta are applied to a local copy.",
    ),
)
