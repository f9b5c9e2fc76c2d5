"""Locations of single checkpoints."""

from __future__ import annotations

from spark_statestore.checkpoint.files.base import FileSystem, join
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.storage.base import METADATA_FILE_NAME, CheckpointStorageLocation
from spark_statestore.checkpoint.storage.references import CheckpointStorageLocationReference
from spark_statestore.checkpoint.streams.filesystem import FsCheckpointStreamFactory
from spark_statestore.checkpoint.streams.memory import MemCheckpointStreamFactory
from spark_statestore.checkpoint.streams.metadata import (
    FsCheckpointMetadataOutputStream,
    MemoryCheckpointMetadataOutputStream,
)

__all__ = [
    "FsCheckpointStorageLocation",
    "NonPersistentMetadataCheckpointStorageLocation",
    "PersistentMetadataCheckpointStorageLocation",
]


class _FileMetadataLocation(CheckpointStorageLocation):
    """A checkpoint whose metadata is a file in a directory of its own."""

    files: FileSystem
    checkpoint_directory: str
    _look_first: bool

    def create_metadata_output_stream(self) -> FsCheckpointMetadataOutputStream:
        return FsCheckpointMetadataOutputStream(
            self.files,
            join(self.checkpoint_directory, METADATA_FILE_NAME),
            self.checkpoint_directory,
            look_first=self._look_first,
        )

    def dispose_on_failure(self) -> None:
        with failing_to("remove the directory", self.files, self.checkpoint_directory):
            self.files.delete_directory(self.checkpoint_directory, recursive=True)


class FsCheckpointStorageLocation(FsCheckpointStreamFactory, _FileMetadataLocation):
    """A checkpoint in files.

    Parameters
    ----------
    files, checkpoint_directory, shared_state_directory, file_state_threshold, write_buffer_size, name_prefix
        See `FsCheckpointStreamFactory`.
    reference
        Names this place.
    look_first
        See `FsCheckpointMetadataOutputStream`.
    """

    def __init__(
        self,
        files: FileSystem,
        checkpoint_directory: str,
        shared_state_directory: str,
        file_state_threshold: int,
        write_buffer_size: int,
        name_prefix: str = "",
        *,
        reference: CheckpointStorageLocationReference,
        look_first: bool = True,
    ) -> None:
        super().__init__(
            files,
            checkpoint_directory,
            shared_state_directory,
            file_state_threshold,
            write_buffer_size,
            name_prefix,
        )
        self._reference = reference
        self._look_first = look_first

    @property
    def location_reference(self) -> CheckpointStorageLocationReference:
        return self._reference


class PersistentMetadataCheckpointStorageLocation(MemCheckpointStreamFactory, _FileMetadataLocation):
    """A checkpoint whose state is inside its metadata, and whose metadata is a file.

    Parameters
    ----------
    files
        The file system.
    checkpoint_directory
        Directory of the metadata.
    max_state_size
        The most bytes of one state.
    look_first
        See `FsCheckpointMetadataOutputStream`.
    """

    def __init__(
        self,
        files: FileSystem,
        checkpoint_directory: str,
        max_state_size: int,
        *,
        look_first: bool = True,
    ) -> None:
        super().__init__(max_state_size)
        self.files = files
        self.checkpoint_directory = checkpoint_directory
        self._look_first = look_first


class NonPersistentMetadataCheckpointStorageLocation(MemCheckpointStreamFactory, CheckpointStorageLocation):
    """A checkpoint whose state and metadata are in the handle that comes back, and nowhere else."""

    def create_metadata_output_stream(self) -> MemoryCheckpointMetadataOutputStream:
        return MemoryCheckpointMetadataOutputStream()

    def dispose_on_failure(self) -> None:
        """Nothing to do: nothing was written anywhere."""
