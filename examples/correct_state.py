"""Correct a query's state in place after wrong input: one value is corrected, and keys are deleted.

The query goes on from there. Its result must equal that of a query that never had the wrong input.

    python examples/correct_state.py
"""

import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import spark_statestore

# A file is a day, and a batch. On the first one bob's 50.00 lost its point, and a test wrote orders.
WRONG = "ann,30\nbob,5000\ntest-1,1\ntest-2,1\n"
RIGHT = "ann,30\nbob,50\n"
NEXT = "ann,40\nbob,25\neve,10\n"


def receive(directory: Path, day: int, orders: str) -> None:
    file = directory / "input" / f"{day}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(orders)
    os.utime(file, (day, day))  # the order in which they are read


def run(spark: SparkSession, directory: Path) -> str:
    """Run the query over the available input, and return the totals."""
    orders = spark.readStream.schema("customer string, amount long").csv(str(directory / "input"))
    totals = orders.groupBy("customer").agg(f.sum("amount").alias("total"), f.count("*").alias("orders"))
    query = totals.writeStream.outputMode("complete").format("memory").queryName("totals")
    query.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()
    rows = spark.table("totals").orderBy("customer").collect()
    return ", ".join(f"{row['customer']} {row['total']}" for row in rows)


def correct(checkpoint: str) -> None:
    """Correct the state of the stopped query: the total of bob, and no test customers."""
    state = spark_statestore.read_state(checkpoint)
    rows = [row for row in state.to_pylist() if row["key"]["customer"] == "bob"]
    for row in rows:
        row["value"]["sum"] -= 5000 - 50
    right = pa.Table.from_pylist(rows, state.schema)
    # stopped: the query ended a moment ago, so that its logs look as if it ran.
    result = spark_statestore.write_state(checkpoint, None, right, in_place=True, stopped=True)
    print(f"batch {result.batch}: {result.changed} customer corrected")
    is_test = pc.starts_with(pc.field("key", "customer"), "test-")
    result = spark_statestore.write_state(
        checkpoint, None, is_test, mode="delete", in_place=True, stopped=True
    )
    print(f"batch {result.batch}: {result.removed} customers deleted")


def main(work: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    # State is written in place in this format, which is the default since Spark 4.3.
    builder = builder.config("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    receive(work / "orders", 0, WRONG)
    print(f"wrong: {run(spark, work / 'orders')}")
    correct(str(work / "orders" / "checkpoint"))
    receive(work / "orders", 1, NEXT)
    result = run(spark, work / "orders")
    print(f"after the next day: {result}")

    for day, orders in enumerate((RIGHT, NEXT)):
        receive(work / "answer", day, orders)
        answer = run(spark, work / "answer")
    if result != answer:
        raise SystemExit(f"the query's result {result} is not the answer {answer}")
    print("the result equals that of a query without the wrong input")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
