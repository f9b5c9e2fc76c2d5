"""Restore of a savepoint, and copies of a checkpoint for a second query."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Literal, get_args

from spark_statestore.errors import OptionError, QueryRunningError
from spark_statestore.files import join
from spark_statestore.query.logs import CommitEntry
from spark_statestore.query.parallel import Progress
from spark_statestore.query.query_checkpoint import QueryCheckpoint
from spark_statestore.query.running import ActivityCheck
from spark_statestore.query.savepoint import Savepoint
from spark_statestore.query.savepoint_lookup import (
    is_or_was_savepoint,
    load_savepoint,
    open_checkpoint,
    require_own_files,
)
from spark_statestore.query.store_snapshot import StoreSnapshot
from spark_statestore.savepoints.copy import CheckpointCopy, EditOfLogs, unchanged
from spark_statestore.savepoints.create import held_if_possible
from spark_statestore.savepoints.new_location import new_location, unused_locations
from spark_statestore.savepoints.rescale_in_place import rescale_in_place
from spark_statestore.savepoints.savepoint_store import dispose_savepoint

ClaimMode = Literal["no_claim", "claim"]


def restore(
    savepoint: Savepoint | str,
    new_checkpoint: str,
    *,
    claim_mode: ClaimMode = "no_claim",
    partitions: int | None = None,
    keep_query_id: bool = False,
    checkpoints_dir: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> int:
    """Restore a savepoint to a new checkpoint location.

    The query resumes from it after the savepoint's batch. The checkpoint is a complete copy, which shares no
    file with the savepoint. Start the query with it as its ``checkpointLocation``. A sink that identifies
    batches by number and query id, as Delta Lake does, treats them as another query's unless the query keeps
    its id.

    Parameters
    ----------
    savepoint
        The savepoint, or the URL of its directory.
    new_checkpoint
        URL of the checkpoint location, which must be empty.
    claim_mode
        ``no_claim``: the savepoint stays, and any number of queries can be started from it. ``claim``: it
        is disposed of once the checkpoint is complete.
    partitions
        Number of state partitions, by default unchanged.
    keep_query_id
        Keep the query's id instead of a new one. Running queries must have different ids.
    checkpoints_dir
        The option ``checkpointsDir`` of the restored query.
    dry_run
        Check the savepoint's batch, the new location and the claim; copy and remove nothing. `verify` checks
        the state itself.
    progress
        Called with the number of stores that are copied and their total.

    Returns
    -------
    int
        The batch of the savepoint. The query resumes with the next one.

    Raises
    ------
    SavepointNotFoundError
        If there is no such savepoint.
    CheckpointExistsError
        If the new location is not empty.
    OptionError
        If there is no such claim mode.
    IllegalStateError, QueryRunningError
        If the savepoint is claimed, and others need it or a query was started in its directory.
    CheckpointError, StorageError
        If a file cannot be read or written. No files remain at the new location.
    ValueError
        If `partitions` is less than one.
    """
    if claim_mode not in get_args(ClaimMode):
        raise OptionError(
            f"the claim mode is {claim_mode!r}, but it must be one of {', '.join(get_args(ClaimMode))}."
        )
    restored = load_savepoint(savepoint if isinstance(savepoint, str) else savepoint.path)
    source = restored.checkpoint()
    require_own_files(restored, source)
    if claim_mode == "claim":
        # Raise before the copy rather than after it.
        dispose_savepoint(restored.path, dry_run=True)
    query_id = restored.query_id if keep_query_id else str(uuid.uuid4())
    if dry_run:
        source.require_batch(restored.batch)
        _require_partitions(partitions)
        unused_locations(source, new_checkpoint, _state_url(checkpoints_dir, query_id))
        return restored.batch
    _copy(source, restored.batch, new_checkpoint, query_id, partitions, checkpoints_dir, progress)
    if claim_mode == "claim":
        try:
            dispose_savepoint(restored.path)
        except Exception as error:
            error.add_note(
                f"the checkpoint {new_checkpoint} is complete, and the query can be started with it"
            )
            raise
    return restored.batch


def clone(
    path: str,
    new_checkpoint: str,
    *,
    batch: int | None = None,
    partitions: int | None = None,
    checkpoint_format: int | None = None,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Copy a query's checkpoint for a second query.

    The copy shares no file with the checkpoint and has a new query id: both queries may run, and either may
    be removed. The first query may run during the copy, as long as it retains the batch.

    Parameters
    ----------
    path
        The query's ``checkpointLocation``, or a savepoint.
    new_checkpoint
        URL of the new checkpoint location, which must be empty.
    batch
        The last batch of the copy, by default the newest committed one.
    partitions
        Number of state partitions of the copy, by default unchanged.
    checkpoint_format
        2: the copy has Spark's checkpoint format v2, also if the query has v1. By default unchanged.
    checkpoints_dir
        The option ``checkpointsDir`` of both queries.
    progress
        Called with the number of stores that are copied and their total.

    Returns
    -------
    int
        The batch. The second query resumes with the next one.

    Raises
    ------
    CheckpointNotFoundError
        If the checkpoint or the batch does not exist.
    CheckpointExistsError
        If the new location is not empty.
    OptionError
        If `checkpoint_format` is not 2: a query does not go back to v1.
    IllegalStateError
        If the query is rescaled or written in place meanwhile.
    CheckpointError, StorageError
        If a file cannot be read or written. No files remain at the new location.
    ValueError
        If `partitions` is less than one.
    """
    require_format(checkpoint_format)
    source = open_checkpoint(path, checkpoints_dir=checkpoints_dir)
    batch = source.require_batch(batch)
    query_id = str(uuid.uuid4())
    with_ids = checkpoint_format == 2
    _copy(source, batch, new_checkpoint, query_id, partitions, checkpoints_dir, progress, with_ids=with_ids)
    return batch


