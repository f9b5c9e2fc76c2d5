"""Bytes written for each changed byte, and bytes read by a load, by the size of the state."""

from __future__ import annotations

import json
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks import stores
from benchmarks.report import Criterion, Result, figures, median, percentile, table
from benchmarks.sessions import log
from benchmarks.stores import CHANGELOG, HDFS, OURS
from spark_statestore.options import StorageOptions
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId
from spark_statestore.store.retention import parse_listing
from tests.spark.counting import backends_of, jvm_of

ROW_BYTES = 24 + 32
"""Bytes of a key of two longs and a value of three in Spark's row format."""

STORES = (OURS, HDFS, CHANGELOG)
MAINTENANCE = 10
LOADS = 5
MOST_WRITTEN, MOST_GROWTH = 3.0, 1.5
MOST_READ, MOST_LOAD_TIME = 1.3, 1.25
MOST_STORED = 2.5
MOST_P99 = 2.0
VERSIONS = 100
WARMUP_SECONDS = 15
RIVAL_SECONDS = 120
FRESH = "fresh snapshot"
FULL = ((200_000, 1_000_000, 5_000_000, 10_000_000), (2_000, 10_000), 200)
QUICK = ((20_000,), (1_000,), 20)

ABOUT = """One store in a JVM of its own is filled with keys, warms up, ends that with a full snapshot, and
runs {batches} batches of random updates of one size, with maintenance after every tenth; Spark's stores run
fewer if those take more than {seconds} seconds. *Written* is what the JVM and its backend gave to the file
system (`write_bytes` of both processes), divided by the bytes of the changed keys and values ({row} for each
update). *Stored* is the size of the checkpoint at the end, with Spark's default of 100 retained versions, in
bytes. p50 and p99 are those of a batch, in milliseconds. Background work goes on beside the batches, as long
as one maintenance lets it."""

ABOUT_LOADS = """After the last batch spark-statestore's newest version is loaded by a new instance, median of
{loads}; then a commit writes a full snapshot, and that is loaded likewise: MiB that a load reads, and its
milliseconds. Bases, runs and deltas are the streams in MiB of which the newest {versions} versions consist;
what else is stored are older versions, which Spark has deleted in groups."""

Cell = tuple[str, int, int]
Measured = dict[str, float]


def run(scratch: Path, quick: bool) -> Result:
    """Measure every store, size and number of updates in a separate process."""
    sizes, updates, batches = QUICK if quick else FULL
    cells: dict[Cell, Measured] = {}
    for keys in sizes:
        for changed in updates:
            for name in STORES:
                directory = stores.directory_of(scratch, name, keys, changed)
                with stores.store_processes(directory, [name]) as processes:
                    work = (directory, name, keys, changed, batches, quick)
                    cells[name, keys, changed] = processes[name].run(measure, *work)
                shutil.rmtree(directory)
                log(f"{name}: {keys:,} keys, {changed:,} updates: {cells[name, keys, changed]}")
    about = ABOUT.format(batches=batches, row=ROW_BYTES, seconds=RIVAL_SECONDS)
    about_loads = ABOUT_LOADS.format(loads=LOADS, versions=VERSIONS)
    return Result("\n\n".join([about, table_of(cells), about_loads, load_table(cells)]), judge(cells))


def measure(
    spark: Any, scratch: Path, name: str, keys: int, changed: int, batches: int, quick: bool
) -> Measured:
    """Return the figures of one store at one size."""
    store = stores.open_store(spark, scratch / "state", name)
    last = keys // 20
    store.fill(keys - last, 250_000, False)
    stores.warm_up(0 if quick else WARMUP_SECONDS, partial(_warm_up, store, changed))
    store.fill(last, last, True)
    store.settle()
    store.maintenance()
    store.settle()
    before = written_bytes(jvm_of(spark))
    times: list[float] = []
    start = time.monotonic()
    for number in range(1, batches + 1):
        times.append(store.batch(changed, number) / 1e6)
        if number % MAINTENANCE == 0:
            store.maintenance()
            if name != OURS and time.monotonic() > start + RIVAL_SECONDS:
                break
    store.settle()
    bytes_written = written_bytes(jvm_of(spark)) - before
    stored = sum(path.stat().st_size for path in (scratch / "state").rglob("*") if path.is_file())
    measured = {
        "written": bytes_written / (len(times) * changed * ROW_BYTES),
        "batches": len(times),
        "stored": stored,
        "p50": percentile(times, 50),
        "p99": percentile(times, 99),
    }
    if name == OURS:
        sizes = streams(scratch / "state" / "0" / "0")
        measured |= {kind: sum(of_kind) for kind, of_kind in sizes.items()} | loads(store)
    store.close()
    return measured


