"""Sets a query back to the newest batch of which everything is whole."""

from __future__ import annotations

from dataclasses import dataclass

from spark_statestore.checkpoint.query.checkpoint import QueryCheckpoint
from spark_statestore.checkpoint.query.verify import Verification, Verifier
from spark_statestore.checkpoint.query.workers import Progress
from spark_statestore.errors import CheckpointIOError, CorruptCheckpointError
from spark_statestore.savepoint.rollback import rollback

__all__ = ["Repair", "repair"]


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair found, and did.

    Attributes
    ----------
    path
        The checkpoint location.
    dry_run
        Whether nothing was changed.
    batch
        The newest whole batch.
    broken
        What is broken in the batches after it, newest first; the first one with the batch that Spark had begun.
    moved
        The files that the rollback moved aside, or would; none if nothing is broken.
    """

    path: str
    dry_run: bool
    batch: int
    broken: tuple[Verification, ...]
    moved: tuple[str, ...]


def repair(
    path: str,
    dry_run: bool = False,
    *,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> Repair:
    """Roll a query back to the newest batch that is whole; nothing is done if the newest one is.

    The query must not run. What it did in the batches after that one it will do again, with the same
    input as far as its sources still have it: see `spark_statestore.rollback`.

    Parameters
    ----------
    dry_run
        Only look.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.
    progress
        Told, for each batch that is looked at, how many stores are done, and of how many.

    Raises
    ------
    CheckpointNotFoundError
        If there is no checkpoint.
    CheckpointIOError
        If the storage failed, so that it is not known what is broken: nothing is rolled back for that.
    CorruptCheckpointError
        If no batch is whole.
    """
    checkpoint = QueryCheckpoint(path, checkpoints_dir=checkpoints_dir)
    verifier = Verifier(checkpoint)
    broken: list[Verification] = []
    newest = checkpoint.newest_batch()
    # If only the batch that Spark has begun is broken, it is enough to take that one back.
    looks = [(newest, True), *((batch, False) for batch in reversed(checkpoint.batches()))]
    for batch, begun in looks:
        found = verifier.verify(batch, progress, begun=begun)
        if found.ok:
            moved = (
                tuple(rollback(path, batch, dry_run=dry_run, checkpoints_dir=checkpoints_dir))
                if broken
                else ()
            )
            if moved or not broken:
                return Repair(checkpoint.url, dry_run, batch, tuple(broken), moved)
            # What is broken is not what a roll-back would take away.
            continue
        for problem in found.problems:
            if problem.kind == "unreadable":
                raise CheckpointIOError(
                    f"{checkpoint.url}: batch {batch} is not rolled back, because it is not known to be broken. "
                    f"{problem.what}: {problem.message}"
                )
        if begun or batch != newest:
            broken.append(found)
    first = broken[0].problems[0]
    raise CorruptCheckpointError(
        f"no batch of {checkpoint.url} is whole; of the newest one, {broken[0].batch}, {len(broken[0].problems)} parts are "
        f"broken, such as {first.what}: {first.message} If the state lies elsewhere, give the checkpointsDir that the query "
        "has; else restore a savepoint or a backup. Nothing was changed."
    )
