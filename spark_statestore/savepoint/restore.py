"""Starts a query from a savepoint, or a second one from a checkpoint."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Final, Literal, get_args

from spark_statestore.checkpoint.files import FileSystem, join, open_file_system
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.query.checkpoint import METADATA, QueryCheckpoint
from spark_statestore.errors import CheckpointExistsError, OptionError
from spark_statestore.savepoint.assemble import DIRECTORIES, assemble
from spark_statestore.savepoint.dispose import dispose_savepoint
from spark_statestore.savepoint.savepoint import (
    Savepoint,
    load_savepoint,
    open_checkpoint,
    require_own_files,
)
from spark_statestore.savepoint.take import kept_if_possible

__all__ = ["IN_PROGRESS", "ClaimMode", "clone", "rescale", "restore"]

IN_PROGRESS: Final = "_in-progress"
"""File in a checkpoint location that is not all written yet."""

ClaimMode = Literal["no_claim", "claim"]


def restore(
    savepoint: Savepoint | str,
    new_checkpoint: str,
    *,
    claim_mode: ClaimMode = "no_claim",
    partitions: int | None = None,
    keep_query_id: bool = False,
    checkpoints_dir: str | None = None,
) -> int:
    """Make a checkpoint of a savepoint, from which the query goes on exactly where the savepoint was taken.

    The checkpoint has a copy of everything, so it shares nothing with the savepoint. Start the query with
    it as its ``checkpointLocation``. A sink that knows batches by their number and the query, as Delta Lake does,
    takes them for another query's unless the query keeps its id.

    Parameters
    ----------
    savepoint
        The savepoint, or the URL of its directory.
    new_checkpoint
        URL of the checkpoint location, where nothing may be yet.
    claim_mode
        ``no_claim``: the savepoint stays, and any number of queries can be started from it. ``claim``: it
        is disposed of once the checkpoint is whole.
    partitions
        Number of state partitions, as it was by default.
    keep_query_id
        Whether the query has the id that it had, instead of a new one. Two that run must not have the same.
    checkpoints_dir
        The option ``checkpointsDir`` that the query will have.

    Returns
    -------
    int
        The batch of the savepoint. The query goes on with the next one.

    Raises
    ------
    SavepointNotFoundError
        If there is no such savepoint.
    CheckpointExistsError
        If something is at the new location.
    OptionError
        If there is no such claim mode.
    IllegalStateError
        If the savepoint is claimed and others need it.
    CheckpointError, StorageError
        If something cannot be read or written. Nothing is left at the new location.
    ValueError
        If there are to be less than one partition.
    """
    if claim_mode not in get_args(ClaimMode):
        raise OptionError(
            f"the claim mode is {claim_mode!r}, but it must be one of {', '.join(get_args(ClaimMode))}."
        )
    found = load_savepoint(savepoint if isinstance(savepoint, str) else savepoint.path)
    source = found.checkpoint()
    require_own_files(found, source)
    if claim_mode == "claim":
        # Refused now rather than after the copy.
        dispose_savepoint(found.path, dry_run=True)
    query_id = found.query_id if keep_query_id else str(uuid.uuid4())
    _copy(source, found.batch, new_checkpoint, query_id, partitions, checkpoints_dir)
    if claim_mode == "claim":
        try:
            dispose_savepoint(found.path)
        except Exception as error:
            error.add_note(f"the checkpoint {new_checkpoint} is whole, and the query can be started with it")
            raise
    return found.batch


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
        The query's ``checkpointLocation``, or a savepoint.
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
    source = open_checkpoint(path, checkpoints_dir=checkpoints_dir)
    batch = source.require_batch(batch)
    _copy(source, batch, new_checkpoint, str(uuid.uuid4()), partitions, checkpoints_dir)
    return batch


def rescale(
    path: str,
    new_checkpoint: str,
    partitions: int,
    *,
    batch: int | None = None,
    checkpoints_dir: str | None = None,
) -> int:
    """Copy a query's checkpoint with its state spread over another number of partitions.

    The unchanged query goes on from the copy exactly where the batch left it, with the new number of
    tasks for each stateful operator. Stop it first, and start it again with the new location: the
    checkpoint stays as it is, and nobody keeps both from being run.

    Parameters
    ----------
    path
        The query's ``checkpointLocation``, or a canonical savepoint.
    new_checkpoint
        The new one, where nothing may be yet.
    partitions
        Partitions of the state of every operator. Aggregations without keys and limits keep their one.
    batch
        The batch that was done last, by default the newest one.
    checkpoints_dir
        The option ``checkpointsDir``, if the query has it.

    Returns
    -------
    int
        The batch. The query goes on with the next one.

    Raises
    ------
    RescaleError
        If a row is not in the partition that Spark gives its key, or which that is is not known.
        Nothing is left at the new location.
    CheckpointNotFoundError
        If the checkpoint or the batch is not there.
    CheckpointExistsError
        If something is at the new location.
    CheckpointError, StorageError
        If something cannot be read or written.
    ValueError
        If there are to be less than one partition.
    """
    return clone(path, new_checkpoint, batch=batch, partitions=partitions, checkpoints_dir=checkpoints_dir)


def _copy(
    source: QueryCheckpoint,
    batch: int,
    new_checkpoint: str,
    query_id: str,
    partitions: int | None,
    checkpoints_dir: str | None,
) -> None:
    """Assemble a checkpoint at a location where nothing is yet; when this returns, it survives a loss of power."""
    if partitions is not None and partitions < 1:
        raise ValueError(f"state has at least one partition, not {partitions}")
    state_url = None if checkpoints_dir is None else join(checkpoints_dir, query_id.replace("-", ""))
    with kept_if_possible(source, batch, new_checkpoint), _new_location(source, new_checkpoint, state_url):
        assemble(
            source,
            batch,
            new_checkpoint,
            query_id=query_id,
            partitions=partitions,
            checkpoints_dir=checkpoints_dir,
            # A part of it may look like a query that has not run yet, and the savepoint may be disposed of next.
            fsync=True,
        )


@contextlib.contextmanager
def _new_location(source: QueryCheckpoint, url: str, state_url: str | None) -> Iterator[None]:
    """Keep an empty location for what is written within; if that fails, all of it is removed.

    Raises
    ------
    CheckpointExistsError
        If something is there.
    """
    files, root = open_file_system(url, fsync=True)
    root = root.rstrip("/")
    if source.files.url(root).startswith(f"{source.url}/"):
        raise CheckpointExistsError(
            f"the new checkpoint {url} would lie inside of {source.url}, which it is made from, and go with it. Name "
            "another location."
        )
    places = [(files, root)]
    if state_url is not None:
        state_files, state_root = open_file_system(state_url, fsync=True)
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
        _remove(files, root)
        for at, directory in places[1:]:
            with contextlib.suppress(OSError):
                at.delete_directory(directory, recursive=True)
        raise
    with failing_to("delete", files, marker):
        files.delete(marker)
        files.sync_directory(root)


def _remove(files: FileSystem, root: str) -> None:
    """Remove what was written to a location: first what would make it look whole, and nothing that others may have put there.

    What cannot be removed is refused as a place for another one.
    """
    with contextlib.suppress(OSError):
        files.delete(join(root, METADATA))
    for name in DIRECTORIES:
        with contextlib.suppress(OSError):
            files.delete_directory(join(root, name), recursive=True)
    with contextlib.suppress(OSError):
        files.delete(join(root, IN_PROGRESS))
        files.delete_directory(root)


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
