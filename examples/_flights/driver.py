"""Spark driver of the demo: runs the queries to the input's end, and compares with the batch answer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

import spark_statestore
from _flights.data import SENTINEL
from _flights.queries import QUERIES, SCHEMA


def run(work: Path) -> None:
    """Run the queries to the end of their input, and write ``result.json``."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with session(work) as spark:
        listener = ProgressFile(work / "progress.jsonl")
        spark.streams.addListener(listener)
        queries = [start(spark, work, name) for name in QUERIES]
        for query in queries:
            query.awaitTermination()
        result = {name: compare(spark, work, name) for name in QUERIES}
    part = work / "result.part"
    part.write_text(json.dumps(result))
    part.rename(work / "result.json")


@contextmanager
def session(work: Path) -> Iterator[SparkSession]:
    """Build a local session whose streaming state is in this store."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f'"-Djava.io.tmpdir={work / "tmp"}"')
        .config("spark.local.dir", str(work / "tmp"))
        .config("spark.sql.warehouse.dir", str(work / "tmp"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def start(spark: SparkSession, work: Path, name: str) -> StreamingQuery:
    """Start a query, or resume it from its checkpoint."""
    flights = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(work / "flights"))
    query, _ = QUERIES[name]
    return (
        query(flights)
        .writeStream.queryName(name)
        .format("parquet")
        .outputMode("append")
        .option("checkpointLocation", str(work / "checkpoints" / name))
        .trigger(availableNow=True)
        .start(str(work / "results" / name))
    )


def compare(spark: SparkSession, work: Path, name: str) -> dict[str, Any]:
    """Count the rows of the stream's result and of the batch answer, and those that only one of them has."""
    query, column = QUERIES[name]
    batch = query(spark.read.schema(SCHEMA).parquet(str(work / "flights")))
    stream = spark.read.schema(batch.schema).parquet(str(work / "results" / name))
    batch, stream = (rows.where(f"{column} <> '{SENTINEL}'").cache() for rows in (batch, stream))
    return {
        "stream": stream.count(),
        "batch": batch.count(),
        # exceptAll compares multiplicities, so both empty means equal.
        "only_stream": _shown(stream.exceptAll(batch)),
        "only_batch": _shown(batch.exceptAll(stream)),
    }


def _shown(rows: DataFrame) -> list[str]:
    return [str(row.asDict()) for row in rows.limit(5).collect()]


class ProgressFile(StreamingQueryListener):
    """Appends the progress of every batch to a file, a line each."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._file.write("\n")  # ends a line that a kill cut off

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self._file.write(json.dumps(json.loads(event.progress.json)) + "\n")
        self._file.flush()

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass
