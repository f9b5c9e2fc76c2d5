"""Queries with Python code for each row: Spark's daemon of Python workers and this package's, with TCP and Unix domain sockets.

Every query runs on each store and daemon concurrently, in a JVM of its own, on the same input, batch by batch in turn. The
measured time is that from trigger to trigger; it is valid only if all answers are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks import race, race_apart, report, session
from benchmarks.contest import CHANGELOG, OURS
from benchmarks.groups.queries import nexmark_table, p50, samples
from benchmarks.nexmark import queries
from benchmarks.race import Laps, Race
from benchmarks.race_apart import Host
from benchmarks.result import Criterion, Result

STORES = (OURS, CHANGELOG)

SPARKS, FROZEN, UNIX = "Spark's daemon", "worker_daemon", "worker_daemon, Unix domain sockets"

_FROZEN = {"python__daemon__module": "spark_statestore.worker_daemon"}
DAEMONS: Mapping[str, Mapping[str, str]] = {
    SPARKS: {},
    FROZEN: _FROZEN,
    UNIX: _FROZEN | {"python__unix__domain__socket__enabled": "true"},
}
"""Settings of a session with each daemon."""

MOST_OF_SPARKS = {8: 0.9, 200: 0.5}
"""Largest p50 of this store with both settings, as a share of that with neither, by the number of partitions."""

ABOUT = """Python's transformWithState with a value state, over Nexmark's events on local files, with two task threads. Spark's daemon of
Python workers searches all objects for garbage after each task, `worker_daemon` only those that do not belong to loaded modules
(`spark.python.daemon.module=spark_statestore.worker_daemon`). Workers are reached by TCP, or by Unix domain sockets
(`spark.python.unix.domain.socket.enabled=true`, from Spark 4.1). Each store has a JVM of its own with each; they take turns, batch by batch in changing order. {batches} batches of {rows:,} events, after one of {fill:,} and {warmup} to
warm up. No maintenance in the background. Times in milliseconds from trigger to trigger; processor time of JVM, Python workers and backend."""


@dataclass(frozen=True)
class Plan:
    """Amount of work."""

    partitions: tuple[int, ...] = (8, 200)
    fill: int = 10_000
    rows: int = 1_000
    warmup: int = 6
    batches: int = 10


FULL = Plan()
QUICK = Plan((8,), fill=100, rows=50, warmup=0, batches=1)


def name_of(store: str, daemon: str) -> str:
    """Return the name of a store with a daemon."""
    return f"{store}, {daemon}"


def run(scratch: Path, quick: bool) -> Result:
    """Run the query with each number of partitions on all stores with all daemons."""
    plan = QUICK if quick else FULL
    hosts: dict[str, Host] = {}
    entrants = []
    for store, host in race_apart.hosts_of(STORES).items():
        for daemon, confs in DAEMONS.items():
            name = name_of(store, daemon)
            hosts[name] = replace(host, confs={**host.confs, **confs})
            entrants.append(replace(race.entrant_of(store), name=name))
    found: dict[int, Laps] = {}
    with race_apart.hosting(scratch / "hosts", hosts) as running:
        for partitions in plan.partitions:
            entered = Race(
                f"{partitions} partitions",
                queries.transform_with_state,
                partial(nexmark_table, plan.fill, plan.rows),
                tuple(entrants),
                "update",
                {"spark.sql.shuffle.partitions": str(partitions)},
            )
            directory = scratch / f"{partitions}"
            directory.mkdir()
            found[partitions] = race_apart.run(
                running, directory, entered, plan.warmup, plan.batches, session.log
            )
    kept = {partitions: samples(laps) for partitions, laps in found.items()}
    return Result(
        "python_workers", tables(found, plan), criteria(found), {"plan": asdict(plan), "queries": kept}
    )


def criteria(found: dict[int, Laps]) -> list[Criterion]:
    """Require both settings to make batches of this store shorter, and this store to be ahead with each daemon."""
    judged = []
    for partitions, laps in found.items():
        compared = [("p50", UNIX, MOST_OF_SPARKS[partitions], name_of(OURS, SPARKS))]
        compared += [
            ("p50 to RocksDB's with the same", daemon, 1, name_of(CHANGELOG, daemon)) for daemon in DAEMONS
        ]
        for what, daemon, most, rival in compared:
            work = f"transformWithState in Python, {partitions} partitions, {daemon}: {what}"
            judged.append(
                Criterion(work, p50(laps[name_of(OURS, daemon)]), most, "ms", p50(laps[rival]), rival)
            )
    return judged


def tables(found: dict[int, Laps], plan: Plan) -> str:
    """Return a table for each number of partitions."""
    parts = [ABOUT.format(**asdict(plan))]
    for partitions, laps in found.items():
        rows = []
        for store in STORES:
            sparks = p50(laps[name_of(store, SPARKS)])
            for daemon in DAEMONS:
                of = laps[name_of(store, daemon)]
                cpu = report.median([lap.cpu for lap in of])
                rows.append([store, daemon, *report.figures(p50(of), cpu), f"{p50(of) / sparks:.2f}"])
        header = ["store", "daemon", "p50", "processor", "p50 to that with Spark's"]
        parts.append(report.table(f"transformWithState in Python, {partitions} partitions", header, rows))
    return "\n\n".join(parts)
