"""The processes of a cluster: Spark's master and workers from the installed PySpark, and the driver."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import psutil
import pyspark

from tests.spark.counting import ROOT, is_gone, runs, wait_until
from tests.support.services.service import free_port, listens
from tests.system.cluster.hosts import Host

HOME = Path(pyspark.__file__).parent

SCALA = next((HOME / "jars").glob("spark-core_*")).name.removeprefix("spark-core_").partition("-")[0]

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
BACKEND = "spark_statestore.backend"

_DAEMON = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
# Lost executors are always replaced; timeouts are short.
_DEPLOY = ["-Dspark.deploy.maxExecutorRetries=-1", "-Dspark.worker.timeout=10"]


class Cluster:
    """A master and workers, which stop at the end of the block with all processes that they started.

    Its processes cannot import this project: their environment starts empty. The path of `directory` must be
    short, as sockets demand. The master runs on the driver's host.
    """

    def __init__(self, directory: Path, driver: Host, workers: list[Host]) -> None:
        self.directory = directory
        self.temporary = directory / "tmp"
        self.workers: list[subprocess.Popen[bytes]] = []
        self._driver = driver
        self._hosts = workers
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.temporary.mkdir(parents=True)
        (self.directory / "logs").mkdir()
        port = free_port(self._driver.address)
        self.url = f"spark://{self._driver.address}:{port}"
        try:
            self._start("master", self._driver, "master.Master", "--port", str(port))
            assert wait_until(lambda: listens(port, self._driver.address), 60), "the master does not start"
            self.workers = [self._start_worker(number) for number in range(len(self._hosts))]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        # Executors whose worker has ended, and their child processes.
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def processes(self, argument: str = "") -> list[psutil.Process]:
        """Return the running processes of this cluster and its driver, with an argument in their command."""
        result = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                command = process.cmdline()
                in_cluster = process.pid != os.getpid() and any(
                    str(self.directory) in part for part in command
                )
                if (
                    in_cluster
                    and (not argument or argument in command)
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    result.append(process)
        return result

    def executors(self) -> list[psutil.Process]:
        return self.processes(EXECUTOR)

    def backends(self) -> list[psutil.Process]:
        return self.processes(BACKEND)

    def backend_of(self, executor: psutil.Process) -> psutil.Process | None:
        with contextlib.suppress(psutil.Error):
            return next((child for child in executor.children() if runs(child, BACKEND)), None)
        return None

    def kill_worker(self, number: int) -> None:
        self.workers[number].kill()
        self.workers[number].wait()

    def start_worker(self, number: int) -> None:
        self.workers[number] = self._start_worker(number)

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        host = self._hosts[number]
        # More than the executors of one application need, so that the next application's can start too.
        resources = ("--cores", "4", "--memory", "2g")
        work = ("--work-dir", str(self.directory / f"work-{number}"), *resources)
        return self._start(f"worker-{number}", host, "worker.Worker", *work, self.url)

    def _start(self, name: str, host: Host, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = os.environ.get("JAVA_HOME", "")
        java = shutil.which("java", path=os.pathsep.join([f"{home}/bin" if home else "", os.environ["PATH"]]))
        assert java, "there is no Java"
        command = [*host.enter, java, *_DAEMON, *_DEPLOY, f"-Djava.io.tmpdir={self.temporary}"]
        command += ["-cp", str(HOME / "jars" / "*"), f"org.apache.spark.deploy.{main}"]
        command += ["--host", host.address, "--webui-port", "0", *arguments]
        environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "JAVA_HOME": home,
            "SPARK_HOME": str(HOME),
            # As in Spark's own scripts.
            "SPARK_SCALA_VERSION": SCALA,
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            "SPARK_LOCAL_IP": host.address,
        }
        with open(self.directory / "logs" / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={key: value for key, value in environment.items() if value},
                start_new_session=True,
            )
        self._started.append(process)
        return process


class Driver:
    """The program `tests.system.cluster.program` in its own process, which a test can kill and restart.

    `python` is the interpreter of the executors.
    """

    def __init__(self, cluster: Cluster, python: Path, **arguments: Any) -> None:
        self._log = cluster.directory / "logs" / "driver.log"
        self._command = [sys.executable, "-m", "tests.system.cluster.program", json.dumps(arguments)]
        self._environment = os.environ | {
            "PYSPARK_PYTHON": str(python),
            "SPARK_HOME": str(HOME),
            "TMPDIR": str(cluster.temporary),
            "TZ": "UTC",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        self.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=self._environment,
                start_new_session=True,
            )

    def ended(self) -> int | None:
        """Return the exit code, None while it runs."""
        assert self.process is not None
        return self.process.poll()

    def jvm(self) -> psutil.Process | None:
        """Return its JVM, if it runs."""
        assert self.process is not None
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children():
                if "java" in child.name() and child.status() != psutil.STATUS_ZOMBIE:
                    return child
        return None

    def kill(self, victim: str = "all") -> None:
        """Kill the whole driver, or only its JVM or Python process, and wait until both have ended."""
        assert self.process is not None
        jvm = self.jvm()
        with contextlib.suppress(ProcessLookupError):
            if victim == "all":
                os.killpg(self.process.pid, signal.SIGKILL)
            elif victim == "jvm" and jvm is not None:
                jvm.kill()
            else:
                self.process.kill()
        # A supervisor that restarts it ensures that the old process has ended.
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if jvm is not None and not wait_until(lambda: is_gone(jvm.pid), 20):
            with contextlib.suppress(psutil.NoSuchProcess):
                jvm.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def output_tail(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]


@contextlib.contextmanager
def frozen(process: psutil.Process) -> Iterator[None]:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether a condition becomes true in time; polls rarely, as each poll costs processor time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return condition()
