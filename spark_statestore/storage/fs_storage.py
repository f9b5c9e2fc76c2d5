"""Checkpoint storage in files."""

from __future__ import annotations

from spark_statestore.files import FileSystem, join
from spark_statestore.files.failures import failing_to
from spark_statestore.storage.checkpoint_storage import (
    CHECKPOINT_SHARED_STATE_DIR,
    CheckpointName,
    CheckpointStorage,
    CheckpointStorageLocation,
)
from spark_statestore.storage.completed_locations import (
    METADATA_FILE_NAME,
    FsCompletedCheckpointStorageLocation,
    resolve_checkpoint_pointer,
    resolve_url,
)
from spark_statestore.storage.fs_streams import FsCheckpointStreamFactory
from spark_statestore.storage.location_reference import (
    CheckpointStorageLocationReference,
    decode_path_from_reference,
)
from spark_statestore.storage.metadata_streams import FsCheckpointMetadataOutputStream

WRITE_BUFFER_SIZE = 1024 * 1024
"""Default size of the write buffer in bytes; Flink's default of 4 KiB takes one system call a page."""


class FsCheckpointStorageLocation(FsCheckpointStreamFactory, CheckpointStorageLocation):
    """The location of a checkpoint in files: the default one, or one directory that a reference names."""

    location_reference = CheckpointStorageLocationReference.default()

    def create_metadata_output_stream(self) -> FsCheckpointMetadataOutputStream:
        return FsCheckpointMetadataOutputStream(
            self.files, join(self.checkpoint_directory, METADATA_FILE_NAME)
        )


class FsCheckpointStorage(CheckpointStorage):
    """Checkpoint storage below one directory of a file system.

    ::

        <directory>/shared/<version>-<uuid>         state that versions share
        <directory>/chk-<version>[_<id>]/_metadata  one version, with state up to the threshold
        <directory>/chk-<version>[_<id>]/<version>-<uuid>  state of that version alone

    Parameters
    ----------
    files
        The file system.
    directory
        The job's directory there: of one store, or of one operator's state.
    file_state_threshold
        Largest state in bytes that is stored inside the metadata, 0 to 256 MiB.
    write_buffer_size
        Size of the write buffer in bytes; the threshold is its lower bound.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        file_state_threshold: int,
        write_buffer_size: int = WRITE_BUFFER_SIZE,
    ) -> None:
        self.files = files
        self.directory = directory
        self._threshold = file_state_threshold
        self._buffer_size = write_buffer_size
        # Validate the sizes now rather than at the first checkpoint.
        FsCheckpointStreamFactory(files, directory, directory, file_state_threshold, write_buffer_size)

    def initialize_base_locations_for_checkpoint(self) -> None:
        directory = join(self.directory, CHECKPOINT_SHARED_STATE_DIR)
        with failing_to("make the directory", self.files, directory):
            self.files.make_directory(directory)

    def initialize_location_for_checkpoint(
        self, checkpoint: CheckpointName | int
    ) -> FsCheckpointStorageLocation:
        location = self.resolve_checkpoint_storage_location(
            checkpoint, CheckpointStorageLocationReference.default()
        )
        with failing_to("make the directory", self.files, location.checkpoint_directory):
            self.files.make_directory(location.checkpoint_directory)
        return location

    def resolve_checkpoint_storage_location(
        self, checkpoint: CheckpointName | int, reference: CheckpointStorageLocationReference
    ) -> FsCheckpointStorageLocation:
        name = CheckpointName.from_name_or_number(checkpoint)
        if reference.is_default_reference:
            files, directory = self.files, join(self.directory, name.directory)
            shared = join(self.directory, CHECKPOINT_SHARED_STATE_DIR)
        else:
            # One directory has all of it, so that it can be moved as a whole.
            files, directory = resolve_url(self.files, decode_path_from_reference(reference))
            shared = directory
        location = FsCheckpointStorageLocation(
            files, directory, shared, self._threshold, self._buffer_size, name_prefix=f"{name.version}-"
        )
        location.location_reference = reference
        return location

    def resolve_checkpoint(self, pointer: str) -> FsCompletedCheckpointStorageLocation:
        return resolve_checkpoint_pointer(self.files, pointer)
