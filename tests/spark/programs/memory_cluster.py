"""Test program: queries on separate executors with ``storage=memory``, with events as lines of JSON.

The only argument is a JSON object: ``checkpoint``, and ``plain`` to configure the session by hand, without
the plugin. With the plugin, the counting query runs in checkpoint format v1 and v2, each waiting for a line
of input in the middle and restarting later, and then a query whose state is too large for a message. Without,
two queries are refused: one when it is planned, one because its option was set too late for that.
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
)
from tests.support.sessions import cluster_builder

STORAGE = OPTION_PREFIX + "storage"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


def main():
    asked = json.loads(sys.argv[1])
    builder = cluster_builder()
    builder.config("spark.rpc.message.maxSize", "1")
    if asked.get("plain"):
        builder.config("spark.jars", spark_statestore.jar_path())
        builder.config("spark.sql.extensions", spark_statestore.EXTENSIONS_CLASS)
        builder.config("spark.sql.streaming.stateStore.providerClass", spark_statestore.PROVIDER_CLASS)
        builder.config(STORAGE, "memory")
    else:
        spark_statestore.configure(builder, storage="memory")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    report("attached", attach(spark))
    if asked.get("plain"):
        run(lambda: start_counting(spark, f"{asked['checkpoint']}-planned"))
        spark.conf.set(STORAGE, "filesystem")
        run(lambda: start_wide(spark, f"{asked['checkpoint']}-late", **{STORAGE: "memory"}))
    else:
        for checkpoint_format in 1, 2:
            session = spark.newSession()
            session.conf.set(FORMAT, checkpoint_format)
            checkpoint = f"{asked['checkpoint']}-{checkpoint_format}"
            run(lambda session=session, checkpoint=checkpoint: count(session, checkpoint))
        run(lambda: start_wide(spark, f"{asked['checkpoint']}-wide"))
    spark.stop()
    report("stopped")
    sys.stdin.readline()


def attach(spark):
    try:
        spark_statestore.attach(spark)
    except spark_statestore.SessionError as error:
        return str(error)
    return None


def run(start):
    query = None
    try:
        query = start()
        if query is not None:
            wait_for_batch(query, 0)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to know
        report("failed", (query is not None and failure_of(query)) or str(error))


def count(session, checkpoint):
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


def start_wide(session, checkpoint, **confs):
    """Keep more than a megabyte in each partition."""
    numbers = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    text = "array_join(transform(sequence(1, 2000), i -> sha2(concat(value, '-', i), 256)), '')"
    state = numbers.groupBy("value").agg(f.expr(f"max({text})"))
    for key, value in confs.items():
        session.conf.set(key, value)
    sink = state.writeStream.format("noop").outputMode("update")
    return sink.option("checkpointLocation", checkpoint).start()


main()
