"""Whole queries while snapshots and runs are written in the background, by the size of the state."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from benchmarks import race, race_apart, report, session
from benchmarks.contest import LIMIT, OURS
from benchmarks.groups.amplification import VERSIONS, streams
from benchmarks.groups.limit import MOST_P50, Work, entered_race
from benchmarks.groups.queries import p50, p99, samples
from benchmarks.race import Laps
from benchmarks.race_apart import CONFS, Host
from benchmarks.result import Criterion, Result

STORES = (OURS, LIMIT)
MOST_P99 = 2.0
INTERVAL = "2s"
FULL = tuple(Work(8, 50_000, keys, warmup=20, least=200, batches=200) for keys in (1_000_000, 5_000_000))
QUICK = (Work(8, 100, 1_000, warmup=0, least=2, batches=2),)

ABOUT = """The count by key of the group `limit`, with Spark's maintenance every {interval}: runs, snapshots and cleanups go on beside the batches.
Each store has its own JVM of 4 GiB, and runs all its batches before the other one does, so that a merge slows down no batch but its own query's. The
limit is the store that *{limit}*, and has nothing to do in the background. *Merges* is the number of full snapshots and runs of which the newest
{versions} versions of all partitions consist. Times in milliseconds, from trigger to trigger."""


def run(scratch: Path, quick: bool) -> Result:
    """Run every row on both stores."""
    works = QUICK if quick else FULL
    found: dict[Work, Laps] = {}
    merges: dict[Work, int] = {}
    interval = {"sql__streaming__stateStore__maintenanceInterval": INTERVAL}
    host = Host(memory="4g", spark_files="backend", confs=CONFS | interval)
    for number, work in enumerate(works):
        found[work] = {}
        for name in STORES:
            directory = scratch / f"{number}-{STORES.index(name)}"
            directory.mkdir()
            entered = entered_race(work, (race.entrant_of(name),))
            with race_apart.hosting(directory / "hosts", {name: host}) as hosts:
                found[work] |= race_apart.run(
                    hosts, directory, entered, work.warmup, work.batches, session.log, least=work.least
                )
            if name == OURS:
                merges[work] = merges_in(directory)
        answers = {tuple(lap.output for lap in laps) for laps in found[work].values()}
        if len(answers) > 1:
            raise ValueError(f"the stores' answers differ: {work.name}")
    kept = {work.name: samples(laps) for work, laps in found.items()}
    parts = [ABOUT.format(interval=INTERVAL, limit=LIMIT, versions=VERSIONS), table(found, merges)]
    return Result(
        "merges", "\n\n".join(parts), criteria(found), {"plan": list(map(asdict, works)), "queries": kept}
    )


def merges_in(directory: Path) -> int:
    """Return the number of bases and runs of which the newest versions of a query's stores consist."""
    (state,) = directory.rglob("state/0")
    found = [streams(path, int(path.name)) for path in state.iterdir() if path.name.isdigit()]
    return sum(len(one["bases"]) + len(one["runs"]) for one in found)


def criteria(found: dict[Work, Laps]) -> list[Criterion]:
    """Bound our p99 by our p50, and our p50 by that of the limit."""
    judged = []
    for work, laps in found.items():
        ours = laps[OURS]
        name = f"{work.name}, beside merges"
        limit = p50(laps[LIMIT])
        judged += [
            Criterion(f"{name}: p99", p99(ours), MOST_P99, "ms", p50(ours), "p50"),
            Criterion(f"{name}: p50", p50(ours), MOST_P50[work.partitions], "ms", limit, LIMIT),
        ]
    return judged


def table(found: dict[Work, Laps], merges: dict[Work, int]) -> str:
    """Return the table of all rows."""
    rows = [
        [
            work.name,
            store,
            str(len(of)),
            *report.figures(p50(of), p99(of), p99(of) / p50(of)),
            f"{merges[work]:,}" if store == OURS else "",
        ]
        for work, laps in found.items()
        for store, of in laps.items()
    ]
    header = ["query", "store", "batches", "p50", "p99", "p99 to p50", "merges"]
    return report.table("Batches beside merges", header, rows)
