"""Which checkpoints newer ones take the place of: a pure decision."""

from __future__ import annotations

from collections.abc import Sequence

from spark_statestore.checkpoint.completed.properties import CheckpointProperties

__all__ = ["subsumed"]


def subsumed(retained: Sequence[CheckpointProperties], most: int) -> list[int]:
    """Which of the retained checkpoints go, so that if possible no more than some stay.

    The newest one stays. So does the newest that is no savepoint, since later checkpoints may
    build on it, unless the job stopped with the savepoint that is the newest one. Any older
    savepoint can go: its files are its owner's.

    Parameters
    ----------
    retained
        The checkpoints' properties, oldest first.
    most
        Checkpoints to retain.

    Returns
    -------
    list of int
        Their positions, ascending.

    Raises
    ------
    ValueError
        If none is to be retained.
    """
    if most < 1:
        raise ValueError(f"{most} checkpoints are to be retained, but it must be at least one")
    newest = len(retained) - 1
    last_checkpoint = max((i for i, kind in enumerate(retained) if not kind.is_savepoint), default=-1)
    stopped = bool(retained) and retained[newest].is_synchronous
    removable = [i for i in range(newest) if retained[i].is_savepoint or stopped or i != last_checkpoint]
    return removable[: max(len(retained) - most, 0)]
