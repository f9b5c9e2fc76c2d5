"""Keep state in memory only: for tests and trials, since it ends with the session.

Within the session a query can be stopped and started again.

    python examples/memory_storage.py
"""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import spark_statestore


def count(spark: SparkSession, work: Path) -> int:
    """Count the available numbers by their last digit; return how many the state has counted."""
    query = (
        spark.readStream.schema("number long")
        .json(str(work / "input"))
        .groupBy((f.col("number") % 10).alias("digit"))
        .count()
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("digits")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.table("digits").agg(f.sum("count")).head()[0]


def main(work: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = spark_statestore.configure(builder, storage="memory", max_state_size="16m").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    for run in range(2):
        numbers = spark.range(1000 * run, 1000 * (run + 1)).withColumnRenamed("id", "number")
        numbers.write.mode("append").json(str(work / "input"))
        print(f"run {run + 1}: {count(spark, work)} numbers counted")

    files = list((work / "checkpoint" / "state").glob("*/*/chk-*"))
    print(f"checkpoints of state in files: {len(files)}")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
