"""Batches of one store: get and put of random keys, at several sizes of state."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import contest, session
from benchmarks.apart import StoreApart, stores_apart
from benchmarks.contest import OURS, PROVIDERS, UNFORKED
from benchmarks.report import figures, median, p95, table
from benchmarks.result import Criterion, Result

LARGE = 1_000_000
MOST_OF_BUILT_IN = 1 / 20
MOST_GROWTH = 1.3


@dataclass(frozen=True)
class Plan:
    """Amount of work.

    Parameters
    ----------
    sizes
        Sizes of the states of all stores.
    growth
        Sizes of the states of ours that are measured again, interleaved with each other only.
    warmup
        Seconds for which each store runs batches that do not count.
    """

    sizes: tuple[int, ...] = (100_000, LARGE)
    growth: tuple[int, ...] = (100_000, LARGE, 5_000_000)
    warmup: float = 3
    batches: int = 30
    operations: int = 10_000
    small_operations: int = 100
    small_batches: int = 20
    maintenance_every: int = 10


FULL = Plan()
QUICK = Plan(
    sizes=(20_000,), growth=(10_000, 20_000), warmup=0.1, batches=3, small_batches=3, maintenance_every=3
)


@dataclass
class Samples:
    """Measurements of one store, times in milliseconds."""

    batch: list[float] = field(default_factory=list)
    small_batch: list[float] = field(default_factory=list)
    maintenance: list[float] = field(default_factory=list)
    metrics: list[dict[str, int]] = field(default_factory=list)
    small_metrics: list[dict[str, int]] = field(default_factory=list)


Entry = tuple[str, int]
Samplings = dict[Entry, Samples]

_STEPS = {
    "load": "checkpointLoadTimeUs",
    "encode": "checkpointCommitEncodeTimeUs",
    "send": "checkpointCommitSendTimeUs",
    "store": "checkpointCommitStoreTimeUs",
}


def run(scratch: Path, quick: bool) -> Result:
    """Measure all stores interleaved, and then ours alone at all its sizes."""
    plan = QUICK if quick else FULL
    entries = [(name, size) for size in plan.sizes for name in PROVIDERS]
    entries += [(name, max(plan.sizes)) for name in UNFORKED if not quick]
    sides = measure(scratch / "sides", entries, plan)
    growth = measure(scratch / "growth", [(OURS, size) for size in plan.growth], plan)
    return Result(
        "batches",
        tables(sides, growth, plan),
        criteria(sides, growth),
        {"plan": asdict(plan), "sides": _as_json(sides), "growth": _as_json(growth)},
    )


def measure(directory: Path, entries: list[Entry], plan: Plan) -> Samplings:
    """Measure stores at their sizes, all interleaved batch by batch in changing order."""
    stores: dict[Entry, StoreApart] = {}
    samples: Samplings = {entry: Samples() for entry in entries}
    with stores_apart(directory) as opener, contest.closing(stores):
        for name, size in entries:
            path = contest.root(directory, name, size)
            store = stores[name, size] = opener.open("StoreBenchmark", path, name)
            millis = store.fill(size) / 1e6
            store.settle()
            store.maintenance()
            session.log(f"{name}: {size:,} keys in {millis:,.0f} ms")

        def each(
            operations: int, count: int, record: Callable[[Samples, float, dict[str, int]], None]
        ) -> None:
            for number, seed, order in contest.turns(stores, count):
                for entry in order:
                    millis = stores[entry].batch(operations, seed) / 1e6
                    record(samples[entry], millis, json.loads(stores[entry].metrics()))
                    stores[entry].settle()
                if (number + 1) % plan.maintenance_every == 0:
                    for entry in order:
                        samples[entry].maintenance.append(stores[entry].maintenance() / 1e6)

        def note_batch(of: Samples, millis: float, metrics: dict[str, int]) -> None:
            of.batch.append(millis)
            of.metrics.append(metrics)

        def note_small(of: Samples, millis: float, metrics: dict[str, int]) -> None:
            of.small_batch.append(millis)
            of.small_metrics.append(metrics)

        def warm_up(operations: int) -> None:
            session.log(f"batches of {operations:,} rows each")
            for store in stores.values():
                contest.warm_up(store, plan.warmup, partial(store.batch, operations))
                store.maintenance()

        warm_up(plan.operations)
        each(plan.operations, plan.batches, note_batch)
        if plan.small_batches:
            warm_up(plan.small_operations)
            each(plan.small_operations, plan.small_batches, note_small)
    return samples


def criteria(sides: Samplings, growth: Samplings, most: float = MOST_OF_BUILT_IN) -> list[Criterion]:
    """Compare with the better built-in at the largest common size, and the smallest with the largest size."""
    size = max(size for _, size in sides)
    times = {name: median(of.batch) for (name, at), of in sides.items() if at == size and name in PROVIDERS}
    rival = min((name for name in times if name != OURS), key=times.__getitem__)
    sizes = sorted(size for _, size in growth)
    first, last = (median(growth[OURS, at].batch) for at in (sizes[0], sizes[-1]))
    growth_work = f"batch of 10,000 rows, {sizes[0]:,} to {sizes[-1]:,} keys"
    return [
        Criterion(f"batch of 10,000 rows at {size:,} keys", times[OURS], most, "ms", times[rival], rival),
        Criterion(growth_work, last, MOST_GROWTH, "ms", first, f"at {sizes[0]:,}"),
    ]


def tables(sides: Samplings, growth: Samplings, plan: Plan) -> str:
    """Return the tables of all measurements."""
    parts = [
        (
            f"One batch is getStore, {plan.operations:,} times get and put on random existing keys, and commit: "
            f"{plan.batches} batches of each store, interleaved in changing order, after each ran such batches by itself "
            f"for {plan.warmup:g} seconds; each store has a JVM of its own. "
            "Key two longs, value three longs, files on a local file system. Maintenance, and "
            "what a store does in the background after its commit, runs between the batches and is not in their "
            f"times. {contest.ABOUT_UNFORKED} Times in milliseconds."
        ),
        batch_table(sides, plan),
        _batches(sides, "small_batch", f"Batch of {plan.small_operations:,} rows"),
        batch_table(growth, plan, f" at several sizes, {OURS} alone"),
        _others(sides | growth),
        _ours(growth, plan),
        _compactions(growth, plan),
    ]
    return "\n\n".join(parts)


def batch_table(samples: Samplings, plan: Plan, more: str = "") -> str:
    """Return a table of the times of the large batches."""
    return _batches(samples, "batch", f"Batch of {plan.operations:,} rows{more}")


def _as_json(samples: Samplings) -> list[dict[str, Any]]:
    # The tables have the metrics.
    return [
        {
            "store": name,
            "keys": size,
            "batch": of.batch,
            "small_batch": of.small_batch,
            "maintenance": of.maintenance,
        }
        for (name, size), of in samples.items()
    ]


def _batches(samples: Samplings, what: str, title: str) -> str:
    rows = []
    for (name, size), of in contest.in_order(samples):
        times: list[float] = getattr(of, what)
        ratio = median(times) / median(getattr(samples[OURS, size], what))
        rows.append([name, f"{size:,}", *figures(median(times), min(times), p95(times)), f"{ratio:.2f}"])
    return table(title, ["store", "keys", "median", "min", "p95", "ratio to ours"], rows)


def _others(samples: Samplings) -> str:
    rows = []
    for (name, size), of in contest.in_order(samples):
        memory = of.small_metrics[-1]["memoryUsedBytes"] / 2**20
        rows.append([name, f"{size:,}", *figures(median(of.maintenance), memory)])
    return table(
        "Maintenance, and memory as reported by the store",
        ["store", "keys", "maintenance", "memoryUsedBytes, MiB"],
        rows,
    )


def _ours(samples: Samplings, plan: Plan) -> str:
    rows = []
    for (_, size), of in samples.items():
        rows.append([f"{size:,}", f"{plan.operations:,}", *_breakdown(of.batch, of.metrics)])
        rows.append(
            [f"{size:,}", f"{plan.small_operations:,}", *_breakdown(of.small_batch, of.small_metrics)]
        )
    header = ["keys", "rows", "whole", *_STEPS, "operations and rest", "bytes written", "objects"]
    return table(f"Where a batch of {OURS} spends its time (medians)", header, rows)


def _breakdown(times: list[float], metrics: list[dict[str, int]]) -> list[str]:
    def of(name: str) -> float:
        return median([float(m[name]) for m in metrics])

    steps = {step: of(metric) / 1000 for step, metric in _STEPS.items()}
    rest = [
        t - sum(m[metric] for metric in _STEPS.values()) / 1000 for t, m in zip(times, metrics, strict=True)
    ]
    return [
        *figures(median(times), *steps.values(), median(rest)),
        f"{of('checkpointBytesWritten'):,.0f}",
        f"{of('checkpointObjectsWritten'):g}",
    ]


def _compactions(samples: Samplings, plan: Plan) -> str:
    # Rare and long, so no median shows them; they are part of the batches above.
    sentences = []
    for (_, size), of in samples.items():
        long = [t for t, m in zip(of.batch, of.metrics, strict=True) if m["stateTableCompactions"]]
        took = f", which took {', '.join(figures(*long))} ms" if long else ""
        sentences.append(f"at {size:,} keys in {len(long)} of {len(of.batch)} batches{took}")
    return (
        f"The log of the state is compacted in the first batch that finds more than half of it dead, about once in "
        f"as many batches of {plan.operations:,} rows as it takes to write the whole state again. That happened "
        + "; ".join(sentences)
        + "."
    )
