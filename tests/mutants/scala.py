"""Mutants of the JVM shim: here of its stores and their commits, and those of the modules beside this one."""

from __future__ import annotations

from typing import Final

from tests.mutants import local_copies, moving_state, rescaling, scala_driver, scala_table
from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_SHIM: Final = "jvm-shim/src/main/scala/org/apache/spark/sql/statestore"
_PROVIDER: Final = f"{_SHIM}/provider"
_CLASS: Final = f"{_SHIM}/CheckpointStateStoreProvider.scala"
_TESTS: Final = "tests/spark"

_SCENARIOS: Final = f"{_TESTS}/test_provider_scenarios.py"
_CONCURRENT: Final = f"{_TESTS}/test_concurrent_stores.py"
_FAMILIES: Final = f"{_TESTS}/test_provider_families.py"
_EVOLUTION: Final = (
    f"{_TESTS}/test_provider_evolution.py::test_values_are_converted_once_and_older_versions_keep_theirs"
)
_FOREACH: Final = "tests/spark/test_foreach_batch.py"
_HANDED_OVER: Final = f"{_TESTS}/test_handed_over_commits.py"
_PENDING: Final = f"{_TESTS}/test_pending_commits.py"
_METRICS: Final = f"{_TESTS}/test_queries_metrics.py"
_DISCARDED: Final = f"{_SCENARIOS}::test_discarded_version_error_names_retained_versions[v1]"

