"""Soak program that starts and ends many queries in one application, with samples as lines of JSON.

The only argument is a JSON object: ``directory`` of the checkpoints, ``runs``, ``batches`` (of each run) and
``samples`` (their number). Each run is a query of its own, with its own checkpoint, stores and merged files.
After it nothing of it may remain in the JVM or the backend.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
import time

import spark_statestore
from tests.spark.counting import finish, report, start_counting
from tests.support.sessions import local_builder
from tests.system.soak.program import QUIET, sample

CONFS = QUIET | {
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    "spark.sql.streaming.minBatchesToRetain": "100",
    "spark.sql.streaming.ui.retainedQueries": "5",
    "spark.ui.showConsoleProgress": "false",
}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    builder = local_builder("runs", memory="1g", master="local[4]")
    builder.config(map=CONFS)
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    start = time.monotonic()
    for number in range(arguments["runs"]):
        checkpoint = f"{arguments['directory']}/{number}"
        session = spark.newSession()
        query = start_counting(
            session,
            checkpoint,
            confs={"spark.sql.streaming.stateStore.checkpointFormatVersion": 1 + number % 2},
        )
        finish(session, query, arguments["batches"] - 1)
        session.sql("drop view counts")
        if (number + 1) % (arguments["runs"] // arguments["samples"]) == 0:
            # Maintenance unloads the stores of a run that has ended.
            time.sleep(3)
            # The JVM keeps the sessions and queries that Python's garbage refers to.
            gc.collect()
            report("sample", {"run": number + 1} | sample(spark, query, checkpoint, start))
        if number:
            shutil.rmtree(f"{arguments['directory']}/{number - 1}", ignore_errors=True)
    spark.stop()


if __name__ == "__main__":
    main()
