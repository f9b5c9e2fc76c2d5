"""Runs of the program on YARN, its input, and its output, which is known for each batch."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from spark_statestore.files import open_file_system
from tests.spark.counting import is_gone, wait_until
from tests.support.services.service import PYSPARK_JARS
from tests.support.services.yarn import Yarn
from tests.support.spark_versions import is_since
from tests.system.yarn.program import PAUSE, QUERIES

PROGRAM = Path(__file__).with_name("program.py")

EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
BACKEND = "spark_statestore.backend"

_BATCHES = 6
_KEYS = 12
_ROWS = 40
_SECONDS = 480

_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_CONFS = {
    # Instead of sending them to each application.
    "spark.yarn.jars": f"local:{PYSPARK_JARS}/*",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # Containers of 1 GiB: the backend and Python workers have room beside the JVM.
    "spark.driver.memory": "512m",
    "spark.driver.memoryOverhead": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "512m",
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": _JVM,
    "spark.driver.extraJavaOptions": _JVM,
    "spark.yarn.am.extraJavaOptions": _JVM,
    # The addresses of all processes.
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    # Blocks of a lost executor are not requested again and again.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
}
if not is_since("4.3"):
    # As docs/options.md has it for `commit=batch` on a cluster.
    _CONFS["spark.sql.streaming.stateStore.checkpointFormatVersion"] = "2"

Row = list[Any]


class Run:
    """A run of the program with its files in a directory."""

    def __init__(self, yarn: Yarn, directory: Path) -> None:
        self.yarn = yarn
        self.confs = _CONFS | {"spark.yarn.stagingDir": f"file://{directory}/staging"}
        self._directory = directory
        self._log = directory / "program.log"
        self._expected = _write_input(directory / "input")

    @contextlib.contextmanager
    def started(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> Iterator[None]:
        """Start a command that runs the program, and wait until each query pauses."""
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env={
                    **environment,
                    "HADOOP_CONF_DIR": str(self.yarn.configuration),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
                start_new_session=True,
            )
        try:
            pauses = [self._path(name, PAUSE) for name in QUERIES]

            def is_paused() -> bool:
                return process.poll() is not None or all(path.exists() for path in pauses)

            assert wait_until(is_paused, _SECONDS), f"the queries do not pause:\n{self._logs()}"
            assert process.poll() is None, f"the program has ended early:\n{self._logs()}"
            yield
            (self._directory / "resume").touch()
            try:
                code = process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"the program does not end:\n{self._logs()}") from None
            assert code == 0, self._logs()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()

    def backends(self) -> list[psutil.Process]:
        executors = {process.pid for process in self.yarn.processes(EXECUTOR)}
        return [process for process in self.yarn.processes(BACKEND) if process.ppid() in executors]

    def kill_an_executor(self) -> str:
        """Kill the container that has computed most rows of the last batches, and return its name."""
        counts = Counter(row[-1] for name in QUERIES for row in self._rows(name, PAUSE))
        ((victim, _),) = counts.most_common(1)
        (executor,) = (process for process in self.yarn.processes(EXECUTOR) if _place(process) == victim)
        executor.kill()
        assert wait_until(lambda: is_gone(executor.pid), 20)
        return victim

    def check_output(self, victim: str) -> None:
        """Check every batch of each query, and that the container has computed none after its end."""
        for name in QUERIES:
            batches = [self._rows(name, number) for number in range(_BATCHES)]
            assert [[row[:-1] for row in rows] for rows in batches] == self._expected, name
            later = {row[-1] for rows in batches[PAUSE + 1 :] for row in rows}
            assert victim not in later, f"{victim} has computed rows of {name} after its end"
            assert not self._path(name, _BATCHES).exists(), name

    def _rows(self, name: str, number: int) -> list[Row]:
        rows: list[Row] = json.loads(self._path(name, number).read_text())
        return rows

    def _path(self, name: str, number: int) -> Path:
        return self._directory / "out" / name / f"{number}.json"

    def _logs(self) -> str:
        return f"{self._log.read_text(errors='replace')[-6000:]}\n{self.yarn.logs()}"


def _place(process: psutil.Process) -> str:
    return Path(process.cwd()).name


def _write_input(directory: Path) -> list[list[Row]]:
    """Write a file for each batch, and return the totals of its keys after it."""
    directory.mkdir()
    chance = random.Random(directory.name)
    counts: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    expected = []
    for number in range(_BATCHES):
        rows = [{"k": f"key {chance.randrange(_KEYS)}", "v": chance.randrange(1000)} for _ in range(_ROWS)]
        path = directory / f"{number}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        # A file source reads in the order of modification times.
        os.utime(path, (1_700_000_000 + number,) * 2)
        for row in rows:
            counts[row["k"]] += 1
            sums[row["k"]] += row["v"]
        expected.append([[key, counts[key], sums[key]] for key in sorted({row["k"] for row in rows})])
    return expected


def merged_files(checkpoint: str) -> list[str]:
    """Return the files of a checkpoint that have the commits of several stores."""
    files, directory = open_file_system(f"{checkpoint}/state/_merged")
    try:
        return [status.path for status in files.list_files(directory)]
    except FileNotFoundError:
        return []
