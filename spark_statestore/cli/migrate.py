"""The command ``migrate``: the state of an old query, taken to a changed one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import click

from spark_statestore.cli import parameters
from spark_statestore.cli.output import Output, with_output
from spark_statestore.writing import migrate as migrate_state
from spark_statestore.writing.bootstrap import StateKey

_COLUMN: Final = re.compile(r"(\d+)(?:/([^:=]+))?:([^=]+)=(.+)", re.DOTALL)
_STATE: Final = re.compile(r"(\d+)/([^=]+)=([^=]+)")
_OPERATOR: Final = re.compile(r"(\d+)=(\d+|none)")
_DROPPED: Final = re.compile(r"(\d+)(?:/(.+))?")


@click.command("migrate")
@click.argument("source")
@click.argument("started")
@click.argument("target")
@click.option(
    "--operator",
    "operators",
    multiple=True,
    metavar="NEW=OLD",
    help="Operator OLD's state goes to operator NEW; with none, it starts empty.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="OPERATOR/NEW=OLD",
    help="The variable OLD's state goes to the variable NEW of an operator; with none, it starts empty.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="OPERATOR[/STATE]:COLUMN=SQL",
    help="Values of a column, in SQL over the old rows, as in \"0:key.country='DE'\". Needs DuckDB.",
)
@click.option(
    "--drop",
    multiple=True,
    metavar="OPERATOR[/STATE]",
    help="Leave the state of an old operator, or one of its states.",
)
@parameters.batch
@parameters.dry_run
@parameters.checkpoints_dir
@with_output
def migrate(
    out: Output,
    source: str,
    started: str,
    target: str,
    operators: Iterable[str],
    states: Iterable[str],
    columns: Iterable[str],
    drop: Iterable[str],
    dry_run: bool,
    **arguments: Any,
) -> None:
    """Take the state of the query of SOURCE to a changed query, in the new checkpoint TARGET.

    STARTED is a checkpoint that the changed query has written in a run of its own, on a few rows. SOURCE is
    not changed.
    """
    values: dict[StateKey, dict[str, str]] = {}
    for operator, family, path, text in _parsed("--column", _COLUMN, columns):
        values.setdefault(_key(operator, family), {})[path] = text
    with out.progress("taking state") as report:
        migration = migrate_state(
            source,
            started,
            target,
            operators={
                int(new): None if old == "none" else int(old)
                for new, old in _parsed("--operator", _OPERATOR, operators)
            },
            states={
                (int(operator), new): None if old == "none" else old
                for operator, new, old in _parsed("--state", _STATE, states)
            },
            columns=values,
            drop=[_key(operator, family) for operator, family in _parsed("--drop", _DROPPED, drop)],
            dry_run=dry_run,
            progress=report,
            **arguments,
        )
    ready = f"{target} is ready: the changed query, started there, resumes after batch {migration.batch}"
    out.result(
        {"checkpoint": None if dry_run else target, "batch": migration.batch}
        | {"states": migration.states, "dropped": migration.dropped},
        str(migration),
        "dry run: nothing was written" if dry_run else ready,
    )


def _key(operator: str, family: str | None) -> StateKey:
    return int(operator) if family is None else (int(operator), family)


def _parsed(option: str, form: re.Pattern[str], texts: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the parts of an option's values."""
    parsed_values = []
    for text in texts:
        parts = form.fullmatch(text)
        if parts is None:
            raise click.UsageError(f"{option} {text!r} has another form than `migrate --help` shows.")
        parsed_values.append(parts.groups())
    return parsed_values
