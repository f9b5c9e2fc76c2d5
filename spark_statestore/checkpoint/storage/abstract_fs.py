"""What storages that write metadata to a file system have in common."""

from __future__ import annotations

import secrets
import uuid
from abc import abstractmethod

from spark_statestore.checkpoint.completed.location import CompletedCheckpointStorageLocation
from spark_statestore.checkpoint.files import FileSystem, join, open_file_system
from spark_statestore.checkpoint.storage.base import (
    SAVEPOINT_DIR_PREFIX,
    CheckpointName,
    CheckpointStorage,
    CheckpointStorageLocation,
)
from spark_statestore.checkpoint.storage.pointers import OpenFileSystem, resolve_checkpoint_pointer
from spark_statestore.errors import CheckpointIOError, OptionError
from spark_statestore.options import OPTION_PREFIX

__all__ = ["AbstractFsCheckpointStorage"]

_SAVEPOINT_ATTEMPTS = 10
_JOB_DIGITS = 6
_RANDOM_BYTES = 6


class AbstractFsCheckpointStorage(CheckpointStorage):
    """Finds checkpoints by pointer, and makes the directories of savepoints.

    Parameters
    ----------
    directory
        URL or path that stands for the job where it has no id of its own.
    job_id
        32 hex digits; its first six are part of the name of a savepoint.
    default_savepoint_directory
        URL of the directory that savepoints go into unless another is named.
    open_files
        Opens the file systems of pointers and savepoints.
    """

    def __init__(
        self,
        directory: str,
        job_id: str | None,
        default_savepoint_directory: str | None,
        open_files: OpenFileSystem = open_file_system,
    ) -> None:
        self.job_id = job_id or uuid.uuid5(uuid.NAMESPACE_URL, directory).hex
        self.default_savepoint_directory = default_savepoint_directory
        self._open_files = open_files

    @property
    def has_default_savepoint_location(self) -> bool:
        return self.default_savepoint_directory is not None

    def resolve_checkpoint(self, pointer: str) -> CompletedCheckpointStorageLocation:
        return resolve_checkpoint_pointer(pointer, self._open_files)

    def initialize_location_for_savepoint(
        self, checkpoint: CheckpointName | int, target: str | None = None
    ) -> CheckpointStorageLocation:
        """Make the place of a new savepoint: ``savepoint-<6 digits of the job>-<12 random digits>``.

        The directory is new, which Flink leaves to chance. On an object store, which has no
        directories, it is left to chance here too.
        """
        base = target or self.default_savepoint_directory
        if base is None:
            raise OptionError(
                f"there is no place for a savepoint: name a target directory, or set '{OPTION_PREFIX}savepointsDir'."
            )
        files, directory = self._open_files(base)
        failure: OSError | None = None
        for _ in range(_SAVEPOINT_ATTEMPTS):
            name = f"{SAVEPOINT_DIR_PREFIX}{self.job_id[:_JOB_DIGITS]}-{secrets.token_hex(_RANDOM_BYTES)}"
            try:
                files.make_directory(directory)
                files.make_directory(join(directory, name), exist_ok=False)
                return self._create_savepoint_location(files, join(directory, name))
            except OSError as error:
                failure = error
        raise CheckpointIOError(
            f"could not make a directory for a savepoint in {files.url(directory)} in {_SAVEPOINT_ATTEMPTS} "
            f"attempts: {failure}. Check that it is writable for this user, or name another target."
        ) from failure

    @abstractmethod
    def _create_savepoint_location(self, files: FileSystem, directory: str) -> CheckpointStorageLocation:
        """The place of a savepoint in a directory that is its own."""
