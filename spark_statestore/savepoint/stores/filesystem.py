"""Savepoints in files."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import Final, TypeVar

from spark_statestore.checkpoint.files import FileSystem, join, open_file_system
from spark_statestore.errors import CheckpointIOError
from spark_statestore.savepoint.stores.base import StateStore, not_found

__all__ = ["FileSystemStateStore"]

T = TypeVar("T")

_ATTEMPTS: Final = 10


class FileSystemStateStore(StateStore[T]):
    """Keeps each state in a file of its own below one directory.

    The directory is made with the first state and removed with the last one. Unlike Flink's, the
    store disposes only of files that it could have written itself, never of a whole directory,
    and a write that fails leaves nothing.

    Parameters
    ----------
    root
        URL of the directory.
    prefix
        Starts the files' names; 12 hex digits follow.
    serialize, deserialize
        A state as bytes, and back.
    files
        The directory's file system, if it is already open; then `root` is a path in it.

    Raises
    ------
    TypeError
        If there is no directory or no prefix.
    StorageError
        If the file system cannot be used.
    """

    def __init__(
        self,
        root: str,
        prefix: str,
        serialize: Callable[[T], bytes],
        deserialize: Callable[[bytes], T],
        *,
        files: FileSystem | None = None,
    ) -> None:
        if root is None or prefix is None:
            raise TypeError(
                f"a FileSystemStateStore needs a directory and a prefix, got {root!r} and {prefix!r}"
            )
        self._files, directory = open_file_system(root) if files is None else (files, root)
        self._root = directory.rstrip("/")
        self._prefix = prefix
        self._serialize = serialize
        self._deserialize = deserialize

    def put_state(self, state: T) -> str:
        if state is None:
            raise TypeError("a FileSystemStateStore keeps a state, got None")
        data = self._serialize(state)
        failure: OSError | None = None
        for _ in range(_ATTEMPTS):
            path = join(self._root, f"{self._prefix}{secrets.token_hex(6)}")
            try:
                self._files.make_directory(self._root)
                self._files.create(path, data)
            except (FileExistsError, FileNotFoundError) as error:
                # The name is taken, or the last savepoint went meanwhile and the directory with it.
                failure = error
            except OSError as error:
                self._remove_empty_root()
                raise self._cannot_write(error) from error
            else:
                return self._files.url(path)
        raise self._cannot_write(failure) from failure

    def get_state(self, path: str) -> T:
        files, found = self._locate(path)
        try:
            data = files.read(found)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise self._missing(path) from error
        except OSError as error:
            raise CheckpointIOError(
                f"the savepoint {path} cannot be read: {error}. Check that this user may read it, and try again."
            ) from error
        return self._deserialize(data)

    def dispose_state(self, path: str) -> None:
        files, found = self._locate(path)
        directory, _, name = found.rpartition("/")
        if files is not self._files or directory != self._root or not name.startswith(self._prefix):
            raise not_found(
                path,
                f"this store has the files {self._files.url(self._root)}/{self._prefix}* only, and removes nothing "
                "else. Use the store that wrote it.",
            )
        try:
            self._files.delete(found)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise self._missing(path) from error
        except OSError as error:
            raise CheckpointIOError(
                f"the savepoint {path} could not be removed: {error}. It is still there; try again, or delete the file."
            ) from error
        self._remove_empty_root()

    def _locate(self, path: str) -> tuple[FileSystem, str]:
        start = self._files.url("")
        if path.startswith(start):
            return self._files, path[len(start) :]
        if "://" not in path and path.startswith(self._root + "/"):
            return self._files, path
        try:
            return open_file_system(path)
        except ValueError as error:
            raise not_found(path, str(error)) from error

    def _remove_empty_root(self) -> None:
        with contextlib.suppress(OSError):
            self._files.delete_directory(self._root)

    def _missing(self, path: str) -> Exception:
        return not_found(
            path,
            "the file is not there. It was disposed of or moved; check the path, or copy it back from a backup.",
        )

    def _cannot_write(self, error: OSError | None) -> CheckpointIOError:
        return CheckpointIOError(
            f"a savepoint could not be written below {self._files.url(self._root)}: {error!r}. Nothing was left "
            "behind. Check that the directory can be written to and has space, and try again."
        )
