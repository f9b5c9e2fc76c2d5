"""Threads that the slowest batches of one store wait for: ``python -m benchmarks.stalls``.

Runs batches of random updates with maintenance after every tenth, and reads from Linux's ``/proc`` for how long each thread of the
JVM and of its backend ran, and how long it was ready to run while others had the cores.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import contest, report, session
from benchmarks.contest import OURS
from tests.spark.counting import backends_of, jvm_of

MAINTENANCE = 10
WARMUP_SECONDS = 30
NO_MERGES = "100000"

PARTS = {
    "Thread-": "batch",
    "state-store-bac": "merges",
    "C1 Compiler": "JIT compilers",
    "C2 Compiler": "JIT compilers",
    "G1 ": "collector, concurrent",
    "GC Thread": "collector, pauses",
    "VM ": "collector, pauses",
}
"""Parts of the JVM by the start of a thread's name, of which the kernel has 15 characters."""

BACKEND, REST = "backend", "other threads"


@dataclass(frozen=True)
class Times:
    """Nanoseconds that threads ran, and that they were ready to run without a core, by part."""

    ran: dict[str, int]
    waited: dict[str, int]


@dataclass(frozen=True)
class Batch:
    """Milliseconds of a batch, and what each part did meanwhile."""

    milliseconds: float
    times: Times


class Threads:
    """The threads of the JVM and its backend."""

    def __init__(self, jvm: int, backend: int) -> None:
        self._jvm = jvm
        self._backend = backend

    def times(self) -> Times:
        """Return what every part has done since it started."""
        ran: dict[str, int] = defaultdict(int)
        waited: dict[str, int] = defaultdict(int)
        for process in (self._jvm, self._backend):
            for task in Path(f"/proc/{process}/task").iterdir():
                try:
                    name = (task / "comm").read_text()
                    figures = (task / "schedstat").read_text().split()
                except OSError:
                    # It has ended.
                    continue
                part = BACKEND if process == self._backend else part_of(name)
                ran[part] += int(figures[0])
                waited[part] += int(figures[1])
        return Times(ran, waited)


def part_of(name: str) -> str:
    """Return the part of the JVM that a thread belongs to."""
    return next((part for start, part in PARTS.items() if name.startswith(start)), REST)


def between(before: Times, after: Times) -> Times:
    """Return what every part did between two moments."""

    def change(old: dict[str, int], new: dict[str, int]) -> dict[str, int]:
        # A thread that has ended takes its figures with it.
        return {part: max(0, new[part] - old.get(part, 0)) for part in new}

    return Times(change(before.ran, after.ran), change(before.waited, after.waited))


def main() -> None:
    """Print the times of each part within all batches, and within the slowest hundredth."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stalls", description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=2_000)
    parser.add_argument("--batches", type=int, default=2_000)
    parser.add_argument("--no-merges", action="store_true", help="upload neither snapshots nor runs")
    arguments = parser.parse_args()
    settings: dict[str, Any] = {"minDeltasForSnapshot": NO_MERGES} if arguments.no_merges else {}
    directory = tempfile.TemporaryDirectory(prefix="statestore-stalls-")
    with directory as scratch, session.running(Path(scratch)) as spark:
        store = contest.open_store(spark, Path(scratch) / "state", OURS, **settings)
        store.fill(arguments.keys, 250_000, False)
        (backend,) = backends_of(jvm_of(spark))
        batches = run(store, Threads(jvm_of(spark), backend.pid), arguments.updates, arguments.batches)
    merges = "without merges" if arguments.no_merges else "beside merges"
    print(table(f"{arguments.updates:,} updates of {arguments.keys:,} keys, {merges}", batches))


def run(store: Any, threads: Threads, updates: int, count: int) -> list[Batch]:
    """Run batches after a warm-up."""
    found: list[Batch] = []
    number = 0
    warm = time.monotonic() + WARMUP_SECONDS
    while len(found) < count:
        number += 1
        before = threads.times()
        milliseconds = store.batch(updates, number) / 1e6
        during = between(before, threads.times())
        if time.monotonic() > warm:
            found.append(Batch(milliseconds, during))
        if number % MAINTENANCE == 0:
            store.maintenance()
    return found


def table(title: str, batches: list[Batch]) -> str:
    """Return means for each part within all batches, and within the slowest hundredth."""
    ordered = sorted(batches, key=lambda batch: batch.milliseconds)
    slowest = ordered[-max(1, len(ordered) // 100) :]
    times = [batch.milliseconds for batch in batches]
    p50, p99 = report.percentile(times, 50), report.percentile(times, 99)
    rows = []
    for part in [*dict.fromkeys(PARTS.values()), BACKEND, REST]:
        cells = [
            mean(milliseconds(batch, part, waits) for batch in of)
            for of in (ordered, slowest)
            for waits in (False, True)
        ]
        rows.append([part, *report.figures(*cells)])
    header = ["milliseconds, mean", "ran", "waited for a core", "slowest 1 %: ran", "waited for a core"]
    about = f"p50 {p50:.2f} ms, p99 {p99:.2f} ms ({p99 / p50:.2f} times), of {len(batches):,} batches."
    return f"{report.table(title, header, rows)}\n\n{about}"


def milliseconds(batch: Batch, part: str, waits: bool) -> float:
    """Return how long a part ran within a batch, or waited for a core."""
    return (batch.times.waited if waits else batch.times.ran).get(part, 0) / 1e6


def mean(values: Iterable[float]) -> float:
    """Return the mean of values."""
    found = list(values)
    return sum(found) / len(found)


if __name__ == "__main__":
    main()
