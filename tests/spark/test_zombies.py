"""Tasks that Spark has abandoned, and outdated instances, each through the real provider."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import SparkRuntimeException

from tests.spark.counting import wait_until
from tests.spark.families import A, B, value
from tests.spark.harness import IMMEDIATE_CLEANUP, Open, Provider, Row, begin, instances, read
from tests.support.slow import SlowStorage

LARGE = 30_000

SETTINGS = IMMEDIATE_CLEANUP | {
    "spark.sql.streaming.minBatchesToRetain": "1",
    "backend__fileStateThreshold": "1k",
}


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def checkpoint_format(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def instance(spark: Any, tmp_path: Path, checkpoint_format: int) -> Iterator[Open]:
    with instances(spark, tmp_path, checkpointFormatVersion=str(checkpoint_format), **SETTINGS) as opens:
        yield opens


def accept(directory: Path, version: int, checkpoint_id: str | None) -> None:
    """Log the batch that made a version, as Spark does."""
    log = directory / "commits"
    log.mkdir(exist_ok=True)
    ids = {"stateUniqueIds": {"0": [[checkpoint_id]]}} if checkpoint_id else {}
    (log / str(version - 1)).write_text(f"v1\n{json.dumps(ids)}")


def batch(
    directory: Path, provider: Provider, version: int, checkpoint_id: str | None, rows: dict[Row, Row]
) -> str | None:
    store = begin(provider, version, checkpoint_id, rows)
    assert store.commit() == version + 1
    accept(directory, version + 1, store.checkpoint_id)
    return store.checkpoint_id


def test_commit_of_a_zombie_after_its_batch_changes_nothing(
    instance: Open, tmp_path: Path, checkpoint_format: int
) -> None:
    first = batch(tmp_path, instance(), 0, None, {A: value(1)})
    woken = instance()
    slow = begin(woken, 1, first, {B: value(0, "late")})
    second = batch(tmp_path, instance(), 1, first, {B: value(2)})
    if checkpoint_format == 1:
        with pytest.raises(Py4JJavaError) as raised:
            slow.commit()
        message = str(raised.value)
        assert "CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT" in message
        assert "contains batch 1" in message
        assert "its task was cancelled" in message
        slow.abort()
    else:
        # Under its own attempt id, which is never requested.
        assert slow.commit() == 2
    assert read(instance(), 2, second) == {A: value(1), B: value(2)}
    # Its executor serves the partition again.
    third = batch(tmp_path, woken, 2, second, {A: value(3)})
    assert read(instance(), 3, third) == {A: value(3), B: value(2)}


def test_killed_task_commits_nothing(instance: Open, tmp_path: Path) -> None:
    provider = instance()
    provider.begin_task()
    slow = begin(provider, 0, None, {A: value(0, "late")})
    provider.kill_task()
    with pytest.raises(SparkRuntimeException, match="the task was killed"):
        slow.commit()
    provider.end_task(failed=True)
    assert not list(tmp_path.rglob("_metadata"))
    first = batch(tmp_path, provider, 0, None, {B: value(1)})
    assert read(instance(), 1, first) == {B: value(1)}


def test_attempt_elsewhere_replaces_that_of_a_task_that_failed_after_its_commit(
    instance: Open, tmp_path: Path
) -> None:
    provider = instance()
    first = batch(tmp_path, provider, 0, None, {A: value(1)})
    provider.begin_task()
    begin(provider, 1, first, {A: value(0, "failed")}).commit()
    provider.end_task(failed=True)
    second = batch(tmp_path, instance(), 1, first, {B: value(2)})
    # Its executor has the version of the failed task in memory.
    third = batch(tmp_path, provider, 2, second, {("c", 1): value(3)})
    assert read(instance(), 3, third) == {A: value(1), B: value(2), ("c", 1): value(3)}


def test_maintenance_of_a_zombie_keeps_versions_after_a_rollback(instance: Open, tmp_path: Path) -> None:
    # So that changes are in separate files, and metadata can be deleted.
    files = {"backend__compression": "none"}
    old, newest, ids = instance(**files), None, []
    for version in range(6):
        newest = batch(tmp_path, old, version, newest, {("k", version): value(version, LARGE)})
        ids.append(newest)
    old.open_read(6, newest).release()
    for path in (tmp_path / "commits").iterdir():
        if int(path.name) > 0:
            path.unlink()
    old.cleanup()
    assert read(instance(), 1, ids[0]) == {("k", 0): value(0, LARGE)}
    # With the original log it succeeds.
    accept(tmp_path, 6, newest)
    other_instance = instance(**files)
    other_instance.open_read(6, newest).release()
    other_instance.cleanup()
    with pytest.raises(Py4JJavaError, match="does not exist"):
        read(instance(), 1, ids[0])


@pytest.mark.slow
def test_snapshot_older_than_retention_is_not_used(spark: Any, slow: SlowStorage, tmp_path: Path) -> None:
    """Another executor, with a smaller retention, might delete it while a commit uses it."""
    (tmp_path / "metadata").write_text('{"id": "00000000-0000-0000-0000-000000000007"}')
    options = {"python": slow.interpreter(), "checkpointsDir": slow.url}
    options |= {"compression": "none"}
    settings = SETTINGS | {f"backend__{name}": text for name, text in options.items()}
    provider = Provider(spark, f"file:{tmp_path}", minDeltasForSnapshot="2", **settings)
    version = 0

    def commit(rows: dict[Row, Row]) -> int:
        nonlocal version
        store = begin(provider, version, None, rows)
        version = store.commit()
        accept(tmp_path, version, None)
        return store.metrics["checkpointMaxChainLength"]

    def uploads() -> int:
        return sum(1 for path in slow.directory.glob("*/0/0/shared/*"))

    rows = {("fill", i): value(i, LARGE) for i in range(100)}
    assert commit(rows) == 1
    with slow.hanging("write", "/shared/") as hang:
        while not hang.is_met():
            # The base, and a delta for each batch.
            assert commit({A: value(version)}) == version
        for _ in range(3):
            commit({A: value(version)})
        assert uploads() == 1
    assert wait_until(lambda: uploads() == 2, 20)
    # Until the provider has the answer.
    time.sleep(1)
    assert commit({A: value(version)}) == version
    assert wait_until(lambda: commit({A: value(version)}) < version, 20)
    assert read(provider, version, None) == rows | {A: value(version - 1)}
    provider.close()
