"""Savepoints, as users ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_statestore.savepoint.dispose import dispose_savepoint
from spark_statestore.savepoint.restore import clone, rescale, restore
from spark_statestore.savepoint.rollback import rollback
from spark_statestore.savepoint.savepoint import (
    Kind,
    Savepoint,
    list_savepoints,
    load_savepoint,
    open_checkpoint,
)
from spark_statestore.savepoint.take import take
from spark_statestore.savepoint.trigger import Running, require_kind, require_target, trigger_savepoint

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "Savepoint",
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
) -> Savepoint:
    """Take a savepoint of a query, running or not.

    Of a running query without a batch named, it is the next batch that is done, as with `trigger_savepoint`; else it is the
    newest batch that was done, or the one that is named.

    Parameters
    ----------
    query_or_path
        A query, or the URL of its ``checkpointLocation``; also that of another savepoint.
    target
        URL of the directory in which it gets a directory of its own, ``savepoint-<query>-<12 hex digits>``; by
        default the query's option ``savepointsDir``.
    kind
        ``canonical``: a copy of all that the query needs, which can be moved. ``pointer``: quick and small; the
        state stays where it is, and is kept there.
    batch
        An earlier batch that is retained.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set and only a path is given.
    timeout
        Seconds to wait for a running query's next batch at most.

    Raises
    ------
    OptionError
        If there is no such kind, or no target.
    CheckpointNotFoundError
        If there is no such batch.
    SavepointError
        If it could not be taken. Nothing is left of it then.
    """
    require_kind(kind)
    if isinstance(query_or_path, str):
        target = require_target(target)
        checkpoint = open_checkpoint(query_or_path, checkpoints_dir=checkpoints_dir)
    else:
        found = Running(query_or_path)
        if batch is None and found.is_active:
            return trigger_savepoint(query_or_path, target, kind, timeout=timeout).result()
        target = require_target(target or found.savepoints_dir)
        checkpoint, checkpoints_dir = found.checkpoint(), found.checkpoints_dir
    return take(checkpoint, target, kind, batch, checkpoints_dir=checkpoints_dir)
