"""Queries with `foreachBatch`: it may read its batch repeatedly, and its tasks alone report their commits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from spark_statestore import verify
from tests.spark import events
from tests.spark.counting import ROOT
from tests.spark.queries import OURS, STATE_STORE, Query, configured
from tests.spark.test_checkpoint_formats import counts, counts_after

pytestmark = pytest.mark.slow

MASTERS = ["local[4]", "local[8,8]", "local-cluster[2,2,1024]"]


def run_program(*arguments: str, timeout: float) -> None:
    """Run `tests.spark.programs.foreach_batch`, whose exit code tells whether all was right."""
    command = [sys.executable, "-m", "tests.spark.programs.foreach_batch", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout)
    print(result.stdout)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr[-2000:]}"


def test_foreach_batch_that_reads_its_batch_repeatedly_is_exact(built: object) -> None:
    # A batch for each way of reading it, on the operator with most stores.
    run_program(
        "--batches", "9", "--formats", "1", "--operators", "join", "--master", MASTERS[0], timeout=500
    )


@pytest.mark.soak
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("master", MASTERS)
def test_foreach_batch_is_exact_over_a_thousand_batches(built: object, master: str) -> None:
    run_program("--master", master, "--batches", "1000", timeout=14_000)


UNWANTED = "spark.statestore.commitReportsUnwanted"

Start = Callable[[Any], Any]


def with_its_tasks_property(counts: Any) -> Any:
    """Add a column with the local property of the tasks that commit the state."""
    from pyspark import TaskContext

    def task_property() -> str:
        task = TaskContext.get()
        assert task is not None
        return task.getLocalProperty(UNWANTED) or "nothing"

    return counts.select("k", F.udf(lambda _: task_property(), "string")("k").alias("property"))


def run_query(spark: Any, directory: Path, start: Start) -> None:
    """Count the events of two batches by key, with a sink that the caller starts."""
    watched = directory / "input"
    watched.mkdir()
    for number, rows in enumerate(events.batches(2)):
        pq.write_table(pa.Table.from_pylist(rows, events.SCHEMA), watched / f"{number}.parquet")
    confs = {STATE_STORE + "providerClass": OURS, "spark.sql.shuffle.partitions": "2"}
    with configured(spark, confs):
        schema = spark.read.parquet(str(watched)).schema
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(watched))
        counts = with_its_tasks_property(stream.groupBy("k").count())
        writer = counts.writeStream.outputMode("update").option(
            "checkpointLocation", str(directory / "checkpoint")
        )
        query = start(writer.trigger(availableNow=True))
    try:
        assert query.awaitTermination(120), "the query does not end"
        batches = [progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]]
    finally:
        query.stop()
    assert batches == [0, 1]


def test_tasks_of_a_foreach_batch_sink_report_their_commits(spark: Any, tmp_path: Path) -> None:
    properties: set[str] = set()
    nested: set[str] = set()

    def collect(batch: Any, number: int) -> None:
        properties.update(row.property for row in batch.collect())
        # A query that another one starts gets its own answer, by its own sink.
        directory = tmp_path / f"nested-{number}"
        directory.mkdir()
        run_query(
            batch.sparkSession,
            directory,
            lambda writer: writer.format("memory").queryName(f"nested_{number}").start(),
        )
        nested.update(row.property for row in batch.sparkSession.table(f"nested_{number}").collect())
        properties.update(row.property for row in batch.collect())

    run_query(spark, tmp_path, lambda writer: writer.foreachBatch(collect).start())
    assert properties == {"nothing"}
    assert nested == {"true"}


def unrelated_session(spark: Any) -> Any:
    """Return a session of the application that does not know the queries of its other sessions."""
    context = spark.sparkContext
    return type(spark)(context, spark._jvm.SparkSession(context._jsc.sc(), spark._jvm.java.util.HashMap()))


@pytest.mark.spark
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_batch_that_waits_for_its_commits_is_not_ended_by_another_query(
    spark: Any, tmp_path: Path, checkpoint_format: int
) -> None:
    second = Query(unrelated_session(spark), tmp_path / "second", counts, "update", events.SCHEMA)
    batches = events.batches(2)
    second.feed(batches[1])

    def collect(batch: Any) -> list[Any]:
        rows: list[Any] = batch.collect()
        # The tasks have handed their commits over, which the driver publishes when the function has returned.
        second.run()
        return rows

    query = Query(
        *(spark, tmp_path / "first", counts, "update", events.SCHEMA),
        checkpoint_format=checkpoint_format,
        confs={STATE_STORE + "backend.commit": "batch"},
        collect=collect,
    )
    query.feed(*batches)
    assert query.run() == counts_after(*batches)
    assert verify(str(query.checkpoint)).ok
