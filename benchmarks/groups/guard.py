"""Regression guard: two ratios, in less than a minute and with slack for machines under other load."""

from __future__ import annotations

from pathlib import Path

from benchmarks.contest import CHANGELOG, OURS
from benchmarks.groups import batches
from benchmarks.result import Criterion, Result

MOST_OF_BUILT_IN = 1 / 6
MOST_GROWTH = 2.5

SMALL, LARGE = 100_000, 1_000_000
PLAN = batches.Plan(warmup=2, batches=15, small_batches=0)


def run(scratch: Path, quick: bool) -> Result:
    """Measure our store at two sizes, and at the larger one the faster built-in."""
    large = 2 * SMALL if quick else LARGE
    found = batches.measure(scratch, [(OURS, SMALL), (OURS, large), (CHANGELOG, large)], PLAN)
    return Result("guard", batches.batch_table(found, PLAN), criteria(found))


def criteria(found: batches.Samplings) -> list[Criterion]:
    """Compare the fastest batch of each, which other load on the machine disturbs least."""
    large = max(size for _, size in found)
    small, ours, theirs = (min(found[e].batch) for e in ((OURS, SMALL), (OURS, large), (CHANGELOG, large)))
    work = f"fastest batch of 10,000 rows at {large:,} keys"
    return [
        Criterion(work, ours, MOST_OF_BUILT_IN, "ms", theirs, CHANGELOG),
        Criterion(f"{work}, growth", ours, MOST_GROWTH, "ms", small, f"at {SMALL:,}"),
    ]
