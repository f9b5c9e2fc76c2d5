"""Tests of the queries that event logs have: batches, tasks, providers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_statestore.assess.event_log import EventLog
from spark_statestore.assess.queries import CHANGELOG, HDFS, OURS, ROCKSDB, UNKNOWN, Query, read_queries
from spark_statestore.errors import EventLogError
from tests.unit.assess.logs import HDFS_LOG, OUR_LOG, ROCKSDB_LOG, Event, events, progress, query, write


def queries_in(tmp_path: Path, lines: list[Any]) -> list[Query]:
    return read_queries(EventLog(str(write(tmp_path / "log", lines))))


@pytest.mark.parametrize(("log", "provider"), [(HDFS_LOG, HDFS), (ROCKSDB_LOG, ROCKSDB), (OUR_LOG, OURS)])
def test_query_has_its_provider_cores_and_checkpoint(log: Path, provider: str) -> None:
    logged_query = query(log)
    assert (logged_query.provider, logged_query.cores, len(logged_query.batches)) == (provider, 2, 41)
    assert logged_query.checkpoint == f"file:/data/{logged_query.name}/checkpoint"
    assert {operator.name for batch in logged_query.batches for operator in batch.operators} == {
        "stateStoreSave"
    }
    assert {operator.rows for batch in logged_query.batches for operator in batch.operators} == {300_000}


def test_batch_has_the_times_of_its_tasks() -> None:
    for batch in query().batches:
        assert batch.tasks
        (operator,) = batch.operators
        assert batch.tasks.tasks == operator.partitions == batch.stores == 8
        # Spark's progress has the sums of the same metrics.
        assert batch.tasks.commit_ms == operator.commit_ms
        assert batch.tasks.update_ms == operator.update_ms
        assert batch.tasks.run_ms >= operator.task_ms
        assert 1 <= batch.tasks.parallelism <= 3
        assert batch.milliseconds >= batch.durations["addBatch"]


def test_failed_task_does_not_count(tmp_path: Path) -> None:
    all_events = events()
    for event in all_events:
        if event["Event"] == "SparkListenerTaskEnd":
            event["Task End Reason"] = {"Reason": "ExceptionFailure"}
    (failed,) = queries_in(tmp_path, all_events)
    assert {batch.tasks for batch in failed.batches} == {None}


def test_file_of_progress_is_a_query_without_tasks(tmp_path: Path) -> None:
    (logged_query,) = queries_in(tmp_path, progress(ROCKSDB_LOG))
    assert (logged_query.provider, logged_query.cores, logged_query.name) == (ROCKSDB, None, "RocksDB")
    assert [batch.milliseconds for batch in logged_query.batches] == [
        batch.milliseconds for batch in query(ROCKSDB_LOG).batches
    ]
    assert {batch.tasks for batch in logged_query.batches} == {None}


def test_queries_of_one_log_are_apart(tmp_path: Path) -> None:
    queries = queries_in(tmp_path, [*events(HDFS_LOG), *progress(ROCKSDB_LOG)])
    assert [each.provider for each in queries] == [HDFS, ROCKSDB]
    assert [len(each.batches) for each in queries] == [41, 41]


def test_idle_progress_is_no_batch(tmp_path: Path) -> None:
    idle = progress()[-1] | {"durationMs": {"latestOffset": 3, "triggerExecution": 4}}
    (logged_query,) = queries_in(tmp_path, [*progress(), idle])
    assert len(logged_query.batches) == 41


def settings(values: dict[str, str], *, in_job: bool = False) -> list[Event]:
    """Return the log without custom metrics, with settings of the session or of the query's jobs."""
    all_events = events(ROCKSDB_LOG)
    for event in all_events:
        if "progress" in event:
            for operator in event["progress"]["stateOperators"]:
                operator["customMetrics"] = {}
        if event["Event"] == "SparkListenerJobStart":
            event["Properties"] = {
                key: value for key, value in event["Properties"].items() if "providerClass" not in key
            } | (values if in_job else {})
        if event["Event"] == "SparkListenerEnvironmentUpdate":
            event["Spark Properties"] = {} if in_job else values
    return all_events


@pytest.mark.parametrize("in_job", [False, True])
def test_provider_without_metrics_is_that_of_the_settings(tmp_path: Path, in_job: bool) -> None:
    state_store = "spark.sql.streaming.stateStore."
    rocksdb = {f"{state_store}providerClass": "org.apache.spark.RocksDBStateStoreProvider"}
    changelog = rocksdb | {f"{state_store}rocksdb.changelogCheckpointing.enabled": "true"}
    other_provider = {f"{state_store}providerClass": "com.example.OtherProvider"}
    for values, provider in (
        (rocksdb, ROCKSDB),
        (changelog, CHANGELOG),
        (other_provider, UNKNOWN),
        ({}, UNKNOWN),
    ):
        (logged_query,) = queries_in(tmp_path, settings(values, in_job=in_job))
        assert logged_query.provider == provider


def test_log_without_query_is_refused(tmp_path: Path) -> None:
    batch_job = {"Event": "SparkListenerJobStart", "Stage IDs": [1], "Properties": {}}
    with pytest.raises(EventLogError, match="has no streaming query"):
        queries_in(tmp_path, [{"Event": "SparkListenerLogStart"}, batch_job])
    started = [event for event in events() if "progress" not in event]
    with pytest.raises(EventLogError, match="had not ended a batch"):
        queries_in(tmp_path, started)


def test_event_without_its_fields_is_refused(tmp_path: Path) -> None:
    broken = {"Event": events()[-1]["Event"], "progress": {"durationMs": {}}}
    with pytest.raises(EventLogError, match=r"QueryProgressEvent without what Spark .* KeyError"):
        queries_in(tmp_path, [broken])
