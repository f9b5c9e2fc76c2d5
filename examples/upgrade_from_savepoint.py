"""Replace a query by a new version of it, which resumes from a savepoint of the old one.

The old version's checkpoint is unchanged: if the new version fails, the old one can be started again.

    python examples/upgrade_from_savepoint.py
"""

import os
import tempfile
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_statestore

# A file is a day, and a batch.
DAYS = ["ann,30,paid\nbob,50,paid\nann,5,paid\n", "ann,40,paid\nbob,25,cancelled\neve,10,paid\n"]


def receive(work: Path, day: int) -> None:
    file = work / "input" / f"{day}.csv"
    file.parent.mkdir(exist_ok=True)
    file.write_text(DAYS[day])
    os.utime(file, (day, day))  # the order in which they are read


def run(spark: SparkSession, work: Path, version: str, counts: Column) -> str:
    """Run one version of the query over the available input, print its result, and return its checkpoint."""
    checkpoint = str(work / version)

    def show(batch: DataFrame, number: int) -> None:
        totals = ", ".join(f"{row['customer']} {row['total']}" for row in batch.orderBy("customer").collect())
        print(f"{version}, batch {number}: {totals}")

    orders = spark.readStream.schema("customer string, amount long, status string").csv(str(work / "input"))
    totals = orders.groupBy("customer").agg(f.sum(counts).alias("total"))
    query = totals.writeStream.outputMode("update").foreachBatch(show).trigger(availableNow=True)
    query.option("checkpointLocation", checkpoint).start().awaitTermination()
    return checkpoint


def main(work: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    receive(work, 0)
    checkpoint = run(spark, work, "version-1", f.col("amount"))
    # A running query needs trigger_savepoint(query, target), which takes the savepoint between two batches.
    savepoint = spark_statestore.savepoint(checkpoint, str(work / "savepoints"))
    print(f"a {savepoint.kind} savepoint of batch {savepoint.batch}")

    # Version 2 leaves cancelled orders out. It starts with the totals of version 1, after the input that
    # version 1 has read.
    spark_statestore.restore(savepoint, str(work / "version-2"))
    receive(work, 1)
    run(spark, work, "version-2", f.when(f.col("status") == "paid", f.col("amount")).otherwise(0))

    spark_statestore.dispose_savepoint(savepoint.path)
    print(f"savepoints left: {len(spark_statestore.list_savepoints(str(work / 'savepoints')))}")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
