"""The tools on a checkpoint with merged files, beside the same one with a file for each version."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from unittest.mock import patch

import pytest

import spark_statestore
from spark_statestore.errors import CheckpointExistsError, CorruptCheckpointError
from spark_statestore.files import open_file_system
from spark_statestore.options import StorageOptions
from spark_statestore.query.gc import gc
from spark_statestore.query.repair import repair
from spark_statestore.query.rollback import rollback
from spark_statestore.query.savepoint import KINDS
from spark_statestore.query.verify import verify
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.store import commit
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.commit import begin_checkpoint
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.holds import announce_holds, holds_directory_of
from spark_statestore.store.metadata import StoreId
from tests.unit.query.stored_query import StoredQuery
from tests.unit.store.stores import load, message, named

BATCHES = 6


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> StoredQuery:
    stored_query = StoredQuery(tmp_path / "checkpoint", request.param, merges=True)
    for batch in range(BATCHES):
        stored_query.run(**{"word": batch, f"word{batch}": batch})
    return stored_query


def state(url: str, batch: int | None = None) -> dict[str, int]:
    table = spark_statestore.read_state(url, batch=batch)
    return {row["key"]["word"]: row["value"]["count"] for row in table.to_pylist()}


def merged(query: StoredQuery) -> list[Path]:
    """The physical files, oldest first."""
    return sorted(query.directory.glob("state/_merged/*"), key=lambda file: int(file.name.split("-")[1]))


def newest_name(query: StoredQuery, partition: int = 0) -> CheckpointName:
    """The newest version of a partition's store."""
    return CheckpointName(len(query.states), query.counted[-1][partition].id if query.format == 2 else None)


def discard_old(query: StoredQuery) -> None:
    """Clean every store up but for its newest version, and sweep as the next batch does."""
    for partition, attempt in enumerate(query.counted[-1]):
        name = newest_name(query, partition)
        discard_versions(query.stores[partition], name, attempt.id, name.version, 0)
    query.stores[0].sweep_merged()


def ran(directory: Path, batches: int = 3, checkpoint_format: int = 2) -> StoredQuery:
    stored_query = StoredQuery(directory / "checkpoint", checkpoint_format, merges=True)
    for batch in range(batches):
        stored_query.run(word=batch)
    return stored_query


def make_old(query: StoredQuery) -> None:
    for file in query.directory.rglob("*"):
        os.utime(file, (time.time() - 200_000,) * 2)


def names(*versions: int) -> list[str]:
    """Names of physical files with a version each."""
    return [f"{version}-{version}-0" for version in versions]


def test_all_versions_but_the_first_are_merged(query: StoredQuery) -> None:
    assert [file.name for file in merged(query)] == names(*range(2, BATCHES + 1))
    assert len(list(query.directory.glob("state/0/*/chk-*"))) == query.partitions


def test_rollback_and_further_batches(query: StoredQuery) -> None:
    rollback(query.url, 2, stopped=True)
    assert state(query.url) == query.states[2]
    query.restart(3).run(word=70)
    assert state(query.url) == query.states[2] | {"word": 70}
    assert verify(query.url).ok


def test_copies_have_the_state_of_the_batch(query: StoredQuery, tmp_path: Path) -> None:
    for kind in KINDS:
        savepoint = spark_statestore.savepoint(query.url, str(tmp_path / "savepoints"), kind=kind)
        assert state(savepoint.path) == query.states[-1]
        restored = tmp_path / f"restored from {kind}"
        spark_statestore.restore(savepoint.path, str(restored))
        assert state(str(restored)) == query.states[-1]
        assert not (restored / "state" / "_merged").exists()
    spark_statestore.clone(query.url, str(tmp_path / "clone"))
    spark_statestore.rescale(query.url, str(tmp_path / "wide"), 5, stopped=True)
    for copy in ("clone", "wide"):
        assert state(str(tmp_path / copy)) == query.states[-1]


