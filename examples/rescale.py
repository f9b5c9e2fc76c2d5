"""Start a query with 7 state partitions that has run with 4.

Spark alone reads the number from the checkpoint, regardless of the session's settings.

    python examples/rescale.py
"""

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_statestore

USERS = [f"user {number}" for number in range(300)]


def visits(spark: SparkSession, work: Path) -> DataFrame:
    """Build the query; it does not depend on the number of partitions."""
    return spark.readStream.text(str(work / "input")).groupBy("value").agg(f.count("*").alias("visits"))


def run(spark: SparkSession, work: Path) -> None:
    """Process all available input, and print the counts so far."""
    query = (
        visits(spark, work)
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("visits")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (operator,) = query.lastProgress["stateOperators"]
    counted = spark.table("visits").agg(f.count("*"), f.sum("visits")).first()
    print(f"{operator['numShufflePartitions']} partitions: {counted[0]} users, {counted[1]} visits")


def main(work: Path) -> None:
    (work / "input").mkdir()
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "4")
    # The default since Spark 4.3.
    builder = builder.config("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    (work / "input" / "monday.txt").write_text("\n".join(USERS))
    run(spark, work)

    # Without Spark: spark-statestore rescale CHECKPOINT 7 --in-place
    spark.conf.set("spark.sql.streaming.stateStore.backend.partitions", "7")
    (work / "input" / "tuesday.txt").write_text("\n".join(USERS[:200]))
    run(spark, work)
    twice = spark.table("visits").where("visits = 2").count()
    print(f"{twice} users came on both days")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
