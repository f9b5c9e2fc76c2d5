"""Locations of single checkpoints."""

from __future__ import annotations

from spark_statestore.checkpoint.files.base import FileSystem, join
from spark_statestore.checkpoint.storage.base import (
    METADATA_FILE_NAME,
    NOT_EXTERNALLY_ADDRESSABLE,
    CheckpointStorageLocation,
    CompletedCheckpointStorageLocation,
)
from spark_statestore.checkpoint.streams.base import CheckpointMetadataOutputStream, CheckpointStreamFactory
from spark_statestore.checkpoint.streams.filesystem import (
    FsCheckpointMetadataOutputStream,
    FsCheckpointStreamFactory,
)
from spark_statestore.checkpoint.streams.memory import MemCheckpointStreamFactory
from spark_statestore.state.handles.base import StreamStateHandle

__all__ = [
    "FsCheckpointStorageLocation",
    "FsCompletedCheckpointStorageLocation",
    "NonPersistentMetadataCheckpointStorageLocation",
    "PersistentMetadataCheckpointStorageLocation",
]


class FsCompletedCheckpointStorageLocation(CompletedCheckpointStorageLocation):
    """A checkpoint whose metadata is a file.

    Parameters
    ----------
    files
        The file system.
    exclusive_directory
        The checkpoint's directory.
    metadata_handle
        The metadata file.
    external_pointer
        The directory's URL.
    """

    def __init__(
        self,
        files: FileSystem,
        exclusive_directory: str,
        metadata_handle: StreamStateHandle,
        external_pointer: str,
    ) -> None:
        self._files = files
        self._directory = exclusive_directory
        self._metadata_handle = metadata_handle
        self._pointer = external_pointer

    @property
    def external_pointer(self) -> str:
        return self._pointer

    @property
    def metadata_handle(self) -> StreamStateHandle:
        return self._metadata_handle

    def dispose_storage_location(self) -> None:
        self._files.delete_directory(self._directory)


class _FileMetadataLocation(CheckpointStorageLocation):
    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory

    def create_metadata_output_stream(self) -> CheckpointMetadataOutputStream:
        return FsCheckpointMetadataOutputStream(
            self._files, join(self._directory, METADATA_FILE_NAME), self._directory
        )

    def dispose_on_failure(self) -> None:
        self._files.delete_directory(self._directory, recursive=True)


class FsCheckpointStorageLocation(_FileMetadataLocation):
    """A checkpoint in files.

    Parameters
    ----------
    files
        The file system.
    directory
        The checkpoint's directory.
    factory
        Opens its streams.
    """

    def __init__(self, files: FileSystem, directory: str, factory: FsCheckpointStreamFactory) -> None:
        super().__init__(files, directory)
        self._factory = factory

    def stream_factory(self) -> CheckpointStreamFactory:
        return self._factory


class PersistentMetadataCheckpointStorageLocation(_FileMetadataLocation):
    """A checkpoint whose state is inside its metadata, and whose metadata is a file."""

    def __init__(self, files: FileSystem, directory: str, max_state_size: int) -> None:
        super().__init__(files, directory)
        self._factory = MemCheckpointStreamFactory(max_state_size)

    def stream_factory(self) -> CheckpointStreamFactory:
        return self._factory


class NonPersistentMetadataCheckpointStorageLocation(PersistentMetadataCheckpointStorageLocation):
    """A checkpoint that is kept, state and metadata, in the memory of this process alone."""

    def create_metadata_output_stream(self) -> CheckpointMetadataOutputStream:
        return _UnaddressableMetadataOutputStream(
            self._files, join(self._directory, METADATA_FILE_NAME), self._directory
        )


class _UnaddressableMetadataOutputStream(FsCheckpointMetadataOutputStream):
    def close_and_finalize_checkpoint(self) -> CompletedCheckpointStorageLocation:
        completed = super().close_and_finalize_checkpoint()
        return FsCompletedCheckpointStorageLocation(
            self._files, self._directory, completed.metadata_handle, NOT_EXTERNALLY_ADDRESSABLE
        )
