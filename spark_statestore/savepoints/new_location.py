"""Locations of checkpoints that are not complete: reserved while they are written, and removed on failure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from spark_statestore.errors import CheckpointExistsError
from spark_statestore.files import FileSystem, join, open_file_system
from spark_statestore.files.failures import failing_to
from spark_statestore.query.orphans import STAGING_PREFIX
from spark_statestore.query.query_checkpoint import METADATA, RESERVED, QueryCheckpoint
from spark_statestore.savepoints.copy import DIRECTORIES
from spark_statestore.storage import CheckpointStorageLocationReference, encode_path_as_reference

IN_PROGRESS: Final = "_in-progress"
"""File in a checkpoint location that is not complete."""

SCRATCH: Final = "_conversion"
"""Directory of intermediate files in a checkpoint location that is not complete."""


@contextlib.contextmanager
def new_location(
    source: QueryCheckpoint, url: str, state_url: str | None = None, *, by: bytes = b""
) -> Iterator[CheckpointStorageLocationReference]:
    """Reserve an empty location for files written within the context; if it fails, they are removed.

    The reference to the location is for the code that writes them.
    `by` is the content of the marker file while it is reserved.
    """
    locations = unused_locations(source, url, state_url)
    files, root = locations[0]
    reserved: list[tuple[FileSystem, str]] = []
    try:
        for at, directory in locations:
            _reserve(at, directory, IN_PROGRESS, by)
            reserved.append((at, directory))
        # From now on, Spark starts no query here.
        _reserve(files, root, METADATA, RESERVED)
        yield encode_path_as_reference(url)
    except BaseException:
        if reserved:
            _remove_locations(reserved)
        raise
    for at, directory in locations:
        with failing_to("delete", at, join(directory, IN_PROGRESS)):
            at.delete(join(directory, IN_PROGRESS))
            at.sync_directory(directory)


def _reserve(files: FileSystem, directory: str, name: str, data: bytes) -> None:
    path = join(directory, name)
    with failing_to("write", files, path):
        files.make_directory(directory)
        try:
            files.create(path, data)
        except FileExistsError as error:
            raise _exists(files, directory, name) from error


def unused_locations(
    source: QueryCheckpoint, url: str, state_url: str | None = None
) -> list[tuple[FileSystem, str]]:
    """Return the directories of a new checkpoint and its state.

    Raise an error if one has files or is in the source.
    """
    files, root = open_file_system(url, fsync=True)
    root = root.rstrip("/")
    if source.files.url(root).startswith(f"{source.url}/"):
        raise CheckpointExistsError(
            f"the new checkpoint {url} is inside its source {source.url}, and would be removed with it. Use "
            "another location."
        )
    locations = [(files, root)]
    if state_url is not None:
        state_files, state_root = open_file_system(state_url, fsync=True)
        locations.append((state_files, state_root.rstrip("/")))
    for at, directory in locations:
        require_empty(at, directory)
    return locations


def remove_location(files: FileSystem, root: str) -> bool:
    """Remove the files written to a reserved location, last its reservation, and no file of others.

    A location with files that cannot be removed is not empty, so that the next copy to it is refused. Return
    False if the location is not reserved: a query was started before it could be, or the checkpoint is
    complete.
    """
    with contextlib.suppress(OSError):
        if was_reserved := is_reserved(files, root):
            for name in (SCRATCH, *DIRECTORIES):
                with contextlib.suppress(OSError):
                    files.delete_directory(join(root, name), recursive=True)
            for status in list(files.list_files(root)):
                # A process that was killed while it created a file left it.
                if status.path.startswith(join(root, STAGING_PREFIX)):
                    files.delete(status.path)
            files.delete(join(root, METADATA))
        _remove_marker(files, root)
        return was_reserved
    return False


def _remove_locations(locations: Sequence[tuple[FileSystem, str]]) -> None:
    was_reserved = remove_location(*locations[0])
    for files, directory in locations[1:]:
        with contextlib.suppress(OSError):
            if was_reserved:
                files.delete_directory(directory, recursive=True)
            else:
                _remove_marker(files, directory)


def _remove_marker(files: FileSystem, directory: str) -> None:
    with contextlib.suppress(OSError):
        files.delete(join(directory, IN_PROGRESS))
        files.delete_directory(directory)


def is_reserved(files: FileSystem, root: str) -> bool:
    """Return True if a location is reserved for a checkpoint that is not complete.

    No query can be started there.
    """
    try:
        return files.read(join(root, METADATA)) == RESERVED
    except FileNotFoundError:
        return False


def require_empty(files: FileSystem, directory: str) -> None:
    """Raise `CheckpointExistsError` if a directory has a file."""
    with failing_to("list", files, directory):
        first = next(iter(files.list_files(directory)), None)
        if first is not None:
            is_in_progress = files.exists(join(directory, IN_PROGRESS))
            raise _exists(
                files, directory, IN_PROGRESS if is_in_progress else first.path[len(directory) + 1 :]
            )


def _exists(files: FileSystem, directory: str, name: str) -> CheckpointExistsError:
    remedy = (
        "Another process writes a checkpoint to it, or was killed while it did: then delete the directory."
        if name == IN_PROGRESS
        else "Use an empty location."
    )
    return CheckpointExistsError(
        f"{files.url(directory)} is not empty: it has {name}, and existing files are never overwritten. "
        f"{remedy}"
    )
