"""State larger than the heap, in pages on local disk: fill, commit, load and continue."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import contest, session
from benchmarks.contest import OURS
from benchmarks.report import figures, median, p95, table
from benchmarks.result import Criterion, Result

MOST_OF_IN_MEMORY = 3
NOISE = 14
ROW_BYTES = 24 + 8 + 8 * (2 + NOISE)

ABOUT = """A JVM with a largest heap of {memory}, and a state of {rows:,} rows of {row} bytes: {size:,.1f} GB. It is filled
in commits of {each:,} rows, a snapshot of it is written, and it is loaded again. A batch gets and puts 10,000 times, keys
at random of {touched:,}; {batches} of them after {warmup} to warm up. In memory: the same batches of a state that has
no other rows than these, in the same JVM before. All that is read is compared with what was put."""


@dataclass(frozen=True)
class Plan:
    """Amount of work; `limit` is the option's, None for its default."""

    memory: str = "1g"
    rows: int = 19_000_000
    each: int = 250_000
    touched: int = 500_000
    warmup: int = 15
    batches: int = 25
    limit: str | None = None


FULL = Plan()
QUICK = Plan(rows=200_000, each=50_000, touched=10_000, warmup=2, batches=3, limit="8m")

IN_MEMORY, LARGE, LOADED = "in memory", "larger than the heap", "larger than the heap, loaded again"


def run(scratch: Path, quick: bool) -> Result:
    """Fill, snapshot, load, and time batches in between."""
    plan = QUICK if quick else FULL
    taken: dict[str, list[float]] = {}
    once: dict[str, float] = {}
    with session.running(scratch, memory=plan.memory) as spark:
        confs = {"minDeltasForSnapshot": str(plan.rows // plan.each // 2)}
        if plan.limit:
            confs["backend__maxHeapBytes"] = plan.limit

        def batches(name: str, store: Any) -> None:
            for number in range(plan.warmup + plan.batches):
                millis = store.batch(10_000, number, plan.touched) / 1e6
                contest.bench(spark).StoreBenchmark.settle()
                if number >= plan.warmup:
                    taken.setdefault(name, []).append(millis)

        def seconds(name: str, nanos: int) -> None:
            once[name] = nanos / 1e9
            session.log(f"{name}: {once[name]:.1f} s")

        small = contest.open_store(spark, scratch / "small" / "state", OURS, NOISE, **confs)
        small.fill(plan.touched, plan.each, False)
        batches(IN_MEMORY, small)
        small.close()
        store = contest.open_store(spark, scratch / "large" / "state", OURS, NOISE, **confs)
        seconds("fill", store.fill(plan.rows, plan.each, False))
        batches(LARGE, store)
        start = time.monotonic_ns()
        store.maintenance()
        contest.bench(spark).StoreBenchmark.settle()
        seconds("snapshot", time.monotonic_ns() - start)
        seconds("load", store.reload())
        batches(LOADED, store)
        heap, buffers = contest.bench(spark).Machine.usedMemory()
        store.close()
    once |= {"heap, MiB": heap / 2**20, "buffers, MiB": buffers / 2**20}
    about = ABOUT.format(**asdict(plan), row=ROW_BYTES, size=plan.rows * ROW_BYTES / 1e9)
    return Result(
        "spill",
        f"{about}\n\n{tables(taken, once)}",
        criteria(taken),
        {"plan": asdict(plan), "milliseconds": taken, "once": once},
    )


def criteria(taken: dict[str, list[float]]) -> list[Criterion]:
    """Compare times after the fill and after the load."""
    within = median(taken[IN_MEMORY])
    return [
        Criterion(f"batch of state {name}", median(taken[name]), MOST_OF_IN_MEMORY, "ms", within, IN_MEMORY)
        for name in (LARGE, LOADED)
    ]


def tables(taken: dict[str, list[float]], once: dict[str, float]) -> str:
    """Return a table of batches, and of the single steps."""
    rows = [
        [name, *figures(median(times), min(times), p95(times), median(times) / median(taken[IN_MEMORY]))]
        for name, times in taken.items()
    ]
    header = ["state", "median", "min", "p95", "ratio to in memory"]
    whole = table("Once, in seconds", ["step", "time"], [[name, *figures(v)] for name, v in once.items()])
    return table("Batch of 10,000 rows, in milliseconds", header, rows) + "\n\n" + whole
