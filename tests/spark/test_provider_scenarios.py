"""Single scenarios of Spark's use of a provider, each through the real provider."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import SparkRuntimeException

from tests.spark.counting import backend_pid, kill
from tests.spark.families import A, B, C, value
from tests.spark.harness import IMMEDIATE_CLEANUP, Open, Provider, Row, Store, instances, read
from tests.support.trees import files_below

pytestmark = pytest.mark.first

# Four of them are more than a commit writes as a snapshot; one is not.
LARGE = 120_000


# Without compression the base is so much larger than the changes that only explicit requests write snapshots.
CHAINING = {"minDeltasForSnapshot": "2", "backend__compression": "none"}


FILLING = {("fill", i): value(i, LARGE) for i in range(4)}


# Commits, loads and retries differ by the format of Spark's checkpoints; what else a store does is the same.
both_formats = pytest.mark.parametrize("checkpoint_format", [1, 2], ids=["v1", "v2"])


@pytest.fixture
def checkpoint_format() -> int:
    return 2


@pytest.fixture
def instance(spark: Any, tmp_path: Path, checkpoint_format: int) -> Iterator[Open]:
    with instances(
        spark, tmp_path, checkpointFormatVersion=str(checkpoint_format), **IMMEDIATE_CLEANUP
    ) as opens:
        yield opens


def commit(
    provider: Provider, version: int, checkpoint_id: str | None, rows: dict[Row, Row | None]
) -> str | None:
    """Commit one batch, and return the new version's id."""
    store = provider.open(version, checkpoint_id)
    change(store, rows)
    assert store.commit() == version + 1
    return store.checkpoint_id


def change(store: Store, rows: dict[Row, Row | None]) -> None:
    for key, row in rows.items():
        if row is None:
            store.remove(key)
        else:
            store.put(key, row)


def commit_a_chain(provider: Provider) -> tuple[str | None, str | None]:
    """Commit version 1 with the filling and four changes of A; return the ids of the last two versions."""
    before, newest = None, commit(provider, 0, None, FILLING)
    for version in range(1, 5):
        before, newest = newest, commit(provider, version, newest, {A: value(version)})
    return before, newest


def metadata_files(tmp_path: Path) -> list[str]:
    return sorted(path.parent.name for path in tmp_path.rglob("chk-*/_metadata"))


@both_formats
def test_abort_leaves_no_changes_and_files(instance: Open, tmp_path: Path) -> None:
    provider = instance()
    first = commit(provider, 0, None, {A: value(1)})
    # Only files are compared: the next version's directory is created after the commit is answered.
    before = files_below(tmp_path)
    store = provider.open(1, first)
    change(store, {A: None, B: value(2, LARGE)})
    store.abort()
    assert files_below(tmp_path) == before
    again = commit(provider, 1, first, {C: value(3)})
    assert read(instance(), 2, again) == {A: value(1), C: value(3)}


def test_checkpoint_id_identifies_the_attempt(instance: Open) -> None:
    provider_a, provider_b = instance(), instance()
    first = commit(provider_a, 0, None, {A: value(1)})
    attempt_a = commit(provider_a, 1, first, {A: value(2)})
    attempt_b = commit(provider_b, 1, first, {A: value(3)})
    assert attempt_a != attempt_b
    # Both hold a version 2 in memory; each must answer for the requested one.
    assert read(provider_a, 2, attempt_b) == {A: value(3)}
    assert read(provider_b, 2, attempt_a) == {A: value(2)}


@pytest.mark.parametrize("checkpoint_format", [1], ids=["v1"])
def test_last_attempt_of_a_version_wins(instance: Open) -> None:
    zombie, retry = instance(), instance()
    commit(zombie, 0, None, {A: value(1)})
    commit(zombie, 1, None, {A: value(2)})
    commit(retry, 1, None, {A: value(3)})
    assert read(instance(), 2, None) == {A: value(3)}
    # The other attempt's state remains for instances that build on it.
    commit(zombie, 2, None, {B: value(4)})
    assert read(instance(), 3, None) == {A: value(2), B: value(4)}


@both_formats
def test_snapshot_of_an_abandoned_version_is_not_used(instance: Open) -> None:
    provider = instance(**CHAINING)
    before, newest = commit_a_chain(provider)
    # A snapshot of version 5 is ready, but a version 5 without its rows follows.
    provider.snapshot()
    newest = commit(provider, 4, before, {B: value(0)})
    for version in range(5, 9):
        newest = commit(provider, version, newest, {C: value(version)})
    expected = FILLING | {A: value(3), B: value(0), C: value(8)}
    assert read(provider, 9, newest) == expected
    assert read(instance(**CHAINING), 9, newest) == expected


