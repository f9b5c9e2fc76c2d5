"""A streaming program for the image: it counts words in two batches, and prints what ran as JSON."""

import json
import os
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType

import spark_statestore


def main(work: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark_statestore.attach(spark)
    (work / "input").mkdir()
    for number in range(2):
        (work / "input" / f"{number}.txt").write_text("one\ntwo\none\n")
        query = (
            spark.readStream.text(str(work / "input"))
            .groupBy("value")
            .count()
            .writeStream.outputMode("complete")
            .format("memory")
            .queryName("counts")
            .option("checkpointLocation", str(work / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    (operator,) = query.lastProgress["stateOperators"]
    # The interpreter of a task, and the user that runs it.
    spark.udf.register("task", lambda: f"{sys.executable} {os.getuid()}", StringType())
    answer = {
        "counts": {row["value"]: row["count"] for row in spark.table("counts").collect()},
        "metrics": operator["customMetrics"],
        "task": spark.sql("SELECT task()").head()[0].split(),
        "driver": [sys.executable, str(os.getuid())],
        "pyspark": pyspark.__file__,
        "spark": spark.version,
    }
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
