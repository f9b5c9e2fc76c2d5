"""Group clicks into visits: a visit ends when its user is idle for half an hour.

python examples/sessions.py
"""

import os
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import spark_statestore

# A file is a batch. The last click only moves the watermark, so that the visits before it end.
FILES = [
    "ann,2025-01-01 09:00\nbob,2025-01-01 09:10\nann,2025-01-01 09:20\n",
    "ann,2025-01-01 09:45\nbob,2025-01-01 10:30\n",
    "eve,2025-01-02 00:00\n",
]


def main(work: Path) -> None:
    (work / "input").mkdir()
    for number, lines in enumerate(FILES):
        file = work / "input" / f"{number}.csv"
        file.write_text(lines)
        os.utime(file, (number, number))  # the order in which they are read

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
    )
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    clicks = spark.readStream.schema("user string, time timestamp").option("maxFilesPerTrigger", 1)
    query = (
        clicks.csv(str(work / "input"))
        .withWatermark("time", "1 hour")
        .groupBy(f.session_window("time", "30 minutes").alias("visit"), "user")
        .agg(f.count("*").alias("clicks"))
        .select("user", "visit.start", "visit.end", "clicks")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(work / "output"))
    )
    query.awaitTermination()

    for visit in spark.read.parquet(str(work / "output")).orderBy("start", "user").collect():
        print(f"{visit['user']}: {visit['start']:%H:%M} to {visit['end']:%H:%M}, {visit['clicks']} clicks")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
