"""From the errors of file systems to this package's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_statestore.checkpoint.files.base import FileSystem
from spark_statestore.errors import CheckpointError, CheckpointIOError

__all__ = ["failing_to"]


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
