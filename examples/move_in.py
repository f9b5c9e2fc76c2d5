"""Move a running query from Spark's RocksDB store to this one, halfway through a year of real flights.

The query begins on RocksDB. It is stopped after half of the year, its checkpoint converted, and the unchanged
query started with the new location. Its result must equal the batch answer on the same files.

    pip install 'spark-statestore[demo]'
    python examples/move_in.py
"""

import tempfile
from pathlib import Path

from _flights.moving import ROCKSDB, MovingQuery

import spark_statestore


def main(work: Path) -> None:
    query = MovingQuery(work)
    before, after = work / "checkpoint", work / "checkpoint-moved"
    with query.session() as spark:
        query.arrive(query.files // 2)
        print(query.run(spark, before, ROCKSDB))

        # From a shell: spark-statestore convert CHECKPOINT NEW_CHECKPOINT --stopped
        moved = spark_statestore.convert(spark, str(before), str(after), stopped=True)
        print(f"converted {moved.rows:,} rows after batch {moved.batch}, compared with checksums")

        query.arrive(query.files)
        print(query.run(spark, after, spark_statestore.PROVIDER_CLASS))
        print(query.require_batch_answer(spark))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
