"""The command ``watch``: the batches of a query as they are committed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.table import Table

from spark_statestore.cli import parameters
from spark_statestore.cli.output import Output, size, table, when, with_output
from spark_statestore.errors import CheckpointError, CheckpointNotFoundError
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.query.summary import StoreSummary, summarize_each

# Batches that the live table keeps.
_SHOWN: Final = 10

_COLUMNS: Final = (
    "batch",
    "committed",
    "operator",
    "name",
    "store",
    "partitions",
    "rows",
    "bytes",
    "chain length",
    "snapshot age",
)


@dataclass(frozen=True, slots=True)
class WatchedStore:
    """A store of an operator after a batch, over all partitions.

    The `damaged` partitions, whose metadata cannot be read, are left out.
    """

    operator: int
    name: str
    store: str
    partitions: int
    damaged: int
    rows: int
    bytes: int
    chain_length: int
    snapshot_age: int


@dataclass(frozen=True, slots=True)
class WatchedBatch:
    """A committed batch; `committed_ms` is the time of its last store, None if it has no state."""

    batch: int
    committed_ms: int | None
    stores: list[WatchedStore]


@click.command("watch")
@parameters.checkpoint
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks at the checkpoint.",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N batches.  [default: Ctrl-C]")
@parameters.checkpoints_dir
@with_output
def watch(
    out: Output, checkpoint: str, interval: float, count: int | None, checkpoints_dir: str | None
) -> None:
    """Show the newest batch, and each later one when it is committed.

    On a terminal this is one table, of the last ten batches, newest first. With --output json each batch is a
    line. The snapshot age is the number of versions since the last full snapshot.
    """
    batches = itertools.islice(_batches(checkpoint, checkpoints_dir, interval), count)
    try:
        if out.is_json or not out.is_terminal:
            for batch in batches:
                out.line(batch, _table([batch]))
            return
        shown: list[WatchedBatch] = []
        with out.live() as show:
            for batch in batches:
                # The newest one first: a terminal that is too low omits the end.
                shown = [batch, *shown][:_SHOWN]
                show(_table(shown))
    except KeyboardInterrupt:
        # The usual end.
        return


def _batches(checkpoint: str, checkpoints_dir: str | None, interval: float) -> Iterator[WatchedBatch]:
    """Yield the newest committed batch, then later ones.

    A batch whose state is removed before it is read is omitted.
    """
    last = None
    while True:
        # Another one each time: it caches the index of merged files.
        query = open_checkpoint(checkpoint, checkpoints_dir=checkpoints_dir)
        batches = query.batches()
        # A rollback removes batches, which are committed again.
        last = min(last, batches[-1]) if last is not None and batches else last
        for batch in batches[-1:] if last is None else [batch for batch in batches if batch > last]:
            last = batch
            try:
                summary = _watched(query, batch)
            except CheckpointNotFoundError:
                continue
            yield summary
        time.sleep(interval)


def _watched(query: QueryCheckpoint, batch: int) -> WatchedBatch:
    names = {operator.id: operator.name for operator in query.operators(batch)}
    groups: dict[tuple[int, str], list[StoreSummary | CheckpointError]] = {}
    for store, summary in summarize_each(query, batch).items():
        groups.setdefault((store.operator, store.name), []).append(summary)
    stores = []
    committed = []
    for (operator, store_name), group in groups.items():
        summaries = [stored for stored in group if isinstance(stored, StoreSummary)]
        committed += [stored.created_ms for stored in summaries]
        stores.append(
            WatchedStore(
                operator,
                names[operator],
                store_name,
                partitions=len(group),
                damaged=len(group) - len(summaries),
                rows=sum(stored.rows for stored in summaries),
                bytes=sum(stored.bytes for stored in summaries),
                chain_length=max((stored.chain_length for stored in summaries), default=0),
                snapshot_age=max((stored.version - stored.base_version for stored in summaries), default=0),
            )
        )
    return WatchedBatch(batch, max(committed, default=None), stores)


def _table(batches: list[WatchedBatch]) -> Table:
    has_damage = any(store.damaged for batch in batches for store in batch.stores)
    columns = [*_COLUMNS, "damaged"] if has_damage else _COLUMNS
    rows: list[list[Any]] = []
    for batch in batches:
        committed = "" if batch.committed_ms is None else when(batch.committed_ms)
        for store in batch.stores:
            row = [batch.batch, committed, store.operator, store.name, store.store, store.partitions]
            row += [store.rows, size(store.bytes), store.chain_length, store.snapshot_age, store.damaged]
            rows.append(row[: len(columns)])
        if not batch.stores:
            rows.append([batch.batch, "no state", *[None] * (len(columns) - 2)])
    return table(columns, rows)
