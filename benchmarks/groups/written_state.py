"""State that is written and rescaled without Spark, beside a conversion of the same state from RocksDB."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

import spark_statestore
from benchmarks import report
from benchmarks.report import Criterion, Result
from benchmarks.sessions import SessionSettings, log, session_processes
from benchmarks.stores import PROVIDERS, ROCKSDB

FULL, QUICK = 10_000_000, 20_000
PARTITIONS = 8
MORE = 32
LEAST, LEAST_OF_BOOTSTRAP = 1.0, 0.5
GIGABYTES = 1.0

ABOUT = """A count of each number below {rows:,} in {partitions} partitions, on local files. A query on
RocksDB writes it in one batch, and `convert` takes it here, with its comparison of all rows. Then its rows
are written to a copy without rows, in a process without Spark, from a reader of record batches. `bootstrap`
writes them to a new checkpoint. Another process gives the written copy {more} partitions in its place. Once,
from files that the operating system has in memory. *Memory* is the largest resident size of the process."""


def run(scratch: Path, quick: bool) -> Result:
    """Convert and write the same state."""
    rows = QUICK if quick else FULL
    source, converted, empty, target = (
        str(scratch / name) for name in ("rocksdb", "ours", "empty", "target")
    )
    with session_processes(scratch, {"session": SessionSettings(memory="4g")}) as processes:
        seconds = processes["session"].run(_convert, str(scratch / "input"), source, converted, rows)
    log(f"convert: {rows / seconds:,.0f} rows/s")
    spark_statestore.write_state(converted, empty, _schema(converted).empty_table(), mode="replace")
    write_seconds, gigabytes = _in_a_process(_write, converted, empty, target)
    log(f"write_state: {rows / write_seconds:,.0f} rows/s, {gigabytes:.2f} GB")
    started, bootstrap_gigabytes = _in_a_process(_bootstrap, converted, str(scratch / "started"))
    log(f"bootstrap: {rows / started:,.0f} rows/s, {bootstrap_gigabytes:.2f} GB")
    rescaled, more_gigabytes = _in_a_process(_rescale, target)
    log(f"rescale: {rows / rescaled:,.0f} rows/s, {more_gigabytes:.2f} GB")
    rates = [rows / seconds, rows / write_seconds, rows / started, rows / rescaled]
    criteria = [
        Criterion("rows written per second", rates[1], LEAST, "/s", rates[0], "convert", at_least=True),
        Criterion("memory of the write", gigabytes, GIGABYTES, "GB"),
        Criterion(
            "rows of bootstrap per second",
            rates[2],
            LEAST_OF_BOOTSTRAP,
            "/s",
            rates[0],
            "convert",
            at_least=True,
        ),
        Criterion("rows rescaled per second", rates[3], LEAST, "/s", rates[0], "convert", at_least=True),
    ]
    header = ["", "seconds", "rows per second", "memory, GB"]
    lines = [
        ["convert", *report.figures(seconds, rates[0]), ""],
        ["write_state", *report.figures(write_seconds, rates[1], gigabytes)],
        ["bootstrap", *report.figures(started, rates[2], bootstrap_gigabytes)],
        [f"rescale in place, {PARTITIONS} to {MORE}", *report.figures(rescaled, rates[3], more_gigabytes)],
    ]
    table = report.table(f"{rows:,} rows", header, lines)
    return Result(f"{ABOUT.format(rows=rows, partitions=PARTITIONS, more=MORE)}\n\n{table}", criteria)


def _convert(spark: Any, files: str, source: str, target: str, rows: int) -> float:
    spark.range(rows, numPartitions=PARTITIONS).write.parquet(files)
    spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[ROCKSDB][0])
    counts = spark.readStream.schema("id bigint").parquet(files).groupBy("id").count()
    writer = counts.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    writer.option("checkpointLocation", source).start().awaitTermination()
    begin = time.monotonic()
    spark_statestore.convert(spark, source, target, stopped=True)
    return time.monotonic() - begin


def _schema(checkpoint: str) -> pa.Schema:
    return next(iter(spark_statestore.iter_state(checkpoint, partition=0))).schema


def _in_a_process(measure: Callable[..., float], *arguments: str) -> tuple[float, float]:
    """Return the seconds that a function measures in a new process, and its gigabytes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_with_memory, measure, *arguments).result()


def _with_memory(measure: Callable[..., float], *arguments: str) -> tuple[float, float]:
    seconds = measure(*arguments)
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _rows(source: str) -> pa.RecordBatchReader:
    batches: Iterator[pa.RecordBatch] = spark_statestore.iter_state(source)
    return pa.RecordBatchReader.from_batches(_schema(source), batches)


def _write(source: str, empty: str, target: str) -> float:
    reader = _rows(source)
    begin = time.monotonic()
    spark_statestore.write_state(empty, target, reader)
    return time.monotonic() - begin


def _bootstrap(source: str, target: str) -> float:
    reader = _rows(source)
    begin = time.monotonic()
    spark_statestore.bootstrap(source, target, {0: reader})
    return time.monotonic() - begin


def _rescale(checkpoint: str) -> float:
    begin = time.monotonic()
    spark_statestore.rescale(checkpoint, None, MORE, in_place=True, checkpoint_format=2, stopped=True)
    return time.monotonic() - begin
