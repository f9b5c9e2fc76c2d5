"""The commands ``get`` and ``diff``: rows of the state."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc

from spark_statestore.cli import parameters
from spark_statestore.cli.output import FAILED, Output, plain, table, with_output
from spark_statestore.rows import diff_state, iter_state


@click.command("get")
@parameters.checkpoint
@click.argument("key")
@parameters.batch
@parameters.part
@parameters.checkpoints_dir
@with_output
def get(out: Output, checkpoint: str, key: str, **state: Any) -> None:
    """Look up the rows of a key.

    KEY is JSON: an object with the key's columns, or some of them, as in '{"user": "ann", "window": {"start":
    "2026-01-01T00:00:00Z"}}'; or the value alone if the key has one column, as in 7 or '"ann"'. Later columns
    of one name are called user_2, user_3. Binary values are hex digits. The exit code is 1 if there is no
    such row.
    """
    parse_json(key)
    matching: list[dict[str, Any]] = []
    key_value = None
    with out.progress("reading state") as progress:
        row_count = 0
        for rows in iter_state(checkpoint, **state):
            if key_value is None:
                key_value = parse_key(key, rows.schema.field("key").type)
            matching += rows.filter(pc.fill_null(matches(rows["key"], key_value), False)).to_pylist()
            row_count += rows.num_rows
            progress(row_count, row_count)
    _print_rows(out, matching)
    if not matching:
        raise click.exceptions.Exit(FAILED)


@click.command("diff")
@parameters.checkpoint
@click.argument("batch_a", type=click.IntRange(0))
@click.argument("batch_b", type=click.IntRange(0))
@parameters.part
@parameters.checkpoints_dir
@with_output
def diff(out: Output, checkpoint: str, batch_a: int, batch_b: int, **state: Any) -> None:
    """List the rows that differ between BATCH_A and BATCH_B."""
    with out.progress("comparing"):
        changes = diff_state(checkpoint, batch_a, batch_b, **state)
    _print_rows(out, changes.to_pylist())


def parse_key(text: str, type_: pa.DataType) -> dict[str, Any]:
    """Parse the key to look up, by column."""
    columns = [field.name for field in type_]
    node = parse_json(text)
    if not isinstance(node, dict):
        if len(columns) != 1:
            raise click.UsageError(
                f"the key has the columns {', '.join(columns)}: give a JSON object with one or more of them."
            )
        # A number is taken as text if the column is text.
        node = {columns[0]: text if isinstance(node, int | float) else node}
    if unknown := sorted(node.keys() - set(columns)):
        raise click.UsageError(f"the key has no column {unknown[0]!r}, it has {', '.join(columns)}.")
    return node


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object and refuse duplicate names, of which json would keep the last."""
    names = [name for name, _ in pairs]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise click.UsageError(
            f"the key names the field {repeated!r} twice. Where a key has several fields of one name, later "
            f"ones are called {repeated}_2 and so on, see `show`."
        )
    return dict(pairs)


def parse_json(text: str) -> Any:
    """Parse a key as JSON."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except ValueError as error:
        quoted = shlex.quote(json.dumps(text, ensure_ascii=False))
        meant = (
            'quote all of it for the shell, as in \'{"user": "ann"}\''
            if text.lstrip().startswith(("{", "["))
            else f'write {quoted} if it is text, or an object as in \'{{"user": "ann"}}\''
        )
        raise click.UsageError(f"the key {text!r} is not JSON: {meant}.") from error


def matches(column: pa.Array, key: Any) -> pa.Array:
    """Compare each value with None, a scalar or its text, or for a struct with the fields to compare."""
    if key is None:
        return column.is_null()
    if isinstance(key, dict) and pa.types.is_struct(column.type):
        mask = column.is_valid()
        for name, value in key.items():
            position = column.type.get_field_index(name)
            if position < 0:
                names = ", ".join(field.name for field in column.type)
                raise click.UsageError(f"there is no field {name!r}, there is {names}.")
            mask = pc.and_(mask, pc.fill_null(matches(pc.struct_field(column, position), value), False))
        return mask
    try:
        if isinstance(key, str) and pa.types.is_binary(column.type):
            value = pa.scalar(bytes.fromhex(key), column.type)
        elif isinstance(key, str) and not pa.types.is_nested(column.type):
            value = pa.scalar(key).cast(column.type)
        else:
            value = pa.scalar(key, column.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise click.UsageError(
            f"{key!r} is not a value of the type {column.type}: {str(error).rstrip('.')}."
        ) from error
    if pa.types.is_nested(column.type):
        return pa.array([element.is_valid and element == value for element in column], pa.bool_())
    return pc.equal(column, value)


def _print_rows(out: Output, rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells: Iterable[list[str]] = ([_cell(row.get(name)) for name in names] for row in rows)
    out.result({"rows": rows}, table(names, cells) if rows else "no rows")


def _cell(value: Any) -> str:
    node = plain(value)
    return node if isinstance(node, str) else json.dumps(node, ensure_ascii=False)
