"""Memory and batches by the number of rows: heap after full collections, buffers, and the backend."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from benchmarks import stores
from benchmarks.report import Criterion, Result, figures, table
from benchmarks.sessions import log
from benchmarks.stores import HDFS, OURS, PROVIDERS
from tests.spark.counting import backends_of, jvm_of

FULL, QUICK = (10_000, 100_000, 300_000, 1_000_000, 3_000_000), (1_000, 10_000)
JUDGED = 1_000_000
MOST_OF_HDFS = 1 / 3
MIB = 2**20
BATCHES = 5

ABOUT = """One store in a JVM of its own is filled with rows (key two longs, value three), and runs {batches}
batches of 10,000 rows and its maintenance. Heap and buffers are what is in use after full collections more
than before the store was there; the backend's memory is what is resident of its process in all. RocksDB keeps
its rows outside of the heap and on local disk; the native memory that it reports is in the column
memoryUsedBytes. MiB, and bytes for each row; the fastest batch in milliseconds."""

Measured = dict[str, float]


def run(scratch: Path, quick: bool) -> Result:
    """Measure every store and size in a separate process."""
    measurements: dict[tuple[str, int], Measured] = {}
    for size in QUICK if quick else FULL:
        for name in PROVIDERS:
            directory = stores.directory_of(scratch, name, size)
            with stores.store_processes(directory, [name]) as processes:
                measurements[name, size] = processes[name].run(measure, directory, name, size)
            shutil.rmtree(directory)
            log(f"{name}: {size:,} rows: {measurements[name, size]}")
    return Result(f"{ABOUT.format(batches=BATCHES)}\n\n{table_of(measurements)}", judge(measurements))


def measure(spark: Any, scratch: Path, name: str, size: int) -> Measured:
    """Return bytes in use by one store, and milliseconds of the fastest of its batches."""
    used = stores.bench(spark).Machine.usedMemory
    # Another store first, so that one-time allocations are not counted.
    for path, keys in ((scratch / "small", 1_000), (scratch / "state", size)):
        heap, buffers = used()
        store = stores.open_store(spark, path, name)
        store.fill(keys)
        times = [store.batch(10_000, number) / 1e6 for number in range(BATCHES)]
        store.settle()
        store.maintenance()
        then_heap, then_buffers = used()
        reported = json.loads(store.metrics())["memoryUsedBytes"]
        backend = sum(process.memory_info().rss for process in backends_of(jvm_of(spark)))
        store.close()
    # The benchmark itself holds four bytes for each key.
    return {
        "heap": then_heap - heap - 4 * size,
        "buffers": then_buffers - buffers,
        "backend": backend,
        "reported": reported,
        "batch": min(times),
    }


def judge(measurements: dict[tuple[str, int], Measured]) -> list[Criterion]:
    """Compare all memory of ours with the heap of HDFSBacked."""
    size = min((size for _, size in measurements), key=lambda size: abs(size - JUDGED))
    own_bytes, rival_bytes = total(measurements[OURS, size]) / size, measurements[HDFS, size]["heap"] / size
    return [
        Criterion(f"memory for each of {size:,} rows", own_bytes, MOST_OF_HDFS, "bytes", rival_bytes, HDFS)
    ]


def total(measured: Measured) -> float:
    """Return the measured bytes, without those that the store itself reports."""
    return measured["heap"] + measured["buffers"] + measured["backend"]


def table_of(measurements: dict[tuple[str, int], Measured]) -> str:
    """Return a row for each store and size."""
    rows = []
    for (name, size), measured in stores.in_order(measurements):
        parts = (*(measured[part] / MIB for part in ("heap", "buffers", "backend")), total(measured) / MIB)
        each = (total(measured) / size, measured["heap"] / size)
        rows.append(
            [name, f"{size:,}", *figures(*parts, *each, measured["reported"] / MIB, measured["batch"])]
        )
    header = ["store", "rows", "heap", "buffers", "backend", "all", "bytes a row", "of heap"]
    return table("Memory", [*header, "memoryUsedBytes", "batch"], rows)
