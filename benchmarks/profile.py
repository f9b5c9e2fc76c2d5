"""Profile of one store's time: ``python -m benchmarks.profile batch``.

Draws flame graphs of both halves: of the JVM by its flight recorder (needs a JDK's ``jfr`` and ``jcmd``),
of the backend by py-spy, which must be installed (``pip install py-spy``).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import contest, flame, session
from benchmarks.contest import OURS
from benchmarks.recording import Recording, missing, recording
from benchmarks.report import median
from tests.spark.counting import backends_of, jvm_of

KEYS = 1_000_000

Work = Callable[[int], float]
"""A round, by its number; returns nanoseconds."""


def main() -> int:
    """Run one kind of work for a while and draw flame graphs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("work", choices=sorted(WORK))
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the profile in seconds")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="directory of the graphs")
    arguments = parser.parse_args()
    if needed := missing():
        parser.error(f"{', '.join(needed)} cannot be found: install a JDK 17, and py-spy by pip")
    make, frame = WORK[arguments.work]
    directory = tempfile.TemporaryDirectory(prefix="statestore-profile-")
    with directory as scratch, session.running(Path(scratch)) as spark:
        work = make(spark, Path(scratch) / "state")
        settle = contest.bench(spark).StoreBenchmark.settle
        repeat(work, 10.0, settle)
        (backend,) = backends_of(jvm_of(spark))
        with recording(jvm_of(spark), backend.pid, arguments.seconds, Path(scratch)) as found:
            taken = repeat(work, arguments.seconds, settle)
    print_profile(arguments.work, frame, found, taken, arguments.out)
    return 0


def repeat(work: Work, seconds: float, settle: Callable[[], None]) -> list[float]:
    """Return the milliseconds of each round within the time."""
    until = time.monotonic() + seconds
    taken: list[float] = []
    while time.monotonic() < until:
        taken.append(work(len(taken)) / 1e6)
        settle()
    return taken


def print_profile(work: str, frame: str, found: Recording, taken: list[float], out: Path) -> None:
    """Draw both processes, and print the most frequent innermost frames."""
    pauses = f"{len(found.pauses)} pauses of the collector, {sum(found.pauses):.0f} ms in all"
    print(f"{len(taken)} rounds, median {median(taken):.2f} ms, least {min(taken):.2f} ms; {pauses}")
    for stacks, half in ((flame.below(found.jvm, frame), "jvm"), (found.backend, "backend")):
        path = out / f"flame-{work}-{half}.svg"
        flame.draw(stacks, f"{work}, {half}", path)
        print(f"\n{path}\n")
        for leaf, share in flame.shares(stacks):
            print(f"{share:6.1%}  {leaf}")


def _batches(operations: int, spark: Any, path: Path, *, keys: int = KEYS) -> Work:
    store = contest.open_store(spark, path, OURS)
    store.fill(keys)
    return lambda seed: store.batch(operations, seed)


def _commits(changed: int, spark: Any, path: Path) -> Work:
    store = contest.open_store(spark, path, OURS)
    store.fill(KEYS)

    def commit(seed: int) -> float:
        store.change(changed, seed)
        return store.commit()

    return commit


def _loads(deltas: int, spark: Any, path: Path) -> Work:
    store = contest.open_store(spark, path, OURS, minDeltasForSnapshot="1000000")
    store.fill(KEYS, KEYS, True)
    for seed in range(deltas):
        store.batch(10_000, seed)
    return lambda _: store.coldLoad()


def _rows(kind: str, operation: str, spark: Any, path: Path) -> Work:
    provider, confs = contest.confs(spark, OURS)
    store = contest.bench(spark).RowBenchmark(provider, f"file:{path}", confs, kind, 10_000)
    return lambda _: store.time(operation)


def _crowd(spark: Any, path: Path) -> Work:
    stores = contest.open_many(spark, path, OURS, 16, backend__fsync="true")
    stores.fill(20_000)

    def commit(seed: int) -> float:
        stores.change(18_724, seed)
        return stores.commitConcurrently()

    return commit


def _empty(spark: Any, path: Path) -> Work:
    stores = contest.open_many(spark, path, OURS, 200)
    stores.fill(100)
    return lambda _: stores.emptyBatch(1) / 200


WORK: dict[str, tuple[Callable[[Any, Path], Work], str]] = {
    "batch-10000": (partial(_batches, 10_000), "StoreBenchmark.batch"),
    "batch-100": (partial(_batches, 100), "StoreBenchmark.batch"),
    "batch-0": (partial(_batches, 0), "StoreBenchmark.batch"),
    "batch-of-100k-keys": (partial(_batches, 10_000, keys=100_000), "StoreBenchmark.batch"),
    "batch-of-5m-keys": (partial(_batches, 10_000, keys=5_000_000), "StoreBenchmark.batch"),
    "empty-commits": (_empty, "StoreBenchmark.commit"),
    "commit-1000": (partial(_commits, 1_000), "StoreBenchmark.commit"),
    "commit-10000": (partial(_commits, 10_000), "StoreBenchmark.commit"),
    "commit-100000": (partial(_commits, 100_000), "StoreBenchmark.commit"),
    "load": (partial(_loads, 0), "StoreBenchmark.coldLoad"),
    "load-50-deltas": (partial(_loads, 50), "StoreBenchmark.coldLoad"),
    "get-miss": (partial(_rows, "plain", "get miss"), "RowBenchmark.getMisses"),
    "prefix-scan": (partial(_rows, "prefix", "prefix scan"), "RowBenchmark.time"),
    "16-commits": (_crowd, "StoreBenchmark.commit"),
}
"""Kinds of work: setup, and the frame of the work."""


if __name__ == "__main__":
    sys.exit(main())
