"""The command ``plot``: state size and commit time by batch, size by partition, as a PNG."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from spark_statestore.cli import parameters
from spark_statestore.cli.output import Output, size, with_output
from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.monitoring.plots import draw_sizes, draw_times, require_matplotlib, unit
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.summary import StoreSummary, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """A batch in the plot.

    Attributes
    ----------
    batch
        Batch number.
    rows, bytes
        Rows and bytes of all state after the batch.
    first_ms, last_ms
        Milliseconds from the start of the batch until the first and the last store was committed.
    durable_ms
        Milliseconds until they were durable, later than that if commits are merged.
    """

    batch: int
    rows: int
    bytes: int
    first_ms: int
    last_ms: int
    durable_ms: int


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """A partition of a store in the plot, at the newest batch."""

    operator: int
    store: str
    partition: int
    rows: int
    bytes: int


def batch_point(
    batch: int, started_ms: int, stores: Sequence[StoreSummary], published: Mapping[int, float]
) -> BatchPoint:
    """Build a batch from its start time and its stores, at least one, see `MergedFiles.publication_times`."""
    committed = [store.created_ms - started_ms for store in stores]
    merged = [
        int(published[summary.version] * 1000) - started_ms
        for summary in stores
        if summary.version in published
    ]
    return BatchPoint(
        batch,
        sum(store.rows for store in stores),
        sum(store.bytes for store in stores),
        min(committed),
        max(committed),
        max(committed + merged),
    )


def sizes_by_partition(stores: Sequence[StoreSummary]) -> list[PartitionSize]:
    """Return the sizes to plot."""
    return [
        PartitionSize(summary.operator, summary.store, summary.partition, summary.rows, summary.bytes)
        for summary in stores
    ]


@click.command("plot")
@parameters.checkpoint
@click.argument("file", type=click.Path(dir_okay=False, writable=True))
@click.option(
    "--batches",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Number of batches, up to the newest.",
)
@parameters.checkpoints_dir
@with_output
def plot(out: Output, checkpoint: str, file: str, batches: int, checkpoints_dir: str | None) -> None:
    """Draw a PNG into FILE: state by batch, commit time by batch, state by partition.

    The commit time is the time from a batch's start until the state of the first and of the last partition
    was committed, and until all of it was durable if commits are merged. Partitions that are much larger than
    others show skew.
    """
    require_matplotlib("plot")
    import matplotlib as mpl

    query = QueryCheckpoint(checkpoint, checkpoints_dir=checkpoints_dir)
    chosen = query.batches()[-batches:]
    if not chosen:
        query.newest_batch()
    merged = query.merged_files()
    points = []
    newest: list[StoreSummary] = []
    with out.progress("reading metadata") as progress:
        for number, batch in enumerate(chosen):
            stores = _stores_of(query, batch, is_newest=batch == chosen[-1])
            if stores:
                started = int(query.offsets(batch).metadata.get("batchTimestampMs", stores[0].created_ms))
                published = merged.publication_times({store.version for store in stores})
                points.append(batch_point(batch, started, stores, published))
                newest = stores
            progress(number + 1, len(chosen))
    if not points:
        raise CheckpointNotFoundError(f"the query at {query.url} has no state that could be plotted.")
    partitions = sizes_by_partition(newest)
    mpl.use("agg")
    title = f"{query.url}\nquery {query.query_id}"
    figure_of(title, points, partitions).savefig(file, dpi=110, format="png")
    out.result(
        {"file": file, "batches": points, "partitions": partitions},
        f"{file}: {len(points)} batches, {len(partitions)} partitions of stores, {size(points[-1].bytes)}",
    )


def _stores_of(query: QueryCheckpoint, batch: int, *, is_newest: bool) -> list[StoreSummary]:
    """Return the stores of a batch; none if its versions are no longer retained."""
    try:
        return summarize(query, batch)
    except CheckpointNotFoundError:
        if is_newest:
            raise
        return []


def figure_of(title: str, points: Sequence[BatchPoint], partitions: Sequence[PartitionSize]) -> Figure:
    """Return the figure with the axes ``size``, ``time`` and ``partitions``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9), layout="constrained")
    figure.suptitle(title, fontsize=10)
    axes: Any = figure.subplot_mosaic([["size", "time"], ["partitions", "partitions"]])
    batches = [point.batch for point in points]
    draw_sizes(
        axes["size"],
        "State by batch: what a load reads",
        batches,
        [point.bytes for point in points],
        [point.rows for point in points],
    )
    durable = [point.durable_ms for point in points]
    last = [point.last_ms for point in points]
    times = {"durable": durable} if durable != last else {}
    times |= {"last partition": last, "first partition": [point.first_ms for point in points]}
    draw_times(axes["time"], "From a batch's start to its commits", batches, times)
    _draw_partitions(axes["partitions"], partitions)
    return figure


def _draw_partitions(axes: Axes, partitions: Sequence[PartitionSize]) -> None:
    totals: dict[tuple[int, int], int] = {}
    by_store: dict[tuple[int, str], dict[tuple[int, int], int]] = {}
    for measured in partitions:
        partition = (measured.operator, measured.partition)
        totals[partition] = totals.get(partition, 0) + measured.bytes
        by_store.setdefault((measured.operator, measured.store), {})[partition] = measured.bytes
    position = {partition: number for number, partition in enumerate(sorted(totals))}
    divisor, name = unit(max(totals.values()))
    below = dict.fromkeys(position, 0.0)
    for (operator, store), sizes in by_store.items():
        axes.bar(
            [position[partition] for partition in sizes],
            [value / divisor for value in sizes.values()],
            bottom=[below[partition] for partition in sizes],
            label=f"operator {operator}, {store}",
        )
        for partition, value in sizes.items():
            below[partition] += value / divisor
    median = statistics.median(totals.values())
    skew = (
        f"the largest is {max(totals.values()) / median:.1f} times the median" if median else "most are empty"
    )
    axes.axhline(median / divisor, color="black", linewidth=0.8, linestyle="--", label="median")
    axes.set(title=f"State by partition: {skew}", ylabel=name)
    ticks = list(position.items())[:: max(1, -(-len(position) // 40))]
    between = ", " if len(ticks) > 10 else ",\n"
    axes.set_xticks(
        [number for _, number in ticks],
        [f"operator {operator}{between}partition {partition}" for (operator, partition), _ in ticks],
        fontsize=8,
    )
    axes.tick_params(axis="x", rotation=90 if len(ticks) > 10 else 0)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
