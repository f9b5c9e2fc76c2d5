"""Spark's StateStoreBasicOperationsBenchmark, with this store as one more case."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks import stores
from benchmarks.report import Criterion, Result, figures, median, table
from benchmarks.sessions import Remote, log
from benchmarks.stores import HDFS, OURS, ROCKSDB, better

UNCOUNTED = f"{ROCKSDB}, rows not counted"
STORES = {OURS: OURS, HDFS: HDFS, ROCKSDB: ROCKSDB, UNCOUNTED: ROCKSDB}
"""The compared stores, and the entry of `stores.PROVIDERS` of each."""

RATES = (100, 50, 10, 0)
PUT, MERGE, DELETE, EVICT = "put", "merge", "delete", "evict"
OPERATIONS = {
    PUT: "put: rows that overwrite one",
    MERGE: "merge of 10 values a key: keys that exist",
    DELETE: "delete: rows that exist",
    EVICT: "evict by a scan: rows that are evicted",
}
MOST = 1.0

ABOUT = """The operations, rows and rates of Spark's StateStoreBasicOperationsBenchmark: keys of an integer at
random and a timestamp, values of an integer, {rows:,} rows, for merges {keys:,} keys of 10 values, which
HDFSBacked does not have. An operation is timed on the committed version, without commit, then verified and
aborted: {rounds} rounds in changing order, after each store did the operation by itself for {warmup:g}
seconds. Each store has a JVM of its own. Microseconds for all rows together: the median, and the least."""

Times = dict[tuple[str, int, str], list[float]]
"""Microseconds by operation, rate and store."""


def run(scratch: Path, quick: bool) -> Result:
    """Time each operation at each rate on every store that has it."""
    rows, warmup, rounds = (1_000, 0.1, 1) if quick else (10_000, 2.0, 50)
    times = measure(scratch, rows, warmup, rounds)
    about = ABOUT.format(rows=rows, keys=rows // 10, rounds=rounds, warmup=warmup)
    return Result(f"{about}\n\n{table_of(times, rows)}", judge(times))


def measure(scratch: Path, rows: int, warmup: float, rounds: int) -> Times:
    """Return the microseconds of each operation, rate and store."""
    times: Times = {}
    opened: dict[tuple[str, int], Remote] = {}
    with stores.store_processes(scratch, STORES) as processes, stores.closing(opened):
        for name, provider in STORES.items():
            settings = {"rocksdb.trackTotalNumberOfRows": "false"} if name == UNCOUNTED else {}
            for values in (1, 10) if name != HDFS else (1,):
                path = stores.directory_of(scratch, provider, len(settings), values)
                arguments = (rows // values, values)
                benchmark = partial(stores.open_benchmark, arguments=arguments, settings=settings)
                opened[name, values] = processes[name].create(benchmark, "BasicOperations", path, provider)
        for operation in OPERATIONS:
            # Merges write the keys of a store with several values, as puts do those of one.
            method, values = (PUT, 10) if operation == MERGE else (operation, 1)
            names = [name for name in STORES if (name, values) in opened]
            for rate in RATES:
                log(f"{operation}, {rate} %")
                for name in names:
                    stores.warm_up(warmup, partial(_time, opened[name, values], method, rate))
                for _, _, order in stores.turns(names, rounds):
                    for name in order:
                        micros = _time(opened[name, values], method, rate)
                        times.setdefault((operation, rate, name), []).append(micros)
    return times


def _time(store: Remote, method: str, rate: int, _seed: int = 0) -> float:
    nanos: int = getattr(store, method)(rate)
    return nanos / 1e3


def judge(times: Times) -> list[Criterion]:
    """Compare each operation with the fastest of Spark's stores."""
    criteria = []
    for operation in OPERATIONS:
        for rate in RATES:
            medians = {
                name: median(times[operation, rate, name])
                for name in STORES
                if (operation, rate, name) in times
            }
            rival = better(medians, set(medians) - {OURS})
            work = f"Spark's benchmark: {operation}, {rate} %"
            criteria.append(Criterion(work, medians[OURS], MOST, "µs", medians[rival], rival))
    return criteria


def table_of(times: Times, rows: int) -> str:
    """Return a row for each operation and rate."""
    lines = []
    for operation, title in OPERATIONS.items():
        for rate in RATES:
            cells = [f"{title}, {rate} %"]
            for name in STORES:
                micros = times.get((operation, rate, name), [])
                cells += figures(median(micros), min(micros)) if micros else ["", ""]
            cells.append(f"{1000 * median(times[operation, rate, OURS]) / rows:.0f} ns")
            lines.append(cells)
    header = ["operation", *(cell for name in STORES for cell in (name, "min")), "ours, each"]
    return table(f"{rows:,} rows", header, lines)
