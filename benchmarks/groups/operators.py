"""Whole queries, one for each kind of stateful operator, on every store that supports it.

Spark's stores take part as they come, and unforked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import streaming
from benchmarks.nexmark import queries
from benchmarks.nexmark.events import input_table
from benchmarks.report import Criterion, Result, figures, median, table
from benchmarks.sessions import session_processes
from benchmarks.stores import HDFS, OURS, PROVIDERS, UNFORKED_RIVALS
from benchmarks.streaming import Batch, Batches, Comparison, Plan, StoreConfig, best, p50, p99
from tests.spark.queries import JOIN_FORMAT

STORES = (*PROVIDERS, *UNFORKED_RIVALS)
STEPS = {
    "updates": "allUpdatesTimeMs",
    "removals": "allRemovalsTimeMs",
    "commit": "commitTimeMs",
    "addBatch": "addBatch",
}

ABOUT = """Each query runs on all stores at once, each in its own JVM, and gets the input of at most {batches}
batches of {rows:,} Nexmark events, after one of {fill:,} that fills the state and {warmup} to warm up
(Python: {python_rows:,} and {python_fill:,}), with {partitions} partitions; batch by batch in turn, in
changing order, while the others wait. A store that took {far_behind:g} times as long as ours in each of the
first {least} has only those. After each batch the answers of all stores are compared. Checkpoints on a local
file system, ours as `configure` sets it (`spark_files="backend"`). For each file of the built-in stores, and
of Spark's own, Hadoop starts programs there as Spark comes; *unforked*, it starts none. Both are judged. No
maintenance in the background. Times in milliseconds, from trigger to trigger, of a batch and the batch
without data that may follow it; of few batches, p99 is the longest. CPU is the processor time of all
processes in half of the batches, which other programs on the machine hardly change. Updates, removals and
commit are sums over the partitions, two of which work at once."""


@dataclass(frozen=True)
class Size:
    """Numbers of batches by shuffle partitions, of events that fill the state, and of events in a batch."""

    # The first queries begin in new JVMs.
    plans: tuple[tuple[int, Plan], ...] = (
        (8, Plan(warmup=3, batches=30, least=2, seconds=45, far_behind=4)),
        (200, Plan(warmup=1, batches=30, least=2, seconds=45, far_behind=4)),
    )
    fill: int = 300_000
    rows: int = 50_000
    python_fill: int = 10_000
    python_rows: int = 5_000


FULL = Size()
QUICK = Size(((2, Plan(warmup=0, batches=1)),), 5_000, 1_000, 500, 200)


def comparisons(size: Size, partitions: int) -> list[Comparison]:
    """Return the queries with a number of shuffle partitions."""
    every = tuple(map(streaming.config_of, STORES))
    # HDFSBacked supports no column families, which transformWithState and joins of format 4 need.
    families = tuple(store for store in every if not store.name.startswith(HDFS))
    events = partial(input_table, size.fill, size.rows)
    few = partial(input_table, size.python_fill, size.python_rows)
    in_format_4 = tuple(map(_in_format_4, families))
    return [
        Comparison(f"{name}, {partitions} partitions", build, table, stores, mode, partitions)
        for name, build, mode, stores, table in (
            ("windowed count", queries.windowed_count, "update", every, events),
            ("session window", queries.session_window, "append", every, events),
            ("dedup", queries.deduplication, "append", every, events),
            ("stream-stream join", queries.join, "append", every, events),
            ("left outer join, format 4", queries.outer_join, "append", in_format_4, events),
            ("transformWithState in Python", queries.transform_with_state, "update", families, few),
        )
    ]


def _in_format_4(store: StoreConfig) -> StoreConfig:
    """Return the configuration of a store for joins with state of format 4."""
    return StoreConfig(store.name, store.provider, store.settings, {JOIN_FORMAT: "4"})


def run(scratch: Path, quick: bool) -> Result:
    """Run every query on all stores."""
    size = QUICK if quick else FULL
    results: dict[str, Batches] = {}
    with session_processes(scratch / "sessions", streaming.sessions_of(STORES)) as processes:
        for partitions, plan in size.plans:
            directory = scratch / f"{partitions}"
            directory.mkdir()
            for comparison in comparisons(size, partitions):
                results[comparison.name] = streaming.compare(processes, directory, comparison, plan)
    plans = [plan for _, plan in size.plans]
    described = vars(size) | vars(plans[0])
    described["warmup"] = " or ".join(str(plan.warmup) for plan in plans)
    described["partitions"] = " or ".join(str(partitions) for partitions, _ in size.plans)
    tables = [table_of(name, batches) for name, batches in results.items()]
    return Result("\n\n".join([ABOUT.format_map(described), *tables]), judge(results))


def per_second(batches: list[Batch]) -> float:
    return 1000 * sum(batch.input_rows for batch in batches) / sum(batch.milliseconds for batch in batches)


def judge(results: dict[str, Batches]) -> list[Criterion]:
    """Require each query to beat every built-in store, as it comes and unforked.

    It must be faster in half of its batches, in nearly all, and over all.
    """
    criteria = []
    for name, batches in results.items():
        rivals = [store for store in batches if store != OURS]
        own_batches = batches[OURS]
        for percent, figure in ((50, p50), (99, p99)):
            rival = best(batches, figure, rivals)
            work = f"{name}: p{percent}"
            criteria.append(Criterion(work, figure(own_batches), 1, "ms", figure(batches[rival]), rival))
        rival = max(rivals, key=lambda store: per_second(batches[store]))
        most = per_second(batches[rival])
        criteria.append(
            Criterion(f"{name}: rows/s", per_second(own_batches), 1, "rows/s", most, rival, at_least=True)
        )
    return criteria


def table_of(name: str, batches: Batches) -> str:
    """Return the table of a query."""
    rows = []
    for store, measured in batches.items():
        times = (p50(measured), p99(measured), min(batch.milliseconds for batch in measured))
        cells = [*figures(*times), f"{per_second(measured):,.0f}", f"{times[0] / p50(batches[OURS]):.2f}"]
        steps = [median([batch.steps[step] for batch in measured]) for step in STEPS.values()]
        cells += figures(cpu(measured), cpu(measured) / cpu(batches[OURS]), *steps)
        # RocksDB does not count them at its best setting.
        rows.append(
            [store, str(len(measured)), *cells, f"{measured[-1].rows:,}" if measured[-1].rows else ""]
        )
    header = ["store", "batches", "p50", "p99", "min", "rows/s", "p50 to ours", "CPU", "CPU to ours"]
    return table(name, [*header, *STEPS, "rows of state"], rows)


def cpu(batches: list[Batch]) -> float:
    return median([batch.cpu for batch in batches])