_VERSIONS: Final = (
    Mutant(
        "upgrade-takes-a-reader-of-any-operator",
        _CLASS,
        "if reader.isOf(this) && reader.version == version && reader.checkpointId == stateStoreCkptId =>",
        "if reader.version == version && reader.checkpointId == stateStoreCkptId =>",
        (f"{_SCENARIOS}::test_upgrade_does_not_take_the_state_of_another_operator",),
        "An operator writes to its own state, whichever read store Spark passes to it.",
    ),
    Mutant(
        "overtaken-store-commits",
        _CLASS,
        "writers.removeIf(_.version < version)",
        "writers.removeIf(_.version < version - 1)",
        (f"{_CONCURRENT}::test_store_cannot_commit_once_a_later_version_was_opened[v1]",),
        "A task that Spark has given up publishes nothing once the next batch has begun.",
    ),
    Mutant(
        "killed-task-commits",
        _CLASS,
        "if (closed || store.isKilled || !writers.contains(store) || !state.isWriter(store)) {",
        "if (closed || !writers.contains(store) || !state.isWriter(store)) {",
        (f"{_TESTS}/test_zombies.py",),
        "A task that Spark has killed publishes nothing.",
    ),
    Mutant(
        "version-of-a-failed-task-is-used",
        _CLASS,
        "if (!conf.enableStateStoreCheckpointIds) state.useUntil(version)",
        "if (conf.enableStateStoreCheckpointIds) state.useUntil(version)",
        (f"{_TESTS}/test_concurrent_stores.py", f"{_TESTS}/test_zombies.py"),
        "The next batch starts from the attempt in storage if a task has failed after its commit.",
    ),
    Mutant(
        "first-attempt-stays-in-memory",
        _CLASS,
        "content == null || !conf.enableStateStoreCheckpointIds || content.newest.version",
        "content == null || content.newest.version",
        (f"{_CONCURRENT}::test_stores_open_at_once_both_commit[v1]",),
        "Without checkpoint ids the next batch starts from the attempt that was published last.",
    ),
    Mutant(
        "rewind-takes-any-attempt",
        f"{_PROVIDER}/LoadedState.scala",
        "rewindTo(v => v.version == version && v.id == id)",
        "rewindTo(_.version == version)",
        (f"{_SCENARIOS}::test_checkpoint_id_identifies_the_attempt",),
        "A batch starts from the attempt that Spark has accepted, not from another one at its version.",
    ),
    Mutant(
        "readers-share-any-attempt",
        f"{_PROVIDER}/LoadedState.scala",
        "newest.version == version && newest.id == id",
        "newest.version == version",
        (f"{_CONCURRENT}::test_readers_at_once_have_the_rows_of_their_attempts[v2]",),
        "A read store has the rows of the attempt that it asks for, beside a reader of another one.",
    ),
    Mutant(
        "reader-is-written-to-by-another",
        f"{_PROVIDER}/LoadedState.scala",
        "writer == null && readers.size == 1 && readers.contains(reader)",
        "writer == null && readers.contains(reader)",
        (f"{_CONCURRENT}::test_readers_open_at_once_each_write_and_commit[v1]",),
        "A read store does not see what another task writes to the same version.",
    ),
    Mutant(
        "committed-state-stays-in-use",
        f"{_PROVIDER}/CheckpointStateStore.scala",
        "state = Committed\n    provider.release(content, this)",
        "state = Committed\n    visibility()",
        (f"{_CONCURRENT}::test_store_that_finds_the_state_in_use_leaves_it_in_memory[v1]",),
        "A batch continues from the state in memory, and does not load it.",
    ),
    Mutant(
        "abort-leaves-rows",
        f"{_PROVIDER}/LoadedState.scala",
        "snapshot.family.table.rollbackTo(snapshot.content)",
        "if (snapshot.family.table.isOrdered) snapshot.family.table.rollbackTo(snapshot.content)",
        (f"{_SCENARIOS}::test_abort_leaves_no_changes_and_files[v1]",),
        "Nothing of a batch that failed is in the next one.",
    ),
    Mutant(
        "abort-leaves-rows-of-internal-families",
        f"{_PROVIDER}/LoadedState.scala",
        "snapshot.family.table.rollbackTo(snapshot.content)",
        "if (!snapshot.family.schema.isInternal) snapshot.family.table.rollbackTo(snapshot.content)",
        (f"{_FAMILIES}::test_abort_restores_families_and_rows[ours]",),
        "Timers and expiry times that a failed batch has set are not in the next one.",
    ),
    Mutant(
        "abandoned-snapshot-is-used",
        f"{_PROVIDER}/LoadedState.scala",
        "pendingSnapshot = pendingSnapshot.filter(_.version <= from.head.version)",
        "pendingSnapshot = pendingSnapshot.filter(_.version <= newest.version + 1)",
        (f"{_SCENARIOS}::test_snapshot_of_an_abandoned_version_is_not_used[v1]",),
        "A batch that runs again with other rows is not based on a snapshot of the attempt before.",
    ),
    Mutant(
        "compaction-keeps-older-versions",
        f"{_PROVIDER}/LoadedState.scala",
        "keepVersions(List(versionAs(newest.version, newest.id, newest.stored)))",
        "keepVersions(versionAs(newest.version, newest.id, newest.stored) :: versions.tail)",
        (f"{_SCENARIOS}::test_older_version_is_opened_again_after_a_compaction",),
        "A batch that runs again after a compaction starts from the rows of the version before.",
    ),
    Mutant(
        "compaction-keeps-slices",
        f"{_PROVIDER}/LoadedState.scala",
        "        slices.clear()\n",
        "        slices.dropAfter(newest.version)\n",
        (f"{_SCENARIOS}::test_run_has_no_changes_from_before_a_compaction",),
        "A merged stream has no rows at offsets from before a compaction.",
    ),
    Mutant(
        "store-takes-writes-after-its-commit",
        f"{_PROVIDER}/CheckpointStateStore.scala",
        "if (state != Updating) throw new EndedStoreException(version, ended)",
        "if (state == Aborted) throw new EndedStoreException(version, ended)",
        (f"{_SCENARIOS}::test_ended_store_rejects_operations[commit]",),
        "A write after the commit fails, since no version would have it.",
    ),
    Mutant(
        "put-list-keeps-values",
        f"{_PROVIDER}/CheckpointStateStore.scala",
        "if (values.isEmpty) table.remove(key) else table.put(key, values(0))",
        "if (values.isEmpty) table.remove(key) else table.merge(key, values(0))",
        (f"{_TESTS}/test_change_feed.py::test_change_feed_of_lists_equals_rocksdbs[delta-put a list]",),
        "A list that is put replaces the values that the key had.",
    ),
)

