"""Tasks that Spark has given up, and instances that are of the past, each through the real provider."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from spark_statestore.checkpoint.metadata import StoreId
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.options import StorageOptions
from tests.spark.harness import CLEAN_AT_ONCE, Open, Provider, Row, Store, instances

A, B = ("a", 1), ("b", 1)
LARGE = 30_000

SETTINGS = CLEAN_AT_ONCE | {"backend__numRetained": "1", "backend__fileStateThreshold": "1k"}


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def checkpoint_format(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def instance(spark: Any, tmp_path: Path, checkpoint_format: int) -> Iterator[Open]:
    with instances(spark, tmp_path, checkpointFormatVersion=str(checkpoint_format), **SETTINGS) as opens:
        yield opens


def value(number: int, text: str | int = "") -> Row:
    return (number, text)


def begin(provider: Provider, version: int, checkpoint_id: str | None, rows: dict[Row, Row]) -> Store:
    store = provider.open(version, checkpoint_id)
    for key, row in rows.items():
        store.put(key, row)
    return store


def accept(directory: Path, version: int, checkpoint_id: str | None) -> None:
    """Note the batch that made a version, as Spark does."""
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


def read(provider: Provider, version: int, checkpoint_id: str | None) -> dict[Row, Row]:
    store = provider.open_read(version, checkpoint_id)
    rows = dict(store.rows())
    store.release()
    return rows


def test_a_task_that_commits_when_its_batch_is_done_changes_nothing(
    instance: Open, tmp_path: Path, checkpoint_format: int
) -> None:
    first = batch(tmp_path, instance(), 0, None, {A: value(1)})
    slow = begin(instance(), 1, first, {B: value(0, "late")})
    new = instance()
    second = batch(tmp_path, new, 1, first, {B: value(2)})
    third = batch(tmp_path, new, 2, second, {A: value(3)})
    if checkpoint_format == 1:
        with pytest.raises(Py4JJavaError) as raised:
            slow.commit()
        told = str(raised.value)
        assert "CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT" in told
        assert "batch 1 is done" in told
        assert "its task was given up" in told
        slow.abort()
    else:
        # Under an id of its own, which nobody asks for.
        assert slow.commit() == 2
    assert read(instance(), 2, second) == {A: value(1), B: value(2)}
    assert read(instance(), 3, third) == {A: value(3), B: value(2)}


def test_its_executor_serves_the_partition_again_afterwards(
    instance: Open, tmp_path: Path, checkpoint_format: int
) -> None:
    first = batch(tmp_path, instance(), 0, None, {A: value(1)})
    woken = instance()
    slow = begin(woken, 1, first, {B: value(0, "late")})
    second = batch(tmp_path, instance(), 1, first, {B: value(2)})
    if checkpoint_format == 1:
        with pytest.raises(Py4JJavaError):
            slow.commit()
        slow.abort()
    else:
        slow.commit()
    third = batch(tmp_path, woken, 2, second, {A: value(3)})
    assert read(instance(), 3, third) == {A: value(3), B: value(2)}


def test_a_batch_that_is_not_done_is_committed_anew_by_another_instance(
    instance: Open, tmp_path: Path
) -> None:
    first = batch(tmp_path, instance(), 0, None, {A: value(1)})
    begin(instance(), 1, first, {B: value(0, "failed")}).commit()
    second = batch(tmp_path, instance(), 1, first, {B: value(2)})
    assert read(instance(), 2, second) == {A: value(1), B: value(2)}


def test_maintenance_of_before_a_roll_back_leaves_the_versions_that_count_again(
    instance: Open, tmp_path: Path
) -> None:
    # So that changes go to files, and metadata can go.
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
    # With the log as it was it does its work.
    accept(tmp_path, 6, newest)
    other = instance(**files)
    other.open_read(6, newest).release()
    other.cleanup()
    with pytest.raises(Py4JJavaError, match="is not there"):
        read(instance(), 1, ids[0])


def base_of(directory: Path, version: int, checkpoint_id: str | None) -> int:
    """The version whose snapshot another one starts from."""
    store = VersionStore(StoreId(0, 0), f"{directory}/state/0/0", StorageOptions())
    return store.load(CheckpointName(version, checkpoint_id)).handle.base_version


@pytest.mark.soak
def test_a_snapshot_that_took_longer_than_versions_are_kept_is_not_used_and_the_next_one_is(
    instance: Open, tmp_path: Path
) -> None:
    """Another executor, which keeps fewer versions than that, might discard it while a commit takes it up."""
    provider = instance(backend__snapshotInterval="30")
    rows = {("fill", i): value(i, LARGE) for i in range(4000)}
    newest = batch(tmp_path, provider, 0, None, rows)
    version = 1
    while version < 32:
        newest = batch(tmp_path, provider, version, newest, {A: value(version)})
        version += 1
    snapshot = threading.Thread(target=provider.snapshot)
    snapshot.start()
    begun = version
    while snapshot.is_alive():
        newest = batch(tmp_path, provider, version, newest, {A: value(version)})
        version += 1
    snapshot.join()
    # Else this machine writes too fast for this test.
    assert 3 < version - begun < 80
    for _ in range(2):
        newest = batch(tmp_path, provider, version, newest, {A: value(version)})
        version += 1
    assert base_of(tmp_path, version, newest) == 1
    provider.snapshot()
    newest = batch(tmp_path, provider, version, newest, {A: value(version)})
    assert base_of(tmp_path, version + 1, newest) == version
    assert read(instance(), version + 1, newest) == rows | {A: value(version)}
