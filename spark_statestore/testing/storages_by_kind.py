"""What holds for storage in files, and for storage in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_statestore.checkpoint.files import FileSystem, join, open_file_system, parent_of
from spark_statestore.checkpoint.storage import (
    CheckpointStorageLocationReference,
    FsCheckpointStorage,
    FsCheckpointStorageLocation,
    MemoryBackendCheckpointStorage,
    decode_path_from_reference,
    encode_path_as_reference,
)
from spark_statestore.checkpoint.streams import CheckpointedStateScope
from spark_statestore.options import MAX_FILE_STATE_THRESHOLD
from spark_statestore.state.handles import ByteStreamStateHandle, FileStateHandle
from spark_statestore.testing.storages import CheckpointStorageTests

__all__ = ["FsCheckpointStorageTests", "MemoryCheckpointStorageTests"]

DEFAULT = CheckpointStorageLocationReference.default()


class FsCheckpointStorageTests(CheckpointStorageTests):
    """`CheckpointStorageTests` for `FsCheckpointStorage` on some file system."""

    def storage_of(
        self,
        files: FileSystem,
        directory: str,
        *,
        job_id: str | None = None,
        default_savepoint_directory: str | None = None,
    ) -> FsCheckpointStorage:
        return FsCheckpointStorage(
            files,
            directory,
            1000,
            4096,
            job_id=job_id,
            default_savepoint_directory=default_savepoint_directory,
            open_files=opens(files),
        )

    def test_state_goes_to_the_directory_of_its_scope(
        self, storage: FsCheckpointStorage, stored: Callable[[], list[str]]
    ) -> None:
        location = storage.initialize_location_for_checkpoint(7)
        self.write(location, bytes(50_000), CheckpointedStateScope.EXCLUSIVE)
        self.write(location, bytes(50_000), CheckpointedStateScope.SHARED)
        with storage.create_task_owned_state_stream() as out:
            out.write(bytes(50_000))
            owned = out.close_and_get_handle()
        self.publish(location)
        assert [parent_of(name) for name in stored()] == [
            "job/chk-7",
            "job/chk-7",
            "job/shared",
            "job/taskowned",
        ]
        assert type(owned) is FileStateHandle
        with storage.create_task_owned_state_stream() as out:
            out.write(b"small")
            assert isinstance(out.close_and_get_handle(), ByteStreamStateHandle)

    def test_base_locations_are_made_when_asked_for(self, files: FileSystem, directory: str) -> None:
        if not self.has_directories:
            pytest.skip("there is nothing to make")
        storage = self.storage_of(files, join(directory, "job"))
        for _ in range(2):
            storage.initialize_base_locations_for_checkpoint()
            for name in ("shared", "taskowned"):
                assert files.is_directory(join(directory, "job", name))
        storage.resolve_checkpoint_storage_location(1, DEFAULT)
        assert not files.exists(join(directory, "job", "chk-1"))
        for _ in range(2):
            storage.initialize_location_for_checkpoint(1)
        assert files.is_directory(join(directory, "job", "chk-1"))

    def test_a_savepoints_reference_names_its_place(
        self, storage: FsCheckpointStorage, files: FileSystem, directory: str
    ) -> None:
        location = storage.initialize_location_for_savepoint(1, files.url(join(directory, "a b", "ä€")))
        assert isinstance(location, FsCheckpointStorageLocation)
        url = decode_path_from_reference(location.location_reference)
        assert url == files.url(location.checkpoint_directory)
        worker = storage.resolve_checkpoint_storage_location(99, location.location_reference)
        for scope in CheckpointedStateScope:
            handle = self.write(worker, bytes(50_000), scope)
            assert isinstance(handle, FileStateHandle)
            assert parent_of(handle.path) == location.checkpoint_directory

    def test_a_reference_that_names_no_place_is_refused(self, storage: FsCheckpointStorage) -> None:
        for encoded in (b"\x05", bytes([0x05, 0x5F, 0x3F, 0x18]), b"somewhere else"):
            with pytest.raises(ValueError, match="reference"):
                storage.resolve_checkpoint_storage_location(1, CheckpointStorageLocationReference(encoded))

    def test_a_reference_may_lead_to_another_file_system(self, files: FileSystem, directory: str) -> None:
        # The storage's own file system does not decide: the reference's does.
        storage = FsCheckpointStorage(files, join(directory, "job"), 0)
        worker = storage.resolve_checkpoint_storage_location(1, encode_path_as_reference("file:///savepoint"))
        assert worker.files is open_file_system("file:///savepoint")[0]
        assert worker.checkpoint_directory == worker.shared_state_directory == "/savepoint"

    def test_a_size_out_of_its_range_is_refused_at_once(self, files: FileSystem, directory: str) -> None:
        with pytest.raises(ValueError, match="-1 bytes"):
            FsCheckpointStorage(files, directory, -1)
        with pytest.raises(ValueError, match="-1 bytes"):
            FsCheckpointStorage(files, directory, 0, -1)
        with pytest.raises(ValueError, match=f"{MAX_FILE_STATE_THRESHOLD + 1} bytes"):
            FsCheckpointStorage(files, directory, MAX_FILE_STATE_THRESHOLD + 1)


class MemoryCheckpointStorageTests(CheckpointStorageTests):
    """`CheckpointStorageTests` for `MemoryBackendCheckpointStorage`; `keeps_metadata` gives it a directory."""

    def storage_of(
        self,
        files: FileSystem,
        directory: str,
        *,
        job_id: str | None = None,
        default_savepoint_directory: str | None = None,
    ) -> MemoryBackendCheckpointStorage:
        return MemoryBackendCheckpointStorage(
            files if self.keeps_metadata else None,
            directory,
            100_000,
            job_id=job_id,
            default_savepoint_directory=default_savepoint_directory,
            open_files=opens(files),
        )

    def test_all_state_is_in_its_handle(
        self, storage: MemoryBackendCheckpointStorage, files: FileSystem, directory: str
    ) -> None:
        savepoint = storage.initialize_location_for_savepoint(1, files.url(join(directory, "savepoints")))
        for factory in (
            storage.initialize_location_for_checkpoint(1),
            savepoint,
            storage.resolve_checkpoint_storage_location(1, savepoint.location_reference),
        ):
            for scope in CheckpointedStateScope:
                assert isinstance(self.write(factory, bytes(50_000), scope), ByteStreamStateHandle)
        with storage.create_task_owned_state_stream() as out:
            out.write(bytes(50_000))
            assert isinstance(out.close_and_get_handle(), ByteStreamStateHandle)

    def test_every_reference_is_the_default_one(
        self, storage: MemoryBackendCheckpointStorage, files: FileSystem, directory: str
    ) -> None:
        savepoint = storage.initialize_location_for_savepoint(1, files.url(join(directory, "savepoints")))
        assert savepoint.location_reference.is_default_reference
        # It makes no difference either: no state has a place.
        for reference in (DEFAULT, encode_path_as_reference("nowhere://at/all")):
            assert storage.resolve_checkpoint_storage_location(1, reference).max_state_size == 100_000

    def test_only_a_checkpoint_of_its_own_makes_a_directory(
        self, storage: MemoryBackendCheckpointStorage, files: FileSystem, directory: str
    ) -> None:
        assert not files.exists(join(directory, "job"))
        storage.initialize_location_for_checkpoint(4)
        if self.has_directories:
            assert files.exists(join(directory, "job", "chk-4")) == self.keeps_metadata
        assert not files.exists(join(directory, "job", "shared"))
        assert not files.exists(join(directory, "job", "taskowned"))

    def test_a_size_that_holds_nothing_is_refused(self, files: FileSystem, directory: str) -> None:
        for size in (0, -1):
            with pytest.raises(ValueError, match="must be more than 0"):
                MemoryBackendCheckpointStorage(files, directory, size)

    def test_it_says_what_it_is(self, storage: MemoryBackendCheckpointStorage, directory: str) -> None:
        assert str(storage).startswith("MemoryBackendCheckpointStorage {")
        for part in (join(directory, "job"), "maxStateSize=100000"):
            assert part in str(storage)


def opens(files: FileSystem) -> Callable[[str], tuple[FileSystem, str]]:
    """Opens URLs of one file system as that one, and any other URL as always."""
    start = files.url("")

    def open_url(url: str) -> tuple[FileSystem, str]:
        if url.startswith(start):
            return files, url[len(start) :]
        return open_file_system(url)

    return open_url
