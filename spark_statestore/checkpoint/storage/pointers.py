"""From the pointer that a user gives to the checkpoint that it names."""

from __future__ import annotations

from collections.abc import Callable

from spark_statestore.checkpoint.completed.location import FsCompletedCheckpointStorageLocation
from spark_statestore.checkpoint.files import FileSystem, join, open_file_system, parent_of
from spark_statestore.checkpoint.storage.base import METADATA_FILE_NAME
from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    MetadataNotFoundError,
    StorageURLError,
)
from spark_statestore.state.handles.file import FileStateHandle

__all__ = ["OpenFileSystem", "resolve_checkpoint_pointer"]

OpenFileSystem = Callable[[str], tuple[FileSystem, str]]
"""Opens the file system of a URL and gives the path in it, as `open_file_system` does."""


def resolve_checkpoint_pointer(
    pointer: str, open_files: OpenFileSystem = open_file_system
) -> FsCompletedCheckpointStorageLocation:
    """Find a checkpoint or savepoint by a pointer, see `CheckpointStorage.resolve_checkpoint`.

    A directory, a directory with a slash at its end and its metadata file all give the same
    external pointer: the directory's URL.

    Parameters
    ----------
    open_files
        Opens the pointer's file system, which need not be the storage's.
    """
    if not isinstance(pointer, str):
        raise TypeError(f"a checkpoint pointer is a string, not {pointer!r}")
    if not pointer.strip():
        raise StorageURLError(
            "the checkpoint pointer is empty: name the directory of a checkpoint or savepoint, or its metadata file."
        )
    files, path = open_files(pointer)
    path = path.rstrip("/") or path
    try:
        return _resolve(files, path)
    except CheckpointNotFoundError:
        raise
    except OSError as error:
        raise CheckpointIOError(
            f"{files.url(path)} cannot be looked at: {error}. Check the permissions and that the storage is reachable."
        ) from error


def _resolve(files: FileSystem, path: str) -> FsCompletedCheckpointStorageLocation:
    metadata = path
    try:
        size = files.size(path)
    except IsADirectoryError:
        metadata = join(path, METADATA_FILE_NAME)
        try:
            size = files.size(metadata)
        except FileNotFoundError as error:
            raise MetadataNotFoundError(
                f"the directory {files.url(path)} has no file {METADATA_FILE_NAME!r}, so it is no checkpoint, or not "
                "a whole one. If its metadata has another name, give the path of that file."
            ) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointNotFoundError(
            f"there is no checkpoint or savepoint at {files.url(path)}: neither a file nor a directory is there. "
            "Check the pointer, and that this machine sees the storage it was written to."
        ) from error
    directory = parent_of(metadata)
    return FsCompletedCheckpointStorageLocation(
        files, directory, FileStateHandle(files, metadata, size), files.url(directory)
    )
