"""Program of a user: two stateful queries over files, with rows that name the containers of their state.

Its arguments are a directory, the location of the checkpoints, and Spark's settings as a JSON object, with
which it configures the session itself; without them spark-submit has. In a container of YARN only installed
packages can be imported. It reads ``input/`` of the directory and writes ``out/<query>/<batch>.json``. At the
end of the batch `PAUSE` it waits for the file ``resume``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_statestore

PAUSE = 2
SCHEMA = "k string, v bigint"


def container(_: str) -> str:
    """Return the name of the container that a row is computed in."""
    return Path.cwd().name


def sums(rows: DataFrame) -> DataFrame:
    totals = rows.groupBy("k").agg(f.count("*").alias("n"), f.sum("v").alias("s"))
    return totals.withColumn("container", f.udf(container)("k"))


def sums_in_pandas(rows: DataFrame) -> DataFrame:
    def update(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        n, s = state.get if state.exists else (0, 0)
        for frame in frames:
            n, s = n + len(frame), s + int(frame["v"].sum())
        state.update((n, s))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "s": [s], "container": [Path.cwd().name]})

    columns = "k string, n bigint, s bigint, container string"
    return rows.groupBy("k").applyInPandasWithState(
        update, columns, "n bigint, s bigint", "update", "NoTimeout"
    )


QUERIES = {"aggregation": sums, "pandas": sums_in_pandas}


def main(directory: Path, checkpoints: str, settings: str | None = None) -> None:
    builder = SparkSession.builder
    if settings is not None:
        # YARN's client would send the checkout's path to the executors.
        os.environ.pop("PYTHONPATH", None)
        builder.master("yarn")
        builder.config(map=json.loads(settings))
        spark_statestore.configure(builder)
    spark = builder.getOrCreate()
    spark_statestore.attach(spark)
    started = [start(spark, directory, f"{checkpoints}/{name}", name) for name in QUERIES]
    for query in started:
        query.awaitTermination()
    spark.stop()


def start(spark: SparkSession, directory: Path, checkpoint: str, name: str) -> Any:
    output = directory / "out" / name
    output.mkdir(parents=True)

    def write(batch: DataFrame, number: int) -> None:
        rows = sorted([row.k, row.n, row.s, row.container] for row in batch.collect())
        path = output / f".{number}.json"
        path.write_text(json.dumps(rows))
        path.rename(output / f"{number}.json")
        while number == PAUSE and not (directory / "resume").exists():
            time.sleep(0.1)

    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    rows = QUERIES[name](source.json(str(directory / "input")))
    writer = rows.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
    return writer.foreachBatch(write).trigger(availableNow=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
