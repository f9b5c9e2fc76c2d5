"""Operations of a store, each alone, on 10,000 rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks import contest, session
from benchmarks.apart import StoreApart, stores_apart
from benchmarks.contest import CHANGELOG, HDFS, OURS, PROVIDERS, ROCKSDB
from benchmarks.report import figures, median, table
from benchmarks.result import Criterion, Result

ALL, ROCKSDBS = tuple(PROVIDERS), (OURS, ROCKSDB, CHANGELOG)

OPERATIONS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], float]] = {
    "put new": ("plain", ALL, (HDFS,), 1),
    "put overwrite": ("plain", ALL, (HDFS,), 1),
    "get hit": ("plain", ALL, (HDFS,), 1),
    "get miss": ("plain", ALL, (HDFS,), 1),
    "remove": ("plain", ALL, (HDFS,), 1),
    "scan": ("plain", ALL, (HDFS,), 1),
    "evict": ("plain", ALL, (HDFS,), 1),
    "merge": ("lists", ROCKSDBS, (ROCKSDB, CHANGELOG), 1 / 4),
    "prefix scan": ("prefix", ALL, (ROCKSDB, CHANGELOG), 1 / 4),
    "range scan": ("range", ROCKSDBS, (ROCKSDB, CHANGELOG), 1 / 4),
}
"""Kind of store, stores, rivals, and bound as a share of the better rival, of each operation."""

ABOUT = """Each operation runs on a committed state of {count:,} rows (key two longs, value three), which is
opened before and aborted after it, neither in the time. Every row is met once, in an order that is no store's own:
10 values are merged into each of a tenth as many keys, and a prefix or range scan gives 100 rows. The results are
checked. {rounds} rounds in changing order, after each store did the operation by itself for {warmup:g} seconds; each
store has a JVM of its own. RocksDB, which loads again after every abort, has a turn in each third round. Medians in microseconds for all rows together, and the least."""

Times = dict[tuple[str, str], list[float]]


def run(scratch: Path, quick: bool) -> Result:
    """Time every operation on every store that has it."""
    count, warmup, rounds = (1_000, 0.1, 1) if quick else (10_000, 1.0, 30)
    taken = measure(scratch, count, warmup, rounds)
    samples = [{"operation": o, "store": n, "microseconds": times} for (o, n), times in taken.items()]
    shown = ABOUT.format(count=count, warmup=warmup, rounds=rounds) + "\n\n" + tables(taken, count)
    return Result("rows", shown, criteria(taken), {"rows": count, "times": samples})


def measure(scratch: Path, count: int, warmup: float, rounds: int) -> Times:
    """Return microseconds of each operation and store."""
    taken: Times = {}
    with stores_apart(scratch) as opener:
        for kind in dict.fromkeys(kind for kind, *_ in OPERATIONS.values()):
            chosen = {o: names for o, (of, names, *_) in OPERATIONS.items() if of == kind}
            stores: dict[str, StoreApart] = {}
            with contest.closing(stores):
                for name in dict.fromkeys(name for names in chosen.values() for name in names):
                    path = contest.root(scratch, name, kind)
                    stores[name] = opener.open("RowBenchmark", path, name, kind, count)
                for operation, names in chosen.items():
                    session.log(operation)
                    for name in names:
                        contest.warm_up(stores[name], warmup, partial(time_one, stores[name], operation))
                    for number, _, order in contest.turns(names, rounds):
                        for name in order:
                            if name in (ROCKSDB, CHANGELOG) and number % 3:
                                continue
                            micros = stores[name].time(operation) / 1e3
                            taken.setdefault((operation, name), []).append(micros)
    return taken


def time_one(store: StoreApart, operation: str, _: int) -> None:
    """Run one round of an operation."""
    store.time(operation)


def criteria(taken: Times) -> list[Criterion]:
    """Compare each operation with the faster of its rivals."""
    judged = []
    for operation, (_, _, rivals, most) in OPERATIONS.items():
        rival = min(rivals, key=lambda name: median(taken[operation, name]))
        ours, theirs = median(taken[operation, OURS]), median(taken[operation, rival])
        judged.append(Criterion(f"10,000 rows: {operation}", ours, most, "µs", theirs, rival))
    return judged


def tables(taken: Times, count: int) -> str:
    """Return a row for each operation."""
    rows = []
    for operation in OPERATIONS:
        cells = [operation]
        for name in PROVIDERS:
            times = taken.get((operation, name), [])
            cells += figures(median(times), min(times)) if times else ["", ""]
        ours = median(taken[operation, OURS])
        cells.append(f"{1000 * ours / count:.0f} ns")
        rows.append(cells)
    header = ["operation", *(cell for name in PROVIDERS for cell in (name, "min")), "ours, each"]
    return table(f"{count:,} rows", header, rows)
