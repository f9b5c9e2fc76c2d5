"""The commands ``savepoint``, ``rollback``, ``clone`` and ``rescale``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from spark_statestore.cli import parameters
from spark_statestore.cli.output import Output, plain, table, when, with_output
from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.files import open_file_system
from spark_statestore.savepoints import api
from spark_statestore.savepoints.release_holds import inspect_holds, release_hold
from spark_statestore.savepoints.restore import ClaimMode


@click.group("savepoint")
def savepoint() -> None:
    """Trigger, list, show, restore and dispose of savepoints."""


@savepoint.command("trigger")
@parameters.checkpoint
@click.option("--target", metavar="DIR", help="Directory of the savepoint's directory.", required=True)
@click.option(
    "--kind",
    type=click.Choice(["canonical", "pointer"]),
    default="canonical",
    show_default=True,
    help="canonical: a full copy, which can be moved. pointer: the state is retained in the checkpoint.",
)
@parameters.batch
@parameters.checkpoints_dir
@with_output
def trigger(out: Output, checkpoint: str, target: str, **arguments: Any) -> None:
    """Trigger a savepoint of a checkpoint. The query may be running."""
    with out.progress("taking the savepoint") as report:
        result = api.savepoint(checkpoint, target, progress=report, **arguments)
    out.result(result, result.path)


@savepoint.command("list")
@click.argument("target")
@with_output
def list_(out: Output, target: str) -> None:
    """List the savepoints below a directory."""
    with out.progress("looking for savepoints"):
        savepoints = api.list_savepoints(target)
        files, path = open_file_system(target)
        if not savepoints and not files.is_directory(path):
            raise CheckpointNotFoundError(
                f"there is no directory {files.url(path)}, so no savepoint in it. Check the path: it is the "
                "one that savepoints were taken to, as --target or savepointsDir."
            )
    rows = [
        (listed.path, listed.kind, listed.query_id, listed.batch, when(listed.created_ms))
        for listed in savepoints
    ]
    out.result(
        {"savepoints": savepoints},
        table(["savepoint", "kind", "query", "batch", "taken"], rows) if rows else "no savepoints",
    )


@savepoint.command("show")
@click.argument("savepoint")
@with_output
def show(out: Output, savepoint: str) -> None:
    """Show a savepoint."""
    shown = api.load_savepoint(savepoint)
    rows = [
        (name.removesuffix("_ms").replace("_", " "), when(value) if name.endswith("_ms") else value)
        for name, value in plain(shown).items()
        if name != "attempts"
    ]
    out.result(
        shown,
        table(["savepoint", ""], rows),
        *_attempts(shown),
    )


def _attempts(savepoint: api.Savepoint) -> list[Table | str]:
    """Return the stores' versions that a pointer retains."""
    if not savepoint.attempts:
        return []
    rows = sorted(
        (store.operator, store.name, store.partition, by) for store, by in savepoint.attempts.items()
    )
    return ["\nRetained versions", table(["operator", "store", "partition", "attempt"], rows)]


@savepoint.command("restore")
@click.argument("savepoint")
@click.argument("new_checkpoint")
@parameters.partitions
@click.option(
    "--claim-mode",
    type=click.Choice(["no_claim", "claim"]),
    default="no_claim",
    show_default=True,
    help="claim: dispose of the savepoint once the new checkpoint is complete.",
)
@click.option(
    "--keep-query-id",
    is_flag=True,
    help="The new checkpoint is for the same query, which must be stopped.",
)
@parameters.dry_run
@parameters.checkpoints_dir
@with_output
def restore(
    out: Output, savepoint: str, new_checkpoint: str, claim_mode: ClaimMode, dry_run: bool, **arguments: Any
) -> None:
    """Restore a savepoint to a new checkpoint location.

    --checkpoints-dir is the option checkpointsDir of the restored query.
    """
    with out.progress("restoring") as report:
        batch = api.restore(
            savepoint, new_checkpoint, claim_mode=claim_mode, dry_run=dry_run, progress=report, **arguments
        )
    if not dry_run:
        _print_new_checkpoint(out, new_checkpoint, batch)
        return
    removed = api.dispose_savepoint(savepoint, dry_run=True) if claim_mode == "claim" else []
    out.result(
        {"checkpoint": new_checkpoint, "batch": batch, "dry_run": True, "removed": removed},
        f"{new_checkpoint} would be created: a query that is started there would resume after batch {batch}",
        f"would be removed: {len(removed)} files",
        *removed,
    )


@savepoint.command("dispose")
@click.argument("savepoint")
@parameters.dry_run
@with_output
def dispose(out: Output, savepoint: str, dry_run: bool) -> None:
    """Delete a savepoint and the state that it retains. Refused if others need it."""
    with out.progress("disposing"):
        removed = api.dispose_savepoint(savepoint, dry_run=dry_run)
    _print_files(out, savepoint, removed, dry_run, "removed")


