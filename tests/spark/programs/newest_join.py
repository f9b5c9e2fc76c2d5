"""Test program: a join of a state format, with a list of RocksDB's mapped libraries.

The only argument is a JSON object: ``checkpoint`` and the ``format`` of the join's state. Reports the format
that the query really used, and then the mapped libraries.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import functions as f

import spark_statestore
from tests.spark.counting import jvm_of, report
from tests.support.sessions import local_builder

FORMAT = "spark.sql.streaming.join.stateFormatVersion"


def main():
    arguments = json.loads(sys.argv[1])
    builder = local_builder("join", memory="512m").config("spark.sql.shuffle.partitions", "1")
    builder.config(FORMAT, arguments["format"])
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark_statestore.attach(spark)
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load()
    timely = numbers.withWatermark("timestamp", "1 second")
    left = timely.selectExpr("value % 7 as l", "timestamp as left_ts")
    right = timely.selectExpr("value % 5 as r", "timestamp as right_ts")
    near = f.expr("l = r and right_ts between left_ts and left_ts + interval 2 seconds")
    sink = (
        left.join(right, near)
        .writeStream.format("noop")
        .option("checkpointLocation", arguments["checkpoint"])
    )
    query = sink.start()
    while query.lastProgress is None or query.lastProgress.batchId < 2:
        if not query.isActive:
            raise query.exception()
        query.awaitTermination(0.05)
    query.stop()
    offsets = Path(arguments["checkpoint"], "offsets", "0").read_text().splitlines()
    report("formats", sorted({json.loads(line)["conf"][FORMAT] for line in offsets if '"conf"' in line}))
    maps = Path(f"/proc/{jvm_of(spark)}/maps").read_text()
    report("rocksdb", sorted({line.split()[-1] for line in maps.splitlines() if "librocksdb" in line}))
    spark.stop()


main()
