"""Checkpoints in memory, with metadata in memory or in files."""

from __future__ import annotations

from spark_statestore.checkpoint.files import FileSystem, join, open_file_system
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.storage.abstract_fs import AbstractFsCheckpointStorage
from spark_statestore.checkpoint.storage.base import CheckpointName
from spark_statestore.checkpoint.storage.locations import (
    NonPersistentMetadataCheckpointStorageLocation,
    PersistentMetadataCheckpointStorageLocation,
)
from spark_statestore.checkpoint.storage.pointers import OpenFileSystem
from spark_statestore.checkpoint.storage.references import CheckpointStorageLocationReference
from spark_statestore.checkpoint.streams.memory import (
    MemCheckpointStreamFactory,
    MemoryCheckpointOutputStream,
)

__all__ = ["MemoryBackendCheckpointStorage"]


class MemoryBackendCheckpointStorage(AbstractFsCheckpointStorage):
    """Keeps state inside the metadata, bounded in size.

    With metadata in files that is storage like any other, of one object for each checkpoint.
    Without, a checkpoint is the handle that comes back when it is completed. A savepoint always
    has its metadata, and its state in it, in a file.

    Parameters
    ----------
    files
        Where metadata goes, None to keep it in the handle.
    directory
        The job's directory there; without `files` it only names the job.
    max_state_size
        The most bytes that one state may take, more than 0.
    job_id, default_savepoint_directory, open_files
        See `AbstractFsCheckpointStorage`.
    look_first
        See `FsCheckpointMetadataOutputStream`.

    Raises
    ------
    ValueError
        If the size is not more than 0.
    """

    def __init__(
        self,
        files: FileSystem | None,
        directory: str,
        max_state_size: int,
        *,
        job_id: str | None = None,
        default_savepoint_directory: str | None = None,
        open_files: OpenFileSystem = open_file_system,
        look_first: bool = True,
    ) -> None:
        url = directory if files is None else files.url(directory)
        super().__init__(url, job_id, default_savepoint_directory, open_files)
        if max_state_size <= 0:
            raise ValueError(f"the largest state is {max_state_size} bytes, but it must be more than 0")
        self.files = files
        self.directory = directory
        self.max_state_size = max_state_size
        self._look_first = look_first

    @property
    def supports_highly_available_storage(self) -> bool:
        return self.files is not None

    def initialize_base_locations_for_checkpoint(self) -> None:
        """Nothing to do: no state lies outside of the metadata."""

    def initialize_location_for_checkpoint(
        self, checkpoint: CheckpointName | int
    ) -> PersistentMetadataCheckpointStorageLocation | NonPersistentMetadataCheckpointStorageLocation:
        name = CheckpointName.of(checkpoint)
        if self.files is None:
            return NonPersistentMetadataCheckpointStorageLocation(self.max_state_size)
        directory = join(self.directory, name.directory)
        with failing_to("make the directory", self.files, directory):
            self.files.make_directory(directory)
        return PersistentMetadataCheckpointStorageLocation(
            self.files, directory, self.max_state_size, look_first=self._look_first
        )

    def resolve_checkpoint_storage_location(
        self, checkpoint: CheckpointName | int, reference: CheckpointStorageLocationReference
    ) -> MemCheckpointStreamFactory:
        CheckpointName.of(checkpoint)
        return MemCheckpointStreamFactory(self.max_state_size)

    def create_task_owned_state_stream(self) -> MemoryCheckpointOutputStream:
        return MemoryCheckpointOutputStream(self.max_state_size)

    def _create_savepoint_location(
        self, files: FileSystem, directory: str
    ) -> PersistentMetadataCheckpointStorageLocation:
        return PersistentMetadataCheckpointStorageLocation(files, directory, self.max_state_size)

    def __str__(self) -> str:
        scheme = "none" if self.files is None else self.files.scheme
        return (
            f"MemoryBackendCheckpointStorage {{checkpointsDirectory={self.directory}, "
            f"fileSystem={scheme}, maxStateSize={self.max_state_size}}}"
        )