@click.command("holds")
@parameters.checkpoint
@click.option("--remove", metavar="HOLD", help="Remove this hold, unless a savepoint needs it.")
@parameters.dry_run
@parameters.checkpoints_dir
@with_output
def holds(
    out: Output, checkpoint: str, remove: str | None, dry_run: bool, checkpoints_dir: str | None
) -> None:
    """List the holds that exclude versions of the state from cleanups, or remove one that nothing needs.

    A pointer savepoint has a hold, and so has a running copy. A process that is killed while it writes one
    leaves its hold.
    """
    if remove is not None:
        with out.progress("removing the hold"):
            removed = release_hold(checkpoint, remove, dry_run=dry_run, checkpoints_dir=checkpoints_dir)
        _print_files(out, checkpoint, [removed.url], dry_run, "removed")
        return
    with out.progress("reading holds"):
        inspected = inspect_holds(checkpoint, checkpoints_dir=checkpoints_dir)
    rows = [
        (
            info.name,
            info.batch,
            info.created_ms and when(info.created_ms),
            info.status,
            info.holder,
            info.reason,
        )
        for info in inspected
    ]
    out.result(
        {"path": checkpoint, "holds": inspected},
        table(["hold", "batch", "created", "status", "holder", "why"], rows) if rows else "no holds",
    )


@click.command("rollback")
@parameters.checkpoint
@click.argument("batch", type=click.IntRange(0))
@parameters.stopped
@parameters.dry_run
@parameters.checkpoints_dir
@with_output
def rollback(out: Output, checkpoint: str, batch: int, dry_run: bool, **arguments: Any) -> None:
    """Roll a stopped query back to BATCH.

    Spark's log entries of later batches are moved to rolled-back/. Refused if the query seems to run.
    """
    with out.progress("rolling back"):
        moved = api.rollback(checkpoint, batch, dry_run=dry_run, **arguments)
    _print_files(out, checkpoint, moved, dry_run, "moved")


@click.command("begin-output")
@click.argument("output")
@click.argument("batch", type=click.IntRange(0))
@click.option(
    "--compact-interval",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="The query's setting spark.sql.streaming.fileSink.log.compactInterval.",
)
@with_output
def begin_output(out: Output, output: str, batch: int, compact_interval: int) -> None:
    """Prepare a new OUTPUT of Spark's file sink for a query that resumes after BATCH.

    In an empty directory the sink fails at its next compaction, as entries of earlier batches are missing.
    """
    api.begin_output(output, batch, compact_interval=compact_interval)
    out.result(
        {"output": output, "batch": batch},
        f"{output} is ready for Spark's file sink in a query that resumes after batch {batch}",
    )


@click.command("clone")
@parameters.checkpoint
@click.argument("new_checkpoint")
@parameters.batch
@parameters.partitions
@parameters.checkpoint_format
@parameters.checkpoints_dir
@with_output
def clone(out: Output, checkpoint: str, new_checkpoint: str, **arguments: Any) -> None:
    """Copy a checkpoint, to run the query a second time."""
    with out.progress("cloning") as report:
        cloned = api.clone(checkpoint, new_checkpoint, progress=report, **arguments)
    _print_new_checkpoint(out, new_checkpoint, cloned)


@click.command("rescale")
@parameters.checkpoint
@click.argument("new_checkpoint", required=False)
@click.argument("partitions", required=False, metavar="PARTITIONS")
@click.option("--in-place", is_flag=True, help="Change the checkpoint itself, at its newest batch.")
@parameters.checkpoint_format
@parameters.batch
@parameters.stopped
@parameters.checkpoints_dir
@with_output
def rescale(
    out: Output,
    checkpoint: str,
    new_checkpoint: str | None,
    partitions: str | None,
    in_place: bool,
    **arguments: Any,
) -> None:
    """Give the state of a stopped query another number of PARTITIONS, in a copy or in place.

    Refused if the query seems to run: the copy would process later batches a second time.
    """
    if in_place and partitions is None:
        new_checkpoint, partitions = None, new_checkpoint
    if partitions is None or in_place == (new_checkpoint is not None):
        raise click.UsageError(
            "give a NEW_CHECKPOINT for the copy and the number of PARTITIONS, or the number alone with "
            "--in-place."
        )
    number: int = click.IntRange(1)(partitions)
    with out.progress("rescaling") as report:
        rescaled = api.rescale(
            checkpoint, new_checkpoint, number, in_place=in_place, progress=report, **arguments
        )
    _print_new_checkpoint(out, new_checkpoint or checkpoint, rescaled)


def _print_new_checkpoint(out: Output, new_checkpoint: str, batch: int) -> None:
    out.result(
        {"checkpoint": new_checkpoint, "batch": batch},
        f"{new_checkpoint} is ready: a query that is started there resumes after batch {batch}",
    )


def _print_files(out: Output, path: str, files: Sequence[str], dry_run: bool, action: str) -> None:
    out.result(
        {"path": path, "dry_run": dry_run, action.replace(" ", "_"): list(files)},
        f"{f'would be {action}' if dry_run else action}: {len(files)} files",
        *files,
    )
