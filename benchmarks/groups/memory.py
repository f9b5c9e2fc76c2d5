"""Memory per row of state: heap after full collections, buffers, and the backend."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from benchmarks import contest, session
from benchmarks.contest import HDFS, OURS, PROVIDERS
from benchmarks.report import figures, table
from benchmarks.result import Criterion, Result
from tests.spark.counting import backends_of, jvm_of

MOST_OF_HDFS = 1 / 3
MIB = 2**20
BATCHES = 5

ABOUT = """One store in a JVM of its own is filled with rows (key two longs, value three), and runs {batches} batches of
10,000 rows and its maintenance. Heap and buffers are what is in use after full collections more than before the store was
there; the backend's memory is what is resident of its process in all. RocksDB keeps its rows outside of the heap and on
local disk; the native memory that it reports is in the column memoryUsedBytes. MiB, and bytes for each row; the fastest
batch in milliseconds."""

Measured = dict[str, float]


def run(scratch: Path, quick: bool) -> Result:
    """Measure every store, small and large."""
    found = of_sizes(scratch, (20_000,) if quick else (100_000, 1_000_000))
    return result("memory", found, criteria(found))


def of_sizes(scratch: Path, sizes: tuple[int, ...]) -> dict[tuple[str, int], Measured]:
    """Measure every store and size in a separate process."""
    found: dict[tuple[str, int], Measured] = {}
    for size in sizes:
        for name in PROVIDERS:
            directory = contest.root(scratch, name, size)
            found[name, size] = session.separately(measure, directory, name, size).result()
            shutil.rmtree(directory)
            session.log(f"{name}: {size:,} rows")
    return found


def result(group: str, found: dict[tuple[str, int], Measured], judged: list[Criterion]) -> Result:
    """Build the result of this group and of the one for plots."""
    samples = [{"store": name, "rows": size} | of for (name, size), of in found.items()]
    return Result(group, f"{ABOUT.format(batches=BATCHES)}\n\n{tables(found)}", judged, {"stores": samples})


def measure(scratch: Path, name: str, size: int) -> Measured:
    """Return bytes in use by one store, and milliseconds of the fastest of its batches."""
    with session.running(scratch) as spark:
        used = contest.bench(spark).Machine.usedMemory
        # Another store first, so that one-time allocations are not counted.
        for path, keys in ((scratch / "small", 1_000), (scratch / "state", size)):
            heap, buffers = used()
            store = contest.open_store(spark, path, name)
            store.fill(keys)
            times = [store.batch(10_000, number) / 1e6 for number in range(BATCHES)]
            contest.bench(spark).StoreBenchmark.settle()
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


def criteria(found: dict[tuple[str, int], Measured]) -> list[Criterion]:
    """Compare all memory of ours with the heap of HDFSBacked, at the largest size."""
    size = max(size for _, size in found)
    ours, theirs = total(found[OURS, size]) / size, found[HDFS, size]["heap"] / size
    return [Criterion(f"memory for each of {size:,} rows", ours, MOST_OF_HDFS, "bytes", theirs, HDFS)]


def total(measured: Measured) -> float:
    """Return the measured bytes, without those that the store itself reports."""
    return measured["heap"] + measured["buffers"] + measured["backend"]


def tables(found: dict[tuple[str, int], Measured]) -> str:
    """Return a row for each store and size."""
    rows = []
    for (name, size), of in contest.in_order(found):
        parts = figures(*(of[part] / MIB for part in ("heap", "buffers", "backend")), total(of) / MIB)
        rows.append(
            [name, f"{size:,}", *parts, *figures(total(of) / size, of["heap"] / size, of["reported"] / MIB)]
        )
    header = [
        "store",
        "rows",
        "heap",
        "buffers",
        "backend",
        "all",
        "bytes a row",
        "of heap",
        "memoryUsedBytes",
    ]
    return table("Memory", header, rows)
