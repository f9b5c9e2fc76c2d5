"""The commands ``state put``, ``state delete`` and ``state erase``: changes of the keys of a checkpoint."""

from __future__ import annotations

from typing import Any

import click

from spark_statestore.cli import parameters
from spark_statestore.cli.output import FAILED, Output, plain, with_output
from spark_statestore.rows.source import find_state
from spark_statestore.writing import erase as erase_state
from spark_statestore.writing import write_state
from spark_statestore.writing.files import read_changes
from spark_statestore.writing.rows import Mode

_in_place = click.option(
    "--in-place",
    is_flag=True,
    help="Change SOURCE itself, the checkpoint of a stopped query; without TARGET.",
)


@click.group("state")
def state() -> None:
    """Change keys: put or delete them in a copy or in place, or erase them from all batches."""


@state.command("put")
@click.argument("source")
@click.argument("target", required=False)
@click.argument("file", required=False, metavar="FILE")
@click.option(
    "--mode",
    type=click.Choice(["upsert", "replace"]),
    default="upsert",
    show_default=True,
    help="upsert: other keys keep their values. replace: the state has the keys of FILE and no others.",
)
@_in_place
@parameters.stopped
@parameters.batch
@parameters.state
@parameters.checkpoints_dir
@with_output
def put(
    out: Output,
    source: str,
    target: str | None,
    file: str | None,
    mode: Mode,
    in_place: bool,
    **arguments: Any,
) -> None:
    """Copy the checkpoint SOURCE to TARGET with the keys and values of FILE.

    FILE has the columns key and value, with the fields that `get` prints: Parquet, Arrow IPC (file or
    stream), or JSON lines, as in {"key": {"user": "ann"}, "value": {"count": 3}}. SOURCE is not changed,
    except with --in-place.
    """
    target, file = _target_and_file(target, file, in_place=in_place)
    if file is None:
        raise click.UsageError(
            "give a TARGET for the copy and a FILE with keys and values, or FILE alone with --in-place."
        )
    _write(out, source, target, file, None, mode, **arguments)


@state.command("delete")
@click.argument("source")
@click.argument("target", required=False)
@click.argument("file", required=False)
@click.option(
    "--where",
    metavar="SQL",
    help="Delete the keys for which a condition is true, as in \"key.user = 'ann' and value.count < 3\". "
    "Needs DuckDB: pip install duckdb.",
)
@_in_place
@parameters.stopped
@parameters.batch
@parameters.state
@parameters.checkpoints_dir
@with_output
def delete(
    out: Output,
    source: str,
    target: str | None,
    file: str | None,
    where: str | None,
    in_place: bool,
    **arguments: Any,
) -> None:
    """Copy the checkpoint SOURCE to TARGET without the keys of FILE, or those that --where selects.

    FILE has the column key, in a format of `state put`. SOURCE is not changed, except with --in-place.
    """
    target, file = _target_and_file(target, file, in_place=in_place)
    if (file is None) == (where is None):
        raise click.UsageError(
            "give the keys to delete either as FILE or with --where, and either a TARGET for the copy or "
            "--in-place."
        )
    _write(out, source, target, file, where, "delete", **arguments)


@state.command("erase")
@parameters.checkpoint
@click.option(
    "--where",
    required=True,
    metavar="SQL",
    help="Erase the keys for which a condition is true, as in \"key.user = 'ann'\". Needs DuckDB: pip "
    "install duckdb.",
)
@parameters.operator
@click.option(
    "--savepoint",
    "savepoints",
    multiple=True,
    metavar="DIR",
    help="Erase the keys from a canonical savepoint of the query, too. May be repeated.",
)
@parameters.stopped
@parameters.checkpoints_dir
@with_output
def erase(out: Output, checkpoint: str, where: str, **arguments: Any) -> None:
    """Erase keys from all retained batches of a stopped query, and from its savepoints, in place.

    The query has checkpoint format v2. What is left is searched as by `verify --absent`; the exit code is 1
    if a key may be left. An interrupted erasure is repeated.
    """
    with out.progress("erasing keys") as report:
        erasure = erase_state(checkpoint, where, progress=report, **arguments)
    batches = ", ".join(map(str, erasure.batches)) or "none"
    copies = f", and of {len(erasure.savepoints)} savepoints" if erasure.savepoints else ""
    out.result(
        plain(erasure) | {"ok": erasure.absence.ok},
        f"{erasure.stores} stores were written anew, of the batches: {batches}{copies}",
        *(f"written anew: the savepoint {url}" for url in erasure.savepoints),
        f"{erasure.rows} rows of the newest batch were erased, and {erasure.files} files deleted",
        *(f"not read, as no retained batch needs it: {url}" for url in erasure.absence.unknown),
    )
    if not erasure.absence.ok:
        raise click.exceptions.Exit(FAILED)


def _target_and_file(
    target: str | None, file: str | None, *, in_place: bool
) -> tuple[str | None, str | None]:
    """Return the arguments after SOURCE, of which there is no TARGET with --in-place."""
    if not in_place:
        if target is None:
            raise click.UsageError("give a TARGET for the copy, or --in-place to change SOURCE itself.")
        return target, file
    if file is not None:
        raise click.UsageError(
            f"give either a TARGET or --in-place: {target} is not used, as SOURCE itself changes."
        )
    return None, target


def _write(
    out: Output,
    source: str,
    target: str | None,
    file: str | None,
    where: str | None,
    mode: Mode,
    *,
    stopped: bool,
    batch: int | None,
    operator: int,
    store: str,
    column_family: str | None,
    checkpoints_dir: str | None,
) -> None:
    if stopped and target is not None:
        raise click.UsageError("--stopped is for --in-place: a query may run while it is copied.")
    changes: Any = where
    with out.progress("writing state") as report:
        if file is not None:
            source_state = find_state(
                source, operator, store, column_family, batch, None, checkpoints_dir=checkpoints_dir
            )
            changes = read_changes(file, source_state.columns(None).schema, mode)
        result = write_state(
            source,
            target,
            changes,
            operator=operator,
            store=store,
            column_family=column_family,
            mode=mode,
            batch=batch,
            in_place=target is None,
            stopped=stopped,
            checkpoints_dir=checkpoints_dir,
            progress=report,
        )
    summary = (
        f"{source} is changed: the query that is started there resumes after batch {result.batch}"
        if target is None
        else f"{target} is ready: a query that is started there resumes after batch {result.batch}"
    )
    out.result(
        {
            "checkpoint": source if target is None else target,
            "batch": result.batch,
            "added": result.added,
            "changed": result.changed,
            "removed": result.removed,
        },
        summary,
        f"keys: {result.added} added, {result.changed} changed, {result.removed} removed",
    )
