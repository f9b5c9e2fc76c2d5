"""Jobs of user code in a batch: they read state and set job groups, and the query goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import wait_for_batch

pytestmark = pytest.mark.slow

KEYS = 20
BATCHES = 4


class Counting:
    """A query that counts by key, whose batches are given to a function."""

    def __init__(self, spark: Any, checkpoint: Path, checkpoint_format: int) -> None:
        self.session = spark.newSession()
        self.session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", checkpoint_format)
        self.session.conf.set(OPTION_PREFIX + "commit", "batch")
        self.session.conf.set("spark.sql.shuffle.partitions", 3)
        self.checkpoint = checkpoint
        self.rows: dict[int, int] = {}

    def start(self, in_batch: Any, batches: int = BATCHES) -> Any:
        numbers = self.session.readStream.format("rate-micro-batch").option("rowsPerBatch", KEYS).load()
        counts = numbers.groupBy((f.col("value") % KEYS).alias("k")).count()

        def handle(batch: Any, number: int) -> None:
            self.rows = {row["k"]: row["count"] for row in batch.collect()}
            in_batch(batch, number)

        query = (
            counts.writeStream.outputMode("complete")
            .foreachBatch(handle)
            .option("checkpointLocation", str(self.checkpoint))
            .start()
        )
        try:
            wait_for_batch(query, batches - 1)
        finally:
            query.stop()
        return query

    def read_state(self) -> dict[int, int]:
        frame = self.session.read.format("statestore").load(str(self.checkpoint))
        return {row["key"][0]: row["value"][0] for row in frame.collect()}


def test_batch_reads_the_state_of_its_query(spark: Any, tmp_path: Path) -> None:
    counting = Counting(spark, tmp_path / "checkpoint", 2)
    states: dict[int, dict[int, int]] = {}

    def in_batch(batch: Any, number: int) -> None:
        if number > 0:
            states[number] = counting.read_state()

    counting.start(in_batch)
    assert len(states) >= BATCHES - 1
    assert all(state == dict.fromkeys(range(KEYS), number) for number, state in states.items())
    assert set(counting.rows.values()) == {max(states) + 1}


def test_batch_sets_a_job_group(spark: Any, tmp_path: Path) -> None:
    """The commits of a run are found by its announcement, and those of a run that failed are forgotten."""
    counting = Counting(spark, tmp_path / "checkpoint", 1)
    context = counting.session.sparkContext

    def in_batch(batch: Any, number: int) -> None:
        context.setJobGroup("of the user", "jobs of the user")
        if number == 2:
            raise ValueError("a batch whose tasks have committed")

    with pytest.raises(Exception, match="a batch whose tasks have committed"):
        counting.start(in_batch)
    query = counting.start(lambda *_: context.setJobGroup("of the user", "jobs of the user"), 6)
    assert query.exception() is None
    assert set(counting.rows.values()) == {query.lastProgress.batchId + 1}


def test_batch_reads_the_log_of_another_query(spark: Any, tmp_path: Path) -> None:
    """A query that lists another one's log of offsets is not taken for a run of that query."""
    other_query = Counting(spark, tmp_path / "other", 1)
    counts: list[int] = []

    def in_other(batch: Any, number: int) -> None:
        if number == 1:
            query = Counting(spark, tmp_path / "reader", 1)
            query.start(lambda *_: counts.append(len(other_query.read_state())), 2)

    query = other_query.start(in_other)
    assert query.exception() is None
    assert counts[:2] == [KEYS, KEYS]
