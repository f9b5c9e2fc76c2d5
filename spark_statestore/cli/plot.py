"""``plot``: state size and commit time by batch, size by partition, as a PNG."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from spark_statestore.checkpoint.query import QueryCheckpoint
from spark_statestore.checkpoint.query.summary import StoreSummary, summarise
from spark_statestore.cli import parameters
from spark_statestore.cli.output import FAILED, Output, size, with_output
from spark_statestore.errors import CheckpointNotFoundError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BatchPoint", "PartitionSize", "batch_point", "plot", "sizes_by_partition"]

_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """A batch in the plot.

    Attributes
    ----------
    batch
        Its number.
    rows, bytes
        Of all state after it.
    first_ms, last_ms
        Milliseconds from the start of the batch until the first and the last store was committed.
    """

    batch: int
    rows: int
    bytes: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """A partition of one store in the plot, as the newest batch left it."""

    operator: int
    store: str
    partition: int
    rows: int
    bytes: int


def batch_point(batch: int, started_ms: int, stores: Sequence[StoreSummary]) -> BatchPoint:
    """A batch, from its start and its stores, of which there is at least one."""
    committed = [store.created_ms - started_ms for store in stores]
    return BatchPoint(
        batch,
        sum(store.rows for store in stores),
        sum(store.bytes for store in stores),
        min(committed),
        max(committed),
    )


def sizes_by_partition(stores: Sequence[StoreSummary]) -> list[PartitionSize]:
    """Sizes as they are plotted."""
    return [PartitionSize(one.operator, one.store, one.partition, one.rows, one.bytes) for one in stores]


@click.command("plot")
@parameters.checkpoint
@click.argument("file", type=click.Path(dir_okay=False, writable=True))
@click.option(
    "--batches", type=click.IntRange(1), default=50, show_default=True, help="How many, up to the newest."
)
@parameters.checkpoints_dir
@with_output
def plot(out: Output, checkpoint: str, file: str, batches: int, checkpoints_dir: str | None) -> None:
    """Draw a PNG into FILE: state by batch, commit time by batch, state by partition.

    The commit time is that from a batch's start until its state was committed, in the first and in the last
    partition. Partitions that are much larger than others show as skew.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        out.failure(ImportError(f"plot needs {error.name}: pip install 'spark-statestore[plot]'"))
        raise click.exceptions.Exit(FAILED) from error
    query = QueryCheckpoint(checkpoint, checkpoints_dir=checkpoints_dir)
    chosen = query.batches()[-batches:]
    if not chosen:
        query.newest_batch()
    points = []
    newest: list[StoreSummary] = []
    with out.progress("reading metadata") as progress:
        for number, batch in enumerate(chosen):
            stores = _kept(query, batch, is_newest=batch == chosen[-1])
            if stores:
                started = int(query.offsets(batch).metadata.get("batchTimestampMs", stores[0].created_ms))
                points.append(batch_point(batch, started, stores))
                newest = stores
            progress(number + 1, len(chosen))
    if not points:
        raise CheckpointNotFoundError(f"the query at {query.url} has no state that could be plotted.")
    partitions = sizes_by_partition(newest)
    mpl.use("agg")
    _draw(file, query, points, partitions)
    out.result(
        {"file": file, "batches": points, "partitions": partitions},
        f"{file}: {len(points)} batches, {len(partitions)} partitions of stores, {size(points[-1].bytes)}",
    )


def _kept(query: QueryCheckpoint, batch: int, *, is_newest: bool) -> list[StoreSummary]:
    """The stores of a batch; none of one that is so old that its versions are not kept any more."""
    try:
        return summarise(query, batch)
    except CheckpointNotFoundError:
        if is_newest:
            raise
        return []


def _draw(
    file: str, query: QueryCheckpoint, points: Sequence[BatchPoint], partitions: Sequence[PartitionSize]
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9), layout="constrained")
    figure.suptitle(f"{query.url}\nquery {query.query_id}", fontsize=10)
    axes: Any = figure.subplot_mosaic([["size", "time"], ["partitions", "partitions"]])
    _draw_sizes(axes["size"], points)
    _draw_times(axes["time"], points)
    _draw_partitions(axes["partitions"], partitions)
    figure.savefig(file, dpi=110, format="png")


def _draw_sizes(axes: Axes, points: Sequence[BatchPoint]) -> None:
    divisor, unit = _unit(max(point.bytes for point in points))
    batches = [point.batch for point in points]
    sizes = axes.plot(batches, [point.bytes / divisor for point in points], marker=".", label="size")
    rows_axes = axes.twinx()
    rows = rows_axes.plot(
        batches, [point.rows for point in points], color="tab:orange", marker=".", linestyle=":", label="rows"
    )
    axes.set(title="State by batch: what a load reads", xlabel="batch", ylabel=unit)
    rows_axes.set(ylabel="rows")
    axes.legend(handles=[*sizes, *rows], loc="lower right")
    _from_zero(axes, rows_axes)
    axes.locator_params(axis="x", integer=True)


def _draw_times(axes: Axes, points: Sequence[BatchPoint]) -> None:
    batches = [point.batch for point in points]
    axes.plot(batches, [point.last_ms / 1000 for point in points], marker=".", label="last partition")
    axes.plot(batches, [point.first_ms / 1000 for point in points], marker=".", label="first partition")
    axes.set(title="From a batch's start to its commits", xlabel="batch", ylabel="seconds")
    axes.legend(loc="lower right")
    _from_zero(axes)
    axes.locator_params(axis="x", integer=True)


def _draw_partitions(axes: Axes, partitions: Sequence[PartitionSize]) -> None:
    totals: dict[tuple[int, int], int] = {}
    by_store: dict[tuple[int, str], dict[tuple[int, int], int]] = {}
    for one in partitions:
        place = (one.operator, one.partition)
        totals[place] = totals.get(place, 0) + one.bytes
        by_store.setdefault((one.operator, one.store), {})[place] = one.bytes
    position = {place: number for number, place in enumerate(sorted(totals))}
    divisor, unit = _unit(max(totals.values()))
    below = dict.fromkeys(position, 0.0)
    for (operator, store), sizes in by_store.items():
        axes.bar(
            [position[place] for place in sizes],
            [value / divisor for value in sizes.values()],
            bottom=[below[place] for place in sizes],
            label=f"operator {operator}, {store}",
        )
        for place, value in sizes.items():
            below[place] += value / divisor
    median = statistics.median(totals.values())
    skew = (
        f"the largest is {max(totals.values()) / median:.1f} times the median" if median else "most are empty"
    )
    axes.axhline(median / divisor, color="black", linewidth=0.8, linestyle="--", label="median")
    axes.set(title=f"State by partition: {skew}", xlabel="operator.partition", ylabel=unit)
    ticks = list(position.items())[:: max(1, len(position) // 40)]
    axes.set_xticks(
        [number for _, number in ticks], [f"{operator}.{partition}" for (operator, partition), _ in ticks]
    )
    axes.tick_params(axis="x", rotation=90 if len(ticks) > 16 else 0)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)


def _from_zero(*all_axes: Axes) -> None:
    for axes in all_axes:
        axes.margins(y=0.1)
        axes.set_ylim(bottom=0)


def _unit(largest: int) -> tuple[int, str]:
    """What sizes are shown in: bytes of the unit, and its name."""
    power = min((max(largest, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return 1 << (10 * power), _UNITS[power]
