"""Batches without a change, of many stores on one executor."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import contest, session
from benchmarks.apart import StoreApart, stores_apart
from benchmarks.contest import OURS, PROVIDERS, UNFORKED
from benchmarks.report import figures, median, table
from benchmarks.result import Criterion, Result

MOST_OF_BUILT_IN = 1 / 5
MOST_MILLIS = 0.5

ABOUT = """{stores} stores of 100 rows each; a batch opens and commits each of them without a change, by one thread
and by as many as an executor of two cores has. Milliseconds for each store, that is, of the whole batch over the number
of stores. {ours} batches of ours and {theirs} of each other store, after {more} and one to warm up. Objects are those
that one store's commit wrote. {unforked}"""

Times = dict[tuple[str, int], list[float]]


def run(scratch: Path, quick: bool) -> Result:
    """Time the batches of all stores in turn."""
    count, rounds = (10, 2) if quick else (200, 3)
    more = 6
    taken: Times = {}
    wrote: dict[str, float] = {}
    stores: dict[str, StoreApart] = {}
    with stores_apart(scratch) as opener, contest.closing(stores):
        for name in PROVIDERS | UNFORKED:
            stores[name] = opener.open("ManyStores", contest.root(scratch, name), name, count, 1)
            stores[name].fill(100)
            session.log(f"{count} stores of {name}")
        for number, _, order in contest.turns(stores, 1 + rounds):
            for name in order:
                for threads in (1, 2):
                    # Ours is fast, so it can have more turns, and needs them for its code to be compiled.
                    for _ in range(more if name == OURS else 1):
                        millis = stores[name].emptyBatch(threads) / 1e6 / count
                        stores[name].settle()
                        if number:
                            taken.setdefault((name, threads), []).append(millis)
            session.log(f"round {number}")
        for metrics in stores[OURS].metrics():
            wrote["objects"] = wrote.get("objects", 0) + json.loads(metrics)["checkpointObjectsWritten"]
    about = ABOUT.format(
        stores=count, ours=more * rounds, theirs=rounds, more=more, unforked=contest.ABOUT_UNFORKED
    )
    samples = [{"store": n, "threads": t, "milliseconds": times} for (n, t), times in taken.items()]
    return Result(
        "empty",
        f"{about}\n\n{tables(taken)}\n\nA commit of {OURS} without a change wrote "
        f"{wrote['objects'] / count:g} objects.",
        criteria(taken),
        {"stores": count, "times": samples},
    )


def criteria(taken: Times) -> list[Criterion]:
    """Compare one thread, as a task has, with the better built-in, and with an absolute bound."""
    times = {name: median(taken[name, 1]) for name in PROVIDERS}
    rival = min((name for name in times if name != OURS), key=times.__getitem__)
    work = "empty batch of 200 stores, each store"
    return [
        Criterion(work, times[OURS], MOST_OF_BUILT_IN, "ms", times[rival], rival),
        Criterion(f"{work}, by itself", times[OURS], MOST_MILLIS, "ms"),
    ]


def tables(taken: Times) -> str:
    """Return a row for each store and number of threads."""
    rows = []
    for (name, threads), times in contest.in_order(taken):
        ratio = median(times) / median(taken[OURS, threads])
        rows.append([name, str(threads), *figures(median(times), min(times), ratio)])
    return table("Empty batches", ["store", "threads", "median", "min", "ratio to ours"], rows)
