"""The command ``plan``: what a query's state needs on a cluster, before there is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import click

from spark_statestore.assess.workload import HEAP_SHARE, Workload, bytes_in_memory, cost
from spark_statestore.cli.output import Output, table, with_output
from spark_statestore.cli.parameters import Command

_GB: Final = 1e9

_BUSY: Final = 0.25
"""Share of the cores beyond which the work on state is noted: Spark's own takes several times that."""

_DEFAULTS: Final = {field.name: field.default for field in dataclasses.fields(Workload)}


def _number(name: str, text: str, *, whole: bool = False) -> Callable[[Command], Command]:
    """Return the option for a field of `Workload`."""
    kind = click.IntRange(1) if whole else click.FloatRange(0, min_open=True)
    option = f"--{name.replace('_', '-')}"
    return click.option(option, type=kind, default=_DEFAULTS[name], show_default=True, help=text)


@click.command("plan")
@_number("rows", "Rows of state, such as 1e9.")
@_number("changed", "Rows that a batch changes.")
@_number("seconds", "Seconds from batch to batch.")
@_number("key_bytes", "Bytes of a key: 8, and 8 for each column; a longer one has its own bytes, too.")
@_number("row_bytes", "Bytes of a key and its value, likewise.")
@_number("stored_bytes", "Bytes of a row in storage, compressed.")
@_number("partitions", "Shuffle partitions.", whole=True)
@_number("executors", "Executors.", whole=True)
@_number("cores", "Cores of an executor.", whole=True)
@_number("retained", "Batches that the checkpoint keeps: minBatchesToRetain.", whole=True)
@click.option(
    "--executor-memory",
    type=click.FloatRange(0, min_open=True),
    default=16,
    show_default=True,
    metavar="GB",
    help="Heap of an executor, of which state has half.",
)
@with_output
def plan(out: Output, executor_memory: float, **workload: Any) -> None:
    """Print the memory, disk, cores, requests and start of a query's state on a cluster.

    The defaults are a hundred million rows of two longs and three. The figures are those of a model with
    constants that were measured on one machine: docs/plan.md has it, its errors and its limits.
    """
    work = Workload(**workload, heap=executor_memory * _GB * HEAP_SHARE)
    planned = cost(work)
    # Spark's own work needs the other half of a heap that has all of the state, or its index and marks.
    least = planned.least_heap / HEAP_SHARE
    largest = work.rows / work.executors * bytes_in_memory(work.row_bytes) / HEAP_SHARE
    figures = {
        "state of an executor, GB": planned.memory / _GB,
        "of that in mapped files, %": 100 * planned.mapped,
        "executor memory with all rows in the heap, GB": largest / _GB,
        "least executor memory, with all rows in mapped files, GB": least / _GB,
        "local disk of an executor, GB": planned.disk / _GB,
        "full snapshot in storage, GB": planned.base / _GB,
        "storage of all retained batches, GB": planned.stored / _GB,
        "written to storage in an hour, GB": planned.written_bytes / _GB,
        "written for each changed byte": planned.amplification,
        "requests to object storage in an hour": planned.requests,
        "cores busy with state": planned.core_seconds / work.seconds,
        "load after a start, seconds": planned.load_seconds,
    }
    node = {
        "workload": dataclasses.asdict(work),
        "cost": dataclasses.asdict(planned),
        "executorMemory": {"allInHeap": largest, "least": least},
    }
    notes = []
    if work.heap < planned.least_heap:
        notes.append(
            f"The executors' memory is too small: index and marks of the rows would be in files, and batches "
            f"slow. Have {least / _GB:,.1f} GB for each, or more executors."
        )
    busy = planned.core_seconds / work.seconds / (work.executors * work.cores)
    if busy > _BUSY:
        notes.append(
            f"The work on state alone takes {100 * busy:,.0f} % of all cores: have more of them, fewer "
            "partitions, or longer batches."
        )
    cells = [(name, f"{value:,.{0 if value >= 100 else 2}f}") for name, value in figures.items()]
    header = f"{work.rows:,.0f} rows, {work.changed:,.0f} changed every {work.seconds:g} s"
    out.result(node | {"notes": notes}, table((header, ""), cells), *(["", *notes] if notes else []))
