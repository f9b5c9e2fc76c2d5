"""Tests of the model of batch time, on event logs of real runs and on batches with known parts."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_statestore.assess.event_log import EventLog
from spark_statestore.assess.model import GET_PRICE, PUT_PRICE, RATIOS, Parts, assess_query
from spark_statestore.assess.queries import (
    HDFS,
    OURS,
    ROCKSDB,
    UNKNOWN,
    Batch,
    OperatorBatch,
    Query,
    TaskTimes,
    read_queries,
)
from tests.unit.assess.logs import HDFS_LOG, OUR_LOG, ROCKSDB_LOG, progress, query, write

STATE = ("opening", "update", "removal", "commit")


@pytest.mark.parametrize("log", [HDFS_LOG, ROCKSDB_LOG])
def test_estimate_from_a_real_run_is_near_the_run_on_this_store(log: Path) -> None:
    # The ratios are from this run, too; tests/system/assess compares others.
    measured = assess_query(query(OUR_LOG)).parts.total
    estimate = assess_query(query(log)).estimate
    assert estimate
    assert abs(estimate.milliseconds / measured - 1) < 0.25
    assert estimate.low < measured < estimate.high
    assert (estimate.confidence, estimate.basis) == ("medium", "measured basis, with metrics of tasks")


def test_first_batches_do_not_count() -> None:
    long_query = query()
    assert [len(assess_query(long_query, skip=skip).counted) for skip in (None, 0, 5, 40, 1000)] == [
        31,
        41,
        36,
        1,
        1,
    ]
    short = replace(long_query, batches=long_query.batches[:6])
    assert [batch.number for batch in assess_query(short).counted] == [2, 3, 4, 5]
    first_batch = replace(long_query, batches=long_query.batches[:1])
    assert [batch.number for batch in assess_query(first_batch).counted] == [0]


@pytest.mark.parametrize("log", [HDFS_LOG, ROCKSDB_LOG, OUR_LOG])
def test_parts_of_a_batch_are_its_time(log: Path) -> None:
    logged_query = query(log)
    for batch in logged_query.batches:
        parts = assess_query(replace(logged_query, batches=[batch])).parts
        names = ("planning", "logs", *STATE, "other")
        assert sum(getattr(parts, name) for name in names) == pytest.approx(batch.milliseconds, rel=0.01)


def batch_of(rows: int = 8_000, tasks: TaskTimes | None = None, **custom: int) -> Batch:
    """Return a batch of 1000 ms, 600 of them tasks with state, two at a time."""
    durations = {"triggerExecution": 1000, "addBatch": 800, "queryPlanning": 50, "walCommit": 100}
    operator = OperatorBatch("stateStoreSave", rows, 100, 0, 4096, 400, 100, 500, 8, 8, custom)
    return Batch(0, "2026-01-01T00:00:00Z", durations, 100, [operator], tasks)


TASKS = TaskTimes(8, 1100, 1200, 400, 100, 500, 60, 1000, 1600)


def query_of(provider: str, *batches: Batch, **more: Any) -> Query:
    return Query("log", "id", "run", "name", provider, batches=list(batches), **more)


def test_times_of_tasks_are_divided_by_the_tasks_at_a_time() -> None:
    parts = assess_query(query_of(ROCKSDB, batch_of(tasks=TASKS))).parts
    assert parts == Parts(1000, 50, 100, 50, 200, 50, 250, 300, 30)
    estimate = assess_query(query_of(ROCKSDB, batch_of(tasks=TASKS))).estimate
    ratios = RATIOS[ROCKSDB]
    saved = sum(getattr(parts, n) * (1 - getattr(ratios, n)) for n in ("logs", *STATE))
    assert estimate
    assert estimate.milliseconds == pytest.approx(1000 - saved)
    assert any("Python workers run for 30 ms" in reason for reason in estimate.reasons)


def test_progress_alone_is_divided_by_the_cores() -> None:
    parallelisms = [
        assess_query(query_of(ROCKSDB, batch_of()), cores=cores).parallelism for cores in (None, 2, 4, 100)
    ]
    # 1000 ms of tasks in 800 ms: more than one at a time, and at most one of each partition.
    assert parallelisms == [1.25, 2, 4, 8]
    estimate = assess_query(query_of(ROCKSDB, batch_of()), cores=2).estimate
    assert estimate
    assert (estimate.confidence, estimate.basis) == ("low", "measured basis, without metrics of tasks")
    assert estimate.high == pytest.approx(2 * estimate.milliseconds)


def test_estimate_of_progress_alone_is_near_that_of_the_log(tmp_path: Path) -> None:
    (alone,) = read_queries(EventLog(str(write(tmp_path / "log", progress(ROCKSDB_LOG)))))
    estimates = [assess_query(each, cores=2).estimate for each in (alone, query(ROCKSDB_LOG))]
    assert all(estimates)
    assert statistics.fmean(abs(each.milliseconds / 1200 - 1) for each in estimates if each) < 0.25


def test_large_state_of_hdfsbacked_opens_in_less_of_its_time() -> None:
    shares = []
    for rows in (8_000, 8_000_000):
        assessed = assess_query(query_of(HDFS, batch_of(rows, TASKS)))
        assert assessed.estimate
        shares.append(assessed.estimate.parts.opening / assessed.parts.opening)
    assert shares[0] > 0.9
    assert shares[1] < 0.1


def test_confidence_is_low_where_no_ratio_was_measured() -> None:
    batches = [batch_of(tasks=TASKS)] * 30
    for checkpoint, confidence in (("file:/data", "medium"), ("s3a://bucket/data", "low"), (None, "low")):
        estimate = assess_query(query_of(ROCKSDB, *batches, checkpoint=checkpoint)).estimate
        assert estimate
        assert estimate.confidence == confidence


def test_no_estimate_without_a_measured_provider_or_state() -> None:
    for provider in (OURS, UNKNOWN):
        assessed = assess_query(query_of(provider, batch_of(tasks=TASKS)))
        assert assessed.estimate is None
        assert ("runs on this store" in assessed.no_estimate) == (provider == OURS)
    stateless = batch_of()
    stateless.operators.clear()
    assessed = assess_query(query_of(UNKNOWN, stateless))
    assert (assessed.estimate, assessed.requests, assessed.operators) == (None, None, ())


@pytest.mark.parametrize(("stores", "measured"), [(8, 92.6), (32, 236.6), (200, 1242), (800, 4842)])
def test_requests_are_those_that_were_measured_on_s3(stores: int, measured: float) -> None:
    batch = batch_of(tasks=TASKS)
    batch.operators[0].stores = stores
    assessed = assess_query(query_of(HDFS, batch))
    assert assessed.requests
    assert assessed.requests_here
    assert assessed.requests.puts + assessed.requests.gets == pytest.approx(measured, abs=4)
    assert assessed.requests_here.puts + assessed.requests_here.gets == 4
    assert assessed.requests_here.dollars(PUT_PRICE, GET_PRICE) == pytest.approx(4 * 0.005 / 1000)


def test_rocksdb_without_changelog_uploads_its_files() -> None:
    plain, copying = (
        assess_query(query_of(ROCKSDB, batch_of(tasks=TASKS, rocksdbFilesCopied=files))).requests
        for files in (0, 16)
    )
    assert plain
    assert copying
    assert copying.puts - plain.puts == 16


def test_state_that_takes_little_time_changes_little() -> None:
    tasks = TaskTimes(8, 20, 1200, 10, 0, 10, 0, 1000, 1600)
    estimate = assess_query(query_of(HDFS, batch_of(tasks=tasks))).estimate
    assert estimate
    assert estimate.milliseconds > 900
    assert any("no other one changes much" in reason for reason in estimate.reasons)
