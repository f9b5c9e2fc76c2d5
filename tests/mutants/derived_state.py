"""Mutants of written state: what Spark derives from it, in place, and the search for keys."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_WRITING: Final = "spark_statestore/writing"
_UNIT: Final = "tests/unit/writing/test_layout_changes.py"
_FOLLOW: Final = (f"{_UNIT}::test_derived_states_follow_from_changed_rows",)
_EXACT: Final = (f"{_UNIT}::test_keys_that_arrow_does_not_represent_stay_or_are_refused",)
_ERASE: Final = "tests/unit/writing/test_erase.py"
_LOSS: Final = "tests/unit/savepoints/test_faults.py::test_operation_on_local_files_survives_a_power_loss"
_ABSENCE: Final = "tests/unit/writing/test_absence.py"

MUTANTS: Final = (
    Mutant(
        "derived-other-rows-of-a-group",
        f"{_WRITING}/layout_changes.py",
        "kept.append(table.filter(pc.and_(is_edited, pc.invert(is_changed))))",
        "kept.append(table.slice(0, 0))",
        _FOLLOW,
        "Rows of a key of which another row changes stay.",
    ),
    Mutant(
        "derived-groups-in-several-parts",
        f"{_WRITING}/layout_changes.py",
        "if not self._layout.is_indexed:",
        "if True:",
        (f"{_UNIT}::test_rows_of_a_key_in_several_parts_stay",),
        "A predicate finds all rows of a join's key, also if they are read in parts.",
    ),
    Mutant(
        "derived-order-of-a-join",
        f"{_WRITING}/state_layouts.py",
        "order = np.lexsort((before, grouped.numbers))",
        'order = np.argsort(grouped.numbers, kind="stable")',
        _FOLLOW,
        "Rows of a join's key keep the order of their indexes.",
    ),
    Mutant(
        "derived-first-expiry",
        f"{_WRITING}/state_layouts.py",
        "np.minimum.at(first, grouped.numbers, values)",
        "first[grouped.numbers] = values",
        _FOLLOW,
        "The time of a list is that of the value that expires first.",
    ),
    Mutant(
        "derived-keys-that-are-not-exact",
        f"{_WRITING}/state_layouts.py",
        "is_same = pc.equal(encode_rows(key, before), chunk)",
        "is_same = pc.is_valid(chunk)",
        _EXACT,
        "A key that is shown as another one is not taken for it.",
    ),
    Mutant(
        "derived-inexact-keys-that-change",
        f"{_WRITING}/layout_changes.py",
        "if len(keys):",
        "if False:",
        _EXACT,
        "What follows from a key that cannot be decoded is not left behind.",
    ),
    Mutant(
        "derived-stores-of-a-partition",
        f"{_WRITING}/layout_changes.py",
        "if uses + 1 < self._stores:",
        "if False:",
        (f"{_UNIT}::test_a_partition_of_a_state_in_several_stores_has_one_result",),
        "Counters in another store are those of the rows that are left.",
    ),
    Mutant(
        "derived-rows-left-behind",
        f"{_WRITING}/layout_changes.py",
        "removes_stale = changes.keys is None and self._layout.has_stale_rows",
        "removes_stale = False",
        (f"{_UNIT}::test_predicate_removes_rows_that_spark_has_left_behind",),
        "A predicate erases what Spark has left of a key.",
    ),
    Mutant(
        "derived-index-of-an-inexact-key",
        f"{_WRITING}/layout_changes.py",
        "present.append(self._layout.groups(stay, is_exact=False).unique())",
        "present.append(self._layout.groups(stay).unique())",
        _EXACT,
        "The index of a key that cannot be decoded stays.",
    ),
    Mutant(
        "derived-strings-by-their-bytes",
        f"{_WRITING}/state_layouts.py",
        "before, after = map(with_binary_strings, (before, after))",
        "before, after = map(str, (before, after))",
        (f"{_UNIT}::test_strings_that_are_not_utf8_keep_their_bytes",),
        "A key with a string that is not UTF-8 can be erased with all that follows from it.",
    ),
    Mutant(
        "derived-fields-that-are-null",
        f"{_WRITING}/rows.py",
        "if name not in names:",
        "if True:",
        (f"{_UNIT}::test_fields_that_spark_always_has_are_not_null",),
        "A value with TTL has the time when it expires.",
    ),
    Mutant(
        "derived-state-that-is-missing",
        f"{_WRITING}/state_layouts.py",
        "state = source.beside(name)",
        "state = source.beside(name) or source.state",
        (f"{_UNIT}::test_state_without_what_follows_from_it_is_refused",),
        "A state is not written without the index that belongs to it.",
    ),
    Mutant(
        "derived-of-a-changed-query",
        f"{_WRITING}/state_plans.py",
        "if not here and state in origins and plans[origins[state]].computed is not None:",
        "if False:",
        ("tests/spark/test_migrate.py::test_column_is_added_to_the_key_of_variables_and_timers",),
        "What Spark derives from a computed state is computed with it.",
    ),
    Mutant(
        "in-place-without-the-entry-before",
        f"{_WRITING}/in_place.py",
        "self._keep(path)",
        "pass",
        ("tests/unit/writing/test_write.py::test_state_is_written_in_place_and_put_back",),
        "State that was written in place can be put back.",
    ),
    Mutant(
        "in-place-with-a-checksum",
        "spark_statestore/query/layout.py",
        "for beside in with_checksum(checkpoint, name)[:-1]:",
        "for beside in ():",
        ("tests/unit/writing/test_write.py::test_state_is_written_in_place_and_put_back",),
        "Hadoop reads the entry of the commit log that was written in place.",
    ),
    Mutant(
        "in-place-at-once",
        f"{_WRITING}/in_place.py",
        "attempt_id = secrets.token_hex(8)",
        "attempt_id = str(version.name.id)",
        ("tests/unit/savepoints/test_faults.py::test_interrupted_operation_on_an_object_store_is_atomic",),
        "An interrupted write in place has changed nothing.",
    ),
    Mutant(
        "absent-keys-in-orphans",
        f"{_WRITING}/key_search.py",
        "yield from map(files.url, sorted(listed - needed))",
        "yield from ()",
        (f"{_ABSENCE}::test_copy_without_a_key_has_none_of_its_bytes",),
        "A file that was not read is not taken for one without the key.",
    ),
    Mutant(
        "absent-keys-in-damaged-files",
        f"{_WRITING}/absence.py",
        "unknown = [*search.unknown(), *damaged]",
        "unknown = [*search.unknown()]",
        (f"{_ABSENCE}::test_damaged_merged_files_are_not_known",),
        "A merged file that is damaged is not taken for one without the key.",
    ),
    Mutant(
        "erase-from-merged-files",
        "spark_statestore/query/gc.py",
        "merged.purge(beside)",
        "pass",
        ("tests/spark/test_write_derived_state.py::test_key_is_erased_from_every_retained_batch",),
        "Metadata with a key does not stay beside that of other stores.",
    ),
    Mutant(
        "erase-from-older-versions",
        "spark_statestore/query/orphans.py",
        "elif purge and name.version < decided.needed.start and name.version not in decided.held_versions:",
        "elif False:",
        ("tests/spark/test_write_derived_state.py::test_key_is_erased_from_every_retained_batch",),
        "Versions with a key that no batch of the logs has are deleted.",
    ),
    Mutant(
        "erase-files-of-savepoints",
        f"{_WRITING}/erase.py",
        "removed += location.collect(None)",
        "pass",
        (f"{_ERASE}::test_key_is_erased_from_savepoints",),
        "Files of a savepoint with a key are deleted.",
    ),
    Mutant(
        "erase-searches-savepoints",
        f"{_WRITING}/erase.py",
        "*(verify_absent(copy, condition, operator=operator) for copy in copies),",
        "",
        (f"{_ERASE}::test_command_erases_from_savepoints",),
        "A file in a savepoint that was not read is not taken for one without the key.",
    ),
    Mutant(
        "erase-from-needed-savepoints",
        f"{_WRITING}/erase.py",
        "if holds := list_holds(checkpoint):",
        "if holds := list_holds(checkpoint)[:0]:",
        (f"{_ERASE}::test_savepoint_is_refused_before_anything_is_changed",),
        "A savepoint that a pointer needs stays whole.",
    ),
    Mutant(
        "erase-durably",
        f"{_WRITING}/erase.py",
        "files.sync_directory(directory)",
        "pass",
        (f"{_LOSS}[an-erasure]",),
        "An erased key does not reappear after a power loss.",
    ),
    Mutant(
        "erase-with-unread-streams",
        f"{_WRITING}/key_search.py",
        "except OSError as error:",
        "except EOFError as error:",
        (f"{_ERASE}::test_storage_that_fails_is_an_error_with_a_remedy",),
        "A failure of the storage during a search is an error of this package.",
    ),
    Mutant(
        "absent-keys-that-were-replaced",
        f"{_WRITING}/absence.py",
        "batches = checkpoint.batches()",
        "batches = checkpoint.batches()[-1:]",
        (f"{_ABSENCE}::test_key_is_found_in_every_batch_that_needs_it",),
        "All retained batches are searched, and not the newest one alone.",
    ),
)
