"""``verify``, ``repair`` and ``gc``: is a checkpoint whole, what if not, and what does nobody need."""

from __future__ import annotations

from collections.abc import Sequence

import click

from spark_statestore.checkpoint.query.gc import gc as collect
from spark_statestore.checkpoint.query.verify import Problem, Verification
from spark_statestore.checkpoint.query.verify import verify as verify_checkpoint
from spark_statestore.cli import parameters
from spark_statestore.cli.output import FAILED, Output, plain, size, table, with_output
from spark_statestore.savepoint.repair import repair as repair_checkpoint

__all__ = ["gc", "repair", "verify"]


@click.command("verify")
@parameters.checkpoint
@parameters.batch
@parameters.checkpoints_dir
@with_output
def verify(out: Output, checkpoint: str, batch: int | None, checkpoints_dir: str | None) -> None:
    """Read and check every byte that the query needs to go on.

    Names what is broken. The exit code is 1 if anything is.
    """
    with out.progress("verifying stores") as progress:
        found = verify_checkpoint(checkpoint, batch, checkpoints_dir=checkpoints_dir, progress=progress)
    out.result(plain(found) | {"ok": found.ok}, *_verification(found))
    if not found.ok:
        raise click.exceptions.Exit(FAILED)


@click.command("repair")
@parameters.checkpoint
@parameters.dry_run
@parameters.checkpoints_dir
@with_output
def repair(out: Output, checkpoint: str, dry_run: bool, checkpoints_dir: str | None) -> None:
    """Go back to the newest batch that is whole.

    The query must be stopped. Spark's log entries of the batches after that one are moved aside, into
    rolled-back/, and the query does these batches again. Nothing is done if the newest batch is whole.
    """
    with out.progress("verifying stores") as progress:
        done = repair_checkpoint(checkpoint, dry_run, checkpoints_dir=checkpoints_dir, progress=progress)
    if not done.broken:
        out.result(done, f"batch {done.batch} is the newest one, and it is whole: nothing to repair")
        return
    out.result(
        done,
        *(part for found in done.broken for part in _verification(found)),
        f"the query {'would be' if dry_run else 'was'} set back to batch {done.batch}; files moved aside:",
        *done.moved,
    )


@click.command("gc")
@parameters.checkpoint
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Leave what is younger: a running query may be about to use it.",
)
@click.option(
    "--stopped", is_flag=True, help="The query does not run: also remove what it might still take up."
)
@parameters.dry_run
@parameters.checkpoints_dir
@with_output
def gc(
    out: Output, checkpoint: str, older_than: float, stopped: bool, dry_run: bool, checkpoints_dir: str | None
) -> None:
    """Remove files that nothing needs.

    These are state streams that no metadata names, versions that were never published, attempts that
    Spark decided against, and parts of files. Pinned versions stay. The exit code is 1 if a store was left
    alone because something of it cannot be read.
    """
    with out.progress("collecting") as progress:
        done = collect(
            checkpoint,
            dry_run,
            older_than=older_than * 3600,
            stopped=stopped,
            checkpoints_dir=checkpoints_dir,
            progress=progress,
        )
    files = f"{len(done.orphans)} files, {size(done.bytes)}"
    young = f"; {done.young} more are too young" if done.young else ""
    out.result(
        plain(done) | {"bytes": done.bytes},
        *(
            [table(["file", "bytes", "why"], [(o.url, size(o.size), o.reason) for o in done.orphans])]
            if done.orphans
            else []
        ),
        f"{'would be removed' if dry_run else 'removed'}: {files}{young}",
        *_problems(done.skipped),
    )
    if done.skipped:
        raise click.exceptions.Exit(FAILED)


def _verification(found: Verification) -> list[str]:
    if found.ok:
        what = f"{found.stores} stores, {found.files} files and parts of files, {size(found.bytes)}"
        return [f"batch {found.batch} is whole: {what}"]
    return [f"batch {found.batch} is broken in {len(found.problems)} places", *_problems(found.problems)]


def _problems(problems: Sequence[Problem]) -> list[str]:
    return [f"  {problem.kind}: {problem.what}\n    {problem.message}" for problem in problems]
