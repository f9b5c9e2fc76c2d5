"""Test program: a counting query on an executor whose class path begins with another jar of this package.

The only argument is a JSON object: ``checkpoint``, and ``jar``, which is null for an executor with the
driver's jar. The query runs to batch 2 in checkpoint format v2 and with ``commit=batch``; its error is
reported, or null.
"""

import json
import sys

import spark_statestore
from tests.spark.counting import failure_of, report, start_counting, wait_until
from tests.support.sessions import local_builder


def main():
    arguments = json.loads(sys.argv[1])
    builder = local_builder("other-jar", memory="512m", master="local-cluster[1,2,1024]")
    builder.config("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    if arguments["jar"]:
        builder.config("spark.executor.extraClassPath", arguments["jar"])
    spark = spark_statestore.configure(builder, commit="batch").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    query = start_counting(spark.newSession(), arguments["checkpoint"])
    assert wait_until(
        lambda: not query.isActive or (query.lastProgress is not None and query.lastProgress.batchId >= 2),
        120,
    )
    query.stop()
    report("done", failure_of(query))
    spark.stop()


main()
