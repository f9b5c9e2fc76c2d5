"""Spark sessions in processes of their own: stores share no garbage collector and no compiled code."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from tests.support.paths import ROOT, TEST_JAR
from tests.support.sessions import local_builder


@dataclass(frozen=True)
class SessionSettings:
    """Settings of a process with a Spark session."""

    memory: str = "6g"
    """Largest heap of the JVM."""
    spark_files: Literal["hadoop", "backend"] = "hadoop"
    """Writer of Spark's own files of a checkpoint; by default Spark as it comes."""
    confs: Mapping[str, str] = field(default_factory=dict)
    """Settings with which the session starts."""
    runtime_confs: Mapping[str, str] = field(default_factory=dict)
    """Settings of the running session, which may name classes of its jars."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the process, its JVM and the backend."""


class Remote:
    """Stub of an object in a session's process; its methods are those of the object."""

    def __init__(self, process: SessionProcess, number: int) -> None:
        self._process = process
        self._number = number

    def __getattr__(self, method: str) -> Any:
        return partial(self._process.run, _invoke, self._number, method)


class SessionProcess:
    """A process with a Spark session, whose temporary files are in a directory."""

    def __init__(self, scratch: Path, settings: SessionSettings) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self.started: Future[None] = self._pool.submit(_with_trace, _start, scratch, settings)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the process; its first argument is the session, which the process adds."""
        return self._pool.submit(_with_trace, _call, function, arguments).result()

    def create(self, factory: Callable[..., Any], *arguments: Any) -> Remote:
        """Keep what a function returns, called as by `run`, in the process, and return a stub of it."""
        return Remote(self, self.run(_create, factory, arguments))

    def close(self) -> None:
        """End the process, and its JVM."""
        self._pool.shutdown()


@contextmanager
def session_processes(
    scratch: Path, settings: Mapping[str, SessionSettings]
) -> Iterator[dict[str, SessionProcess]]:
    """Run a process with a session for each name for the duration of the block."""
    build = [sys.executable, str(ROOT / "jvm-shim" / "build_shim.py"), "--tests"]
    subprocess.run(build, check=True, stdout=sys.stderr)
    with ExitStack() as stack:
        processes = {}
        for number, (name, own) in enumerate(settings.items()):
            processes[name] = SessionProcess(scratch / f"session-{number}", own)
            stack.callback(processes[name].close)
        for process in processes.values():
            process.started.result()
        yield processes


def log(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


# The following functions run in the process of a session.
_spark: Any = None
_objects: list[Any] = []


def _start(scratch: Path, settings: SessionSettings) -> None:
    global _spark
    os.environ |= settings.environment
    os.environ["PYSPARK_PYTHON"] = sys.executable
    scratch.mkdir(parents=True)
    import spark_statestore

    builder = (
        local_builder("benchmarks", memory=settings.memory, with_hadoop_defaults=True)
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.jars", str(TEST_JAR))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
    )
    for key, value in settings.confs.items():
        builder.config(key, value)
    _spark = spark_statestore.configure(builder, spark_files=settings.spark_files).getOrCreate()
    atexit.register(_spark.stop)
    _spark.sparkContext.setLogLevel("ERROR")
    # Starts the coordinator on the driver, to which every commit reports.
    _ = _spark.streams.active
    for key, value in settings.runtime_confs.items():
        _spark.conf.set(key, value)


def _with_trace(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, and raise its error as text: a JVM's error cannot be sent to another process."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - raised again
        raise RuntimeError("".join(traceback.format_exception(error))) from None


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(_spark, *arguments)


def _create(spark: Any, factory: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    _objects.append(factory(spark, *arguments))
    return len(_objects) - 1


def _invoke(_: Any, number: int, method: str, *arguments: Any) -> Any:
    return getattr(_objects[number], method)(*arguments)
