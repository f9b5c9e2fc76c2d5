"""Commits, loads and cleanups of a store, one situation at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ForeignCheckpointError,
    StateLostError,
    StateTooLargeError,
)
from spark_statestore.files import FileStatus, MemoryFileSystem
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.commit import begin_checkpoint, begin_snapshot
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId
from tests.support.trees import files_below
from tests.unit.store.stores import attempt_id, commit, message, named, open_store, rows_of, snapshot

LARGE = {b"large": b"x" * 2000}


def v1(version: int) -> CheckpointName:
    return CheckpointName(version)


def grow(store: StoreDirectory, versions: int, by: str | None = None) -> IncrementalStateHandle:
    """Versions 1 to n, each with a row of its own, and the first one in a shared file."""
    handle = None
    for version in range(1, versions + 1):
        put = {b"k%d" % version: b"v"} | (LARGE if version == 1 else {})
        handle = commit(store, v1(version), put, parent=handle, by=by).handle
    assert handle is not None
    return handle


def shared(directory: Path) -> list[str]:
    return [path.name for path in (directory / "shared").iterdir()]


def test_cleanup_keeps_streams_of_a_version_another_instance_replaced(tmp_path: Path) -> None:
    first, own_id = open_store(tmp_path), attempt_id()
    third = grow(first, 3, by=own_id)
    discard_versions(first, v1(3), own_id, 1, 0)
    base = snapshot(first, 3, {b"k1": b"v", b"k2": b"v", b"k3": b"v"} | LARGE)
    fourth = commit(first, v1(4), {b"k4": b"one"}, parent=third, base=base).handle
    # The batch runs again elsewhere, without that snapshot, and the next one here again.
    second = open_store(tmp_path)
    commit(second, v1(4), {b"k4": b"other"}, parent=second.load(v1(3)).handle)
    fifth = commit(first, v1(5), {b"k5": b"v"}, parent=fourth, by=own_id).handle
    commit(first, v1(6), {b"k6": b"v"}, parent=fifth)
    before = rows_of(open_store(tmp_path), v1(4))
    discard_versions(first, v1(5), own_id, 4, 0)
    assert rows_of(open_store(tmp_path), v1(4)) == before


def test_cleanup_keeps_streams_of_a_replaced_attempt_with_children(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    own_id = grow(store, 2)
    commit(open_store(tmp_path), v1(2), {b"all": b"v"})
    fresh = open_store(tmp_path)
    discard_versions(fresh, v1(2), fresh.load(v1(2)).attempt_id, 2, 0)
    commit(store, v1(3), {b"k3": b"v"}, parent=own_id)
    assert rows_of(open_store(tmp_path), v1(3)) == {b"k1": b"v", b"k2": b"v", b"k3": b"v"} | LARGE


def test_cleanup_discards_streams_of_an_expired_replaced_attempt(tmp_path: Path) -> None:
    store, own_id = open_store(tmp_path), attempt_id()
    handle = grow(store, 3, by=own_id)
    discard_versions(store, v1(3), own_id, 1, 0)
    commit(open_store(tmp_path), v1(4), LARGE)
    for version in (4, 5, 6):
        handle = commit(store, v1(version), {b"k%d" % version: b"v"}, parent=handle, by=own_id).handle
    assert len(list(tmp_path.glob("shared/4-*"))) == 1
    discard_versions(store, v1(6), own_id, 6, 0)
    assert list(tmp_path.glob("shared/4-*")) == []
    assert len(rows_of(open_store(tmp_path), v1(6))) == 7


def test_cleanup_of_a_replaced_instance_discards_nothing(tmp_path: Path) -> None:
    first, second, own_id = open_store(tmp_path), open_store(tmp_path), attempt_id()
    handle = grow(first, 4)
    commit(first, v1(5), {b"k5": b"one"}, parent=handle, by=own_id)
    commit(second, v1(5), {b"k5": b"other"}, parent=second.load(v1(4)).handle)
    before = files_below(tmp_path)
    assert discard_versions(first, v1(5), own_id, 5, 0) == 0
    assert files_below(tmp_path) == before


def test_commit_ignores_a_missing_snapshot(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    handle = grow(store, 2)
    base = snapshot(store, 2, {b"k1": b"v", b"k2": b"v"} | LARGE)
    base.entries[0].state.discard_state()
    chain = commit(store, v1(3), {b"k3": b"v"}, parent=handle, base=base).handle
    assert chain.base_version == 1
    assert rows_of(open_store(tmp_path), v1(3)) == {b"k1": b"v", b"k2": b"v", b"k3": b"v"} | LARGE


def test_full_commit_ignores_an_older_snapshot(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    grow(store, 2)
    base = snapshot(store, 2, {b"k1": b"v", b"k2": b"v"} | LARGE)
    whole = commit(store, v1(3), {b"all": b"v"}).handle
    chain = commit(store, v1(4), {b"k4": b"v"}, parent=whole, base=base).handle
    assert chain.base_version == 3
    assert rows_of(open_store(tmp_path), v1(4)) == {b"all": b"v", b"k4": b"v"}
    # As is one of the very version that the chain starts with.
    same = snapshot(store, 3, {b"all": b"v"})
    again = commit(store, v1(5), {b"k5": b"v"}, parent=chain, base=same).handle
    assert again.entries[0] == whole.entries[0]


def test_cleanup_discards_an_unused_snapshot(tmp_path: Path) -> None:
    store, by = open_store(tmp_path), attempt_id()
    grow(store, 2)
    base = snapshot(store, 2, {b"k1": b"v", b"k2": b"v"} | LARGE)
    whole = commit(store, v1(3), {b"all": b"v"}, by=by).handle
    # The first cleanup scans the directory; later ones rely on the index.
    discard_versions(store, v1(3), by, 1, 0)
    commit(store, v1(4), {b"k4": b"v"}, parent=whole, base=base, by=by)
    assert len(shared(tmp_path)) == 2
    discard_versions(store, v1(4), by, 3, 0)
    assert shared(tmp_path) == []


def test_cleanup_discards_orphans_of_a_repeated_commit(tmp_path: Path) -> None:
    store, by = open_store(tmp_path), attempt_id()
    grow(store, 1, by)
    discard_versions(store, v1(1), by, 1, 0)
    handle = commit(store, v1(2), LARGE, by=by).handle
    # The answer was lost.
    commit(store, v1(2), LARGE, by=by)
    commit(store, v1(3), {b"k": b"v"}, parent=handle, by=by)
    assert len(shared(tmp_path)) == 3
    discard_versions(store, v1(3), by, 3, 0)
    assert len(shared(tmp_path)) == 1
    assert rows_of(open_store(tmp_path), v1(3)) == {b"k": b"v"} | LARGE


def test_first_cleanup_discards_orphans_and_keeps_used_streams(tmp_path: Path) -> None:
    grow(open_store(tmp_path), 5)
    orphan = tmp_path / "shared" / "2-00000000-0000-0000-0000-000000000000"
    orphan.write_bytes(b"left by an attempt that never committed")
    # One that a batch which runs again might be writing right now.
    young = tmp_path / "shared" / "4-00000000-0000-0000-0000-000000000000"
    young.write_bytes(b"1")
    fresh = open_store(tmp_path)
    attempt_id = fresh.load(v1(5)).attempt_id
    # The orphan, and the metadata of version 1, whose changes are in a shared file.
    assert discard_versions(fresh, v1(5), attempt_id, 4, 0) == 2
    assert not orphan.exists()
    assert young.exists()
    assert len(rows_of(open_store(tmp_path), v1(4))) == 5


def test_cleanup_discards_a_version_whose_publication_lost_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, own_id = open_store(tmp_path), attempt_id()
    commit(store, v1(1), {b"a": b"1"}, by=own_id)
    discard_versions(store, v1(1), own_id, 1, 0)
    create = store.files.create_of_parts

    def create_without_answer(path: str, parts: list[bytes]) -> None:
        create(path, parts)
        raise OSError("no answer")

    monkeypatch.setattr(store.files, "create_of_parts", create_without_answer)
    with pytest.raises(CheckpointIOError, match="no answer"):
        commit(store, CheckpointName(2, attempt_id()), LARGE)
    monkeypatch.undo()
    commit(store, v1(3), {b"a": b"3"}, by=own_id)
    discard_versions(store, v1(3), own_id, 3, 0)
    assert files_below(tmp_path).keys() == {"chk-3/_metadata"}


def test_cleanup_keeps_files_of_others(tmp_path: Path) -> None:
    grow(open_store(tmp_path), 3)
    names = ("notes.txt", "shared/backup.tar", "_metadata/schema", "chk-x/_metadata", "chk--1/_metadata")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"mine")
    fresh = open_store(tmp_path)
    assert discard_versions(fresh, v1(3), fresh.load(v1(3)).attempt_id, 3, 0) > 0
    assert [(tmp_path / name).read_bytes() for name in names] == [b"mine"] * len(names)


def test_cleanup_discards_at_most_the_given_number_oldest_first(tmp_path: Path) -> None:
    store, own_id = open_store(tmp_path), attempt_id()
    for version in range(1, 6):
        commit(store, v1(version), {b"a": b"%d" % version}, by=own_id)
    discard_versions(store, v1(5), own_id, 5, 2)
    assert sorted(path.name for path in tmp_path.glob("chk-*")) == ["chk-3", "chk-4", "chk-5"]
    discard_versions(store, v1(5), own_id, 5, 2)
    assert sorted(path.name for path in tmp_path.glob("chk-*")) == ["chk-5"]


def test_expired_version_can_be_loaded_until_discarded(tmp_path: Path) -> None:
    store, own_id = open_store(tmp_path), attempt_id()
    grow(store, 2, by=own_id)
    for version in (3, 4):
        commit(store, v1(version), {b"all": b"v"}, by=own_id)
    discard_versions(store, v1(4), own_id, 1, 0)
    discard_versions(store, v1(4), own_id, 4, 1)
    assert not (tmp_path / "chk-1").exists()
    assert rows_of(open_store(tmp_path), v1(2)) == {b"k1": b"v", b"k2": b"v"} | LARGE


def test_cleanup_stops_at_a_damaged_retained_version(tmp_path: Path) -> None:
    grow(open_store(tmp_path), 4)
    damaged = tmp_path / "chk-3" / "_metadata"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    before = files_below(tmp_path)
    fresh = open_store(tmp_path)
    attempt_id = fresh.load(v1(4)).attempt_id
    # Every time, not only when it is found.
    for _ in range(2):
        with pytest.raises(CorruptCheckpointError, match="version 3"):
            discard_versions(fresh, v1(4), attempt_id, 3, 0)
        assert files_below(tmp_path) == before


def test_cleanup_is_unaffected_by_a_concurrent_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(open_store(tmp_path), 4)
    commit(open_store(tmp_path), v1(5), {b"all": b"v"})
    store = open_store(tmp_path)
    attempt_id = store.load(v1(5)).attempt_id
    listed, loaded = [], []
    list_files, read_file = store.files.list_files, store.files.read

    def list_in_order(path: str) -> list[FileStatus]:
        listed.extend(sorted(list_files(path), key=lambda status: status.path))
        return listed

    def load_meanwhile(path: str, start: int = 0, size: int | None = None) -> bytes:
        if "chk-5" in path and listed and not loaded:
            # As a task's thread would, after version 4 was looked at.
            loaded.append(path)
            store.load(v1(5))
        return read_file(path, start, size)

    monkeypatch.setattr(store.files, "list_files", list_in_order)
    monkeypatch.setattr(store.files, "read", load_meanwhile)
    discard_versions(store, v1(5), attempt_id, 4, 0)
    monkeypatch.undo()
    assert loaded
    assert len(rows_of(open_store(tmp_path), v1(4))) == 5
    # The index of the concurrent load is not complete yet.
    orphan = tmp_path / "shared" / "2-00000000-0000-0000-0000-000000000000"
    orphan.write_bytes(b"left by an attempt that never committed")
    assert discard_versions(store, v1(5), attempt_id, 4, 0) == 1
    assert not orphan.exists()


@pytest.mark.parametrize("with_id", [False, True])
def test_abandon_removes_everything_written(tmp_path: Path, with_id: bool) -> None:
    store, own_id = open_store(tmp_path), attempt_id()
    pending = begin_checkpoint(store, CheckpointName(1, own_id if with_id else None), own_id, named())
    pending.write(0, message(LARGE))
    pending.write(0, message({b"a": b"1"}))
    pending.abandon()
    assert files_below(tmp_path) == {}
    # A directory that the next attempt uses again may stay.
    assert [path.name for path in tmp_path.glob("chk-*")] == ([] if with_id else ["chk-1"])
    with pytest.raises(CheckpointNotFoundError, match="no version at all"):
        store.load(v1(1))


def test_load_error_of_a_missing_version_lists_the_existing_ones(tmp_path: Path) -> None:
    grow(open_store(tmp_path / "X"), 3)
    with pytest.raises(
        CheckpointNotFoundError, match=rf"operator 0, partition 3.* version 9 .*{tmp_path}.* 1 to 3"
    ):
        open_store(f"{tmp_path}/X/").load(v1(9))


def test_load_error_without_an_id_names_the_ids_of_the_version(tmp_path: Path) -> None:
    first_id, second_id = attempt_id(), attempt_id()
    for own_id in (first_id, second_id):
        commit(open_store(tmp_path), CheckpointName(1, own_id), {b"a": b"1"})
    with pytest.raises(CheckpointNotFoundError, match=r"1 .*requested without a checkpoint id") as raised:
        open_store(tmp_path).load(v1(1))
    assert ", ".join(sorted((first_id, second_id))) in str(raised.value)
    assert "checkpointFormatVersion back to 2" in str(raised.value)
    with pytest.raises(CheckpointNotFoundError, match=r"has the versions 1 to 1"):
        open_store(tmp_path).load(v1(2))


def test_load_error_with_an_id_names_a_version_without_one(tmp_path: Path) -> None:
    commit(open_store(tmp_path), v1(1), {b"a": b"1"})
    with pytest.raises(CheckpointNotFoundError, match=r"without one.*checkpointFormatVersion back to 1"):
        open_store(tmp_path).load(CheckpointName(1, attempt_id()))


@pytest.mark.parametrize("name", ["3.delta", "3.snapshot", "7_0a1b-2c.changelog", "12.zip"])
def test_load_error_names_files_of_another_provider(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"theirs")
    with pytest.raises(ForeignCheckpointError, match=r"providerClass") as raised:
        open_store(tmp_path).load(v1(3))
    assert name in str(raised.value)
    assert (tmp_path / name).read_bytes() == b"theirs"


def test_begin_error_of_an_unwritable_directory_names_the_user(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"a file is in the way")
    for begin in (
        lambda: commit(open_store(tmp_path / "state"), v1(1), {b"a": b"1"}),
        lambda: begin_snapshot(open_store(tmp_path / "state"), 1, named()),
    ):
        with pytest.raises(CheckpointIOError, match=r"uid \d+") as raised:
            begin()
        assert str(tmp_path / "state" / "chk-1") in str(raised.value)
        cause = raised.value.__cause__
        assert str(cause.__cause__ or cause) in str(raised.value)


def test_memory_storage_loads_from_the_drivers_objects() -> None:
    options = StorageOptions(storage="memory")
    store = open_store("/state", options)
    first = commit(store, v1(1), {b"a": b"1"})
    second = commit(store, v1(2), {b"b": b"2"}, parent=first.handle)
    driver_files = MemoryFileSystem()
    driver_files.create("/state/chk-1/_metadata", first.metadata)
    driver_files.create("/state/chk-2/_metadata", second.metadata)
    assert rows_of(open_store("/state", options, driver_files), v1(2)) == {b"a": b"1", b"b": b"2"}
    # The store itself keeps nothing.
    with pytest.raises(
        StateLostError,
        match=r"partition 3.* version 1 of /state .*on the driver of an application that has ended",
    ):
        store.load(v1(1))
    driver_files.create("/state/chk-3/_metadata", b"damaged")
    with pytest.raises(CorruptCheckpointError, match=r"partition 3.* version 3 of /state"):
        open_store("/state", options, driver_files).load(v1(3))


def test_memory_storage_error_of_an_expired_version_lists_the_range() -> None:
    store = StoreDirectory(
        StoreId(0, 3), "/state", StorageOptions(storage="memory"), MemoryFileSystem(), (5, 9)
    )
    with pytest.raises(CheckpointNotFoundError, match=r"has the versions 5 to 9.*minBatchesToRetain"):
        store.load(v1(1))


def test_memory_storage_refuses_a_state_beyond_its_bound() -> None:
    store = open_store("/state", StorageOptions(storage="memory", max_state_size=1000, compression=None))
    with pytest.raises(StateTooLargeError, match="maxStateSize=1000"):
        commit(store, v1(1), LARGE)