def test_version_can_be_abandoned_during_its_snapshot(instance: Open) -> None:
    settings = {"minDeltasForSnapshot": "1", "backend__compression": "none"}
    provider = instance(**settings)
    filling = {("fill", i): value(i, 100_000) for i in range(100)}
    first = commit(provider, 0, None, filling)
    for pause in (0, 2, 4):
        second = commit(provider, 1, first, {A: value(1)})
        third = commit(provider, 2, second, {A: value(2), B: value(2)})
        provider.open_read(3, third).release()
        snapshot = threading.Thread(target=provider.snapshot)
        snapshot.start()
        time.sleep(pause / 250)
        retried = commit(provider, 2, second, {C: value(pause)})
        snapshot.join()
        newest = commit(provider, 3, retried, {("fill", 0): value(pause)})
        expected = filling | {A: value(1), C: value(pause), ("fill", 0): value(pause)}
        assert read(instance(**settings), 4, newest) == expected


def test_background_run_shortens_the_chain(instance: Open) -> None:
    provider = instance(**CHAINING)
    _, newest = commit_a_chain(provider)
    provider.snapshot()
    store = provider.open(5, newest)
    store.put(B, value(5))
    store.commit()
    # The base, a run of the four deltas, and one delta.
    assert store.metrics["checkpointMaxChainLength"] == 3
    assert store.metrics["checkpointMaxSnapshotAge"] == 5
    assert read(instance(**CHAINING), 6, store.checkpoint_id) == FILLING | {A: value(4), B: value(5)}


def test_run_has_no_changes_from_before_a_compaction(instance: Open) -> None:
    provider = instance(**CHAINING)
    newest = None
    compactions = 0
    # The compacted log has the other rows at lower offsets.
    first = {A: value(1), ("fill", 0): value(0)}
    batches: list[dict[Row, Row | None]] = [FILLING, first, {B: value(1)}, {C: value(1)}, {A: None}]
    for version, rows in enumerate([*batches, {B: value(2)}, {A: value(3)}, {C: None}]):
        store = provider.open(version, newest)
        if version in (1, 2, 3):
            # Enough superseded bytes for a compaction, not so many that a batch writes a full snapshot.
            for number in range(2):
                store.put(C, value(number, LARGE))
        change(store, rows)
        store.commit()
        newest = store.checkpoint_id
        compactions += store.metrics["stateTableCompactions"]
    assert compactions > 0
    provider.snapshot()
    newest = commit(provider, 8, newest, {("d", 1): value(5)})
    expected = FILLING | {("fill", 0): value(0), A: value(3), B: value(2), ("d", 1): value(5)}
    assert read(instance(**CHAINING), 9, newest) == expected


def test_older_version_is_opened_again_after_a_compaction(instance: Open) -> None:
    provider = instance()
    newest, ids = None, []
    for version in range(3):
        newest = commit(provider, version, newest, {(f"k{i}", 0): value(version, 30_000) for i in range(20)})
        ids.append(newest)
    # Most of the log is superseded: the first store compacts it, which moves the rows of the older version.
    provider.open(3, ids[2]).abort()
    store = provider.open(2, ids[1])
    assert dict(store.rows()) == {(f"k{i}", 0): value(1, 30_000) for i in range(20)}
    store.abort()


def test_commit_writes_a_due_snapshot_of_small_state_itself(instance: Open, tmp_path: Path) -> None:
    provider = instance(**CHAINING)
    filling = {("k", i): value(i, 30_000) for i in range(4)}
    newest = commit(provider, 0, None, filling)
    for version in range(1, 4):
        newest = commit(provider, version, newest, {A: value(version)})
    provider.snapshot()
    assert not list(tmp_path.glob("state/0/0/shared/*"))
    store = provider.open(4, newest)
    store.put(B, value(5))
    store.commit()
    assert store.metrics["checkpointFullSnapshots"] == 1
    assert store.metrics["checkpointMaxChainLength"] == 1
    assert read(instance(**CHAINING), 5, store.checkpoint_id) == filling | {A: value(3), B: value(5)}
    # The next one changes little again.
    store = provider.open(5, store.checkpoint_id)
    store.put(B, value(6))
    store.commit()
    assert store.metrics["checkpointFullSnapshots"] == 0


