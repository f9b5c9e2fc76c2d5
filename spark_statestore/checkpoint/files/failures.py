"""From the errors of file systems to this package's."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_statestore.checkpoint.files.base import FileSystem
from spark_statestore.errors import CheckpointError, CheckpointIOError

__all__ = ["failing_to", "read_file", "require_no_link"]


@contextmanager
def failing_to(do: str, files: FileSystem, path: str) -> Iterator[None]:
    """Raise a `CheckpointIOError` that names the path for whatever a file system raises within.

    Parameters
    ----------
    do
        What is tried, to follow "could not".
    """
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointIOError(
            f"could not {do} {files.url(path)}: {error}. Check the permissions, and that the storage is reachable and "
            "has space; then try again."
        ) from error


def read_file(files: FileSystem, path: str, read: Callable[[FileSystem, str], bytes] | None = None) -> bytes:
    """A whole file. What it means that it is not there is for the caller to say.

    Parameters
    ----------
    read
        Reads it, where that is not as simple.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    CheckpointIOError
        If it cannot be read.
    """
    with failing_to("read", files, path):
        try:
            return files.read(path) if read is None else read(files, path)
        except FileNotFoundError as error:
            missing = error
    raise missing


def require_no_link(files: FileSystem, directory: str, name: str) -> None:
    """Fail if a directory below another one is reached by a link: nothing that is written there would be read again.

    Raises
    ------
    OSError
        If so.
    """
    if files.has_link(directory, name):
        raise OSError(
            errno.ELOOP, f"{name} is a link. Put the directory itself there, or link all of the checkpoint"
        )
