"""The commands ``verify``, ``repair`` and ``gc``: damage of a checkpoint, and orphaned files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from spark_statestore.cli import parameters
from spark_statestore.cli.output import FAILED, Output, plain, size, table, with_output
from spark_statestore.query.gc import gc as collect
from spark_statestore.query.repair import repair as repair_checkpoint
from spark_statestore.query.verify import Problem, Verification
from spark_statestore.query.verify import verify as verify_checkpoint
from spark_statestore.writing import verify_absent


@click.command("verify")
@parameters.checkpoint
@parameters.batch
@click.option(
    "--absent",
    metavar="SQL",
    help="Instead, search all that the stores have in storage for keys, as in \"key.user = 'ann'\". "
    "Needs DuckDB: pip install duckdb.",
)
@parameters.operator
@parameters.checkpoints_dir
@with_output
def verify(
    out: Output,
    checkpoint: str,
    batch: int | None,
    absent: str | None,
    operator: int,
    checkpoints_dir: str | None,
) -> None:
    """Read and check every byte that the query needs to continue.

    Broken parts are listed. The exit code is 1 if there are any, unless other files have the same state. With
    --absent, it is 1 if a stream has a key, or if there are files that no retained batch needs.
    """
    if absent is not None:
        if batch is not None:
            raise click.UsageError("--absent searches all batches; leave --batch.")
        _verify_absent(out, checkpoint, absent, operator=operator, checkpoints_dir=checkpoints_dir)
        return
    with out.progress("verifying stores") as progress:
        verification = verify_checkpoint(
            checkpoint, batch, checkpoints_dir=checkpoints_dir, progress=progress
        )
    out.result(plain(verification) | {"ok": verification.ok}, *_verification(verification))
    if not verification.ok:
        raise click.exceptions.Exit(FAILED)


def _verify_absent(out: Output, checkpoint: str, condition: str, **arguments: Any) -> None:
    with out.progress("searching stores") as progress:
        absence = verify_absent(checkpoint, condition, progress=progress, **arguments)
    batches = f"{absence.streams} streams of the batches {', '.join(map(str, absence.batches))}"
    out.result(
        plain(absence) | {"ok": absence.ok},
        *(f"{f.records} records: {f.stream}, {f.state}, batch {f.batch}" for f in absence.found),
        *(f"not read, as no retained batch needs it: {url}" for url in absence.unknown),
        f"{sum(f.records for f in absence.found)} records of such keys in {batches}",
    )
    if not absence.ok:
        raise click.exceptions.Exit(FAILED)


@click.command("repair")
@parameters.checkpoint
@parameters.stopped
@parameters.dry_run
@parameters.checkpoints_dir
@with_output
def repair(out: Output, checkpoint: str, dry_run: bool, **arguments: Any) -> None:
    """Roll back to the newest intact batch.

    The query must be stopped: refused if it seems to run. Spark's log entries of later batches are moved to
    rolled-back/, and the query runs these batches again. Nothing is changed if the newest batch is intact.
    """
    with out.progress("verifying stores") as progress:
        result = repair_checkpoint(checkpoint, dry_run, progress=progress, **arguments)
    parts = [part for verification in result.broken for part in _verification(verification)]
    undone = []
    if result.undone_rollback is not None:
        would = "would be" if dry_run else "was"
        undone = [f"the rollback {result.undone_rollback}, made while the query ran, {would} undone"]
    if not result.broken or not result.moved:
        intact = f"batch {result.batch} is the newest one, and it is intact: nothing to repair"
        out.result(result, *parts, *(undone or [intact]), *_problems(result.covered))
        return
    out.result(
        result,
        *undone,
        *parts,
        f"the query {'would be' if dry_run else 'was'} rolled back to batch {result.batch}; moved files:",
        *result.moved,
        *_problems(result.covered),
    )


@click.command("gc")
@parameters.checkpoint
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Minimum age of removed files: a running query may be about to use younger ones.",
)
@click.option(
    "--stopped", is_flag=True, help="The query is stopped: also remove files that a running query might use."
)
@parameters.dry_run
@parameters.checkpoints_dir
@with_output
def gc(out: Output, checkpoint: str, older_than: float, dry_run: bool, **arguments: Any) -> None:
    """Remove orphaned files.

    Orphans are state streams that no metadata references, unpublished versions, uncommitted attempts and
    partial files. Versions with a retention hold are kept. The exit code is 1 if a store was skipped because
    some of its files cannot be read.
    """
    with out.progress("collecting") as progress:
        result = collect(checkpoint, dry_run, older_than=older_than * 3600, progress=progress, **arguments)
    files = f"{len(result.orphans)} files, {size(result.bytes)}"
    young = f"; {result.young} more are too young" if result.young else ""
    out.result(
        plain(result) | {"bytes": result.bytes},
        *(
            [table(["file", "bytes", "why"], [(o.url, size(o.size), o.reason) for o in result.orphans])]
            if result.orphans
            else []
        ),
        f"{'would be removed' if dry_run else 'removed'}: {files}{young}",
        *_problems(result.skipped),
    )
    if result.skipped:
        raise click.exceptions.Exit(FAILED)


def _verification(verification: Verification) -> list[str]:
    if verification.ok:
        contents = (
            f"{verification.stores} stores, {verification.files} files and parts of files, "
            f"{size(verification.bytes)}"
        )
        return [f"batch {verification.batch} is intact: {contents}", *_problems(verification.problems)]
    return [
        f"batch {verification.batch} is not intact, problems: {len(verification.problems)}",
        *_problems(verification.problems),
    ]


def _problems(problems: Sequence[Problem]) -> list[str]:
    return [
        f"  {problem.kind}{', but covered' if problem.covered else ''}: {problem.what}\n    {problem.message}"
        for problem in problems
    ]
