"""Checkpoint storage in memory, with metadata in memory or in files."""

from __future__ import annotations

from spark_statestore.files import FileSystem, join
from spark_statestore.files.failures import failing_to
from spark_statestore.storage.checkpoint_storage import (
    CheckpointName,
    CheckpointStorage,
    CheckpointStorageLocation,
)
from spark_statestore.storage.completed_locations import (
    METADATA_FILE_NAME,
    FsCompletedCheckpointStorageLocation,
    resolve_checkpoint_pointer,
)
from spark_statestore.storage.location_reference import CheckpointStorageLocationReference
from spark_statestore.storage.memory_streams import MemCheckpointStreamFactory
from spark_statestore.storage.metadata_streams import (
    FsCheckpointMetadataOutputStream,
    MemoryCheckpointMetadataOutputStream,
)


class PersistentMetadataCheckpointStorageLocation(MemCheckpointStreamFactory, CheckpointStorageLocation):
    """The location of a checkpoint whose state is inside its metadata file."""

    location_reference = CheckpointStorageLocationReference.default()

    def __init__(self, files: FileSystem, checkpoint_directory: str, max_state_size: int) -> None:
        super().__init__(max_state_size)
        self._files = files
        self._directory = checkpoint_directory

    def create_metadata_output_stream(self) -> FsCheckpointMetadataOutputStream:
        return FsCheckpointMetadataOutputStream(self._files, join(self._directory, METADATA_FILE_NAME))


class NonPersistentMetadataCheckpointStorageLocation(MemCheckpointStreamFactory, CheckpointStorageLocation):
    """The location of a checkpoint whose state and metadata are in its handle alone."""

    location_reference = CheckpointStorageLocationReference.default()

    def create_metadata_output_stream(self) -> MemoryCheckpointMetadataOutputStream:
        return MemoryCheckpointMetadataOutputStream()


class MemoryBackendCheckpointStorage(CheckpointStorage):
    """Checkpoint storage that keeps state inside the metadata, up to a size.

    With metadata in files, a checkpoint is one file. Without, it is the handle that completing it returns.

    Parameters
    ----------
    files
        File system of the metadata; None to keep it in the handle.
    max_state_size
        Largest size of one state in bytes, more than 0.
    """

    def __init__(self, files: FileSystem | None, directory: str, max_state_size: int) -> None:
        if max_state_size <= 0:
            raise ValueError(f"the largest state is {max_state_size} bytes, but it must be more than 0")
        self._files = files
        self._directory = directory
        self._max_state_size = max_state_size

    def initialize_base_locations_for_checkpoint(self) -> None:
        """Do nothing: all state is inside the metadata."""

    def initialize_location_for_checkpoint(
        self, checkpoint: CheckpointName | int
    ) -> PersistentMetadataCheckpointStorageLocation | NonPersistentMetadataCheckpointStorageLocation:
        name = CheckpointName.from_name_or_number(checkpoint)
        if self._files is None:
            return NonPersistentMetadataCheckpointStorageLocation(self._max_state_size)
        directory = join(self._directory, name.directory)
        with failing_to("make the directory", self._files, directory):
            self._files.make_directory(directory)
        return PersistentMetadataCheckpointStorageLocation(self._files, directory, self._max_state_size)

    def resolve_checkpoint_storage_location(
        self, checkpoint: CheckpointName | int, reference: CheckpointStorageLocationReference
    ) -> MemCheckpointStreamFactory:
        # Inside the metadata, state needs no location.
        CheckpointName.from_name_or_number(checkpoint)
        return MemCheckpointStreamFactory(self._max_state_size)

    def resolve_checkpoint(self, pointer: str) -> FsCompletedCheckpointStorageLocation:
        return resolve_checkpoint_pointer(self._files, pointer)
