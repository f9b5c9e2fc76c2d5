"""Arguments and options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["batch", "checkpoint", "checkpoints_dir", "dry_run", "part", "partitions", "store"]

Command = TypeVar("Command", bound=Callable[..., Any])

checkpoint = click.argument("checkpoint")
"""The checkpoint location, a path or a URL."""

checkpoints_dir = click.option(
    "--checkpoints-dir", metavar="URL", help="The option checkpointsDir of the query, if it was set."
)

batch = click.option(
    "--batch", type=click.IntRange(0), metavar="N", help="The batch.  [default: the newest one]"
)

dry_run = click.option("--dry-run", is_flag=True, help="Only say what would be done.")

partitions = click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    help="Number of state partitions.  [default: as it was]",
)


def store(command: Command) -> Command:
    """Options that choose a store of the query."""
    for option in (
        click.option("--store", default="default", show_default=True, help="Name of the store."),
        click.option(
            "--operator", type=click.IntRange(0), default=0, show_default=True, help="Number of the operator."
        ),
    ):
        command = option(command)
    return command


def part(command: Command) -> Command:
    """Options that choose a part of the state."""
    for option in (
        click.option("--partition", type=click.IntRange(0), metavar="N", help="One partition alone."),
        click.option("--column-family", metavar="NAME", help="Column family or state variable."),
    ):
        command = option(command)
    return store(command)
