"""The Spark session that a group of the benchmark runs in, and how it tells how far it is."""

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
from typing import Any

from tests.sessions import local_builder

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def running(scratch: Path, memory: str = "6g", **confs: str) -> Iterator[Any]:
    """A session with the provider and the benchmark's jar, for as long as the block; the JVM outlives it.

    Parameters
    ----------
    scratch
        Where it keeps what is temporary.
    memory
        The JVM's largest heap.
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
        .config("spark.jars", str(ROOT / "jvm-shim" / "target" / "spark-statestore-tests.jar"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
    )
    for key, value in confs.items():
        builder.config("spark." + key.replace("__", "."), value)
    spark = spark_statestore.configure(builder).getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        # With it comes the coordinator on the driver, which every commit of every store reports to.
        _ = spark.streams.active
        yield spark
    finally:
        spark.stop()


def separately(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """What a function gives in a process of its own, which ends with the call, as does a JVM that it started."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, function, *arguments)


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process that is another's child: what goes wrong is told in words."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - errors of the JVM do not pass from one process to another
        raise RuntimeError("".join(traceback.format_exception(error))) from None


def say(text: str) -> None:
    """Tell on the standard error how far the benchmark is."""
    print(text, file=sys.stderr, flush=True)
