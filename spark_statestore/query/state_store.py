"""Stores of savepoints: their interface, the store in memory, and the store in a file system."""

from __future__ import annotations

import logging
import re
import threading
from abc import ABC, abstractmethod
from typing import Final

from spark_statestore.errors import CheckpointError, CheckpointIOError, SavepointNotFoundError
from spark_statestore.files import FileSystem, join, open_file_system, parent_of
from spark_statestore.files.failures import failing_to, read_file
from spark_statestore.options import DEFAULT_FILE_STATE_THRESHOLD
from spark_statestore.query.savepoint import Savepoint, decode_savepoint, encode_savepoint
from spark_statestore.storage import (
    METADATA_FILE_NAME,
    SAVEPOINT_DIR_PREFIX,
    FsCheckpointStorage,
    FsCompletedCheckpointStorageLocation,
    encode_path_as_reference,
)
from spark_statestore.storage.file_handles import FileStateHandle, discard_durably, discard_file
from spark_statestore.storage.metadata_streams import read_object

_logger = logging.getLogger(__name__)

# Name of a savepoint's metadata during its disposal, from which the disposal can be resumed.
_BEING_DISPOSED: Final = "_disposing"

_DIRECTORY_NAME: Final = re.compile(rf"{SAVEPOINT_DIR_PREFIX}[0-9a-f]{{1,6}}-[0-9a-f]{{12}}")


class StateStore(ABC):
    """Store of savepoints, each under the path of its directory.

    A savepoint exists from `put_state` until `begin_disposal`. Its other files can be removed between that
    and `end_disposal`: a process that is killed there leaves a savepoint that does not exist and can be
    disposed of again.
    """

    @abstractmethod
    def put_state(self, savepoint: Savepoint) -> str:
        """Store a savepoint and return its external pointer: its path."""

    @abstractmethod
    def get_state(self, path: str) -> Savepoint:
        """Return the savepoint under a path.

        Raises
        ------
        SavepointNotFoundError
            If there is none.
        CheckpointError
            If it cannot be read.
        """

    @abstractmethod
    def get_all(self) -> list[Savepoint]:
        """Return every savepoint; skip those that cannot be read, with a warning."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether a savepoint is under a path."""

    @abstractmethod
    def is_being_disposed(self, path: str) -> bool:
        """Return whether the disposal of a savepoint has begun and not ended."""

    @abstractmethod
    def find(self, path: str) -> Savepoint:
        """Return the savepoint under a path as `get_state`, or one whose disposal was interrupted."""

    @abstractmethod
    def begin_disposal(self, path: str) -> Savepoint:
        """Remove a savepoint from the store, durably, and return it; resume a disposal that was interrupted.

        Raises
        ------
        SavepointNotFoundError
            If there is none.
        CheckpointIOError
            If it cannot be removed.
        """

    @abstractmethod
    def cancel_disposal(self, savepoint: Savepoint) -> None:
        """Put a savepoint back whose disposal has begun."""

    @abstractmethod
    def end_disposal(self, path: str) -> None:
        """Forget a savepoint whose disposal has begun."""

    def dispose_state(self, path: str) -> None:
        """Remove a savepoint; raise as `begin_disposal`."""
        self.begin_disposal(path)
        self.end_disposal(path)


