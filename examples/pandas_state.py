"""Keep the highest reading of each sensor, with applyInPandasWithState.

python examples/pandas_state.py
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import spark_statestore

# A file is a batch.
FILES = ["attic,19.5\ncellar,8.0\nattic,21.0\n", "cellar,7.5\nattic,20.0\n", "cellar,9.5\n"]


def highest(key: tuple[str], parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    (readings, top) = state.get if state.exists else (0, float("-inf"))
    for part in parts:
        readings += len(part)
        top = max(top, part["value"].max())
    state.update((readings, top))
    yield pd.DataFrame({"sensor": [key[0]], "readings": [readings], "top": [top]})


def main(work: Path) -> None:
    (work / "input").mkdir()
    for number, lines in enumerate(FILES):
        file = work / "input" / f"{number}.csv"
        file.write_text(lines)
        os.utime(file, (number, number))  # the order in which they are read

    # For the worker that runs `highest`; the warnings concern Spark's own code.
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYTHONWARNINGS": "ignore::FutureWarning"}
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def show(batch: DataFrame, number: int) -> None:
        for row in batch.orderBy("sensor").collect():
            print(f"batch {number}: {row['sensor']}, {row['readings']} readings, at most {row['top']}")

    readings = spark.readStream.schema("sensor string, value double").option("maxFilesPerTrigger", 1)
    sensors = readings.csv(str(work / "input")).groupBy("sensor")
    output, state_schema = "sensor string, readings long, top double", "readings long, top double"
    tops = sensors.applyInPandasWithState(
        highest, output, state_schema, "update", GroupStateTimeout.NoTimeout
    )
    query = tops.writeStream.outputMode("update").foreachBatch(show).trigger(availableNow=True)
    query.option("checkpointLocation", str(work / "checkpoint")).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
