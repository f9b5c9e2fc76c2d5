"""Soak program: the counting query over many batches, with samples of both processes as lines of JSON.

The only argument is a JSON object: ``checkpoint``, ``batches``, ``samples`` (their number), ``threads`` (the
number of concurrent tasks), ``partitions`` (the number of stores), and ``memory`` of the driver. Each sample
has the number of the batch, the seconds since the first one, and the resources of the driver's JVM and the
backend. There are more tasks than cores, and maintenance runs often, so that minutes cover the work of a day
of batches.
"""

import json
import os
import sys
import time

import psutil

import spark_statestore
from tests.spark.counting import backends_of, finish, jvm_of, report, start_counting, wait_for_batch
from tests.spark.test_load import sockets
from tests.support.sessions import local_builder

RETAINED = 10

QUIET = {
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
}
"""Without these, Spark's own bookkeeping of batches would grow for its first thousands."""


def main():
    arguments = json.loads(sys.argv[1])
    builder = local_builder("soak", memory=arguments["memory"], master=f"local[{arguments['threads']}]")
    builder.config("spark.sql.streaming.stateStore.maintenanceInterval", "2s")
    builder.config("spark.sql.shuffle.partitions", str(arguments["partitions"]))
    builder.config(map=QUIET)
    builder.config("spark.sql.streaming.minBatchesToRetain", str(RETAINED))
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    query = start_counting(
        spark,
        arguments["checkpoint"],
        confs={
            "spark.sql.streaming.minBatchesToRetain": RETAINED,
            "spark.sql.streaming.fileSink.log.cleanupDelay": "0",
        },
    )
    wait_for_batch(query, 0)
    start = time.monotonic()
    for number in range(1, arguments["samples"] + 1):
        batch = arguments["batches"] * number // arguments["samples"]
        wait_for_batch(query, batch, seconds=3600)
        report("sample", sample(spark, query, arguments["checkpoint"], start))
    # Compares the whole result with the expected counts.
    finish(spark, query, arguments["batches"])
    report("exact", query.lastProgress.batchId)
    spark.stop()


def sample(spark, query, checkpoint, start):
    jvm = psutil.Process(jvm_of(spark))
    (backend,) = backends_of(jvm.pid)
    management = spark._jvm.java.lang.management.ManagementFactory
    spark._jvm.java.lang.System.gc()
    return {
        "batch": query.lastProgress.batchId,
        "seconds": round(time.monotonic() - start, 1),
        "jvm heap MiB": management.getMemoryMXBean().getHeapMemoryUsage().getUsed() >> 20,
        "jvm resident MiB": jvm.memory_info().rss >> 20,
        "jvm threads": jvm.num_threads(),
        "jvm files": jvm.num_fds(),
        "jvm sockets": sockets(jvm),
        "backend resident MiB": backend.memory_info().rss >> 20,
        "backend threads": backend.num_threads(),
        "backend files": backend.num_fds(),
        "backend sockets": sockets(backend),
        # Unlike rglob, it tolerates directories that maintenance removes concurrently.
        "stored files": sum(len(files) for _, _, files in os.walk(f"{checkpoint}/state")),
    }


def growth(samples, names, warm_up):
    """Return the growth of the maxima from the first half, without a part of it, to the last quarter."""
    early, late = samples[len(samples) // warm_up : len(samples) // 2], samples[-(len(samples) // 4) :]
    return {name: max(row[name] for row in late) - max(row[name] for row in early) for name in names}


if __name__ == "__main__":
    main()