def _warm_up(store: Any, changed: int, seed: int) -> None:
    store.batch(changed, -seed - 1)
    store.settle()


def loads(store: Any) -> Measured:
    """Return bytes and milliseconds of a load of the newest version, and of one that is a full snapshot."""
    measured = {}
    for kind in ("newest", "fresh"):
        if kind == "fresh":
            store.fill(1, 1, True)
        measured[f"{kind} time"] = median([store.reload() / 1e6 for _ in range(LOADS)])
        measured[f"{kind} bytes"] = json.loads(store.loadMetrics())["checkpointLoadBytes"]
    return measured


def streams(directory: Path, partition: int = 0) -> dict[str, list[int]]:
    """Return the bytes of each base, run and delta of the newest versions of our store in a directory."""
    store = StoreDirectory(StoreId(0, partition), str(directory), StorageOptions(), merged_of=MergedFiles)
    listing = parse_listing(store.directory, store.files.list_files(store.directory))
    newest = max(name.version for name in listing.checkpoints)
    sizes_of: dict[str, dict[object, int]] = {"bases": {}, "runs": {}, "deltas": {}}
    for name in (name for name in listing.checkpoints if name.version > newest - VERSIONS):
        for entry in store.metadata(name).handle:
            kind = "bases" if entry.full else "deltas" if entry.since is None else "runs"
            sizes_of[kind][entry.version, entry.since] = entry.state.state_size
    return {kind: list(sizes.values()) for kind, sizes in sizes_of.items()}


def written_bytes(jvm: int) -> int:
    """Return the bytes that a JVM and its backends gave to the file system."""
    return sum(process.io_counters().write_bytes for process in (psutil.Process(jvm), *backends_of(jvm)))


def judge(cells: dict[Cell, Measured]) -> list[Criterion]:
    """Bound what our store writes, stores and loads, its p99, and the growth of its writes with the state."""
    criteria = []
    own_cells = {(keys, changed): cell for (name, keys, changed), cell in cells.items() if name == OURS}
    for (keys, changed), cell in own_cells.items():
        work = f"{keys:,} keys, {changed:,} updates"
        space = MOST_STORED * cell["fresh bytes"] + cell["deltas"]
        criteria += [
            Criterion(f"bytes written for each changed byte, {work}", cell["written"], MOST_WRITTEN),
            Criterion(f"bytes stored, {work}", cell["stored"], 1.0, "bytes", space, "snapshots and deltas"),
            Criterion(f"p99 beside merges, {work}", cell["p99"], MOST_P99, "ms", cell["p50"], "p50"),
        ]
        for quantity, most, unit in (("bytes", MOST_READ, "bytes"), ("time", MOST_LOAD_TIME, "ms")):
            newest, fresh = cell[f"newest {quantity}"], cell[f"fresh {quantity}"]
            criteria.append(Criterion(f"{quantity} of a load, {work}", newest, most, unit, fresh, FRESH))
    least, most = min(keys for keys, _ in own_cells), max(keys for keys, _ in own_cells)
    for changed in sorted({changed for _, changed in own_cells}):
        growth = own_cells[most, changed]["written"] / own_cells[least, changed]["written"]
        work = f"bytes written at {most:,} keys to those at {least:,}, {changed:,} updates"
        criteria.append(Criterion(work, growth, MOST_GROWTH))
    return criteria


def table_of(cells: dict[Cell, Measured]) -> str:
    """Return the table of all cells."""
    rows = []
    for (name, keys, changed), cell in cells.items():
        columns = [
            *figures(cell["written"], cell["p50"], cell["p99"]),
            f"{cell['stored']:,.0f}",
            f"{cell['batches']:,}",
        ]
        rows.append([name, f"{keys:,}", f"{changed:,}", *columns])
    header = ["store", "keys", "updates", "written", "p50", "p99", "stored", "batches"]
    return table("Bytes written for each changed byte", header, rows)


def load_table(cells: dict[Cell, Measured]) -> str:
    """Return the table of loads and space of our store."""
    rows = []
    sizes = ("newest bytes", "fresh bytes", "bases", "runs", "deltas", "stored")
    for (name, keys, changed), cell in cells.items():
        if name == OURS:
            columns = figures(
                cell["newest time"], cell["fresh time"], *(cell[size] / 2**20 for size in sizes)
            )
            rows.append([f"{keys:,}", f"{changed:,}", *columns])
    header = ["keys", "updates", "load, ms", "fresh, ms"]
    header += ["load", "fresh", "bases", "runs", "deltas", "stored"]
    return table("Loads and space of spark-statestore", header, rows)
