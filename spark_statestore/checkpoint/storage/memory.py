"""Checkpoints in memory, with metadata in memory or in files."""

from __future__ import annotations

from spark_statestore.checkpoint.files.base import FileSystem, join
from spark_statestore.checkpoint.storage.base import (
    METADATA_FILE_NAME,
    NOT_EXTERNALLY_ADDRESSABLE,
    CheckpointName,
    CheckpointStorage,
)
from spark_statestore.checkpoint.storage.locations import (
    FsCompletedCheckpointStorageLocation,
    NonPersistentMetadataCheckpointStorageLocation,
    PersistentMetadataCheckpointStorageLocation,
)
from spark_statestore.checkpoint.streams.memory import MemCheckpointStreamFactory
from spark_statestore.state.handles.file import FileStateHandle

__all__ = ["MemoryBackendCheckpointStorage"]


class MemoryBackendCheckpointStorage(CheckpointStorage):
    """Keeps state inside the metadata, bounded in size.

    With metadata in files that is storage like any other, of one object for each checkpoint. With
    a `MemoryFileSystem` the checkpoints live as long as the process.

    Parameters
    ----------
    files
        Where metadata goes.
    directory
        The store's directory there.
    max_state_size
        The most bytes that one state may take, more than 0.
    """

    def __init__(self, files: FileSystem, directory: str, max_state_size: int) -> None:
        if max_state_size <= 0:
            raise ValueError(f"the largest state is {max_state_size} bytes, but it must be more than 0")
        self.files = files
        self.directory = directory
        self.max_state_size = max_state_size

    @property
    def supports_highly_available_storage(self) -> bool:
        return self.files.keeps_files

    def initialize_base_locations_for_checkpoint(self) -> None:
        """Nothing to do: no state lies outside of the metadata."""

    def initialize_location_for_checkpoint(
        self, name: CheckpointName
    ) -> PersistentMetadataCheckpointStorageLocation:
        directory = join(self.directory, name.directory)
        self.files.make_directory(directory)
        if self.files.keeps_files:
            return PersistentMetadataCheckpointStorageLocation(self.files, directory, self.max_state_size)
        return NonPersistentMetadataCheckpointStorageLocation(self.files, directory, self.max_state_size)

    def resolve_checkpoint_storage_location(self, name: CheckpointName) -> MemCheckpointStreamFactory:
        return MemCheckpointStreamFactory(self.max_state_size)

    def resolve_checkpoint(self, name: CheckpointName) -> FsCompletedCheckpointStorageLocation:
        directory = join(self.directory, name.directory)
        return FsCompletedCheckpointStorageLocation(
            self.files,
            directory,
            FileStateHandle(self.files, join(directory, METADATA_FILE_NAME), -1),
            self.files.url(directory) if self.files.keeps_files else NOT_EXTERNALLY_ADDRESSABLE,
        )

    def __str__(self) -> str:
        return (
            f"MemoryBackendCheckpointStorage {{checkpointsDirectory={self.directory}, "
            f"fileSystem={self.files.scheme}, maxStateSize={self.max_state_size}}}"
        )
