"""The Spark session of a benchmark group, and progress messages."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from tests.support.paths import ROOT, TEST_JAR
from tests.support.sessions import local_builder

SparkFiles = Literal["hadoop", "backend"]


@contextmanager
def running(
    scratch: Path, memory: str = "6g", *, spark_files: SparkFiles = "hadoop", **confs: str
) -> Iterator[Any]:
    """Open a session with the provider and the benchmark's jar for the block; the JVM outlives it.

    Parameters
    ----------
    scratch
        Directory for temporary files.
    memory
        The JVM's largest heap.
    spark_files
        What writes Spark's own files of a checkpoint; by default Spark as it comes, for the stores to
        differ in their state alone.
    **confs
        Further settings below ``spark.``, with ``__`` for a dot.
    """
    build = [sys.executable, str(ROOT / "jvm-shim" / "build_shim.py"), "--tests"]
    subprocess.run(build, check=True, stdout=sys.stderr)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import spark_statestore

    builder = (
        local_builder("benchmarks", memory=memory)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.jars", str(TEST_JAR))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
    )
    for key, value in confs.items():
        builder.config("spark." + key.replace("__", "."), value)
    spark = spark_statestore.configure(builder, spark_files=spark_files).getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        # It starts the coordinator on the driver, to which every commit reports.
        _ = spark.streams.active
        yield spark
    finally:
        spark.stop()


def separately(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Call a function in a separate process, which ends after the call, with its JVM."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, function, *arguments)


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a child process, and return its error as text."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - errors of the JVM do not pass from one process to another
        raise RuntimeError("".join(traceback.format_exception(error))) from None


def log(text: str) -> None:
    """Print the benchmark's progress on standard error."""
    print(text, file=sys.stderr, flush=True)
