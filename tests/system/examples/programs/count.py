"""A streaming program that does not use this project: it counts words, and is started twice."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession


def count(spark: SparkSession, work: Path, checkpoint: str) -> None:
    query = (
        spark.readStream.text(str(work / "input"))
        .groupBy("value")
        .count()
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("counts")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(spark.table("counts").agg({"count": "sum"}).head()[0], "rows counted")


def main(work: Path, checkpoint: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    (work / "input").mkdir()
    for number in range(2):
        (work / "input" / f"{number}.txt").write_text("one\ntwo\none\n")
        count(spark, work, checkpoint)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
