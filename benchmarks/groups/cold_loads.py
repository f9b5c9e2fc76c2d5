"""Loads of a state that an executor does not have: from a snapshot, and from a snapshot and deltas."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks import stores
from benchmarks.report import Criterion, Result, figures, median, table
from benchmarks.sessions import Remote, log
from benchmarks.stores import COPY, OURS, PROVIDERS, better

MOST_OF_BUILT_IN = 1 / 5

ABOUT = """A state of {keys:,} rows (key two longs, value three) is committed as a snapshot, {deltas} batches
change {operations:,} of its rows each, and no other snapshot is taken, but by RocksDB without changelog,
which takes one with every commit. Before and after that a new instance of the store loads the newest version:
{loads} times in changing order, after each store, in a JVM of its own, did so by itself for {warmup:g}
seconds. Its first 1,000 rows are compared with what was put. Files are in the page cache. With a local copy
the full snapshot is one that an earlier load has written to the host's disk. HDFSBacked and spark-statestore
have the whole state in memory then, RocksDB has opened its files. {unforked} Times in
milliseconds."""


@dataclass(frozen=True)
class Plan:
    """Amount of work; `warmup` in seconds."""

    keys: int = 1_000_000
    deltas: int = 50
    operations: int = 10_000
    loads: int = 9
    warmup: float = 5


FULL = Plan()
QUICK = Plan(keys=10_000, deltas=3, operations=1_000, loads=2, warmup=0.1)

Times = dict[tuple[str, int], list[float]]
"""Milliseconds by store and number of deltas."""


def run(scratch: Path, quick: bool) -> Result:
    """Load on all stores in turn."""
    plan = QUICK if quick else FULL
    times: Times = {}
    settings = {"minDeltasForSnapshot": "1000000"}
    (scratch / "copy").mkdir()
    with (
        stores.opened_stores(scratch, settings) as compared,
        stores.opened_with_copies(scratch / "copy", settings) as copied,
    ):
        opened = compared | copied
        for name, store in opened.items():
            store.fill(plan.keys, plan.keys, True)
            log(f"{name}: {plan.keys:,} rows")
        load(opened, 0, plan, times)
        for _, seed, order in stores.turns(opened, plan.deltas):
            for name in order:
                opened[name].batch(plan.operations, seed)
        for store in opened.values():
            store.settle()
        load(opened, plan.deltas, plan, times)
    about = ABOUT.format(**asdict(plan), unforked=stores.ABOUT_UNFORKED)
    return Result(f"{about}\n\n{table_of(times)}", judge(times, plan.keys))


def load(opened: dict[str, Remote], deltas: int, plan: Plan, times: Times) -> None:
    """Load from each store alone, to warm up, then in turn."""
    log(f"{plan.loads} loads after {deltas} deltas")
    for store in opened.values():
        stores.warm_up(plan.warmup, partial(_load, store))
    for _, _, order in stores.turns(opened, plan.loads):
        for name in order:
            times.setdefault((name, deltas), []).append(opened[name].coldLoad() / 1e6)


def _load(store: Remote, _: int) -> None:
    store.coldLoad()


def judge(times: Times, keys: int) -> list[Criterion]:
    """Compare with the better built-in."""
    criteria = []
    for deltas in dict.fromkeys(deltas for _, deltas in times):
        medians = {name: median(times[name, deltas]) for name in PROVIDERS}
        rival = better(medians, set(PROVIDERS) - {OURS})
        work = f"cold load of {keys:,} rows after {deltas} deltas"
        criteria.append(Criterion(work, medians[OURS], MOST_OF_BUILT_IN, "ms", medians[rival], rival))
        copied = median(times[COPY, deltas])
        criteria.append(Criterion(f"{work}, local copy", copied, 1, "ms", medians[rival], rival))
    return criteria


def table_of(times: Times) -> str:
    """Return a row for each store and number of deltas."""
    rows = []
    for (name, deltas), millis in stores.in_order(times):
        ratio = median(millis) / median(times[OURS, deltas])
        rows.append([name, str(deltas), *figures(median(millis), min(millis), ratio)])
    return table("Cold load", ["store", "deltas", "median", "min", "ratio to ours"], rows)
