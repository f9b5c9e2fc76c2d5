"""Stateful queries from Kafka to Kafka through restarts, kills, roll backs, conversions and outages."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import spark_statestore
from tests.spark.queries import OURS, ROCKSDB
from tests.support.services.kafka import Broker
from tests.system.kafka.queries import EVENTS, QUERIES, Rows, answer, assert_exact, feed, results_of
from tests.system.kafka.runs import Runs

pytestmark = pytest.mark.kafka

KILLS = 2

# Kafka's clients otherwise wait for two minutes. Beside other tests an answer may take seconds.
IMPATIENT = {
    "kafka.request.timeout.ms": "6000",
    "kafka.default.api.timeout.ms": "10000",
    "kafka.delivery.timeout.ms": "10000",
    "kafka.max.block.ms": "10000",
    "kafka.session.timeout.ms": "1500",
    "kafka.heartbeat.interval.ms": "500",
}


def require_exact(spark: Any, runs: Runs, already: Mapping[str, Rows] | None = None) -> None:
    """Compare what both queries have written, after what was written already, with the batch answer."""
    for name in QUERIES:
        rows = (already or {}).get(name, []) + results_of(spark, runs.topics, name)
        print(f"{name}: {len(rows)} records, {len(set(rows))} distinct")
        assert_exact(answer(spark, runs.topics, name), rows, name)


def test_queries_restarted_and_killed_equal_the_batch_answer(spark: Any, runs: Runs) -> None:
    seed = random.randrange(2**32)
    moments = random.Random(seed)
    print(f"seed {seed}")
    feed(spark, runs.topics, seed)
    with runs.running() as program:
        runs.wait_for_batches(2)
        program.resume()
        assert program.next("stopped") == []
    for _ in range(KILLS):
        with runs.running():
            runs.wait_for_batches(1)
            time.sleep(moments.uniform(0, 1.5))
    assert all(runs.read(name, runs.committed(name)) < EVENTS for name in QUERIES)
    runs.finish()
    require_exact(spark, runs)


def test_rollback_and_savepoint_take_the_offsets_back(spark: Any, runs: Runs, tmp_path: Path) -> None:
    feed(spark, runs.topics, seed=1)
    with runs.running():
        runs.wait_for_batches(3)
        savepoints = {
            name: spark_statestore.savepoint(path, str(tmp_path / "savepoints"))
            for name, path in runs.checkpoints.items()
        }
        runs.wait_for_batches(4)
    before = {name: results_of(spark, runs.topics, name) for name in QUERIES}
    restored = runs.elsewhere(tmp_path / "restored", replace(runs.topics, results=f"{runs.topics.results}-2"))
    for name, path in runs.checkpoints.items():
        batch = savepoints[name].batch
        killed_at = runs.read(name, runs.committed(name))
        assert killed_at > runs.read(name, batch)
        spark_statestore.restore(savepoints[name].path, restored.checkpoints[name])
        spark_statestore.rollback(path, batch, stopped=True)
        assert runs.committed(name) == restored.committed(name) == batch
        assert runs.read(name, batch) == restored.read(name, batch) < killed_at
    runs.finish()
    require_exact(spark, runs)
    # Both repeat what was read since, so the restored queries write each result that has changed since.
    restored.finish()
    require_exact(spark, restored, before)


def test_queries_converted_here_and_back_equal_the_batch_answer(
    spark: Any, runs: Runs, tmp_path: Path
) -> None:
    feed(spark, runs.topics, seed=2)
    runs = replace(runs, provider=ROCKSDB)
    for to, provider in (("statestore", OURS), ("rocksdb", ROCKSDB)):
        with runs.running():
            runs.wait_for_batches(3)
        target = runs.elsewhere(tmp_path / to)
        for name, path in runs.checkpoints.items():
            conversion = spark_statestore.convert(
                spark, path, target.checkpoints[name], to, batch=runs.committed(name), stopped=True
            )
            assert conversion.provider == provider
            assert conversion.rows > 0
        runs = target
    runs.finish()
    require_exact(spark, runs)


def test_queries_continue_after_a_killed_broker(spark: Any, runs: Runs, broker: Broker) -> None:
    feed(spark, runs.topics, seed=3, count=1500)
    with runs.running():
        runs.wait_for_batches(2)
        broker.stop(signal.SIGKILL)
        time.sleep(2)
        broker.start()
        runs.wait_for_batches(2)
        feed(spark, runs.topics, seed=4, first=1500, count=1500)
        runs.wait_for_batches(1)
    runs.finish()
    require_exact(spark, runs)


def test_queries_that_fail_with_the_broker_continue_after_a_restart(
    spark: Any, runs: Runs, broker: Broker
) -> None:
    feed(spark, runs.topics, seed=5)
    with replace(runs, options=IMPATIENT).running() as program:
        runs.wait_for_batches(2)
        broker.stop()
        failures = program.next("stopped")
    print(failures)
    assert failures
    assert all("imeout" in failure or "not available" in failure for failure in failures), failures
    broker.start()
    runs.finish()
    require_exact(spark, runs)
