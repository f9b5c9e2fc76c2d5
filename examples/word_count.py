"""Count words in arriving files; a second run with the same directory resumes the counts.

python examples/word_count.py [DIRECTORY]
"""

import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import spark_statestore

LINES = "the quick brown fox\njumps over the lazy dog\nthe end\n"


def main(work: Path) -> None:
    (work / "input").mkdir(parents=True, exist_ok=True)
    (work / "input" / f"{time.time_ns()}.txt").write_text(LINES)

    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    lines = spark.readStream.text(str(work / "input"))
    words = lines.select(f.explode(f.split("value", " ")).alias("word"))
    query = (
        words.groupBy("word")
        .count()
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("counts")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    for row in spark.table("counts").orderBy(f.desc("count"), "word").limit(3).collect():
        print(f"{row['word']}: {row['count']}")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
