"""Roll a query back after a bad deployment: its changes of the state are undone, and its input is read again.

python examples/roll_back.py
"""

import os
import tempfile
from pathlib import Path

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

import spark_statestore

# A file is a batch. Readings are in degrees Celsius.
FILES = ["attic,20\ncellar,8\n", "attic,22\n", "cellar,12\nattic,24\n"]


def receive(work: Path, number: int) -> None:
    file = work / "input" / f"{number}.csv"
    file.parent.mkdir(exist_ok=True)
    file.write_text(FILES[number])
    os.utime(file, (number, number))  # the order in which they are read


def run(spark: SparkSession, work: Path, deployment: str, celsius: Column) -> None:
    """Run a deployment of the query over the available input, and return the averages."""
    readings = spark.readStream.schema("sensor string, degrees double").option("maxFilesPerTrigger", 1)
    averages = readings.csv(str(work / "input")).groupBy("sensor").agg(f.avg(celsius).alias("average"))
    query = averages.writeStream.outputMode("complete").format("memory").queryName("averages")
    query.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()
    rows = spark.table("averages").orderBy("sensor").collect()
    print(f"{deployment}: {', '.join(f'{row.sensor} {row.average:.1f}' for row in rows)}")


def main(work: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    receive(work, 0)
    run(spark, work, "deployment 1", f.col("degrees"))
    receive(work, 1)
    receive(work, 2)
    run(spark, work, "deployment 2, in Fahrenheit by mistake", f.col("degrees") * 1.8 + 32)

    # Batch 0 is the last correct one. List the log entries that would be moved:
    planned = spark_statestore.rollback(str(work / "checkpoint"), 0, dry_run=True)
    print(f"to be moved: {sum('/commits/' in url for url in planned)} batches, {len(planned)} files")
    spark_statestore.rollback(str(work / "checkpoint"), 0, stopped=True)
    run(spark, work, "deployment 3", f.col("degrees"))
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
