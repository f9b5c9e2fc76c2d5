"""Whole queries beside the store that keeps nothing, and beside Spark's own as they come and unforked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import report, streaming
from benchmarks.report import Criterion, Result, figures
from benchmarks.sessions import session_processes
from benchmarks.stores import BY_TASK, CHANGELOG, HDFS, LIMIT, OURS, UNFORKED_RIVALS
from benchmarks.streaming import Batches, Comparison, Plan, StoreConfig, best, p50, p99

MINE = (OURS, BY_TASK)
STORES = (*MINE, LIMIT, HDFS, CHANGELOG, *UNFORKED_RIVALS)

SECOND = ", second JVM"
"""Suffix of the name of a store's second participant."""

TWICE = (OURS, LIMIT)
"""Stores that take part with two JVMs, and are judged by the batches of both.

The medians of two JVMs differ by 3 % and more.
"""

MOST_P50 = {8: 1.05, 200: 1.10}
"""Largest p50 as a share of the limit's, by the number of partitions."""

MOST_P99 = 1.2

START = datetime(2024, 1, 1, tzinfo=UTC)
COLUMNS = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", tz="UTC")), ("v", pa.int64())])

ABOUT = """A count by key in windows of ten minutes, in update mode. All events have one time, so that the
state keeps its number of keys, and each batch looks for expired windows. A batch has events of random keys,
after one with every key. The limit is the store that *{limit}*: a map in memory, which writes nothing and
cannot recover. It and this store have Spark's own files written by the backend (`spark_files="backend"`);
this store also takes part with `commit=task`. Spark's stores have them written by Hadoop as PySpark comes, or
*unforked*: without the programs that Hadoop starts for each local file. All of Spark's are judged. Each store
has its own JVM, this store's default and the limit two; they take turns, batch by batch in changing order. A
store that took {far_behind:g} times as long as ours in each of the first batches has only those; the others
may warm up for more batches then. No maintenance in the background. Times in milliseconds, from trigger to
trigger; of few batches, p99 is the longest."""


@dataclass(frozen=True)
class Work:
    """A query's number of shuffle partitions, of events in a batch, of keys in the state, and of batches."""

    partitions: int
    rows: int
    keys: int
    plan: Plan

    @property
    def name(self) -> str:
        return f"count by key, {self.partitions} partitions, {self.rows:,} rows, {self.keys:,} keys"


_plan = partial(Plan, seconds=900, far_behind=1.5)

FULL = (
    # The many tasks of the first row warm up what all rows run.
    Work(200, 10_000, 340_000, _plan(warmup=16, least=2, batches=60, rewarm=50)),
    Work(8, 1_000, 60_000, _plan(warmup=20, least=3, batches=120, rewarm=120)),
    Work(8, 50_000, 950_000, _plan(warmup=10, least=3, batches=30)),
)
QUICK = (Work(8, 100, 1_000, _plan(warmup=0, batches=2)),)


def visits(keys: int, rows: int) -> Callable[[int], pa.Table]:
    """Return the batches of every key once, and then of random keys, all of one time."""
    # Not a local function, so that it can be sent to another process.
    return partial(_visits, keys, rows)


def _visits(keys: int, rows: int, number: int) -> pa.Table:
    random = np.random.default_rng(number)
    k = np.arange(keys) if number == 0 else random.integers(0, keys, rows)
    ts = np.full(len(k), np.datetime64(START.replace(tzinfo=None), "us"))
    return pa.table([k, pa.array(ts, pa.timestamp("us", tz="UTC")), k + number], schema=COLUMNS)


def count_by_key(stream: Any) -> Any:
    """Count the events of each key in ten minutes."""
    from pyspark.sql import functions as F

    timed = stream.withWatermark("ts", "10 seconds")
    return timed.groupBy(F.window("ts", "10 minutes"), "k").count()


def comparison_of(work: Work, stores: tuple[StoreConfig, ...]) -> Comparison:
    """Return the query of a row on stores."""
    table = visits(work.keys, work.rows)
    return Comparison(work.name, count_by_key, table, stores, "update", work.partitions)


def run(scratch: Path, quick: bool) -> Result:
    """Run every row on all stores."""
    works = QUICK if quick else FULL
    stores = {name: streaming.config_of(name) for name in STORES}
    settings = streaming.sessions_of(STORES)
    for name in () if quick else TWICE:
        stores[name + SECOND] = replace(stores[name], name=name + SECOND)
        settings[name + SECOND] = settings[name]
    results: dict[Work, Batches] = {}
    with session_processes(scratch / "sessions", settings) as processes:
        for number, work in enumerate(works):
            directory = scratch / f"{number}"
            directory.mkdir()
            comparison = comparison_of(work, tuple(stores.values()))
            results[work] = streaming.compare(processes, directory, comparison, work.plan)
    about = ABOUT.format(limit=LIMIT, far_behind=works[0].plan.far_behind)
    tables = [table_of(work.name, batches) for work, batches in results.items()]
    return Result("\n\n".join([about, *tables]), judge(results))


def of_both(by_jvm: Batches) -> Batches:
    """Return the batches of each store in all of its JVMs."""
    first = {name: batches for name, batches in by_jvm.items() if not name.endswith(SECOND)}
    return {name: batches + by_jvm.get(name + SECOND, []) for name, batches in first.items()}


def judge(results: dict[Work, Batches]) -> list[Criterion]:
    """Require each row to beat Spark's stores, as they come and unforked, and to be near the limit."""
    criteria = []
    for work, by_jvm in results.items():
        batches = of_both(by_jvm)
        rivals = [store for store in batches if store not in (*MINE, LIMIT)]
        for variant in MINE:
            name = work.name + variant.removeprefix(OURS)
            for percent, figure, most in ((50, p50, MOST_P50[work.partitions]), (99, p99, MOST_P99)):
                own_time, limit = figure(batches[variant]), figure(batches[LIMIT])
                rival = best(batches, figure, rivals)
                criteria += [
                    Criterion(f"{name}: p{percent}", own_time, 1, "ms", figure(batches[rival]), rival),
                    Criterion(f"{name}: p{percent} to the limit", own_time, most, "ms", limit, LIMIT),
                ]
    return criteria


def table_of(name: str, by_jvm: Batches) -> str:
    """Return the table of a row."""
    batches = of_both(by_jvm)
    limit = batches[LIMIT]
    rows = []
    for store, measured in batches.items():
        ratios = (p50(measured) / p50(limit), p99(measured) / p99(limit))
        each = (p50(by_jvm[jvm]) for jvm in (store, store + SECOND) if jvm in by_jvm)
        cells = figures(p50(measured), p99(measured), *ratios)
        rows.append([store, str(len(measured)), *cells, ", ".join(figures(*each))])
    header = ["store", "batches", "p50", "p99", "p50 to the limit", "p99 to the limit", "p50 of each JVM"]
    return report.table(name, header, rows)