_FAMILY_STATE: Final = (
    Mutant(
        "families-are-mixed",
        f"{_PROVIDER}/LoadedState.scala",
        "if (entry != null && (entry.name eq name)) entry.family else lookUp(name)",
        "if (entry != null) entry.family else lookUp(name)",
        (f"{_FAMILIES}::test_version_has_exactly_its_families[ours]",),
        "Each state variable has its own rows.",
    ),
    Mutant(
        "removed-family-is-remembered",
        f"{_PROVIDER}/LoadedState.scala",
        "def remove(name: String): Boolean = {\n    latest = null",
        "def remove(name: String): Boolean = {\n    lookUp(name)",
        (f"{_FAMILIES}::test_version_has_exactly_its_families[ours]",),
        "A state variable that is deleted and declared again is committed.",
    ),
    Mutant(
        "rolled-back-family-is-remembered",
        f"{_PROVIDER}/LoadedState.scala",
        "def rollback(): Unit = freeingUnused {\n    latest = null",
        "def rollback(): Unit = freeingUnused {\n    usableUntil = usableUntil",
        (f"{_FAMILIES}::test_family_of_an_aborted_store_is_declared_again[ours]",),
        "A state variable of an aborted batch is declared again by the next one, and is committed.",
    ),
    Mutant(
        "replaced-family-sends-too-little",
        f"{_PROVIDER}/LoadedState.scala",
        "families.find(_.family eq family)",
        "families.find(_.family.name == family.name)",
        (f"{_EVOLUTION}[plain-100-ours]",),
        "All rows of a state variable are in storage after its schema has evolved.",
    ),
    Mutant(
        "run-of-a-family-that-was-created-again",
        f"{_PROVIDER}/LogSlices.scala",
        "(family.name, family.createdAtVersion)",
        "(family.name, 0L)",
        (f"{_FAMILIES}::test_run_has_all_rows_of_a_family_that_was_declared_again[ours]",),
        "A merged stream has all rows of a state variable that was deleted and declared again.",
    ),
    Mutant(
        "internal-keys-are-counted",
        f"{_PROVIDER}/LoadedState.scala",
        "families.iterator.filterNot(_.schema.isInternal).map(_.table.numKeys).sum",
        "families.iterator.map(_.table.numKeys).sum",
        (f"{_FAMILIES}::test_key_count_excludes_internal_families[ours]",),
        "numRowsTotal counts the rows of the query's own state.",
    ),
)

