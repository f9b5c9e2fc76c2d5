"""Cost of a savepoint for its running query.

Batches of one query follow one another without a pause. Alternately, some of them run undisturbed, and
others run while a canonical savepoint is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import spark_statestore
from benchmarks import report, session
from benchmarks.contest import OURS
from benchmarks.groups.operators import visits
from benchmarks.race import Entrant, Lap, Race, Running, running
from benchmarks.result import Criterion, Result

MOST = 1.2


@dataclass(frozen=True)
class Plan:
    """Amount of work."""

    keys: int = 1_000_000
    rows: int = 10_000
    warmup: int = 10
    quiet: int = 15
    savepoints: int = 4


FULL = Plan()
QUICK = Plan(keys=20_000, rows=1_000, warmup=1, quiet=2, savepoints=1)


@dataclass
class Measured:
    """Batches without and with a concurrent savepoint, and the seconds of each savepoint."""

    quiet: list[Lap] = field(default_factory=list)
    beside: list[Lap] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def criterion(self) -> Criterion:
        slowest, quiet = max(_times(self.beside)), max(_times(self.quiet))
        return Criterion("slowest batch beside a savepoint", slowest, MOST, "ms", quiet, "slowest without")


def counts(stream: Any) -> Any:
    """Compute a count and a sum for each key."""
    from pyspark.sql import functions as F

    return stream.groupBy("k").agg(F.count("v"), F.sum("v"))


def measure(spark: Any, scratch: Path, plan: Plan) -> Measured:
    """Run the query, and take savepoints of it meanwhile."""
    race = Race(
        "savepoints",
        counts,
        visits(plan.keys, plan.rows),
        (Entrant(OURS, spark_statestore.PROVIDER_CLASS),),
        "update",
    )
    found = Measured()
    with running(spark, scratch, race, race.entrants[0]) as query, ThreadPoolExecutor(1) as pool:
        laps = _laps(query, race, scratch)
        for _ in range(1 + plan.warmup):
            next(laps)
        for number in range(plan.savepoints):
            found.quiet.extend(next(laps) for _ in range(plan.quiet))
            taken = pool.submit(_take, query.query, scratch / f"savepoints-{number}")
            while not taken.done():
                found.beside.append(next(laps))
            found.seconds.append(taken.result())
            session.log(f"savepoint {number}: {found.seconds[-1]:.1f} s, {len(found.beside)} batches beside")
    return found


def _laps(query: Running, race: Race, scratch: Path) -> Iterator[Lap]:
    number = 0
    while True:
        made = scratch / f"{number:05}.parquet"
        pq.write_table(race.table(number), made)
        yield query.batch(made)
        made.unlink()
        number += 1


def _take(query: Any, target: Path) -> float:
    start = time.perf_counter()
    spark_statestore.savepoint(query, str(target), kind="canonical")
    return time.perf_counter() - start


def _times(laps: list[Lap]) -> list[float]:
    return [lap.milliseconds for lap in laps]


def tables(found: Measured, plan: Plan) -> str:
    """Return everything in Markdown."""
    rows = [
        [name, str(len(laps)), *report.figures(report.median(times), report.p95(times), max(times))]
        for name, laps in (("undisturbed", found.quiet), ("beside a savepoint", found.beside))
        for times in [_times(laps)]
    ]
    return "\n\n".join(
        [
            (
                f"A count and a sum of {plan.keys:,} keys, {plan.rows:,} of them at random in a batch, 2 partitions, local "
                f"files; {plan.savepoints} canonical savepoints, {report.median(found.seconds):.1f} seconds each (median). "
                "Times in milliseconds, from trigger to trigger."
            ),
            report.table("Batches", ["batches", "number", "median", "p95", "max"], rows),
        ]
    )


def run(scratch: Path, quick: bool) -> Result:
    """Measure, and return the result."""
    plan = QUICK if quick else FULL
    with session.running(scratch) as spark:
        found = measure(spark, scratch, plan)
    samples = {"plan": asdict(plan), "quiet": _times(found.quiet), "beside": _times(found.beside)}
    return Result("savepoints", tables(found, plan), [found.criterion], samples | {"seconds": found.seconds})
