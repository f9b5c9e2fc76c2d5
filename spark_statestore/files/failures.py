"""Conversion of file system errors into errors of this package."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_statestore.errors import CheckpointError, CheckpointIOError
from spark_statestore.files.base import FileSystem


@contextmanager
def failing_to(do: str, files: FileSystem, path: str) -> Iterator[None]:
    """Convert errors of a file system into a `CheckpointIOError`.

    It names the path, and what "could not" be done. Errors of this package, such as `StorageAccessError`,
    pass unchanged.
    """
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointIOError(
            f"could not {do} {files.url(path)}: {error}. Check the permissions, and that the storage is "
            "reachable and has space; then try again."
        ) from error


def read_file(
    files: FileSystem, path: str, read_content: Callable[[FileSystem, str], bytes] | None = None
) -> bytes:
    """Read a whole file with a function, by default as bytes.

    A missing file stays a `FileNotFoundError`, for the caller to explain.
    """
    with failing_to("read", files, path):
        try:
            return files.read(path) if read_content is None else read_content(files, path)
        except FileNotFoundError as error:
            missing = error
    raise missing


def require_no_link(files: FileSystem, directory: str, name: str) -> None:
    """Raise an error if the path of a directory below another one contains a link, which readers refuse."""
    if files.has_link(directory, name):
        raise OSError(
            errno.ELOOP,
            f"{name} is a link. Replace it by the directory itself, or link the whole checkpoint directory",
        )
