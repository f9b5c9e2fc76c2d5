"""Locations of completed checkpoints, by which these are found and disposed of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from spark_statestore.errors import CheckpointIOError, CheckpointNotFoundError
from spark_statestore.files import FileSystem, join, open_file_system, parent_of
from spark_statestore.files.failures import failing_to
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.stream_handles import ByteStreamStateHandle, StreamStateHandle

METADATA_FILE_NAME: Final = "_metadata"
"""Name of the metadata object, which makes a checkpoint exist."""

NOT_EXTERNALLY_ADDRESSABLE: Final = "<checkpoint-not-externally-addressable>"
"""External pointer of a checkpoint whose metadata is in memory."""


class CompletedCheckpointStorageLocation(ABC):
    """The location of a checkpoint that is complete: its metadata is published."""

    @property
    @abstractmethod
    def external_pointer(self) -> str:
        """URL that a storage resolves to this location; `NOT_EXTERNALLY_ADDRESSABLE` if there is none."""

    @property
    @abstractmethod
    def metadata_handle(self) -> StreamStateHandle:
        """Handle to the metadata."""

    @abstractmethod
    def dispose_storage_location(self) -> None:
        """Remove the location, after metadata and state.

        Raises
        ------
        CheckpointIOError
            If it has other files, which are never removed, or cannot be removed.
        """


class FsCompletedCheckpointStorageLocation(CompletedCheckpointStorageLocation):
    """The location of a checkpoint whose metadata is a file, in the checkpoint's directory."""

    def __init__(self, metadata_handle: FileStateHandle) -> None:
        self._metadata_handle = metadata_handle
        self._directory = parent_of(metadata_handle.path)

    @property
    def external_pointer(self) -> str:
        return self._metadata_handle.files.url(self._directory)

    @property
    def metadata_handle(self) -> FileStateHandle:
        return self._metadata_handle

    def dispose_storage_location(self) -> None:
        files = self._metadata_handle.files
        try:
            files.delete_directory(self._directory)
        except OSError as error:
            raise CheckpointIOError(
                f"the directory {self.external_pointer} is not removed, as it has other files or cannot be "
                f"reached: {error}. Its checkpoint is removed; delete the rest by hand if nothing needs it."
            ) from error


class NonPersistentCompletedCheckpointStorageLocation(CompletedCheckpointStorageLocation):
    """The location of a checkpoint whose metadata, with its state, is in memory."""

    def __init__(self, metadata_handle: ByteStreamStateHandle) -> None:
        self._metadata_handle = metadata_handle

    @property
    def external_pointer(self) -> str:
        return NOT_EXTERNALLY_ADDRESSABLE

    @property
    def metadata_handle(self) -> ByteStreamStateHandle:
        return self._metadata_handle

    def dispose_storage_location(self) -> None:
        """Do nothing: the checkpoint is released with its handle."""


def resolve_url(files: FileSystem | None, url: str) -> tuple[FileSystem, str]:
    """Return the file system and the path of a URL: `files` itself for a URL that it made."""
    if files is not None and url.startswith(start := files.url("")):
        path = url[len(start) :]
        # The authority of hdfs://name may be the start of another one.
        if start.endswith("/") or path.startswith("/"):
            return files, path
    return open_file_system(url)


def resolve_checkpoint_pointer(
    files: FileSystem | None, pointer: str
) -> FsCompletedCheckpointStorageLocation:
    """Return the location of the checkpoint at a pointer, see `CheckpointStorage.resolve_checkpoint`."""
    if pointer == NOT_EXTERNALLY_ADDRESSABLE:
        raise CheckpointNotFoundError(
            "a checkpoint in memory has no pointer by which it could be found. Keep its location, or set "
            "checkpointsDir, so that its metadata is a file."
        )
    at, path = resolve_url(files, pointer)
    path = path.rstrip("/")
    if path.rpartition("/")[2] != METADATA_FILE_NAME:
        path = join(path, METADATA_FILE_NAME)
    with failing_to("look for", at, path):
        try:
            size = at.size(path)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                f"there is no checkpoint at {pointer}: the file {at.url(path)} does not exist. Check the "
                "path, which is that of a checkpoint's directory or of the file in it."
            ) from error
    return FsCompletedCheckpointStorageLocation(FileStateHandle(at, path, size))
