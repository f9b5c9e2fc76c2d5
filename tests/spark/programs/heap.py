"""Test program: a heap of 512 MiB that state and other objects fill, the others in steps.

The only argument is a JSON object: ``directory``, below which everything goes.
"""

import json
import sys

from pyspark.sql import functions as F

import spark_statestore
from tests.spark.counting import report, wait_for_batch
from tests.support.sessions import local_builder

directory = json.loads(sys.argv[1])["directory"]
spark = spark_statestore.configure(local_builder("heap", memory="512m")).getOrCreate()
numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 80_000).load()
query = (
    numbers.groupBy("value")
    .agg(F.max(F.repeat(F.lit("x"), 1000)))
    .writeStream.outputMode("update")
    .format("noop")
    .option("checkpointLocation", f"{directory}/checkpoint")
    .start()
)
wait_for_batch(query, 1)
query.stop()
runtime = spark._jvm.java.lang.Runtime.getRuntime()
held = []
while runtime.totalMemory() - runtime.freeMemory() < 0.85 * runtime.maxMemory():
    held.append(spark._jvm.java.nio.ByteBuffer.allocate(4 << 20))
for _ in range(4):
    runtime.gc()
report("full")
sys.stdin.readline()
