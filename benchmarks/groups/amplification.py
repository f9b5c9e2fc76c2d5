"""Bytes written for each changed byte, and bytes read by a load, by the size of the state."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

from benchmarks import contest, session
from benchmarks.contest import CHANGELOG, HDFS, OURS
from benchmarks.groups.commits import ROW_BYTES
from benchmarks.report import figures, percentile, table
from benchmarks.result import Criterion, Result
from tests.spark.counting import backends_of, jvm_of

STORES = (OURS, HDFS, CHANGELOG)
MAINTENANCE = 10
MOST_WRITTEN, MOST_GROWTH = 3.0, 1.5
FULL = ((200_000, 1_000_000, 5_000_000, 10_000_000), (2_000, 10_000), 200)
QUICK = ((20_000,), (1_000,), 20)

ABOUT = """One store in a JVM of its own is filled with keys, and runs {batches} batches of random updates of one size, with
maintenance after every tenth. *Written* is what the JVM and its backend gave to the file system (`write_bytes` of both
processes), divided by the bytes of the changed keys and values ({row} for each update). *Stored* is the size of the checkpoint
at the end, with Spark's default of 100 retained versions, in bytes. p50 and p99 are those of a batch, in milliseconds. Background
work goes on beside the batches, as long as one maintenance lets it."""

Cell = tuple[str, int, int]
Measured = dict[str, float]


def run(scratch: Path, quick: bool) -> Result:
    """Measure every cell in a separate process."""
    sizes, updates, batches = QUICK if quick else FULL
    found: dict[Cell, Measured] = {}
    for keys in sizes:
        for changed in updates:
            for name in STORES:
                directory = contest.root(scratch, name, keys, changed)
                call = session.separately(measure, directory, name, keys, changed, batches)
                found[name, keys, changed] = call.result()
                shutil.rmtree(directory)
                session.log(f"{name}: {keys:,} keys, {changed:,} updates: {found[name, keys, changed]}")
    samples = [
        {"store": name, "keys": keys, "changed": changed} | of for (name, keys, changed), of in found.items()
    ]
    about = ABOUT.format(batches=batches, row=ROW_BYTES)
    return Result("amplification", f"{about}\n\n{tables(found)}", criteria(found), {"cells": samples})


def measure(scratch: Path, name: str, keys: int, changed: int, batches: int) -> Measured:
    """Return the figures of one store at one size."""
    with session.running(scratch) as spark:
        store = contest.open_store(spark, scratch / "state", name)
        store.fill(keys, 250_000, False)
        settle = contest.bench(spark).StoreBenchmark.settle
        settle()
        store.maintenance()
        settle()
        before = written_bytes(jvm_of(spark))
        times = []
        for number in range(1, batches + 1):
            times.append(store.batch(changed, number) / 1e6)
            if number % MAINTENANCE == 0:
                store.maintenance()
        settle()
        written = written_bytes(jvm_of(spark)) - before
        stored = sum(path.stat().st_size for path in (scratch / "state").rglob("*") if path.is_file())
        store.close()
    return {
        "written": written / (batches * changed * ROW_BYTES),
        "stored": stored,
        "p50": percentile(times, 50),
        "p99": percentile(times, 99),
    }


def written_bytes(jvm: int) -> int:
    """Return the bytes that a JVM and its backends gave to the file system."""
    return sum(process.io_counters().write_bytes for process in (psutil.Process(jvm), *backends_of(jvm)))


def criteria(found: dict[Cell, Measured]) -> list[Criterion]:
    """Bound what our store writes for each changed byte, and its growth with the state."""
    judged = [
        Criterion(
            f"bytes written for each changed byte, {keys:,} keys, {changed:,} updates",
            of["written"],
            MOST_WRITTEN,
        )
        for (name, keys, changed), of in found.items()
        if name == OURS
    ]
    least, most = min(keys for _, keys, _ in found), max(keys for _, keys, _ in found)
    for changed in sorted({changed for _, _, changed in found}):
        small, large = found[OURS, least, changed], found[OURS, most, changed]
        judged.append(
            Criterion(
                f"bytes written at {most:,} keys to those at {least:,}, {changed:,} updates",
                large["written"] / small["written"],
                MOST_GROWTH,
            )
        )
    return judged


def tables(found: dict[Cell, Measured]) -> str:
    """Return the table of all cells."""
    rows = [
        [
            name,
            f"{keys:,}",
            f"{changed:,}",
            *figures(of["written"], of["p50"], of["p99"]),
            f"{of['stored']:,.0f}",
        ]
        for (name, keys, changed), of in found.items()
    ]
    header = ["store", "keys", "updates", "written", "p50", "p99", "stored"]
    return table("Bytes written for each changed byte", header, rows)
