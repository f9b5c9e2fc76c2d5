"""The driver's part of a batch: Spark's own files of a local checkpoint, through the backend and through Hadoop."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import spark_statestore
from benchmarks import race, race_apart, report, session
from benchmarks.contest import UNFORKED_FILES
from benchmarks.groups.queries import nexmark_table
from benchmarks.nexmark import queries
from benchmarks.race import Entrant, Lap, Laps, Race
from benchmarks.race_apart import CONFS, Host
from benchmarks.report import figures
from benchmarks.result import Criterion, Result

BACKEND, HADOOP, UNFORKED = "backend", "Hadoop", "Hadoop, unforked"

WRITES = ("walCommit", "commitOffsets")
"""Steps of a batch in Spark's `durationMs` that do nothing but write a file."""
OTHERS = ("latestOffset", "queryPlanning", "addBatch", "triggerExecution")

MOST_OF_HADOOP = 1 / 5

_CONFS = CONFS | {"sql__streaming__minBatchesToRetain": "2"}
HOSTS: dict[str, Host] = {
    BACKEND: Host(spark_files="backend", confs=_CONFS),
    HADOOP: Host(confs=_CONFS),
    UNFORKED: Host(confs=_CONFS, settings=UNFORKED_FILES),
}
"""The session of each way to write the files."""

ABOUT = """A windowed count of {rows:,} events a batch with 2 partitions, its state in this store, its checkpoint in a local
directory. Spark's own files there are written by the backend (`spark_files="backend"`), by Hadoop as PySpark comes, or by Hadoop as with its native
library (*unforked*: without that library, which PySpark does not bring along, Hadoop starts `chmod` for each file; not judged). Each has a JVM
of its own; {batches} batches of each in turn, in changing order, after {warmup} to warm up. Medians in milliseconds of Spark's
`durationMs`: `walCommit` writes the log of offsets, `commitOffsets` that of commits and removes the oldest files of both,
`latestOffset` lists the input and writes the source's log. In the first batch of a query, here of {starts} queries, `queryPlanning` writes
the operators' metadata and schemas too."""


@dataclass(frozen=True)
class Plan:
    """Amount of work."""

    fill: int = 10_000
    rows: int = 1_000
    warmup: int = 5
    batches: int = 30
    starts: int = 5


FULL = Plan()
QUICK = Plan(warmup=0, batches=2, starts=1)


def run(scratch: Path, quick: bool) -> Result:
    """Run the same query with each, and further ones for their first batches."""
    plan = QUICK if quick else FULL
    table = partial(nexmark_table, plan.fill, plan.rows)
    entrants = tuple(Entrant(name, spark_statestore.PROVIDER_CLASS) for name in HOSTS)
    confs = {"spark.sql.shuffle.partitions": "2"}

    def measure(name: str, warmup: int, batches: int) -> Laps:
        entered = Race(name, queries.windowed_count, table, entrants, "update", confs)
        directory = scratch / name
        directory.mkdir()
        with race_apart.queries(hosts, directory, entered) as running:
            return race.take_turns(directory, entered, running, warmup, batches, session.log)

    with race_apart.hosting(scratch / "hosts", HOSTS) as hosts:
        laps = measure("batches", plan.warmup, plan.batches)
        firsts: Laps = {name: [] for name in HOSTS}
        for number in range(plan.starts):
            for name, first in measure(f"start-{number}", -1, 1).items():
                firsts[name] += first
    samples = {
        name: {
            "batches": [lap.steps for lap in laps[name]],
            "first batches": [lap.steps for lap in firsts[name]],
        }
        for name in HOSTS
    }
    return Result(
        "driver_files", tables(laps, firsts, plan), criteria(laps), {"plan": asdict(plan), "steps": samples}
    )


def criteria(laps: Laps) -> list[Criterion]:
    """Require a fifth of Hadoop's time, for each file and for all."""
    judged = [((step,), step) for step in WRITES] + [(WRITES, "both")]
    return [
        Criterion(
            f"driver's files of a batch: {name}",
            written(laps[BACKEND], *steps),
            MOST_OF_HADOOP,
            "ms",
            written(laps[HADOOP], *steps),
            HADOOP,
        )
        for steps, name in judged
    ]


def written(laps: list[Lap], *steps: str) -> float:
    """Return the median time of some steps together, of a batch."""
    return report.median([sum(lap.steps[step] for step in steps) / lap.batches for lap in laps])


def tables(laps: Laps, firsts: Laps, plan: Plan) -> str:
    """Return the tables of all measurements."""
    return "\n\n".join(
        [
            ABOUT.format(**asdict(plan)),
            _table("The driver's part of a batch", laps),
            _table("The same of a query's first batch", firsts),
        ]
    )


def _table(title: str, laps: Laps) -> str:
    ours = written(laps[BACKEND], *WRITES)
    rows = []
    for name, of in laps.items():
        both = written(of, *WRITES)
        steps = (written(of, step) for step in (*WRITES, *OTHERS))
        rows.append([name, *figures(*steps), *figures(both), f"{both / ours:.2f}"])
    header = ["written by", *WRITES, *OTHERS, "first two together", "ratio to ours"]
    return report.table(title, header, rows)
