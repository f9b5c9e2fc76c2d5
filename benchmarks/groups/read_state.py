"""Reads of state as a table, without Spark and with Spark's data source.

A query counts and sums by a string and a window. Then the same rows are read in turn, from the same
checkpoint on the same machine. The data source spends most of its time to collect a pandas frame on Python
objects for the keys' structs, so it is timed with a column for each field too; that figure is listed, without
a bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import session
from benchmarks.report import figures, median, table
from benchmarks.result import Criterion, Result
from spark_statestore.rows import read_state

START = datetime(2024, 1, 1, tzinfo=UTC)
MOST_OF_DATA_SOURCE = 1 / 10

OURS, OURS_PANDAS = "read_state", "read_state, and as pandas"
THEIRS, THEIRS_FLAT = "data source as pandas", "data source as pandas, each field a column"


def prepare(spark: Any, directory: Path, rows: int) -> Path:
    """Make a checkpoint with a number of rows: (string, window), long, double."""
    (directory / "input").mkdir()
    number = np.arange(rows)
    table = pa.table(
        {
            "k": pa.array([f"customer-{one * 7919 % rows}" for one in range(rows)]),
            "ts": pa.array([START + timedelta(seconds=int(one % 3600)) for one in number]),
            "x": number / 3,
        }
    )
    pq.write_table(table, directory / "input" / "0.parquet")
    from pyspark.sql import functions as F

    events = spark.readStream.schema(spark.read.parquet(str(directory / "input")).schema).parquet(
        str(directory / "input")
    )
    query = (
        events.groupBy("k", F.window("ts", "1 hour"))
        .agg(F.count("*").alias("n"), F.sum("x").alias("x"))
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .format("noop")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return directory / "checkpoint"


def measure(spark: Any, checkpoint: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each reader in each round."""
    path = str(checkpoint)

    spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    frame = spark.read.format("statestore").load(path)
    flat = frame.select("key.k", "key.window.start", "key.window.end", "value.*", "partition_id")
    ways: dict[str, Callable[[], Any]] = {
        OURS: lambda: read_state(path),
        OURS_PANDAS: lambda: read_state(path).flatten().flatten().to_pandas(),
        THEIRS: frame.toPandas,
        THEIRS_FLAT: flat.toPandas,
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    rows = set()
    # One round more than is counted, so that Spark compiles its code.
    for number in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            found = way()
            seconds = time.perf_counter() - start
            session.log(f"round {number}: {name}: {seconds:.3f} s, {len(found)} rows")
            rows.add(len(found))
            if number:
                taken[name].append(seconds)
    assert len(rows) == 1, f"the ways do not find the same number of rows: {rows}"
    return taken


def criteria(taken: dict[str, list[float]]) -> list[Criterion]:
    """Check the promised ratios of these times."""
    ours, theirs = median(taken[OURS]), median(taken[THEIRS])
    return [Criterion("read the whole state", ours, MOST_OF_DATA_SOURCE, "s", theirs, THEIRS)]


def run(scratch: Path, quick: bool) -> Result:
    """Make a checkpoint, and read it in every way."""
    rows, rounds = (10_000, 1) if quick else (1_000_000, 3)
    with session.running(scratch) as spark:
        taken = measure(spark, prepare(spark, scratch, rows), rounds)
    cells = [
        [way, *figures(median(seconds), min(seconds)), f"{median(seconds) / median(taken[OURS]):.2f}"]
        for way, seconds in taken.items()
    ]
    title = f"Reading {rows:,} rows of state, in seconds"
    shown = table(title, ["way", "median", "min", "ratio to ours"], cells)
    return Result("read_state", shown, criteria(taken), {"rows": rows, "seconds": taken})
