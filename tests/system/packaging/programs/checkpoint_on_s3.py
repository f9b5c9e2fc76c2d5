"""An aggregation, a join and transformWithState with their whole checkpoints at a URL.

It runs in an empty environment.

    python checkpoint_on_s3.py CHECKPOINTS INPUT OUTPUT JAR [BATCHES]

Each batch's output is a line of JSON in OUTPUT: the query, the batch, its rows. After that many lines the
driver kills itself.
"""

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import spark_statestore

SCHEMA = "k string, seq bigint, n bigint, ts timestamp"


def aggregation(rows):
    return rows.groupBy("k").sum("n"), "update"


def join(rows):
    left = rows.selectExpr("k as a", "seq as x", "ts as at").withWatermark("at", "1 minute")
    right = rows.selectExpr("k as b", "n as y", "ts as bt").withWatermark("bt", "1 minute")
    return left.join(right, left.a.eqNullSafe(right.b) & (left.x == right.y), "inner"), "append"


def transform_with_state(rows):
    processors = rows.sparkSession._jvm.org.apache.spark.sql.statestore.transform.Processors
    numbers = rows.selectExpr("cast(seq as int)")
    return DataFrame(processors.counted(numbers._jdf, 7), rows.sparkSession), "update"


def main(checkpoints, source, output, jar, most):
    for module in ("pytest", "s3fs", "pandas", "google"):
        assert importlib.util.find_spec(module) is None, module
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jar)
    builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    builder.config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    spark = spark_statestore.configure(builder).getOrCreate()
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    assert loader.getResource("org/apache/hadoop/fs/s3a/S3AFileSystem.class") is None
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    for query in (aggregation, join, transform_with_state):

        def sink(batch, number, query=query):
            rows = sorted(map(repr, batch.collect()))
            with output.open("a") as file:
                file.write(json.dumps([query.__name__, number, rows]) + "\n")
            if len(output.read_text().splitlines()) == most:
                os.kill(jvm, signal.SIGKILL)

        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(source)
        result, mode = query(stream)
        writer = result.writeStream.outputMode(mode).foreachBatch(sink).trigger(availableNow=True)
        writer.option("checkpointLocation", f"{checkpoints}/{query.__name__}").start().awaitTermination()
    spark.stop()


main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]) if sys.argv[5:] else None)
