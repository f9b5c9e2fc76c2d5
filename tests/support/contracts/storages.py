"""Contract of checkpoint storages."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from spark_statestore.errors import CheckpointExistsError, CheckpointIOError, CheckpointNotFoundError
from spark_statestore.files import FileSystem, join, parent_of
from spark_statestore.storage import (
    METADATA_FILE_NAME,
    CheckpointName,
    CheckpointStorage,
    CheckpointStorageLocation,
    CheckpointStorageLocationReference,
    CompletedCheckpointStorageLocation,
    NonPersistentCompletedCheckpointStorageLocation,
)
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.stream_handles import StreamStateHandle
from spark_statestore.storage.streams import CheckpointedStateScope, CheckpointStreamFactory
from tests.support.contracts.on_files import OnFiles

__all__ = ["DEFAULT", "CheckpointStorageTests"]

DEFAULT = CheckpointStorageLocationReference.default()


class CheckpointStorageTests(OnFiles):
    """The contract of `CheckpointStorage`.

    Subclasses override the fixtures ``files`` and ``directory`` and the method `storage_of`.
    """

    keeps_metadata = True
    """Metadata is published in a file."""

    has_directories = True
    """The file system has directories without files in them."""

    def storage_of(self, files: FileSystem, directory: str) -> CheckpointStorage:
        """Return a storage whose job has this directory."""
        raise NotImplementedError

    @pytest.fixture
    def storage(self, files: FileSystem, directory: str) -> CheckpointStorage:
        """Return a storage whose base locations exist."""
        storage = self.storage_of(files, join(directory, "job"))
        storage.initialize_base_locations_for_checkpoint()
        return storage

    @staticmethod
    def write(
        factory: CheckpointStreamFactory,
        data: bytes,
        scope: CheckpointedStateScope = CheckpointedStateScope.EXCLUSIVE,
    ) -> StreamStateHandle:
        with factory.create_checkpoint_state_output_stream(scope) as out:
            out.write(data)
            handle = out.close_and_get_handle()
        assert handle is not None
        return handle

    @staticmethod
    def complete(
        location: CheckpointStorageLocation, data: bytes = b"metadata"
    ) -> CompletedCheckpointStorageLocation:
        """Publish the metadata of a checkpoint and return its location."""
        with location.create_metadata_output_stream() as out:
            out.write(data)
            return out.close_and_finalize_checkpoint()

    @classmethod
    def publish(cls, location: CheckpointStorageLocation, data: bytes = b"metadata") -> StreamStateHandle:
        """Publish the metadata of a checkpoint and return its handle."""
        return cls.complete(location, data).metadata_handle

    def test_metadata_is_readable_once_published(
        self, storage: CheckpointStorage, files: FileSystem, directory: str
    ) -> None:
        location = storage.initialize_location_for_checkpoint(3)
        with location.create_metadata_output_stream() as out:
            out.write(b"meta")
            out.write(bytearray(b"da"))
            out.write(memoryview(b"ta"))
            assert out.get_pos() == 8
            handle = out.close_and_finalize_checkpoint().metadata_handle
        assert self.content(handle) == b"metadata"
        assert handle.state_size == 8
        path = join(directory, "job", "chk-3", METADATA_FILE_NAME)
        assert files.exists(path) == self.keeps_metadata
        if self.keeps_metadata:
            assert files.read(path) == b"metadata"
            assert handle.stream_state_handle_id == files.url(path)

    def test_resolved_location_writes_to_the_initialized_one(self, storage: CheckpointStorage) -> None:
        location = storage.initialize_location_for_checkpoint(1)
        resolved = storage.resolve_checkpoint_storage_location(1, location.location_reference)
        for scope, size in itertools.product(CheckpointedStateScope, (1, 50_000)):
            handle, resolved_handle = (
                self.write(place, b"s" * size, scope) for place in (location, resolved)
            )
            assert self.content(handle) == self.content(resolved_handle) == b"s" * size
            if isinstance(handle, FileStateHandle):
                assert isinstance(resolved_handle, FileStateHandle)
                assert parent_of(handle.path) == parent_of(resolved_handle.path)
        assert self.content(self.publish(location, b"")) == b""

    def test_metadata_is_invisible_until_published(
        self, storage: CheckpointStorage, stored: Callable[[], list[str]]
    ) -> None:
        location = storage.initialize_location_for_checkpoint(1)
        with location.create_metadata_output_stream() as out:
            out.write(bytes(100_000))
            assert stored() == []
            out.close_and_finalize_checkpoint()
        assert len(stored()) == (1 if self.keeps_metadata else 0)

    def test_abandoned_metadata_leaves_only_state(
        self, storage: CheckpointStorage, stored: Callable[[], list[str]]
    ) -> None:
        location = storage.initialize_location_for_checkpoint(1)
        states = [self.write(location, bytes(50_000), scope) for scope in CheckpointedStateScope]
        before = stored()
        with location.create_metadata_output_stream() as out:
            out.write(b"metadata")
        out.close()
        assert stored() == before
        assert [self.content(state) for state in states] == [bytes(50_000)] * len(states)
        with pytest.raises(CheckpointIOError, match="closed"):
            out.close_and_finalize_checkpoint()
        with pytest.raises(CheckpointIOError, match="closed"):
            out.write(b"more")
        # An abandoned attempt does not block another one.
        assert self.content(self.publish(location, b"other")) == b"other"

    def test_metadata_is_published_once(
        self, storage: CheckpointStorage, stored: Callable[[], list[str]]
    ) -> None:
        out = storage.initialize_location_for_checkpoint(1).create_metadata_output_stream()
        out.write(b"metadata")
        handle = out.close_and_finalize_checkpoint().metadata_handle
        before = stored()
        out.close()
        for _ in range(2):
            with pytest.raises(CheckpointIOError, match="closed"):
                out.close_and_finalize_checkpoint()
        with pytest.raises(CheckpointIOError, match="closed"):
            out.write(b"more")
        assert stored() == before
        assert self.content(handle) == b"metadata"

    def test_published_metadata_is_never_replaced(self, storage: CheckpointStorage) -> None:
        if not self.keeps_metadata:
            pytest.skip("metadata is in no file")
        location = storage.initialize_location_for_checkpoint(1)
        # Both begin before there is one.
        late = location.create_metadata_output_stream()
        handle = self.publish(location, b"first")
        late.write(b"late")
        with pytest.raises(CheckpointExistsError, match="never replaced") as raised:
            late.close_and_finalize_checkpoint()
        assert handle.stream_state_handle_id in str(raised.value)
        with pytest.raises(CheckpointExistsError, match="never replaced"):
            self.publish(storage.initialize_location_for_checkpoint(1), b"other")
        assert self.content(handle) == b"first"

    def test_pointer_leads_to_the_completed_checkpoint(
        self, storage: CheckpointStorage, files: FileSystem, directory: str
    ) -> None:
        completed = self.complete(storage.initialize_location_for_checkpoint(1))
        pointer = completed.external_pointer
        if not self.keeps_metadata:
            assert isinstance(completed, NonPersistentCompletedCheckpointStorageLocation)
            with pytest.raises(CheckpointNotFoundError, match="in memory"):
                storage.resolve_checkpoint(pointer)
            completed.dispose_storage_location()
            assert self.content(completed.metadata_handle) == b"metadata"
            return
        assert pointer == files.url(join(directory, "job", "chk-1"))
        for form in (pointer, f"{pointer}/", f"{pointer}/{METADATA_FILE_NAME}"):
            resolved = storage.resolve_checkpoint(form)
            assert resolved.external_pointer == pointer
            assert resolved.metadata_handle == completed.metadata_handle
            assert resolved.metadata_handle.state_size == completed.metadata_handle.state_size == 8
        missing = files.url(join(directory, "job", "chk-2"))
        with pytest.raises(CheckpointNotFoundError, match="no checkpoint at") as raised:
            storage.resolve_checkpoint(missing)
        assert missing in str(raised.value)

    def test_disposal_leaves_files_of_others(
        self, storage: CheckpointStorage, files: FileSystem, stored: Callable[[], list[str]]
    ) -> None:
        completed = self.complete(storage.initialize_location_for_checkpoint(1))
        if not isinstance(handle := completed.metadata_handle, FileStateHandle):
            pytest.skip("metadata is in no file")
        chk = parent_of(handle.path)
        files.create(join(chk, "notes"), b"mine")
        completed.metadata_handle.discard_state()
        if self.has_directories:
            with pytest.raises(CheckpointIOError, match=r"chk-1 is not removed, as it has other files"):
                completed.dispose_storage_location()
        assert stored() == ["job/chk-1/notes"]
        files.delete(join(chk, "notes"))
        for _ in range(2):
            completed.dispose_storage_location()
        assert not files.exists(chk)
        with pytest.raises(CheckpointNotFoundError):
            storage.resolve_checkpoint(completed.external_pointer)

    def test_attempts_with_ids_are_separate_checkpoints(self, storage: CheckpointStorage) -> None:
        names = [CheckpointName(1), CheckpointName(1, "a"), CheckpointName(1, "b"), CheckpointName(10)]
        handles = [
            self.publish(storage.initialize_location_for_checkpoint(name), str(name).encode())
            for name in names
        ]
        assert [self.content(handle) for handle in handles] == [str(name).encode() for name in names]

    def test_negative_checkpoint_id_is_refused(self, storage: CheckpointStorage) -> None:
        with pytest.raises(ValueError, match="negative checkpoint id: -1"):
            storage.initialize_location_for_checkpoint(-1)
        with pytest.raises(ValueError, match="negative checkpoint id: -1"):
            storage.resolve_checkpoint_storage_location(-1, DEFAULT)
        assert self.content(self.publish(storage.initialize_location_for_checkpoint(0)))

    def test_jobs_in_one_directory_are_separate(self, files: FileSystem, directory: str) -> None:
        handles = []
        for job in (b"one", b"two"):
            storage = self.storage_of(files, join(directory, job.decode()))
            storage.initialize_base_locations_for_checkpoint()
            location = storage.initialize_location_for_checkpoint(177)
            handles += [self.publish(location, job), self.write(location, job * 20_000)]
        assert [self.content(handle) for handle in handles] == [
            b"one",
            b"one" * 20_000,
            b"two",
            b"two" * 20_000,
        ]

    def test_base_locations_can_be_initialized_again(self, storage: CheckpointStorage) -> None:
        handle = self.write(
            storage.initialize_location_for_checkpoint(1), bytes(50_000), CheckpointedStateScope.SHARED
        )
        storage.initialize_base_locations_for_checkpoint()
        assert self.content(handle) == bytes(50_000)

    def test_resolving_makes_no_directory(self, files: FileSystem, directory: str) -> None:
        self.storage_of(files, join(directory, "job")).resolve_checkpoint_storage_location(1, DEFAULT)
        assert not files.exists(join(directory, "job"))
