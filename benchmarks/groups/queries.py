"""Whole queries over Nexmark's events, on every store that supports them: Spark's as they come, and unforked.

Every query runs on each store concurrently, in a JVM of its own, on the same input, batch by batch in turn. The
measured time is that from trigger to trigger, including Spark's own work and Python's; it is valid only if all
stores' answers are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks import race, race_apart, report, session
from benchmarks.contest import HDFS, OURS, PROVIDERS, UNFORKED_RIVALS
from benchmarks.nexmark import queries
from benchmarks.nexmark.events import Generator
from benchmarks.race import Lap, Laps, Race
from benchmarks.result import Criterion, Result

# Start of the stream: persons and auctions already exist.
FIRST = 1_000_000

STORES = (*PROVIDERS, *UNFORKED_RIVALS)


@dataclass(frozen=True)
class Plan:
    """Amount of work.

    Parameters
    ----------
    partitions
        Number of shuffle partitions of each query.
    fill, rows
        Number of events that fill the state, and of a batch.
    python_fill, python_rows
        The same for queries with Python code for each row.
    warmup
        Number of warm-up batches, for each of `partitions`: the first races begin in new JVMs.
    least, batches
        Number of measured batches of every store, and of the fastest ones.
    seconds
        Time in which batches beyond `least` are run.
    hopeless
        A store that is this many times slower than ours runs no batches beyond `least`.
    """

    partitions: tuple[int, ...] = (8, 200)
    fill: int = 300_000
    rows: int = 50_000
    python_fill: int = 10_000
    python_rows: int = 5_000
    warmup: tuple[int, ...] = (3, 1)
    least: int = 2
    batches: int = 30
    seconds: float = 45
    hopeless: float = 4


FULL = Plan()
QUICK = Plan((2,), 5_000, 1_000, 500, 200, warmup=(0,), least=1, batches=1)


def races(plan: Plan, partitions: int) -> list[Race]:
    """Return the races with a number of shuffle partitions."""
    entrants = tuple(map(race.entrant_of, STORES))
    confs = {"spark.sql.shuffle.partitions": str(partitions)}
    table = partial(nexmark_table, plan.fill, plan.rows)
    few = partial(nexmark_table, plan.python_fill, plan.python_rows)
    # HDFSBacked supports no column families, which transformWithState needs.
    with_families = tuple(entrant for entrant in entrants if not entrant.name.startswith(HDFS))

    def entered(name: str, build: queries.Build, mode: str, table: Callable[[int], pa.Table]) -> Race:
        python = build is queries.transform_with_state
        return Race(
            f"{name}, {partitions} partitions",
            build,
            table,
            with_families if python else entrants,
            mode,
            confs,
        )

    return [
        entered("windowed count", queries.windowed_count, "update", table),
        entered("session window", queries.session_window, "append", table),
        entered("dedup", queries.deduplication, "append", table),
        entered("stream-stream join", queries.join, "append", table),
        entered("transformWithState in Python", queries.transform_with_state, "update", few),
    ]


def nexmark_table(fill: int, rows: int, number: int) -> pa.Table:
    generator = Generator()
    if number == 0:
        return generator.table(FIRST, fill)
    return generator.table(FIRST + fill + (number - 1) * rows, rows)


def run(scratch: Path, quick: bool) -> Result:
    """Run every query on all stores."""
    plan = QUICK if quick else FULL
    found: dict[str, Laps] = {}
    with race_apart.hosting(scratch / "hosts", race_apart.hosts_of(STORES)) as hosts:
        for partitions, warmup in zip(plan.partitions, plan.warmup, strict=True):
            for entered in races(plan, partitions):
                directory = scratch / f"{partitions}"
                directory.mkdir(exist_ok=True)
                found[entered.name] = race_apart.run(
                    hosts,
                    directory,
                    entered,
                    warmup,
                    plan.batches,
                    session.log,
                    least=plan.least,
                    seconds=plan.seconds,
                    hopeless=plan.hopeless,
                )
    kept = {name: samples(laps) for name, laps in found.items()}
    return Result("queries", tables(found, plan), criteria(found), {"plan": asdict(plan), "queries": kept})


def p50(laps: list[Lap]) -> float:
    return report.median([lap.milliseconds for lap in laps])


def p99(laps: list[Lap]) -> float:
    return report.percentile([lap.milliseconds for lap in laps], 99)


def cpu(laps: list[Lap]) -> float:
    return report.median([lap.cpu for lap in laps])


def per_second(laps: list[Lap]) -> float:
    return 1000 * sum(lap.input_rows for lap in laps) / sum(lap.milliseconds for lap in laps)


def criteria(found: dict[str, Laps]) -> list[Criterion]:
    """Require each query to beat every built-in, as it comes and unforked: in half of its batches, in nearly all, and over all."""
    judged = []
    for name, laps in found.items():
        rivals = [store for store in laps if store != OURS]
        for percent, of in ((50, p50), (99, p99)):
            best = min(rivals, key=lambda store: of(laps[store]))
            judged.append(Criterion(f"{name}: p{percent}", of(laps[OURS]), 1, "ms", of(laps[best]), best))
        best = max(rivals, key=lambda store: per_second(laps[store]))
        most = per_second(laps[best])
        judged.append(
            Criterion(f"{name}: rows/s", per_second(laps[OURS]), 1, "rows/s", most, best, at_least=True)
        )
    return judged


def tables(found: dict[str, Laps], plan: Plan) -> str:
    """Return everything in Markdown, which also reads well in a terminal."""
    about = (
        "Each query runs on all stores at once, each in its own JVM, and gets the input of at most "
        f"{plan.batches} batches of {plan.rows:,} events, after one of {plan.fill:,} that fills the state and "
        f"{' or '.join(map(str, plan.warmup))} to warm up (Python: {plan.python_rows:,} and {plan.python_fill:,}), with "
        f"{' or '.join(map(str, plan.partitions))} partitions; batch by batch in turn, in changing order, "
        f"while the others wait. A store that took {plan.hopeless:g} times as long as ours in each of the first "
        f"{plan.least} has only those. After each batch the answers of all stores are compared. Checkpoints on a local "
        'file system, ours as `configure` sets it (`spark_files="backend"`). For each file of the built-in stores, and of '
        "Spark's own, Hadoop starts programs there as Spark comes; *unforked*, it starts none. Both are judged. "
        "No maintenance in the background. Times in milliseconds, from "
        "trigger to trigger, of a batch and the batch without data that may follow it; of few batches, p99 is "
        "the longest. CPU is the processor time of all processes in half of the batches, which other programs "
        "on the machine hardly change. Updates, removals and commit are sums over the partitions, two of which work at once."
    )
    return "\n\n".join([about, *(_table_of(name, laps) for name, laps in found.items())])


def _table_of(name: str, laps: Laps) -> str:
    header = ["store", "batches", "p50", "p99", "min", "rows/s", "p50 to ours", "CPU", "CPU to ours"]
    header += ["updates", "removals", "commit", "addBatch", "rows of state"]
    rows = []
    for store, measured in laps.items():
        steps = [
            report.median([lap.steps[step] for lap in measured])
            for step in ("allUpdatesTimeMs", "allRemovalsTimeMs", "commitTimeMs", "addBatch")
        ]
        least = min(lap.milliseconds for lap in measured)
        rows.append(
            [
                store,
                str(len(measured)),
                *report.figures(p50(measured), p99(measured), least),
                f"{per_second(measured):,.0f}",
                f"{p50(measured) / p50(laps[OURS]):.2f}",
                *report.figures(cpu(measured), cpu(measured) / cpu(laps[OURS])),
                *report.figures(*steps),
                # RocksDB does not count them at its best setting.
                f"{measured[-1].rows:,}" if measured[-1].rows else "",
            ]
        )
    return report.table(name, header, rows)


def samples(laps: Laps) -> dict[str, dict[str, object]]:
    """Return the figures of each store that are kept with the results."""
    return {
        store: {
            "milliseconds": [lap.milliseconds for lap in of],
            "cpu": [lap.cpu for lap in of],
            "input_rows": [lap.input_rows for lap in of],
            "steps": {step: report.median([lap.steps[step] for lap in of]) for step in of[0].steps},
            "state_rows": of[-1].rows,
        }
        for store, of in laps.items()
    }