_MAINTENANCE: Final = (
    Mutant(
        "cleanup-trusts-an-uncommitted-version",
        f"{_PROVIDER}/StoreMaintenance.scala",
        "version = content.confirmed",
        "version = content.newest",
        (f"{_SCENARIOS}::test_cleanup_counts_from_the_version_that_was_opened_last",),
        "Versions are retained below the last one that Spark is known to have committed.",
    ),
    Mutant(
        "cleanup-retains-one-version-less",
        f"{_PROVIDER}/StoreMaintenance.scala",
        "version.version - conf.minVersionsToRetain)",
        "version.version + 1 - conf.minVersionsToRetain)",
        (_DISCARDED,),
        "A query can be rolled back by as many batches as minBatchesToRetain says.",
    ),
    Mutant(
        "heap-limit-option-ignored",
        _CLASS,
        "TableMemory.limitHeap(options.maxHeapBytes.getOrElse(TableMemory.defaultLimit))",
        "options.maxHeapBytes.filter(_ > 0).foreach(TableMemory.limitHeap)",
        (f"{_TESTS}/test_state_table.py::test_mapped_memory_is_freed_when_its_last_task_ends",),
        "The option maxHeapBytes limits the heap that state takes, down to none.",
    ),
    Mutant(
        "size-of-an-option-misread",
        f"{_PROVIDER}/BackendOptions.scala",
        "case Some('m') => 20",
        "case Some('m') => 10",
        (f"{_TESTS}/test_state_table.py", "-k", "test_heap_limit_of_an_option_has_a_unit"),
        "A size with a unit, such as maxHeapBytes=500m, is what it says.",
    ),
    Mutant(
        "small-snapshot-is-due-in-each-batch",
        f"{_PROVIDER}/LoadedState.scala",
        "if (stored.baseVersion == committedVersion.version) snapshotOnCommit = false",
        "if (stored.baseVersion > committedVersion.version) snapshotOnCommit = false",
        (f"{_SCENARIOS}::test_commit_writes_a_due_snapshot_of_small_state_itself",),
        "A batch after a snapshot writes its changes alone.",
    ),
    Mutant(
        "forced-snapshot-ignored",
        "jvm-shim/src/main/scala/org/apache/spark/sql/statestore/provider/StoreMaintenance.scala",
        "forced || liveBytes <= state.changedBytes(state.newest) ||",
        "liveBytes <= state.changedBytes(state.newest) ||",
        ("tests/spark/test_provider_scenarios.py::test_force_snapshot_on_commit_writes_a_full_snapshot",),
        "A commit writes a snapshot if Spark demands one.",
    ),
    Mutant(
        "base-older-than-retention-is-used",
        f"{_PROVIDER}/StoreCommit.scala",
        "      version - 1 - retained,\n",
        "      0L,\n",
        (f"{_TESTS}/test_zombies.py::test_snapshot_older_than_retention_is_not_used",),
        "A version is not based on a snapshot that an executor with a smaller retention may discard.",
    ),
    Mutant(
        "snapshot-age-is-the-base-version",
        f"{_PROVIDER}/StoreMetrics.scala",
        "stored.fold(0L)(version - _.baseVersion)",
        "stored.fold(0L)(_.baseVersion)",
        (f"{_SCENARIOS}::test_background_run_shortens_the_chain",),
        "checkpointMaxSnapshotAge is the number of versions since the last snapshot.",
    ),
    Mutant(
        "maximum-metric-is-a-sum",
        f"{_PROVIDER}/MaximumMetric.scala",
        "Unit = add(other.value)",
        "Unit = set(value + other.value)",
        (f"{_METRICS}::test_chain_length_and_snapshot_age_are_maxima_over_partitions",),
        "Metrics of the longest chain and the largest partition are maxima over the partitions.",
    ),
    Mutant(
        "change-feed-has-versions",
        f"{_PROVIDER}/CheckpointChangeReader.scala",
        "new Changes(versionSchema, convert, upcoming - 1)",
        "new Changes(versionSchema, convert, upcoming)",
        (f"{_TESTS}/test_change_feed.py::test_change_feed_of_lists_equals_rocksdbs[delta-merge to a key]",),
        "The change feed has the batch that made each change.",
    ),
    Mutant(
        "join-stores-share-a-directory",
        f"{_PROVIDER}/StoreLocation.scala",
        's"/${id.storeName}"\n',
        '""\n',
        (f"{_TESTS}/test_provider_type.py::test_stores_of_an_operator_have_directories_of_their_own",),
        "The stores of a join are in directories of their own below checkpointsDir.",
    ),
)

