"""Keep a table of account balances up to date in SQLite; a second run resumes the query.

python examples/foreach_batch.py [DIRECTORY]
"""

import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_statestore

BOOKINGS = "ann,100\nbob,50\nann,-30\nbob,25\n"
CREATE = "CREATE TABLE IF NOT EXISTS balances (account PRIMARY KEY, balance)"
UPSERT = "INSERT INTO balances VALUES (?, ?) ON CONFLICT (account) DO UPDATE SET balance = excluded.balance"


def main(work: Path) -> None:
    (work / "input").mkdir(parents=True, exist_ok=True)
    (work / "input" / f"{time.time_ns()}.csv").write_text(BOOKINGS)
    database = work / "balances.sqlite"
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def upsert(batch: DataFrame, number: int) -> None:
        # A batch may be repeated after a failure; upserts of balances are idempotent.
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(CREATE)
            connection.executemany(UPSERT, [tuple(row) for row in batch.collect()])

    bookings = spark.readStream.schema("account string, amount long").csv(str(work / "input"))
    query = (
        bookings.groupBy("account")
        .agg(f.sum("amount"))
        .writeStream.outputMode("update")
        .foreachBatch(upsert)
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()

    with closing(sqlite3.connect(database)) as connection:
        for row in connection.execute("SELECT * FROM balances ORDER BY account"):
            print(*row)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
