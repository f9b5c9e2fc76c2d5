"""A query over numbers whose exact result is known, and the processes and files it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil

from spark_statestore.options import OPTION_PREFIX
from tests.support.paths import ROOT

GROUPS = 197
ROWS = 100
"""Rows of each batch: about half of the groups, so that a batch changes a part of the state."""


def start_counting(
    session: Any, checkpoint: Path | str, *, name: str = "counts", confs: dict[str, Any] | None = None
) -> Any:
    """Start a query that counts 0, 1, 2, ... by remainder, a fixed number of them in each batch."""
    from pyspark.sql import functions as f

    for key, value in (confs or {}).items():
        session.conf.set(key, str(value))
    numbers = session.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    counts = numbers.groupBy((f.col("value") % GROUPS).alias("k")).agg(
        f.count("*").alias("n"), f.sum("value").alias("s"), f.max("value").alias("m")
    )
    return (
        counts.writeStream.outputMode("complete")
        .format("memory")
        .queryName(name)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def expected(batches: int) -> list[list[int]]:
    """Return the result of the query after a number of batches."""
    groups: dict[int, list[int]] = {}
    for number in range(batches * ROWS):
        groups.setdefault(number % GROUPS, []).append(number)
    return [[k, len(numbers), sum(numbers), max(numbers)] for k, numbers in sorted(groups.items())]


def wait_for_batch(query: Any, batch: int, seconds: float = 120) -> None:
    """Wait until a batch is done; raise the query's error if it ends before."""

    def has_batch() -> bool:
        if not query.isActive and query.exception() is not None:
            raise query.exception()
        return query.lastProgress is not None and query.lastProgress.batchId >= batch

    assert wait_until(has_batch, seconds), f"batch {batch} was not reached: {query.lastProgress}"


def finish(session: Any, query: Any, batch: int) -> list[list[int]]:
    """Stop the query after a batch, check its result, and return it."""
    wait_for_batch(query, batch)
    query.stop()
    assert query.exception() is None
    rows = [list(row) for row in session.table(query.name).orderBy("k").collect()]
    batches = sum(row[1] for row in rows) // ROWS
    assert batches > batch
    assert rows == expected(batches)
    return rows


def run_to(session: Any, checkpoint: Path | str, batch: int, **confs: Any) -> Any:
    """Run the query until a batch is done and check its result."""
    query = start_counting(session, checkpoint, confs={OPTION_PREFIX + k: v for k, v in confs.items()})
    try:
        finish(session, query, batch)
    finally:
        query.stop()
    return query


def messages(error: Any) -> str:
    """Return all messages of a JVM error and its causes."""
    lines = []
    while error is not None:
        lines.append(str(error.getMessage()))
        error = error.getCause()
    return "\n".join(lines)


def failure_of(query: Any) -> str | None:
    """Return all messages of the error that ended a query; None if none did."""
    failure = query._jsq.exception()
    return messages(failure.get()) if failure.isDefined() else None


def metric(query: Any, name: str) -> int:
    """Sum a custom metric over the batches in Spark's recent progress."""
    return sum(
        operator.customMetrics.get(name, 0)
        for progress in query.recentProgress
        for operator in progress.stateOperators
    )


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether a condition becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def jvm_of(session: Any) -> int:
    """Return the process id of the session's driver."""
    return int(session._jvm.java.lang.ProcessHandle.current().pid())


def backends_of(jvm: int) -> list[psutil.Process]:
    """Return the running backend processes started by a JVM, or by an executor that it launched."""
    return [p for p in psutil.Process(jvm).children(recursive=True) if runs(p, "spark_statestore.backend")]


def backend_of(session: Any) -> psutil.Process:
    """Return the backend that the driver has started for the interpreter of this process."""
    return psutil.Process(backend_pid(session, sys.executable))


def backend_pid(session: Any, python: str) -> int:
    """Return the process id of the driver's backend for an interpreter; not positive if there is none."""
    return int(session._jvm.org.apache.spark.sql.statestore.ProviderHarness.backendPid(python))


def runs(process: psutil.Process, argument: str) -> bool:
    """Return whether a process runs and has this text in its command line."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and argument in process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def socket_of(backend: psutil.Process) -> Path:
    """Return the path of a backend's socket."""
    command = backend.cmdline()
    return Path(command[command.index("--listen") + 1])


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill(*pids: int) -> None:
    """Kill processes, and wait until they have ended."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        assert wait_until(lambda pid=pid: is_gone(pid), 10)  # type: ignore[misc]


def backends_of_executors(session: Any) -> list[psutil.Process]:
    """Return the backends of a cluster's executors, which are not the driver's."""
    driver = jvm_of(session)
    return [backend for backend in backends_of(driver) if backend.ppid() != driver]


def executors_of(session: Any) -> list[int]:
    """Return the process ids of a cluster's executors."""
    children = psutil.Process(jvm_of(session)).children(recursive=True)
    return [
        process.pid
        for process in children
        if runs(process, "org.apache.spark.executor.CoarseGrainedExecutorBackend")
    ]


def workers_once_known(session: Any, tasks: int) -> list[tuple[str, bool]]:
    """Return each kind of Python worker: its daemon, and whether it uses Unix domain sockets.

    Wait for this package's daemon, which the JVM uses once it has tried it.
    """

    def kind(_: int) -> tuple[str, bool]:
        return sys.modules["__main__"].__spec__.name, "PYTHON_UNIX_DOMAIN_ENABLED" in os.environ

    def kinds() -> list[tuple[str, bool]]:
        return sorted(set(session.sparkContext.parallelize(range(tasks), tasks).map(kind).collect()))

    wait_until(lambda: [name for name, _ in kinds()] == ["spark_statestore.worker_daemon"], 60)
    return kinds()


def report_executors(session: Any) -> None:
    """Report the process ids of the backends and executors of a cluster of two, as `running`."""
    wait_until(lambda: len(backends_of_executors(session)) == 2, 20)
    report("running", [(backend.pid, backend.ppid()) for backend in backends_of_executors(session)])


def report(event: str, value: Any = None) -> None:
    """Report an event to the test that runs this program, see `Program.next`."""
    print(json.dumps({"event": event, "value": value}), flush=True)


def cluster_environment(directory: Path) -> dict[str, str]:
    """Return the environment of a ``local-cluster`` program, with the workers' files in a directory."""
    import pyspark

    return {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_WORKER_DIR": str(directory / "work"),
    }


class Program:
    """A program of tests/spark/programs in a separate process, which reports in lines of JSON."""

    def __init__(self, name: str, environment: dict[str, str] | None = None, **arguments: Any) -> None:
        # A file, since a full pipe without a reader would block the program.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the program
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"tests.spark.programs.{name}", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=os.environ | (environment or {}),
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        # Its process group holds the JVM, which holds the backends by their standard input.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        output, _ = self.process.communicate()
        if error is not None:
            error.add_note(f"The program's output: {output[-8000:]}\nIts errors: {self._printed()}")
        self._errors.close()

    def next(self, event: str) -> Any:
        """Return the value of the program's next event, which must be this one."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                node = json.loads(line)
                assert node["event"] == event, node
                return node["value"]
        self.process.wait()
        raise AssertionError(f"the program ended before {event!r}")

    def resume(self) -> None:
        """Let a program that waits for its standard input continue."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Wait for the program's regular end."""
        self.resume()
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0

    def _printed(self) -> str:
        self._errors.seek(0)
        printed = self._errors.read()
        # The JVM goes on printing after the program's own error.
        start = printed.rfind("Traceback (most recent call last)")
        return printed[start:][:8000] if start >= 0 else printed[-4000:]