def test_pointer_savepoint_keeps_its_version(query: StoredQuery, tmp_path: Path) -> None:
    savepoint = spark_statestore.savepoint(query.url, str(tmp_path / "savepoints"), kind="pointer")
    for _ in range(2):
        # With snapshots, nothing before is needed but for the savepoint.
        query.run({partition: query.snapshot(partition) for partition in range(query.partitions)}, word=100)
    discard_old(query)
    assert [file.name for file in merged(query)] == names(*range(2, BATCHES + 1), BATCHES + 2)
    assert state(savepoint.path) == query.states[BATCHES - 1]
    spark_statestore.dispose_savepoint(savepoint.path)
    discard_old(query)
    assert len(merged(query)) == 1
    assert state(query.url) == query.states[-1]


@pytest.mark.parametrize("kind", ["damaged", "missing"])
def test_damaged_or_missing_file_is_reported_and_repaired(query: StoredQuery, kind: str) -> None:
    newest = merged(query)[-1]
    if kind == "damaged":
        newest.write_bytes(newest.read_bytes()[:-30])
        with pytest.raises(CorruptCheckpointError, match=newest.name):
            state(query.url)
    else:
        newest.unlink()
    problems = verify(query.url).problems
    assert {problem.kind for problem in problems} == {kind}
    assert kind == "missing" or all(newest.name in problem.message for problem in problems)
    assert repair(query.url, stopped=True).batch == BATCHES - 2
    assert state(query.url) == query.states[-2]


def test_query_goes_on_after_a_file_that_was_cut_short(query: StoredQuery) -> None:
    query.begin()
    for partition in range(query.partitions):
        query.commit(partition, {"word": 8})
    query.stores[0].publish_merged([])
    torn = merged(query)[-1]
    torn.write_bytes(torn.read_bytes()[:100])
    query = query.restart(BATCHES)
    query.run(word=9)
    query.run(word=10)
    discard_old(query)
    assert [state(query.url, batch)["word"] for batch in (BATCHES, BATCHES + 1)] == [9, 10]
    assert all(verify(query.url, batch).ok for batch in (BATCHES, BATCHES + 1))
    assert [problem.message for problem in gc(query.url).skipped if torn.name in problem.message]


@pytest.mark.parametrize("is_committed", [False, True], ids=["uncommitted", "rolled back"])
def test_query_with_a_commit_by_each_task_goes_on_after_a_file_that_was_cut_short(
    query: StoredQuery, is_committed: bool
) -> None:
    query.begin()
    lost = [query.commit(partition, {"word": 8}) for partition in range(query.partitions)]
    if is_committed:
        query.finish(lost, {"word": 8})
    else:
        query.stores[0].publish_merged([])
    torn = merged(query)[-1]
    torn.write_bytes(torn.read_bytes()[:100])
    assert repair(query.url, stopped=True).batch == BATCHES - 1
    query = query.restart(BATCHES)
    query.commits_by_task = True
    query.run(word=9)
    query.run(word=10)
    query = query.restart(BATCHES + 2)
    query.run(word=11)
    assert [state(query.url, batch)["word"] for batch in range(BATCHES, BATCHES + 3)] == [9, 10, 11]
    assert all(verify(query.url, batch).ok for batch in range(BATCHES, BATCHES + 3))
    # Its attempts do not come back with it.
    assert torn.exists()


def test_commit_by_a_task_does_not_replace_a_committed_version_in_a_damaged_file(tmp_path: Path) -> None:
    query = ran(tmp_path, checkpoint_format=1)
    late = query.restart(2)
    late.commits_by_task = True
    newest = merged(query)[-1]
    newest.write_bytes(newest.read_bytes()[:100])
    before = merged(query)
    with pytest.raises(CheckpointExistsError, match="contains batch 2"):
        late.commit(0, {"word": 9})
    assert merged(query) == before
    assert verify(query.url).problems


def test_gc_removes_a_file_whose_batch_was_not_committed(tmp_path: Path) -> None:
    query = ran(tmp_path)
    query.begin()
    lost = [query.commit(partition, {"word": 9}) for partition in range(query.partitions)]
    query.stores[0].publish_merged([attempt.id for attempt in lost])
    (orphan,) = (file for file in merged(query) if file.name == "4-4-0")
    make_old(query)
    # A running query may be about to commit it.
    assert gc(query.url).orphans == ()
    # The batch ran again.
    query = query.restart(3)
    query.run(word=10)
    report = gc(query.url, dry_run=True)
    assert [file.url for file in report.orphans] == [f"file://{orphan}"]
    gc(query.url)
    assert not orphan.exists()
    assert state(query.url) == query.states[-1]
    assert verify(query.url).ok


