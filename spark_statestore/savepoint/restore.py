"""Starts a query from a savepoint, or a second one from a checkpoint."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Final

from spark_statestore.checkpoint.files import FileSystem, join, open_file_system
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.query.checkpoint import QueryCheckpoint
from spark_statestore.errors import CheckpointExistsError
from spark_statestore.savepoint.assemble import assemble

__all__ = ["clone", "new_location"]

IN_PROGRESS: Final = "_in-progress"
"""File in a checkpoint location that is not all written yet."""


def clone(
    path: str,
    new_checkpoint: str,
    *,
    batch: int | None = None,
    partitions: int | None = None,
    checkpoints_dir: str | None = None,
) -> int:
    """Copy a query's checkpoint, so that a second query can go on from it.

    The copy shares nothing with the checkpoint: both queries may run, and either may be removed. It has
    a query id of its own. The first query may run meanwhile, as long as it keeps the batch.

    Parameters
    ----------
    path
        The query's ``checkpointLocation``, or a canonical savepoint.
    new_checkpoint
        The new one, where nothing may be yet.
    batch
        The batch that was done last, by default the newest one.
    partitions
        Number of state partitions of the copy, as it is by default.
    checkpoints_dir
        The option ``checkpointsDir``, if the queries have it.

    Returns
    -------
    int
        The batch. The second query goes on with the next one.

    Raises
    ------
    CheckpointNotFoundError
        If the checkpoint or the batch is not there.
    CheckpointExistsError
        If something is at the new location.
    CheckpointError, StorageError
        If something cannot be read or written. Nothing is left at the new location.
    ValueError
        If there are to be less than one partition.
    """
    source = QueryCheckpoint(path, checkpoints_dir=checkpoints_dir)
    batch = source.require_batch(batch)
    query_id = str(uuid.uuid4())
    copy(source, batch, new_checkpoint, query_id, partitions, checkpoints_dir)
    return batch


def copy(
    source: QueryCheckpoint,
    batch: int,
    new_checkpoint: str,
    query_id: str,
    partitions: int | None,
    checkpoints_dir: str | None,
) -> None:
    """Assemble a checkpoint at a location where nothing is yet."""
    if partitions is not None and partitions < 1:
        raise ValueError(f"state has at least one partition, not {partitions}")
    state_url = None if checkpoints_dir is None else join(checkpoints_dir, query_id.replace("-", ""))
    with new_location(source, new_checkpoint, state_url):
        assemble(
            source,
            batch,
            new_checkpoint,
            query_id=query_id,
            partitions=partitions,
            checkpoints_dir=checkpoints_dir,
        )


@contextlib.contextmanager
def new_location(source: QueryCheckpoint, url: str, state_url: str | None) -> Iterator[None]:
    """Keep an empty location for what is written within; if that fails, all of it is removed.

    Raises
    ------
    CheckpointExistsError
        If something is there.
    """
    files, root = open_file_system(url)
    root = root.rstrip("/")
    if source.files.url(root).startswith(f"{source.url}/"):
        raise CheckpointExistsError(
            f"the new checkpoint {url} would lie inside of {source.url}, which it is made from, and go with it. Name "
            "another location."
        )
    places = [(files, root)]
    if state_url is not None:
        state_files, state_root = open_file_system(state_url)
        places.append((state_files, state_root.rstrip("/")))
    for at, directory in places:
        _require_empty(at, directory)
    marker = join(root, IN_PROGRESS)
    with failing_to("write", files, marker):
        files.make_directory(root)
        try:
            files.create(marker, b"")
        except FileExistsError as error:
            raise _exists(files, root, IN_PROGRESS) from error
    try:
        yield
    except BaseException:
        for at, directory in places:
            # What cannot be removed has no metadata, and is refused as a place for another one.
            with contextlib.suppress(OSError):
                at.delete_directory(directory, recursive=True)
        raise
    with failing_to("delete", files, marker):
        files.delete(marker)


def _require_empty(files: FileSystem, directory: str) -> None:
    with failing_to("list", files, directory):
        found = next(iter(files.list_files(directory)), None)
    if found is not None:
        raise _exists(files, directory, found.path[len(directory) + 1 :])


def _exists(files: FileSystem, directory: str, name: str) -> CheckpointExistsError:
    what = (
        "Another process is writing a checkpoint there, or one was ended while it did: then delete the directory."
        if name == IN_PROGRESS
        else "Name a location where nothing is."
    )
    return CheckpointExistsError(
        f"{files.url(directory)} is not empty, it has {name}, and nothing is ever written over. {what}"
    )
