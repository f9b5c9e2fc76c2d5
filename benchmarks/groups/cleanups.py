"""Processor time of cleanups that discard a version in merged files, by the number of stores of a query."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.report import Criterion, Result
from benchmarks.sessions import log
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.commit import begin_checkpoint
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId
from spark_statestore.testing.stores import attempt_id, message, named

MOST = 2.0
FULL = (200, 2_000, 10_000)
QUICK = (20, 40)

ABOUT = """Each store has one row and writes it whole in each batch, so that a cleanup discards the version
before; all are in one process, on local files, without a JVM. The first cleanup of a store lists its
directory. *Processor time* is that of all stores, and *per store* in microseconds."""


def run(scratch: Path, quick: bool) -> Result:
    """Measure every number of stores."""
    numbers = QUICK if quick else FULL
    seconds = {}
    for number in numbers:
        seconds[number] = measure(scratch / str(number), number)
        log(f"cleanup of {number:,} stores: {seconds[number][1]:.2f} s")
    criteria, rows = [], []
    least = f"{numbers[0]:,} stores"
    for number, times in seconds.items():
        for at, cleanup in enumerate(("first cleanup", "cleanup")):
            micros, fewest = (1e6 * seconds[count][at] / count for count in (number, numbers[0]))
            rows.append([f"{number:,}", cleanup, *report.figures(times[at], micros)])
            if number != numbers[0]:
                work = f"{cleanup} of {number:,} stores, each store"
                criteria.append(Criterion(work, micros, MOST, "µs", fewest, least))
    table = report.table("Cleanups", ["stores", "cleanup", "processor time, s", "per store, µs"], rows)
    return Result(f"{ABOUT}\n\n{table}", criteria)


def measure(directory: Path, stores: int) -> Sequence[float]:
    """Return the seconds of processor time of the first two cleanups of all stores."""
    merged: dict[str, MergedFiles] = {}
    opened = [
        StoreDirectory(
            StoreId(0, partition),
            f"{directory}/state/0/{partition}",
            StorageOptions(),
            merged_of=lambda files, state: merged.setdefault(state, MergedFiles(files, state)),
        )
        for partition in range(stores)
    ]
    seconds = []
    for version in range(1, 5):
        names = [CheckpointName(version, attempt_id()) for _ in opened]
        for store, name in zip(opened, names, strict=True):
            pending = begin_checkpoint(store, name, name.id or "", named(), merge=version > 1)
            pending.write(0, message({b"key": b"value"}))
            pending.publish(None, None, None)
        opened[0].publish_merged([])
        if version > 2:
            began = time.process_time()
            for store, name in zip(opened, names, strict=True):
                assert discard_versions(store, name, name.id or "", version, 0)
            seconds.append(time.process_time() - began)
            opened[0].sweep_merged()
    return seconds
