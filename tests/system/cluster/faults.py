"""Faults injected into a cluster while its queries run."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil

from tests.system.cluster.disks import SmallDisk
from tests.system.cluster.hosts import Host, Namespaces
from tests.system.cluster.processes import Cluster, Driver, frozen, until

KILLS = {
    "kill a backend": 1,
    "kill an executor": 1,
    "kill a worker": 1,
    "kill the driver": 1,
    "kill a backend and the other executor": 2,
    "kill an executor whose backend resumes later": 1,
}
"""Faults with the number of processes that each kills."""

FREEZES = ("freeze a backend", "freeze an executor", "freeze a worker", "freeze the driver")

FULL_DISK = "fill the disk of the checkpoints"
FULL_LOCAL_DISK = "fill the disk of Spark's local files"
CUT = "cut a worker off"

GIVEN_UP_AFTER = 10
"""Timeout in seconds of a process that does not respond; see `tests.system.cluster.run.CONFS`."""


class Faults:
    """Injector of a named fault, at a random moment, into a randomly chosen process.

    `wait_for_progress` waits until some query has finished some batches, `verify` until the cluster is idle,
    and checks the checkpoints. With `outlast_timeouts` freezes and disconnections may outlast Spark's
    timeouts, so that processes resume after they were timed out.
    """

    def __init__(
        self,
        cluster: Cluster,
        driver: Driver,
        chance: random.Random,
        wait_for_progress: Callable[[int], None],
        verify: Callable[[], None],
        network: Namespaces | None,
        hosts: list[Host],
        disks: dict[str, SmallDisk],
        *,
        outlast_timeouts: bool,
    ) -> None:
        self.killed: Counter[str] = Counter()
        self.disturbed: Counter[str] = Counter()
        self._cluster = cluster
        self._driver = driver
        self._chance = chance
        self._wait_for_progress = wait_for_progress
        self._verify = verify
        self._network = network
        self._hosts = hosts
        self._disks = disks
        self._outlast_timeouts = outlast_timeouts

    def do(self, name: str) -> None:
        if name.startswith("fill"):
            self._fill(name)
        elif name == CUT:
            self._cut()
        elif name.startswith("freeze"):
            self._freeze(name.split()[-1])
        else:
            getattr(self, "_" + name.replace(" ", "_"))()

    def _kill_a_backend(self) -> None:
        self._kill("backend", self._cluster.backends)

    def _kill_an_executor(self) -> None:
        self._kill("executor", self._cluster.executors)

    def _kill_a_worker(self) -> None:
        number = self._chance.randrange(len(self._cluster.workers))
        self._cluster.kill_worker(number)
        self.killed["worker"] += 1
        # Its executors end by themselves, before or after another worker has started.
        time.sleep(self._chance.uniform(0, 1.5))
        self._cluster.start_worker(number)

    def _kill_the_driver(self) -> None:
        self._driver.kill(self._chance.choice(["all", "jvm", "python"]))
        self.killed["driver"] += 1
        if self._chance.random() < 0.5:
            self._verify()
        else:
            # The executors may still run tasks of the killed driver.
            time.sleep(self._chance.uniform(0, 1))
        self._driver.start()

    def _kill_a_backend_and_the_other_executor(self) -> None:
        executor = self._kill("backend", self._cluster.backends)
        self._kill("executor", lambda: [e for e in self._cluster.executors() if e.pid != executor])

    def _kill_an_executor_whose_backend_resumes_later(self) -> None:
        """Kill an executor and resume its frozen backend after another executor has repeated the work."""
        executor = self._choose(lambda: [e for e in self._cluster.executors() if self._cluster.backend_of(e)])
        backend = self._cluster.backend_of(executor)
        with frozen(backend) if backend else contextlib.nullcontext():
            time.sleep(self._chance.uniform(0.1, 0.6))
            self._kill("executor", lambda: [executor] if executor.is_running() else self._cluster.executors())
            self._wait_for_progress(2)

    def _freeze(self, kind: str) -> None:
        victim: Any
        if kind == "backend":
            victim = self._choose(self._cluster.backends)
        elif kind == "executor":
            victim = self._choose(self._cluster.executors)
        elif kind == "worker":
            victim = psutil.Process(self._chance.choice(self._cluster.workers).pid)
        else:
            victim = self._driver.jvm()
        if victim is None:
            return
        with frozen(victim):
            # There is no timeout for a backend; the driver times out the others.
            time.sleep(self._seconds(long=kind in ("executor", "worker")))
        self.disturbed[f"freeze {kind}"] += 1

    def _cut(self) -> None:
        assert self._network is not None
        host = self._chance.choice(self._hosts)
        self._network.cut(host)
        try:
            time.sleep(self._seconds(long=True))
        finally:
            self._network.mend(host)
        self.disturbed["cut worker off"] += 1

    def _fill(self, name: str) -> None:
        self._disks[name].fill()
        try:
            time.sleep(self._chance.uniform(0.5, 3))
        finally:
            self._disks[name].empty()
        self.disturbed[name] += 1

    def _kill(self, kind: str, list_processes: Callable[[], list[psutil.Process]]) -> int:
        """Kill one of them, and return its parent's process id."""
        while True:
            victim = self._choose(list_processes)
            # It may have ended by itself, or belong to an ended process.
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = victim.ppid()
                victim.kill()
                self.killed[kind] += 1
                return parent

    def _choose(self, list_processes: Callable[[], list[psutil.Process]]) -> psutil.Process:
        processes: list[psutil.Process] = []

        def look() -> bool:
            processes[:] = sorted(list_processes(), key=lambda process: process.pid)
            return bool(processes)

        assert until(look, 60), "there is none to choose from"
        return self._chance.choice(processes)

    def _seconds(self, *, long: bool) -> float:
        if self._outlast_timeouts and long and self._chance.random() < 0.5:
            return self._chance.uniform(GIVEN_UP_AFTER, GIVEN_UP_AFTER + 5)
        return self._chance.uniform(0.2, 2)
