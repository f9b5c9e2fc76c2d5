"""Commits that tasks have handed over before the barrier of their batch, each through the real provider."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import SparkRuntimeException

from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import wait_until
from tests.spark.families import A, B, value
from tests.spark.harness import Provider, Store, begin, read
from tests.spark.test_checkpoint_file_manager import Manager
from tests.support.slow import SlowStorage

# A larger commit does not wait for others to be sent with.
LARGE = 100_000


@pytest.fixture
def slow(slow: SlowStorage, tmp_path: Path) -> SlowStorage:
    """Return the storage, beside the metadata of a query."""
    (tmp_path / "query").mkdir()
    (tmp_path / "query" / "metadata").write_text('{"id": "00000000-0000-0000-0000-000000000007"}')
    return slow


@pytest.fixture
def executor(spark: Any, slow: SlowStorage, tmp_path: Path) -> Iterator[Provider]:
    """Return a store of a query whose tasks hand their commits over; the calling thread is a task."""
    provider = instance(spark, slow, tmp_path, storageTimeoutSeconds="2")
    provider.begin_run()
    provider.begin_task()
    yield provider
    provider.end_task()
    provider.end_run()
    provider.close()


def instance(spark: Any, slow: SlowStorage, tmp_path: Path, **options: str) -> Provider:
    settings = {"python": slow.interpreter(), "checkpointsDir": slow.url} | options
    return Provider(
        spark, f"file:{tmp_path}/query", **{f"backend__{name}": option for name, option in settings.items()}
    )


def test_batch_without_a_barrier_is_refused(
    spark: Any, executor: Provider, slow: SlowStorage, tmp_path: Path
) -> None:
    begin(executor, 0, None, {A: value(1)}).commit()
    with pytest.raises(Py4JJavaError, match="Spark went on to the next batch without waiting for it"):
        begin(executor, 1, None, {B: value(2)}).commit()
    executor.barrier()
    assert read(instance(spark, slow, tmp_path), 1) == {A: value(1)}


def test_late_task_of_a_batch_hands_nothing_over(
    spark: Any, executor: Provider, slow: SlowStorage, tmp_path: Path
) -> None:
    late = begin(executor, 0, None, {A: value(0, "late")})
    begin(executor, 0, None, {A: value(1)}).commit()
    executor.barrier()
    with pytest.raises(SparkRuntimeException, match="its batch is complete"):
        late.commit()
    begin(executor, 1, None, {B: value(2)}).commit()
    executor.barrier()
    assert read(instance(spark, slow, tmp_path), 2) == {A: value(1), B: value(2)}


def test_task_that_runs_again_waits_for_the_commit_of_the_attempt_before(
    spark: Any, executor: Provider, slow: SlowStorage, tmp_path: Path
) -> None:
    opened: list[Store] = []
    with slow.hanging("write", "/0/0/") as hang:
        begin(executor, 0, None, {A: value(0, LARGE)}).commit()
        hang.wait()
        hang.holds_back(lambda: opened.append(executor.open(0)))
    (store,) = opened
    store.put(B, value(1))
    store.commit()
    executor.barrier()
    assert read(instance(spark, slow, tmp_path), 1) == {B: value(1)}


@pytest.fixture
def later(executor: Provider) -> Provider:
    """Return the store after its first version, whose metadata is in a file of its own."""
    begin(executor, 0, None, {A: value(0)}).commit()
    executor.barrier()
    return executor


def test_commits_are_published_while_the_offsets_are_written(
    spark: Any, later: Provider, slow: SlowStorage, tmp_path: Path
) -> None:
    """In real-time mode Spark writes the offsets of a batch after its tasks."""
    offsets = offset_log(spark, slow, tmp_path)
    begin(later, 1, None, {A: value(1)}).commit()
    with slow.hanging("write", "/_merged/") as hang:
        offsets.write("0", b"offsets of the batch")
        hang.wait()
        hang.holds_back(later.barrier)
    # Without commits there is nothing to publish.
    offsets.write("1", b"offsets of the next batch")
    begin(later, 2, None, {B: value(2)}).commit()
    later.barrier()
    assert read(instance(spark, slow, tmp_path), 3) == {A: value(1), B: value(2)}
    assert len(list(slow.directory.glob("*/_merged/*"))) == 2


def test_attempt_that_is_handed_over_after_the_publication_counts(
    spark: Any, later: Provider, slow: SlowStorage, tmp_path: Path
) -> None:
    begin(later, 1, None, {A: value(0, "first")}).commit()
    later.prepare_barrier()
    assert wait_until(lambda: any(slow.directory.glob("*/_merged/*")), 60)
    begin(later, 1, None, {A: value(1)}).commit()
    later.barrier()
    assert read(instance(spark, slow, tmp_path), 2) == {A: value(1)}


def test_publication_before_the_barrier_fails_the_batch(later: Provider, slow: SlowStorage) -> None:
    begin(later, 1, None, {A: value(1)}).commit()
    with slow.hanging("write", "/_merged/") as hang:
        later.prepare_barrier()
        hang.wait()
        time.sleep(4)
    # The storage would take it now.
    with pytest.raises(Py4JJavaError, match="storage did not answer within 2 s"):
        later.barrier()


def test_offsets_that_cannot_be_written_end_the_publication(
    spark: Any, later: Provider, slow: SlowStorage, tmp_path: Path
) -> None:
    offsets = offset_log(spark, slow, tmp_path)
    (tmp_path / "query" / "offsets").mkdir()
    (tmp_path / "query" / "offsets" / "0").write_bytes(b"of another query")
    begin(later, 1, None, {A: value(1)}).commit()
    with slow.hanging("write", "/_merged/"), pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        offsets.write("0", b"offsets of the batch")
    later.end_run()
    later.begin_run()
    begin(later, 1, None, {A: value(2)}).commit()
    later.barrier()
    assert read(instance(spark, slow, tmp_path), 2) == {A: value(2)}


def offset_log(spark: Any, slow: SlowStorage, tmp_path: Path) -> Manager:
    """Return the files of the query's log of offsets."""
    session = spark.newSession()
    session.conf.set(OPTION_PREFIX + "driverPython", slow.interpreter())
    return Manager(session, f"file:{tmp_path}/query/offsets")
