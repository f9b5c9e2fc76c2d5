"""Queries whose operators only RocksDB supports among the built-in stores: as it comes, and unforked.

Every query runs on each store concurrently, in a JVM of its own, on the same input, batch by batch in turn. The measured time
is that from trigger to trigger, including Spark's own work and Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import spark_statestore
from benchmarks import race, race_apart, report, session
from benchmarks.contest import CHANGELOG, HDFS, OURS, ROCKSDB, UNFORKED_RIVALS
from benchmarks.race import Entrant, Lap, Laps, Race
from benchmarks.result import Criterion, Result

RIVALS = (ROCKSDB, CHANGELOG, *(name for name in UNFORKED_RIVALS if not name.startswith(HDFS)))

START = datetime(2024, 1, 1, tzinfo=UTC)
COLUMNS = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", tz="UTC")), ("v", pa.int64())])


def visits(keys: int, rows: int) -> Callable[[int], pa.Table]:
    """Return batches of every key once, and then of random keys, all of one time."""
    # Not a local function, so that it can be sent to another process.
    return partial(_visits, keys, rows)


def _visits(keys: int, rows: int, number: int) -> pa.Table:
    chosen = np.random.default_rng(number)
    k = np.arange(keys) if number == 0 else chosen.integers(0, keys, rows)
    ts = np.full(len(k), np.datetime64(START.replace(tzinfo=None), "us"))
    return pa.table([k, pa.array(ts, pa.timestamp("us", tz="UTC")), k + number], schema=COLUMNS)


def counts_by_processor(stream: Any) -> Any:
    """Use Python's transformWithState: a count and a sum for each key, in a value state."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    # A local function, so that Spark's workers receive it by value and need not import this module.
    class Counts(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._state = handle.getValueState("counts", "n bigint, v bigint")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            n, v = self._state.get() or (0, 0)
            for row in rows:
                n, v = n + 1, v + row.v
            self._state.update((n, v))
            yield Row(k=key[0], n=n, v=v)

        def close(self) -> None:
            pass

    return stream.groupBy("k").transformWithState(
        Counts(), "k bigint, n bigint, v bigint", outputMode="Update", timeMode="None"
    )


def moments(rows: int) -> Callable[[int], pa.Table]:
    """Return batches of ten minutes of events first, and then of a minute each."""
    return partial(_moments, rows)


def _moments(rows: int, number: int) -> pa.Table:
    chosen = np.random.default_rng(number)
    minutes = 10 if number == 0 else 1
    count = rows * minutes
    begin = np.datetime64((START + timedelta(minutes=9 + number)).replace(tzinfo=None), "us")
    if number == 0:
        begin = np.datetime64(START.replace(tzinfo=None), "us")
    ts = begin + chosen.integers(0, minutes * 60_000_000, count)
    k = chosen.integers(0, rows, count)
    return pa.table([k, pa.array(ts, pa.timestamp("us", tz="UTC")), k + number], schema=COLUMNS)


def joined(stream: Any) -> Any:
    """Join events with those of the same key within five minutes after them, or none."""
    from pyspark.sql import functions as F

    timed = stream.withWatermark("ts", "2 minutes")
    left = timed.selectExpr("k as l", "ts as left_ts", "v as left_v")
    right = timed.where("v % 3 = 0").selectExpr("k as r", "ts as right_ts", "v as right_v")
    near = F.expr("l = r and right_ts between left_ts and left_ts + interval 5 minutes")
    return left.join(right, near, "left_outer")


@dataclass(frozen=True)
class Plan:
    """Amount of work."""

    keys: int = 100_000
    rows: int = 10_000
    join_rows: int = 5_000
    warmup: int = 3
    batches: int = 20


FULL = Plan()
QUICK = Plan(keys=10_000, rows=1_000, join_rows=500, warmup=1, batches=3)


def races(plan: Plan) -> list[Race]:
    """Return the races."""
    rivals = tuple(map(race.entrant_of, RIVALS))

    def join(state_format: int, provider: str) -> Race:
        return Race(
            f"left outer join, state format {state_format}",
            joined,
            moments(plan.join_rows),
            (Entrant(OURS, provider), *rivals),
            confs={"spark.sql.streaming.join.stateFormatVersion": str(state_format)},
        )

    ours = Entrant(OURS, spark_statestore.PROVIDER_CLASS)
    return [
        Race(
            "Python transformWithState, value state",
            counts_by_processor,
            visits(plan.keys, plan.rows),
            (ours, *rivals),
            "update",
        ),
        join(2, spark_statestore.PROVIDER_CLASS),
        # Spark permits join state of format 4 only for RocksDB's class and its subclasses.
        join(4, spark_statestore.JOIN_PROVIDER_CLASS),
    ]


def run(scratch: Path, quick: bool) -> Result:
    """Run every query on all stores."""
    plan = QUICK if quick else FULL
    found: dict[str, Laps] = {}
    with race_apart.hosting(scratch / "hosts", race_apart.hosts_of((OURS, *RIVALS))) as hosts:
        for number, entered in enumerate(races(plan)):
            directory = scratch / str(number)
            directory.mkdir()
            found[entered.name] = race_apart.run(
                hosts, directory, entered, plan.warmup, plan.batches, session.log
            )
    laps = {
        name: {store: [asdict(lap) for lap in laps] for store, laps in stores.items()}
        for name, stores in found.items()
    }
    return Result("operators", tables(found, plan), criteria(found), {"plan": asdict(plan), "laps": laps})


def total(laps: list[Lap]) -> float:
    return sum(lap.milliseconds for lap in laps)


def best_rocksdb(laps: Laps) -> str:
    """Return RocksDB's best setting, as it comes or unforked: the one with the smallest total time."""
    return min((name for name in laps if name != OURS), key=lambda name: total(laps[name]))


def criteria(found: dict[str, Laps]) -> list[Criterion]:
    """Require each query to take at most as long as on RocksDB, over all batches."""
    return [
        Criterion(
            f"all batches of {name}",
            total(laps[OURS]),
            1,
            "ms",
            total(laps[best_rocksdb(laps)]),
            best_rocksdb(laps),
        )
        for name, laps in found.items()
    ]


def tables(found: dict[str, Laps], plan: Plan) -> str:
    """Return everything in Markdown, which also reads well in a terminal."""
    return "\n\n".join(
        [
            (
                f"Each query runs on all stores at once, each in its own JVM, and gets the input of {plan.batches} batches, after one "
                f"that fills the state and {plan.warmup} to warm up; batch by batch in turn, in changing order, "
                "while the others wait. 2 shuffle partitions, checkpoints on a local file system, ours as `configure` sets "
                'it (`spark_files="backend"`), RocksDB as Spark comes and *unforked*, without the programs that Hadoop starts '
                f"there for each file; both are judged. No maintenance in the background. transformWithState: {plan.keys:,} keys, {plan.rows:,} of them at random in a batch, a "
                f"count and a sum each. Join: {2 * plan.join_rows:,} events a batch, of both sides, with watermark "
                "and a range of five minutes. Times in milliseconds, from trigger to trigger, of a batch and the "
                "batch without data that may follow it. Updates, removals and commit are sums over the "
                "partitions, which work at once."
            ),
            *(_table(name, laps) for name, laps in found.items()),
        ]
    )


def _table(name: str, laps: Laps) -> str:
    header = ["store", "total", "median", "min", "p95", "ratio to ours"]
    header += ["updates", "removals", "commit", "addBatch"]
    rows = []
    for store, measured in laps.items():
        times = [lap.milliseconds for lap in measured]
        steps = [
            report.median([lap.steps[step] for lap in measured])
            for step in ("allUpdatesTimeMs", "allRemovalsTimeMs", "commitTimeMs", "addBatch")
        ]
        rows.append(
            [
                store,
                *report.figures(total(measured), report.median(times), min(times), report.p95(times)),
                f"{total(measured) / total(laps[OURS]):.2f}",
                *report.figures(*steps),
            ]
        )
    return report.table(name, header, rows)
