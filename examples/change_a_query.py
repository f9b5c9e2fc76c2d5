"""Change a query after half a year of real flights without losing its state.

The query counts flights by carrier. The changed one counts them by carrier and country, and has the longest
delay. Counts go on; delays are those of the second half.

    pip install 'spark-statestore[demo]'
    python examples/change_a_query.py
"""

import os
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from _flights.data import write_weeks
from _flights.queries import SCHEMA
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_statestore


def by_carrier(flights: DataFrame) -> DataFrame:
    return flights.groupBy("carrier").agg(f.count("*").alias("flights"))


def by_carrier_and_country(flights: DataFrame) -> DataFrame:
    country = f.when(f.col("origin").isin("EWR", "JFK", "LGA"), "US").otherwise("elsewhere")
    # Named before, as Spark has names of its own for expressions within groupBy.
    keys = flights.withColumn("country", country).groupBy("carrier", "country")
    return keys.agg(f.count("*").alias("flights"), f.max("dep_delay").alias("delay"))


def run(spark: SparkSession, query: DataFrame, checkpoint: Path) -> list[tuple[object, ...]]:
    """Run a query on the files that have come in, and return its result."""
    writer = query.writeStream.outputMode("complete").format("memory").queryName("result")
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return sorted(map(tuple, spark.table("result").collect()))


def main(work: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    _, files = write_weeks(work / "weeks")
    weeks = sorted((work / "weeks").iterdir())[: files - 1]
    half = len(weeks) // 2
    incoming, few = work / "incoming", work / "few"
    incoming.mkdir()
    few.mkdir()

    def stream(directory: Path) -> DataFrame:
        return spark.readStream.schema(SCHEMA).parquet(str(directory))

    for path in weeks[:half]:
        path.rename(incoming / path.name)
    run(spark, by_carrier(stream(incoming)), work / "old")

    # A run of the changed query on a few rows: its checkpoint has the schemas.
    spark.read.parquet(str(incoming)).limit(10).write.parquet(str(few), mode="overwrite")
    run(spark, by_carrier_and_country(stream(few)), work / "started")
    columns = {0: {"key.country": pa.scalar("US")}}
    places = (str(work / name) for name in ("old", "started", "new"))
    migration = spark_statestore.migrate(*places, columns=columns)
    print(migration)

    for path in weeks[half:]:
        path.rename(incoming / path.name)
    result = run(spark, by_carrier_and_country(stream(incoming)), work / "new")
    later = spark.read.schema(SCHEMA).parquet(*(str(incoming / path.name) for path in weeks[half:]))
    delays = {row["carrier"]: row["delay"] for row in by_carrier_and_country(later).collect()}
    counts = by_carrier(spark.read.schema(SCHEMA).parquet(str(incoming))).collect()
    answer = sorted((row["carrier"], "US", row["flights"], delays.get(row["carrier"])) for row in counts)
    if result != answer:
        raise SystemExit(f"the query's result {result} is not the batch answer {answer}")
    print(f"{sum(row['flights'] for row in counts):,} flights: the result equals the batch answer")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
