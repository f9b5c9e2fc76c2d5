"""Regression guard: two ratios, in less than a minute and with slack for machines under other load."""

from __future__ import annotations

from pathlib import Path

from benchmarks.groups import store_batches
from benchmarks.report import Criterion, Result
from benchmarks.stores import CHANGELOG, OURS

MOST_OF_BUILT_IN = 1 / 6
MOST_GROWTH = 2.5

SMALL, LARGE = 100_000, 1_000_000
PLAN = store_batches.Plan(warmup=2, batches={10_000: 15})


def run(scratch: Path, quick: bool) -> Result:
    """Measure our store at two sizes, and at the larger one the faster built-in."""
    large = 2 * SMALL if quick else LARGE
    times = store_batches.measure(scratch, [(OURS, SMALL), (OURS, large), (CHANGELOG, large)], PLAN)
    return Result(store_batches.table_of(times, 10_000), judge(times))


def judge(times: store_batches.Times) -> list[Criterion]:
    """Compare the fastest batch of each, which other load on the machine disturbs least."""
    large = max(size for _, size, _ in times)
    small, own_time, rival_time = (
        min(times[name, size, 10_000]) for name, size in ((OURS, SMALL), (OURS, large), (CHANGELOG, large))
    )
    work = f"fastest batch of 10,000 rows at {large:,} keys"
    return [
        Criterion(work, own_time, MOST_OF_BUILT_IN, "ms", rival_time, CHANGELOG),
        Criterion(f"{work}, growth", own_time, MOST_GROWTH, "ms", small, f"at {SMALL:,}"),
    ]
