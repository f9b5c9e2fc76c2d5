"""Loads of a state that an executor does not have: from a snapshot, and from a snapshot and deltas."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks import contest, session
from benchmarks.apart import StoreApart, stores_apart
from benchmarks.contest import OURS, PROVIDERS, UNFORKED
from benchmarks.report import figures, median, table
from benchmarks.result import Criterion, Result

MOST_OF_BUILT_IN = 1 / 5

ABOUT = """A state of {keys:,} rows (key two longs, value three) is committed as a snapshot, {deltas} batches change
{operations:,} of its rows each, and no other snapshot is taken, but by RocksDB without changelog, which takes one with
every commit. Before and after that a new instance of the store loads the newest version: {loads} times in changing
order, after each store, in a JVM of its own, did so by itself for {warmup:g} seconds. Its first 1,000 rows are compared with what was put. Files are in the page cache. HDFSBacked and
spark-statestore have the whole state in memory then, RocksDB has opened its files. {unforked} Times in milliseconds."""


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


def run(scratch: Path, quick: bool) -> Result:
    """Load on all stores in turn."""
    plan = QUICK if quick else FULL
    taken: Times = {}
    stores: dict[str, StoreApart] = {}
    with stores_apart(scratch) as opener, contest.closing(stores):
        for name in PROVIDERS | UNFORKED:
            path = contest.root(scratch, name)
            stores[name] = opener.open("StoreBenchmark", path, name, minDeltasForSnapshot="1000000")
            stores[name].fill(plan.keys, plan.keys, True)
            session.log(f"{name}: {plan.keys:,} rows")
        load(stores, 0, plan, taken)
        for _, seed, order in contest.turns(stores, plan.deltas):
            for name in order:
                stores[name].batch(plan.operations, seed)
        for store in stores.values():
            store.settle()
        load(stores, plan.deltas, plan, taken)
    samples = [{"store": n, "deltas": d, "milliseconds": times} for (n, d), times in taken.items()]
    return Result(
        "loads",
        f"{ABOUT.format(**asdict(plan), unforked=contest.ABOUT_UNFORKED)}\n\n{tables(taken)}",
        criteria(taken, plan.keys),
        {"plan": asdict(plan), "times": samples},
    )


def load(stores: dict[str, StoreApart], deltas: int, plan: Plan, taken: Times) -> None:
    """Load from each store alone, to warm up, then in turn."""
    session.log(f"{plan.loads} loads after {deltas} deltas")
    for store in stores.values():
        contest.warm_up(store, plan.warmup, partial(load_once, store))
    for _, _, order in contest.turns(stores, plan.loads):
        for name in order:
            taken.setdefault((name, deltas), []).append(stores[name].coldLoad() / 1e6)


def load_once(store: StoreApart, _: int) -> None:
    """Run one load."""
    store.coldLoad()


def criteria(taken: Times, keys: int) -> list[Criterion]:
    """Compare with the better built-in."""
    judged = []
    for deltas in dict.fromkeys(deltas for _, deltas in taken):
        times = {name: median(taken[name, deltas]) for name in PROVIDERS}
        rival = min((name for name in times if name != OURS), key=times.__getitem__)
        work = f"cold load of {keys:,} rows after {deltas} deltas"
        judged.append(Criterion(work, times[OURS], MOST_OF_BUILT_IN, "ms", times[rival], rival))
    return judged


def tables(taken: Times) -> str:
    """Return a row for each store and number of deltas."""
    rows = []
    for (name, deltas), times in contest.in_order(taken):
        ratio = median(times) / median(taken[OURS, deltas])
        rows.append([name, str(deltas), *figures(median(times), min(times), ratio)])
    return table("Cold load", ["store", "deltas", "median", "min", "ratio to ours"], rows)
