"""Test program: queries on separate executors, with events as lines of JSON.

The only argument is a JSON object: ``checkpoint``, ``state`` (checkpointsDir for ``commit=batch``),
``python``, an interpreter for all backends, ``formats`` of checkpoints, and ``metrics``, a directory for the
metrics of executors. First the kinds of Python workers are reported. With ``storage=memory`` the counting
query runs in each format, waits for a line of input and restarts later, and then a query whose state is too
large for a message. With ``commit=batch`` the counting query waits for a line of input twice in format v2, is
restarted, and commits large versions; in format v1 it is refused.
"""

import json
import sys

from pyspark.sql import functions as f

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
    workers_once_known,
)
from tests.support.sessions import cluster_builder

STATE_STORE = "spark.sql.streaming.stateStore."
FORMAT = STATE_STORE + "checkpointFormatVersion"
SINK = "spark.metrics.conf.executor.sink.csv."
SETTINGS = {
    f"{SINK}class": "org.apache.spark.metrics.sink.CsvSink",
    f"{SINK}period": "1",
    "spark.rpc.message.maxSize": "1",
    "spark.sql.streaming.minBatchesToRetain": "2",
    STATE_STORE + "maintenanceInterval": "500ms",
    STATE_STORE + "minDeltasForSnapshot": "3",
}


def main():
    arguments = json.loads(sys.argv[1])
    builder = cluster_builder()
    for key, value in (SETTINGS | {f"{SINK}directory": arguments["metrics"]}).items():
        builder.config(key, value)
    python = arguments["python"]
    spark_statestore.configure(builder, storage="memory", python=python, driver_python=python)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark_statestore.attach(spark)
    report("workers", workers_once_known(spark, tasks=8))
    for checkpoint_format in arguments["formats"]:
        session = session_with(spark, checkpoint_format, {})
        count_in_memory(session, f"{arguments['checkpoint']}-{checkpoint_format}")
    report_end(start_wide(spark, f"{arguments['checkpoint']}-wide"))

    options = {"storage": "filesystem", "checkpointsDir": arguments["state"], "commit": "batch"}
    commit_by_batch(spark, options, arguments["checkpoint"])
    refused = start_counting(session_with(spark, 1, options), f"{arguments['checkpoint']}-refused")
    report_end(refused)
    spark.stop()
    report("stopped")
    sys.stdin.readline()


def session_with(spark, checkpoint_format, options):
    session = spark.newSession()
    session.conf.set(FORMAT, checkpoint_format)
    for name, value in options.items():
        session.conf.set(OPTION_PREFIX + name, value)
    return session


def count_in_memory(session, checkpoint):
    query = start_counting(session, checkpoint)
    wait_for_batch(query, 1)
    report_executors(session)
    sys.stdin.readline()
    finish(session, query, query.lastProgress.batchId + 3)
    query = start_counting(session, checkpoint)
    wait_for_batch(query, 0)
    first = query.recentProgress[0].batchId
    finish(session, query, first + 1)
    report("result", first)


def start_wide(session, checkpoint):
    """Keep more than a megabyte in each partition."""
    numbers = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    text = "array_join(transform(sequence(1, 2000), i -> sha2(concat(value, '-', i), 256)), '')"
    sink = (
        numbers.groupBy("value").agg(f.expr(f"max({text})")).writeStream.format("noop").outputMode("update")
    )
    return sink.option("checkpointLocation", checkpoint).start()


def commit_by_batch(spark, options, checkpoint):
    session = session_with(spark, 2, options)
    query = start_counting(session, checkpoint)
    wait_for_batch(query, 2)
    for _ in range(2):
        report_executors(session)
        sys.stdin.readline()
        wait_for_batch(query, query.lastProgress.batchId + 6)
    finish(session, query, 0)

    # Each commit writes a file of its own first.
    session = session_with(spark, 2, options | {"fileStateThreshold": 0})
    query = start_counting(session, checkpoint)
    wait_for_batch(query, 0)
    first = query.recentProgress[0].batchId
    finish(session, query, first + 3)
    report("restarted", first)


def report_end(query):
    """Report the error that ends a query."""
    assert wait_until(lambda: not query.isActive, 120)
    report("refused", failure_of(query))


main()
