"""Checkpoints in files."""

from __future__ import annotations

from spark_statestore.checkpoint.files import FileSystem, join, open_file_system
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.storage.abstract_fs import AbstractFsCheckpointStorage
from spark_statestore.checkpoint.storage.base import (
    CHECKPOINT_SHARED_STATE_DIR,
    CHECKPOINT_TASK_OWNED_STATE_DIR,
    CheckpointName,
)
from spark_statestore.checkpoint.storage.locations import FsCheckpointStorageLocation
from spark_statestore.checkpoint.storage.pointers import OpenFileSystem
from spark_statestore.checkpoint.storage.references import (
    CheckpointStorageLocationReference,
    decode_path_from_reference,
    encode_path_as_reference,
)
from spark_statestore.checkpoint.streams.filesystem import (
    FsCheckpointStateOutputStream,
    FsCheckpointStreamFactory,
)

__all__ = ["WRITE_BUFFER_SIZE", "FsCheckpointStorage"]

WRITE_BUFFER_SIZE = 1024 * 1024
"""Bytes collected before they go to a file; Flink's default of 4 KiB is one system call a page."""


class FsCheckpointStorage(AbstractFsCheckpointStorage):
    """Keeps checkpoints below one directory.

    ::

        <directory>/shared/<version>-<uuid>         state that versions share
        <directory>/taskowned/<uuid>                state that belongs to no version
        <directory>/chk-<version>[_<id>]/_metadata  one version, with state up to the threshold
        <directory>/chk-<version>[_<id>]/<version>-<uuid>  state of that version alone

    Parameters
    ----------
    files
        The file system.
    directory
        The job's directory there: of one store, or of one operator's state.
    file_state_threshold
        At most so many bytes of a state stay in the metadata, 0 to 1 MiB.
    write_buffer_size
        Bytes collected before they are written; at least the threshold is used.
    job_id, default_savepoint_directory, open_files
        See `AbstractFsCheckpointStorage`.
    look_first
        See `FsCheckpointMetadataOutputStream`.

    Raises
    ------
    ValueError
        If a size is out of its range.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        file_state_threshold: int,
        write_buffer_size: int = WRITE_BUFFER_SIZE,
        *,
        job_id: str | None = None,
        default_savepoint_directory: str | None = None,
        open_files: OpenFileSystem = open_file_system,
        look_first: bool = True,
    ) -> None:
        super().__init__(files.url(directory), job_id, default_savepoint_directory, open_files)
        self.files = files
        self.directory = directory
        self._threshold = file_state_threshold
        self._buffer_size = write_buffer_size
        self._look_first = look_first
        # Sizes that do not fit are known now rather than with the first checkpoint.
        FsCheckpointStreamFactory(files, directory, directory, file_state_threshold, write_buffer_size)

    @property
    def supports_highly_available_storage(self) -> bool:
        return True

    def initialize_base_locations_for_checkpoint(self) -> None:
        for name in (CHECKPOINT_SHARED_STATE_DIR, CHECKPOINT_TASK_OWNED_STATE_DIR):
            directory = join(self.directory, name)
            with failing_to("make the directory", self.files, directory):
                self.files.make_directory(directory)

    def initialize_location_for_checkpoint(
        self, checkpoint: CheckpointName | int
    ) -> FsCheckpointStorageLocation:
        location = self._location(CheckpointName.of(checkpoint))
        with failing_to("make the directory", self.files, location.checkpoint_directory):
            self.files.make_directory(location.checkpoint_directory)
        return location

    def resolve_checkpoint_storage_location(
        self, checkpoint: CheckpointName | int, reference: CheckpointStorageLocationReference
    ) -> FsCheckpointStreamFactory:
        if reference.is_default_reference:
            return self._location(CheckpointName.of(checkpoint))
        files, directory = self._open_files(decode_path_from_reference(reference))
        return FsCheckpointStreamFactory(files, directory, directory, self._threshold, self._buffer_size)

    def create_task_owned_state_stream(self) -> FsCheckpointStateOutputStream:
        return FsCheckpointStateOutputStream(
            self.files,
            join(self.directory, CHECKPOINT_TASK_OWNED_STATE_DIR),
            max(self._buffer_size, self._threshold),
            self._threshold,
        )

    def _location(self, name: CheckpointName) -> FsCheckpointStorageLocation:
        return FsCheckpointStorageLocation(
            self.files,
            join(self.directory, name.directory),
            join(self.directory, CHECKPOINT_SHARED_STATE_DIR),
            self._threshold,
            self._buffer_size,
            name_prefix=f"{name.version}-",
            reference=CheckpointStorageLocationReference.default(),
            look_first=self._look_first,
        )

    def _create_savepoint_location(self, files: FileSystem, directory: str) -> FsCheckpointStorageLocation:
        return FsCheckpointStorageLocation(
            files,
            directory,
            directory,
            self._threshold,
            self._buffer_size,
            reference=encode_path_as_reference(files.url(directory)),
        )

    def __str__(self) -> str:
        return (
            f"FsCheckpointStorage {{{self.files.url(self.directory)}, fileStateThreshold={self._threshold}}}"
        )
