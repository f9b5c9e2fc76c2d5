"""Operations of a store, each alone, on 10,000 rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks import stores
from benchmarks.report import Criterion, Result, figures, median, table
from benchmarks.sessions import Remote, log
from benchmarks.stores import CHANGELOG, HDFS, OURS, PROVIDERS, ROCKSDB, better

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
opened before and aborted after it, neither in the time. Every row is met once, in an order that is no store's
own: 10 values are merged into each of a tenth as many keys, and a prefix or range scan gives 100 rows. The
results are checked. {rounds} rounds in changing order, after each store did the operation by itself for
{warmup:g} seconds; each store has a JVM of its own. RocksDB, which loads again after every abort, has a turn
in each third round. Medians in microseconds for all rows together, and the least."""

Times = dict[tuple[str, str], list[float]]
"""Microseconds by operation and store."""


def run(scratch: Path, quick: bool) -> Result:
    """Time every operation on every store that has it."""
    count, warmup, rounds = (1_000, 0.1, 1) if quick else (10_000, 1.0, 30)
    times = measure(scratch, count, warmup, rounds)
    about = ABOUT.format(count=count, warmup=warmup, rounds=rounds)
    return Result(f"{about}\n\n{table_of(times, count)}", judge(times))


def measure(scratch: Path, count: int, warmup: float, rounds: int) -> Times:
    """Return microseconds of each operation and store."""
    times: Times = {}
    opened: dict[tuple[str, str], Remote] = {}
    with stores.store_processes(scratch, PROVIDERS) as processes, stores.closing(opened):
        for operation, (kind, names, _, _) in OPERATIONS.items():
            log(operation)
            for name in names:
                if (kind, name) not in opened:
                    path = stores.directory_of(scratch, name, kind)
                    benchmark = partial(stores.open_benchmark, arguments=(kind, count), settings={})
                    opened[kind, name] = processes[name].create(benchmark, "RowBenchmark", path, name)
                store = opened[kind, name]
                stores.warm_up(warmup, partial(_time, store, operation))
            for number, _, order in stores.turns(names, rounds):
                for name in order:
                    if name in (OURS, HDFS) or number % 3 == 0:
                        micros = opened[kind, name].time(operation) / 1e3
                        times.setdefault((operation, name), []).append(micros)
    return times


def _time(store: Remote, operation: str, _: int) -> None:
    store.time(operation)


def judge(times: Times) -> list[Criterion]:
    """Compare each operation with the faster of its rivals."""
    criteria = []
    for operation, (_, names, rivals, most) in OPERATIONS.items():
        medians = {name: median(times[operation, name]) for name in names}
        rival = better(medians, rivals)
        work = f"10,000 rows: {operation}"
        criteria.append(Criterion(work, medians[OURS], most, "µs", medians[rival], rival))
    return criteria


def table_of(times: Times, count: int) -> str:
    """Return a row for each operation."""
    rows = []
    for operation in OPERATIONS:
        cells = [operation]
        for name in PROVIDERS:
            micros = times.get((operation, name), [])
            cells += figures(median(micros), min(micros)) if micros else ["", ""]
        cells.append(f"{1000 * median(times[operation, OURS]) / count:.0f} ns")
        rows.append(cells)
    header = ["operation", *(cell for name in PROVIDERS for cell in (name, "min")), "ours, each"]
    return table(f"{count:,} rows", header, rows)
