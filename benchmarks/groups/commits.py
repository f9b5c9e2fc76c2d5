"""Commits alone: time, bytes and objects, by the number of rows that the batch changed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import contest, session
from benchmarks.apart import StoreApart, stores_apart
from benchmarks.contest import OURS, PROVIDERS, UNFORKED
from benchmarks.report import figures, median, p95, table
from benchmarks.result import Criterion, Result

MOST_OF_BUILT_IN = 1 / 8
SYNCED, LIMIT = f"{OURS}, fsync", "a copy and one write call"
ROW_BYTES = 24 + 32
"""Bytes of a key of two longs and a value of three in Spark's row format."""

ABOUT = """A batch puts a number of distinct keys out of {keys:,} existing ones, and commits. {batches} batches of each store in
changing order, after each ran such batches by itself for {warmup:g} seconds; each store has a JVM of its own.
The times, in milliseconds, are those of commit() alone, and of getStore and all puts before it. HDFSBacked, and RocksDB with changelog, compress and write each row while it is put, which is not in
the time of their commit; so both times together are judged too. Bytes and objects are those of
the files that a commit added, without the checksum files that Hadoop's local file system keeps beside them. The limit is
a copy of the changed bytes ({row} a row) and one system call that writes them, to a file that is open. Of {synced},
which is not judged, every file is synced before the commit returns; of no other is any. {unforked}"""


@dataclass(frozen=True)
class Plan:
    """Amount of work; `warmup` in seconds."""

    keys: int = 1_000_000
    changed: tuple[int, ...] = (1_000, 10_000, 100_000)
    warmup: float = 3
    batches: int = 15


FULL = Plan()
QUICK = Plan(keys=20_000, changed=(100, 1_000), warmup=0.1, batches=2)


@dataclass
class Samples:
    """Samples of one store and one number of changed rows: milliseconds, and the writes of each commit."""

    puts: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    written: list[float] = field(default_factory=list)
    objects: list[float] = field(default_factory=list)
    metrics: list[dict[str, int]] = field(default_factory=list)


Samplings = dict[tuple[str, int], Samples]


def run(scratch: Path, quick: bool) -> Result:
    """Time the commits of all stores, and the limit."""
    plan = QUICK if quick else FULL
    found = measure(scratch, plan)
    with session.running(scratch) as spark:
        limits = {
            changed: [
                contest.bench(spark).Machine.copyAndWrite(changed * ROW_BYTES, str(scratch)) / 1e6
                for _ in range(2 * plan.batches)
            ][plan.batches :]
            for changed in plan.changed
        }
    about = ABOUT.format(
        keys=plan.keys,
        batches=plan.batches,
        warmup=plan.warmup,
        row=ROW_BYTES,
        synced=SYNCED,
        unforked=contest.ABOUT_UNFORKED,
    )
    samples = [
        {"store": name, "changed": changed} | asdict(of) | {"metrics": []}
        for (name, changed), of in found.items()
    ]
    return Result(
        "commits",
        "\n\n".join([about, *(tables(found, limits, changed) for changed in plan.changed), steps(found)]),
        criteria(found),
        {"plan": asdict(plan), "stores": samples, "limits": limits},
    )


def measure(scratch: Path, plan: Plan) -> Samplings:
    """Change and commit in turn."""
    stores: dict[str, StoreApart] = {}
    found: Samplings = {}
    roots = {name: contest.root(scratch, name) for name in PROVIDERS | UNFORKED} | {
        SYNCED: scratch / "synced" / "state"
    }
    with stores_apart(scratch) as opener, contest.closing(stores):
        for name, root in roots.items():
            settings = {"backend__fsync": "true"} if name == SYNCED else {}
            provider = OURS if name == SYNCED else name
            stores[name] = opener.open("StoreBenchmark", root, provider, **settings)
            stores[name].fill(plan.keys)
            session.log(f"{name}: {plan.keys:,} keys")
        for changed in plan.changed:
            session.log(f"{plan.batches} commits of {changed:,} rows each")
            for store in stores.values():
                contest.warm_up(store, plan.warmup, partial(change_and_commit, store, changed))
                store.maintenance()
            for number, seed, order in contest.turns(stores, plan.batches):
                for name in order:
                    store = stores[name]
                    before = files(roots[name])
                    puts = store.change(changed, seed) / 1e6
                    millis = store.commit() / 1e6
                    after = files(roots[name])
                    added = [size for path, size in after.items() if path not in before]
                    store.settle()
                    of = found.setdefault((name, changed), Samples())
                    of.puts.append(puts)
                    of.commit.append(millis)
                    of.written.append(sum(added))
                    of.objects.append(len(added))
                    of.metrics.append(json.loads(store.metrics()))
                if number % 5 == 4:
                    for name in order:
                        stores[name].maintenance()
    return found


