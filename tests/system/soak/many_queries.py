"""Application with many counting queries, which start and end again and again.

It ends when it is killed or told to finish. The only argument is a JSON object: ``directory``, ``queries``
(their number), ``seed``. Queries are in checkpoint formats v1 and v2, in pools of both scheduling modes, and
of three kinds: small ones that run until they are stopped and started again as another run, small ones that
run with ``availableNow`` again and again, and a few of two stateful operators, of which the second opens its
stores long after the first one. Each event is a line of JSON: ``started``, ``runs`` with their number every
5 s, ``ran`` once each query has done a batch, ``failed`` and ``finished``. A line of input ends it: the
result of each query is compared with the expected one.
"""

from __future__ import annotations

import glob
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import spark_statestore
from tests.spark.counting import GROUPS, ROWS, expected, failure_of, report, wait_until
from tests.support.sessions import local_builder

RETAINED = 3

CORES = 12

SLOW = 3
"""Number of queries with two stages of stores and a long wait between them."""

OTHERS = 45
"""Batches of other queries in that wait.

After a start almost each is of another run, and the backend remembers 32.
"""

POOLS = """<?xml version="1.0"?>
<allocations>
  <pool name="fair"><schedulingMode>FAIR</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
  <pool name="fifo"><schedulingMode>FIFO</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
</allocations>
"""

CONFS = {
    "spark.scheduler.mode": "FAIR",
    "spark.sql.streaming.minBatchesToRetain": str(RETAINED),
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
    "spark.ui.showConsoleProgress": "false",
}


def after_others(checkpoints: str) -> Any:
    """Return a function of tables that waits, for a limited time, for some batches of other queries."""

    def count_batches() -> int:
        numbers = [-1]
        for path in glob.glob(f"{checkpoints}/*/commits"):
            numbers += [max(int(name) for name in [*os.listdir(path), "-1"] if name.lstrip("-").isdigit())]
        return sum(numbers) + len(numbers)

    def wait(tables: Iterator[Any]) -> Iterator[Any]:
        target, end = count_batches() + OTHERS, time.monotonic() + 90
        while count_batches() < target and time.monotonic() < end:
            time.sleep(0.5)
        yield from tables

    return wait


class Counting:
    """One of the queries, and its runs; its number decides what it is like."""

    def __init__(self, spark: Any, directory: Path, number: int) -> None:
        self.name = f"query_{number}"
        self.runs = self.batches = 0
        self.is_slow = number < SLOW
        self.ends = not self.is_slow and number % 3 == 0
        self._pool = "fair" if number % 4 < 2 else "fifo"
        self._checkpoint = str(directory / "checkpoints" / self.name)
        self._session = spark.newSession()
        checkpoint_format = str(1 + number % 2)
        self._session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", checkpoint_format)
        self._session.conf.set("spark.sql.shuffle.partitions", "2")
        self._query: Any = None

    def start(self) -> None:
        """Start a run: with ``availableNow`` it ends by itself, after one batch."""
        from pyspark.sql import functions as F

        numbers = self._session.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
        if self.is_slow:
            wait = after_others(str(Path(self._checkpoint).parent))
            numbers = numbers.select("value").dropDuplicates().mapInArrow(wait, "value bigint")
        counts = numbers.groupBy((F.col("value") % GROUPS).alias("k")).agg(
            F.count("*").alias("n"), F.sum("value").alias("s"), F.max("value").alias("m")
        )
        # Queries take the pool of the thread that starts them.
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)
        self._query = (
            counts.writeStream.outputMode("complete")
            .format("memory")
            .queryName(self.name)
            .option("checkpointLocation", self._checkpoint)
            .trigger(**({"availableNow": True} if self.ends else {"processingTime": "500 milliseconds"}))
            .start()
        )
        self.runs += 1

    @property
    def is_running(self) -> bool:
        return self._query is not None and self._query.isActive

    @property
    def progressed(self) -> bool:
        """True if the newest run has done a batch."""
        return self._query is not None and self._query.lastProgress is not None

    def end(self) -> None:
        """Stop the run and compare its result, unless it stopped before its first batch."""
        has_result = self.progressed
        self._query.stop()
        if has_result:
            self.check()
        else:
            self.require_sound()

    def check(self) -> None:
        self.require_sound()
        rows = [list(row) for row in self._session.table(self.name).orderBy("k").collect()]
        batches, rest = divmod(sum(row[1] for row in rows), ROWS)
        assert not rest, f"{self.name} has a part of a batch: {rows[:3]}"
        assert rows == expected(batches), f"{self.name} is wrong after {batches} batches: {rows[:3]}"
        assert batches >= self.batches, f"{self.name} has {batches} batches after {self.batches}"
        self.batches = batches

    def require_sound(self) -> None:
        """Raise the error of the run, if it has failed."""
        failure = failure_of(self._query)
        assert failure is None, f"{self.name}, run {self.runs}: {failure}"


def keep_running(queries: list[Counting], chance: random.Random, ended: threading.Event) -> None:
    """Restart ended queries and stop some running ones, until the request to finish."""
    ran: set[str] = set()
    reported = 0.0
    while not ended.is_set():
        for query in queries:
            if query.progressed:
                ran.add(query.name)
            if not query.is_running:
                if query.runs:
                    query.check()
                query.start()
            elif not query.ends and query.progressed and chance.random() < 0.02:
                query.end()
                query.start()
        if time.monotonic() > reported + 5:
            report("runs", sum(query.runs for query in queries))
            reported = time.monotonic()
            if len(ran) == len(queries):
                report("ran", None)
        time.sleep(0.1)


def finish(queries: list[Counting]) -> None:
    """Have each query do one more batch, and compare its result."""
    for query in queries:
        if not query.is_running:
            query.start()
    for query in queries:
        assert wait_until(lambda query=query: query.progressed or not query.is_running, 300), query.name
        query.end()


def main() -> None:
    arguments = json.loads(sys.argv[1])
    directory = Path(arguments["directory"])
    pools = directory / "pools.xml"
    pools.write_text(POOLS)
    builder = local_builder("queries", memory="2g", master=f"local[{CORES}]")
    builder.config(map=CONFS | {"spark.scheduler.allocation.file": f"file://{pools}"})
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    queries = [Counting(spark, directory, number) for number in range(arguments["queries"])]
    report("started")
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
    try:
        keep_running(queries, random.Random(arguments["seed"]), ended)
        finish(queries)
    except BaseException as error:
        report("failed", f"{type(error).__name__}: {error}")
        raise
    report("finished", sum(query.batches for query in queries))
    spark.stop()


if __name__ == "__main__":
    main()
