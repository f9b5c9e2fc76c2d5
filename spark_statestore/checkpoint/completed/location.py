"""Where a checkpoint that exists is kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from spark_statestore.checkpoint.files.base import FileSystem
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.state.handles.base import StreamStateHandle
from spark_statestore.state.handles.file import FileStateHandle
from spark_statestore.state.handles.memory import ByteStreamStateHandle

__all__ = [
    "NOT_EXTERNALLY_ADDRESSABLE",
    "CompletedCheckpointStorageLocation",
    "FsCompletedCheckpointStorageLocation",
    "NonPersistentCompletedCheckpointStorageLocation",
]

NOT_EXTERNALLY_ADDRESSABLE: Final = "<checkpoint-not-externally-addressable>"
"""The pointer of a checkpoint whose metadata is only in memory."""


class CompletedCheckpointStorageLocation(ABC):
    """A checkpoint that exists: its metadata is published."""

    @property
    @abstractmethod
    def external_pointer(self) -> str:
        """The URL to find it by, or `NOT_EXTERNALLY_ADDRESSABLE`."""

    @property
    @abstractmethod
    def metadata_handle(self) -> StreamStateHandle:
        """The metadata."""

    @abstractmethod
    def dispose_storage_location(self, *, recursive: bool = False) -> None:
        """Remove the location once metadata and state are gone.

        Parameters
        ----------
        recursive
            Remove whatever else lies there. Only for who knows that nothing in it is still in use:
            a later checkpoint may build on a file inside.

        Raises
        ------
        CheckpointIOError
            If something is left in the location, or it cannot be removed.
        """


class FsCompletedCheckpointStorageLocation(CompletedCheckpointStorageLocation):
    """A checkpoint whose metadata is a file.

    Flink removes the directory without looking further, which fails where a stray file is left;
    here the caller can ask for that too, see `dispose_storage_location`.

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
        metadata_handle: FileStateHandle,
        external_pointer: str,
    ) -> None:
        self.files = files
        self.exclusive_directory = exclusive_directory
        self._metadata_handle = metadata_handle
        self._pointer = external_pointer

    @property
    def external_pointer(self) -> str:
        return self._pointer

    @property
    def metadata_handle(self) -> FileStateHandle:
        return self._metadata_handle

    def dispose_storage_location(self, *, recursive: bool = False) -> None:
        with failing_to("remove the directory", self.files, self.exclusive_directory):
            self.files.delete_directory(self.exclusive_directory, recursive=recursive)

    def __repr__(self) -> str:
        return f"FsCompletedCheckpointStorageLocation({self._pointer!r})"


class NonPersistentCompletedCheckpointStorageLocation(CompletedCheckpointStorageLocation):
    """A checkpoint whose metadata, with the state inside, is held by whoever holds this object."""

    def __init__(self, metadata_handle: ByteStreamStateHandle) -> None:
        self._metadata_handle = metadata_handle

    @property
    def external_pointer(self) -> str:
        return NOT_EXTERNALLY_ADDRESSABLE

    @property
    def metadata_handle(self) -> ByteStreamStateHandle:
        return self._metadata_handle

    def dispose_storage_location(self, *, recursive: bool = False) -> None:
        """Nothing to do: it goes with the object."""
