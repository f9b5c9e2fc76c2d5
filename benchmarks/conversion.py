"""Rate of `spark_statestore.convert` beside Spark's offline state rewriter and a plain scan of the source.

    python -m benchmarks.conversion                     # 10,000,000 rows in 8 partitions, three rounds
    python -m benchmarks.conversion --rows 1000000 --rounds 5
    python -m benchmarks.conversion --partitions 1 --memory 600m --rounds 1      # memory

Each conversion prints the memory of the JVM and the backend. An aggregation on RocksDB writes the state. In each round
all of them take a turn on it, in changing order; the median of each is compared. The rewriter is that of Spark 4.2 and
later, with a change to one more partition.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import psutil

import spark_statestore
from benchmarks.contest import PREFIX, PROVIDERS, ROCKSDB, UNFORKED_FILES
from tests.spark.counting import backends_of, jvm_of
from tests.support.paths import TEST_JAR
from tests.support.sessions import local_builder


def write(spark: Any, work: Path, rows: int, partitions: int) -> Path:
    """Write the state of a query with as many keys, a string and three numbers for each."""
    checkpoint = work / "checkpoint"
    spark.range(rows).selectExpr(
        "concat('customer ', id) as customer", "id % 97 as amount", "timestamp_seconds(id) as ts"
    ).write.parquet(str(work / "input"))
    spark.conf.set(PREFIX + "providerClass", PROVIDERS[ROCKSDB][0])
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    query = (
        spark.readStream.schema("customer string, amount long, ts timestamp")
        .parquet(str(work / "input"))
        .groupBy("customer")
        .agg({"amount": "sum", "ts": "max", "*": "count"})
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return checkpoint


def contenders(
    spark: Any, checkpoint: Path, work: Path, rows: int, partitions: int
) -> dict[str, Callable[[], float]]:
    """Return what is compared; each returns its seconds."""

    def convert(source: Path, to: Literal["statestore", "rocksdb", "hdfs"]) -> float:
        target = work / f"converted-to-{to}"
        driver = psutil.Process(jvm_of(spark))
        processes = [driver, *backends_of(driver.pid)]
        for process in processes:
            reset_peak(process)
        begun = time.perf_counter()
        done = spark_statestore.convert(spark, str(source), str(target), to, stopped=True)
        seconds = time.perf_counter() - begun
        if done.rows != rows:
            raise SystemExit(f"{done.rows} rows were converted, not {rows}")
        peaks = " + ".join(f"{peak(process) / 2**20:,.0f}" for process in processes)
        print(f"  {done.bytes / 2**20:,.0f} MiB of rows, peak of {peaks} MiB in memory", flush=True)
        return seconds

    def to_statestore() -> float:
        shutil.rmtree(work / "converted-to-statestore", ignore_errors=True)
        return convert(checkpoint, "statestore")

    def to_rocksdb() -> float:
        if not (work / "converted-to-statestore").exists():
            convert(checkpoint, "statestore")
        seconds = convert(work / "converted-to-statestore", "rocksdb")
        shutil.rmtree(work / "converted-to-rocksdb")
        return seconds

    def scan() -> float:
        begun = time.perf_counter()
        spark.read.format("statestore").load(str(checkpoint)).write.format("noop").mode("append").save()
        return time.perf_counter() - begun

    def rewrite() -> float:
        copy = shutil.copytree(checkpoint, work / "rewritten")
        runner = spark._jvm.org.apache.spark.sql.execution.streaming.state.OfflineStateRepartitionRunner
        begun = time.perf_counter()
        runner(spark._jsparkSession, str(copy), partitions + 1, False).run()
        seconds = time.perf_counter() - begun
        shutil.rmtree(copy)
        return seconds

    return {
        "convert to statestore": to_statestore,
        "convert to rocksdb": to_rocksdb,
        "scan by Spark's data source": scan,
        "Spark's offline rewriter": rewrite,
    }


def reset_peak(process: psutil.Process) -> None:
    """Let the peak of a process's memory begin at its present use."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def peak(process: psutil.Process) -> int:
    """Return the largest resident memory of a process since `reset_peak`, in bytes, with its memory-mapped files."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--memory", default="4g", help="heap of the JVM (4g)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="conversion-") as directory:
        work = Path(directory)
        builder = local_builder("conversion", memory=arguments.memory).config("spark.jars", str(TEST_JAR))
        builder.config("spark.local.dir", directory)
        spark = spark_statestore.configure(builder).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        for name, value in UNFORKED_FILES.items():
            spark.sparkContext._jsc.hadoopConfiguration().set(name, value)
        checkpoint = write(spark, work, arguments.rows, arguments.partitions)
        seconds: dict[str, list[float]] = {}
        turns = contenders(spark, checkpoint, work, arguments.rows, arguments.partitions)
        order = list(turns)
        for _ in range(arguments.rounds):
            random.shuffle(order)
            for name in order:
                seconds.setdefault(name, []).append(turns[name]())
                print(f"  {name}: {seconds[name][-1]:.1f} s", flush=True)
        medians = {name: statistics.median(found) for name, found in seconds.items()}
        baseline = medians["Spark's offline rewriter"]
        print(f"{arguments.rows:,} rows in {arguments.partitions} partitions, median of {arguments.rounds}:")
        for name in turns:
            rate = arguments.rows / medians[name]
            print(
                f"{name:30} {medians[name]:7.1f} s {rate:12,.0f} rows/s {baseline / medians[name]:6.2f} x rewriter"
            )
        spark.stop()


if __name__ == "__main__":
    main()
