"""Tests of checkpoint storages: the contracts on every file system, errors and names."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_statestore.errors import CheckpointIOError
from spark_statestore.files import LocalFileSystem
from spark_statestore.storage import CheckpointName, FsCheckpointStorage, MemoryBackendCheckpointStorage
from tests.support.contracts.storages_by_kind import FsCheckpointStorageTests, MemoryCheckpointStorageTests
from tests.unit.file_system_fixtures import (
    FsspecMemoryFiles,
    LocalFiles,
    ProcessMemoryFiles,
    SyncedLocalFiles,
)


class TestLocalStorage(LocalFiles, FsCheckpointStorageTests):
    pass


class TestSyncedStorage(SyncedLocalFiles, FsCheckpointStorageTests):
    pass


class TestFsspecMemoryStorage(FsspecMemoryFiles, FsCheckpointStorageTests):
    pass


class TestStorageOfThisProcess(ProcessMemoryFiles, FsCheckpointStorageTests):
    pass


class TestMemoryStorage(LocalFiles, MemoryCheckpointStorageTests):
    keeps_metadata = False


class TestMemoryStorageWithADirectory(LocalFiles, MemoryCheckpointStorageTests):
    pass


class TestMemoryStorageWithAnFsspecDirectory(FsspecMemoryFiles, MemoryCheckpointStorageTests):
    pass


class Forbidding(LocalFileSystem):
    """A file system that refuses to make directories."""

    def make_directory(self, path: str) -> None:
        raise PermissionError("not allowed")


def test_storage_errors_name_operation_and_path(tmp_path: Path) -> None:
    files, directory, chk = Forbidding(), str(tmp_path), f"{tmp_path}/chk-1"
    in_files = FsCheckpointStorage(files, directory, 0)
    in_memory = MemoryBackendCheckpointStorage(files, directory, 1)
    for attempt, what in [
        (in_files.initialize_base_locations_for_checkpoint, f"make the directory file://{directory}/shared"),
        (lambda: in_files.initialize_location_for_checkpoint(1), f"make the directory file://{chk}"),
        (lambda: in_memory.initialize_location_for_checkpoint(1), f"make the directory file://{chk}"),
    ]:
        with pytest.raises(CheckpointIOError, match=f"could not {what}: not allowed"):
            attempt()


def test_checkpoint_name_round_trip() -> None:
    for name in (
        CheckpointName(0),
        CheckpointName(7),
        CheckpointName(7, "0a"),
        CheckpointName(2**62, "x" * 64),
    ):
        assert CheckpointName.parse(name.directory) == name
        assert CheckpointName.of(name) is name
    assert CheckpointName.of(7) == CheckpointName(7)
    others = (
        "chk-",
        "chk--1",
        "chk-+1",
        "chk-x",
        "chk-1_ä/b",
        "shared",
        "chk-²",
        "chk-\u0663",
        "savepoint-1",
    )
    for directory in others:
        assert CheckpointName.parse(directory) is None
    for wrong in ("../..", "", "x" * 65):
        with pytest.raises(ValueError, match="letters and digits"):
            CheckpointName(1, wrong)
    assert [str(CheckpointName(7)), str(CheckpointName(7, "0a"))] == ["version 7", "version 7 (id 0a)"]
