"""Repair of a query: rollback to its newest intact batch."""

from __future__ import annotations

from dataclasses import dataclass

from spark_statestore.errors import CheckpointIOError, CorruptCheckpointError
from spark_statestore.query.gaps import log_gaps
from spark_statestore.query.lease import Lease
from spark_statestore.query.parallel import Progress
from spark_statestore.query.query_checkpoint import QueryCheckpoint
from spark_statestore.query.rollback import find_rollback, rollback, undo_rollback
from spark_statestore.query.running import ActivityCheck
from spark_statestore.query.verify import Problem, Verification, Verifier

__all__ = ["Repair", "repair"]


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of a repair.

    Attributes
    ----------
    path
        The checkpoint location.
    dry_run
        True if nothing was changed.
    batch
        The newest intact batch.
    broken
        Findings for the batches after it, newest first; the first one includes the uncommitted batch. Damage
        that undoing a rollback repaired is not included.
    moved
        Files that the rollback moved, or would move; none if nothing is broken.
    covered
        Damage of that batch that the query repairs itself when it is started, see `Problem.covered`.
    undone_rollback
        Directory in ``rolled-back`` of a rollback that was undone, or would be, because it left a gap in the
        logs; None if there is none. In a dry run, ``broken`` is the finding before that.
    """

    path: str
    dry_run: bool
    batch: int
    broken: tuple[Verification, ...]
    moved: tuple[str, ...]
    undone_rollback: str | None = None
    covered: tuple[Problem, ...] = ()


def repair(
    path: str,
    dry_run: bool = False,
    *,
    stopped: bool = False,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> Repair:
    """Roll a query back to its newest intact batch; nothing is changed if that is the newest one.

    A batch is intact, too, if other files have the state of its damaged ones: the query reads those when it
    is started, and then writes a full snapshot.

    The query must be stopped. It runs the batches after that one again, with the same input as far as its
    sources still have it, see `spark_statestore.rollback`. If the logs have a gap because the query ran
    during an earlier rollback, that rollback is undone first.

    Parameters
    ----------
    dry_run
        Report damage, change nothing.
    stopped
        The query is stopped: do not check its logs for activity.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.
    progress
        Called with the number of stores done and their total, for each batch.

    Raises
    ------
    CheckpointNotFoundError
        If there is no checkpoint.
    CheckpointIOError
        If storage fails, so that damage is unknown. Nothing was changed.
    CorruptCheckpointError
        If no batch is intact.
    QueryRunningError
        If a repair is needed and the query seems to run. Nothing was changed.
    """
    checkpoint = QueryCheckpoint(path, checkpoints_dir=checkpoints_dir, fsync=True)
    undone = _undo_rollback(checkpoint, dry_run=dry_run, stopped=stopped)
    if undone is not None and dry_run:
        verification = Verifier(checkpoint).verify(progress=progress)
        return Repair(checkpoint.url, dry_run, verification.batch, (verification,), (), undone)
    verifier = Verifier(checkpoint)
    broken: list[Verification] = []
    newest = checkpoint.newest_batch()
    # If only the uncommitted batch is broken, rolling back that one is enough.
    candidates = [(newest, True), *((batch, False) for batch in reversed(checkpoint.batches()))]
    for batch, begun in candidates:
        verification = verifier.verify(batch, progress, begun=begun)
        if verification.ok:
            moved = (
                tuple(
                    rollback(path, batch, stopped=stopped, dry_run=dry_run, checkpoints_dir=checkpoints_dir)
                )
                if broken
                else ()
            )
            if moved or not broken:
                covered = verification.problems
                return Repair(checkpoint.url, dry_run, batch, tuple(broken), moved, undone, covered)
            # A rollback would not remove the broken files.
            continue
        for problem in verification.problems:
            if problem.kind == "unreadable":
                raise CheckpointIOError(
                    f"{checkpoint.url}: batch {batch} is not rolled back, because its damage is unknown. "
                    f"{problem.what}: {problem.message}"
                )
        if begun or batch != newest:
            broken.append(verification)
    first = broken[0].problems[0]
    raise CorruptCheckpointError(
        f"no batch of {checkpoint.url} is intact; the newest one, {broken[0].batch}, has "
        f"{len(broken[0].problems)} problems, such as {first.what}: {first.message} If the state is in "
        "another directory, pass the query's checkpointsDir; else restore a savepoint or a backup. Nothing "
        "was changed."
    )


def _undo_rollback(checkpoint: QueryCheckpoint, *, dry_run: bool, stopped: bool) -> str | None:
    """Undo a rollback of a running query and return its directory; None if there is no such gap."""
    gaps = log_gaps(checkpoint)
    time = find_rollback(checkpoint, gaps) if gaps else None
    if time is not None and not dry_run:
        ActivityCheck(checkpoint).require_stopped(stopped=stopped)
        with Lease(checkpoint):
            undo_rollback(checkpoint, time)
    return time
