"""Stopped backends and hanging storage: tasks fail or continue in time, and queries stay exact."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import (
    backend_pid,
    finish,
    is_gone,
    metric,
    start_counting,
    wait_for_batch,
    wait_until,
)
from tests.spark.harness import Provider
from tests.support.slow import SlowStorage

LIMIT = 1

pytestmark = pytest.mark.slow

# Calls for which a task waits, and for which the driver waits.
HANGING = [("task", "/0/1/chk-"), ("batch", "/_merged/")]


@pytest.fixture
def slow(slow: SlowStorage, tmp_path: Path) -> SlowStorage:
    """Return the storage, beside the metadata of a query."""
    (tmp_path / "query").mkdir()
    (tmp_path / "query" / "metadata").write_text('{"id": "00000000-0000-0000-0000-000000000007"}')
    return slow


def settings(slow: SlowStorage, seconds: int = LIMIT) -> dict[str, str]:
    return {
        "python": slow.interpreter(),
        "checkpointsDir": slow.url,
        "storageTimeoutSeconds": str(seconds),
    }


def provider(
    spark: Any, slow: SlowStorage, tmp_path: Path, partition: int = 0, seconds: int = LIMIT, **confs: str
) -> Provider:
    options = {f"backend__{name}": value for name, value in settings(slow, seconds).items()}
    return Provider(spark, f"file:{tmp_path}/query", partition=partition, **options, **confs)


def counting(spark: Any, slow: SlowStorage, commit: str, seconds: int = LIMIT) -> Any:
    """Return a session whose queries have their state on the storage."""
    session = spark.newSession()
    for name, value in (settings(slow, seconds) | {"commit": commit}).items():
        session.conf.set(OPTION_PREFIX + name, value)
    return session


def rows_of(instance: Provider, version: int) -> dict[Any, Any]:
    store = instance.open_read(version)
    rows = dict(store.rows())
    store.release()
    return rows


def test_commit_on_hanging_storage_fails_in_time_and_a_retry_succeeds(
    spark: Any, slow: SlowStorage, tmp_path: Path
) -> None:
    instance = provider(spark, slow, tmp_path)
    with slow.hanging("write", "chk-1/_metadata"):
        store = instance.open(0)
        store.put(("a", 1), (1, "hung"))
        started = time.monotonic()
        refused = store.refusal("commit")
        assert LIMIT <= time.monotonic() - started < LIMIT + 20
        assert refused is not None
        for part in ("version 1", "operator 0, partition 0", f"within {LIMIT} s", "storageTimeoutSeconds"):
            assert part in refused.message
        store.abort()
        again = instance.open(0)
        again.put(("a", 1), (2, "made"))
        assert again.commit() == 1
    second_instance = provider(spark, slow, tmp_path)
    # The hanging call has continued by now, and found another attempt's version.
    time.sleep(0.5)
    assert rows_of(second_instance, 1) == {("a", 1): (2, "made")}
    last = instance.open(1)
    last.put(("b", 1), (3, "more"))
    assert last.commit() == 2
    assert rows_of(provider(spark, slow, tmp_path), 2) == {("a", 1): (2, "made"), ("b", 1): (3, "more")}


def test_metrics_count_storage_retries(spark: Any, slow: SlowStorage, tmp_path: Path) -> None:
    instance = provider(spark, slow, tmp_path)
    for version, times in enumerate((0, 3, 0, 1)):
        slow.reset("write", f"chk-{version + 1}/_metadata", times)
        store = instance.open(version)
        store.put(("a", version), (1, "x"))
        assert store.commit() == version + 1
        assert store.metrics["storageRetries"] == times
    slow.reset("read", "_metadata", 2)
    second_instance = provider(spark, slow, tmp_path)
    store = second_instance.open(4)
    assert len(store.rows()) == 4
    store.commit()
    assert store.metrics["storageRetries"] == 2


def test_watchdog_replaces_a_stopped_backend(spark: Any, slow: SlowStorage, tmp_path: Path) -> None:
    instance = provider(spark, slow, tmp_path)
    store = instance.open(0)
    store.put(("a", 1), (1, "x"))
    store.commit()
    assert store.metrics["backendRestarts"] == 0
    stopped = backend_pid(spark, slow.interpreter())
    psutil.Process(stopped).suspend()
    # It stops a little later than asked for.
    assert wait_until(lambda: psutil.Process(stopped).status() == psutil.STATUS_STOPPED, 10)
    started = time.monotonic()
    store = instance.open(1)
    store.put(("b", 2), (2, "y"))
    assert store.commit() == 2
    # The request timeout, and a handshake without an answer.
    assert 2 * LIMIT + 2 <= time.monotonic() - started < 30
    assert store.metrics["backendRestarts"] == 1
    assert wait_until(lambda: is_gone(stopped), 5)
    assert backend_pid(spark, slow.interpreter()) != stopped
    assert rows_of(provider(spark, slow, tmp_path), 2) == {("a", 1): (1, "x"), ("b", 2): (2, "y")}


def test_watchdog_covers_the_first_request_to_a_backend(
    spark: Any, slow: SlowStorage, tmp_path: Path
) -> None:
    instance = provider(spark, slow, tmp_path)
    store = instance.open(0)
    store.put(("a", 1), (1, "x"))
    # It is started ahead of the first request.
    assert wait_until(lambda: backend_pid(spark, slow.interpreter()) > 0, 30)
    stopped = psutil.Process(backend_pid(spark, slow.interpreter()))
    stopped.suspend()
    committing = threading.Thread(target=store.commit)
    committing.start()
    committing.join(40)
    in_time = not committing.is_alive()
    if not in_time:
        stopped.kill()
        committing.join(60)
    assert in_time
    assert store.metrics["backendRestarts"] == 1
    assert rows_of(provider(spark, slow, tmp_path), 1) == {("a", 1): (1, "x")}


def test_run_that_other_executors_may_discard_is_not_used(
    spark: Any, slow: SlowStorage, tmp_path: Path
) -> None:
    confs = {"minDeltasForSnapshot": "2", "spark.sql.streaming.minBatchesToRetain": "1"}
    instance = provider(spark, slow, tmp_path, seconds=100, backend__compression="none", **confs)

    def commit(version: int, rows: dict[Any, Any]) -> int:
        store = instance.open(version)
        for key, row in rows.items():
            store.put(key, row)
        assert store.commit() == version + 1
        return store.metrics["checkpointMaxChainLength"]

    commit(0, {("fill", number): (number, 120_000) for number in range(12)})
    for version in range(1, 5):
        commit(version, {("a", 1): (version, "x")})
    with slow.hanging("write", "/shared/") as hang:
        uploading = threading.Thread(target=instance.snapshot)
        uploading.start()
        hang.wait()
        # An executor that retains one version before the newest discards what is older than version 8.
        for version in range(5, 9):
            commit(version, {("a", 1): (version, "x")})
        hang.release()
        uploading.join(60)
    assert commit(9, {("a", 1): (9, "x")}) == 10
    instance.snapshot()
    assert commit(10, {("a", 1): (10, "x")}) == 3


@pytest.mark.parametrize(("commit", "path"), HANGING)
def test_stopped_query_ends_at_once_while_storage_hangs(
    spark: Any, slow: SlowStorage, tmp_path: Path, commit: str, path: str
) -> None:
    session = counting(spark, slow, commit, seconds=100)
    checkpoint = tmp_path / "counting"
    query = start_counting(session, checkpoint)
    wait_for_batch(query, 1)
    with slow.hanging("write", path) as hang:
        hang.wait()
        started = time.monotonic()
        query.stop()
        assert time.monotonic() - started < 30
        finish(session, start_counting(session, checkpoint), query.lastProgress.batchId + 2)
    # The hanging call has continued by now, without a waiting client.
    time.sleep(0.5)
    query = start_counting(session, checkpoint)
    finish(session, query, 6)
    assert metric(query, "backendRestarts") == 0


@pytest.mark.soak
def test_tasks_of_a_stopped_backend_share_its_replacement(
    spark: Any, slow: SlowStorage, tmp_path: Path
) -> None:
    instances = [provider(spark, slow, tmp_path, partition) for partition in range(8)]
    stores = [instance.open(0) for instance in instances]
    for number, store in enumerate(stores):
        store.put(("a", number), (number, "x"))
    stores[0].commit()
    psutil.Process(backend_pid(spark, slow.interpreter())).suspend()
    waiting = [threading.Thread(target=store.commit) for store in stores[1:]]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join(60)
    assert all(store.has_committed for store in stores)
    assert sum(store.metrics["backendRestarts"] for store in stores) == 1
    for number in range(8):
        assert rows_of(provider(spark, slow, tmp_path, number), 1) == {("a", number): (number, "x")}
