"""Start and end many queries in one application, and print the memory of both processes.

Run it with ``python -m tests.system.soak.runs``.

Each run is a query of its own, with its own checkpoint, stores and merged files. After it nothing of it may
remain in the JVM or the backend.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import spark_statestore
from tests.spark.counting import finish, start_counting
from tests.support.sessions import local_builder
from tests.system.soak.program import QUIET, growth, sample

SAMPLES = 20

GROWTH = {
    "jvm heap MiB": 8,
    "backend resident MiB": 8,
    "backend threads": 4,
    "backend files": 8,
    "jvm threads": 8,
}
"""Allowed growth from the first half of the samples, without the first quarter, to the last quarter."""

CONFS = QUIET | {
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    "spark.sql.streaming.minBatchesToRetain": "100",
    "spark.sql.streaming.ui.retainedQueries": "5",
    "spark.ui.showConsoleProgress": "false",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.system.soak.runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="number of runs (200)")
    parser.add_argument("--batches", type=int, default=20, help="batches of each run (20)")
    parser.add_argument("--url", help="where checkpoints are; by default a temporary directory")
    arguments = parser.parse_args()
    builder = local_builder("runs", memory="1g", master="local[4]")
    for key, value in CONFS.items():
        builder.config(key, value)
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    samples: list[dict[str, Any]] = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sst-") as directory:
        for number in range(arguments.runs):
            checkpoint = f"{arguments.url or directory}/{number}"
            session = spark.newSession()
            query = start_counting(
                session,
                checkpoint,
                confs={"spark.sql.streaming.stateStore.checkpointFormatVersion": 1 + number % 2},
            )
            finish(session, query, arguments.batches - 1)
            session.sql("drop view counts")
            if (number + 1) % max(1, arguments.runs // SAMPLES) == 0:
                # Maintenance unloads the stores of a run that has ended.
                time.sleep(3)
                # The JVM keeps the sessions and queries that Python's garbage refers to.
                gc.collect()
                samples.append({"run": number + 1} | sample(spark, query, checkpoint, start))
                print_row(samples[-1], first=len(samples) == 1)
            if number:
                shutil.rmtree(Path(directory, str(number - 1)), ignore_errors=True)
    spark.stop()
    grown = growth(samples, GROWTH, warm_up=4)
    print("growth: " + ", ".join(f"{name} {value} (at most {GROWTH[name]})" for name, value in grown.items()))
    sys.exit(1 if any(value > GROWTH[name] for name, value in grown.items()) else 0)


def print_row(values: dict[str, Any], *, first: bool) -> None:
    columns = ("run", "seconds", *GROWTH)
    if first:
        print(" | ".join(columns))
    print(" | ".join(f"{values[name]:>{len(name)}}" for name in columns), flush=True)


if __name__ == "__main__":
    main()