def change_and_commit(store: StoreApart, changed: int, seed: int) -> None:
    """Run one batch."""
    store.change(changed, seed)
    store.commit()


def files(directory: Path) -> dict[str, int]:
    """Return files with their sizes, without the hidden ones."""
    found = {}
    for path, _, names in os.walk(directory):
        for name in names:
            if not name.startswith("."):
                found[os.path.join(path, name)] = os.path.getsize(os.path.join(path, name))
    return found


def criteria(found: Samplings) -> list[Criterion]:
    """Compare time and bytes with the better built-in in each, and check the number of our objects."""
    judged = []
    for changed in dict.fromkeys(changed for _, changed in found):
        work = f"commit of {changed:,} rows"
        of = {name: found[name, changed] for name in PROVIDERS}
        built_in = [name for name in PROVIDERS if name != OURS]
        quick = min(built_in, key=lambda name: median(of[name].commit))
        times = median(of[OURS].commit), MOST_OF_BUILT_IN, "ms", median(of[quick].commit), quick
        small = min(built_in, key=lambda name: median(of[name].written))
        sizes = median(of[OURS].written), 1, "bytes", median(of[small].written), small
        sums = {name: both(of[name]) for name in PROVIDERS}
        whole = min(built_in, key=sums.__getitem__)
        judged += [
            Criterion(work, *times),
            Criterion(f"puts and {work}", sums[OURS], MOST_OF_BUILT_IN, "ms", sums[whole], whole),
            Criterion(f"{work}: bytes", *sizes),
            Criterion(f"{work}: objects", median(of[OURS].objects), 1),
        ]
    return judged


def both(of: Samples) -> float:
    """Return milliseconds of the puts and the commit after them."""
    return median([puts + commit for puts, commit in zip(of.puts, of.commit, strict=True)])


def tables(found: Samplings, limits: dict[int, list[float]], changed: int) -> str:
    """Return a table of all stores, and the limit."""
    ours, limit = median(found[OURS, changed].commit), median(limits[changed])
    rows = []
    for (name, number), of in contest.in_order(found):
        if number == changed:
            times = figures(median(of.puts), median(of.commit), min(of.commit), p95(of.commit))
            ratios = figures(
                median(of.commit) / ours, both(of) / both(found[OURS, changed]), median(of.commit) / limit
            )
            wrote = [f"{median(of.written):,.0f}", f"{median(of.objects):g}"]
            rows.append([name, *times, *ratios, *wrote])
    times = figures(limit, min(limits[changed]), p95(limits[changed]))
    rows.append([LIMIT, "", *times, *figures(limit / ours), "", *figures(1), f"{changed * ROW_BYTES:,}", ""])
    header = [
        "store",
        "puts",
        "commit",
        "min",
        "p95",
        "to ours",
        "with puts",
        "to the limit",
        "bytes",
        "objects",
    ]
    return table(f"Commit of {changed:,} changed rows", header, rows)


def steps(found: Samplings) -> str:
    """Return a table of the steps of our commits."""
    names = {
        "encode": "checkpointCommitEncodeTimeUs",
        "send": "checkpointCommitSendTimeUs",
        "store": "checkpointCommitStoreTimeUs",
    }
    rows = []
    for (name, changed), of in contest.in_order(found):
        if name in (OURS, SYNCED):
            taken = [median([m[metric] / 1000 for m in of.metrics]) for metric in names.values()]
            rest = median(of.commit) - sum(taken)
            rows.append([name, f"{changed:,}", *figures(median(of.commit), *taken, rest)])
    return table(f"Steps of a commit of {OURS}", ["store", "rows", "whole", *names, "rest"], rows)
