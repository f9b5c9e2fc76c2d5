"""Program that runs one query on three state stores in one session with an event log, batch by batch in turn.

The only argument is a JSON object: ``root`` (of input, checkpoints and scratch), ``events`` (directory of the
event log), ``query`` (``count`` or ``dedup``), ``keys``, ``rows`` (of a batch), ``batches``, ``partitions``,
and optionally ``confs`` (settings of the session) and ``unforked`` (local files without Hadoop's external
programs). The queries have the names of their stores. They share the JVM, so its load, its collector and its
compilers are the same for all of them.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import spark_statestore
from benchmarks.stores import HDFS, OURS, PREFIX, PROVIDERS, ROCKSDB, UNFORKED_FILES
from tests.spark.queries import configured
from tests.support.paths import TEST_JAR
from tests.support.sessions import local_builder

STORES = (OURS, HDFS, ROCKSDB)
SPARKS_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"


def main():
    arguments = json.loads(sys.argv[1])
    root = Path(arguments["root"])
    spark = session(arguments)
    queries = {store: start(spark, arguments, store) for store in STORES}
    generator = np.random.default_rng(seed=1)
    for number in range(arguments["batches"] + 1):
        table = input_of(arguments, number, generator)
        pq.write_table(table, root / "batch.parquet")
        # In changing order: what runs before another query leaves its garbage and its memory caches.
        for store in generator.permutation(STORES):
            os.link(root / "batch.parquet", root / store / "input" / f"{number:04}.parquet")
            queries[store].processAllAvailable()
        (root / "batch.parquet").unlink()
    for query in queries.values():
        query.stop()
    spark.stop()


def session(arguments):
    builder = local_builder("assess", memory="3g", with_hadoop_defaults=True)
    settings = {
        "spark.sql.shuffle.partitions": arguments["partitions"],
        "spark.local.dir": f"{arguments['root']}/local",
        "spark.sql.warehouse.dir": f"{arguments['root']}/warehouse",
        "spark.jars": str(TEST_JAR),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": arguments["events"],
        "spark.ui.showConsoleProgress": "false",
        # Queries that wait for their turn should not poll for input.
        "spark.sql.streaming.pollingDelay": "500ms",
        f"{PREFIX}maintenanceInterval": "1h",
    }
    builder.config(map=settings | arguments.get("confs", {}))
    Path(arguments["events"]).mkdir(parents=True, exist_ok=True)
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(spark, arguments, store):
    directory = Path(arguments["root"], store)
    (directory / "input").mkdir(parents=True)
    provider, _ = PROVIDERS[store]
    confs = {f"{PREFIX}providerClass": provider}
    if store != OURS:
        confs["spark.sql.streaming.checkpointFileManagerClass"] = SPARKS_FILES
        confs |= UNFORKED_FILES if arguments.get("unforked") else {}
    with configured(spark, confs):
        events = (
            spark.readStream.schema("k long, at timestamp, v long")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(directory / "input"))
        )
        if arguments["query"] == "count":
            result = events.groupBy("k").agg({"v": "sum", "*": "count"})
        else:
            result = events.withWatermark("at", "1 hour").dropDuplicates(["k", "at"])
        return (
            result.writeStream.queryName(store)
            .outputMode("update" if arguments["query"] == "count" else "append")
            .option("checkpointLocation", str(directory / "checkpoint"))
            .format("noop")
            .start()
        )


def input_of(arguments, number, generator):
    """Return the input of a batch: every key in the first one, then random keys.

    Of a deduplication half of them are new.
    """
    keys = arguments["keys"]
    if number == 0:
        chosen = np.arange(keys)
    elif arguments["query"] == "count":
        chosen = generator.integers(0, keys, arguments["rows"])
    else:
        chosen = generator.integers(0, keys + 2 * arguments["rows"] * number, arguments["rows"])
    # One time for all: the watermark removes nothing.
    at = pa.array(np.full(len(chosen), 1_767_225_600_000_000), pa.timestamp("us", tz="UTC"))
    return pa.table({"k": chosen, "at": at, "v": np.ones(len(chosen), dtype="int64")})


if __name__ == "__main__":
    main()
