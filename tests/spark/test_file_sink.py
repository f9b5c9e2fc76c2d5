"""Spark's file sink in queries that resume from a copy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_statestore import begin_output, clone

pytestmark = pytest.mark.slow


@pytest.mark.spark
@pytest.mark.oldest
def test_file_sink_goes_on_in_a_new_output(spark: Any, tmp_path: Path) -> None:
    # The log is compacted in batches 2, 5 and 8.
    batch = 2
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", 3)
    source = tmp_path / "input"
    source.mkdir()

    def feed(numbers: range) -> None:
        for number in numbers:
            pq.write_table(pa.table({"k": [number, number % 2]}), source / f"{number:02}.parquet")
            os.utime(source / f"{number:02}.parquet", (1_700_000_000 + number,) * 2)

    def run(checkpoint: str, output: str) -> None:
        stream = session.readStream.schema("k long").option("maxFilesPerTrigger", 1).parquet(str(source))
        query = stream.dropDuplicates(["k"]).writeStream.format("parquet")
        query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(output)
        assert query.awaitTermination(120)

    def rows(output: str) -> list[int]:
        return sorted(row.k for row in session.read.parquet(output).collect())

    checkpoint, copy = str(tmp_path / "checkpoint"), str(tmp_path / "copy")
    before, after = str(tmp_path / "before"), str(tmp_path / "after")
    feed(range(batch + 1))
    run(checkpoint, before)
    begin_output(after, clone(checkpoint, copy), compact_interval=3)
    feed(range(batch + 1, 8))
    run(copy, after)
    assert rows(before) == list(range(batch + 1))
    assert rows(after) == list(range(batch + 1, 8))
