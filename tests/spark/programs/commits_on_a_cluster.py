"""Test program: queries on separate executors with ``commit=batch``, with events as lines of JSON.

The only argument is a JSON object: ``checkpoint``, ``state`` (the option checkpointsDir), and ``python``, an
interpreter for all backends. The counting query runs in checkpoint format v2 and waits for a line of input
twice. It is restarted, and commits large versions. A query in format v1 is refused.
"""

import json
import sys

import spark_statestore
from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import (
    failure_of,
    finish,
    report,
    report_executors,
    start_counting,
    wait_for_batch,
    wait_until,
)
from tests.support.sessions import cluster_builder

STATE_STORE = "spark.sql.streaming.stateStore."


def main():
    asked = json.loads(sys.argv[1])
    builder = cluster_builder()
    settings = {
        "spark.sql.streaming.minBatchesToRetain": "2",
        STATE_STORE + "checkpointFormatVersion": "2",
        STATE_STORE + "maintenanceInterval": "500ms",
        STATE_STORE + "minDeltasForSnapshot": "3",
    }
    for key, value in settings.items():
        builder.config(key, value)
    spark_statestore.configure(
        builder,
        commit="batch",
        checkpoints_dir=asked["state"],
        python=asked["python"],
        driver_python=asked["python"],
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    session = spark.newSession()
    query = start_counting(session, asked["checkpoint"])
    wait_for_batch(query, 2)
    for _ in range(2):
        report_executors(session)
        sys.stdin.readline()
        wait_for_batch(query, query.lastProgress.batchId + 6)
    finish(session, query, 0)

    session = spark.newSession()
    # Each commit writes a file of its own first.
    query = start_counting(session, asked["checkpoint"], confs={OPTION_PREFIX + "fileStateThreshold": 0})
    wait_for_batch(query, 0)
    first = query.recentProgress[0].batchId
    finish(session, query, first + 3)
    report("restarted", first)

    session = spark.newSession()
    session.conf.set(STATE_STORE + "checkpointFormatVersion", 1)
    refused = start_counting(session, f"{asked['checkpoint']}-1")
    assert wait_until(lambda: not refused.isActive, 120)
    report("refused", failure_of(refused))
    spark.stop()
    report("stopped")
    sys.stdin.readline()


main()
