"""Public functions that create, list, load, restore and dispose of savepoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_statestore.query.parallel import Progress
from spark_statestore.query.rollback import rollback
from spark_statestore.query.savepoint import Kind, Savepoint
from spark_statestore.query.savepoint_lookup import list_savepoints, load_savepoint, open_checkpoint
from spark_statestore.savepoints.create import create_savepoint
from spark_statestore.savepoints.file_sink import begin_output
from spark_statestore.savepoints.restore import clone, rescale, restore
from spark_statestore.savepoints.savepoint_store import SavepointStoreFactory, dispose_savepoint
from spark_statestore.savepoints.trigger import COORDINATOR, Running, require_kind, trigger_savepoint

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "Savepoint",
    "begin_output",
    "clone",
    "dispose_savepoint",
    "list_savepoints",
    "load_savepoint",
    "rescale",
    "restore",
    "rollback",
    "savepoint",
    "trigger_savepoint",
]


def savepoint(
    query_or_path: StreamingQuery | str,
    target: str | None = None,
    kind: Kind = "canonical",
    *,
    batch: int | None = None,
    checkpoints_dir: str | None = None,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Savepoint:
    """Take a savepoint of a query, running or not.

    A running query, passed as a query without a batch, gives a savepoint of its next batch, as
    `trigger_savepoint` does; otherwise it is of the newest committed batch, or of `batch`.

    Parameters
    ----------
    query_or_path
        A query, or the URL of its ``checkpointLocation``; also that of another savepoint.
    target
        URL of the directory in which its directory ``savepoint-<query>-<12 hex digits>`` is created; by
        default the query's option ``savepointsDir``.
    kind
        ``canonical``: a self-contained copy, which can be moved. ``pointer``: quick and small; the state
        stays in the checkpoint and is retained there.
    batch
        An earlier batch that is retained.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set and only a path is given.
    timeout
        Maximum time in seconds to wait for a running query's next batch.
    progress
        Called with the number of stores that are copied and their total, for a canonical savepoint of a
        committed batch.

    Raises
    ------
    OptionError
        If there is no such kind, or no target.
    CheckpointNotFoundError
        If there is no such batch.
    SavepointError
        If it fails. No files of it remain.
    """
    require_kind(kind)
    if isinstance(query_or_path, str):
        store = SavepointStoreFactory.create(target)
        checkpoint = open_checkpoint(query_or_path, checkpoints_dir=checkpoints_dir)
    else:
        running = Running(query_or_path)
        if batch is None and running.is_active:
            return trigger_savepoint(query_or_path, target, kind, timeout=timeout).result()
        store = SavepointStoreFactory.create(target, running.savepoints_dir)
        checkpoint, checkpoints_dir = running.checkpoint(), running.checkpoints_dir
    # The batch is committed, so the request is acknowledged at once.
    future = COORDINATOR.trigger_savepoint(
        lambda number: COORDINATOR.acknowledge(
            number,
            lambda: create_savepoint(
                checkpoint, store, kind, batch, checkpoints_dir=checkpoints_dir, progress=progress
            ),
        )
    )
    return future.result()
