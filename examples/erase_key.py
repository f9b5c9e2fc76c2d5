"""Erase a customer from all retained batches of a query and from its savepoint, and prove it.

    python examples/erase_key.py

The same on the command line, where conditions are SQL (pip install duckdb):

    spark-statestore state erase CHECKPOINT --where "key.customer = 'ann'" --savepoint SAVEPOINT
    spark-statestore verify CHECKPOINT --absent "key.customer = 'ann'"
"""

import os
import tempfile
from pathlib import Path

import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import spark_statestore

# A file is a day, and a batch.
DAYS = ["ann,30\nbob,50\n", "ann,5\neve,10\n", "bob,25\neve,15\n"]

ANN = pc.field("key", "customer") == "ann"


def receive(work: Path, day: int) -> None:
    file = work / "input" / f"{day}.csv"
    file.parent.mkdir(exist_ok=True)
    file.write_text(DAYS[day])
    os.utime(file, (day, day))  # the order in which they are read


def run(spark: SparkSession, work: Path, checkpoint: str) -> str:
    """Run the query over the available input, and return the totals."""
    orders = spark.readStream.schema("customer string, amount long").csv(str(work / "input"))
    totals = orders.groupBy("customer").agg(f.sum("amount").alias("total"))
    query = totals.writeStream.outputMode("complete").format("memory").queryName("totals")
    query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    rows = spark.table("totals").orderBy("customer").collect()
    return ", ".join(f"{row['customer']} {row['total']}" for row in rows)


def show(name: str, path: str) -> None:
    """Print where the customer is found in the streams of all retained batches."""
    absence = spark_statestore.verify_absent(path, ANN)
    batches = sorted({keys.batch for keys in absence.found})
    print(f"{name}: {'absent' if absence.ok else f'found in the state of the batches {batches}'}")


def main(work: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    # Keys are erased in this format, which is the default since Spark 4.3.
    builder = builder.config("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    checkpoint = str(work / "checkpoint")

    receive(work, 0)
    run(spark, work, checkpoint)
    receive(work, 1)
    print(f"two days: {run(spark, work, checkpoint)}")
    savepoint = spark_statestore.savepoint(checkpoint, str(work / "savepoints"))
    show("checkpoint", checkpoint)
    show("savepoint", savepoint.path)

    # stopped: the query ended a moment ago, so that its logs look as if it ran.
    erasure = spark_statestore.erase(checkpoint, ANN, savepoints=[savepoint.path], stopped=True)
    print(f"erased from the batches {list(erasure.batches)} and {len(erasure.savepoints)} savepoint")
    show("checkpoint", checkpoint)
    show("savepoint", savepoint.path)

    # Both go on with all other customers.
    receive(work, 2)
    print(f"three days: {run(spark, work, checkpoint)}")
    spark_statestore.restore(savepoint, str(work / "restored"))
    print(f"from the savepoint: {run(spark, work, str(work / 'restored'))}")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
