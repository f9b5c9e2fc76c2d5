"""Another number of state partitions for a query, which Spark fixes when it first runs."""

from __future__ import annotations

from spark_statestore.savepoint.restore import clone

__all__ = ["rescale"]


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