def test_v1_commit_of_a_committed_version_is_refused(tmp_path: Path) -> None:
    query = ran(tmp_path, checkpoint_format=1)
    before = query.files()
    late = query.restart(2)
    for partition in range(query.partitions):
        late.commit(partition, {"word": 9})
    where = f"version 3 at file://{tmp_path}/checkpoint/state/0/0/chk-3/_metadata is not committed again"
    with pytest.raises(CheckpointExistsError, match=rf"{where}: .* contains batch 2"):
        late.stores[0].publish_merged([])
    assert query.files() == before


def test_gc_keeps_a_file_with_a_superseded_attempt_and_others(tmp_path: Path) -> None:
    query = ran(tmp_path, 1)
    query.begin()
    query.commit(0, {"word": 1})
    query.finish([query.commit(partition, {"word": 2}) for partition in range(query.partitions)], {"word": 2})
    make_old(query)
    assert gc(query.url).orphans == ()
    assert state(query.url) == {"word": 2}


def test_old_run_discards_nothing_once_another_one_has_its_version(tmp_path: Path) -> None:
    old = StoredQuery(tmp_path / "checkpoint", 1, merges=True)
    for batch in range(5):
        old.run({partition: old.snapshot(partition) for partition in range(2)} if batch else None, word=batch)
    rollback(old.url, 2, stopped=True)
    new = old.restart(3)
    for batch in range(4):
        new.run(word=10 + batch)
    before = new.files()
    for partition, attempt in enumerate(old.counted[-1]):
        assert discard_versions(old.stores[partition], CheckpointName(5), attempt.id, 5, 0) == 0
    old.stores[0].sweep_merged()
    assert new.files() == before
    discard_old(new)
    assert new.files() != before
    assert state(new.url) == new.states[-1]


def test_first_cleanup_without_ids_sees_what_another_run_has_merged(tmp_path: Path) -> None:
    query = ran(tmp_path, checkpoint_format=1)
    (merged_files,) = query.merged.values()
    other_merged_files = query.restart(3).stores[0].merged
    assert other_merged_files is not None
    path = query.stores[1].metadata_path(CheckpointName(2))
    other_merged_files.supersede(path, "f" * 16, query.stores[1].files.read(path))
    discard_versions(query.stores[0], CheckpointName(3), query.counted[-1][0].id, 3, 0)
    assert (file := merged_files.find(path)) is not None
    assert file.attempt_id == "f" * 16


WORDS = {f"word{number}": number for number in range(100)}
"""Counts whose snapshots are files."""


def moved(directory: Path) -> tuple[StoredQuery, StoreDirectory]:
    """A query with one store, in a process that listed the merged files before it loads the newest version.

    Versions 4 to 6 build on a snapshot; the newest one, 8, has another one and a file of its own.
    """
    query = StoredQuery(directory, partitions=1, merges=True)
    query.run(**WORDS)
    query.run(word1=10)
    store = query.restart(2).stores[0]
    assert store.merged is not None
    assert not store.merged.is_empty()
    query.run(word2=10)
    for number in (3, 4, 5):
        query.run({0: query.snapshot(0)} if number == 3 else None, **{f"word{number}": 10})
    query.run(word6=10)
    with patch.object(commit, "LARGEST_MERGED", 0):
        query.run({0: query.snapshot(0)}, word7=10)
    store.load(newest_name(query))
    return query, store


