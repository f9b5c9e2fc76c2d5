"""Start a query with state that Spark has computed from half a year of real flights.

The query reads the other half. Its result must equal the batch answer over the year.

    pip install 'spark-statestore[demo]'
    python examples/start_with_history.py
"""

import os
import sys
import tempfile
from pathlib import Path

from _flights.data import write_weeks
from _flights.queries import SCHEMA
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_statestore


def by_carrier(flights: DataFrame) -> DataFrame:
    return flights.groupBy("carrier").agg(
        f.count("*").alias("flights"),
        f.sum("distance").alias("miles"),
        f.avg("dep_delay").alias("delay"),
        f.approx_count_distinct("dest").alias("destinations"),
    )


def run(spark: SparkSession, incoming: Path, checkpoint: Path) -> list[tuple[str, int, float, float, int]]:
    """Run the query on the files that have come in, and return its result."""
    flights = spark.readStream.schema(SCHEMA).parquet(str(incoming))
    query = by_carrier(flights).writeStream.outputMode("complete").format("memory").queryName("carriers")
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return sorted(map(tuple, spark.table("carriers").collect()))


def main(work: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    _, files = write_weeks(work / "weeks")
    weeks = sorted((work / "weeks").iterdir())[: files - 1]
    half = len(weeks) // 2
    history = spark.read.schema(SCHEMA).parquet(*map(str, weeks[:half]))
    flights = history.count()
    state = spark_statestore.aggregation_state(by_carrier(history)).toArrow()
    expected = by_carrier(spark.read.schema(SCHEMA).parquet(*map(str, weeks)))
    answer = sorted(map(tuple, expected.collect()))

    # A run on one file of the history: its checkpoint has the schemas, and the file counts as read.
    incoming = work / "incoming"
    incoming.mkdir()
    weeks[0].rename(incoming / weeks[0].name)
    run(spark, incoming, work / "started")
    changes = spark_statestore.bootstrap(str(work / "started"), str(work / "checkpoint"), {0: state})
    print(f"{flights:,} flights of {half} weeks: {changes.added} carriers in the state")

    for path in weeks[half:]:
        path.rename(incoming / path.name)
    result = run(spark, incoming, work / "checkpoint")
    if result != answer:
        raise SystemExit(f"the query's result {result} is not the batch answer {answer}")
    print(f"{sum(row[1] for row in result):,} flights: the result equals the batch answer")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
