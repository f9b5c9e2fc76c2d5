"""Mutants of what the JVM shim does on the driver and towards the backend, and of conversions and rules."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_SHIM: Final = "jvm-shim/src/main/scala/org/apache/spark/sql/statestore"
_DRIVER: Final = f"{_SHIM}/driver"
_BACKEND: Final = f"{_SHIM}/backend"
_TESTS: Final = "tests/spark"

_FILES: Final = f"{_TESTS}/test_checkpoint_file_manager.py"
_REFUSALS: Final = f"{_TESTS}/test_hand_over_refusals.py"
_CHECKPOINTS: Final = f"{_TESTS}/test_driver_checkpoints.py"
_KILLED: Final = f"{_TESTS}/test_provider_scenarios.py::test_killed_backend_is_restarted"
_ANSWERS: Final = f"{_TESTS}/test_bad_answers.py"
_HANGING: Final = f"{_TESTS}/test_hanging_backends.py"
_EVOLUTION: Final = f"{_TESTS}/test_provider_evolution.py"

_FORMATS: Final = f"{_TESTS}/test_checkpoint_formats.py"

_FORMATS_OF_QUERIES: Final = (
    Mutant(
        "new-query-has-format-1",
        f"{_DRIVER}/CheckpointFormat.scala",
        "!conf.getAll.contains(Key)) Some(2) else None",
        "!conf.getAll.contains(Key)) Some(1) else None",
        (f"{_FORMATS}::test_new_query_has_the_format_of_its_session",),
        "A new query has checkpoint format v2 by itself.",
    ),
    Mutant(
        "format-of-the-session-is-ignored",
        f"{_DRIVER}/CheckpointFormat.scala",
        "if (isDefaultV2 && !conf.getAll.contains(Key)) Some(2) else None",
        "if (isDefaultV2) Some(2) else None",
        (f"{_FORMATS}::test_new_query_has_the_format_of_its_session",),
        "A session that sets a checkpoint format is obeyed for new queries.",
    ),
    Mutant(
        "provider-of-the-session-before-the-querys",
        f"{_DRIVER}/CheckpointFormat.scala",
        "logs.provider.orElse(conf.getOption(ProviderKey))",
        "conf.getOption(ProviderKey)",
        (f"{_FORMATS}::test_query_whose_first_batch_is_not_committed_goes_on",),
        "A query of another store goes on in a session of this one.",
    ),
)

_FILES_OF_SPARK: Final = (
    Mutant(
        "commit-log-without-a-barrier",
        f"{_SHIM}/BackendCheckpointFileManager.scala",
        "private val isCommitLog = root.getName == StoreLocation.CommitLog",
        "private val isCommitLog = root.getName == StoreLocation.OffsetLog",
        (f"{_TESTS}/test_handed_over_commits.py::test_commits_of_a_batch_are_published_together_by_default",),
        "A batch is in the commit log only once its state is in storage.",
    ),
    Mutant(
        "log-entry-of-another-query-is-replaced",
        f"{_SHIM}/BackendCheckpointFileManager.scala",
        "files.create(path, () => content.parts(), overwrite)",
        "files.create(path, () => content.parts(), overwrite = true)",
        (f"{_FILES}::test_existing_file_is_replaced_only_if_allowed",),
        "One of two queries with one checkpoint location fails, instead of replacing the other's batch.",
    ),
    Mutant(
        "newest-log-entry-does-not-exist",
        f"{_DRIVER}/LogBatches.scala",
        "else if (numberOf(path).contains(last + 1)) Some(false)",
        "else if (numberOf(path).exists(_ <= last + 1)) Some(false)",
        (f"{_FILES}::test_contents_of_a_mebibyte_are_known",),
        "Spark finds the entries of its logs that an earlier run has written.",
    ),
    Mutant(
        "entry-that-is-created-again-is-removed",
        f"{_DRIVER}/LogBatches.scala",
        "        removed -= path.getName\n",
        "        removed --= Nil\n",
        (f"{_FILES}::test_removed_batches_wait_for_others_on_remote_storage",),
        "An entry of a log that is removed and created again stays.",
    ),
    Mutant(
        "file-of-one-chunk-is-cut",
        f"{_DRIVER}/FileStreams.scala",
        "val isBehindLast = chunk.length < ChunkBytes && position >= chunkStart",
        "val isBehindLast = chunk.length <= ChunkBytes && position >= chunkStart",
        (f"{_FILES}::test_file_of_any_size",),
        "Spark reads the whole of a large file of its checkpoint.",
    ),
    Mutant(
        "repeated-creation-finds-its-own-file",
        f"{_BACKEND}/FileClient.scala",
        'request.put("repeated", tries > 0)',
        'request.put("repeated", tries > 1)',
        (f"{_FILES}::test_file_is_created_once_whenever_its_backend_is_killed",),
        "A query goes on if the answer to the creation of a log entry was lost.",
    ),
)

_HANDED_OVER: Final = (
    Mutant(
        "missing-hand-over-is-skipped",
        f"{_DRIVER}/HandedOverCommits.scala",
        "accepted.filterNot(attempt => query.published(attempt.id))",
        "accepted.filter(attempt => query.commits.containsKey(attempt.id))",
        (f"{_REFUSALS}::test_attempt_that_was_not_handed_over_fails_the_batch",),
        "A batch fails if a commit that Spark accepted was not handed over to the driver.",
    ),
    Mutant(
        "hand-overs-are-forgotten",
        f"{_DRIVER}/HandedOverCommits.scala",
        "if (query == null || query.run != run) {",
        "if (query == null || query.run == run) {",
        (f"{_REFUSALS}::test_executor_that_forgot_the_answer_asks_again_for_the_same_run",),
        "The driver keeps what a run has handed over when an executor asks again.",
    ),
    Mutant(
        "hand-over-of-an-ended-run-is-taken",
        f"{_DRIVER}/HandedOverCommits.scala",
        "Option(queries.get(log)).filter(_.run == run)",
        "Option(queries.get(log)).filter(_.run.nonEmpty)",
        (f"{_REFUSALS}::test_attempt_of_a_run_that_has_ended_is_refused",),
        "A task of a run that has ended hands nothing over to the next one.",
    ),
    Mutant(
        "attempt-that-spark-refused-is-published",
        f"{_DRIVER}/HandedOverCommits.scala",
        "val merged = commits.filter(_.metadata != null)",
        "val merged = synchronized(query.commits.values.asScala.toSeq).filter(_.metadata != null)",
        (f"{_REFUSALS}::test_attempt_that_spark_did_not_accept_is_not_published",),
        "The driver publishes the attempts alone that Spark has accepted.",
    ),
    Mutant(
        "driver-takes-changes-of-a-lost-version",
        f"{_DRIVER}/DriverCheckpoints.scala",
        "if (!driverVersion.parentAttemptId.forall(isWhole(versions, driverVersion.version - 1, _))) {",
        "if (!driverVersion.parentAttemptId.forall(_ => hasVersion(versions, driverVersion.version - 1))) {",
        (f"{_CHECKPOINTS}::test_put_rejects_a_version_without_its_parent",),
        "State on the driver is complete: changes of an attempt that it lacks are refused.",
    ),
    Mutant(
        "driver-keeps-the-first-attempt",
        f"{_DRIVER}/DriverCheckpoints.scala",
        "attempts.current = driverVersion.attemptId",
        "if (attempts.current == null) attempts.current = driverVersion.attemptId",
        (f"{_CHECKPOINTS}::test_chain_is_complete_after_random_commits_and_discards",),
        "State on the driver is that of the attempt that was committed last.",
    ),
    Mutant(
        "driver-discards-bases-in-use",
        f"{_DRIVER}/DriverCheckpoints.scala",
        "needed.foldLeft(horizon)(_ min _)",
        "needed.foldLeft(horizon)(_ max _)",
        (f"{_CHECKPOINTS}::test_cleanup_bounds_the_memory_of_the_driver",),
        "A retained version on the driver keeps the snapshot that it starts from.",
    ),
    Mutant(
        "version-without-its-parent-on-the-driver",
        f"{_BACKEND}/CheckpointClient.scala",
        "if (!driver.put(where, driverVersion)) {",
        "if (!driver.put(where, driverVersion) && driverVersion.parentAttemptId.isEmpty) {",
        (f"{_CHECKPOINTS}::test_commit_without_its_parent_on_the_driver_writes_a_full_snapshot",),
        "A commit that the driver refuses is not reported to Spark as done.",
    ),
    Mutant(
        "skipped-batch-is-not-run",
        f"{_DRIVER}/SkippedBatchesRule.scala",
        "used.nonEmpty && used.forall(_ <= 0)",
        "used.nonEmpty && used.forall(_ < 0)",
        (f"{_TESTS}/test_skipped_batches.py",),
        "A batch that the sink has and Spark's commit log lacks has its state.",
    ),
    Mutant(
        "batch-skipped-by-a-function-is-not-run",
        f"{_DRIVER}/SkippedBatchesRule.scala",
        "case function: ForeachBatchSink[_] => new RunningFunction(function)",
        "case function: ForeachBatchSink[_] => function",
        (f"{_TESTS}/test_skipped_batches.py",),
        "A batch that a foreachBatch function skips and Spark's commit log lacks has its state.",
    ),
    Mutant(
        "starts-in-sessions-of-this-store-alone",
        f"{_SHIM}/StateStoreExtensions.scala",
        "    QueryStarts.attend(session)",
        "    if (newQueriesUseOurs(session.conf.getAll)) QueryStarts.attend(session)",
        (f"{_TESTS}/test_rescale_in_place.py::test_interrupted_rescale_is_completed_by_the_next_start",),
        "A query of this store goes on whatever provider the session has.",
    ),
    Mutant(
        "commit-report-for-other-sinks",
        f"{_DRIVER}/CommitReportsRule.scala",
        'if (isWanted) null else "true"',
        'if (isWanted) "true" else null',
        (f"{_TESTS}/test_foreach_batch.py::test_tasks_of_a_foreach_batch_sink_report_their_commits",),
        "Queries with foreachBatch run, for which Spark demands a report of each commit.",
    ),
    Mutant(
        "sink-option-in-other-case-is-ignored",
        f"{_DRIVER}/QueryOptionsRule.scala",
        "OfStateAlone.find(_.equalsIgnoreCase(key))",
        "OfStateAlone.find(_ == key)",
        (
            f"{_TESTS}/test_driver_checks.py",
            "-k",
            "sink_rejects_a_store_option and checkpointsdir",
        ),
        "An option of the store that is given to a sink fails the query, instead of being ignored.",
    ),
    Mutant(
        "metrics-of-an-ended-query-stay",
        f"{_DRIVER}/QueryMonitor.scala",
        "if (query.isActive) to.add(query) else to.remove(query.id)",
        "if (query.batches.nonEmpty) to.add(query) else to.remove(query.id)",
        (f"{_TESTS}/test_monitoring.py::test_metrics_of_a_query_end_with_it",),
        "The metrics of a query end with it.",
    ),
)

_PROCESS: Final = (
    Mutant(
        "watchdog-ignores-used-connections",
        f"{_BACKEND}/Backend.scala",
        "connection.timeout = timeout\n      watch.add(connection)",
        "connection.timeout = timeout\n      watch.remove(connection)",
        (f"{_HANGING}::test_watchdog_replaces_a_stopped_backend",),
        "A task does not wait for ever for a backend that hangs.",
    ),
    Mutant(
        "watchdog-ignores-new-connections",
        f"{_BACKEND}/Backend.scala",
        "if (watched) watch.add(connection)",
        "if (!watched) watch.add(connection)",
        (f"{_HANGING}::test_watchdog_covers_the_first_request_to_a_backend",),
        "The first request to a backend that hangs fails in time.",
    ),
    Mutant(
        "connection-is-reused-after-an-error",
        f"{_BACKEND}/Backend.scala",
        "if (healthy && connection.isOpen) idle.push(connection)",
        "if (connection.isOpen) idle.push(connection)",
        (f"{_ANSWERS}::test_load_rejects_a_malformed_answer",),
        "A request does not get the rest of an answer to another one.",
    ),
    Mutant(
        "connections-to-a-killed-backend-are-kept",
        f"{_BACKEND}/Backend.scala",
        "          dropConnections()\n          Thread.sleep(100L * attempt)",
        "          Thread.`yield`()\n          Thread.sleep(100L * attempt)",
        ("tests/spark/test_provider_scenarios.py::test_stores_commit_concurrently",),
        "A request is repeated on a new backend, however many connections the killed one had.",
    ),
    Mutant(
        "requests-are-not-repeated",
        f"{_BACKEND}/Backend.scala",
        "if attempt < MaxAttempts && !Thread.currentThread.isInterrupted",
        "if attempt > MaxAttempts && !Thread.currentThread.isInterrupted",
        (_KILLED,),
        "A batch goes on when its backend is killed.",
    ),
    Mutant(
        "first-restart-is-not-counted",
        f"{_BACKEND}/Backend.scala",
        "if (started > 1) restarts.add(1)",
        "if (started > 2) restarts.add(1)",
        (_KILLED,),
        "backendRestarts counts every restart.",
    ),
    Mutant(
        "storage-retries-are-counted-again",
        f"{_BACKEND}/BackendMetrics.scala",
        "reported = added",
        "reported = since",
        (f"{_HANGING}::test_metrics_count_storage_retries",),
        "storageRetries has each retry once.",
    ),
    Mutant(
        "frames-of-any-length",
        f"{_BACKEND}/BackendConnection.scala",
        "if (magic != Frames.Magic || length < 0 || length > most) {",
        "if (magic != Frames.Magic || length < 0) {",
        (f"{_ANSWERS}::test_load_rejects_a_malformed_answer",),
        "A frame whose length no sound backend sends is refused.",
    ),
    Mutant(
        "checksum-of-a-frame-not-verified",
        f"{_BACKEND}/BackendConnection.scala",
        "if (actual != checksum) {",
        "if (length == 0 && actual != checksum) {",
        (f"{_ANSWERS}::test_load_rejects_a_malformed_answer",),
        "Rows that change between the two processes are not used.",
    ),
    Mutant(
        "stranger-at-the-socket-is-trusted",
        "jvm-shim/src/main/scala/org/apache/spark/sql/statestore/backend/BackendProcess.scala",
        "if (peer != user) {",
        "if (peer == null) {",
        ("tests/spark/test_bad_answers.py::test_load_sends_nothing_to_a_process_of_another_user",),
        "State is sent to no process but the backend that this executor has started.",
    ),
    Mutant(
        "number-of-rows-not-verified",
        f"{_BACKEND}/VersionLoad.scala",
        'table.numKeys != family.path("rows").asLong || table.numValues != values',
        "table.numValues != values",
        (f"{_ANSWERS}::test_load_rejects_a_malformed_answer",),
        "A version is used only if it has as many keys as were committed.",
    ),
    Mutant(
        "interpreter-option-ignored",
        f"{_BACKEND}/PythonInterpreter.scala",
        "    options.python\n",
        "    options.driverPython\n",
        (f"{_TESTS}/test_driver_checks.py::test_unusable_interpreter_fails_the_query_without_a_task",),
        "The option python selects the interpreter of the backend.",
    ),
    Mutant(
        "ended-runs-are-not-reported",
        f"{_BACKEND}/ClosedStores.scala",
        'drain(runs, request.putArray("runs"))',
        'drain(instances, request.putArray("runs"))',
        (f"{_TESTS}/test_backend_lifecycle.py::test_backend_drops_closed_stores_and_ended_runs",),
        "A backend frees what it keeps of queries that have ended.",
    ),
)

_WORKERS: Final = (
    Mutant(
        "daemon-of-workers-is-not-probed",
        f"{_BACKEND}/PythonWorkers.scala",
        "if (canImportDaemon(interpreter)) conf.set(DaemonKey, Daemon)",
        "conf.set(DaemonKey, Daemon)",
        (f"{_TESTS}/test_shipping.py",),
        "Python workers of executors without the package have PySpark's daemon.",
    ),
    Mutant(
        "executors-leave-workers-to-spark",
        f"{_BACKEND}/PythonWorkers.scala",
        "if (canImportDaemon(interpreter)) conf.set(DaemonKey, Daemon)",
        "canImportDaemon(interpreter)",
        (f"{_TESTS}/test_local_cluster.py",),
        "`configure` alone gives executors the daemon of this package.",
    ),
)

_SCHEMAS: Final = (
    Mutant(
        "evolution-keeps-one-value-of-a-list",
        f"{_SHIM}/families/ColumnFamily.scala",
        "table.iterator(everyValue = schema.hasLists).foreach { row =>",
        "table.iterator().foreach { row =>",
        (f"{_EVOLUTION}::test_values_are_converted_once_and_older_versions_keep_theirs[lists-100-ours]",),
        "Every value of a list is there after its schema has evolved.",
    ),
    Mutant(
        "values-of-another-schema-accepted",
        f"{_SHIM}/families/FamilySchema.scala",
        "hasKeysOf(schema) && hasValuesOf(schema)",
        "hasKeysOf(schema)",
        (
            f"{_TESTS}/test_provider_family_refusals.py",
            "-k",
            "test_family_with_rows_rejects_another_schema and ours",
        ),
        "A query whose state has another schema now fails, instead of reading its rows as something else.",
    ),
    Mutant(
        "reordered-key-accepted",
        f"{_SHIM}/families/FamilySchema.scala",
        "!names.sameElements(otherNames) && names.sorted.sameElements(otherNames.sorted)",
        "!names.sorted.sameElements(otherNames.sorted) && names.sameElements(otherNames)",
        (
            f"{_TESTS}/test_provider_family_refusals.py",
            "-k",
            "test_family_with_rows_rejects_keys_whose_columns_are_in_another_order",
        ),
        "A query whose key has its columns in another order now fails, instead of finding no row.",
    ),
    Mutant(
        "conversion-puts-lists",
        f"{_SHIM}/convert/StateConversion.scala",
        "if (family.hasLists) target.merge(pair.key, pair.value, family.name)",
        "if (family.isOrdered && family.hasLists) target.merge(pair.key, pair.value, family.name)",
        (f"{_TESTS}/test_conversion.py", "-k", "conversion_and_back and Scala and timers"),
        "A conversion copies every value of a list.",
    ),
    Mutant(
        "conversion-compares-keys-alone",
        f"{_SHIM}/convert/RowDigest.scala",
        "val row = hash(value, hash(key, index))",
        "val row = hash(key, index)",
        (f"{_TESTS}/test_conversion_faults.py::test_convert_raises_if_values_differ",),
        "A conversion fails if a value of its target differs.",
    ),
    Mutant(
        "aggregation-state-with-all-functions",
        f"{_SHIM}/bootstrap/AggregationState.scala",
        "plan.transformDown { case `aggregate` => asStream(session, aggregate) }",
        "asStream(session, aggregate)",
        (f"{_TESTS}/test_aggregation_state.py::test_state_of_a_batch_is_that_of_a_stream[selected]",),
        "The state of an aggregation has the functions that its result needs, as that of a stream.",
    ),
    Mutant(
        "operators-of-other-stores-are-replaced",
        "jvm-shim/src/main/spark-since-4.2/org/apache/spark/sql/statestore/transform/TransformWithStateRule.scala",
        "case scala: TransformWithStateExec if scala.isStreaming && keepsState(scala) =>",
        "case scala: TransformWithStateExec if scala.isStreaming =>",
        (f"{_TESTS}/test_transform_with_state_session.py::test_extension_leaves_other_providers_to_spark",),
        "transformWithState on another store is left to Spark.",
    ),
)

MUTANTS: Final = (*_FORMATS_OF_QUERIES, *_FILES_OF_SPARK, *_HANDED_OVER, *_PROCESS, *_WORKERS, *_SCHEMAS)
