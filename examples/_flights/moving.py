"""Two halves of the flights, read by one query with a conversion between them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from _flights.data import write_weeks
from _flights.driver import compare, session
from _flights.queries import QUERIES, SCHEMA

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

PROVIDER = "spark.sql.streaming.stateStore.providerClass"

NAME = "duties"


class MovingQuery:
    """The query ``duties``, session windows over flights, in a session that can use either store.

    Parameters
    ----------
    work
        An empty directory for input, checkpoints and results.
    """

    def __init__(self, work: Path) -> None:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        self._work = work
        (work / "tmp").mkdir()
        self.flights, self.files = write_weeks(work / "all")
        (work / "flights").mkdir()

    def session(self) -> SparkSession:
        """Return the context manager of a session with this store's jar."""
        return session(self._work)

    def arrive(self, until: int) -> None:
        """Make the files up to a number visible to the query."""
        for path in sorted((self._work / "all").iterdir())[:until]:
            path.rename(self._work / "flights" / path.name)

    def run(self, spark: SparkSession, checkpoint: Path, provider: str) -> str:
        """Run the query on the flights that have arrived, and return a description of what it did."""
        # The setting of the session counts for the first batch of a checkpoint only.
        spark.conf.set(PROVIDER, provider)
        build, _ = QUERIES[NAME]
        flights = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 9)
        query = (
            build(flights.parquet(str(self._work / "flights")))
            .writeStream.format("parquet")
            .outputMode("append")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(self._work / "results" / NAME))
        )
        query.awaitTermination()
        batches = [progress["batchId"] for progress in query.recentProgress]
        return f"batches {batches[0]} to {batches[-1]} with {provider.rpartition('.')[2]}"

    def require_batch_answer(self, spark: SparkSession) -> str:
        """Compare the stream's result with the batch answer on the same files.

        Raises
        ------
        SystemExit
            If they differ.
        """
        comparison = compare(spark, self._work, NAME)
        if comparison["only_stream"] or comparison["only_batch"] or not comparison["stream"]:
            raise SystemExit(f"the stream's result is not the batch answer: {comparison}")
        return f"{comparison['stream']:,} duties of aircraft: the result equals the batch answer"
