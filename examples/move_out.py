"""Move a running query from this store to Spark's RocksDB store, halfway through a year of real flights.

The way back of `move_in.py`: after it the query needs nothing of this package. Its result must equal the
batch answer on the same files.

    pip install 'spark-statestore[demo]'
    python examples/move_out.py
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
        print(query.run(spark, before, spark_statestore.PROVIDER_CLASS))

        # From a shell: spark-statestore convert CHECKPOINT NEW_CHECKPOINT --to rocksdb --stopped
        moved = spark_statestore.convert(spark, str(before), str(after), to="rocksdb", stopped=True)
        print(f"converted {moved.rows:,} rows after batch {moved.batch}, compared with checksums")

        query.arrive(query.files)
        print(query.run(spark, after, ROCKSDB))
        print(query.require_batch_answer(spark))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