def test_upgrade_of_a_read_store_needs_no_load(instance: Open) -> None:
    first = commit(instance(), 0, None, {A: value(1)})
    provider = instance()
    reading = provider.open_read(1, first)
    assert reading.get(A) == value(1)
    store = provider.upgrade(reading, 1, first)
    store.put(B, value(2))
    store.commit()
    # One request loads the state, one commits it.
    assert store.metrics["backendRoundTrips"] == 2
    reading.release()
    assert read(provider, 2, store.checkpoint_id) == {A: value(1), B: value(2)}


@both_formats
def test_upgrade_does_not_take_the_state_of_another_operator(
    instance: Open, spark: Any, tmp_path: Path, checkpoint_format: int
) -> None:
    # The operators of a batch have the same version, in v1 and of new queries without an id that differs.
    version = 2 - checkpoint_format
    provider = instance()
    other_provider = Provider(
        spark, f"file:{tmp_path}", operator=7, checkpointFormatVersion=str(checkpoint_format)
    )
    first = commit(provider, 0, None, {A: value(1)}) if version else None
    other_first = commit(other_provider, 0, None, {C: value(3)}) if version else None
    foreign = other_provider.open_read(version, other_first)
    store = provider.upgrade(foreign, version, first, owner=other_provider)
    assert store.rows() == ([(A, value(1))] if version else [])
    store.put(B, value(2))
    store.commit()
    assert foreign.rows() == ([(C, value(3))] if version else [])
    foreign.release()
    other_provider.close()
    expected = {A: value(1), B: value(2)} if version else {B: value(2)}
    assert read(instance(), version + 1, store.checkpoint_id) == expected


def test_read_store_is_isolated_from_commits(instance: Open) -> None:
    provider = instance()
    first = commit(provider, 0, None, {A: value(1)})
    reading = provider.open_read(1, first)
    second = commit(provider, 1, first, {A: value(2)})
    assert reading.get(A) == value(1)
    reading.release()
    assert read(provider, 2, second) == {A: value(2)}


def test_load_empty_drops_rows_and_keeps_the_version(instance: Open) -> None:
    provider = instance()
    commit(provider, 0, None, {A: value(1)})
    store = provider.open_empty(1)
    assert store.rows() == []
    store.put(B, value(2))
    assert store.commit() == 2
    assert store.metrics["checkpointFullSnapshots"] == 1
    assert read(instance(), 2, store.checkpoint_id) == {B: value(2)}


def test_force_snapshot_on_commit_writes_a_full_snapshot(instance: Open) -> None:
    provider = instance()
    first = commit(provider, 0, None, FILLING)
    second = commit(provider, 1, first, {A: value(1)})
    store = provider.open_forced(2, second)
    store.put(A, value(2))
    store.commit()
    assert store.metrics["checkpointFullSnapshots"] == 1
    assert store.metrics["checkpointMaxChainLength"] == 1
    assert read(instance(), 3, store.checkpoint_id) == FILLING | {A: value(2)}


def test_closed_provider_rejects_operations(instance: Open) -> None:
    provider = instance()
    first = commit(provider, 0, None, {A: value(1)})
    store = provider.open(1, first)
    provider.close()
    provider.snapshot()
    provider.cleanup()
    with pytest.raises(SparkRuntimeException, match="the store was unloaded"):
        store.commit()
    with pytest.raises(Py4JJavaError, match="the provider is closed"):
        provider.open(1, first)


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_ended_store_rejects_operations(instance: Open, ending: str) -> None:
    store = instance().open(0)
    store.put(A, value(1))
    getattr(store, ending)()
    for use in (lambda: store.put(B, value(2)), lambda: store.remove(A), lambda: store.get(A), store.commit):
        with pytest.raises(SparkRuntimeException, match=rf"has {ending}(t?)ed and takes no more operations"):
            use()


@both_formats
def test_discarded_version_error_names_retained_versions(instance: Open, tmp_path: Path) -> None:
    provider = instance(**{"spark.sql.streaming.minBatchesToRetain": "2"})
    ids = [None]
    for version in range(8):
        ids.append(commit(provider, version, ids[-1], {A: value(version)}))
    provider.open(8, ids[8]).abort()
    provider.cleanup()
    # Version 7 is the newest known to be committed when 8 is opened: two more are retained below it.
    assert len(metadata_files(tmp_path)) == 3
    assert read(instance(), 6, ids[6]) == {A: value(5)}
    missing = rf"operator 0, partition 0, store default, version 2 .*{tmp_path}.* does not exist"
    with pytest.raises(Py4JJavaError, match=missing):
        instance().open(2, ids[2])


