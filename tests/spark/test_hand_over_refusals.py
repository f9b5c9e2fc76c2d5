"""Hand-overs of executors that the driver refuses fail the batch, and the one before it stays whole."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

import spark_statestore
from spark_statestore.query import QueryCheckpoint
from tests.spark.test_checkpoint_file_manager import Manager
from tests.unit.query.stored_query import Attempt, StoredQuery

pytestmark = pytest.mark.slow

BEFORE = {"a": 1, "b": 2, "c": 3, "d": 4}
CHANGES = {"a": 10, "b": 20, "c": 30, "d": 40}
PARTITIONS = 2


class Driver:
    """A driver's JVM, to which executors hand a query's second batch over.

    Their stores are in this process.
    """

    def __init__(self, spark: Any, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.query = StoredQuery(directory, partitions=PARTITIONS, merges=True)
        self.query.run(**BEFORE)
        self.query.begin()
        self.log = f"file:{directory}/commits"
        self.statestore = spark._jvm.org.apache.spark.sql.statestore
        self.commits = self.statestore.driver.HandedOverCommits
        self.begin_run()

    def begin_run(self) -> None:
        self.run = str(uuid.uuid4())
        self.manager = Manager(self.spark, self.log)
        self.statestore.ProviderHarness.announce(self.log, self.run)
        assert self.commits.begin(self.log, self.run)
        # The attempt of the batch before is another run's.
        self.stores = [str(uuid.uuid4()) for _ in range(PARTITIONS)]

    def hand_over(self, partition: int, *, run: str | None = None, damage: bool = False) -> Attempt:
        """Commit a partition's version as its task does, and send it; it is refused if its run has ended."""
        attempt = self.query.commit(partition, CHANGES, hand_over=True)
        assert attempt.committed.metadata is not None
        data = bytearray(attempt.committed.metadata)
        if damage:
            data[len(data) // 2] ^= 1
        store = {
            "instance": self.stores[partition],
            "root": f"{self.directory}/state/0/{partition}",
            "operator": 0,
            "partition": partition,
            "name": "default",
            "commits": self.log,
            "run": self.run,
            "options": {},
        }
        path = f"0/{partition}/chk-2_{attempt.id}/_metadata"
        commit = self.statestore.driver.HandedOverCommit(attempt.id, 2, path, json.dumps(store), data)
        assert self.commits.take(self.log, run or self.run, commit) is (run is None)
        return attempt

    def accept(self, attempts: list[Attempt]) -> None:
        """Write the batch's entry of the commit log as Spark does, with the attempts that it accepts."""
        ids = {"0": [[attempt.id] for attempt in attempts]}
        entry = {"nextBatchWatermarkMs": 0, "stateUniqueIds": ids}
        self.manager.write("1", f"v2\n{json.dumps(entry)}".encode())

    def refuse(self, attempts: list[Attempt], repair: Callable[[], object] = lambda: None) -> str:
        """Return the error of a batch, of which nothing may exist.

        The batch before is whole, and the next run goes on.
        """
        with pytest.raises(Py4JJavaError) as caught:
            self.accept(attempts)
        message = str(caught.value.java_exception.getMessage())
        assert not (self.directory / "commits/1").exists()
        assert not list(self.directory.glob("state/_merged/*"))
        repair()
        checked = spark_statestore.verify(str(self.directory), 0)
        assert (checked.ok, checked.stores) == (True, PARTITIONS), checked
        self.query = self.query.restart(1)
        self.begin_run()
        self.accept([self.hand_over(p) for p in range(PARTITIONS)])
        self.check()
        return message

    def check(self) -> None:
        for batch in range(2):
            checked = spark_statestore.verify(str(self.directory), batch)
            assert (checked.ok, checked.stores) == (True, PARTITIONS), checked
        counted = {
            row["key"]["word"]: row["value"]["count"]
            for row in spark_statestore.read_state(str(self.directory)).to_pylist()
        }
        assert counted == BEFORE | CHANGES


@pytest.fixture
def driver(spark: Any, tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(spark, tmp_path / "checkpoint")
    yield driver
    driver.statestore.provider.CommitCollector.ended(driver.run)


def test_attempt_that_spark_did_not_accept_is_not_published(driver: Driver) -> None:
    """A task was lost after it had handed its commit over, and its attempt is not published."""
    dead = driver.hand_over(1)
    accepted = [driver.hand_over(p) for p in range(PARTITIONS)]
    driver.accept(accepted)
    driver.check()
    merged = QueryCheckpoint(str(driver.directory)).merged_files()
    ((_, paths),) = merged.physical_files()
    assert sorted(path.rpartition("_m")[0][-17:-1] for path in paths) == sorted(
        commit.id for commit in accepted
    )
    assert not any(dead.id in path for path in paths)


def test_executor_that_forgot_the_answer_asks_again_for_the_same_run(driver: Driver) -> None:
    """An executor that forgot the driver's answers asks again: what was handed over before counts."""
    first = driver.hand_over(0)
    assert driver.commits.begin(driver.log, driver.run)
    driver.accept([first, driver.hand_over(1)])
    driver.check()


def test_attempt_that_was_not_handed_over_fails_the_batch(driver: Driver) -> None:
    """As of an executor without the plugin."""
    handed_over = driver.hand_over(0)
    elsewhere = driver.query.commit(1, CHANGES, hand_over=True)
    message = driver.refuse([handed_over, elsewhere])
    assert f"batch 1 of {driver.log} is not committed" in message
    assert (
        f"the attempt {elsewhere.id} of operator 0, partition 1, which no executor has handed over" in message
    )
    assert "Nothing is lost: the query, started again, runs the batch again" in message
    assert f"spark.plugins={spark_statestore.PLUGIN_CLASS}" in message


def test_attempt_of_a_run_that_has_ended_is_refused(driver: Driver) -> None:
    dead_run = driver.run
    driver.begin_run()
    handed_over = driver.hand_over(0)
    dead = driver.hand_over(1, run=dead_run)
    message = driver.refuse([handed_over, dead])
    assert f"the attempt {dead.id} of operator 0, partition 1" in message


def test_late_task_of_an_ended_run_leaves_the_commits_of_the_next_one(driver: Driver) -> None:
    ended = driver.run
    driver.begin_run()
    handed_over = driver.hand_over(0)
    assert not driver.commits.begin(driver.log, ended)
    driver.accept([handed_over, driver.hand_over(1)])
    driver.check()


def test_damaged_metadata_fails_the_batch(driver: Driver) -> None:
    message = driver.refuse([driver.hand_over(0), driver.hand_over(1, damage=True)])
    assert "batch 1 is not committed: the metadata of operator 0, partition 1, 0/1/chk-2_" in message
    assert "Nothing of the batch exists; Spark runs it again once the query is restarted" in message


def test_storage_that_fails_at_the_barrier_fails_the_batch(driver: Driver) -> None:
    merged = driver.directory / "state" / "_merged"
    attempts = [driver.hand_over(p) for p in range(PARTITIONS)]
    merged.write_bytes(b"a file in the way")
    message = driver.refuse(attempts, repair=merged.unlink)
    assert (
        f"batch 1 is not committed: the versions that tasks handed over cannot be written to file://{merged}"
        in message
    )
    assert "Check that the directory is writable" in message


def test_executor_that_is_cut_off_names_the_driver(spark: Any) -> None:
    statestore = spark._jvm.org.apache.spark.sql.statestore
    statestore.CutOffDriver.connect("Connection reset by peer")
    try:
        with pytest.raises(Py4JJavaError) as caught:
            statestore.provider.Handover.isPossible("file:/query/commits", str(uuid.uuid4()))
    finally:
        statestore.CutOffDriver.disconnect()
    message = str(caught.value.java_exception.getMessage())
    assert "a task of the query with the commit log file:/query/commits" in message
    assert (
        "the driver did not answer this executor: Connection reset by peer. Nothing is lost: Spark runs"
        in message
    )
