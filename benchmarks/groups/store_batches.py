"""Batches of one store: get and put of random keys, at several sizes of state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import stores
from benchmarks.report import Criterion, Result, figures, median, percentile, table
from benchmarks.sessions import Remote, log
from benchmarks.stores import OURS, PROVIDERS, UNFORKED, better

LARGE = 1_000_000
MOST_OF_BUILT_IN = 1 / 20
MOST_GROWTH = 1.3

ABOUT = """One batch is getStore, a number of times get and put on random existing keys, and commit: {batches}
of each store, interleaved in changing order, after each ran such batches by itself for {warmup:g} seconds;
each store has a JVM of its own. Key two longs, value three longs, files on a local file system. Maintenance,
and what a store does in the background after its commit, runs between the batches and is not in their times.
{unforked} Times in milliseconds."""


@dataclass(frozen=True)
class Plan:
    """Amount of work."""

    sizes: tuple[int, ...] = (100_000, LARGE)
    """Sizes of the states of all stores."""
    growth: tuple[int, ...] = (100_000, LARGE, 5_000_000)
    """Sizes of the states of ours that are measured again, interleaved with each other only."""
    warmup: float = 3
    """Seconds for which each store runs batches that do not count."""
    batches: Mapping[int, int] = field(default_factory=lambda: {10_000: 30, 100: 20})
    """Number of batches, by their number of rows."""
    maintenance_every: int = 10
    """Number of batches after which each store's maintenance runs."""


FULL = Plan()
QUICK = Plan((20_000,), (10_000, 20_000), warmup=0.1, batches={10_000: 3, 100: 3}, maintenance_every=3)


Times = dict[tuple[str, int, int], list[float]]
"""Milliseconds by store, size of its state, and rows of a batch."""


def run(scratch: Path, quick: bool) -> Result:
    """Measure all stores interleaved, and then ours alone at all its sizes."""
    plan = QUICK if quick else FULL
    entries = [(name, size) for size in plan.sizes for name in PROVIDERS]
    entries += [(name, max(plan.sizes)) for name in UNFORKED if not quick]
    sides = measure(scratch / "sides", entries, plan)
    growth = measure(scratch / "growth", [(OURS, size) for size in plan.growth], plan)
    batches = " and ".join(f"{count} batches of {rows:,}" for rows, count in plan.batches.items())
    parts = [
        ABOUT.format(batches=batches, warmup=plan.warmup, unforked=stores.ABOUT_UNFORKED),
        *(table_of(sides, rows) for rows in plan.batches),
        table_of(growth, 10_000, f" at several sizes, {OURS} alone"),
    ]
    return Result("\n\n".join(parts), judge(sides, growth))


def measure(scratch: Path, entries: list[tuple[str, int]], plan: Plan) -> Times:
    """Measure stores at their sizes, all interleaved batch by batch in changing order."""
    opened: dict[tuple[str, int], Remote] = {}
    times: Times = {(*entry, rows): [] for rows in plan.batches for entry in entries}
    with stores.store_processes(scratch, (name for name, _ in entries)) as processes, stores.closing(opened):
        for name, size in entries:
            path = stores.directory_of(scratch, name, size)
            store = opened[name, size] = processes[name].create(stores.open_store, path, name)
            millis = store.fill(size) / 1e6
            store.settle()
            store.maintenance()
            log(f"{name}: {size:,} keys in {millis:,.0f} ms")
        for rows, count in plan.batches.items():
            log(f"{count} batches of {rows:,} rows each")
            for store in opened.values():
                stores.warm_up(plan.warmup, partial(_batch, store, rows))
                store.maintenance()
            for number, seed, order in stores.turns(opened, count):
                for entry in order:
                    times[(*entry, rows)].append(_batch(opened[entry], rows, seed))
                if (number + 1) % plan.maintenance_every == 0:
                    for entry in order:
                        opened[entry].maintenance()
    return times


def _batch(store: Remote, rows: int, seed: int) -> float:
    """Run one batch, return its milliseconds, and wait for background work."""
    millis: float = store.batch(rows, seed) / 1e6
    store.settle()
    return millis


def judge(sides: Times, growth: Times) -> list[Criterion]:
    """Compare with the better built-in at the largest common size, and the smallest with the largest size."""
    size = max(size for _, size, _ in sides)
    times = {
        name: median(millis)
        for (name, at, rows), millis in sides.items()
        if (at, rows) == (size, 10_000) and name in PROVIDERS
    }
    rival = better(times, set(times) - {OURS})
    sizes = sorted({size for _, size, _ in growth})
    first, last = (median(growth[OURS, at, 10_000]) for at in (sizes[0], sizes[-1]))
    work = f"batch of 10,000 rows at {size:,} keys"
    growth_work = f"batch of 10,000 rows, {sizes[0]:,} to {sizes[-1]:,} keys"
    return [
        Criterion(work, times[OURS], MOST_OF_BUILT_IN, "ms", times[rival], rival),
        Criterion(growth_work, last, MOST_GROWTH, "ms", first, f"at {sizes[0]:,}"),
    ]


def table_of(times: Times, rows: int, more: str = "") -> str:
    """Return the table of the batches with a number of rows."""
    shown = {(name, size): millis for (name, size, at), millis in times.items() if at == rows}
    lines = []
    for (name, size), millis in stores.in_order(shown):
        ratio = median(millis) / median(shown[OURS, size])
        cells = figures(median(millis), min(millis), percentile(millis, 95), ratio)
        lines.append([name, f"{size:,}", *cells])
    header = ["store", "keys", "median", "min", "p95", "ratio to ours"]
    return table(f"Batch of {rows:,} rows{more}", header, lines)
