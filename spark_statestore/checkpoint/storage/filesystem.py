"""Checkpoints in files."""

from __future__ import annotations

from spark_statestore.checkpoint.files.base import FileSystem, join
from spark_statestore.checkpoint.storage.base import (
    CHECKPOINT_SHARED_STATE_DIR,
    CHECKPOINT_TASK_OWNED_STATE_DIR,
    METADATA_FILE_NAME,
    CheckpointName,
    CheckpointStorage,
)
from spark_statestore.checkpoint.storage.locations import (
    FsCheckpointStorageLocation,
    FsCompletedCheckpointStorageLocation,
)
from spark_statestore.checkpoint.streams.filesystem import FsCheckpointStreamFactory
from spark_statestore.state.handles.file import FileStateHandle

__all__ = ["WRITE_BUFFER_SIZE", "FsCheckpointStorage"]

WRITE_BUFFER_SIZE = 1024 * 1024
"""Bytes collected before they go to a file; Flink's default of 4 KiB is one system call a page."""


class FsCheckpointStorage(CheckpointStorage):
    """Keeps a store's checkpoints below one directory.

    ::

        <directory>/shared/<version>-<uuid>         state that versions share
        <directory>/taskowned/                      state that belongs to no version
        <directory>/chk-<version>[_<id>]/_metadata  one version, with state up to the threshold

    Parameters
    ----------
    files
        The file system.
    directory
        The store's directory.
    file_state_threshold
        At most so many bytes of a state stay in the metadata.
    """

    def __init__(self, files: FileSystem, directory: str, file_state_threshold: int) -> None:
        self.files = files
        self.directory = directory
        self._threshold = file_state_threshold

    @property
    def supports_highly_available_storage(self) -> bool:
        return True

    def initialize_base_locations_for_checkpoint(self) -> None:
        for name in (CHECKPOINT_SHARED_STATE_DIR, CHECKPOINT_TASK_OWNED_STATE_DIR):
            self.files.make_directory(join(self.directory, name))

    def initialize_location_for_checkpoint(self, name: CheckpointName) -> FsCheckpointStorageLocation:
        directory = join(self.directory, name.directory)
        self.files.make_directory(directory)
        return FsCheckpointStorageLocation(
            self.files, directory, self.resolve_checkpoint_storage_location(name)
        )

    def resolve_checkpoint_storage_location(self, name: CheckpointName) -> FsCheckpointStreamFactory:
        return FsCheckpointStreamFactory(
            self.files,
            join(self.directory, name.directory),
            join(self.directory, CHECKPOINT_SHARED_STATE_DIR),
            self._threshold,
            WRITE_BUFFER_SIZE,
            name_prefix=f"{name.version}-",
        )

    def resolve_checkpoint(self, name: CheckpointName) -> FsCompletedCheckpointStorageLocation:
        directory = join(self.directory, name.directory)
        return FsCompletedCheckpointStorageLocation(
            self.files,
            directory,
            FileStateHandle(self.files, join(directory, METADATA_FILE_NAME), -1),
            self.files.url(directory),
        )
