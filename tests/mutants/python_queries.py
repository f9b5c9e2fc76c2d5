"""Mutants of what works on a whole query: its checkpoint, savepoints, conversions, operator state."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_QUERY: Final = "spark_statestore/query"
_SAVEPOINTS: Final = "spark_statestore/savepoints"
_CONVERSION: Final = "spark_statestore/conversion"
_OPERATOR_STATE: Final = "spark_statestore/operator_state"
_TESTS: Final = "tests/unit"

_OF_QUERIES: Final = (
    Mutant(
        "rollback-removes-offsets-first",
        f"{_QUERY}/rollback.py",
        "((_FIRST, COMMITS), (_LAST, OFFSETS))",
        "((_LAST, COMMITS), (_FIRST, OFFSETS))",
        (
            f"{_TESTS}/query/test_rollback.py::test_interrupted_rollback_leaves_the_query_at_a_batch_in_between",
        ),
        "A rollback that is interrupted leaves logs from which Spark starts.",
    ),
    Mutant(
        "rollback-to-lost-state",
        f"{_QUERY}/rollback.py",
        "require_streams(self._checkpoint, version)",
        "self._checkpoint.open(version.store)",
        (f"{_TESTS}/query/test_rollback.py::test_rollback_refuses_a_batch_without_state",),
        "A rollback to a batch whose state is missing is refused before it changes anything.",
    ),
    Mutant(
        "rollback-of-running-query",
        f"{_QUERY}/rollback.py",
        "added = activity.added(created, removed or ())",
        "added = activity.added(created, removed or ()) if removed else []",
        (
            f"{_TESTS}/query/test_rollback.py::test_rollback_moves_nothing_if_the_query_runs_before_the_first_removal",
        ),
        "A rollback moves nothing of a query that writes to its logs meanwhile.",
    ),
    Mutant(
        "rollback-of-restarted-query",
        "spark_statestore/query/running.py",
        "before = self._entries.keys() - removed",
        "before = self._entries.keys() - set(own)",
        ("tests/unit/query/test_rollback.py::test_rollback_leaves_entries_of_a_query_started_meanwhile",),
        "A rollback reports a query that was started meanwhile and wrote a removed entry again.",
    ),
    Mutant(
        "running-query-at-its-cadence",
        f"{_QUERY}/running.py",
        "return min(max(YOUNG_SECONDS, YOUNG_INTERVALS * usual), YOUNG_AT_MOST_SECONDS)",
        "return min(YOUNG_SECONDS, YOUNG_INTERVALS * usual, YOUNG_AT_MOST_SECONDS)",
        (f"{_TESTS}/query/test_running.py",),
        "A query with a batch every few minutes is not taken for stopped.",
    ),
    Mutant(
        "gc-without-second-look",
        "spark_statestore/query/gc.py",
        "reasons = {path: why for path, why in reasons.items() if path in again}",
        "reasons = {path: why for path, why in reasons.items() if path in again or why}",
        ("tests/unit/query/test_gc.py",),
        "gc removes no file that a running query refers to since it was listed.",
    ),
    Mutant(
        "damage-of-held-version",
        "spark_statestore/storage/merged_lookup.py",
        "if covers_any or any(map(name.covers, also)):",
        "if covers_any:",
        (f"{_TESTS}/storage/test_merged_files.py",),
        "Cleanups and gc remove nothing while a held version may be in a damaged file.",
    ),
    Mutant(
        "gc-without-newest-metadata",
        f"{_QUERY}/gc.py",
        "if self._newest is not None and (self._newest, METADATA_FILE_NAME) not in store.metadata:",
        "if self._newest is None and (self._newest, METADATA_FILE_NAME) not in store.metadata:",
        (f"{_TESTS}/query/test_gc.py",),
        "gc keeps the streams of a version whose metadata is to be restored from a backup.",
    ),
    Mutant(
        "gc-takes-new-snapshot-for-orphan",
        f"{_QUERY}/orphans.py",
        "and (stopped or version <= store.oldest_snapshot_in_use):",
        "and (stopped or version >= store.oldest_snapshot_in_use):",
        (f"{_TESTS}/query/test_gc.py",),
        "gc of a running query keeps a snapshot that its next commit refers to.",
    ),
    Mutant(
        "gc-removes-referenced-version",
        f"{_QUERY}/orphans.py",
        "if not needed.isdisjoint(store.paths(name))]",
        "if name in needed]",
        (f"{_TESTS}/query/test_gc.py",),
        "gc keeps an attempt whose inline state a later version uses.",
    ),
    Mutant(
        "gc-removes-young-holds",
        f"{_QUERY}/gc.py",
        "now - max(older_than, DAY)",
        "now - older_than",
        (f"{_TESTS}/query/test_gc.py",),
        "gc keeps the holds of copies that run for hours.",
    ),
    Mutant(
        "verify-reports-damage-once",
        f"{_QUERY}/verify.py",
        "                self._streams[name] = error",
        "                self._streams[name] = None",
        (f"{_TESTS}/query/test_repair.py",),
        "A repair finds every batch that needs a damaged stream, and not only the newest one.",
    ),
    Mutant(
        "repair-during-outage",
        f"{_QUERY}/repair.py",
        'if problem.kind == "unreadable":',
        'if problem.kind == "unreadable" and not broken:',
        (f"{_TESTS}/query/test_repair.py",),
        "A repair rolls nothing back because storage is not reachable.",
    ),
    Mutant(
        "batch-without-offsets",
        "spark_statestore/query/query_checkpoint.py",
        "return sorted(committed & planned), planned",
        "return sorted(committed), planned",
        ("tests/unit/query/test_query_checkpoint.py",),
        "A batch is offered for a rollback or a copy only if Spark can start from it.",
    ),
    Mutant(
        "operator-without-metadata-left-out",
        "spark_statestore/query/query_checkpoint.py",
        "if not self.files.is_directory(directory):\n                return\n        at_batch",
        "if not self.files.exists(join(directory, METADATA)):\n                return\n        at_batch",
        ("tests/unit/query/test_verify.py",),
        "A savepoint or copy of a query whose operator metadata is lost is refused, and not made without its "
        "state.",
    ),
    Mutant(
        "snapshot-row-count-unchecked",
        "spark_statestore/query/store_snapshot.py",
        "if rows != state.stored_rows:",
        "if rows > state.stored_rows:",
        ("tests/unit/savepoints/test_restore.py::test_clone_refuses_a_wrong_number_of_values",),
        "A copy in which rows are missing is refused.",
    ),
)

_OF_SAVEPOINTS: Final = (
    Mutant(
        "savepoint-without-its-hold",
        f"{_SAVEPOINTS}/create.py",
        "if not state_hold.exists():",
        "if not state_hold.attempts:",
        (f"{_TESTS}/savepoints/test_savepoints.py::test_savepoint_whose_hold_is_removed_fails",),
        "A pointer savepoint whose hold was removed while it was written is not reported as taken.",
    ),
    Mutant(
        "savepoint-loses-hold-by-failure",
        f"{_SAVEPOINTS}/create.py",
        "        gone = False\n",
        "        gone = True\n",
        (f"{_TESTS}/savepoints/test_savepoints.py::test_savepoint_that_may_exist_keeps_its_hold",),
        "A pointer savepoint that may exist keeps its hold.",
    ),
    Mutant(
        "hold-unannounced",
        f"{_SAVEPOINTS}/savepoint_holds.py",
        'announce_holds(new_hold.files, new_hold.path.rpartition("/")[0])',
        'new_hold.files.make_directory(new_hold.path.rpartition("/")[0])',
        (f"{_TESTS}/savepoints/test_savepoint_holds.py",),
        "A running query's cleanups notice the first hold.",
    ),
    Mutant(
        "hold-too-late-by-one",
        f"{_SAVEPOINTS}/savepoint_holds.py",
        "if new_hold.version < oldest:",
        "if new_hold.version < oldest - 1:",
        (f"{_TESTS}/savepoints/test_savepoint_holds.py",),
        "A version that a cleanup may be discarding is not accepted for a pointer savepoint.",
    ),
    Mutant(
        "hold-of-volatile-state",
        f"{_SAVEPOINTS}/savepoint_holds.py",
        "        make_durable(checkpoint, version, metadata)\n",
        "        checkpoint.open(version.store)\n",
        (
            f"{_TESTS}/savepoints/test_faults.py::test_savepoint_of_a_query_without_fsync_survives_a_power_loss",
        ),
        "A pointer savepoint survives a power failure, also of a query without fsync.",
    ),
    Mutant(
        "disposal-of-needed-savepoint",
        f"{_SAVEPOINTS}/savepoint_store.py",
        "            # A holder since the first check is found here; a later one finds no metadata.\n"
        "            _require_unneeded(savepoint)",
        "            # A holder since the first check is found here; a later one finds no metadata.\n"
        "            _require_no_query(savepoint)",
        (f"{_TESTS}/savepoints/test_disposal.py::test_disposal_and_a_concurrent_copy_exclude_each_other",),
        "A savepoint that a restore has begun to copy is not disposed of.",
    ),
    Mutant(
        "disposal-of-copy-releases-original",
        f"{_SAVEPOINTS}/savepoint_holds.py",
        "if _same_location(holder, savepoint.path):",
        "if holder:",
        (
            f"{_TESTS}/savepoints/test_disposal.py::test_disposal_of_a_copied_pointer_leaves_the_hold_of_the_original",
        ),
        "The disposal of a copied directory leaves the state of the original savepoint.",
    ),
    Mutant(
        "disposal-of-started-query",
        f"{_SAVEPOINTS}/savepoint_store.py",
        "if batch > savepoint.batch]",
        "if batch > savepoint.batch + 1]",
        (
            f"{_TESTS}/savepoints/test_savepoints.py::test_savepoint_with_a_started_query_is_neither_disposed_of_nor_claimed",
        ),
        "The checkpoint of a query that was started in a savepoint's directory is not removed.",
    ),
    Mutant(
        "rescale-of-running-query",
        f"{_SAVEPOINTS}/restore.py",
        "if activity is not None and (added := activity.added()):",
        "if activity is None and (added := activity.added()):",
        (f"{_TESTS}/rescaling/test_redistribute.py",),
        "A copy that lacks batches which the query has committed meanwhile is not published.",
    ),
    Mutant(
        "copy-is-a-query-too-early",
        f"{_SAVEPOINTS}/new_location.py",
        "_reserve(files, root, METADATA, RESERVED)",
        "files.make_directory(root)",
        (f"{_TESTS}/savepoints/test_restore.py::test_copy_is_no_checkpoint_before_its_last_file",),
        "Spark starts no query without state in the directory of an unfinished copy.",
    ),
    Mutant(
        "copy-removes-started-query",
        f"{_SAVEPOINTS}/new_location.py",
        "return files.read(join(root, METADATA)) == RESERVED",
        "return files.read(join(root, METADATA)) != b''",
        (
            f"{_TESTS}/savepoints/test_restore.py::test_failed_copy_removes_no_query_that_was_started_at_its_target",
        ),
        "A copy that fails removes no checkpoint of a query that was started there.",
    ),
    Mutant(
        "copy-follows-links",
        f"{_SAVEPOINTS}/copy.py",
        "if source.files.has_link(source.root, path[len(source.root) + 1 :]):",
        "if self._source.files.has_link(self._source.root, names[0]):",
        (f"{_TESTS}/savepoints/test_hostile.py",),
        "A link in a checkpoint puts no other file of the user into a copy.",
    ),
    Mutant(
        "hold-released-though-needed",
        f"{_SAVEPOINTS}/release_holds.py",
        "if modified is None or now() - modified < DAY:",
        "if modified is not None and now() - modified > DAY:",
        (f"{_TESTS}/cli/test_savepoints.py",),
        "The hold of a savepoint that is still being written cannot be removed by hand.",
    ),
    Mutant(
        "trigger-takes-old-batch",
        f"{_SAVEPOINTS}/trigger.py",
        "if batch > newest:",
        "if batch >= newest:",
        (f"{_TESTS}/savepoints/test_trigger.py",),
        "A triggered savepoint has all input that the query had when it was requested.",
    ),
)

_OF_CONVERSIONS: Final = (
    Mutant(
        "conversion-of-another-process-removed",
        f"{_CONVERSION}/claim.py",
        'if started is not None and started in (_UNKNOWN, process["started"]):',
        "if started is not None and started == _UNKNOWN:",
        (f"{_TESTS}/conversion/test_claim.py",),
        "A conversion does not remove the files of one that runs.",
    ),
    Mutant(
        "conversion-of-another-host-removed",
        f"{_CONVERSION}/claim.py",
        'if (marker["host"], marker["scope"]) != (_host(), _scope()):',
        'if marker["host"] != _host():',
        (f"{_TESTS}/conversion/test_claim.py",),
        "A conversion does not remove the files of one that runs in another container.",
    ),
    Mutant(
        "conversion-of-open-batch",
        f"{_CONVERSION}/plan.py",
        "if begun and commits and max(begun) > max(commits):",
        "if begun and commits and max(begun) > max(commits) + 1:",
        ("tests/spark/test_conversion_faults.py::test_convert_refuses_open_batch_unless_it_is_left_out",),
        "A query with an uncommitted batch is not converted, as its new store might have another part of it.",
    ),
    Mutant(
        "conversion-not-compared",
        f"{_CONVERSION}/api.py",
        "if here[where] != there[where]:",
        "if here[where].keys != there[where].keys:",
        (f"{_TESTS}/conversion/test_compare.py",),
        "A conversion that wrote a wrong value is refused.",
    ),
)

_OF_OPERATOR_STATE: Final = (
    Mutant(
        "operator-state-of-earlier-run",
        f"{_OPERATOR_STATE}/parts.py",
        "if len(run) == parallelism and max(part.attempt for part in run.values()) == last",
        "if len(run) == parallelism",
        (f"{_TESTS}/operator_state/test_parallelism.py",),
        "A part that a task of an earlier run published late is not taken for the committed state.",
    ),
    Mutant(
        "operator-state-counted-twice",
        f"{_OPERATOR_STATE}/query_operator_state.py",
        "if part.batch < before)",
        "if part.batch <= before)",
        (f"{_TESTS}/operator_state/test_query_operator_state.py",),
        "A batch that Spark runs again starts from the same state as the first time.",
    ),
    Mutant(
        "operator-state-before-newest-removed",
        f"{_OPERATOR_STATE}/query_operator_state.py",
        "_FEWEST_RETAINED: Final = 2",
        "_FEWEST_RETAINED: Final = 1",
        (f"{_TESTS}/operator_state/test_query_operator_state.py",),
        "The state that a repeated batch starts from is kept with num_retained=1.",
    ),
    Mutant(
        "operator-state-of-later-batches-removed",
        f"{_OPERATOR_STATE}/query_operator_state.py",
        "if candidate.batch > part.batch and not is_set_back:",
        "if candidate.batch > part.batch and is_set_back is None:",
        (
            f"{_TESTS}/operator_state/test_query_operator_state.py",
            f"{_TESTS}/operator_state/test_parallelism_machine.py",
        ),
        "A task that runs late does not remove the state of the batches after its own.",
    ),
    Mutant(
        "operator-state-of-committed-batch-replaced",
        f"{_OPERATOR_STATE}/query_operator_state.py",
        "        if is_of_spark:\n",
        "        if is_of_spark is None:\n",
        (f"{_TESTS}/operator_state/test_query_operator_state.py",),
        "A task that runs late does not replace the state of a batch that Spark has committed.",
    ),
    Mutant(
        "operator-state-not-retained-is-empty",
        f"{_OPERATOR_STATE}/query_operator_state.py",
        "            if not newest:\n",
        "            if newest is None:\n",
        (f"{_TESTS}/operator_state/test_query_operator_state.py",),
        "A batch whose starting state is not retained does not start from none.",
    ),
    Mutant(
        "operator-state-in-memory-of-same-name",
        f"{_OPERATOR_STATE}/state_directory.py",
        "return part == published.part and self._read_metadata(part) == published.metadata",
        "return part == published.part",
        (
            f"{_TESTS}/operator_state/test_query_operator_state.py",
            f"{_TESTS}/operator_state/test_parallelism_machine.py",
        ),
        "A batch does not go on from memory where another driver has published the batch before again.",
    ),
    Mutant(
        "operator-state-lost-answer",
        f"{_OPERATOR_STATE}/state_directory.py",
        "if may_be_published and self._files.exists(self._metadata_path(part)):",
        "if not may_be_published and self._files.exists(self._metadata_path(part)):",
        (
            f"{_TESTS}/operator_state/test_query_operator_state_faults.py",
            f"{_TESTS}/operator_state/test_early_snapshot.py",
        ),
        "A part that was published although the answer was lost keeps its streams.",
    ),
    Mutant(
        "operator-state-snapshot-not-frozen",
        f"{_OPERATOR_STATE}/default_backend.py",
        "            state.freeze()",
        "            state.thaw()",
        (f"{_TESTS}/operator_state/test_early_snapshot.py",),
        "A change after store.snapshot() is refused rather than lost.",
    ),
    Mutant(
        "operator-state-changed-in-place",
        f"{_OPERATOR_STATE}/batch_state.py",
        "self._backend.require_unchanged()",
        "self._backend.registered_state_names",
        (f"{_TESTS}/operator_state/test_early_snapshot.py",),
        "A value that was changed in place after store.snapshot() fails the batch rather than being lost.",
    ),
    Mutant(
        "operator-state-snapshot-not-copied",
        f"{_OPERATOR_STATE}/content.py",
        "self._values = [self._copy(value) for value in self._values]",
        "self._values = list(self._values)",
        (f"{_TESTS}/operator_state/test_snapshot.py",),
        "Changes of lists and dicts while a snapshot is written are not in it.",
    ),
    Mutant(
        "operator-state-of-failed-block",
        f"{_OPERATOR_STATE}/state_directory.py",
        "            result.discard_state()",
        "            hash(result)",
        (f"{_TESTS}/operator_state/test_early_snapshot.py",),
        "A block that raises leaves no file of its snapshot.",
    ),
    Mutant(
        "operator-state-late-cancellation",
        f"{_OPERATOR_STATE}/snapshot_strategy.py",
        "            result.discard_state()",
        "            hash(result)",
        (f"{_TESTS}/operator_state/test_snapshot.py",),
        "A snapshot that was cancelled when it was complete leaves no file.",
    ),
    Mutant(
        "operator-state-union-twice",
        "spark_statestore/operator_state/repartition.py",
        "earlier.update(offsets)",
        "earlier.update(())",
        ("tests/unit/operator_state/test_repartition.py",),
        "Union lists do not multiply when the parallelism changes again.",
    ),
)

MUTANTS: Final = (*_OF_QUERIES, *_OF_SAVEPOINTS, *_OF_CONVERSIONS, *_OF_OPERATOR_STATE)
