"""Test program: queries whose every task fails once, with a report of the failures and the results.

The arguments are a directory to work in and the option ``commit``. Task retries need a session of their own.
"""

import json
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F

import spark_statestore
from tests.spark.queries import STATE_STORE, Query, run_with_restarts
from tests.support.sessions import local_builder

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
KEYS = 80


def rows(number):
    return [{"k": key, "v": key + number} for key in range(number * 10, KEYS)]


def attempt():
    return TaskContext.get().attemptNumber()


def fail(markers):
    context = TaskContext.get()
    (markers / f"{context.stageId()}-{context.partitionId()}").touch()
    raise ValueError("this task fails once")


def failing_before_the_commit(markers):
    """Count and sum; the first attempt fails after it has changed some of its keys."""

    def update(key, frames, state):
        n, v = state.get if state.exists else (0, 0)
        for frame in frames:
            n, v = n + len(frame), v + int(frame["v"].sum())
        state.update((n, v))
        if attempt() == 0 and key[0] % 10 == 9:
            fail(markers)
        yield pd.DataFrame({"k": [key[0]], "n": [n], "v": [v]})

    columns = "n bigint, v bigint"
    return lambda stream: stream.groupBy("k").applyInPandasWithState(
        update, f"k bigint, {columns}", columns, "update", "NoTimeout"
    )


def failing_after_the_commit(markers):
    """Count and sum; the first attempt fails after all rows have left the stateful operator."""

    def pass_on(tables):
        tables = list(tables)
        if attempt() == 0:
            fail(markers)
        yield from tables

    def build(stream):
        counts = stream.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("v"))
        return counts.mapInArrow(pass_on, counts.schema)

    return build


MOMENTS = {"before": failing_before_the_commit, "after": failing_after_the_commit}


def run(spark, directory, moment, checkpoint_format, commit):
    markers = directory / "markers"
    markers.mkdir(parents=True)
    output = {}

    def collect(batch):
        batch_rows = batch.collect()
        output.update({row.k: (row.n, row.v) for row in batch_rows})
        return batch_rows

    query = Query(
        spark,
        directory,
        MOMENTS[moment](markers),
        "update",
        SCHEMA,
        checkpoint_format=checkpoint_format,
        collect=collect,
        confs={STATE_STORE + "backend.commit": commit},
    )
    batches = [rows(number) for number in range(3)]
    run_with_restarts(query, [batches[:2], batches[2:]])
    expected = {}
    for row in (row for batch in batches for row in batch):
        n, v = expected.get(row["k"], (0, 0))
        expected[row["k"]] = n + 1, v + row["v"]
    stores = list(query.checkpoint.glob("state/0/[01]"))
    return {
        "moment": moment,
        "format": checkpoint_format,
        "failures": len(list(markers.iterdir())),
        "replaced": sum(len(list(store.glob("chk-*/_metadata.*"))) for store in stores),
        "versions": sum(len(list(store.glob("chk-*/_metadata"))) for store in stores),
        "output is exact": output == expected,
        "state is exact": spark_statestore.read_state(str(query.checkpoint)).num_rows == len(expected),
    }


def main():
    builder = local_builder("retry", memory="1g", master="local[2,3]")
    builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "5")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for moment in ("before", "after"):
        for checkpoint_format in (1, 2):
            directory = Path(sys.argv[1], f"{moment}-{checkpoint_format}")
            print(json.dumps(run(spark, directory, moment, checkpoint_format, sys.argv[2])), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