class HeapStateStore(StateStore):
    """Store in the memory of this process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._savepoints: dict[str, Savepoint] = {}
        self._disposing: dict[str, Savepoint] = {}
        self._lock = threading.Lock()

    def put_state(self, savepoint: Savepoint) -> str:
        _require_savepoint(savepoint)
        with self._lock:
            self._savepoints[savepoint.path] = savepoint
        return savepoint.path

    def get_state(self, path: str) -> Savepoint:
        with self._lock:
            return self._get(path, self._savepoints)

    def get_all(self) -> list[Savepoint]:
        with self._lock:
            return list(self._savepoints.values())

    def exists(self, path: str) -> bool:
        with self._lock:
            return path in self._savepoints

    def is_being_disposed(self, path: str) -> bool:
        with self._lock:
            return path in self._disposing

    def find(self, path: str) -> Savepoint:
        with self._lock:
            return self._get(path, self._disposing | self._savepoints)

    def begin_disposal(self, path: str) -> Savepoint:
        with self._lock:
            savepoint = self._get(path, self._disposing | self._savepoints)
            self._savepoints.pop(path, None)
            self._disposing[path] = savepoint
            return savepoint

    def cancel_disposal(self, savepoint: Savepoint) -> None:
        with self._lock:
            self._savepoints[savepoint.path] = self._disposing.pop(savepoint.path)

    def end_disposal(self, path: str) -> None:
        with self._lock:
            self._disposing.pop(path, None)

    def _get(self, path: str, savepoints: dict[str, Savepoint]) -> Savepoint:
        if path not in savepoints:
            raise _not_found(
                path,
                "it was disposed of, or was in the memory of a process that has ended. Use a target "
                "directory in a file system to keep savepoints.",
            )
        return savepoints[path]


class FileSystemStateStore(StateStore):
    """Store in a file system, with the file ``_metadata`` in each savepoint's directory below a root.

    The store writes and removes only metadata, never any directory that it is given, unlike Flink's: other
    files of a savepoint belong to the caller, which writes them before `put_state` and removes them between
    `begin_disposal` and `end_disposal`. Everything is synced, so that a savepoint that exists survives a
    power failure.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def put_state(self, savepoint: Savepoint) -> str:
        _require_savepoint(savepoint)
        files, directory = locate(savepoint.path, fsync=True)
        with failing_to("make the directory", files, directory):
            files.make_directory(directory)
        reference = encode_path_as_reference(files.url(directory))
        location = _storage(files, directory).resolve_checkpoint_storage_location(savepoint.batch, reference)
        with location.create_metadata_output_stream() as out:
            out.write(encode_savepoint(savepoint))
            # The savepoint exists from here on.
            return out.close_and_finalize_checkpoint().external_pointer

    def get_state(self, path: str) -> Savepoint:
        files, directory = locate(path)
        try:
            return _read(_storage(files, directory).resolve_checkpoint(files.url(directory)))
        except FileNotFoundError as error:
            raise _not_found(
                path,
                f"its file {METADATA_FILE_NAME!r} does not exist. It was disposed of or moved, is being "
                "written, or a process was killed while writing it. Check the path; "
                "list_savepoints(directory) lists savepoints.",
            ) from error

    def get_all(self) -> list[Savepoint]:
        files, root = open_file_system(self._root)
        start = root.rstrip("/") + "/"
        with failing_to("list", files, root):
            paths = [status.path for status in files.list_files(root)]
        savepoints = []
        for path in paths:
            directory, _, file = path.removeprefix(start).partition("/")
            if file == METADATA_FILE_NAME and _DIRECTORY_NAME.fullmatch(directory):
                try:
                    savepoints.append(_read(_at(files, path)))
                except FileNotFoundError:
                    # It was disposed of after the listing.
                    continue
                except CheckpointError as error:
                    _logger.warning("the savepoint %s in %s is skipped: %s", directory, self._root, error)
        return savepoints

    def exists(self, path: str) -> bool:
        return _has(path, METADATA_FILE_NAME)

    def is_being_disposed(self, path: str) -> bool:
        return _has(path, _BEING_DISPOSED)

    def find(self, path: str) -> Savepoint:
        try:
            return self.get_state(path)
        except SavepointNotFoundError:
            files, directory = locate(path, fsync=True)
            mark = join(directory, _BEING_DISPOSED)
            if not self.is_being_disposed(path):
                raise
            with failing_to("read", files, mark):
                data = files.read(mark)
            return decode_savepoint(data, files.url(directory), files.url(mark))

    def begin_disposal(self, path: str) -> Savepoint:
        files, directory = locate(path, fsync=True)
        savepoint = self.find(path)
        _write(files, join(directory, _BEING_DISPOSED), encode_savepoint(savepoint))
        # The metadata must not reappear without the files that are removed next.
        discard_durably(files, join(directory, METADATA_FILE_NAME))
        return savepoint

    def cancel_disposal(self, savepoint: Savepoint) -> None:
        files, directory = locate(savepoint.path, fsync=True)
        _write(files, join(directory, METADATA_FILE_NAME), encode_savepoint(savepoint))
        discard_file(files, join(directory, _BEING_DISPOSED))

    def end_disposal(self, path: str) -> None:
        files, directory = locate(path, fsync=True)
        # The rest of the metadata has another name.
        location = _at(files, join(directory, _BEING_DISPOSED))
        location.metadata_handle.discard_state()
        try:
            location.dispose_storage_location()
        except CheckpointIOError as error:
            _logger.warning("%s", error)


def locate(path: str, *, fsync: bool = False) -> tuple[FileSystem, str]:
    """Return the file system and the directory of a savepoint.

    `path` is the URL of its directory or of its metadata.
    """
    files, directory = open_file_system(path, fsync=fsync)
    directory = directory.rstrip("/")
    if directory.rpartition("/")[2] == METADATA_FILE_NAME:
        directory = parent_of(directory)
    return files, directory


def _storage(files: FileSystem, directory: str) -> FsCheckpointStorage:
    return FsCheckpointStorage(files, parent_of(directory), DEFAULT_FILE_STATE_THRESHOLD)


def _at(files: FileSystem, metadata: str) -> FsCompletedCheckpointStorageLocation:
    return FsCompletedCheckpointStorageLocation(FileStateHandle(files, metadata, -1))


def _require_savepoint(savepoint: Savepoint | None) -> None:
    if savepoint is None:
        raise TypeError("put_state needs a savepoint, got None")


def _not_found(path: str, why: str) -> SavepointNotFoundError:
    """Build the error for a path without a savepoint, with the path as its `filename`."""
    error = SavepointNotFoundError(f"no savepoint exists under the path {path!r}: {why}")
    error.filename = path
    return error


def _has(path: str, name: str) -> bool:
    files, directory = locate(path)
    file = join(directory, name)
    with failing_to("look for", files, file):
        return files.exists(file)


def _read(location: FsCompletedCheckpointStorageLocation) -> Savepoint:
    files, path = location.metadata_handle.files, location.metadata_handle.path
    data = read_file(files, path, read_object)
    return decode_savepoint(data, location.external_pointer, files.url(path))


def _write(files: FileSystem, path: str, data: bytes) -> None:
    with failing_to("write", files, path):
        try:
            files.create(path, data)
        except FileExistsError:
            # An interrupted attempt wrote it, perhaps partly where creating a file is not atomic.
            if files.read(path) != data:
                files.replace(path, data)
