"""One run: queries on a cluster, faults while they run, and whether they put out exactly the batch answer."""

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
from tests.bare import FOR_PROCESSORS, FOR_S3, bare_python
from tests.cluster.answers import compare
from tests.cluster.data import Input, is_of_the_end
from tests.cluster.disks import SmallDisk
from tests.cluster.faults import FULL_DISK, FULL_LOCAL_DISK, GIVEN_UP_AFTER, Faults
from tests.cluster.hosts import Loopback, Namespaces
from tests.cluster.processes import Cluster, Driver, until
from tests.cluster.queries import IN_PYTHON, KINDS
from tests.s3 import environment_of, new_bucket, s3_service

STATE_STORE = "spark.sql.streaming.stateStore."

CONFS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.cores.max": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # Kills count as failures of tasks, and are many here.
    "spark.task.maxFailures": "20",
    "spark.stage.maxConsecutiveAttempts": "50",
    # Who does not answer is given up soon.
    "spark.network.timeout": f"{GIVEN_UP_AFTER}s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "1s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
    "spark.locality.wait": "500ms",
    # Old versions go as soon as they may.
    "spark.sql.streaming.minBatchesToRetain": "2",
    STATE_STORE + "minDeltasForSnapshot": "3",
    STATE_STORE + "maintenanceInterval": "500ms",
}

PATIENCE = 120
"""Seconds in which queries must get on, whatever happened."""


@dataclass(frozen=True)
class Plan:
    """What is run, and what happens meanwhile.

    Attributes
    ----------
    seed
        Decides the input, the moments and the victims.
    faults
        What happens, in this order: names from `tests.cluster.faults`.
    queries
        By name, their kind and Spark's format of their state checkpoints.
    options
        For `spark_statestore.configure`.
    confs
        More settings of the application.
    patient
        See `Faults`.
    on_s3
        Whether state lies on an S3 service.
    """

    seed: int
    faults: Sequence[str]
    queries: dict[str, tuple[str, int]]
    options: dict[str, Any] = field(default_factory=dict)
    confs: dict[str, str] = field(default_factory=dict)
    patient: bool = False
    on_s3: bool = False


@dataclass
class Figures:
    """What happened in a run, or in several.

    Attributes
    ----------
    killed, disturbed
        How often what was killed, or frozen, filled or cut off.
    recovered
        How often a query got on after that.
    restarts
        Of the driver and of queries, as far as nobody killed them.
    batches, rows
        Batches that were put out, and the rows of the batch answers.
    lost, doubled, differing, stale
        Rows that are missing and that are too many, batches that were run again with another result, and rows of
        state that had to go and did not.
    verified
        How often a batch of a checkpoint that was left as it was proved whole.
    seconds
        How long it took.
    failures
        What queries failed with.
    """

    killed: Counter[str] = field(default_factory=Counter)
    disturbed: Counter[str] = field(default_factory=Counter)
    recovered: int = 0
    restarts: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    differing: int = 0
    stale: int = 0
    verified: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        """Count another run in."""
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def __str__(self) -> str:
        lines = [
            f"killed          {sum(self.killed.values())}: {_list(self.killed)}",
            f"else            {_list(self.disturbed) or 'nothing'}",
            f"got on after    {self.recovered}",
            f"ended by itself {_list(self.restarts) or 'nothing'}",
            f"batches         {self.batches}, with {self.rows} rows",
            f"rows lost       {self.lost}",
            f"rows doubled    {self.doubled}",
            f"other results   {self.differing}",
            f"stale state     {self.stale}",
            f"found whole     {self.verified}",
            f"seconds         {self.seconds:.0f}",
        ]
        return "\n".join(lines)


