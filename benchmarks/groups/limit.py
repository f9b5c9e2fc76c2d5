"""Whole queries beside the store that keeps nothing, and beside Spark's own as they come and unforked.

Every query runs on each store concurrently, in a JVM of its own, on the same input, batch by batch in turn. The
measured time is that from trigger to trigger; it is valid only if all stores' answers are the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import race, race_apart, report, session
from benchmarks.contest import BY_TASK, CHANGELOG, HDFS, LIMIT, OURS, UNFORKED_RIVALS
from benchmarks.groups.operators import visits
from benchmarks.groups.queries import p50, p99, samples
from benchmarks.race import Entrant, Laps, Race
from benchmarks.result import Criterion, Result

MINE = (OURS, BY_TASK)
STORES = (*MINE, LIMIT, HDFS, CHANGELOG, *UNFORKED_RIVALS)

SECOND = ", second JVM"
"""Suffix of the name of a store's second participant."""

TWICE = (OURS, LIMIT)
"""Stores that take part with two JVMs, and are judged by the batches of both: medians of two JVMs differ by 3 % and more."""

MOST_P50 = {8: 1.05, 200: 1.10}
"""Largest p50 as a share of the limit's, by the number of partitions."""

MOST_P99 = 1.2

ABOUT = """A count by key in windows of ten minutes, in update mode. All events have one time, so that the state keeps its number of
keys, and each batch looks for expired windows. A batch has events of random keys, after one with every key. The limit is the store that
*{limit}*: a map in memory, which writes nothing and cannot recover. It and this store have Spark's own files written by the backend
(`spark_files="backend"`); this store also takes part with `commit=task`. Spark's stores have them written by Hadoop as PySpark comes, or *unforked*: without the programs that Hadoop starts for each local
file. All of Spark's are judged. Each store has its own JVM, this store's default and the limit two; they take turns, batch by batch in changing order. A store that took
{hopeless:g} times as long as ours in each of the first batches has only those; the others may warm up for more batches then. No maintenance in the background. Times in milliseconds, from
trigger to trigger; of few batches, p99 is the longest."""


@dataclass(frozen=True)
class Work:
    """A query's size, and the number of its batches.

    Parameters
    ----------
    partitions, rows, keys
        Number of shuffle partitions, of events of a batch, and of keys in the state.
    warmup, least, batches
        Number of warm-up batches, of measured batches of every store, and of the fastest ones.
    rewarm
        Number of further warm-up batches of the fastest ones, which count only after them.
    """

    partitions: int
    rows: int
    keys: int
    warmup: int
    least: int
    batches: int
    rewarm: int = 0

    @property
    def name(self) -> str:
        return f"count by key, {self.partitions} partitions, {self.rows:,} rows, {self.keys:,} keys"


@dataclass(frozen=True)
class Plan:
    """Amount of work.

    Parameters
    ----------
    works
        The rows.
    seconds
        Time in which batches beyond `Work.least` are run, for each row.
    hopeless
        A store that is this many times slower than ours runs no batches beyond `Work.least`.
    """

    works: tuple[Work, ...] = (
        # The many tasks of the first row warm up what all rows run.
        Work(200, 10_000, 340_000, warmup=16, least=2, batches=60, rewarm=50),
        Work(8, 1_000, 60_000, warmup=20, least=3, batches=120, rewarm=120),
        Work(8, 50_000, 950_000, warmup=10, least=3, batches=30),
    )
    seconds: float = 900
    hopeless: float = 1.5


FULL = Plan()
QUICK = Plan((Work(8, 100, 1_000, warmup=0, least=1, batches=2),))


def count_by_key(stream: Any) -> Any:
    """Count the events of each key in ten minutes."""
    from pyspark.sql import functions as F

    timed = stream.withWatermark("ts", "10 seconds")
    return timed.groupBy(F.window("ts", "10 minutes"), "k").count()


def entered_race(work: Work, entrants: tuple[Entrant, ...]) -> Race:
    """Return the race of a row."""
    return Race(
        work.name,
        count_by_key,
        visits(work.keys, work.rows),
        entrants,
        "update",
        {"spark.sql.shuffle.partitions": str(work.partitions)},
    )


def run(scratch: Path, quick: bool) -> Result:
    """Run every row on all stores."""
    plan = QUICK if quick else FULL
    entrants = {name: race.entrant_of(name) for name in STORES}
    hosts = race_apart.hosts_of(STORES)
    for name in () if quick else TWICE:
        entrants[name + SECOND] = replace(entrants[name], name=name + SECOND)
        hosts[name + SECOND] = hosts[name]
    found: dict[Work, Laps] = {}
    with race_apart.hosting(scratch / "hosts", hosts) as running:
        for number, work in enumerate(plan.works):
            directory = scratch / f"{number}"
            directory.mkdir()
            found[work] = race_apart.run(
                running,
                directory,
                entered_race(work, tuple(entrants.values())),
                work.warmup,
                work.batches,
                session.log,
                least=work.least,
                seconds=plan.seconds,
                hopeless=plan.hopeless,
                rewarm=work.rewarm,
            )
    kept = {work.name: samples(laps) for work, laps in found.items()}
    return Result("limit", tables(found, plan), criteria(found), {"plan": asdict(plan), "queries": kept})


def of_both(laps: Laps) -> Laps:
    """Return the batches of each store in all of its JVMs."""
    return {name: of + laps.get(name + SECOND, []) for name, of in laps.items() if not name.endswith(SECOND)}


def criteria(found: dict[Work, Laps]) -> list[Criterion]:
    """Require each row to beat both of Spark's stores, as they come and unforked, and to be near the limit."""
    judged = []
    for work, by_jvm in found.items():
        laps = of_both(by_jvm)
        rivals = [store for store in laps if store not in (*MINE, LIMIT)]
        for mine in MINE:
            name = work.name + mine.removeprefix(OURS)
            for percent, of, most in ((50, p50, MOST_P50[work.partitions]), (99, p99, MOST_P99)):
                ours = of(laps[mine])
                best = min(rivals, key=lambda store: of(laps[store]))
                judged += [
                    Criterion(f"{name}: p{percent}", ours, 1, "ms", of(laps[best]), best),
                    Criterion(f"{name}: p{percent} to the limit", ours, most, "ms", of(laps[LIMIT]), LIMIT),
                ]
    return judged


def tables(found: dict[Work, Laps], plan: Plan) -> str:
    """Return a table for each row."""
    about = ABOUT.format(limit=LIMIT, hopeless=plan.hopeless)
    return "\n\n".join([about, *(_table_of(work.name, laps) for work, laps in found.items())])


def _table_of(name: str, by_jvm: Laps) -> str:
    laps = of_both(by_jvm)
    limit = laps[LIMIT]
    rows = [
        [
            store,
            str(len(of)),
            *report.figures(p50(of), p99(of), p50(of) / p50(limit), p99(of) / p99(limit)),
            ", ".join(
                report.figures(*(p50(by_jvm[jvm]) for jvm in (store, store + SECOND) if jvm in by_jvm))
            ),
        ]
        for store, of in laps.items()
    ]
    return report.table(
        name,
        ["store", "batches", "p50", "p99", "p50 to the limit", "p99 to the limit", "p50 of each JVM"],
        rows,
    )
