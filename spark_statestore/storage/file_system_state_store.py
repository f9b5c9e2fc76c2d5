"""Store of savepoints in a file system, each a directory with a metadata file that is published last."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from spark_statestore.errors import CheckpointError, SavepointNotFoundError
from spark_statestore.files import FileSystem, join, open_file_system, parent_of
from spark_statestore.files.failures import failing_to, read_file
from spark_statestore.storage.checkpoint_storage import METADATA_FILE_NAME
from spark_statestore.storage.file_handles import discard_durably, discard_file
from spark_statestore.storage.metadata_streams import read_object
from spark_statestore.storage.state_store import StateStore, not_found

__all__ = ["BEING_DISPOSED", "FileSystemStateStore", "locate"]

_logger = logging.getLogger(__name__)

T = TypeVar("T")

BEING_DISPOSED: Final = "_disposing"
"""Name of a savepoint's metadata during its disposal, from which the disposal can be resumed."""


def locate(path: str, *, fsync: bool = False) -> tuple[FileSystem, str]:
    """Return the file system and the directory of a savepoint, given the URL of either directory or metadata."""
    files, directory = open_file_system(path, fsync=fsync)
    directory = directory.rstrip("/")
    if directory.rpartition("/")[2] == METADATA_FILE_NAME:
        directory = parent_of(directory)
    return files, directory


class FileSystemStateStore(StateStore[T]):
    """Store of states in a file system, each as the file ``_metadata`` in a directory of its own.

    The store writes and removes only metadata: other files of a state's directory belong to the caller, which
    writes them before `put_state` and removes them between `begin_disposal` and `end_disposal`. Everything is
    synced, so that a state that exists survives a power failure.

    Parameters
    ----------
    root
        URL of the directory whose directories `get_all` reads.
    path_of
        Returns the URL of a state's directory.
    encode
        Returns the metadata of a state.
    decode
        Returns the state of some metadata, given the URL of the directory and that of the file.
    is_name
        Returns whether a directory can be one of a state, by its name.

    Notes
    -----
    Unlike Flink's, the store removes only the files that it writes, never any directory that it is given.
    """

    def __init__(
        self,
        root: str,
        path_of: Callable[[T], str],
        encode: Callable[[T], bytes],
        decode: Callable[[bytes, str, str], T],
        is_name: Callable[[str], object],
    ) -> None:
        self._root = root
        self._path_of = path_of
        self._encode = encode
        self._decode = decode
        self._is_name = is_name

    def put_state(self, state: T) -> str:
        if state is None:
            raise TypeError("FileSystemStateStore.put_state needs a state, got None")
        files, directory = locate(self._path_of(state), fsync=True)
        path = join(directory, METADATA_FILE_NAME)
        with failing_to("write", files, path):
            files.make_directory(directory)
            # The savepoint exists from here on.
            files.create(path, self._encode(state))
        return files.url(directory)

    def get_state(self, path: str) -> T:
        files, directory = locate(path)
        try:
            return self._read(files, directory)
        except FileNotFoundError as error:
            if isinstance(error, CheckpointError):
                raise
            raise not_found(
                path,
                f"its file {METADATA_FILE_NAME!r} does not exist. It was disposed of or moved, is being written, or a "
                "process was killed while writing it. Check the path; list_savepoints(directory) lists savepoints.",
            ) from error

    def get_all(self) -> list[T]:
        files, root = open_file_system(self._root)
        start = root.rstrip("/") + "/"
        with failing_to("list", files, root):
            paths = [status.path for status in files.list_files(root)]
        found = []
        for path in paths:
            directory, _, file = path.removeprefix(start).partition("/")
            if file == METADATA_FILE_NAME and self._is_name(directory):
                try:
                    found.append(self._read(files, start + directory))
                except FileNotFoundError:
                    # It was disposed of after the listing.
                    continue
                except CheckpointError as error:
                    _logger.warning("the savepoint %s in %s is skipped: %s", directory, self._root, error)
        return found

    def exists(self, path: str) -> bool:
        return self._has(path, METADATA_FILE_NAME)

    def is_being_disposed(self, path: str) -> bool:
        return self._has(path, BEING_DISPOSED)

    def begin_disposal(self, path: str) -> T:
        files, directory = locate(path, fsync=True)
        state = self.find(path)
        _write(files, join(directory, BEING_DISPOSED), self._encode(state))
        # The metadata must not reappear without the files that are removed next.
        discard_durably(files, join(directory, METADATA_FILE_NAME))
        return state

    def cancel_disposal(self, state: T) -> None:
        files, directory = locate(self._path_of(state), fsync=True)
        _write(files, join(directory, METADATA_FILE_NAME), self._encode(state))
        discard_file(files, join(directory, BEING_DISPOSED))

    def end_disposal(self, path: str) -> None:
        files, directory = locate(path, fsync=True)
        discard_file(files, join(directory, BEING_DISPOSED))
        try:
            files.delete_directory(directory)
        except OSError as error:
            _logger.warning(
                "the directory %s is not removed, as it has other files: %s", files.url(directory), error
            )

    def find(self, path: str) -> T:
        try:
            return self.get_state(path)
        except SavepointNotFoundError:
            files, directory = locate(path, fsync=True)
            mark = join(directory, BEING_DISPOSED)
            if not self.is_being_disposed(path):
                raise
            with failing_to("read", files, mark):
                data = files.read(mark)
            return self._decode(data, files.url(directory), files.url(mark))

    def _has(self, path: str, name: str) -> bool:
        files, directory = locate(path)
        file = join(directory, name)
        with failing_to("look for", files, file):
            return files.exists(file)

    def _read(self, files: FileSystem, directory: str) -> T:
        path = join(directory, METADATA_FILE_NAME)
        return self._decode(read_file(files, path, read_object), files.url(directory), files.url(path))


def _write(files: FileSystem, path: str, data: bytes) -> None:
    with failing_to("write", files, path):
        try:
            files.create(path, data)
        except FileExistsError:
            # An interrupted attempt wrote it, perhaps partly where creating a file is not atomic.
            if files.read(path) != data:
                files.replace(path, data)