def run(plan: Plan, network: Loopback | Namespaces | None = None) -> Figures:
    """Run a plan; what it leaves stays where the error says if it fails."""
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
    if figures.lost or figures.doubled or figures.differing or figures.stale:
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
        # Several, so that each query finds some when it starts.
        for _ in range(3):
            self._input.feed()
        disk = local_disk = None
        if FULL_DISK in plan.faults:
            disk = stack.enter_context(SmallDisk(directory / "checkpoints", 64))
        if FULL_LOCAL_DISK in plan.faults:
            local_disk = stack.enter_context(SmallDisk(directory / "local", 256))
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
            Driver(self.cluster, self._python, **self._asked(network, environment))
        )
        self._faults = Faults(
            self.cluster,
            self.driver,
            self._chance,
            self._wait_for_progress,
            self._verify,
            network if isinstance(network, Namespaces) else None,
            network.workers,
            disk,
            local_disk,
            patient=plan.patient,
        )

    def to_its_end(self) -> Figures:
        self._wait_for_progress(len(self._plan.queries), each=True)
        self._check_shipped()
        for name in self._plan.faults:
            # Any moment of a batch.
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
        """All that the backends find of this project came with the session."""
        for backend in self.cluster.backends():
            with contextlib.suppress(psutil.NoSuchProcess):
                assert backend.cmdline()[0] == str(self._python)
                (path,) = backend.environ()["PYTHONPATH"].split(os.pathsep)
                assert path.startswith(f"{self._directory}/work-"), path
                assert path.endswith(f"/spark_statestore-{spark_statestore.__version__}.zip"), path

    def _asked(self, network: Loopback | Namespaces, environment: dict[str, str]) -> dict[str, Any]:
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
            "options": self._plan.options | ({"checkpoints_dir": self._state} if self._state else {}),
            "queries": queries,
        }

    def _wait_for_progress(self, batches: int, *, each: bool = False) -> None:
        """Wait until so many more batches are put out, and keep the queries busy meanwhile."""
        before = self._counts()

        def got_on() -> bool:
            self._look_after()
            now = self._counts()
            new = Counter({name: now[name] - before[name] for name in now})
            return all(new[name] for name in self._plan.queries) if each else new.total() >= batches

        assert until(got_on, PATIENCE), f"nothing gets on any more: {self._situation()}"

    def _verify(self) -> None:
        """Check that every version that Spark may ask for again is whole; nothing runs meanwhile."""
        assert until(lambda: not self.cluster.executors(), 60), self.cluster.executors()
        for name in self._plan.queries:
            checkpoint = self._directory / "checkpoints" / name
            batches = sorted(int(log.name) for log in checkpoint.glob("commits/[0-9]*"))
            for batch in batches:
                if batch >= batches[-1] - int(CONFS["spark.sql.streaming.minBatchesToRetain"]):
                    checked = spark_statestore.verify(str(checkpoint), batch, checkpoints_dir=self._state)
                    assert checked.ok, checked
                    self._figures.verified += 1

    def _look_after(self) -> None:
        """Feed the queries, and start a driver that ended by itself again."""
        if self._input.parts < self._begun() + 3:
            self._input.feed()
        code = self.driver.ended()
        if code is not None:
            self._figures.restarts["driver"] += 1
            assert self._figures.restarts["driver"] < 10, (
                f"the driver ends again and again: {self._situation()}"
            )
            self.driver.start()

    def _begun(self) -> int:
        """How many files the query that is ahead has taken."""
        logs = (self._directory / "checkpoints").glob("*/sources/*/[0-9]*")
        return max((int(log.name.partition(".")[0]) + 1 for log in logs), default=0)

    def _counts(self) -> Counter[str]:
        """How many batches each query has put out."""
        out = self._directory / "out"
        return Counter({name: len(list((out / name).glob("[0-9]*.json"))) for name in self._plan.queries})

    def _finish(self) -> None:
        self._input.flush()
        (self._directory / "ended").touch()

        def done() -> bool:
            code = self.driver.ended()
            if code:
                self._look_after()
            return code == 0

        assert until(done, 2 * PATIENCE), f"the queries do not end: {self._situation()}"

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
            lost, doubled = compare(answer, batches, totals=KINDS[kind].mode == "update")
            self._figures.batches += len(batches)
            self._figures.rows += len(answer)
            self._figures.lost += lost.total()
            self._figures.doubled += doubled.total()
            self._figures.differing += len(list((self._directory / "out" / name).glob("*.differs-*")))
            self._figures.stale += stale_rows(str(self._directory / "checkpoints" / name), kind, self._state)
        self._verify()
        # Nothing that ran on the cluster is left once its application has ended.
        assert until(lambda: not self.cluster.backends(), 30), self.cluster.backends()

    def _events(self) -> Iterator[dict[str, Any]]:
        for line in (self._directory / "events.jsonl").read_text().splitlines():
            # A driver that was killed may leave a part of a line.
            with contextlib.suppress(ValueError):
                yield json.loads(line)

    def _situation(self) -> str:
        said = [str(event) for event in self._events()] if (self._directory / "events.jsonl").exists() else []
        return (
            f"{self._figures}\nbatches {dict(self._counts())}, parts {self._input.parts}, "
            f"executors {self.cluster.executors()}, backends {self.cluster.backends()}\n"
            + "\n".join(said[-5:])
            + f"\nThe driver said:\n{self.driver.last_words()}"
        )


def stale_rows(checkpoint: str, kind: str, state: str | None) -> int:
    """Rows of a query's state that the watermark has passed."""
    found = 0
    for store in KINDS[kind].stores:
        rows = spark_statestore.read_state(checkpoint, store=store, columns=["key"], checkpoints_dir=state)
        keys = rows["key"].to_pylist()
        assert keys, f"the rows that came last are missing in {store} of {checkpoint}"
        found += sum(not is_of_the_end(key) for key in keys)
    return found


def _rows(path: Path) -> list[tuple[str, ...]]:
    return [tuple(row) for row in json.loads(path.read_text())]


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
