"""Whole queries while snapshots and runs are written in the background, by the size of the state."""

from __future__ import annotations

from pathlib import Path

from benchmarks import report
from benchmarks.groups.amplification import VERSIONS, streams
from benchmarks.groups.limit import MOST_P50, Work, comparison_of
from benchmarks.report import Criterion, Result, figures
from benchmarks.sessions import SessionSettings, session_processes
from benchmarks.stores import LIMIT, OURS, PREFIX
from benchmarks.streaming import CONFS, Batches, Plan, compare, config_of, p50, p99

STORES = (OURS, LIMIT)
MOST_P99 = 2.0
INTERVAL = "2s"
FULL = tuple(Work(8, 50_000, keys, Plan(warmup=20, batches=200)) for keys in (1_000_000, 5_000_000))
QUICK = (Work(8, 100, 1_000, Plan(warmup=0, batches=2)),)

ABOUT = """The count by key of `limit`, with Spark's maintenance every {interval}: runs, snapshots and
cleanups go on beside the batches. Each store has its own JVM of 4 GiB, and runs all its batches before the
other one does, so that a merge slows down no batch but its own query's. The limit is the store that
*{limit}*, and has nothing to do in the background. *Merges* is the number of full snapshots and runs of which
the newest {versions} versions of all partitions consist. Times in milliseconds, from trigger to trigger."""


def run(scratch: Path, quick: bool) -> Result:
    """Run every row on both stores."""
    works = QUICK if quick else FULL
    results: dict[Work, Batches] = {}
    merges: dict[Work, int] = {}
    confs = CONFS | {f"{PREFIX}maintenanceInterval": INTERVAL}
    settings = SessionSettings(memory="4g", spark_files="backend", confs=confs)
    for number, work in enumerate(works):
        results[work] = {}
        for name in STORES:
            directory = scratch / f"{number}-{STORES.index(name)}"
            directory.mkdir()
            comparison = comparison_of(work, (config_of(name),))
            with session_processes(directory / "sessions", {name: settings}) as processes:
                results[work] |= compare(processes, directory, comparison, work.plan)
            if name == OURS:
                merges[work] = merges_in(directory)
        answers = {tuple(batch.output for batch in batches) for batches in results[work].values()}
        if len(answers) > 1:
            raise RuntimeError(f"the stores' answers differ: {work.name}")
    about = ABOUT.format(interval=INTERVAL, limit=LIMIT, versions=VERSIONS)
    return Result(f"{about}\n\n{table_of(results, merges)}", judge(results))


def merges_in(directory: Path) -> int:
    """Return the number of bases and runs of which the newest versions of a query's stores consist."""
    (state,) = directory.rglob("state/0")
    versions = [streams(path, int(path.name)) for path in state.iterdir() if path.name.isdigit()]
    return sum(len(sizes["bases"]) + len(sizes["runs"]) for sizes in versions)


def judge(results: dict[Work, Batches]) -> list[Criterion]:
    """Bound our p99 by our p50, and our p50 by that of the limit."""
    criteria = []
    for work, batches in results.items():
        own_batches, limit = batches[OURS], p50(batches[LIMIT])
        name = f"{work.name}, beside merges"
        criteria += [
            Criterion(f"{name}: p99", p99(own_batches), MOST_P99, "ms", p50(own_batches), "p50"),
            Criterion(f"{name}: p50", p50(own_batches), MOST_P50[work.partitions], "ms", limit, LIMIT),
        ]
    return criteria


def table_of(results: dict[Work, Batches], merges: dict[Work, int]) -> str:
    """Return the table of all rows."""
    rows = []
    for work, batches in results.items():
        for store, measured in batches.items():
            cells = figures(p50(measured), p99(measured), p99(measured) / p50(measured))
            number = f"{merges[work]:,}" if store == OURS else ""
            rows.append([work.name, store, str(len(measured)), *cells, number])
    header = ["query", "store", "batches", "p50", "p99", "p99 to p50", "merges"]
    return report.table("Batches beside merges", header, rows)
