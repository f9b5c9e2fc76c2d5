"""Contracts of checkpoint storage in files and in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_statestore.files import FileSystem, join, parent_of
from spark_statestore.options import MAX_FILE_STATE_THRESHOLD
from spark_statestore.storage import (
    CheckpointStorageLocationReference,
    FsCheckpointStorage,
    MemoryBackendCheckpointStorage,
    decode_path_from_reference,
    encode_path_as_reference,
)
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from spark_statestore.storage.streams import CheckpointedStateScope
from tests.support.contracts.storages import DEFAULT, CheckpointStorageTests

__all__ = ["FsCheckpointStorageTests", "MemoryCheckpointStorageTests"]


class FsCheckpointStorageTests(CheckpointStorageTests):
    """`CheckpointStorageTests` for `FsCheckpointStorage` on some file system."""

    def storage_of(self, files: FileSystem, directory: str) -> FsCheckpointStorage:
        return FsCheckpointStorage(files, directory, 1000, 4096)

    def test_state_goes_to_the_directory_of_its_scope(
        self, storage: FsCheckpointStorage, stored: Callable[[], list[str]]
    ) -> None:
        location = storage.initialize_location_for_checkpoint(7)
        self.write(location, bytes(50_000), CheckpointedStateScope.EXCLUSIVE)
        self.write(location, bytes(50_000), CheckpointedStateScope.SHARED)
        self.publish(location)
        assert [parent_of(name) for name in stored()] == [
            "job/chk-7",
            "job/chk-7",
            "job/shared",
        ]

    def test_reference_to_a_path_has_all_state_in_that_directory(
        self,
        storage: FsCheckpointStorage,
        files: FileSystem,
        directory: str,
        stored: Callable[[], list[str]],
    ) -> None:
        assert storage.initialize_location_for_checkpoint(7).location_reference.is_default_reference
        elsewhere = files.url(join(directory, "elsewhere"))
        files.make_directory(join(directory, "elsewhere"))
        location = storage.resolve_checkpoint_storage_location(7, encode_path_as_reference(elsewhere))
        assert decode_path_from_reference(location.location_reference) == elsewhere
        for scope in CheckpointedStateScope:
            self.write(location, bytes(50_000), scope)
        completed = self.complete(location)
        assert completed.external_pointer == elsewhere
        assert storage.resolve_checkpoint(elsewhere).metadata_handle == completed.metadata_handle
        assert [parent_of(name) for name in stored()] == ["elsewhere"] * 3
        with pytest.raises(ValueError, match="another storage"):
            storage.resolve_checkpoint_storage_location(7, CheckpointStorageLocationReference(b"other"))

    def test_initialize_makes_the_directories(self, files: FileSystem, directory: str) -> None:
        if not self.has_directories:
            pytest.skip("the file system has no directories")
        storage = self.storage_of(files, join(directory, "job"))
        for _ in range(2):
            storage.initialize_base_locations_for_checkpoint()
            assert files.is_directory(join(directory, "job", "shared"))
        storage.resolve_checkpoint_storage_location(1, DEFAULT)
        assert not files.exists(join(directory, "job", "chk-1"))
        for _ in range(2):
            storage.initialize_location_for_checkpoint(1)
        assert files.is_directory(join(directory, "job", "chk-1"))

    def test_size_out_of_range_is_refused_at_construction(self, files: FileSystem, directory: str) -> None:
        with pytest.raises(ValueError, match="-1 bytes"):
            FsCheckpointStorage(files, directory, -1)
        with pytest.raises(ValueError, match="-1 bytes"):
            FsCheckpointStorage(files, directory, 0, -1)
        with pytest.raises(ValueError, match=f"{MAX_FILE_STATE_THRESHOLD + 1} bytes"):
            FsCheckpointStorage(files, directory, MAX_FILE_STATE_THRESHOLD + 1)


class MemoryCheckpointStorageTests(CheckpointStorageTests):
    """`CheckpointStorageTests` for `MemoryBackendCheckpointStorage`; `keeps_metadata` adds a directory."""

    def storage_of(self, files: FileSystem, directory: str) -> MemoryBackendCheckpointStorage:
        return MemoryBackendCheckpointStorage(files if self.keeps_metadata else None, directory, 100_000)

    def test_state_is_in_its_handle(
        self, storage: MemoryBackendCheckpointStorage, stored: Callable[[], list[str]]
    ) -> None:
        for factory in (
            storage.initialize_location_for_checkpoint(1),
            storage.resolve_checkpoint_storage_location(1, DEFAULT),
        ):
            assert factory.max_state_size == 100_000
            for scope in CheckpointedStateScope:
                assert isinstance(self.write(factory, bytes(50_000), scope), ByteStreamStateHandle)
        assert stored() == []

    def test_only_initialize_location_makes_a_directory(
        self, storage: MemoryBackendCheckpointStorage, files: FileSystem, directory: str
    ) -> None:
        assert not files.exists(join(directory, "job"))
        storage.initialize_location_for_checkpoint(4)
        if self.has_directories:
            assert files.exists(join(directory, "job", "chk-4")) == self.keeps_metadata
        assert not files.exists(join(directory, "job", "shared"))

    def test_max_state_size_must_be_positive(self, files: FileSystem, directory: str) -> None:
        for size in (0, -1):
            with pytest.raises(ValueError, match="must be more than 0"):
                MemoryBackendCheckpointStorage(files, directory, size)
