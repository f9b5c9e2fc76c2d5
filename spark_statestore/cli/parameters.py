"""Arguments and options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

checkpoint = click.argument("checkpoint")
"""The checkpoint location, a path or a URL."""

checkpoints_dir = click.option(
    "--checkpoints-dir", metavar="URL", help="The option checkpointsDir of the query, if it was set."
)

batch = click.option(
    "--batch", type=click.IntRange(0), metavar="N", help="The batch.  [default: the newest one]"
)

dry_run = click.option("--dry-run", is_flag=True, help="Print what would be done, change nothing.")

stopped = click.option("--stopped", is_flag=True, help="The query is stopped: skip the check for activity.")

partitions = click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    help="Number of state partitions.  [default: unchanged]",
)

checkpoint_format = click.option(
    "--checkpoint-format",
    type=click.IntRange(2, 2),
    metavar="2",
    help="Write Spark's checkpoint format v2, also if the query has v1.",
)


operator = click.option(
    "--operator", type=click.IntRange(0), default=0, show_default=True, help="Number of the operator."
)


def store(command: Command) -> Command:
    """Add the options that select a store of the query."""
    name = click.option("--store", default="default", show_default=True, help="Name of the store.")
    return operator(name(command))


def state(command: Command) -> Command:
    """Add the options that select a state of the query."""
    column_family = click.option("--column-family", metavar="NAME", help="Column family or state variable.")
    return store(column_family(command))


def part(command: Command) -> Command:
    """Add the options that select a part of the state."""
    return state(
        click.option("--partition", type=click.IntRange(0), metavar="N", help="Only this partition.")(command)
    )
