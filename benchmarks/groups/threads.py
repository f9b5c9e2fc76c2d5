"""Concurrent commits of many tasks of one executor, compared with as many threads that only write."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks import contest, session
from benchmarks.contest import OURS
from benchmarks.groups.commits import ROW_BYTES
from benchmarks.report import figures, median, table
from benchmarks.result import Criterion, Result
from tests.spark.counting import jvm_of

LEAST_OF_DISK = 0.6
LEAST_BUSY = 0.75

ABOUT = """{threads} threads of one executor each commit {rows:,} changed rows ({bytes:,.0f} bytes) of a store of
{keys:,} at the same moment; what counts is the time until the last one is done. Then as many threads each write a new
file of that size from memory. Of ours, {written:,.0f} bytes arrive in each file, as it is compressed. Both once with every file synced before it counts, and once without; {rounds} rounds in changing order after {warmup} to
warm up. Busy is the processor time of the JVM and the backend over that of all {cores} cores."""


@dataclass(frozen=True)
class Plan:
    """Amount of work."""

    threads: int = 16
    keys: int = 20_000
    rows: int = 2**20 // ROW_BYTES
    warmup: int = 5
    rounds: int = 15


FULL = Plan()
QUICK = Plan(keys=2_000, rows=1_000, warmup=1, rounds=2)

Kind = tuple[bool, bool]
"""Kinds: this store or plain threads, with files synced or not."""


@dataclass
class Taken:
    """Milliseconds, processor time in milliseconds, and bytes in files, of all threads together.

    `changed` is the number of bytes to write in each round, uncompressed.
    """

    changed: int
    millis: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    written: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return MB/s of the median round."""
        return self.changed / median(self.millis) / 1000


def run(scratch: Path, quick: bool) -> Result:
    """Commit and write in turn."""
    plan = QUICK if quick else FULL
    with session.running(scratch) as spark:
        found = measure(spark, scratch, plan)
    written = median(found[True, False].written) / plan.threads
    sizes = {"bytes": plan.rows * ROW_BYTES, "written": written, "cores": psutil.cpu_count()}
    samples = [{"ours": o, "synced": s} | asdict(taken) for (o, s), taken in found.items()]
    return Result(
        "threads",
        f"{ABOUT.format(**asdict(plan), **sizes)}\n\n{tables(found)}",
        criteria(found, plan.threads),
        {"plan": asdict(plan), "kinds": samples},
    )


def measure(spark: Any, scratch: Path, plan: Plan) -> dict[Kind, Taken]:
    """Measure every kind in turn."""
    machine, jvm = contest.bench(spark).Machine, psutil.Process(jvm_of(spark))
    stores: dict[bool, Any] = {}
    changed = plan.threads * plan.rows * ROW_BYTES
    found: dict[Kind, Taken] = {(o, s): Taken(changed) for o in (True, False) for s in (False, True)}
    with contest.closing(stores):
        for synced in (False, True):
            settings = {"backend__fsync": str(synced).lower()}
            path = scratch / f"stores-{synced}"
            stores[synced] = contest.open_many(spark, path, OURS, plan.threads, **settings)
            stores[synced].fill(plan.keys)
        size = plan.rows * ROW_BYTES
        for number, seed, order in contest.turns(found, plan.warmup + plan.rounds):
            for ours, synced in order:
                if ours:
                    stores[synced].change(plan.rows, seed)
                before = processor(jvm)
                if ours:
                    millis = stores[synced].commitConcurrently() / 1e6
                else:
                    millis = machine.writeConcurrently(plan.threads, size, str(scratch), synced) / 1e6
                used = processor(jvm) - before
                written = size * plan.threads
                if ours:
                    metrics_by_store = [json.loads(metrics) for metrics in stores[synced].metrics()]
                    written = sum(m["checkpointBytesWritten"] for m in metrics_by_store)
                contest.bench(spark).StoreBenchmark.settle()
                if number >= plan.warmup:
                    of = found[ours, synced]
                    of.millis.append(millis)
                    of.processor.append(used)
                    of.written.append(written)
            if number % 10 == 9:
                for many in stores.values():
                    many.maintenance()
    return found


def processor(jvm: psutil.Process) -> float:
    """Return the processor time of a JVM and its children in milliseconds."""
    times = [process.cpu_times() for process in (jvm, *jvm.children(recursive=True))]
    seconds: float = sum(t.user + t.system for t in times)
    return 1000 * seconds


def busy(taken: Taken) -> float:
    """Return the used share of all cores, over all rounds: the system counts in steps of 10 ms."""
    return sum(taken.processor) / sum(taken.millis) / (psutil.cpu_count() or 1)


def criteria(found: dict[Kind, Taken], threads: int) -> list[Criterion]:
    """Compare throughput with synced files, which is the disk's, and the load of the cores without."""
    ours, plain = found[True, True].rate, found[False, True].rate
    work, rival = f"{threads} commits of 1 MB at once", f"{threads} plain threads"
    return [
        Criterion(f"{work}, synced", ours, LEAST_OF_DISK, "MB/s", plain, rival, at_least=True),
        Criterion(f"{work}: cores busy", busy(found[True, False]), LEAST_BUSY, at_least=True),
    ]


def tables(found: dict[Kind, Taken]) -> str:
    """Return a row for each kind."""
    rows = []
    for (ours, synced), taken in sorted(found.items(), key=lambda item: (item[0][1], not item[0][0])):
        name = OURS if ours else "plain threads"
        rows.append(
            [
                name,
                "yes" if synced else "no",
                *figures(median(taken.millis), min(taken.millis), taken.rate),
                f"{taken.rate / found[False, synced].rate:.2f}",
                f"{busy(taken):.0%}",
            ]
        )
    header = ["writer", "synced", "median", "min", "MB/s", "of the disk", "busy"]
    return table("Commits at once, in milliseconds", header, rows)
