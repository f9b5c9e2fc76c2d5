"""``savepoint``, ``rollback``, ``clone`` and ``rescale``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import click

from spark_statestore.cli import parameters
from spark_statestore.cli.output import Output, plain, table, when, with_output

__all__ = ["clone", "rescale", "rollback", "savepoint"]


@click.group("savepoint")
def savepoint() -> None:
    """Take, list, show, restore and dispose of savepoints."""


@savepoint.command("trigger")
@parameters.checkpoint
@click.option("--target", metavar="DIR", help="Directory below which the savepoint is made.", required=True)
@click.option(
    "--kind",
    type=click.Choice(["canonical", "pointer"]),
    default="canonical",
    show_default=True,
    help="canonical: a whole copy, which can be moved. pointer: the state stays where it is, and is kept there.",
)
@parameters.batch
@parameters.checkpoints_dir
@with_output
def trigger(
    out: Output,
    checkpoint: str,
    target: str,
    kind: Literal["canonical", "pointer"],
    batch: int | None,
    checkpoints_dir: str | None,
) -> None:
    """Take a savepoint of a checkpoint. The query may be running."""
    from spark_statestore import savepoint as take

    with out.progress("taking the savepoint"):
        made = take(checkpoint, target, kind, batch=batch, checkpoints_dir=checkpoints_dir)
    out.result(made, made.path)


@savepoint.command("list")
@click.argument("target")
@with_output
def list_(out: Output, target: str) -> None:
    """List the savepoints below a directory."""
    from spark_statestore import list_savepoints

    with out.progress("looking for savepoints"):
        found = list_savepoints(target)
    rows = [(one.path, one.kind, one.query_id, one.batch, when(one.created_ms)) for one in found]
    out.result(
        {"savepoints": found},
        table(["savepoint", "kind", "query", "batch", "taken"], rows) if rows else "no savepoints",
    )


@savepoint.command("show")
@click.argument("savepoint")
@with_output
def show(out: Output, savepoint: str) -> None:
    """Show a savepoint."""
    from spark_statestore import load_savepoint

    found = load_savepoint(savepoint)
    rows = [
        (name.removesuffix("_ms").replace("_", " "), when(value) if name.endswith("_ms") else value)
        for name, value in plain(found).items()
    ]
    out.result(found, table(["", ""], rows))


@savepoint.command("restore")
@click.argument("savepoint")
@click.argument("new_checkpoint")
@parameters.partitions
@click.option(
    "--claim-mode",
    type=click.Choice(["no_claim", "claim"]),
    default="no_claim",
    show_default=True,
    help="claim: dispose of the savepoint once the new checkpoint is whole.",
)
@click.option(
    "--keep-query-id",
    is_flag=True,
    help="The new checkpoint is the same query's, which must not run any more.",
)
@parameters.checkpoints_dir
@with_output
def restore(
    out: Output,
    savepoint: str,
    new_checkpoint: str,
    partitions: int | None,
    claim_mode: Literal["no_claim", "claim"],
    keep_query_id: bool,
    checkpoints_dir: str | None,
) -> None:
    """Make a new checkpoint location from a savepoint.

    --checkpoints-dir is the option that the query will have.
    """
    from spark_statestore import restore as make

    with out.progress("restoring"):
        batch = make(
            savepoint,
            new_checkpoint,
            claim_mode=claim_mode,
            partitions=partitions,
            keep_query_id=keep_query_id,
            checkpoints_dir=checkpoints_dir,
        )
    _made(out, new_checkpoint, batch)


@savepoint.command("dispose")
@click.argument("savepoint")
@parameters.dry_run
@with_output
def dispose(out: Output, savepoint: str, dry_run: bool) -> None:
    """Remove a savepoint and what it keeps. Refused if others need it."""
    from spark_statestore import dispose_savepoint

    with out.progress("disposing"):
        removed = dispose_savepoint(savepoint, dry_run=dry_run)
    _listed(out, savepoint, removed, dry_run, "removed")


@click.command("rollback")
@parameters.checkpoint
@click.argument("batch", type=click.IntRange(0))
@parameters.dry_run
@parameters.checkpoints_dir
@with_output
def rollback(out: Output, checkpoint: str, batch: int, dry_run: bool, checkpoints_dir: str | None) -> None:
    """Set a stopped query back to BATCH.

    Spark's log entries of later batches are moved aside, into rolled-back/.
    """
    from spark_statestore import rollback as set_back

    with out.progress("rolling back"):
        moved = set_back(checkpoint, batch, dry_run=dry_run, checkpoints_dir=checkpoints_dir)
    _listed(out, checkpoint, moved, dry_run, "moved aside")


@click.command("clone")
@parameters.checkpoint
@click.argument("new_checkpoint")
@parameters.batch
@parameters.partitions
@parameters.checkpoints_dir
@with_output
def clone(
    out: Output,
    checkpoint: str,
    new_checkpoint: str,
    batch: int | None,
    partitions: int | None,
    checkpoints_dir: str | None,
) -> None:
    """Copy a checkpoint, to run the query a second time."""
    from spark_statestore import clone as copy

    with out.progress("cloning"):
        cloned = copy(
            checkpoint, new_checkpoint, batch=batch, partitions=partitions, checkpoints_dir=checkpoints_dir
        )
    _made(out, new_checkpoint, cloned)


@click.command("rescale")
@parameters.checkpoint
@click.argument("new_checkpoint")
@click.argument("partitions", type=click.IntRange(1))
@parameters.batch
@parameters.checkpoints_dir
@with_output
def rescale(
    out: Output,
    checkpoint: str,
    new_checkpoint: str,
    partitions: int,
    batch: int | None,
    checkpoints_dir: str | None,
) -> None:
    """Copy a checkpoint with another number of state PARTITIONS."""
    from spark_statestore import rescale as spread

    with out.progress("rescaling"):
        rescaled = spread(
            checkpoint, new_checkpoint, partitions, batch=batch, checkpoints_dir=checkpoints_dir
        )
    _made(out, new_checkpoint, rescaled)


def _made(out: Output, new_checkpoint: str, batch: int) -> None:
    out.result(
        {"checkpoint": new_checkpoint, "batch": batch},
        f"{new_checkpoint} is ready: a query that is started there goes on after batch {batch}",
    )


def _listed(out: Output, path: str, files: Sequence[str], dry_run: bool, done: str) -> None:
    out.result(
        {"path": path, "dry_run": dry_run, done.replace(" ", "_"): list(files)},
        f"{f'would be {done}' if dry_run else done}: {len(files)} files",
        *files,
    )
