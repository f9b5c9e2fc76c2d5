"""Large state: a query that is filled, updated, killed, and continued.

    python -m tests.system.soak.large_state JSON

The only argument is a JSON object: ``root`` (a directory), ``keys``, ``fills`` (batches that put all keys),
``updates`` (events of each later batch), ``first`` and ``last`` (numbers of the batches of this run; the end
is exclusive), ``memory`` of the driver, ``local`` (Spark's local directory), ``kill`` (whether both processes
are killed in the batch ``last``), ``cached`` (rows of a table that is cached after the fills, 0 for none, the
default), and ``sorts`` (whether that table is cached at the start, and sorted all the time).
"""

import gc
import json
import os
import sys
import threading
import time

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import spark_statestore
from tests.spark.counting import backends_of, jvm_of, kill, report, wait_until
from tests.support.sessions import local_builder

PARTITIONS = 8
MASK = 0x5555


def keys_and_value(arguments, number):
    """Return the keys of a batch's events, and the value that all of them have."""
    if number < arguments["fills"]:
        edges = [arguments["keys"] * n // arguments["fills"] for n in (number, number + 1)]
        return np.arange(*edges, dtype=np.int64), 1
    return np.random.default_rng(number).integers(0, arguments["keys"], arguments["updates"]), number


def expected(arguments, batches):
    """Return count, sum and maximum of the values of each key after so many batches."""
    count, total, largest = (np.zeros(arguments["keys"], np.int64) for _ in range(3))
    for number in range(batches):
        keys, value = keys_and_value(arguments, number)
        np.add.at(count, keys, 1)
        np.add.at(total, keys, value)
        largest[keys] = value
    return count, total, largest


def main():
    arguments = json.loads(sys.argv[1])
    watched = f"{arguments['root']}/input"
    os.makedirs(watched, exist_ok=True)
    builder = local_builder("large-state", memory=arguments["memory"])
    builder.config("spark.sql.shuffle.partitions", str(PARTITIONS))
    builder.config("spark.sql.streaming.stateStore.maintenanceInterval", "10s")
    builder.config("spark.local.dir", arguments["local"])
    builder.config("spark.sql.streaming.minBatchesToRetain", "10")
    spark = spark_statestore.configure(builder, localRecovery="off").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    started = time.monotonic()
    query = start(spark, watched, f"{arguments['root']}/checkpoint")
    if arguments["first"] and not arguments["kill"]:
        # The batch that was killed.
        query.processAllAvailable()
        report("loaded", loaded(query, arguments["first"] - 1, time.monotonic() - started))
    jvm = psutil.Process(jvm_of(spark))
    sorts = Sorts(cache(spark, arguments["cached"])) if arguments.get("sorts") else None
    for number in range(arguments["first"], arguments["last"]):
        if number == arguments["fills"] and arguments.get("cached") and not sorts:
            cache(spark, arguments["cached"])
            report("cached", {"mapped MiB": moved(spark) >> 20})
        put(arguments, watched, number)
        query.processAllAvailable()
        report("batch", sample(query, number, jvm))
    spark._jvm.java.lang.System.gc()
    heap = spark._jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()
    report("memory", {"jvm heap MiB": heap >> 20, "jvm resident MiB": jvm.memory_info().rss >> 20})
    if arguments["kill"]:
        put(arguments, watched, arguments["last"])
        if not wait_until(
            lambda: os.path.exists(f"{arguments['root']}/checkpoint/offsets/{arguments['last']}"), 60
        ):
            raise TimeoutError("the batch that is to be killed did not begin")
        kill(*(backend.pid for backend in backends_of(jvm.pid)), jvm.pid)
        os._exit(0)
    query.stop()
    if sorts:
        report("sorts", sorts.end())
    spark.stop()


def cache(spark, rows):
    """Return a table of five columns, of which Spark keeps as much in memory as it can."""
    columns = ["id", "hash(id) AS h", "3 * id AS c", "rand(1) AS d", "rand(2) AS e"]
    table = spark.range(0, rows, 1, PARTITIONS).selectExpr(*columns).cache()
    table.count()
    return table


def moved(spark):
    """Return the bytes of state in files, once they do not change any more."""
    memory = spark._jvm.org.apache.spark.sql.statestore.table.TableMemory
    before = -1
    while (now := memory.mappedBytes()) != before:
        before = now
        time.sleep(1)
    return now


class Sorts(threading.Thread):
    """Sorts a table again and again."""

    def __init__(self, table):
        super().__init__(daemon=True)
        self._table = table
        self._sorts = 0
        self._ending = False
        self.start()

    def run(self):
        while not self._ending:
            self._table.orderBy("h").write.format("noop").mode("overwrite").save()
            self._sorts += 1

    def end(self):
        """Return the number of sorts that succeeded; raise if one failed."""
        failed = not self.is_alive()
        self._ending = True
        self.join()
        if failed:
            raise RuntimeError("a sort failed")
        return self._sorts


def start(spark, watched, checkpoint):
    from pyspark.sql import functions as F

    stream = (
        spark.readStream.schema("a long, b long, v long").option("maxFilesPerTrigger", 1).parquet(watched)
    )
    aggregated = stream.groupBy("a", "b").agg(F.count(F.lit(1)), F.sum("v"), F.max("v"))
    writer = aggregated.writeStream.outputMode("update").format("noop")
    return writer.option("checkpointLocation", checkpoint).start()


def put(arguments, watched, number):
    keys, value = keys_and_value(arguments, number)
    columns = {"a": keys, "b": keys ^ MASK, "v": np.full(len(keys), value)}
    unfinished = f"{arguments['root']}/unfinished.parquet"
    pq.write_table(pa.table(columns), unfinished)
    del keys, columns
    gc.collect()
    os.rename(unfinished, f"{watched}/{number:05}.parquet")


def progress_of(query, batch):
    """Return the progress of a batch with data, which Spark reports shortly after the batch has ended."""

    def matches():
        return [p for p in query.recentProgress if p["batchId"] == batch and "addBatch" in p["durationMs"]]

    if not wait_until(matches, 60):
        raise TimeoutError(f"there is no progress of batch {batch}")
    return matches()[-1]


def loaded(query, batch, seconds):
    """Return the cost of the first batch after a start, which loads the state."""
    metrics = progress_of(query, batch)["stateOperators"][0]["customMetrics"]
    return {
        "seconds from start to end of the batch": round(seconds, 1),
        "load, seconds of all partitions": round(metrics["checkpointLoadTimeUs"] / 1e6, 1),
        "load, MiB": metrics["checkpointLoadBytes"] >> 20,
    }


def sample(query, number, jvm):
    progress = progress_of(query, number)
    operator = progress["stateOperators"][0]
    (backend,) = backends_of(jvm.pid)
    return {
        "batch": number,
        "milliseconds": progress["durationMs"]["triggerExecution"],
        "rows": operator["numRowsTotal"],
        "written": backend.io_counters().write_bytes,
        "mapped MiB": operator["customMetrics"]["stateTableMappedBytes"] >> 20,
        "backend resident MiB": backend.memory_info().rss >> 20,
    }


if __name__ == "__main__":
    main()