_COMMITS: Final = (
    Mutant(
        "barrier-does-not-wait",
        f"{_PROVIDER}/CommitCollector.scala",
        "commits.foreach(_.await())\n      publication",
        "commits.foreach(_.hasEnded)\n      publication",
        (f"{_HANDED_OVER}::test_commits_of_a_batch_are_published_together_by_default",),
        "Spark's commit log gets a batch only after the commits that its tasks handed over.",
    ),
    Mutant(
        "barrier-ignores-the-early-publication",
        f"{_PROVIDER}/CommitCollector.scala",
        "    failure.foreach(throw _)",
        "",
        ("tests/spark/test_pending_commits.py::test_publication_before_the_barrier_fails_the_batch",),
        "A batch fails whose commits could not be published while Spark wrote its offsets.",
    ),
    Mutant(
        "barrier-does-not-publish",
        f"{_PROVIDER}/CommitCollector.scala",
        "groupBy(_.client.backend).values.foreach(publish)",
        "groupBy(_.client.backend).values.drop(1).foreach(publish)",
        (f"{_HANDED_OVER}::test_commits_of_a_batch_are_published_together_by_default",),
        "The commits that tasks handed over are in storage before their batch is in the commit log.",
    ),
    Mutant(
        "abort-during-an-operation",
        f"{_PROVIDER}/CheckpointStateStore.scala",
        "isQuiet = lease.awaitOthers()",
        "isQuiet = true",
        (f"{_CONCURRENT}::test_task_that_ends_during_an_operation_leaves_the_state_as_it_was",),
        "A task that ends waits for the operations of its other threads before its changes are undone.",
    ),
    Mutant(
        "run-ended-by-another-query",
        f"{_PROVIDER}/CommitCollector.scala",
        "candidate.id == run || candidate.isActive()",
        "candidate.id == run",
        (f"{_FOREACH}::test_batch_that_waits_for_its_commits_is_not_ended_by_another_query",),
        "The commits of a batch are awaited whatever other queries the application starts.",
    ),
    Mutant(
        "barrier-ignores-a-failed-commit",
        f"{_PROVIDER}/CommitCollector.scala",
        "commits.iterator.flatMap(_.failure).foreach(throw _)",
        "commits.iterator.filter(_.isMerged).flatMap(_.failure).foreach(throw _)",
        (f"{_HANDED_OVER}::test_failed_commit_fails_its_batch",),
        "A commit that a task handed over and that fails, fails its batch.",
    ),
    Mutant(
        "barrier-loses-commits-of-an-ended-backend",
        f"{_PROVIDER}/CommitCollector.scala",
        "foreach(_.publishAlone())",
        "foreach(_.acknowledge())",
        (f"{_HANDED_OVER}::test_batch_survives_the_end_of_its_backend",),
        "Commits that a killed backend had in its memory are sent again before the batch is committed.",
    ),
    Mutant(
        "late-task-hands-over-to-a-closed-batch",
        f"{_PROVIDER}/CommitCollector.scala",
        "run != null && run.id == commit.runId && commit.version > run.closedUntil && "
        "run.commits.add(commit)",
        "run != null && run.id == commit.runId && run.commits.add(commit)",
        (f"{_PENDING}::test_late_task_of_a_batch_hands_nothing_over",),
        "A task that outlives its batch fails instead of handing a commit over that nothing awaits.",
    ),
    Mutant(
        "batch-goes-on-without-its-barrier",
        _CLASS,
        "if (pending != null && pending.version < commit.version && !pending.isAcknowledged",
        "if (pending != null && pending.version > commit.version && !pending.isAcknowledged",
        (f"{_PENDING}::test_batch_without_a_barrier_is_refused",),
        "A query whose commit log does not wait for commits that tasks handed over fails.",
    ),
    Mutant(
        "state-changes-under-a-pending-commit",
        f"{_PROVIDER}/PendingCommit.scala",
        "if (!hasEnded) CommitCollector.expedite(this)\n    hasEnded",
        "if (!hasEnded) CommitCollector.expedite(this)\n    hasBegun",
        (f"{_PENDING}::test_task_that_runs_again_waits_for_the_commit_of_the_attempt_before",),
        "A task that runs again waits for the commit of the attempt before, which reads the same log.",
    ),
)

MUTANTS: Final = (
    *_VERSIONS,
    *_FAMILY_STATE,
    *_MAINTENANCE,
    *_COMMITS,
    *scala_table.MUTANTS,
    *local_copies.MUTANTS,
    *rescaling.SCALA,
    *moving_state.SCALA,
    *scala_driver.MUTANTS,
)