def test_cleanup_counts_from_the_version_that_was_opened_last(instance: Open) -> None:
    provider = instance(**{"spark.sql.streaming.minBatchesToRetain": "1"})
    ids = [None]
    for version in range(5):
        ids.append(commit(provider, version, ids[-1], {A: value(version)}))
    # Spark may run the batch of version 5 again, and needs the one before it.
    provider.cleanup()
    assert read(instance(), 3, ids[3]) == {A: value(2)}
    with pytest.raises(Py4JJavaError, match="does not exist"):
        read(instance(), 2, ids[2])


def test_negative_version_is_rejected(instance: Open) -> None:
    with pytest.raises(Py4JJavaError, match="-1"):
        instance().open(-1)


def test_metrics_are_exact(instance: Open, tmp_path: Path) -> None:
    provider = instance()
    store = provider.open(0)
    change(store, {(f"k{i}", i): value(i) for i in range(100)} | {("k7", 7): None})
    store.commit()
    written_bytes = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert store.metrics["numKeys"] == 99
    assert store.metrics["checkpointObjectsWritten"] == 1
    assert store.metrics["checkpointBytesWritten"] == written_bytes
    second_store = instance().open(1, store.checkpoint_id)
    second_store.commit()
    assert 0 < second_store.metrics["checkpointLoadBytes"] <= written_bytes
    assert second_store.metrics["numKeys"] == 99


def test_compression_round_trip_returns_equal_rows(instance: Open, tmp_path: Path) -> None:
    rows = {("repeats", 1): value(1, 9_000_000), ("small", 1): value(2)}
    rows |= {("random", i): value(i, secrets.token_hex(150_000)) for i in range(4)}
    first = commit(provider := instance(backend__compression="zstd"), 0, None, rows)
    second = commit(provider, 1, first, {("random", 3): None, ("small", 1): value(3), ("new", 1): value(4)})
    assert read(instance(), 1, first) == rows
    del rows["random", 3]
    assert read(instance(), 2, second) == rows | {("small", 1): value(3), ("new", 1): value(4)}
    files = [path for path in tmp_path.rglob("state/**/*") if path.is_file()]
    assert len(files) == 2
    assert max(path.stat().st_size for path in files) < 1_600_000


def test_compaction_frees_memory(instance: Open) -> None:
    provider = instance()
    newest = None
    sizes = []
    for version in range(12):
        store = provider.open(version, newest)
        for i in range(20):
            store.put((f"k{i}", 0), value(version, 30_000))
        store.commit()
        newest = store.checkpoint_id
        sizes.append(store.metrics["memoryUsedBytes"])
    # 600 KB are live; the log may hold twice that, one batch's additions, and partial pages.
    assert max(sizes) < 4_000_000
    assert dict(provider.open(12, newest).rows()) == {(f"k{i}", 0): value(11, 30_000) for i in range(20)}


def test_killed_backend_is_restarted(instance: Open, spark: Any) -> None:
    provider = instance()
    first = commit(provider, 0, None, {A: value(1)})
    store = provider.open(1, first)
    store.put(B, value(2))
    kill(backend_pid(spark, sys.executable))
    store.commit()
    assert store.metrics["backendRestarts"] == 1
    assert read(instance(), 2, store.checkpoint_id) == {A: value(1), B: value(2)}


def test_stores_commit_concurrently(spark: Any, tmp_path: Path) -> None:
    providers = [Provider(spark, f"file:{tmp_path}", partition=partition) for partition in range(8)]
    failed: list[BaseException] = []

    def work(provider: Provider, partition: int) -> None:
        try:
            for version in range(3):
                commit(provider, version, None, {(f"p{partition}", version): value(version, 2_000)})
        except BaseException as error:  # noqa: BLE001 - for the main thread to show
            failed.append(error)

    threads = [threading.Thread(target=work, args=(p, i)) for i, p in enumerate(providers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    # More connections are idle than a request has attempts.
    kill(backend_pid(spark, sys.executable))
    for partition, provider in enumerate(providers):
        provider.close()
        fresh = Provider(spark, f"file:{tmp_path}", partition=partition)
        assert read(fresh, 3, None) == {(f"p{partition}", i): value(i, 2_000) for i in range(3)}
        fresh.close()