@pytest.mark.parametrize("has_hold", [False, True], ids=["retained", "held"])
def test_store_that_moves_to_a_process_with_an_old_listing_keeps_versions(
    tmp_path: Path, has_hold: bool
) -> None:
    query, store = moved(tmp_path / "checkpoint")
    if has_hold:
        directory = holds_directory_of(store.directory, store.store)
        assert directory is not None
        announce_holds(store.files, directory)
        store.files.create(f"{directory}/6-savepoint", b"")
    shared = query.directory / "state/0/0/shared"
    assert sorted(file.name[0] for file in shared.iterdir()) == ["1", "3", "7"]
    discard_versions(store, newest_name(query), query.counted[-1][0].id, 8 if has_hold else 5, 0)
    for batch in (5, 7) if has_hold else range(4, 8):
        assert verify(query.url, batch).problems == ()
        assert state(query.url, batch) == query.states[batch]
    assert sorted(file.name[0] for file in shared.iterdir()) == ["3", "7"]


def test_cleanup_and_gc_delete_nothing_while_a_merged_file_is_damaged(tmp_path: Path) -> None:
    query, _ = moved(tmp_path / "checkpoint")
    make_old(query)
    whole = {file: file.read_bytes() for file in merged(query) if int(file.name.split("-")[0]) >= 4}
    for file, data in whole.items():
        file.write_bytes(data[:-30])
    (store,), by, name = query.restart(8).stores, query.counted[-1][0].id, newest_name(query)
    before = query.files()
    store.load(name)
    refused = r"^nothing of operator 0, partition 0.* is deleted: .*_merged/4-4-0 .* Restore it from a backup"
    with pytest.raises(CorruptCheckpointError, match=refused):
        discard_versions(store, name, by, 4, 0)
    report = gc(query.url, stopped=True)
    assert report.orphans == ()
    assert {problem.what for problem in report.skipped} == {"merged files"}
    assert {name: data for name, data in query.files().items() if "horizon" not in name} == before
    for file, data in whole.items():
        file.write_bytes(data)
    assert discard_versions(store, name, by, 4, 0) > 0
    for batch in range(3, 8):
        assert verify(query.url, batch).problems == ()


def test_cleanup_goes_on_beside_a_damaged_merged_file_of_expired_versions(tmp_path: Path) -> None:
    query, store = moved(tmp_path / "checkpoint")
    (file,) = (file for file in merged(query) if file.name == "2-2-0")
    file.write_bytes(file.read_bytes()[:-30])
    by = query.counted[-1][0].id
    assert discard_versions(store, newest_name(query), by, 5, 0) > 0
    for batch in range(4, 8):
        assert verify(query.url, batch).problems == ()


def merging_store(url: str) -> StoreDirectory:
    merged: dict[str, MergedFiles] = {}
    return StoreDirectory(
        StoreId(0, 0),
        url,
        StorageOptions(compression=None),
        merged_of=lambda files, directory: merged.setdefault(directory, MergedFiles(files, directory)),
    )


def test_large_metadata_has_a_file_of_its_own(tmp_path: Path) -> None:
    store = merging_store(str(tmp_path / "state/0/0"))
    for version, size in ((1, 10), (2, 2 << 20)):
        attempt = f"{version:016x}"
        pending = begin_checkpoint(store, CheckpointName(version, attempt), attempt, named(), merge=True)
        pending.write(0, message({b"key": bytes(size)}))
        assert pending.publish(None, "0" * 16, None).merged is (version == 1)
    assert (tmp_path / f"state/0/0/chk-2_{2:016x}/_metadata").exists()
    assert load(store, CheckpointName(1, f"{1:016x}")) == {"default": {b"key": bytes(10)}}


def test_directory_of_a_merged_store_is_kept_on_object_stores() -> None:
    url = f"memory://{uuid.uuid4()}/state/0/0"
    store = merging_store(url)
    for version in (1, 2, 3):
        by = f"{version:016x}"
        name = CheckpointName(version, by)
        begin_checkpoint(store, name, by, named(), merge=version > 1).publish(None, None, None)
        store.publish_merged([])
    discard_versions(store, name, by, 3, 0)
    store.sweep_merged()
    files, directory = open_file_system(url)
    state_directory = directory.removesuffix("/0/0")
    paths = [status.path for status in files.list_files(state_directory)]
    remaining = {path.removeprefix(f"{state_directory}/") for path in paths}
    assert remaining == {"_merged/3-3-0", "_holds/horizon-0", "0/0/shared/kept"}
