"""Test program: a heap of 512 MiB that state and other objects fill, the others in steps.

The only argument is a JSON object: ``directory``, below which everything goes, and ``has_disk`` (whether rows
can be moved to files).
"""

import json
import os
import sys
import time

from pyspark.sql import functions as F

import spark_statestore
from tests.spark.counting import report, wait_for_batch
from tests.support.sessions import local_builder

arguments = json.loads(sys.argv[1])
directory = arguments["directory"]
builder = local_builder("heap", memory="512m").config("spark.local.dir", f"{directory}/local")
spark = spark_statestore.configure(builder).getOrCreate()
numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20_000).load()
query = (
    numbers.groupBy("value")
    .agg(F.max(F.repeat(F.lit("x"), 1000)))
    .writeStream.outputMode("update")
    .format("noop")
    .option("checkpointLocation", f"{directory}/checkpoint")
    .start()
)
wait_for_batch(query, 7)
query.stop()
if not arguments["has_disk"]:
    os.rename(f"{directory}/local", f"{directory}/moved")
memory = spark._jvm.org.apache.spark.sql.statestore.table.TableMemory
before = memory.heapBytes()
runtime = spark._jvm.java.lang.Runtime.getRuntime()
buffers = []
runtime.gc()
while runtime.totalMemory() - runtime.freeMemory() < 0.85 * runtime.maxMemory():
    # Five for each region of the heap, none of them in one of its own.
    buffers += [spark._jvm.java.nio.ByteBuffer.allocate(200_000) for _ in range(80)]
    runtime.gc()
# Collections after which the state gives way, or a warning is logged.
for _ in range(8):
    runtime.gc()
    time.sleep(0.5)
    if memory.heapBytes() < 0.7 * before:
        break
report("full", [before, memory.heapBytes()])
sys.stdin.readline()
