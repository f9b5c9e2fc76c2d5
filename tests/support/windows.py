"""A windowed count from Parquet files to a file or table sink, and its batch answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

FILES: Final = 6
"""Files of the input, and so the batches that read it."""

_ROWS = 50


def write_input(directory: Path) -> None:
    """Write a file for each batch, with a row a minute."""
    (directory / "input").mkdir(parents=True)
    for number in range(FILES):
        ids = range(number * _ROWS, (number + 1) * _ROWS)
        times = pa.array([60_000_000 * i for i in ids], pa.timestamp("us", "UTC"))
        path = directory / "input" / f"{number:02}.parquet"
        pq.write_table(pa.table({"id": list(ids), "time": times}), path)
        # A file source reads in the order of modification times.
        os.utime(path, (1_700_000_000 + number,) * 2)


def counted(rows: DataFrame) -> DataFrame:
    """Return the count and sum of ids by windows, which batches cut."""
    windows = rows.groupBy(f.window("time", "20 minutes").alias("window"))
    counts = windows.agg(f.count("*").alias("n"), f.sum("id").alias("total"))
    return counts.select(f.col("window.start").cast("long").alias("start"), "n", "total")


def _write_directory(batch: DataFrame, number: int, output: str) -> None:
    path = Path(output, f"batch={number}")
    if not (path / "_SUCCESS").exists():
        batch.write.parquet(str(path))


def _write_transaction(batch: DataFrame, number: int, output: str) -> None:
    writer = batch.write.format("delta").mode("append")
    writer.option("txnAppId", "windows").option("txnVersion", number).save(output)


_FUNCTIONS: Final = {"directories": _write_directory, "transactions": _write_transaction}


def run_windows(
    spark: Any, directory: Path, sink: str, target: str | None = None, *, checkpoint: str = "checkpoint"
) -> None:
    """Run the query to the end of its input, in append mode, to ``output`` below the directory.

    Two sinks are ``foreachBatch`` functions. ``directories`` writes a directory for each batch, and returns
    from one that is there. ``transactions`` leaves it to Delta to skip a batch.
    """
    schema = "id long, time timestamp"
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    rows = source.parquet(str(directory / "input")).withWatermark("time", "0 seconds")
    output = target or str(directory / "output")
    writer = counted(rows).writeStream.option("checkpointLocation", str(directory / checkpoint))
    if sink in _FUNCTIONS:
        write = _FUNCTIONS[sink]
        writer = writer.foreachBatch(lambda batch, number: write(batch, number, output))
    else:
        writer = writer.format(sink).option("path", output)
    writer.trigger(availableNow=True).start().awaitTermination()


def answer(spark: Any, directory: Path) -> list[tuple[int, int, int]]:
    """Return the batch answer without the last window, which no watermark has passed."""
    rows = counted(spark.read.parquet(str(directory / "input"))).orderBy("start").collect()
    return [tuple(row) for row in rows][:-1]