def require_format(checkpoint_format: int | None) -> None:
    """Raise `OptionError` if a copy cannot have this checkpoint format; None is that of its source."""
    if checkpoint_format not in (None, 2):
        raise OptionError(
            f"the checkpoint format is {checkpoint_format!r}, but it must be 2: no copy goes back to Spark's "
            "format v1, which does not say which attempt at a version counts."
        )


def rescale(
    path: str,
    new_checkpoint: str | None,
    partitions: int,
    *,
    in_place: bool = False,
    checkpoint_format: int | None = None,
    batch: int | None = None,
    stopped: bool = False,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Redistribute the state of a stopped query to another number of partitions.

    The unchanged query resumes after the batch, with the new number of tasks for each stateful operator. With
    a new location the checkpoint is copied: start the query with it. The source is not changed, so a query
    can also be started from it again by mistake. In place, the checkpoint itself changes at its newest batch,
    and a batch that is planned and not committed stays planned; earlier batches keep their partitions.

    A query from the copy would repeat batches that a running query commits after the copied one. So this is
    refused if the query seems to run, see `rollback`; `clone` makes such a copy for a second query.

    Parameters
    ----------
    path
        The query's ``checkpointLocation``, or a canonical savepoint.
    new_checkpoint
        URL of the new checkpoint location, which must be empty; None with `in_place`.
    partitions
        Number of state partitions of every operator, at most 32,768 in place. Aggregations without keys and
        limits keep one.
    in_place
        Change the checkpoint itself. An interrupted change is repeated.
    checkpoint_format
        2: the query has Spark's checkpoint format v2 from then on, also if it has v1, which cannot change in
        place. By default unchanged.
    batch
        The last batch of the copy, by default the newest committed one; not with `in_place`.
    stopped
        The query is stopped: do not check its logs for activity before.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.
    progress
        Called with the number of stores that are copied and their total.

    Returns
    -------
    int
        The batch. The query resumes with the next one.

    Raises
    ------
    OptionError
        If there is neither a new location nor `in_place`, or both, or a batch with `in_place`; if
        `checkpoint_format` is not 2. In place, if the checkpoint is a savepoint, or has format v1 and is not
        taken to v2.
    QueryRunningError
        If the query seems to run. Nothing was changed, and no files remain at a new location.
    RescaleError
        If a row is not in the partition that Spark's partitioning gives its key, or that partition is
        unknown. Nothing was changed, and no files remain at a new location.
    CheckpointNotFoundError
        If the checkpoint or the batch does not exist.
    CheckpointExistsError
        If the new location is not empty.
    CheckpointError, StorageError
        If a file cannot be read or written.
    ValueError
        If `partitions` is less than one.
    """
    require_format(checkpoint_format)
    with_ids = checkpoint_format == 2
    if in_place == (new_checkpoint is not None) or (in_place and batch is not None):
        raise OptionError(
            "a rescale needs a new location, or in_place=True and None as the new location and the batch. "
            "Nothing was changed."
        )
    if new_checkpoint is None:
        checkpoint = QueryCheckpoint(path, checkpoints_dir=checkpoints_dir, fsync=True)
        rescaled_batch = rescale_in_place(
            checkpoint, partitions, with_ids=with_ids, stopped=stopped, progress=progress
        )
        return checkpoint.require_batch(rescaled_batch)
    source = open_checkpoint(path, checkpoints_dir=checkpoints_dir)
    activity = None if is_or_was_savepoint(source) else ActivityCheck(source)
    batch = source.require_batch(batch)
    if activity is not None:
        activity.require_stopped(stopped=stopped)
    query_id = str(uuid.uuid4())
    _copy(
        source,
        batch,
        new_checkpoint,
        query_id,
        partitions,
        checkpoints_dir,
        progress,
        activity,
        with_ids=with_ids,
    )
    return batch


def _copy(
    source: QueryCheckpoint,
    batch: int,
    new_checkpoint: str,
    query_id: str,
    partitions: int | None,
    checkpoints_dir: str | None,
    progress: Progress | None,
    activity: ActivityCheck | None = None,
    *,
    with_ids: bool = False,
) -> None:
    """Write a durable checkpoint to an empty location."""
    _require_partitions(partitions)
    with held_if_possible(source, batch, new_checkpoint):
        copy_held(
            source,
            batch,
            new_checkpoint,
            query_id,
            partitions=partitions,
            checkpoints_dir=checkpoints_dir,
            progress=progress,
            activity=activity,
            with_ids=with_ids,
        )


def copy_held(
    source: QueryCheckpoint,
    batch: int,
    new_checkpoint: str,
    query_id: str,
    *,
    entry: CommitEntry | None = None,
    partitions: int | None = None,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
    activity: ActivityCheck | None = None,
    with_ids: bool = False,
    change: Callable[[StoreSnapshot], StoreSnapshot] = lambda content: content,
    edit: EditOfLogs = unchanged,
    source_logs: Mapping[str, Mapping[str, bytes]] | None = None,
    has_operator_state: bool = True,
    state_of: tuple[QueryCheckpoint, int] | None = None,
    memory: int | None = None,
) -> None:
    """Write a durable checkpoint of a batch that is held to an empty location, see `CheckpointCopy`."""
    with new_location(source, new_checkpoint, _state_url(checkpoints_dir, query_id)) as location:
        copy = CheckpointCopy(
            source,
            batch,
            location,
            query_id=query_id,
            entry=entry,
            partitions=partitions,
            checkpoints_dir=checkpoints_dir,
            # An incomplete copy may look like a new query, and the savepoint may be disposed of next.
            fsync=True,
            with_ids=with_ids,
            change=change,
            edit=edit,
            source_logs=source_logs,
            has_operator_state=has_operator_state,
            state_of=state_of,
            memory=memory,
            progress=progress,
        )
        copy.write()
        copy.write_logs()
        if activity is not None and (added := activity.added()):
            raise QueryRunningError(
                f"the query of {source.url} runs: it has written {', '.join(added)} during the copy, which "
                "lacks them. Stop it, then try again; no copy was made."
            )
        copy.publish(reserved=True)


def _require_partitions(partitions: int | None) -> None:
    if partitions is not None and partitions < 1:
        raise ValueError(f"the number of partitions is {partitions}, but it must be at least 1")


def _state_url(checkpoints_dir: str | None, query_id: str) -> str | None:
    return None if checkpoints_dir is None else join(checkpoints_dir, query_id.replace("-", ""))
