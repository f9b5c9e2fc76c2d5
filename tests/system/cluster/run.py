"""Execution of a plan: queries, faults while they run, and comparison of output and batch answer."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

import spark_statestore
from tests.support.bare import FOR_PROCESSORS, FOR_S3, bare_python
from tests.support.s3 import environment_of, new_bucket, s3_service
from tests.support.trees import retained_batches
from tests.system.cluster.answers import compare
from tests.system.cluster.data import Input, is_of_the_end
from tests.system.cluster.disks import SmallDisk
from tests.system.cluster.faults import FULL_DISK, FULL_LOCAL_DISK, GIVEN_UP_AFTER, Faults
from tests.system.cluster.hosts import Loopback, Namespaces
from tests.system.cluster.processes import Cluster, Driver, until
from tests.system.cluster.queries import IN_PYTHON, KINDS

STATE_STORE = "spark.sql.streaming.stateStore."

CONFS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.cores.max": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # Kills count as task failures, and there are many.
    "spark.task.maxFailures": "20",
    "spark.stage.maxConsecutiveAttempts": "50",
    # Short timeouts for processes that do not respond.
    "spark.network.timeout": f"{GIVEN_UP_AFTER}s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "1s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
    "spark.locality.wait": "500ms",
    # Old versions are discarded as early as possible.
    "spark.sql.streaming.minBatchesToRetain": "2",
    STATE_STORE + "minDeltasForSnapshot": "3",
    STATE_STORE + "maintenanceInterval": "500ms",
}

PROGRESS_SECONDS = 120
"""Seconds in which queries must progress after any fault."""


@dataclass(frozen=True)
class Plan:
    """The queries and settings of a run, and its faults.

    The seed determines the input, the moments and the victims. Queries have a kind and a format of their
    checkpoints, `options` are those of `spark_statestore.configure`, and `confs` are Spark's.
    """

    seed: int
    faults: Sequence[str]
    queries: dict[str, tuple[str, int]]
    options: dict[str, Any] = field(default_factory=dict)
    confs: dict[str, str] = field(default_factory=dict)
    outlast_timeouts: bool = False
    on_s3: bool = False


@dataclass
class Figures:
    """Figures of one run, or of several.

    `restarts` counts the driver and queries that exited without being killed, `differing` the batches that
    ran again with another output, `stale` the rows of state that should have expired.
    """

    killed: Counter[str] = field(default_factory=Counter)
    disturbed: Counter[str] = field(default_factory=Counter)
    recovered: int = 0
    restarts: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    rows: int = 0
    lost: int = 0
    duplicated: int = 0
    differing: int = 0
    stale: int = 0
    verified: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, figures: Figures) -> None:
        for name, value in vars(figures).items():
            if isinstance(value, Counter):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def __str__(self) -> str:
        def listed(counts: Counter[str]) -> str:
            return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))

        lines = [
            f"killed            {sum(self.killed.values())}: {listed(self.killed)}",
            f"other faults      {listed(self.disturbed) or 'none'}",
            f"recovered after   {self.recovered}",
            f"unplanned exits   {listed(self.restarts) or 'none'}",
            f"batches           {self.batches}, with {self.rows} rows",
            f"rows lost         {self.lost}",
            f"rows duplicated   {self.duplicated}",
            f"differing outputs {self.differing}",
            f"stale state rows  {self.stale}",
            f"verified batches  {self.verified}",
            f"seconds           {self.seconds:.0f}",
        ]
        return "\n".join(lines)


def run(plan: Plan, network: Loopback | Namespaces | None = None) -> Figures:
    """Run a plan; if it fails, its files stay in the directory named by the error."""
    # Sockets below it need a short path.
    directory = Path(tempfile.mkdtemp(prefix="sst-"))
    start = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            figures = _Run(plan, directory, stack.enter_context(network or Loopback()), stack).to_its_end()
    except BaseException as error:
        error.add_note(f"seed {plan.seed}, plan {plan}; the run's files are in {directory}")
        raise
    figures.seconds = time.monotonic() - start
    if figures.lost or figures.duplicated or figures.differing or figures.stale:
        raise AssertionError(f"{figures}\nof {plan}; the run's files are in {directory}")
    shutil.rmtree(directory)
    return figures


class _Run:
    def __init__(
        self, plan: Plan, directory: Path, network: Loopback | Namespaces, stack: contextlib.ExitStack
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._chance = random.Random(plan.seed)
        self._figures = Figures()
        self._input = Input(directory / "input", plan.seed)
        # Several, so that each query has input when it starts.
        for _ in range(3):
            self._input.feed()
        disks = {FULL_DISK: SmallDisk(directory / "checkpoints", 64)}
        disks[FULL_LOCAL_DISK] = SmallDisk(directory / "local", 256)
        for name in disks.keys() & set(plan.faults):
            stack.enter_context(disks[name])
        kinds = {kind for kind, _ in plan.queries.values()}
        packages = FOR_PROCESSORS if kinds.intersection(IN_PYTHON) else ()
        self._state: str | None = None
        environment: dict[str, str] = {}
        if plan.on_s3:
            packages = (*packages, *FOR_S3)
            service = stack.enter_context(s3_service(network.driver.address))
            environment = environment_of(service)
            bucket = new_bucket(service, stack.enter_context(pytest.MonkeyPatch.context()))
            self._state = f"s3://{bucket}"
        self._python = bare_python(directory / "bare", *packages)
        self.cluster = stack.enter_context(Cluster(directory, network.driver, network.workers))
        self.driver = stack.enter_context(
            Driver(self.cluster, self._python, **self._driver_arguments(network, environment))
        )
        self._faults = Faults(
            self.cluster,
            self.driver,
            self._chance,
            self._wait_for_progress,
            self._verify,
            network if isinstance(network, Namespaces) else None,
            network.workers,
            disks,
            outlast_timeouts=plan.outlast_timeouts,
        )

    def to_its_end(self) -> Figures:
        self._wait_for_progress(len(self._plan.queries), each=True)
        self._check_shipped()
        for name in self._plan.faults:
            # A random moment of a batch.
            time.sleep(self._chance.uniform(0, 0.7))
            self._faults.do(name)
            self._wait_for_progress(self._chance.randint(1, 3))
            self._figures.recovered += 1
        self._finish()
        self._figures.killed.update(self._faults.killed)
        self._figures.disturbed.update(self._faults.disturbed)
        self._compare()
        return self._figures

    def _check_shipped(self) -> None:
        """Check that the backends of executors import only files shipped with the session."""
        # The driver's own backend, for Spark's files, has the driver's interpreter.
        for backend in filter(None, map(self.cluster.backend_of, self.cluster.executors())):
            with contextlib.suppress(psutil.NoSuchProcess):
                assert backend.cmdline()[0] == str(self._python)
                (path,) = backend.environ()["PYTHONPATH"].split(os.pathsep)
                assert path.startswith(f"{self._directory}/work-"), path
                assert path.endswith(f"/spark_statestore-{spark_statestore.__version__}.zip"), path

    def _driver_arguments(
        self, network: Loopback | Namespaces, environment: dict[str, str]
    ) -> dict[str, Any]:
        java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={self.cluster.temporary}"
        confs = CONFS | {
            "spark.driver.host": network.driver.address,
            "spark.driver.bindAddress": network.driver.address,
            "spark.driver.extraJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
            **{f"spark.executorEnv.{name}": value for name, value in environment.items()},
        }
        queries = {
            name: {"kind": kind, "confs": {STATE_STORE + "checkpointFormatVersion": str(checkpoint_format)}}
            for name, (kind, checkpoint_format) in self._plan.queries.items()
        }
        return {
            "directory": str(self._directory),
            "master": self.cluster.url,
            "confs": confs | self._plan.confs,
            # All executors share the copies, as those of one host do.
            "options": {"local_recovery": f"{self._directory}/copies"}
            | self._plan.options
            | ({"checkpoints_dir": self._state} if self._state else {}),
            "queries": queries,
        }

    def _wait_for_progress(self, batches: int, *, each: bool = False) -> None:
        """Wait for a number of further batches, and keep the queries supplied with input."""
        before = self._counts()

        def progressed() -> bool:
            self._look_after()
            now = self._counts()
            new = Counter({name: now[name] - before[name] for name in now})
            return all(new[name] for name in self._plan.queries) if each else new.total() >= batches

        assert until(progressed, PROGRESS_SECONDS), f"no query progresses: {self._situation()}"

    def _verify(self) -> None:
        """Check that every version that Spark may load again is intact, while nothing runs."""
        assert until(lambda: not self.cluster.executors(), 60), self.cluster.executors()
        for name in self._plan.queries:
            checkpoint = self._directory / "checkpoints" / name
            for batch in retained_batches(checkpoint, int(CONFS["spark.sql.streaming.minBatchesToRetain"])):
                checked = spark_statestore.verify(str(checkpoint), batch, checkpoints_dir=self._state)
                assert checked.ok, checked
                self._figures.verified += 1

    def _look_after(self) -> None:
        """Feed the queries, and restart a driver that has exited."""
        if self._input.parts < self._begun() + 3:
            self._input.feed()
        code = self.driver.ended()
        if code is not None:
            self._figures.restarts["driver"] += 1
            assert self._figures.restarts["driver"] < 10, f"the driver keeps ending: {self._situation()}"
            self.driver.start()

    def _begun(self) -> int:
        """Return the number of files processed by the most advanced query."""
        logs = (self._directory / "checkpoints").glob("*/sources/*/[0-9]*")
        return max((int(log.name.partition(".")[0]) + 1 for log in logs), default=0)

    def _counts(self) -> Counter[str]:
        out = self._directory / "out"
        return Counter({name: len(list((out / name).glob("[0-9]*.json"))) for name in self._plan.queries})

    def _finish(self) -> None:
        self._input.flush()
        (self._directory / "ended").touch()

        def has_ended() -> bool:
            code = self.driver.ended()
            if code:
                self._look_after()
            return code == 0

        assert until(has_ended, 2 * PROGRESS_SECONDS), f"the queries do not end: {self._situation()}"

    def _compare(self) -> None:
        for event in self._events():
            if event["event"] in ("failed", "refused"):
                self._figures.restarts["query"] += 1
                self._figures.failures.append(f"{event['query']}: {event['message']}")
        for name, (kind, _) in self._plan.queries.items():
            answer = _rows(self._directory / f"answers/{kind}.json")
            outputs = (self._directory / "out" / name).glob("[0-9]*.json")
            batches = {int(path.stem): _rows(path) for path in outputs}
            assert answer, name
            lost, duplicated = compare(answer, batches, totals=KINDS[kind].mode == "update")
            self._figures.batches += len(batches)
            self._figures.rows += len(answer)
            self._figures.lost += lost.total()
            self._figures.duplicated += duplicated.total()
            self._figures.differing += len(list((self._directory / "out" / name).glob("*.differs-*")))
            self._figures.stale += stale_rows(str(self._directory / "checkpoints" / name), kind, self._state)
        self._verify()
        # No process of the application may be left on the cluster once it has ended.
        assert until(lambda: not self.cluster.backends(), 30), self.cluster.backends()

    def _events(self) -> Iterator[dict[str, Any]]:
        for line in (self._directory / "events.jsonl").read_text().splitlines():
            # A killed driver may leave a partial line.
            with contextlib.suppress(ValueError):
                yield json.loads(line)

    def _situation(self) -> str:
        events = (
            [str(event) for event in self._events()] if (self._directory / "events.jsonl").exists() else []
        )
        return (
            f"{self._figures}\nbatches {dict(self._counts())}, parts {self._input.parts}, "
            f"executors {self.cluster.executors()}, backends {self.cluster.backends()}\n"
            + "\n".join(events[-5:])
            + f"\nOutput of the driver:\n{self.driver.output_tail()}"
        )


def stale_rows(checkpoint: str, kind: str, state: str | None) -> int:
    """Count the rows of a query's state that the watermark has expired."""
    count = 0
    for store in KINDS[kind].stores:
        rows = spark_statestore.read_state(checkpoint, store=store, columns=["key"], checkpoints_dir=state)
        keys = rows["key"].to_pylist()
        assert keys, f"the last rows are missing in {store} of {checkpoint}"
        count += sum(not is_of_the_end(key) for key in keys)
    return count


def _rows(path: Path) -> list[tuple[str, ...]]:
    return [tuple(row) for row in json.loads(path.read_text())]
