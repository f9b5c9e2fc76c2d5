"""Drop messages that are delivered twice within ten minutes of event time.

A second run with the same directory still drops messages of the first.

    python examples/deduplicate.py [DIRECTORY]
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

import spark_statestore

MESSAGES = [
    {"id": "a", "sent": "2025-01-01T12:00:00Z", "text": "first"},
    {"id": "b", "sent": "2025-01-01T12:01:00Z", "text": "second"},
    {"id": "a", "sent": "2025-01-01T12:00:30Z", "text": "first"},
    {"id": "c", "sent": "2025-01-01T12:02:00Z", "text": "third"},
    {"id": "b", "sent": "2025-01-01T12:01:00Z", "text": "second"},
]


def main(work: Path) -> None:
    (work / "input").mkdir(parents=True, exist_ok=True)
    lines = "\n".join(json.dumps(message) for message in MESSAGES)
    (work / "input" / f"{time.time_ns()}.json").write_text(lines)

    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    messages = spark.readStream.schema("id string, sent timestamp, text string").json(str(work / "input"))
    query = (
        messages.withWatermark("sent", "10 minutes")
        .dropDuplicatesWithinWatermark(["id"])
        .writeStream.format("parquet")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(work / "output"))
    )
    query.awaitTermination()

    delivered = spark.read.json(str(work / "input")).count()
    print(f"{delivered} delivered, {spark.read.parquet(str(work / 'output')).count()} kept")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
